"""Which part of a disk a restore is about: tables by the names they had."""

from __future__ import annotations

from collections.abc import Sequence

from disks.file_table import FileTable
from oplog.errors import Damaged, NotFound
from tiering import schema
from tiering.schema import TABLE_FILE


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
