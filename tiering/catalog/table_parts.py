"""The parts of a table on all disks, each with its state: active, outdated, or a duplicate of one on a hotter disk.

States follow from all parts of a table together. Where all of them were found to be active once, and the looks at the
disks are those that this was found with, no part has to be read to know it again: they are read when asked for.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from disks.base import Disk
from disks.workers.progress import SILENT, Progress
from tiering.catalog.copies.source_copies import SourceCopies
from tiering.catalog.lineage import Lineage
from tiering.catalog.looks.look import Looked
from tiering.catalog.looks.reader import PartReader
from tiering.catalog.looks.stored import Broken, StoredPart
from tiering.catalog.states import Doubts, States, Unproved, may_be_hidden
from tiering.config.settings import Config
from tiering.journal.kept_looks import PartSums
from tiering.journal.kept_parts import KeptParts, looks_document
from tiering.table.schema import TableDefinition

_AT_ONCE = 4096
"""So many parts are read at once where all are only gone through."""
_ONE_BY_ONE = 1000
"""So many partitions are read one by one: more, and all parts of the table are."""

_TRIES = 8
"""So often disks are looked at again that change while others are looked at."""


class TableParts:
    """The parts of one table as the looks at the disks found them."""

    def __init__(self, reader: TablePartsReader, definition: TableDefinition, looks: list[Looked]) -> None:
        self.definition = definition
        self.looks = looks
        self.doubts = Doubts({}, [])
        self.are_all_active = True
        """Known also before they are read."""
        self._reader = reader
        self._parts: list[StoredPart] | None = None
        self._partitions: dict[str, list[StoredPart]] = {}

    @property
    def unproved(self) -> Unproved:
        return self.doubts.unproved

    @property
    def unexplained(self) -> list[str]:
        return self.doubts.unexplained

    @property
    def broken(self) -> Iterator[Broken]:
        """What could not be read."""
        return (broken for look in self.looks for broken in look.broken)

    @property
    def sums(self) -> dict[str, PartSums] | None:
        """By disk; None where only going through the parts tells. All parts are active then."""
        if not self.are_all_active:
            return None
        found: dict[str, PartSums] = {}
        policy = self._reader.config.policies.get(self.definition.policy)
        for look in self.looks:
            sums = look.sums(policy)
            if sums is None:
                return None
            found[look.location.disk] = sums
        return found

    def everything(self) -> list[StoredPart]:
        """All of them, in name order."""
        if self._parts is None:
            with self._reader.lock:
                if self._parts is None:
                    self._reader.read(self)
        assert self._parts is not None
        return self._parts

    def partition(self, partition: str) -> list[StoredPart]:
        """Those of one partition, in name order."""
        if self._parts is None:
            with self._reader.lock:
                if partition in self._partitions:
                    return self._partitions[partition]
                if self._parts is None and (found := self._reader.read_partition(self, partition)) is not None:
                    self._partitions[partition] = found
                    return found
        everything = self.everything()
        first = bisect_left(everything, partition, key=lambda stored: stored.name.partition)
        end = bisect_right(everything, partition, lo=first, key=lambda stored: stored.name.partition)
        return everything[first:end]

    def partitions(self, names: Collection[str]) -> Iterator[StoredPart]:
        """Those of these partitions, in name order."""
        if self._parts is None and len(names) > _ONE_BY_ONE:
            self.everything()
        for name in sorted(names):
            yield from self.partition(name)

    def see(self, looks: list[Looked]) -> None:
        """Go by these looks."""
        self.looks = looks
        self._partitions.clear()

    def settle(self, parts: list[StoredPart], *, are_all_active: bool) -> None:
        """These are all."""
        self._parts, self.are_all_active = parts, are_all_active
        self._partitions.clear()


class _Settled(msgspec.Struct, frozen=True):
    """The parts of a table with their states, as they follow from these looks and nothing else."""

    generations: tuple[int, ...]
    dropping: frozenset[str]
    copies: frozenset[str]
    parts: list[StoredPart]
    are_all_active: bool


@dataclass(slots=True)
class TablePartsReader:
    """Looks at the disks of one catalog, for one table after the other."""

    config: Config
    disks: Mapping[str, Disk]
    lineage: Lineage
    copies: SourceCopies
    kept: KeptParts | None
    lock: threading.RLock = field(default_factory=threading.RLock)
    progress: Progress = SILENT
    stand_still: bool = False
    _reader: PartReader = field(init=False)
    _states: States = field(init=False)
    _settled: dict[str, _Settled] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = PartReader(self.disks, self.kept, self.progress, stand_still=self.stand_still)
        self._states = States(self.config, self.lineage, self.copies)

    def look(self, definition: TableDefinition, dropping: frozenset[str], *, anew: bool) -> TableParts:
        """The parts of the table now. Unless `anew`, a directory that shows no change is not looked into."""
        table = TableParts(self, definition, self._looks(definition, anew=anew))
        self._know(table, dropping)
        return table

    def read(self, table: TableParts, dropping: frozenset[str] = frozenset()) -> None:
        """Read the parts that the looks found; or look again, where they are kept no more."""
        if not self._read(table):
            self._look_again(table)
            if not self._read(table):
                table.see(self._looks(table.definition, anew=True))
        self._settle(table, dropping)

    def read_partition(self, table: TableParts, partition: str) -> list[StoredPart] | None:
        """Its active parts, in name order, where all parts are active; None where only reading all of them tells. Looks
        again where they are kept no more."""
        found = self._of_partition(table, partition)
        if found is None:
            self._look_again(table)
            self._know(table, frozenset())
            found = self._of_partition(table, partition) if table.are_all_active else None
        return found

    def forget_all_but(self, uuids: Iterable[str]) -> None:
        """Keep what was seen of these tables, and of no others."""
        self._reader.forget_all_but(uuids)

    def close(self) -> None:
        self._reader.close()

    def _know(self, table: TableParts, dropping: frozenset[str]) -> None:
        """Find out which parts are active; without reading them where that is known."""
        if not any(look.is_unread for look in table.looks):
            self._settle(table, dropping)
        elif dropping or self.copies.parts(table.definition) or not self._is_settled(table):
            self.read(table, dropping)

    def _look_again(self, table: TableParts) -> None:
        self._reader.forget_unread(table.definition)
        table.see(self._looks(table.definition, anew=False))

    def _read(self, table: TableParts) -> bool:
        return all(self._reader.read(look) for look in table.looks if look.is_unread)

    def _of_partition(self, table: TableParts, partition: str, to: str | None = None) -> list[StoredPart] | None:
        found: list[StoredPart] = []
        for look in table.looks:
            some = self._reader.read_partition(look, partition, to)
            if some is None:
                return None
            found += some
        return sorted(found, key=lambda stored: stored.name)

    def _looks(self, definition: TableDefinition, *, anew: bool) -> list[Looked]:
        """What the disks hold, all at one moment: of a part that moves to a disk which was looked at, from one which
        was not yet, answers would lack the rows. A disk that changed meanwhile is looked at again, for what changed."""
        policy = self.config.policies.get(definition.policy)
        volumes = {disk: volume.name for volume in reversed(policy.volumes) for disk in volume.disks} if policy else {}

        def look(disk: Disk, anew: bool) -> Looked:
            return self._reader.look(definition, disk, volumes.get(disk.name), policy, anew=anew)

        looks = {disk.name: look(disk, anew) for disk in self.disks.values()}
        for _ in range(0 if self.stand_still or len(looks) < 2 else _TRIES):
            behind = [self.disks[name] for name, found in looks.items() if _is_behind(found, self.disks[name])]
            if not behind:
                break
            looks |= {disk.name: look(disk, anew=False) for disk in behind}
        return list(looks.values())

    def _settle(self, table: TableParts, dropping: frozenset[str]) -> None:
        definition = table.definition
        generations = tuple(look.generation for look in table.looks)
        settled, copies = self._settled.get(definition.uuid), self.copies.parts(definition)
        basis = generations, dropping, copies
        if settled is not None and (settled.generations, settled.dropping, settled.copies) == basis:
            table.settle(settled.parts, are_all_active=settled.are_all_active)
            return
        found = [stored for look in table.looks for stored in look.parts.values()]
        if dropping:
            found = [stored for stored in found if stored.directory not in dropping]
        table.doubts.unexplained.clear()
        parts, is_certain = self._states.of(definition, found, copies, table.doubts)
        are_all_active = is_certain and not dropping and all(stored.state == "active" for stored in parts)
        table.settle(parts, are_all_active=are_all_active)
        self._settled.pop(definition.uuid, None)
        if is_certain:
            self._settled[definition.uuid] = _Settled(generations, dropping, copies, parts, are_all_active)
        if are_all_active and self.kept is not None and not self.stand_still:
            self._keep_settled(table, self.kept)

    def _keep_settled(self, table: TableParts, kept: KeptParts) -> None:
        looks = _identity(table)
        if looks is not None and not kept.is_settled(table.definition.directory, looks):
            kept.settle(table.definition.directory, looks)

    def _is_settled(self, table: TableParts) -> bool:
        """Whether all parts are active, none of which is held when it is known. As these looks found them, or as those
        found that they go on from, and so are all in the partitions that have changed since; else some partitions are
        read after others."""
        looks, directory = _identity(table), table.definition.directory
        if looks is None or self.kept is None:
            return False
        if self.kept.is_settled(directory, looks):
            return True
        before = _identity(table, before=True)
        if before is None or before == looks or not self.kept.is_settled(directory, before):
            ranges = _ranges(table)
        else:
            changed = frozenset[str]().union(*(look.changed for look in table.looks))
            ranges = ((partition, partition) for partition in changed)
        for first, last in ranges:
            found = self._of_partition(table, first, last)
            if found is None or not _are_active(found):
                return False
        if not self.stand_still:
            self.kept.settle(directory, looks)
        return True


def _is_behind(looked: Looked, disk: Disk) -> bool:
    """Whether the table's directory on the disk shows another state than when it was looked at."""
    return looked.state is not None and disk.state_of(looked.definition.directory) != looked.state


