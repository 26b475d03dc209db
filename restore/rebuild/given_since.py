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


def keep_reservations(target: FileTable, newest: FileTable) -> None:
    """Put the ranges of block numbers that are taken now into the target, for the tables that it has. `settle` keeps
    what else the newest table records of names that were given."""
    with newest.read() as now, target.write() as view:
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


def levels_going(target: FileTable, newest: FileTable) -> dict[str, int]:
    """The highest level of the merged parts that the newest table has and the target lacks, for each table."""
    merged: dict[str, int] = {}
    with newest.read() as now, target.read() as then:
        for row in now.documents(f"*/{PART_FILE}"):
            named = name_at(row.path)
            if named is not None and named[1].level > merged.get(named[0], 0) and then.get(row.path) is None:
                merged[named[0]] = named[1].level
    return merged


def level_marks(target: FileTable, merged: Mapping[str, int]) -> list[FileRow]:
    """The markers of levels that were given since, for tables that the target has: their parts come back and are merged
    again, and the result must not get the name it had."""
    with target.read() as view:
        paths = [level_mark(uuid, level) for uuid, level in merged.items()]
        return [
            FileRow(path, 2, hashlib.sha256(b"{}").hexdigest(), None, b"{}", None, 0)
            for path in paths
            if view.exists(f"{path.rpartition('/')[0]}/{TABLE_FILE}") and not view.exists(path)
        ]
