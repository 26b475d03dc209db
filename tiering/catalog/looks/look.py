"""One look at a table's directory on a disk: what it found, and what is new since the look before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import is_

import msgspec
from msgspec.structs import replace

from disks.base import Mark, SmallFile
from oplog.errors import Damaged, FrostlineError
from tiering.catalog.looks.stored import Broken, LazyPart, PartSource, StoredPart
from tiering.config.settings import PolicyConfig
from tiering.journal.kept_looks import KeptLook, PartSums
from tiering.journal.kept_parts import UNSETTLED, PartsPlace, PartToKeep
from tiering.policy import part_sums
from tiering.table import kept_facts
from tiering.table import part as part_format
from tiering.table.part import facts_of
from tiering.table.schema import TableDefinition

KEPT_FROM = 64
"""Fewer new parts are not worth a write: the next process reads them again."""


class ReadApart(msgspec.Struct, frozen=True):
    """What a look at the past has instead of what is kept: of a look that goes on, nothing more is kept."""

    files: frozenset[str]
    """The paths at which it may have another `part.json` than is kept, or none."""
    parts: dict[str, StoredPart]
    """Those that it has there, by these paths."""

    def between(self, partition: str | None, to: str | None) -> dict[str, StoredPart]:
        """The parts of one partition, or of all from that one `to` another in the order of paths, or of all."""
        if partition is None:
            return self.parts
        return {path: one for path, one in self.parts.items() if is_between(one.name.partition, partition, to)}


def is_between(name: str, partition: str, to: str | None) -> bool:
    """Whether a partition of this name is that one, or between it and the one that it goes `to`, in the order of the
    paths of their parts."""
    return f"{partition}_" <= f"{name}_" <= f"{to or partition}_"


class Looked(msgspec.Struct):
    """What a look at a table's directory on a disk found."""

    definition: TableDefinition
    volume: str | None
    location: PartsPlace
    parts: dict[str, StoredPart] = msgspec.field(default_factory=dict)
    """by the path of its `part.json`, in path order"""
    marks: dict[str, Mark] = msgspec.field(default_factory=dict)
    broken: list[Broken] = msgspec.field(default_factory=list)
    generation: int = 0
    """The same as that of a look before: the same parts."""
    state: Mark | None = None
    """That of the directory; None where it has none, or one that does not last."""
    rules: str = ""
    kept: KeptLook | None = None
    """By which it is kept."""
    is_unread: bool = False
    """Whether it has no parts yet: they are kept (`PartReader.read`)."""
    after: int | None = None
    """The look that it goes on from."""
    changed: frozenset[str] = frozenset()
    """The partitions that may have other parts than that one found."""
    apart: ReadApart | None = None
    """What it has instead of some of what is kept."""
    whole: PartSums | None = None
    """What the parts are together, of a disk that stands still."""

    def asks_the_same(self, other: Looked) -> bool:
        """Whether what is asked of its parts is what the other look asks."""
        return (self.definition, self.volume, self.rules) == (other.definition, other.volume, other.rules)

    def sums(self, policy: PolicyConfig | None) -> PartSums | None:
        """What its parts are together; None where only going through many of them tells."""
        if self.kept is not None or self.whole is not None:
            return self.kept.sums if self.kept is not None else self.whole
        return part_sums.of(self.parts.values(), policy) if len(self.parts) < KEPT_FROM else None

    @property
    def identity(self) -> str | None:
        """Another one for other parts, now and ever; None where nothing tells."""
        if self.kept is not None:
            return str(self.kept.id) if self.apart is None else f"{self.kept.id} at {self.kept.state[0]}"
        marks = self.marks.values()
        if self.broken or len(self.parts) >= KEPT_FROM or len(marks) != len(self.parts) or UNSETTLED in marks:
            return None
        listed = repr(sorted(self.marks.items()))
        return hashlib.sha256(listed.encode()).hexdigest()


