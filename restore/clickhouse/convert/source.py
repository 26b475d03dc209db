"""The table of a ClickHouse disk whose rows are wanted: its active parts, their columns and their counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from disks.stores.base import ObjectStore
from disks.workers.parallel import HERE, Askers, in_parallel
from oplog.clickhouse import columns
from oplog.clickhouse.columns import SourceColumn
from oplog.clickhouse.replay import File, LogProblem
from oplog.errors import NotFound, Refused, UsageError
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.findings import losses
from restore.clickhouse.parts import ClickHousePart, ClickHouseTable, State, find_tables
from restore.clickhouse.table_facts import count_in, read_file
from restore.clickhouse.tree import inode_of, key_prefix, read_tree
from tiering.config.units import counted

_NAMELESS = frozenset({"lost_rename"})
"""Losses that leave the table's other parts unchanged: these rows are reported, and not taken."""


class SourcePart(msgspec.Struct, frozen=True):
    """An active part."""

    part: ClickHousePart
    columns: tuple[SourceColumn, ...]
    rows: int
    """As `count.txt` says."""


class SourceTable(msgspec.Struct, frozen=True):
    """A table with all its active parts, by name."""

    uuid: str
    parts: tuple[SourcePart, ...]
    problems: tuple[LogProblem, ...]
    """Losses that are no reason to stop: parts that have lost their name."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def read_source_table(
    store: ObjectStore,
    uuid: str | None = None,
    *,
    metadata: Path | None = None,
    askers: Askers = HERE,
) -> SourceTable:
    """The only table of the disk, or the one of this uuid. With `metadata` the server's directory says which file an
    object is, and not the bucket.

    Raises `NotFound` or `UsageError` when it is not clear which table is meant, and `Refused` when an active part is
    not whole, or holds no whole rows.
    """
    files, findings = _tree(store, metadata, askers)
    table = _chosen(find_tables(files), uuid, store.name)
    active = [part for part in table.parts if part.state is State.ACTIVE]
    problems = [
        finding
        for finding in losses(findings)
        if finding.path is None or finding.path.startswith(f"{table.directory}/")
    ]
    _refuse_what_lacks_rows(table, active, [finding for finding in problems if finding.kind not in _NAMELESS])
    source_parts: list[SourcePart | None] = [None] * len(active)

    def look(index: int) -> None:
        source_parts[index] = _look(store, active[index])

    in_parallel(look, len(active), askers.workers)
    parts = sorted((part for part in source_parts if part is not None), key=lambda part: part.part.name)
    return SourceTable(table.uuid, tuple(parts), tuple(finding for finding in problems if finding.kind in _NAMELESS))


def _tree(store: ObjectStore, metadata: Path | None, askers: Askers) -> tuple[dict[str, File], list[LogProblem]]:
    if metadata is None:
        tree = read_bucket(store, askers=askers)
        return tree.files, tree.findings
    local = read_tree(metadata, key_prefix=key_prefix(store), progress=askers.progress)
    if local.problems:
        raise local.problems[0]
    inodes: dict[object, int] = {}
    return {
        path: File(path, row.blobs, inodes.setdefault(inode_of(row), len(inodes)), 1, row.revision)
        for path, row in local.rows.items()
    }, []


def _chosen(tables: Sequence[ClickHouseTable], uuid: str | None, store: str) -> ClickHouseTable:
    with_rows = [
        table for table in tables if any(part.state is State.ACTIVE and not part.is_ours for part in table.parts)
    ]
    chosen = [table for table in with_rows if uuid in (None, table.uuid)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(table.uuid for table in with_rows) or "none"
    if uuid is not None or not with_rows:
        raise NotFound(f"{store} has no table {uuid or 'with parts'}", hint=f"its tables with parts: {names}")
    raise UsageError(f"{store} has {counted(len(with_rows), 'table')}", hint=f"use --uuid with one of: {names}")


def _refuse_what_lacks_rows(
    table: ClickHouseTable, active: Sequence[ClickHousePart], problems: Sequence[LogProblem]
) -> None:
    if problems:
        raise Refused(
            f"table {table.uuid} is not whole: {problems[0].what}"
            + (f" (and {len(problems) - 1} more)" if problems[1:] else ""),
            hint="'frostline clickhouse inspect' lists what is lost; its rows would be missing here",
        )
    for part in active:
        if part.name.startswith("patch-"):
            raise Refused(
                f"part {part.name} of table {table.uuid} holds updates that are not in the other parts yet",
                hint="a server applies them: ALTER TABLE … APPLY PATCHES",
            )


def _look(store: ObjectStore, part: ClickHousePart) -> SourcePart:
    found = columns.parse(read_file(store, part, columns.FILE_NAME), name=f"{part.directory}/{columns.FILE_NAME}")
    return SourcePart(part, tuple(found), count_in(store, part))
