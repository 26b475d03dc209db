"""A table on disks of the past, by the index of now and by what commits have touched between then and now.

Nothing that is found goes into the index, which stays that of now. Only the names that were touched are compared.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

import msgspec
from msgspec.structs import replace

from disks.base import Disk
from tiering.catalog.index import changes, scan
from tiering.catalog.index.database import OvertakenError
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.rows import NO_DOCUMENT, AddedPart, DiskTable, PartitionTotals, decoded_facts, partition_of
from tiering.catalog.index.scan import FOLLOWED, ScanTarget
from tiering.catalog.index.table import IndexedTable, TableMoment
from tiering.catalog.stored import LazyPart, PartSource, StoredPart
from tiering.table.part import PART_FILE, PartName


class Difference(msgspec.Struct, frozen=True):
    """What a disk had then that the index does not have now."""

    now: DiskTable
    away: frozenset[str]
    """The names of the parts that the index has, and that were not there, or were others."""
    new: dict[str, list[AddedPart]]
    """What was there, and is not in the index, by partition."""


class PastTable(IndexedTable):
    """Reads a table on disks that never change. Where the index of now does not tell what they had, it reads each part,
    and keeps what that says in memory."""

    differences: dict[str, Difference] = msgspec.field(default_factory=dict)
    is_by_itself: bool = False

    def _table(self, disk: Disk, *, every_file: bool) -> DiskTable:
        if not self.is_by_itself and (then := self._by_now(disk)) is not None:
            return then
        if not self.is_by_itself:  # all disks by one index
            self.is_by_itself, self.index = True, PartIndex(None)
            raise OvertakenError
        return super()._table(disk, every_file=every_file)

    def _by_now(self, disk: Disk) -> DiskTable | None:
        """What the disk had, by the index of now; None where that does not tell."""
        target = ScanTarget(disk, self.definition)
        now, state = self.index.table_if_kept(disk.name, target.directory), disk.state_of(target.directory)
        if now is None or now.row.state is None or state is None or now.row.broken:
            return None
        names = set() if now.row.state == state else disk.changed_between(target.directory, now.row.state, state)
        if names is None or len(names) > max(FOLLOWED, now.parts) or now.row.basis[0] != target.basis[0]:
            return None  # of fewer names than it has parts, the index tells more than the disk
        known = self.index.known_among(now, names)
        change = scan.compared(self.index, now, target, now.row.basis, known, names)
        if change.broken:
            return None
        sums: dict[str, PartitionTotals] = {}
        away = frozenset([*change.gone, *(part.facts.name for part in change.new if part.facts.name in known)])
        for name, facts in self.index.facts_among(now, away).items():
            before = sums[facts.partition] if facts.partition in sums else now.partitions[facts.partition]
            sums[facts.partition] = before.without(facts, known[name].state, known[name].crc32)
        new: dict[str, list[AddedPart]] = defaultdict(list)
        for part in change.new:
            partition = part.facts.partition
            new[partition].append(part)
            before = sums[partition] if partition in sums else now.partitions.get(partition, PartitionTotals())
            sums[partition] = before.with_part(part, part.facts.crc32(0))
        self.differences[disk.name] = Difference(now, away, new)
        then = changes.with_sums(now, sums)
        return replace(then, row=replace(then.row, state=state))

    def _with_states(self, tables: dict[str, DiskTable]) -> TableMoment:
        """A partition of which no part was touched, and all parts are active now, had active parts only: parts are only
        hidden by others. Of all others the states are computed, and held."""
        if self.is_by_itself:
            return super()._with_states(tables)
        moment = TableMoment(tables)
        copies = self.states.copies.parts(self.definition)
        unsure = {
            name
            for table in tables.values()
            for name, sums in table.partitions.items()
            if sums.inactive or not sums.is_settled
        }
        for partition in sorted(unsure | {partition_of(name) for name in copies}):
            parts = self._rows(moment, partition)
            moment.held[partition], _ = self.states.of(self.definition, parts, copies, moment.doubts)
        return moment

    def _rows(self, moment: TableMoment, partition: str | None) -> list[StoredPart]:
        if self.is_by_itself:
            return super()._rows(moment, partition)
        make = self._maker(moment.tables)
        parts: list[StoredPart] = []
        for difference in self.differences.values():
            now = self.index.parts([difference.now], make, partition)
            parts += [stored for stored in now if stored.label not in difference.away]
            parts += self._new(difference, partition)
        return parts

    def _new(self, difference: Difference, partition: str | None) -> list[StoredPart]:
        """The parts that the index does not have. Their `part.json` is read again where it is asked for."""
        disk, parts = difference.now.disk, []
        source, volume = PartSource(self.disks, None, disk), self._volume(disk)
        asked = difference.new.values() if partition is None else [difference.new.get(partition, ())]
        for part in chain.from_iterable(asked):
            facts = part.facts
            path = f"{difference.now.directory}/{facts.name}/{PART_FILE}"
            lazy = LazyPart(source, path, facts.facts, decoded_facts(facts.facts).replaces, NO_DOCUMENT)
            name = PartName.parse(facts.name)
            parts.append(StoredPart(self.definition, lazy, name, disk, volume, facts.revision))
        return parts
