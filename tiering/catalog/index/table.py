"""The parts of a table on all disks, as the index of parts has them: of one moment, each with its state.

States are in the index. A partition whose states do not follow from its parts alone (a log or the journal had to be
asked, or parts are being dropped) is computed at each scan, and held.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from disks.base import Disk
from disks.workers.progress import SILENT, Progress
from oplog.errors import Transient
from tiering.catalog.index import scan
from tiering.catalog.index.database import OvertakenError
from tiering.catalog.index.index import PartIndex, unsettled
from tiering.catalog.index.rows import STATES, DiskTable, IndexedPart, decoded_facts, partition_of
from tiering.catalog.index.scan import ScanTarget
from tiering.catalog.states import Doubts, States
from tiering.catalog.stored import Broken, LazyPart, PartSource, StoredPart
from tiering.table.part import PART_FILE, PartName
from tiering.table.schema import TableDefinition

_T = TypeVar("_T")
_ONE_BY_ONE = 1000
"""So many partitions are read one by one: more, and all parts of the table are."""
_TRIES = 8
"""So often disks are scanned again that change while others are scanned."""


class TableMoment(msgspec.Struct):
    """The table's directories at one moment, by disk; and the partitions that are held."""

    tables: dict[str, DiskTable]
    held: dict[str, list[StoredPart]] = {}
    doubts: Doubts = msgspec.field(default_factory=lambda: Doubts({}, []))
    is_dropping: bool = False
    _are_all_active: bool | None = None
    _whole: dict[str, DiskTable] | None = None

    @property
    def are_all_active(self) -> bool:
        """Whether every part answers queries."""
        if self._are_all_active is None:
            self._are_all_active = not self.is_dropping and not self._has_inactive()
        return self._are_all_active

    @property
    def whole(self) -> dict[str, DiskTable]:
        """The directories, without partitions that are empty by now."""
        if self._whole is None:
            self._whole = {name: table.without_empty() for name, table in self.tables.items()}
        return self._whole

    def _has_inactive(self) -> bool:
        if any(stored.state != "active" for held in self.held.values() for stored in held):
            return True
        partitions = (item for table in self.tables.values() for item in table.partitions.items())
        return any(sums.inactive for name, sums in partitions if name not in self.held)

    @property
    def held_states(self) -> dict[str, list[tuple[str, str, str]]]:
        """What the held partitions show beyond the rows of the index."""
        return {
            name: [(stored.label, stored.disk, stored.state) for stored in parts] for name, parts in self.held.items()
        }

    @property
    def generations(self) -> dict[str, int]:
        return {name: table.row.generation for name, table in self.tables.items()}


