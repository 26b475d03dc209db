"""Undoing what a commit did to definitions, names and tombstones. Pure; no I/O.

Other disks hold the definition too, and the newest version of all counts: putting old bytes back would change nothing
there. So the definition of before comes back as the version after the newest one; one that goes leaves a tombstone. A
later commit that wrote the same definition again, a repair say, is in nobody's way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from oplog.kinds import Restored, Undone
from oplog.replay import FileRow
from restore.history.undo_context import Situation, UndoPlan
from restore.history.undo_first import undo_first_of_table
from tiering.table import schema, tombstones
from tiering.table.schema import TableDefinition
from tiering.table.tombstones import Tombstone, essence, succeeding

NAMES_DIRECTORY = "names"


def is_of_definitions(path: str) -> bool:
    """Whether the file belongs to what says which tables there are."""
    named = path.startswith(f"{NAMES_DIRECTORY}/") and path.endswith(".json")
    return named or tombstones.is_definition(path) or tombstones.uuid_of(path) is not None


def are_as_before(situation: Situation) -> bool:
    """Whether the disk defines the tables that the commit is about as it did before the commit."""
    for path in _definitions(situation):
        then, now = (situation.says(rows.get(path)) for rows in (situation.before, situation.now))
        both = isinstance(then, TableDefinition) and isinstance(now, TableDefinition)
        if (path in situation.before) != (path in situation.now) or (both and _differ(then, now)):
            return False
    return True


def plan_definitions(situation: Situation, result: UndoPlan) -> None:
    """Add what has to be done to definitions, names and tombstones; or why it cannot be."""
    for path in _definitions(situation):
        if path not in situation.before:
            _take_away(situation, result, path)
        elif path in situation.after:
            _put_back(situation, result, path)
        else:
            _bring_back(situation, result, path)
    result.removes = list(dict.fromkeys(result.removes))  # a name is removed once, even if two give it away


def _definitions(situation: Situation) -> list[str]:
    return sorted({path for path in (*situation.before, *situation.after) if tombstones.is_definition(path)})


def _differ(first: object, other: object) -> bool:
    assert isinstance(first, TableDefinition)
    assert isinstance(other, TableDefinition)
    return essence(first) != essence(other)


def _read(situation: Situation, result: UndoPlan, rows: Iterable[FileRow | None]) -> list[TableDefinition]:
    """What the files say; nothing, and an objection, when one of them cannot be read."""
    found: list[TableDefinition] = []
    for row in rows:
        said = situation.says(row)
        if not isinstance(said, TableDefinition):
            result.refuse(f"{row.path if row else 'table.json'} cannot be read", "run 'frostline fsck'")
            return []
        found.append(said)
    return found


def _put_back(situation: Situation, result: UndoPlan, path: str) -> None:
    """The commit changed the definition."""
    if path not in situation.now:
        old = situation.says(situation.before[path])
        named = f"table {old.full_name}" if isinstance(old, TableDefinition) else f"the table of {path}"
        result.refuse(f"{named} was dropped since", undo_first_of_table(situation, path))
        return
    found = _read(situation, result, (rows[path] for rows in (situation.before, situation.after, situation.now)))
    if not found:
        return
    before, after, now = found
    if essence(now) == essence(before):
        return
    if essence(now) != essence(after):
        result.refuse(f"table {now.full_name} was altered again since", undo_first_of_table(situation, path))
        return
    result.removes.append(path)
    _create(result, succeeding(before, _newest(situation, now)))


def _bring_back(situation: Situation, result: UndoPlan, path: str) -> None:
    """The commit took the table away."""
    if path in situation.now:
        return  # somebody brought it back; its parts may follow
    found = _read(situation, result, (situation.before[path],))
    if not found:
        return
    (before,) = found
    last = _newest(situation, before)
    hiding = situation.elsewhere.hiding(situation.disk, before)
    if hiding:
        result.creates.append(situation.before[path])
        result.notes.append(
            f"Table {before.full_name} stays hidden, as it was: a way back took it from {', '.join(hiding)}."
        )
    elif last.version == before.version and before.uuid not in situation.tombstones:
        _create(result, before, new_version=False)
    else:
        _create(result, succeeding(before, last))
    stone_path = tombstones.path_of(before.uuid)
    if stone_path in situation.now:
        result.removes.append(stone_path)
    if not hiding or f"{NAMES_DIRECTORY}/{before.full_name}.json" not in situation.now:
        _bring_name_back(situation, result, before)


def _newest(situation: Situation, current: TableDefinition) -> TableDefinition:
    """The last that any disk says of the table."""
    said = [table for table in situation.tables if table.uuid == current.uuid]
    if (stone := situation.tombstones.get(current.uuid)) is not None:
        said.append(stone.definition)
    return max((current, *said), key=lambda definition: definition.version)


def _bring_name_back(situation: Situation, result: UndoPlan, table: TableDefinition) -> None:
    name = f"{NAMES_DIRECTORY}/{table.full_name}.json"
    row = situation.before.get(name)
    if row is None:
        return
    if name in situation.now:  # of a table that is gone: another one with the name is spoken against elsewhere
        result.removes.append(name)
    result.creates.append(row)


def _take_away(situation: Situation, result: UndoPlan, path: str) -> None:
    """The commit brought the table: a way back did, else it is a matter for a drop."""
    if path not in situation.now:
        return
    found = _read(situation, result, (situation.now[path],))
    if not found:
        return
    (now,) = found
    if not isinstance(situation.commit.kind, Restored | Undone):
        result.refuse(
            f"it brought the definition of table {now.full_name}, which other disks may hold as well",
            f"'frostline table drop {now.full_name}' drops the table from all disks",
        )
        return
    leaving = {note.part for note in result.parts_removed if note.table_uuid == now.uuid}
    staying = [part for part in situation.parts if part.table_uuid == now.uuid]
    here = [part for part in staying if part.disk == situation.disk and part.part.name not in leaving]
    elsewhere = sorted({part.disk for part in staying if part.disk != situation.disk})
    if here:
        result.refuse(
            f"table {now.full_name} has parts that it did not bring, such as {here[0].part.name} on disk "
            f"{situation.disk}: without the table they would be in no answer",
            f"'frostline table drop {now.full_name}' drops the table with all of them",
        )
    if elsewhere:
        result.notes.append(
            f"What {', '.join(elsewhere)} has of {now.full_name} is hidden until the table is brought back."
        )
    stone = tombstones.path_of(now.uuid)
    result.removes.append(path)
    if stone in situation.now:
        result.removes.append(stone)
    made = Tombstone(by="undo", actor=situation.actor, definition=now)
    result.creates.append(_row(stone, tombstones.encode(made)))
    name = f"{NAMES_DIRECTORY}/{now.full_name}.json"
    if name in situation.after and situation.now.get(name) == situation.after[name]:
        result.removes.append(name)


def _create(result: UndoPlan, definition: TableDefinition, *, new_version: bool = True) -> None:
    result.definitions.append(definition)
    result.creates.append(_row(definition.path, schema.encode(definition)))
    if new_version:
        result.creates.append(_row(tombstones.mark_of(definition), tombstones.mark(definition)))


def _row(path: str, data: bytes) -> FileRow:
    return FileRow(path, len(data), hashlib.sha256(data).hexdigest(), None, data, None, 0)
