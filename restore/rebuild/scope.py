"""Which part of a disk a restore is about: tables by the names they had, partitions of them."""

from __future__ import annotations

from collections.abc import Sequence

from disks.file_table.table import FileTable
from oplog.errors import Damaged, NotFound, UsageError
from tiering.table import schema
from tiering.table.part import PartName
from tiering.table.schema import TABLE_FILE


def scope_of(
    tables: Sequence[str], partitions: Sequence[str], then: FileTable, now: FileTable, where: str
) -> list[str]:
    """The directories that a restore of these tables, or of these partitions of the one table, is about: those of then
    and those of now. Raises `NotFound` for a table that there was not then, and for a partition that never was."""
    directories = directories_of(tables, then, where)
    if not partitions:
        return directories
    if len(directories) != 1:
        raise UsageError("--partition needs the table whose partition it is", hint="add one --table DB.TABLE")
    (directory,) = directories
    found = sorted({*_parts(directory, then), *_parts(directory, now)})
    scope = [f"{directory}/{name}" for name in found if _partition(name) in partitions]
    known = sorted({partition for name in found if (partition := _partition(name)) is not None})
    for partition in partitions:
        if partition not in known:
            raise NotFound(
                f"No such partition: {partition} of {tables[0]} {where}", hint=f"there are: {', '.join(known)}"
            )
    return scope if now.get(f"{directory}/{TABLE_FILE}") is not None else [*scope, f"{directory}/{TABLE_FILE}"]


def _parts(directory: str, files: FileTable) -> list[str]:
    with files.read() as view:
        names = [name.removesuffix("/") for name in view.children(directory) if name.endswith("/")]
    return [name for name in names if _partition(name) is not None]


def _partition(name: str) -> str | None:
    """The partition of the part; None for a directory that is no part's."""
    try:
        return PartName.parse(name).partition
    except UsageError:
        return None


def directories_of(tables: Sequence[str], files: FileTable, where: str) -> list[str]:
    """Where these tables lie in a file table of any age, so that a dropped one is found. Raises `NotFound`."""
    directories: dict[str, str] = {}
    with files.read() as view:
        for row in view.documents(f"*/{TABLE_FILE}"):
            try:
                definition = schema.decode(row.inline or b"", path=row.path)
            except Damaged:
                continue  # a table that cannot be read has no name that could be asked for
            directories[definition.full_name] = definition.directory
    for name in tables:
        if name not in directories:
            known = ", ".join(sorted(directories)) or "none; --path names a directory"
            raise NotFound(f"No such table: {name} {where}", hint=f"there were: {known}")
    return [directories[name] for name in tables]
