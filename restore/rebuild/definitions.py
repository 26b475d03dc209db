"""What a restore does with definitions and names: versions never go down, and a table that goes leaves a tombstone.

Files go back to what they were; a `table.json` cannot, for other disks hold it too, and the highest version counts. So
the definition of then becomes the version after the newest one, unless that says the same. Names go with the tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from disks.file_table.table import FileTable
from disks.file_table.views import TableReader
from oplog import bounds
from oplog.errors import Damaged
from oplog.replay import FileRow
from restore.rebuild.plan import in_scope
from tiering.catalog.definitions import table_names
from tiering.table import schema, tombstones
from tiering.table.paths import CLONED_DIRECTORY, GIVEN_UP_DIRECTORY, OLDER_DIRECTORY, is_reservation, locate
from tiering.table.schema import TABLE_FILE, TableDefinition
from tiering.table.tombstones import DROPPED_DIRECTORY, Tombstone, essence, succeeding

NAMES_DIRECTORY = "names"
_RESERVATIONS = ("blocks", "levels")


class _Said(msgspec.Struct):
    """What a file table says of tables. What cannot be read says nothing."""

    definitions: dict[str, TableDefinition] = msgspec.field(default_factory=dict)
    tombstones: dict[str, Tombstone] = msgspec.field(default_factory=dict)
    names: dict[str, FileRow] = msgspec.field(default_factory=dict)
    """By the uuid of the owner: the file that says who has the name."""
    unreadable: dict[str, bytes] = msgspec.field(default_factory=dict)
    """By uuid: a `table.json` that cannot be read."""

    @classmethod
    def by(cls, table: FileTable) -> _Said:
        said = cls()
        with table.read() as view:
            for row in view.documents(f"*/{TABLE_FILE}"):
                if tombstones.is_definition(row.path):
                    said._take(row)
            for directory in (NAMES_DIRECTORY, DROPPED_DIRECTORY):
                for row in view.documents(f"{directory}/*.json"):
                    said._take(row)
        return said

    def last(self, uuid: str) -> TableDefinition | None:
        """The definition of a table, or the last that it had."""
        stone = self.tombstones.get(uuid)
        return self.definitions.get(uuid) or (stone.definition if stone is not None else None)

    def _take(self, row: FileRow) -> None:
        try:
            if tombstones.is_definition(row.path):
                self._take_definition(row)
            elif uuid := tombstones.uuid_of(row.path):
                self.tombstones[uuid] = tombstones.decode(row.inline or b"", path=row.path)
            else:
                self.names[table_names.document.decode(row.inline or b"").table] = row
        except (Damaged, *bounds.UNREADABLE):
            return

    def _take_definition(self, row: FileRow) -> None:
        data = row.inline or b""
        try:
            definition = schema.decode(data, path=row.path)
            self.definitions[definition.uuid] = definition
        except Damaged:
            if (place := locate(row.path)) is not None:
                self.unreadable[place.uuid] = data


class SettledDefinition(msgspec.Struct):
    """What the wanted table has to say otherwise than it did then: a file by its path, None for one that is not."""

    rows: dict[str, FileRow | None] = msgspec.field(default_factory=dict)
    asked: list[str] = msgspec.field(default_factory=list)
    """The paths, outside of tables, that belong to what is asked for."""
    hidden: dict[str, tuple[str, list[str]]] = msgspec.field(default_factory=dict)
    """By uuid: the tables that stay hidden, each with its name and the disks whose ways back hide it."""

    def over(self, rows: Iterable[tuple[str, FileRow]]) -> Iterator[tuple[str, FileRow]]:
        """The rows of a table with these files put in; both are in path order."""
        ours = iter(sorted((path, row) for path, row in self.rows.items() if row is not None))
        mine = next(ours, None)
        for path, row in rows:
            while mine is not None and mine[0] < path:
                yield mine
                mine = next(ours, None)
            if path not in self.rows:
                yield path, row
        while mine is not None:
            yield mine
            mine = next(ours, None)

    def get(self, target: FileTable | TableReader, path: str) -> FileRow | None:
        """One file of it."""
        return self.rows[path] if path in self.rows else target.get(path)

    def scope(self, scope: Sequence[str] | None) -> Sequence[str] | None:
        """The scope with what belongs to its tables."""
        return None if scope is None else [*scope, *self.asked]

    def notes(self) -> list[str]:
        """A sentence about each table that stays hidden."""
        return [
            f"table {name} stays hidden: a way back took it from {', '.join(disks)}; take that back, too, or restore "
            "the table by its name"
            for name, disks in self.hidden.values()
        ]

    def _belongs(self, rows: Sequence[FileRow], void: str | None = None) -> None:
        """Files that belong to what is asked for, and one that goes."""
        if void is not None:
            self.rows[void] = None
            self.asked.append(void)
        for row in rows:
            self.rows[row.path] = row
            self.asked.append(row.path)


def settle(
    target: FileTable,
    newest: FileTable,
    scope: Sequence[str] | None,
    *,
    actor: str,
    others_stay: bool = False,
    given: Sequence[FileRow] = (),
    coming: Sequence[FileRow] = (),
    hiding: Callable[[TableDefinition], list[str]] = lambda table: [],
) -> SettledDefinition:
    """What the target must record of tables, after the newest one.

    `others_stay`: of tables that the target lacks only those below the scope's own entries go. `given`: files that
    reserve more names. `coming`: files that belong to what is asked for.
    `hiding`: the other disks that a way back took a table from. What is asked for by name comes back all the same.
    """
    then, now, settled = _Said.by(target), _Said.by(newest), SettledDefinition()
    settled.rows.update((row.path, row) for row in given)
    settled._belongs(coming)
    _keep_outside(target, newest, settled)
    stays = others_stay and scope is None
    for uuid, definition in now.definitions.items():  # first: their names may be those of tables that come
        if uuid not in then.definitions and in_scope(definition.path, scope) and not stays:
            stone = Tombstone(by="restore", actor=actor, definition=definition)
            void = now.names[uuid].path if uuid in now.names else None
            settled._belongs([_row(tombstones.path_of(uuid), tombstones.encode(stone))], void)
    for uuid, definition in then.definitions.items():
        if not in_scope(definition.path, scope):
            continue
        hidden_by = hiding(now.last(uuid) or definition) if scope is None else []
        if hidden_by:
            settled.hidden[uuid] = definition.full_name, hidden_by
            settled._belongs(list(_staying_hidden(uuid, then, now)))
        else:
            name = now.names.get(uuid)
            other = None if name is None or name.path == _name_path(definition) else name.path
            settled._belongs(list(_coming(uuid, then, now)), other)  # a tombstone beside it is void
    return settled


def reservations_coming(target: FileTable, newest: FileTable, scope: Sequence[str]) -> list[FileRow]:
    """What the target alone records of names that were given, of the tables of which something is asked for: their
    parts come, and may go again."""
    with target.read() as then, newest.read() as now:
        rows = [row for kind in _RESERVATIONS for row in then.documents(f"*/{kind}-*.json") if is_reservation(row.path)]
        return [
            row
            for row in rows
            if now.get(row.path) is None and any(path.startswith(f"{row.path.rpartition('/')[0]}/") for path in scope)
        ]


def _coming(uuid: str, then: _Said, now: _Said) -> Iterator[FileRow]:
    """The files of a table's definition and name in the target, where they must differ from before."""
    old = then.definitions[uuid]
    if (name := then.names.get(uuid)) is not None and (uuid not in now.names or now.names[uuid].path != name.path):
        yield name
    last = now.last(uuid)
    if last is None and (data := now.unreadable.get(uuid)) is not None:  # the version after it, whatever it means
        last = schema.meaning(data) or msgspec.structs.replace(old, version=schema.version_in(data) or old.version)
    if last is None or (uuid in now.definitions and last == old):
        return
    if uuid in now.definitions and essence(last) == essence(old):
        yield _row(last.path, schema.encode(last))
        return
    wanted = succeeding(old, last)
    yield _row(wanted.path, schema.encode(wanted))
    yield _row(tombstones.mark_of(wanted), tombstones.mark(wanted))


