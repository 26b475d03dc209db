"""What is left in a bucket of a table that was dropped there: `dropped/<uuid>.json`. The format, and what it means.

A table is the newest of what its disks say, by `version`: a definition, or the tombstone of one. So a machine that has
the table on its SSD, and was away, learns that it was dropped; without a tombstone a `table.json` that a bucket lacks
was never copied there. A bucket's own `table.json` makes its tombstone void: the machine that brought the table back
may have a version without tombstones. Ways back never lower a version: the old definition succeeds the newest one.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged, UsageError
from tiering.table import schema
from tiering.table.paths import STORE_DIRECTORY, locate
from tiering.table.schema import TABLE_FILE, TableDefinition

DROPPED_DIRECTORY = "dropped"
FORMAT = 1
_PATH = re.compile(rf"{DROPPED_DIRECTORY}/([A-Za-z0-9-]+)\.json\Z")


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """A table that is gone. `definition` is the last one it had; its version is the tombstone's."""

    format: int = FORMAT
    by: Literal["drop", "restore", "undo"]
    """What took it away. Only a drop takes it from the disks of every machine: a way back is about one disk."""
    actor: str = ""
    definition: TableDefinition

    @property
    def version(self) -> int:
        return self.definition.version


def path_of(uuid: str) -> str:
    """Where the tombstone of a table lies."""
    return f"{DROPPED_DIRECTORY}/{uuid}.json"


def uuid_of(path: str) -> str | None:
    """The table whose tombstone lies there; None for any other file."""
    match = _PATH.match(path)
    return match[1] if match else None


def is_definition(path: str) -> bool:
    """Whether the file is the `table.json` of a table."""
    place = locate(path)
    return place is not None and place.part is None and place.file == TABLE_FILE


def definition_path(uuid: str) -> str:
    """Where a table's `table.json` lies."""
    return f"{STORE_DIRECTORY}/{uuid[:3]}/{uuid}/{TABLE_FILE}"


class Alteration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What lies at `mark_of`. Older versions wrote `{}`."""

    definition: TableDefinition | None = None
    """That of the version: where `table.json` is damaged, it is taken from here."""


def mark_of(definition: TableDefinition) -> str:
    """The file that exists once for each version after the first: of two machines that make it, one finds it taken."""
    return f"{definition.directory}/altered-{definition.version}.json"


def _fault_in(tombstone: Tombstone) -> str | None:
    return schema.fault_in(tombstone.definition) if tombstone.format == FORMAT else None


def _fault_in_alteration(alteration: Alteration) -> str | None:
    return schema.fault_in(alteration.definition) if alteration.definition is not None else None


_alteration = Document("mark of a version of a table", Alteration, fault=_fault_in_alteration, order="deterministic")


def mark(definition: TableDefinition) -> bytes:
    """The bytes of `mark_of` the definition."""
    return _alteration.encode(Alteration(definition))


def read_mark(data: bytes) -> TableDefinition | None:
    """The definition of the version; None where the mark does not say it."""
    try:
        return _alteration.decode(data).definition
    except bounds.UNREADABLE:
        return None


_document = Document("tombstone of a table", Tombstone, fault=_fault_in, order="deterministic")


def encode(tombstone: Tombstone) -> bytes:
    """The bytes of the file. Raises `Refused` for a tombstone that could not be read back."""
    return _document.encode(tombstone)


def decode(data: bytes, *, path: str) -> Tombstone:
    """The tombstone of a file, with every field within its bounds. Raises `Damaged` naming the path."""
    try:
        tombstone = _document.decode(data)
        if tombstone.format == FORMAT and not path.endswith(path_of(tombstone.definition.uuid)):
            raise UsageError(f"it is about another table, {tombstone.definition.uuid}")
    except (UsageError, *bounds.UNREADABLE) as error:
        raise Damaged(f"{path} cannot be read: {error}", hint="run 'frostline fsck'") from error
    if tombstone.format != FORMAT:
        raise Damaged(f"{path} has format {tombstone.format}; this version reads {FORMAT}", hint="upgrade frostline")
    return tombstone


def essence(definition: TableDefinition) -> TableDefinition:
    """The definition without what only counts its changes."""
    return msgspec.structs.replace(definition, version=0, schema_version=0, last_column_id=0)


def succeeding(old: TableDefinition, newest: TableDefinition) -> TableDefinition:
    """The old definition as the version after the newest one. Ids of columns that were given out are never reused, and
    whether the table is published is not taken back: that is about readers, and not about what they read."""
    if newest.late_ids is not msgspec.UNSET:
        from tiering.table.columns.nested_ids import numbered_as  # with Arrow, which other tables do not need

        old = numbered_as(old, newest)
    columns = essence(newest).columns != essence(old).columns
    return msgspec.structs.replace(
        old,
        version=newest.version + 1,
        schema_version=newest.schema_version + columns,
        last_column_id=max(old.last_column_id, newest.last_column_id, *(column.id for column in newest.columns)),
        publish=newest.publish,
    )
