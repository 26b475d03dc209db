"""What a store says of its parts, partitions and tables: one row each, made here and nowhere else.

`--json`, `system.*`, reports and screens show fields of these rows. A field that nobody asked for is UNSET, and no
document has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from disks.base import Disk, DiskUsage
from disks.contracts.directory_disk import DirectoryDisk
from disks.kinds import as_disk
from oplog.errors import FrostlineError
from tiering.catalog.catalog import Catalog, PartState, StoredPart
from tiering.catalog.context import Context
from tiering.table.part import Part, PartFacts
from tiering.table.schema import TableDefinition


class PartRow(msgspec.Struct, frozen=True, gc=False):
    """A copy of a part on a disk."""

    table: str
    part: str
    partition: str
    disk: str
    volume: str | None
    rows: int
    bytes: int
    level: int
    state: PartState
    min_time: Any
    """Of the column that tells the part's age, as `max_time`."""
    max_time: Any
    revision: int | None
    created: datetime | UnsetType = UNSET


class UsageRow(msgspec.Struct, frozen=True, gc=False):
    """The parts of a partition on a disk."""

    table: str
    disk: str
    partition: str
    parts: int
    rows: int
    """Outdated parts hold none."""
    bytes: int


class TableRow(msgspec.Struct, frozen=True):
    """A table and what answers queries of it."""

    table: str
    uuid: str
    policy: str
    parts: int
    rows: int
    bytes: int
    bytes_by_disk: dict[str, int]


class DiskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A disk: its room, what it holds, and what is wrong with it."""

    name: str
    kind: str
    volume: str | None
    """All that it is in, with commas between them."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    parts: int
    revision: int | None = None
    read_only: bool
    broken: str | bool
    """Why, where it is not what its name stands for."""
    unreachable: bool
    drained: bool
    problem: str | UnsetType | None = UNSET

    @property
    def state(self) -> str:
        """In one word."""
        if self.unreachable:
            return "unreachable"
        if self.broken or self.read_only:
            return "broken" if self.broken else "read-only"
        return "drained" if self.drained else "ok"


def part_row(stored: StoredPart) -> PartRow:
    """The part, with its range of time."""
    return next(timed_rows([stored]))


def timed_rows(parts: Iterable[StoredPart]) -> Iterator[PartRow]:
    """The parts, each with the range of the column that tells its age: of the TTL, else of the partition, else the
    first time."""
    definition, name = None, None
    for stored in parts:
        if stored.definition is not definition:
            definition = stored.definition
            name = time_column(definition)
        facts = stored.facts
        column = facts.columns.get(name) if name is not None else None
        first, last = (column.min, column.max) if column else (None, None)
        yield _part_row(stored, facts, first, last)


def part_rows(context: Context) -> Iterator[PartRow]:
    """All parts, outdated ones too, each with the time when it was created; without its range of time."""
    for definition in context.catalog.tables():
        for stored in context.catalog.parts(definition, include_outdated=True):
            yield _part_row(stored, stored.facts, UNSET, UNSET, created=True)


def _part_row(stored: StoredPart, facts: Part | PartFacts, first: Any, last: Any, *, created: bool = False) -> PartRow:
    return PartRow(
        stored.definition.full_name,
        facts.name,
        stored.name.partition,
        stored.disk,
        stored.volume,
        facts.rows,
        facts.size_bytes,
        stored.name.level,
        stored.state,
        first,
        last,
        stored.revision,
        facts.created if created else UNSET,
    )


def time_column(definition: TableDefinition) -> str | None:
    """The id of the column that tells the age of parts; None where no column is a time."""
    first = [rule.column for rule in definition.ttl] + [field.column for field in definition.partition_by]
    timed = {column.name: column for column in definition.columns if column.type.startswith(("timestamp", "date"))}
    return next((str(timed[name].id) for name in (*first, *timed) if name in timed), None)