def _identity(table: TableParts, *, before: bool = False) -> str | None:
    """Tells which looks these are, or those that they go on from; None where some of them cannot be told from
    others."""
    looks = {
        look.location.disk: str(look.after) if before and look.after is not None else look.identity
        for look in table.looks
    }
    known = {disk: look for disk, look in looks.items() if look is not None}
    if len(known) < len(looks) or not any(look.kept for look in table.looks):
        return None
    return looks_document.encode(known).decode()


def _ranges(table: TableParts) -> Iterator[tuple[str, str]]:
    """The first and the last of some partitions at a time, in the order of paths: together all of the table."""
    sizes: Counter[str] = Counter()
    for look in table.looks:
        if look.kept is not None:
            sizes.update({name: sums.parts for name, sums in look.kept.sums.partitions.items()})
        else:
            sizes.update(stored.name.partition for stored in look.parts.values())
    first, parts, last = "", 0, ""
    for name in sorted(sizes, key=lambda name: f"{name}_"):
        first, last, parts = first or name, name, parts + sizes[name]
        if parts >= _AT_ONCE:
            yield first, last
            first, parts = "", 0
    if first:
        yield first, last


def _are_active(parts: list[StoredPart]) -> bool:
    """Whether all parts of a partition, in name order, answer queries."""
    return not may_be_hidden(parts) and all(part.name != other.name for part, other in pairwise(parts))
