"""What an undo is decided on, and what is decided. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oplog.entry import Commit
from oplog.replay import FileRow
from restore.rebuild.duplicates import Elsewhere, PresentPart
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import directory_of
from tiering.table.schema import TableDefinition
from tiering.table.tombstones import Tombstone


class Situation(msgspec.Struct, frozen=True):
    """All that the decision rests on."""

    disk: str
    commit: Commit
    before: Mapping[str, FileRow]
    """The paths that the commit changed, as they were before it; a path that did not exist is missing."""
    after: Mapping[str, FileRow]
    now: Mapping[str, FileRow]
    """The same paths in the newest table."""
    later: tuple[Commit, ...]
    """Of each of these directories the last commit that touched it, ascending."""
    documents: Mapping[str, Part | TableDefinition]
    """By SHA-256: what the `part.json` and `table.json` files of `before` and `after` say. Unreadable ones lack."""
    parts: tuple[PresentPart, ...]
    """Every part of the tables concerned, on all disks, now."""
    tables: tuple[TableDefinition, ...]
    """Every table there is now."""
    definitions_here: frozenset[str]
    """The paths of the `table.json` files that are on the disk now."""
    policies: Mapping[str, frozenset[str]]
    """By policy: its disks."""
    tombstones: Mapping[str, Tombstone] = msgspec.field(default_factory=dict)
    """By uuid: the newest that any disk has of a table concerned."""
    elsewhere: Elsewhere = msgspec.field(default_factory=Elsewhere)
    """The ways back of other disks that hide tables concerned."""
    newer: tuple[Commit, ...] = ()
    """All later commits that touched what is not as the commit left it, ascending; of very many the newest."""
    unreadable: Mapping[str, TableDefinition] = msgspec.field(default_factory=dict)
    """By uuid: of tables concerned whose newest definition cannot be read what a change of them goes on from."""
    actor: str = ""
    """Who undoes."""
    broken: tuple[str, ...] = ()
    """What cannot be read of the tables concerned, wherever it lies: it may hold any rows."""

    def says(self, row: FileRow | None) -> Part | TableDefinition | None:
        """What a `part.json` or `table.json` says; None when it cannot be read."""
        return self.documents.get(row.sha256) if row is not None else None

    def part(self, note: PartNote) -> Part | None:
        """The `part.json` of a part that comes or goes."""
        path = f"{directory_of(note.table_uuid, note.part)}/{PART_FILE}"
        found = self.says(self.after.get(path) or self.before.get(path))
        return found if isinstance(found, Part) else None


class PartNote(msgspec.Struct, frozen=True):
    """A part in a plan. `rows` and `size_bytes` are 0 when its `part.json` cannot be read."""

    table: str
    table_uuid: str
    part: str
    rows: int
    size_bytes: int


class UndoPlan(msgspec.Struct):
    """What an undo would do. Nothing may be done when there are `objections`, and nothing is left to do when `done`."""

    disk: str
    commit: Commit
    removes: list[str] = msgspec.field(default_factory=list)
    """Paths that go."""
    creates: list[FileRow] = msgspec.field(default_factory=list)
    """Files that come back: the old rows, naming the old blobs."""
    parts_removed: list[PartNote] = msgspec.field(default_factory=list)
    parts_back: list[PartNote] = msgspec.field(default_factory=list)
    definitions: list[TableDefinition] = msgspec.field(default_factory=list)
    """Those that tables get, in `creates`."""
    tables_back: list[str] = msgspec.field(default_factory=list)
    present: list[str] = msgspec.field(default_factory=list)
    """Files that must be there when it commits: the definitions of the parts that come back."""
    alter: tuple[TableDefinition, TableDefinition] | None = None
    """The definition of a table now, and the one it gets: every disk has one, so this goes the way of an alter."""
    objections: list[str] = msgspec.field(default_factory=list)
    hint: str = ""
    notes: list[str] = msgspec.field(default_factory=list)
    done: str = ""
    """Why there is nothing to do."""

    def refuse(self, objection: str, hint: str = "") -> None:
        """Speak against it; the first hint stands."""
        self.objections.append(objection)
        self.hint = self.hint or hint
