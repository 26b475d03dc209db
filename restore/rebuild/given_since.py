"""What was given since the revision that comes back, and must not be given twice: ranges of block numbers, and the
levels of merged parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from disks.file_table.table import FileTable
from oplog.entry import Commit, Create, Link, Rename
from oplog.replay import FileRow
from restore.rebuild.plan import (
    by_path,
    kept_reservations,
)
from tiering.table.part import PART_FILE
from tiering.table.paths import level_mark, name_at
from tiering.table.schema import TABLE_FILE


def keep_reservations(wanted: FileTable, newest: FileTable) -> None:
    """Put the ranges of block numbers that are taken now into the wanted table, of the tables that it has. What else
    the newest table says of names that were given, `settle` keeps."""
    with newest.read() as now, wanted.write() as view:
        for path, row in kept_reservations(by_path(now.documents("*/blocks-*.json"))):
            if view.get(f"{path.rpartition('/')[0]}/{TABLE_FILE}") is not None:
                view.remove(path)
                view.insert([row])


def note_levels(commit: Commit, merged: dict[str, int]) -> None:
    """Note the highest level of merged parts that the commit brought, for each table."""
    for step in commit.operations:
        path = step.path if isinstance(step, Create) else step.target if isinstance(step, Link | Rename) else ""
        if (found := name_at(path)) is not None and found[1].level > 0:
            uuid, name = found
            merged[uuid] = max(name.level, merged.get(uuid, 0))


def levels_going(wanted: FileTable, newest: FileTable) -> dict[str, int]:
    """The highest level of the merged parts that the newest table has and the wanted one has not, for each table."""
    merged: dict[str, int] = {}
    with newest.read() as now, wanted.read() as then:
        for row in now.documents(f"*/{PART_FILE}"):
            found = name_at(row.path)
            if found is not None and found[1].level > merged.get(found[0], 0) and then.get(row.path) is None:
                merged[found[0]] = found[1].level
    return merged


def level_marks(wanted: FileTable, merged: Mapping[str, int]) -> list[FileRow]:
    """What says which levels were given since, to tables that the wanted table has: what was merged comes back and is
    merged again, and must not get the name that it had."""
    with wanted.read() as view:
        paths = [level_mark(uuid, level) for uuid, level in merged.items()]
        return [
            FileRow(path, 2, hashlib.sha256(b"{}").hexdigest(), None, b"{}", None, 0)
            for path in paths
            if view.exists(f"{path.rpartition('/')[0]}/{TABLE_FILE}") and not view.exists(path)
        ]
