"""Bringing parts into the table whose bytes came: one commit for all that came while the one before it was made.

    landed      each part's files in the scratch directory of a transaction of its own, compared      nothing
    gathered    those of the others in the scratch directory of the first one                          nothing
    one commit  the parts come, what they cover on that disk goes                                      the parts,
    unsaid                                                                                             the same
                what they cover on other disks goes

A commit syncs a dozen files and directories, whatever it brings: of many small parts that is most of the work. Nobody
waits for a commit to become larger: a part that comes alone is committed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from disks.base import Transaction
from disks.effects import rename
from tiering.catalog.catalog import StoredPart
from tiering.catalog.copies import copying
from tiering.catalog.new_parts import stage_part
from tiering.table.part import Part
from zerocopy.replica.replica import Replica
from zerocopy.replica.sharing import PartHolder

_MOST_PARTS = 60
"""In one commit, and in the request to Keeper that follows it. Most are of two files: of more than 128 the whole file
system would be synced."""
_MOST_BYTES = 256 << 20
"""In one commit, where one part alone has not more: a kill before it throws so much away."""

Queued = TypeVar("Queued")
"""What is done when a part is in the table."""


class Landed(msgspec.Struct, frozen=True):
    """A part as another replica has it, whole on a disk here, where nobody looks; `abandon` takes it away unless it was
    committed."""

    source: PartHolder
    part: Part
    directory: Path
    disk: str
    covered: list[StoredPart]
    """What it takes the place of, on any disk."""
    reason: str
    transaction: Transaction
    held: ExitStack
    """Its transaction, and the room that is reserved for it."""

    def abandon(self) -> None:
        """Give the room back, and what is not in the table."""
        self.held.close()

    def goes_with(self, other: Landed) -> bool:
        """Whether one commit may bring both."""
        return (self.disk, bool(self.covered), self.reason) == (other.disk, bool(other.covered), other.reason)


def commit(replica: Replica, group: Sequence[Landed]) -> None:
    """Commit parts that go with one another, and what they cover; copies on other disks go afterwards, outdated until
    then. Nothing is left of them when it fails."""
    context, definition = replica.context, replica.definition
    covered = [old for one in group for old in one.covered]
    names = [*(one.part.name for one in group), *(old.facts.name for old in covered)]
    first, *_ = group
    try:
        with context.journal.claim(definition.uuid, names, "fetch"):
            for one in group:
                directory = one.directory
                if one is not first:
                    directory = first.transaction.scratch() / one.part.name
                    rename(one.directory, directory)
                stage_part(first.transaction, definition, one.part, directory, is_compared=True)
            for old in covered:
                if old.disk == first.disk:
                    first.transaction.remove(old.directory)
            first.transaction.commit()
            copying.remove_copies(
                context, [old for old in covered if old.disk != first.disk], reason="replaced by a merge"
            )
        context.catalog.refresh_later()
    finally:
        for one in group:
            one.abandon()


class GroupCommit(msgspec.Struct, Generic[Queued]):
    """Who comes while nobody commits does so, for all that come meanwhile; the others go on at once."""

    commit: Callable[[list[tuple[Queued, Landed]]], None]
    """Of some that go with one another."""
    _waiting: list[tuple[Queued, Landed]] = msgspec.field(default_factory=list)
    _is_led: bool = False
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def add(self, queued: Queued, landed: Landed, *, alone: bool = False) -> None:
        """Returns when another thread is about to commit it; or commits, when nothing waits any more."""
        if alone:
            self.commit([(queued, landed)])
            return
        with self._lock:
            self._waiting.append((queued, landed))
            if self._is_led:
                return
            self._is_led = True
        try:
            while group := self._next():
                self.commit(group)
        except BaseException:
            with self._lock:
                self._is_led = False
            raise

    def close(self) -> None:
        """Throw away what nobody has committed."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, landed in waiting:
            landed.abandon()

    def _next(self) -> list[tuple[Queued, Landed]]:
        """The first, and what goes with it; nobody leads where nothing waits."""
        with self._lock:
            group, left = self._waiting[:1], list[tuple[Queued, Landed]]()
            size_bytes = sum(landed.part.size_bytes for _, landed in group)
            for queued, landed in self._waiting[1:]:
                size_bytes += landed.part.size_bytes
                fits = len(group) < _MOST_PARTS and size_bytes <= _MOST_BYTES and landed.goes_with(group[0][1])
                (group if fits else left).append((queued, landed))
            self._waiting = left
            self._is_led = bool(group)
            return group
