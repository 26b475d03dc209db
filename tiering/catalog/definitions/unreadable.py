"""Tables whose newest definition cannot be read: what is known of them, and what a change of them goes on from.

A definition that cannot be read may be newer than one that another disk has, so an older one does not take its place
by itself. Its version is what it says or, where it says nothing, that of the newest `altered-<version>.json` beside it.
That file has the same definition, and takes its place; those of lower versions have the definitions before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from disks.base import Disk
from oplog.errors import Damaged, FrostlineError, UsageError
from tiering.catalog.stored import Broken, StoredPart
from tiering.table import schema, tombstones
from tiering.table.paths import locate
from tiering.table.schema import TableDefinition

_NAME = re.compile(rb'"database":"([A-Za-z_]\w*)","name":"([A-Za-z_]\w*)"')
_MARK = re.compile(r"altered-(\d{1,18})\.json\Z", re.ASCII)


class UnreadableCopy(msgspec.Struct, frozen=True):
    """A `table.json` that cannot be read."""

    broken: Broken
    data: bytes


class UnreadableTable(msgspec.Struct, frozen=True):
    """A table that no verb can use before somebody alters, drops or restores it."""

    uuid: str
    name: str
    """`database.table`; empty where nothing says it."""
    broken: tuple[Broken, ...]
    version: int
    """No lower than that of any of its definitions."""
    before: TableDefinition | None
    """The newest definition that can be read; else what the one that cannot be read means, with defaults in place of
    what is out of bounds; None where there is neither."""
    is_newer: bool
    """A later version of Frostline wrote it."""

    @property
    def called(self) -> str:
        return self.name or self.uuid

    def is_called(self, name: str) -> bool:
        """Whether the table is meant: by its name, the one that it had before, or its uuid."""
        return name in (self.uuid, self.name or None, self.before and self.before.full_name)

    @property
    def text(self) -> str:
        """What is wrong, in one phrase."""
        return f"table {self.called} cannot be read: {self.broken[0].text}"

    @property
    def hint(self) -> str:
        """The next step."""
        if self.is_newer:
            return "upgrade frostline; nothing of the table was changed"
        others = "bring an older state back with 'frostline restore DISK --revision N' or 'frostline backup restore'"
        if self.before is None:
            return f"{others}, put a copy of the file in its place, or 'frostline table drop {self.called}'"
        if self.before.is_replicated:
            return f"Keeper has its definition: 'frostline replica restore {self.called}' writes it again; or {others}"
        return (
            f"'frostline table alter {self.called}' with any change starts from the newest readable definition, "
            "or if there is none from this one, with defaults for values out of bounds; 'frostline "
            f"undo' reverts the change, 'frostline table drop {self.called}' drops the table; or {others}"
        )

    @property
    def can_be_changed(self) -> bool:
        """Whether it is known what a change goes on from. Keeper has the definition of a replicated table."""
        return self.before is not None and not self.is_newer and not self.before.is_replicated

    @property
    def document(self) -> dict[str, str]:
        """As `--json` has it."""
        return {"table": self.called, "uuid": self.uuid, "what": self.text, "hint": self.hint}

    def error(self) -> Damaged:
        """What a verb that needs the table raises."""
        return Damaged(self.text, hint=self.hint)

    def base(self, parts: Iterable[StoredPart]) -> TableDefinition:
        """The definition that a change goes on from. Numbers that were given to versions and columns are not given
        again, nor those that only the table's parts tell of. Raises `Damaged` where there is none."""
        if self.before is None or not self.can_be_changed:
            raise self.error()
        described = [stored.part for stored in parts]
        ids = (int(column.partition(".")[0]) for part in described for column in part.columns)
        return msgspec.structs.replace(
            self.before,
            version=self.version,
            schema_version=max([self.before.schema_version, *(part.schema_version for part in described)]),
            last_column_id=max([self.before.last_column_id, *ids]),
        )


