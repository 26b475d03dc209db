"""The data files of a table, each with the URL at which other engines read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context


class FileOfTable(msgspec.Struct, frozen=True, gc=False):
    """One Parquet file of an active part."""

    table: str
    partition: str
    part: str
    file: str
    rows: int
    bytes: int
    disk: str
    url: str | None
    """`s3://bucket/key` or `file:///path`; null where no engine can open the file."""
    sha256: str
    schema_version: int
    """Files of an older version than the table's have the columns, and the names, of that version."""


class FilesDocument(msgspec.Struct, frozen=True):
    """What `files --json` answers."""

    table: str
    schema_version: int
    files: list[FileOfTable]


def files_of(context: Context, parts: Iterable[StoredPart], *, disk: str | None = None) -> Iterator[FileOfTable]:
    """The data files of the parts, in their order; with `disk`, only those there. Raises `NotFound` for a file that is
    missing."""
    for stored in parts:
        if disk not in (None, stored.disk):
            continue
        for file in stored.part.files:
            location = context.disk(stored.disk).location(stored.path(file.name))
            yield FileOfTable(
                stored.definition.full_name,
                stored.name.partition,
                stored.facts.name,
                file.name,
                file.rows,
                file.size_bytes,
                stored.disk,
                None if location is None else location.url,
                file.sha256,
                stored.part.schema_version,
            )
