"""What it takes to reverse one commit, and whether that may be done. Pure; no I/O.

A commit is reversed by its effect: the files it made go, those it took away come back under their old names. That is
allowed while the disk still has these paths as the commit left them, and while no row would be lost or doubled: parts
live on several disks, and a log knows its own only. The plan reports every objection at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from oplog.entry import Rename
from oplog.kinds import (
    BlocksAllocated,
    DiskGivenUp,
    Dropped,
    Merged,
    Moved,
    OtherKind,
    Restored,
    Tidied,
    Undone,
    undone_revision,
)
from oplog.replay import FileRow
from restore.history.undo_alter import altered_definition, plan_alter
from restore.history.undo_context import PartNote, Situation, UndoPlan
from restore.history.undo_definitions import are_as_before, is_of_definitions, plan_definitions
from restore.history.undo_first import undo_first, undo_first_of_table
from restore.rebuild.duplicates import name_taken, presence
from tiering.policy.part_events import event
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import locate, part_name
from tiering.table.schema import TableDefinition
from tiering.table.tombstones import definition_path

_MARK = re.compile(r"/(?:blocks|levels|altered)-\d+\.json\Z", re.ASCII)
"""Marks that say a number was given out. They stay after every undo."""


def plan(situation: Situation) -> UndoPlan:
    """How to reverse the commit, or why not."""
    result, kind = UndoPlan(situation.disk, situation.commit), situation.commit.kind
    if isinstance(kind, OtherKind):
        result.refuse(f"it is of the kind {kind.word}, which this version does not know", "upgrade frostline")
        return result
    if (path := altered_definition(situation)) is not None:
        plan_alter(situation, result, path)
        return result
    unchanged = _same(situation.now, situation.before) and are_as_before(situation)
    if unchanged and (not _only_marks(situation) or isinstance(kind, Restored | Undone)):
        for directory in _living_on(situation):
            result.refuse(_changed_since(situation, directory), undo_first(situation, [directory]))
        if not result.objections:
            result.done = _undone_by(situation)
        return result
    _effect(situation, result)
    _describe_parts(situation, result)
    plan_definitions(situation, result)
    _describe_tables(situation, result)
    _check_unchanged(situation, result)
    _check_kind(situation, result)
    _check_leaving(situation, result)
    _check_coming_back(situation, result)
    _add_notes(situation, result)
    return result


def _same(first: Mapping[str, FileRow], other: Mapping[str, FileRow]) -> bool:
    """Whether two sets of paths hold the same bytes. Only what is of parts counts."""
    left, right = ({path: _content(row) for path, row in rows.items() if _goes_back(path)} for rows in (first, other))
    return left == right


def _content(row: FileRow) -> tuple[object, ...]:
    """The bytes, whichever objects hold them: what was moved away and back is what it was."""
    return row.size_bytes, row.sha256


def _is_mark(path: str) -> bool:
    return _MARK.search(path) is not None


def _goes_back(path: str) -> bool:
    """Whether the file is put back as it was: marks stay, and definitions go the way of versions."""
    return not _is_mark(path) and not is_of_definitions(path)


def _only_marks(situation: Situation) -> bool:
    return all(_is_mark(path) for path in (*situation.before, *situation.after))


def _living_on(situation: Situation) -> Iterator[str]:
    """The directories of what the commit made and that is not under its old names, and yet not gone: it has other
    names, disks or parts now."""
    made = (path.rpartition("/")[0] for path in situation.after if path not in situation.before and _goes_back(path))
    for directory in dict.fromkeys(made):
        last = next((commit for commit in reversed(situation.later) if event(commit, directory) is not None), None)
        if last is None:
            continue
        seen = event(last, directory)
        renamed = any(isinstance(operation, Rename) for operation in last.operations)
        if renamed or isinstance(last.kind, Tidied) or (seen is not None and seen.verb in ("merged away", "moved out")):
            yield directory


def _undone_by(situation: Situation) -> str:
    revision = situation.commit.revision
    for commit in reversed(situation.later):
        if undone_revision(commit.kind) == revision:
            return f"Revision {revision} of disk {situation.disk} is undone already, by revision {commit.revision}."
    return f"Disk {situation.disk} has these files as they were before revision {revision}: there is nothing to undo."


def _effect(situation: Situation, result: UndoPlan) -> None:
    """The files that go and come back. Marks stay; a table that comes back brings its own."""
    before, after = situation.before, situation.after
    changed = {path for path in before.keys() & after.keys() if _content(before[path]) != _content(after[path])}
    result.removes = sorted(path for path in (after.keys() - before.keys()) | changed if _goes_back(path))
    back = sorted((before.keys() - after.keys()) | changed)
    back = [path for path in back if not (is_of_definitions(path) or (_is_mark(path) and path in situation.now))]
    result.creates = [before[path] for path in back]


def _describe_parts(situation: Situation, result: UndoPlan) -> None:
    gone = [path for path in result.removes if path not in situation.before]
    back = [row.path for row in result.creates if row.path not in situation.after]
    result.parts_removed = list(_part_notes(situation, gone))
    result.parts_back = list(_part_notes(situation, back))


def _describe_tables(situation: Situation, result: UndoPlan) -> None:
    coming = {definition.path for definition in result.definitions}
    result.tables_back = [table.full_name for table in result.definitions if table.path not in situation.now]
    here = situation.definitions_here | coming
    paths = {definition_path(note.table_uuid) for note in result.parts_back}
    result.present = sorted(path for path in paths if path not in coming and path in here)


def levels_given(result: UndoPlan) -> dict[str, int]:
    """Of each table the highest level of a merged part that goes while what it was made of comes back: that is merged
    again, and must not get the name that it had."""
    levels: dict[str, int] = {}
    back = {note.table_uuid for note in result.parts_back}
    for note in result.parts_removed:
        name = part_name(note.part)
        if name is not None and name.level > 0 and note.table_uuid in back:
            levels[note.table_uuid] = max(name.level, levels.get(note.table_uuid, 0))
    return levels


def _part_notes(situation: Situation, paths: Iterable[str]) -> Iterator[PartNote]:
    names = {table.uuid: table.full_name for table in situation.tables}
    names |= {
        document.uuid: document.full_name
        for document in situation.documents.values()
        if isinstance(document, TableDefinition) and document.uuid not in names
    }
    for path in paths:
        place = locate(path)
        if place is None or place.part is None or place.file != PART_FILE:  # else a part that was set aside
            continue
        part = situation.says(situation.before.get(path) or situation.after.get(path))
        known = part if isinstance(part, Part) else None
        yield PartNote(
            table=names.get(place.uuid, place.uuid),
            table_uuid=place.uuid,
            part=place.part,
            rows=known.rows if known else 0,
            size_bytes=known.size_bytes if known else 0,
        )


# What speaks against it


def _check_unchanged(situation: Situation, result: UndoPlan) -> None:
    """Later commits must have left these paths alone."""
    paths = {path for path in (*situation.before, *situation.after) if _goes_back(path)}
    changed = [path for path in sorted(paths) if _row(situation.now, path) != _row(situation.after, path)]
    directories = list(dict.fromkeys(path.rpartition("/")[0] for path in changed))
    for directory in directories:
        result.refuse(_changed_since(situation, directory), undo_first(situation, directories))


def _row(rows: Mapping[str, FileRow], path: str) -> tuple[object, ...] | None:
    row = rows.get(path)
    return _content(row) if row is not None else None


def _changed_since(situation: Situation, directory: str) -> str:
    place = locate(f"{directory}/{PART_FILE}")
    name = f"part {place.part}" if place is not None and place.part is not None else directory
    of_table = next((table for table in situation.tables if place is not None and table.directory == directory), None)
    name = f"a file of table {of_table.full_name}" if of_table is not None else name
    for commit in reversed(situation.later):
        seen = event(commit, directory)
        if seen is not None:
            return f"{name} was {seen.text} since, by revision {commit.revision}"
    return f"{name} was changed since"


def _check_kind(situation: Situation, result: UndoPlan) -> None:
    commit = situation.commit
    if isinstance(commit.kind, BlocksAllocated) or _only_marks(situation):  # a way back of marks alone changed nothing
        result.refuse(
            "it gave block numbers to a machine, which may have used them", "unused numbers cost nothing: leave it"
        )
    if isinstance(commit.kind, DiskGivenUp):
        result.refuse(
            f"it is about disk {commit.kind.disk}, which is another one",
            "'frostline disk adopt NAME' takes a disk back",
        )
    if isinstance(commit.kind, Moved) and result.creates:
        target = commit.kind.moved_to or "another disk"
        result.refuse(
            f"it took parts away that are on {target} since: there would be two copies of their rows",
            _move_back(result.parts_back, situation.disk),
        )


def _move_back(parts: list[PartNote], disk: str) -> str:
    if not parts:
        return ""
    return f"to bring a part back: frostline move {parts[0].table} --part {parts[0].part} --to-disk {disk}"


def _check_leaving(situation: Situation, result: UndoPlan) -> None:
    """No part may go whose rows only it has, unless the commit was what brought the rows."""
    elsewhere = {(other.table_uuid, other.part.name) for other in situation.parts if other.disk != situation.disk}
    back = {(note.table_uuid, note.part) for note in result.parts_back}
    kind = situation.commit.kind
    nowhere: list[PartNote] = []
    for note in result.parts_removed:
        part = situation.part(note)
        if part is None:
            result.refuse(f"the {PART_FILE} of part {note.part} cannot be read", "run 'frostline fsck'")
        elif isinstance(kind, Moved) and (note.table_uuid, note.part) not in elsewhere:
            nowhere.append(note)
        elif isinstance(kind, Merged):
            lost = [source for source in part.sources if (note.table_uuid, source) not in back]
            if lost:
                result.refuse(
                    f"part {note.part} of {note.table} was merged from parts that would not all come back: "
                    f"{_listed(lost)} were on another disk",
                )
    if nowhere and isinstance(kind, Moved):
        names = _listed([f"{note.part} of {note.table}" for note in nowhere])
        result.refuse(
            f"what was moved here is on no other disk, so it would be nowhere: {names}",
            f"move it back: frostline move {nowhere[0].table} --part {nowhere[0].part} --to-disk "
            f"{kind.source_of(nowhere[0].part) or 'D'}",
        )


def _listed(names: list[str], most: int = 3) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"


def _check_coming_back(situation: Situation, result: UndoPlan) -> None:
    """No row may be there twice, and no part without its table."""
    leaving = {(note.table_uuid, note.part) for note in result.parts_removed}
    staying = [
        other
        for other in situation.parts
        if not (other.disk == situation.disk and (other.table_uuid, other.part.name) in leaving)
    ]
    coming = {row.path for row in result.creates}
    if result.parts_back and situation.broken:
        result.refuse(
            f"it is unknown whether the rows are there already: {situation.broken[0]}",
            "run 'frostline fsck'; set the broken part aside first",
        )
    for note in result.parts_back:
        path = definition_path(note.table_uuid)
        if path not in situation.definitions_here and path not in coming:
            result.refuse(
                f"the table of part {note.part} is not on disk {situation.disk} any more: dropped since",
                undo_first_of_table(situation, path),
            )
        part = situation.part(note)
        if part is None:
            result.refuse(f"the {PART_FILE} of part {note.part} cannot be read", "run 'frostline fsck'")
            continue
        if found := presence(part, [other for other in staying if other.table_uuid == note.table_uuid]):
            result.refuse(found.text(note.table))
    _check_names(situation, result)


def _check_names(situation: Situation, result: UndoPlan) -> None:
    staying = [table for table in situation.tables if table.path not in result.removes]
    if (table := name_taken(result.definitions, [*staying, *result.definitions])) is not None:
        result.refuse(
            f"it would bring back a table {table.full_name}, and another one has that name now",
            f"drop the other one first: frostline table drop {table.full_name}",
        )


def _add_notes(situation: Situation, result: UndoPlan) -> None:
    commit = situation.commit
    if isinstance(commit.kind, Dropped) and result.parts_back:
        result.notes.append(f"Only what was on disk {situation.disk} is restored, not what was on other disks.")
    if isinstance(commit.kind, Dropped) and commit.kind.by_ttl:
        result.notes.append(
            "The TTL rule that dropped it is still there: alter it first, or the next pass drops again."
        )
    if isinstance(commit.kind, Merged) and result.parts_back:
        table = result.parts_back[0].table
        result.notes.append(f"The next pass may merge them again; 'frostline pause {table} --merges' prevents it.")