class IndexedTable(msgspec.Struct):
    """Reads one table from the index, and compares that with the disks."""

    index: PartIndex
    disks: Mapping[str, Disk]
    states: States
    definition: TableDefinition
    dropping: frozenset[str] = frozenset()
    """Directories of parts that are about to be removed: shown as gone."""
    progress: Progress = SILENT
    lock: threading.RLock = msgspec.field(default_factory=threading.RLock)
    moment: TableMoment | None = None
    _everything: list[StoredPart] | None = None
    _partitions: dict[str, list[StoredPart]] = {}

    def scan(self, *, every_file: bool) -> TableMoment:
        """The table now."""
        with self.lock:
            for _ in range(_TRIES):
                try:
                    self._take(self._with_states(self._tables(every_file=every_file)))
                except OvertakenError:
                    every_file = False
                else:
                    return self.now
        raise Transient(
            f"the parts of {self.definition.full_name} change all the time",
            hint="try again when fewer processes change it",
        )

    @property
    def now(self) -> TableMoment:
        """The table at the last scan."""
        return self.moment or self.scan(every_file=False)

    def _take(self, moment: TableMoment) -> None:
        last = self.moment
        if last is None or last.generations != moment.generations or last.held_states != moment.held_states:
            self._everything, self._partitions = None, {}
        self.moment = moment

    def everything(self) -> list[StoredPart]:
        """All parts, in name order; of one name the hottest first."""
        with self.lock:
            return self._read(self._all)

    def partition(self, name: str) -> list[StoredPart]:
        """Those of one partition, in the same order."""
        return self.partitions([name])

    def partitions(self, names: Collection[str]) -> list[StoredPart]:
        """Those of several partitions, in the same order, all of one moment."""
        with self.lock:
            if self._everything is None and len(names) <= _ONE_BY_ONE:
                return self._read(lambda moment: self._stored_in(moment, names))
            everything, found = self.everything(), list[StoredPart]()
            for name in sorted(names):
                first = bisect_left(everything, name, key=lambda stored: stored.name.partition)
                end = bisect_right(everything, name, lo=first, key=lambda stored: stored.name.partition)
                found += everything[first:end]
            return found

    def where(self, may_match: Callable[[tuple[Any, ...]], bool]) -> tuple[list[StoredPart], int]:
        """The parts that answer queries, in the same order, without those of partitions that may not match by what
        their rows are partitioned by; and how many these are."""
        with self.lock:
            return self._read(partial(self._where, may_match))

    def _where(self, may_match: Callable[[tuple[Any, ...]], bool], moment: TableMoment) -> tuple[list[StoredPart], int]:
        if moment.are_all_active:
            asked = [one for table in moment.tables.values() for one in table.partitions.items()]
            names = {name for name, one in asked if one.values is None or may_match(one.values)}
            left_out = sum(one.parts for name, one in asked if name not in names)
            if left_out and len(names) <= _ONE_BY_ONE:
                return self._stored_in(moment, names), left_out
            if left_out:
                return [stored for stored in self._all(moment) if stored.name.partition in names], left_out
        return [stored for stored in self._all(moment) if stored.state == "active"], 0

    def _all(self, moment: TableMoment) -> list[StoredPart]:
        if self._everything is None:
            self._everything = self._stored(moment, None)
        return self._everything

    # What the parts are together

    def sums(self) -> dict[str, DiskTable] | None:
        """By disk; None where only going through the parts tells. All parts are active then."""
        moment = self.now
        return moment.whole if moment.are_all_active else None

    def due(self, until: datetime) -> set[str]:
        """The partitions with a part on which a rule acts by then."""
        with self.lock:
            return self._read(lambda moment: self._of_each(moment, lambda table: self.index.due(table, until)))

    def between_told(self, now: datetime) -> set[str]:
        """The partitions with a part of which a rule that plans only tell of was due, and another one will be."""
        with self.lock:
            return self._read(lambda moment: self._of_each(moment, lambda table: self.index.between_told(table, now)))

    def next_due(self, after: datetime, without: Collection[str] = ()) -> datetime | None:
        """When a rule that acts, or one that plans only tell of, is due next for a part of another partition than
        these."""
        with self.lock:
            ask = partial(self.index.next_due, after=after, without=without)
            return min(self._read(lambda moment: self._times(moment, ask)), default=None)

    def newest(self) -> datetime | None:
        """When the last of the parts was written."""
        with self.lock:
            return max(self._read(self._created), default=None)

    def _created(self, moment: TableMoment) -> list[datetime]:
        """When parts were written; the last is among them."""
        if moment.is_dropping:
            return [stored.facts.created for stored in self._all(moment)]
        return self._times(moment, self.index.newest)

    @staticmethod
    def _times(moment: TableMoment, ask: Callable[[DiskTable], datetime | None]) -> list[datetime]:
        return [at for at in map(ask, moment.tables.values()) if at is not None]

    @staticmethod
    def _of_each(moment: TableMoment, ask: Callable[[DiskTable], set[str]]) -> set[str]:
        return set[str]().union(*map(ask, moment.tables.values()))

    def broken(self) -> Iterator[Broken]:
        """What could not be read."""
        for table in self.now.tables.values():
            for name, reason in table.row.broken:
                yield Broken(table.disk, f"{table.directory}/{name}/{PART_FILE}", reason)

    def _read(self, read: Callable[[TableMoment], _T]) -> _T:
        """What is read of the moment of the last scan; or of now, where the index has gone on."""
        moment = self.now
        for _ in range(_TRIES):
            try:
                return read(moment)
            except OvertakenError:
                moment = self.scan(every_file=False)
        raise Transient(
            f"the parts of {self.definition.full_name} change all the time",
            hint="try again when fewer processes change it",
        )

    def _tables(self, *, every_file: bool) -> dict[str, DiskTable]:
        """What the disks hold, all at one moment: of a part that moves from a disk which was not scanned yet to
        one that was, answers would lack the rows. A disk that changed meanwhile is scanned again."""
        tables = {
            name: self._table(disk, every_file=every_file) for name, disk in self.disks.items() if not disk.broken
        }
        for _ in range(_TRIES if len(tables) > 1 else 0):
            behind = [table.disk for table in tables.values() if self._is_behind(table)]
            if not behind:
                break
            tables |= {name: self._table(self.disks[name], every_file=False) for name in behind}
        return tables

    def _table(self, disk: Disk, *, every_file: bool) -> DiskTable:
        policy = self.states.config.policies.get(self.definition.policy)
        target = ScanTarget(disk, self.definition, policy)
        return scan.scan(self.index, target, every_file=every_file, progress=self.progress)

    def _is_behind(self, table: DiskTable) -> bool:
        state = table.row.state
        return state is not None and self.disks[table.disk].state_of(table.directory) != state

    def _with_states(self, tables: dict[str, DiskTable]) -> TableMoment:
        """The moment, with the states of all parts in the index, but for those that are held."""
        copies = self.states.copies.parts(self.definition)
        parts = {directory.rsplit("/", 1)[1] for directory in self.dropping if directory.startswith(self._prefix)}
        asked = {partition_of(name) for name in (*copies, *parts)}
        moment, last = TableMoment(tables, is_dropping=bool(parts)), self.moment
        if last is not None and not (asked or last.held or last.is_dropping) and last.generations == moment.generations:
            return msgspec.structs.replace(last, tables=tables)  # states follow from the parts, which are those
        computed = self.index.mixed([*tables.values()])
        states: dict[tuple[int, str], int] = {}
        for partition in sorted(computed | asked):
            found = [stored for stored in self._rows(moment, partition) if stored.directory not in self.dropping]
            result, is_certain = self.states.of(self.definition, found, copies, moment.doubts)
            if partition in asked or not is_certain:
                moment.held[partition] = result
                continue
            for stored in result:
                if stored.state != "active":
                    states[tables[stored.disk].id, stored.label] = STATES.index(stored.state)
        settled = unsettled(tables.values()) - moment.held.keys()
        if settled:
            after = self.index.settle([*tables.values()], settled, states)
            moment.tables = {table.disk: table for table in after}
        return moment

    @property
    def _prefix(self) -> str:
        return f"{self.definition.directory}/"

    def _stored(self, moment: TableMoment, partition: str | None) -> list[StoredPart]:
        if partition is not None:
            held = moment.held.get(partition)
            return held if held is not None else self._ordered(self._rows(moment, partition))
        found = [one for one in self._rows(moment, None) if one.name.partition not in moment.held]
        return self._ordered([*found, *(stored for held in moment.held.values() for stored in held)])

    def _stored_in(self, moment: TableMoment, names: Collection[str]) -> list[StoredPart]:
        found: list[StoredPart] = []
        for name in sorted(names):
            if name not in self._partitions:
                self._partitions[name] = self._stored(moment, name)
            found += self._partitions[name]
        return found

    def _ordered(self, parts: list[StoredPart]) -> list[StoredPart]:
        heat = self.states.heat(self.definition)
        return sorted(parts, key=lambda stored: (stored.name, heat.get(stored.disk, len(heat)), stored.disk))

    def _rows(self, moment: TableMoment, partition: str | None) -> list[StoredPart]:
        return self.index.parts([*moment.tables.values()], self._maker(moment.tables), partition)

    def _maker(self, disks: Collection[str]) -> Callable[[DiskTable, IndexedPart], StoredPart]:
        """Makes parts of rows."""
        sources = {name: PartSource(self.disks, self.index, name) for name in disks}
        volumes = {name: self._volume(name) for name in disks}
        partitions: dict[str, str] = {}

        def make(table: DiskTable, row: IndexedPart) -> StoredPart:
            name = PartName.parse(row.name)
            partition = partitions.setdefault(name.partition, name.partition)  # of many parts one text
            name = PartName(partition, name.min_block, name.max_block, name.level, name.mutation)
            replaces = decoded_facts(row.facts).replaces if row.replaces else ()
            path = f"{table.directory}/{row.name}/{PART_FILE}"
            lazy = LazyPart(sources[table.disk], path, row.facts, replaces, row.document)
            state = STATES[row.state]
            return StoredPart(self.definition, lazy, name, table.disk, volumes[table.disk], row.revision, state)

        return make

    def _volume(self, disk: str) -> str | None:
        policy = self.states.config.policies.get(self.definition.policy)
        return next((volume.name for volume in policy.volumes if disk in volume.disks), None) if policy else None
