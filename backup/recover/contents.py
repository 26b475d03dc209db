"""What is in backups, part by part and file by file: `backup diff` and `backup cat`. Reads lists, of data one file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backup.completeness import NamedFile, walk_backup
from backup.format.header import BackupHeader
from backup.format.lists import PartEntry
from backup.recover.reading import BackupReader
from backup.storage import Storage
from disks.base import check_path
from oplog.errors import NotFound, UsageError

_LARGEST_BYTES = 4 << 30


class BackupPartChange(msgspec.Struct, frozen=True):
    """A part that only one of two backups has."""

    part: str
    change: str
    rows: int
    bytes: int


class BackupTableChange(msgspec.Struct, frozen=True):
    """A table whose parts differ between two backups."""

    table: str
    change: str
    """`added`, `removed` or `changed`."""
    parts: list[BackupPartChange]


class BackupDiff(msgspec.Struct, frozen=True, rename={"first": "from", "second": "to"}):
    """`backup diff --json`."""

    first: str
    second: str
    tables: list[BackupTableChange]


def changes(storage: Storage, first: Sequence[BackupHeader], second: Sequence[BackupHeader]) -> BackupDiff:
    """Tables and parts that only one of two backups has. A part that has moved is the same part."""
    before, after = _parts(storage, first), _parts(storage, second)
    tables: list[BackupTableChange] = []
    for table in sorted(before.keys() | after.keys()):
        old, new = before.get(table, {}), after.get(table, {})
        parts = [_change(old[name], "removed") for name in sorted(old.keys() - new.keys())]
        parts += [_change(new[name], "added") for name in sorted(new.keys() - old.keys())]
        change = "added" if table not in before else "removed" if table not in after else "changed"
        if parts or change != "changed":
            tables.append(BackupTableChange(table, change, parts))
    return BackupDiff(first[0].name, second[0].name, tables)


def _parts(storage: Storage, headers: Sequence[BackupHeader]) -> dict[str, dict[str, PartEntry]]:
    found: dict[str, dict[str, PartEntry]] = {}
    for header in headers:
        for table in header.tables:
            parts = found.setdefault(table.name, {})
            for entry in storage.table(table).partitions:
                parts.update({part.name: part for part in storage.partition_list(entry.list).parts})
        for tree in header.trees:
            found.setdefault(tree.name, {}).update({part.name: part for part in storage.tree(tree).parts if part.name})
    return found


def _change(part: PartEntry, change: str) -> BackupPartChange:
    return BackupPartChange(part.name, change, part.rows, part.size_bytes)


def one_file(storage: Storage, headers: Sequence[BackupHeader], path: str, reader: BackupReader) -> bytes:
    """The bytes of `TABLE/PART/FILE`. Raises `NotFound`; `UsageError` for one that is too large for memory."""
    check_path(path)
    for header in headers:
        for named in walk_backup(storage, None, header, []):
            if _path_of(named) == path:
                if named.file.size_bytes > _LARGEST_BYTES:
                    raise UsageError(f"{path} has {named.file.size_bytes:,} bytes", hint="restore its table instead")
                return reader.read(header, named.partition, named.file)
    raise NotFound(
        f"backup {headers[0].name} has no file {path}",
        hint="TABLE/PART/FILE: 'frostline backup show' has the tables, 'frostline backup diff' parts",
    )


def _path_of(named: NamedFile) -> str:
    """A file that ClickHouse wrote has its part in its name."""
    inside = named.file.name if "/" in named.file.name or not named.part else f"{named.part}/{named.file.name}"
    return f"{named.table}/{inside}"