class Look:
    """One look while it goes on: for what `asked` asks, knowing what the `last` one found. May be limited to a few
    files: then `last` has these, and the sums of all."""

    def __init__(self, asked: Looked, last: Looked, state: Mark | None, *, again: PartSource | None = None) -> None:
        """`again`: where parts come from once more that hold no more than their facts, and are not kept."""
        self.result = replace(asked, parts={}, marks={}, broken=[], state=state)
        self.new: dict[str, tuple[PartToKeep, tuple[str, ...]]] = {}
        """What is to be kept of the parts that were read, and what they replace."""
        self._columns = asked.location.columns
        self._last = last
        self._again = again
        self._is_as_before = last.definition == asked.definition and last.volume == asked.volume

    def take(self, file: SmallFile) -> None:
        """One more file, in path order."""
        result, path = self.result, file.path
        if file.data is None:
            stored = self._last.parts[path]
            if isinstance(stored.described, LazyPart):
                path = stored.described.path  # of many parts one object each
            if not self._is_as_before or stored.revision != file.revision:
                stored = StoredPart(
                    result.definition, stored.described, stored.name, stored.disk, result.volume, file.revision
                )
        else:
            read = self._read(file, file.data)
            if read is None:
                return
            stored = read
        result.parts[path] = stored
        if (mark := self._mark_of(file)) is not None:
            result.marks[path] = mark

    def _mark_of(self, file: SmallFile) -> Mark | None:
        """By which it is kept: also one that has no mark yet, where the look as a whole is."""
        return UNSETTLED if file.mark is None and self.result.state is not None else file.mark

    @property
    def new_rows(self) -> list[PartToKeep]:
        """What is to be kept of the parts that were read."""
        return [new for new, _ in self.new.values()]

    def gone(self) -> list[tuple[str, Mark]]:
        """What was known of before and is not there any more, or may be another file."""
        return [(path, mark) for path, mark in self._last.marks.items() if not self._is_same(path)]

    def can_be_kept(self) -> bool:
        """Whether the next look can know all that this one found."""
        result = self.result
        if result.state is None or result.broken or len(result.parts) != len(result.marks):
            return False
        return all(path in self.new for path in result.marks if not self._is_same(path))

    def changed(self) -> frozenset[str]:
        """The partitions that may have other parts than before."""
        gone = (self._last.parts[path] for path, _ in self.gone())
        return frozenset(stored.name.partition for stored in (*gone, *self._brought()))

    def sums(
        self, policy: PolicyConfig | None, untouched: Callable[[str], Iterable[StoredPart]] = lambda partition: ()
    ) -> PartSums:
        """Of all that was found: by what has changed since the last look, where that has sums. `untouched`: the parts
        of a partition that were not looked at."""
        last, parts = self._last, self.result.parts
        if last.kept is None or last.rules != self.result.rules:
            return part_sums.of(parts.values(), policy)

        def left_of(partitions: Collection[str]) -> Iterator[StoredPart]:
            yield from (stored for stored in parts.values() if stored.name.partition in partitions)
            for partition in partitions:
                yield from untouched(partition)

        gone = [last.parts[path] for path, _ in self.gone()]
        return part_sums.changed(last.kept.sums, gone, self._brought(), left_of, policy)

    def _brought(self) -> list[StoredPart]:
        return [self.result.parts[path] for path in self.result.marks if not self._is_same(path)]

    def _is_same(self, path: str) -> bool:
        """Whether the file was there before, and surely is that one still."""
        before = self._last.marks.get(path)
        return before is not None and before != UNSETTLED and before == self.result.marks.get(path)

    def _read(self, file: SmallFile, data: bytes) -> StoredPart | None:
        result = self.result
        definition, disk = result.definition, result.location.disk
        try:
            part = part_format.decode(data, path=f"{disk}:{file.path}")
            if definition.part_directory(part.name) != file.path.rpartition("/")[0]:
                raise Damaged(f"{disk}:{file.path} describes another part: {part.name}")
        except FrostlineError as error:
            result.broken.append(Broken(disk, file.path, error.message))
            return None
        facts = facts_of(part, self._columns)
        if self._again is not None and (encoded := kept_facts.encoded(facts)) is not None:
            lazy = LazyPart(self._again, file.path, encoded, facts.replaces, 0)
            return StoredPart(definition, lazy, facts.part_name, disk, result.volume, file.revision)
        if (mark := self._mark_of(file)) is not None and (encoded := kept_facts.encoded(facts)) is not None:
            self.new[file.path] = PartToKeep(file.path, mark, file.revision, encoded, data), facts.replaces
        return StoredPart(definition, part, facts.part_name, disk, result.volume, file.revision)

    def found_the_same(self) -> bool:
        """Whether the parts are those of the look before."""
        last, found = self._last.parts, self.result.parts
        return len(last) == len(found) and all(map(is_, last.values(), found.values()))
