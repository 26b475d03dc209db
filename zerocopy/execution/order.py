"""Which entries of a replica's queue may be done now, side by side. Pure.

Entries are begun in the order of the log, and those whose blocks do not meet overtake each other: a merge waits for its
inputs, a drop for what is being brought into its range, what comes after another definition for that. What could not be
done holds up what comes after it and meets its blocks; but no drop, for what it takes away needs nobody to bring it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tiering.table.part import PartName
from zerocopy.execution.queue import Queued
from zerocopy.replica.entries import Alter, DropRange

_LOOK_AHEAD = 100
"""Entries that wait for one that is being done, at most, while later ones are begun."""
_MOST_LANDED = 100
"""Parts whose bytes came and that are to be committed, while others come."""


class _Placed(msgspec.Struct):
    """An entry of the queue with the blocks that it is about, which may turn out to be more."""

    position: int
    queued: Queued
    touches: list[PartName]

    @property
    def is_alter(self) -> bool:
        return isinstance(self.queued.entry, Alter)

    def meets(self, other: _Placed) -> bool:
        if self.is_alter or other.is_alter:
            return True
        return any(meet(one, another) for one in self.touches for another in other.touches)


@dataclass(slots=True)
class QueueOrder:
    """One run over the queue: what is taken is being done until it is ended, postponed or put back."""

    waiting: Sequence[Queued]
    at_once: int
    """Entries that are done side by side, at most."""
    _drops: list[tuple[int, DropRange]] = field(init=False)
    _position: int = 0
    """Of the first entry that was not looked at."""
    _passed: list[_Placed] = field(default_factory=list)
    """Those that wait for others which are being done, in their order."""
    _begun: dict[str, _Placed] = field(default_factory=dict)
    _landed: set[str] = field(default_factory=set)
    """Those of them that only wait to be committed."""
    _held: list[PartName] = field(default_factory=list)
    """What later entries may not touch."""
    _is_older: bool = False
    """Whether another definition could not be taken over."""

    def __post_init__(self) -> None:
        entries = ((place, queued.entry) for place, queued in enumerate(self.waiting))
        self._drops = [(place, entry) for place, entry in entries if isinstance(entry, DropRange)]

    def busy_beside(self, queued: Queued) -> list[PartName]:
        """The blocks of what waits or is being done, but this entry."""
        others = (one for one in [*self._passed, *self._begun.values()] if one.queued is not queued)
        return [*self._held, *(name for one in others for name in one.touches)]

    def take(self) -> Queued | None:
        """The next entry that may be begun beside those that are being done; None while there is none."""
        if len(self._begun) - len(self._landed) >= self.at_once or len(self._landed) >= _MOST_LANDED:
            return None
        for number, one in enumerate(self._passed):
            if self._is_free(one, self._passed[:number]):
                del self._passed[number]
                return self._begin(one)
        while self._position < len(self.waiting) and len(self._passed) < _LOOK_AHEAD:
            queued = self.waiting[self._position]
            one = _Placed(self._position, queued, list(queued.entry.touches))
            self._position += 1
            if self._is_free(one, self._passed):
                return self._begin(one)
            self._passed.append(one)
        return None

    def later(self, queued: Queued) -> list[Queued]:
        """What comes after it in the log."""
        return list(self.waiting[self._begun[queued.node].position + 1 :])

    def drops_after(self, queued: Queued) -> list[DropRange]:
        """The drops among that."""
        place = self._begun[queued.node].position
        return [drop for at, drop in self._drops if at > place]

    def why_held(self, queued: Queued) -> str:
        """Why the entry cannot be done in this run; empty where nothing before it is left undone."""
        if isinstance(queued.entry, DropRange | Alter):
            return ""
        if self._is_older:
            return "it waits for an earlier definition of the table"
        if any(meet(name, other) for name in queued.entry.touches for other in self._held):
            return "it waits for an earlier entry of the same blocks"
        return ""

    def widen(self, queued: Queued, name: PartName) -> bool:
        """The entry brings this larger part instead: whether nothing that is being done meets it. If not, it is to be
        put back."""
        one = self._begun[queued.node]
        one.touches.append(name)
        return not any(one.meets(other) for other in self._begun.values() if other is not one)

    def land(self, queued: Queued) -> None:
        """The bytes of its part came: another one is begun beside it, and what meets it waits until it is committed."""
        self._landed.add(queued.node)

    def put_back(self, queued: Queued) -> None:
        """It has to wait for work in progress that overlaps it, or to start again."""
        one = self._over(queued)
        self._passed = sorted([*self._passed, one], key=lambda each: each.position)

    def end(self, queued: Queued) -> None:
        """It is done, or needs not be."""
        self._over(queued)

    def postpone(self, queued: Queued) -> None:
        """It could not be done in this run."""
        one = self._over(queued)
        self._is_older = self._is_older or one.is_alter
        self._held += one.touches

    def _is_free(self, placed: _Placed, before: Sequence[_Placed]) -> bool:
        return not any(placed.meets(other) for other in [*self._begun.values(), *before])

    def _begin(self, placed: _Placed) -> Queued:
        self._begun[placed.queued.node] = placed
        return placed.queued

    def _over(self, queued: Queued) -> _Placed:
        self._landed.discard(queued.node)
        return self._begun.pop(queued.node)


def meet(name: PartName, other: PartName) -> bool:
    """Whether they have blocks in common."""
    return name.partition == other.partition and name.min_block <= other.max_block and other.min_block <= name.max_block
