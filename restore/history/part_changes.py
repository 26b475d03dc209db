"""Two file tables, compared as tables and parts. Pure; no I/O.

`compare_parts` groups the differing paths of a `replay.diff` as they stream by: what lies in one part's directory is
one change. Memory is that of the changes, not of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from oplog.replay import ChangedPath, FileRow
from tiering.table.part import PART_FILE
from tiering.table.paths import locate
from tiering.table.rule_texts import ttl_text
from tiering.table.schema import TABLE_FILE, Column, TableDefinition


class FileCounts(msgspec.Struct):
    """Files that differ. Bytes are those of the files added and removed; a changed file counts as both."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0

    def count(self, difference: ChangedPath) -> None:
        """Take one differing path in."""
        before, after = difference.before, difference.after
        self.added += before is None
        self.removed += after is None
        self.changed += before is not None and after is not None
        self.added_bytes += after.size_bytes if after is not None else 0
        self.removed_bytes += before.size_bytes if before is not None else 0


class Changed(msgspec.Struct):
    """What differs in one directory: a part's, a table's own files, or files outside of tables (`directory` empty)."""

    directory: str
    is_part: bool
    files: FileCounts = msgspec.field(default_factory=FileCounts)
    before: FileRow | None = None
    """The part's `part.json` or the table's `table.json` before; None when there was none, or it does not differ."""
    after: FileRow | None = None

    @property
    def name(self) -> str:
        """Of the part, or the uuid of the table."""
        return self.directory.rpartition("/")[2]

    @property
    def table_directory(self) -> str:
        return self.directory.rpartition("/")[0] if self.is_part else self.directory


def compare_parts(differences: Iterable[ChangedPath]) -> Iterator[Changed]:
    """The changes by directory: those of parts as their paths come, then those of tables and of other files."""
    others: dict[str, Changed] = {}
    for (directory, is_part), group in groupby(differences, key=lambda difference: _home(difference.path)):
        changed = Changed(directory, is_part) if is_part else others.setdefault(directory, Changed(directory, False))
        document = f"{directory}/{PART_FILE if is_part else TABLE_FILE}"
        for difference in group:
            changed.files.count(difference)
            if difference.path == document:
                changed.before, changed.after = difference.before, difference.after
        if is_part:
            yield changed
    yield from others.values()


def _home(path: str) -> tuple[str, bool]:
    place = locate(path)
    if place is None:
        return "", False
    table = f"store/{place.uuid[:3]}/{place.uuid}"
    return (f"{table}/{place.part}", True) if place.part is not None else (table, False)


def altered(old: TableDefinition, new: TableDefinition) -> list[str]:
    """What changed between two definitions of a table, one phrase a change."""
    changes = list(_columns(old, new))
    if old.full_name != new.full_name:
        changes.append(f"renamed from {old.full_name} to {new.full_name}")
    if old.order_by != new.order_by:
        changes.append(f"order by {', '.join(new.order_by)} (was {', '.join(old.order_by)})")
    if old.partition_by != new.partition_by:
        changes.append(f"partition by {', '.join(map(str, new.partition_by))}")
    if old.policy != new.policy:
        changes.append(f"policy {new.policy} (was {old.policy})")
    was, now = [ttl_text(rule) for rule in old.ttl], [ttl_text(rule) for rule in new.ttl]
    changes += [f"ttl rule removed: {rule}" for rule in was if rule not in now]
    changes += [f"ttl rule added: {rule}" for rule in now if rule not in was]
    if old.merge_mode != new.merge_mode:
        changes.append(f"merge mode {new.merge_mode} (was {old.merge_mode})")
    for name in old.settings.__struct_fields__:
        one, two = getattr(old.settings, name), getattr(new.settings, name)
        if one != two:
            changes.append(f"setting {name}={two} (was {one})")
    return changes


def _columns(old: TableDefinition, new: TableDefinition) -> Iterator[str]:
    before, after = ({column.id: column for column in table.columns} for table in (old, new))
    for column_id, column in after.items():
        known = before.get(column_id)
        if known is None:
            yield f"column {column.name} {column.type} added"
        else:
            yield from _column(known, column)
    yield from (f"column {column.name} dropped" for column_id, column in before.items() if column_id not in after)


def _column(old: Column, new: Column) -> Iterator[str]:
    if old.name != new.name:
        yield f"column {old.name} renamed to {new.name}"
    if old.type != new.type:
        yield f"column {new.name} is {new.type} (was {old.type})"
    if old.nullable != new.nullable:
        yield f"column {new.name} {'may' if new.nullable else 'may not'} be null"
    if old.default != new.default:
        yield f"column {new.name} has the default {new.default!r} (was {old.default!r})"