def _staying_hidden(uuid: str, then: _Said, now: _Said) -> Iterator[FileRow]:
    """The same of a table that another disk hides: the last definition, for a new version would show the table, and no
    name that is taken."""
    if (last := now.last(uuid)) is not None:
        yield _row(last.path, schema.encode(last))
    name = then.names.get(uuid)
    if name is not None and name.path not in {row.path for row in now.names.values()}:
        yield name


def _keep_outside(target: FileTable, newest: FileTable, settled: SettledDefinition) -> None:
    """Names, tombstones and versions that are taken keep their present state: those of the tables asked for follow."""
    with newest.read() as now, target.read() as then:
        for directory in (
            NAMES_DIRECTORY,
            DROPPED_DIRECTORY,
            GIVEN_UP_DIRECTORY,
            CLONED_DIRECTORY,
            OLDER_DIRECTORY,
        ):
            settled.rows.update((row.path, None) for row in then.rows(directory))
            settled.rows.update((row.path, row) for row in now.rows(directory))
        for kind in _RESERVATIONS:
            settled.rows.update(
                (row.path, row) for row in now.documents(f"*/{kind}-*.json") if is_reservation(row.path)
            )
        for row in now.documents("*/altered-*.json"):
            if then.get(f"{row.path.rpartition('/')[0]}/{TABLE_FILE}") is not None:
                settled.rows[row.path] = row


def _name_path(definition: TableDefinition) -> str:
    return f"{NAMES_DIRECTORY}/{definition.full_name}.json"


def _row(path: str, data: bytes) -> FileRow:
    return FileRow(path, len(data), hashlib.sha256(data).hexdigest(), None, data, None, 0)
