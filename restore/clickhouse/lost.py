"""Whole parts under a temporary name: a server deletes those when it starts, with their objects. In a tree that is
given to one they lie in `detached/`, which a server leaves alone. Pure, but for the parts' checksums, which it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from oplog.clickhouse.checksums import parse
from oplog.clickhouse.replay import DELETING, LOST, File
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow
from restore.clickhouse.parts import (
    ClickHousePart,
    ClickHouseTable,
    State,
    final_name,
    find_tables,
    is_checksums,
    is_whole,
)

_RUN = re.compile(rf"{LOST}\d+_")


class LostPart(msgspec.Struct, frozen=True):
    """A whole part that has lost its name."""

    table: str
    """As `inspect` names it: its uuid, or `database/table`."""
    source: str
    target: str
    """Its directories in the tree before and after."""

    @property
    def name(self) -> str:
        """Its directory's name in `detached/`."""
        return self.target.rpartition("/")[2]


def detach_lost(
    rows: Sequence[FileRow], read: Callable[[FileRow], bytes]
) -> tuple[list[FileRow], list[LostPart], list[str]]:
    """The rows in path order with each whole part that lies under a temporary name moved to `detached/lost_N_<part>`;
    what was moved; and the other directories that a server deletes when it starts."""
    by_path = {row.path: row for row in rows}
    tables = find_tables({row.path: _file(row) for row in rows})
    lost: list[LostPart] = []
    to_delete: list[str] = []
    for table in tables:
        for part in table.parts:
            if part.state is not State.TEMPORARY or part.is_ours or "/detached/" in part.directory:
                continue
            if not part.name.startswith(DELETING) and _is_whole(part, by_path, read):
                taken = {one.target for one in lost} | {other.directory for other in table.parts}
                lost.append(LostPart(table.uuid, part.directory, _place(table, part, taken)))
            else:
                to_delete.append(part.directory)
    moved = [_moved(row, lost) for row in rows]
    return sorted(moved, key=lambda row: row.path), lost, to_delete


def _file(row: FileRow) -> File:
    return File(row.path, ((row.key or "", row.size_bytes),), 0, 1, row.revision)


def _is_whole(part: ClickHousePart, rows: dict[str, FileRow], read: Callable[[FileRow], bytes]) -> bool:
    listed: dict[str, int] = {}
    try:
        for name in filter(is_checksums, part.files):
            path = f"{part.directory}/{name}"
            found = parse(read(rows[path]), name=path)
            below = name[: -len(name.rpartition("/")[2])]
            listed.update({below + file: size for file, size in found.items()})
    except (Damaged, NotFound):
        return False
    return is_whole(part, listed)


def _place(table: ClickHouseTable, part: ClickHousePart, taken: set[str]) -> str:
    name = final_name(_RUN.sub("", part.name, count=1))
    number = 1
    while (place := f"{table.directory}/detached/lost_{number}_{name}") in taken:
        number += 1
    return place


def _moved(row: FileRow, lost: Sequence[LostPart]) -> FileRow:
    for part in lost:
        if row.path.startswith(f"{part.source}/"):
            return msgspec.structs.replace(row, path=part.target + row.path[len(part.source) :])
    return row
