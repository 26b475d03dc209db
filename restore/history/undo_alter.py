"""Undoing an alter: the definition of before as a new version. Pure; no I/O.

Every disk of the policy holds a `table.json` and the highest version counts, so putting the old bytes back on one disk
would change nothing. Ids of columns that were given out are never reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oplog.kinds import TableAltered
from restore.history.undo_context import Situation, UndoPlan
from restore.history.undo_first import undo_first_of_table
from tiering.table.paths import locate
from tiering.table.schema import TABLE_FILE, TableDefinition
from tiering.table.tombstones import essence, succeeding


def altered_definition(situation: Situation) -> str | None:
    """The path of the one `table.json` that the commit, an alter, replaced; None for other commits."""
    both = [path for path in situation.before if path in situation.after and path.endswith(f"/{TABLE_FILE}")]
    return both[0] if isinstance(situation.commit.kind, TableAltered) and len(both) == 1 else None


def plan_alter(situation: Situation, result: UndoPlan, path: str) -> None:
    """The definition of before the alter, or why not."""
    old, new = situation.says(situation.before[path]), situation.says(situation.after[path])
    place = locate(path)
    base = situation.unreadable.get(place.uuid) if place is not None else None
    if base is not None and isinstance(old, TableDefinition):
        _plan_from(situation, result, path, old, base)
        return
    if not isinstance(old, TableDefinition) or not isinstance(new, TableDefinition):
        result.refuse(f"{path} of before or after it cannot be read", "run 'frostline fsck'")
        return
    current = next((table for table in situation.tables if table.uuid == old.uuid), None)
    if current is None:
        result.refuse(f"table {old.full_name} was dropped since", undo_first_of_table(situation, path))
        return
    if essence(current) == essence(old):
        result.done = f"Table {old.full_name} is defined as it was before revision {situation.commit.revision}."
        return
    if essence(current) != essence(new):
        result.refuse(f"table {old.full_name} was altered again since", undo_first_of_table(situation, path))
        return
    wanted = succeeding(old, current)
    result.alter = (current, wanted)
    _check_alter(situation, result, current, wanted)


def _plan_from(situation: Situation, result: UndoPlan, path: str, old: TableDefinition, base: TableDefinition) -> None:
    """The same where the newest definition cannot be read: that is the one the commit wrote, or another commit did."""
    if situation.now.get(path) != situation.after[path]:
        result.refuse(f"table {old.full_name} was altered again since", undo_first_of_table(situation, path))
        return
    wanted = succeeding(old, base)
    result.alter = (base, wanted)
    _check_alter(situation, result, base, wanted)


def _check_alter(situation: Situation, result: UndoPlan, current: TableDefinition, target: TableDefinition) -> None:
    from tiering.table.columns.nested_ids import fields_by_id, nested_fields  # with Arrow, which the log does not need
    from tiering.table.columns.type_texts import type_text

    now = {column.id: column for column in current.columns}
    for column in target.columns:
        current_column = now.get(column.id)
        if current_column is not None and current_column.nullable and not column.nullable:
            result.refuse(f"column {column.name} takes nulls since: parts may hold some")
        if current_column is None and not column.nullable and column.default is None:
            result.refuse(f"column {column.name} takes no nulls, and parts written since have no values for it")
    then, since = fields_by_id(target), fields_by_id(current)
    for number in then.keys() & since.keys():
        (name, kind), (_, wider) = then[number], since[number]
        if kind != wider and not nested_fields(kind):
            result.refuse(
                f"column {name} was widened to {type_text(wider)}: "
                f"parts may hold values that {type_text(kind)} does not"
            )
    if lost := _outermost(since, then):
        result.notes.append(f"What was written to {', '.join(lost)} since is not seen any more; undoing this shows it.")
    if back := _outermost(then, since):
        result.notes.append(
            f"Parts that were written since, by inserts and merges, have no values of {', '.join(back)}."
        )
    disks = situation.policies.get(target.policy)
    held = {other.disk for other in situation.parts if other.table_uuid == target.uuid}
    if disks is None:
        result.refuse(f"policy {target.policy} is not configured any more")
    elif stranded := sorted(held - disks):
        result.refuse(
            f"policy {target.policy} does not include the disk {', '.join(stranded)}, which holds parts of the table",
            f"move them first: frostline move {target.full_name} --partition P --to-disk D",
        )


def _outermost(fields: Mapping[int, tuple[str, Any]], others: Mapping[int, tuple[str, Any]]) -> list[str]:
    """The paths of the fields that the others do not have, but for those within one that is named already."""
    lacking = [path for number, (path, _) in fields.items() if number not in others]
    return [path for path in lacking if not any(path.startswith(f"{other}.") for other in lacking)]