def usage_rows(
    catalog: Catalog, definitions: Iterable[TableDefinition], *, include_outdated: bool = False
) -> Iterator[UsageRow]:
    """What the parts of the tables are together, by table, disk and partition. Goes through the parts only where
    nothing else tells."""
    for definition in definitions:
        table, sums = definition.full_name, catalog.sums(definition)
        if sums is not None:
            for disk, whole in sums.items():
                for partition, found in whole.partitions.items():
                    yield UsageRow(table, disk, partition, found.parts, found.rows, found.bytes)
            continue
        totals: dict[tuple[str, str], list[int]] = {}
        for stored in catalog.parts(definition, include_outdated=include_outdated):
            entry, facts = totals.setdefault((stored.disk, stored.name.partition), [0, 0, 0]), stored.facts
            entry[0] += 1
            entry[1] += facts.rows if stored.state == "active" else 0
            entry[2] += facts.size_bytes
        for (disk, partition), entry in totals.items():
            yield UsageRow(table, disk, partition, *entry)


def usage(catalog: Catalog, definitions: Iterable[TableDefinition]) -> list[UsageRow]:
    """The same with outdated parts, which take room, in order."""
    rows = usage_rows(catalog, definitions, include_outdated=True)
    return sorted(rows, key=lambda row: (row.table, row.disk, row.partition))


def table_rows(catalog: Catalog) -> Iterator[TableRow]:
    """All tables, by name."""
    for definition in catalog.tables():
        sums = [*usage_rows(catalog, [definition])]
        by_disk = bytes_by_disk((), sums)
        yield TableRow(
            definition.full_name,
            definition.uuid,
            definition.policy,
            sum(row.parts for row in sums),
            sum(row.rows for row in sums),
            sum(by_disk.values()),
            by_disk,
        )


def bytes_by_disk(disks: Iterable[str], rows: Iterable[UsageRow]) -> dict[str, int]:
    """What the parts take on each of the disks, and on others that hold any."""
    sums = dict.fromkeys(disks, 0)
    for row in rows:
        sums[row.disk] = sums.get(row.disk, 0) + row.bytes
    return sums


def disk_rows(context: Context, *, for_query: bool = False) -> Iterator[DiskRow]:
    """All disks, as configured. `for_query`: the problem of each, whatever it is, and not what its files take."""
    parts: Counter[str] = Counter()
    for usage_row in usage_rows(context.catalog, context.catalog.tables(), include_outdated=True):
        parts[usage_row.disk] += usage_row.parts
    drained = context.journal.overrides.drained()
    for name, disk in context.disks.items():
        volumes = {
            volume.name
            for policy in context.config.policies.values()
            for volume in policy.volumes
            if name in volume.disks
        }
        broken = disk.broken
        row = DiskRow(
            name=name,
            kind=disk.kind,
            volume=", ".join(sorted(volumes)) or None,
            parts=parts[name],
            read_only=disk.read_only,
            broken=broken.message if broken is not None else False,
            unreachable=bool(disk.unreachable) and broken is None,
            drained=name in drained,
            problem=(broken.message if broken is not None else disk.unreachable or None) if for_query else UNSET,
        )
        yield row if broken is not None else _measured(disk, row, with_files=not for_query)


def _stored_bytes(disk: Disk, usage: DiskUsage) -> int:
    """The sizes of the disk's own files."""
    directory = as_disk(disk, DirectoryDisk)
    return usage.used_bytes if directory is None else directory.stored_bytes()


def _measured(disk: Disk, row: DiskRow, *, with_files: bool) -> DiskRow:
    """The same with its room and revision, as far as the disk says them."""
    try:
        usage = disk.usage()
        row = replace(
            row,
            total_bytes=usage.total_bytes,
            free_bytes=usage.free_bytes,
            used_bytes=_stored_bytes(disk, usage) if with_files else None,
        )
        return replace(row, revision=disk.revision)
    except FrostlineError as error:
        return replace(row, broken=True, problem=error.message)