def unreadable(
    disks: Mapping[str, Disk], copies: Sequence[UnreadableCopy], definition: TableDefinition | None
) -> UnreadableTable | TableDefinition | None:
    """The table of these copies; or its definition, where a readable one is at least as new: `definition`, which
    another disk holds, or that of a marker file. None when the path is not a table's."""
    path = copies[0].broken.path
    located = locate(path)
    if located is None:
        return None
    directory = path.rpartition("/")[0]
    marks = {name: _marks(disk, directory) for name, disk in disks.items()}
    versions = [version_of(disks[copy.broken.disk], path) for copy in copies]
    marked = _marked(disks, directory, marks)
    readable = max(filter(None, (definition, marked)), key=lambda table: table.version, default=None)
    if readable is not None and readable.version >= max(versions):
        return readable
    meant = [schema.within_bounds(meaning) for copy in copies if (meaning := schema.meaning(copy.data)) is not None]
    before = readable or max(filter(_can_be_stored, meant), key=lambda table: table.version, default=None)
    if before is not None:
        before = msgspec.structs.replace(
            before,
            schema_version=max(before.schema_version, *(table.schema_version for table in meant), 0),
            last_column_id=max(before.last_column_id, *(table.last_column_id for table in meant), 0),
        )
        versions.append(before.version)
    names = [match.groups() for copy in copies if (match := _NAME.search(copy.data))]
    return UnreadableTable(
        uuid=located.uuid,
        name=b".".join(names[0]).decode() if names else (before.full_name if before is not None else ""),
        broken=tuple(copy.broken for copy in copies),
        version=max((*versions, *(number for numbers in marks.values() for number in numbers))),
        before=before,
        is_newer=any(schema.is_of_later_version(copy.data) for copy in copies),
    )


def last_definition(disks: Mapping[str, Disk], uuid: str) -> TableDefinition:
    """The newest definition of a table that its disks tell of, read from them whether the table is in use, hidden or
    cannot be read. Raises `Damaged` where none can be read."""
    path = tombstones.definition_path(uuid)
    copies: list[UnreadableCopy] = []
    newest: TableDefinition | None = None
    for disk in disks.values():
        if not disk.exists(path):
            continue
        data = disk.read(path)
        try:
            definition = schema.decode(data, path=f"{disk.name}:{path}")
        except Damaged as error:
            copies.append(UnreadableCopy(Broken(disk.name, path, error.message), data))
        else:
            newest = definition if newest is None or definition.version > newest.version else newest
    table = unreadable(disks, copies, newest) if copies else newest
    if isinstance(table, UnreadableTable):
        if table.before is None or table.is_newer:
            raise table.error()
        return msgspec.structs.replace(table.before, version=table.version)
    if table is None:
        raise Damaged(f"no disk has a definition of the table {uuid}", hint="run 'frostline fsck'")
    return table


def _can_be_stored(definition: TableDefinition) -> bool:
    try:
        return schema.fault_in(definition) is None
    except UsageError:  # its name is none
        return False


def version_of(disk: Disk, path: str) -> int:
    """The version of a `table.json` there that cannot be read."""
    return schema.version_in(disk.read(path)) or max(_marks(disk, path.rpartition("/")[0]), default=1)


def _marks(disk: Disk, directory: str) -> list[int]:
    """The versions that the disk has a mark of, the newest first."""
    found = (_MARK.match(name) for name in disk.files_in(directory))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def _marked(disks: Mapping[str, Disk], directory: str, marks: Mapping[str, Sequence[int]]) -> TableDefinition | None:
    """What the newest mark says that can be read."""
    for number, name in sorted(((number, name) for name, found in marks.items() for number in found), reverse=True):
        with suppress(FrostlineError):
            found = tombstones.read_mark(disks[name].read(f"{directory}/altered-{number}.json"))
            if found is not None and found.directory == directory:
                return found
    return None
