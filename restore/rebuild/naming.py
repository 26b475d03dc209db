"""Files of tables as people call them: by table and part, not by where they lie on a disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from oplog.errors import Damaged
from oplog.replay import FileRow
from tiering.table import schema, tombstones
from tiering.table.paths import locate


class _Files(Protocol):
    def get(self, path: str) -> FileRow | None: ...


def table_name(uuid: str, *tables: _Files) -> str:
    """`db.name`, as the first of these file tables that has the table says; the uuid when none can be read."""
    path = tombstones.definition_path(uuid)
    for table in tables:
        if (row := table.get(path)) is not None:
            try:
                return schema.decode(row.inline or b"", path=path).full_name
            except Damaged:
                continue
    return uuid


def table_names(paths: Iterable[str], *tables: _Files) -> dict[str, str]:
    """The names of the tables that the paths belong to, by uuid."""
    uuids = {place.uuid for path in paths if (place := locate(f"{path}/")) is not None}
    return {uuid: table_name(uuid, *tables) for uuid in uuids}


def in_words(path: str, names: Mapping[str, str]) -> str:
    """The file of a part, or the part, as a person calls it; the path itself where there is no name."""
    place = locate(f"{path}/")
    if place is None or place.uuid not in names:
        return path
    file = place.file.removesuffix("/")
    if place.part is None:
        return f"{file} of {names[place.uuid]}"
    return f"{file} of {place.part} of {names[place.uuid]}" if file else f"{place.part} of {names[place.uuid]}"
