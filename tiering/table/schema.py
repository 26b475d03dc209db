"""What a table is: columns with stable field ids, partition transforms, sort order, TTL rules. Stored as `table.json`.

`table.json` lies in the table's directory on every disk of its policy, so that the bucket alone is enough; the highest
`version` wins. Types are written as text (`int64`, `string`, `timestamp[us, UTC]`, `decimal(10, 2)`);
`columns.types` maps them to Arrow. Parquet carries the field ids, so adding, dropping and renaming columns
rewrite nothing.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Literal

import msgspec

from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged, NotFound, UsageError
from tiering.table.names import listed, name_text

TABLE_FILE = "table.json"
CONVERTED_FILE = "converted.json"
"""Beside it: the table was a plain one, and is replicated now."""
FORMAT = 2
"""The newest that this version reads: nested fields have ids. An older version, which would lose them, refuses it."""
PLAIN_FORMAT = 1
"""Of tables without nested fields, and of those that were made before nested fields had ids."""
_UUID = re.compile(r"[A-Za-z0-9-]{3,100}\Z")
_OF_REPLICAS = re.compile(r"(?:converted|replica|mover-\d{1,18})\.json\Z", re.ASCII)
_VERSION = re.compile(rb'"version":(\d{1,18})[,}]')
_KEEPER_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}){1,20}\Z", re.ASCII)
LONGEST_TTL_SECONDS = 1 << 37
"""Four thousand years: a rule that outlives the calendar is a mistake, or worse."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column. `id` never changes and is never reused; `default` is the value in parts older than the column.

    `nested_ids` are the ids of the fields within its type, from the outside in and in the type's order: members of
    structs, elements of lists, keys and values of maps (`columns.nested_ids`). Empty: they are matched by name.
    """

    id: int
    name: str
    type: str
    nullable: bool = True
    default: Any = None
    nested_ids: tuple[int, ...] = ()


class LateIds(msgspec.Struct, frozen=True):
    """Of a table that is older than the ids of its nested fields: which ids stand for the fields of its first files."""

    schema_version: int
    """Files of older versions have no ids of nested fields."""
    first_ids: tuple[tuple[int, int], ...]
    """Column id and the id of its first nested field; the others follow it, each one higher."""


class PartitionField(msgspec.Struct, frozen=True, omit_defaults=True):
    """An Iceberg-style transform of one column: identity, year, month, day, hour, bucket(n), truncate(w)."""

    transform: Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"]
    column: str
    parameter: int | None = None

    def __str__(self) -> str:
        name = name_text(self.column)
        inside = f"{self.parameter}, {name}" if self.parameter is not None else name
        return f"{self.transform}({inside})"


class MoveToVolume(msgspec.Struct, frozen=True, tag_field="action", tag="to_volume"):
    """Move the part to the volume."""

    volume: str


class MoveToDisk(msgspec.Struct, frozen=True, tag_field="action", tag="to_disk", omit_defaults=True):
    """Move the part to the disk, whatever its size."""

    disk: str
    if_exists: bool = False


class Delete(msgspec.Struct, frozen=True, tag_field="action", tag="delete"):
    """Drop the part when every row in it is due; merges drop due rows earlier."""


class Recompress(msgspec.Struct, frozen=True, tag_field="action", tag="recompress", omit_defaults=True):
    """Write the part again, where it lies, with another codec: once, by the merges of a pass."""

    codec: str = "zstd"
    level: int = 9


class TtlRule(msgspec.Struct, frozen=True):
    """`after` seconds on `column`, then the action. Due when the part's newest value + after <= now."""

    after_seconds: int
    column: str
    action: MoveToVolume | MoveToDisk | Delete | Recompress

    @property
    def after(self) -> timedelta:
        return timedelta(seconds=self.after_seconds)


class TableSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Per-table knobs (`--setting K=V`)."""

    insert_block_rows: int = 1_000_000
    """Rows sorted and written at once by an insert; bounds its memory."""
    row_group_rows: int = 131_072
    target_file_size_bytes: int = 512 * 1024 * 1024
    """A merge starts a new data file of the part at about this size."""
    compression_level: int = 3
    """zstd level of new parts."""
    max_merge_size_bytes: int = 64 * 1024**3
    """Parts above this size are not merged by themselves any more."""
    min_part_age_to_move_seconds: int = 0
    """A TTL or move_factor move waits until the part is this old, so that merges come first."""
    deduplication_window: int = 1000
    """Inserted blocks remembered a partition."""


class Publish(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a table is published as Iceberg metadata, so that other engines read in place what it has in its bucket."""

    without: tuple[str, ...] = ()
    """Columns that are left out."""


class TableDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """`table.json`. `version` grows by one with every change; `schema_version` with those of the columns."""

    format: int = PLAIN_FORMAT
    uuid: str
    database: str
    name: str
    version: int = 1
    schema_version: int = 1
    columns: tuple[Column, ...]
    order_by: tuple[str, ...]
    partition_by: tuple[PartitionField, ...] = ()
    policy: str
    ttl: tuple[TtlRule, ...] = ()
    merge_mode: str = "ordinary"
    """As in `--merge-mode`; `tiering.table.merge_modes` reads it."""
    settings: TableSettings = TableSettings()
    last_column_id: int = 0
    """Ids up to here were given out at some time."""
    keeper: str | msgspec.UnsetType = msgspec.UNSET
    """Of a replicated table: its path in Keeper, which gives the numbers of its blocks. Not there for any other."""
    first_block: int | msgspec.UnsetType = msgspec.UNSET
    """Of a replicated table that was a plain one: the numbers from Keeper begin here, above all that were given."""
    late_ids: LateIds | msgspec.UnsetType = msgspec.UNSET
    """Not there where every file has the ids of nested fields, or none has."""

    publish: Publish | msgspec.UnsetType = msgspec.UNSET
    """Not there for a table that is not published."""

    @property
    def is_published(self) -> bool:
        return self.publish is not msgspec.UNSET

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that a publication leaves out."""
        return () if self.publish is msgspec.UNSET else self.publish.without

    @property
    def is_replicated(self) -> bool:
        return self.keeper is not msgspec.UNSET

    @property
    def numbers_from(self) -> int:
        """What is added to a number from Keeper."""
        return 0 if self.first_block is msgspec.UNSET else self.first_block

    @property
    def barred_by(self) -> tuple[str, ...]:
        """A commit of a part of a plain table requires that this is not there: on a disk that knows the table as a
        replicated one by now, a part that Keeper does not know would be in no answer soon."""
        return () if self.is_replicated else (f"{self.directory}/{CONVERTED_FILE}",)

    @property
    def replica_path(self) -> str:
        """On the local disks of a machine that is a replica of the table: which one it is."""
        return f"{self.directory}/replica.json"

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def directory(self) -> str:
        """Where the table lies on every disk."""
        return f"store/{self.uuid[:3]}/{self.uuid}"

    @property
    def path(self) -> str:
        """Where `table.json` lies. A commit of a part requires it, so that a dropped table gets no part back."""
        return f"{self.directory}/{TABLE_FILE}"

    def part_directory(self, part: str) -> str:
        return f"{self.directory}/{part}"

    def column(self, name: str) -> Column:
        """The column. Raises `NotFound` with the known names."""
        for column in self.columns:
            if column.name == name:
                return column
        known = listed([column.name for column in self.columns])
        raise NotFound(f"table {self.full_name} has no column {name!r}", hint=f"its columns are: {known}")

    def files_have_nested_ids(self, schema_version: int) -> bool:
        """Whether files of this schema version have the ids of all nested fields."""
        if self.format != FORMAT:
            return not any("<" in column.type for column in self.columns)
        return self.late_ids is msgspec.UNSET or schema_version >= self.late_ids.schema_version

    def first_nested_id(self, column_id: int) -> int | None:
        """The id of the first field within the column in files without ids of nested fields; None: by their names."""
        return None if self.late_ids is msgspec.UNSET else dict(self.late_ids.first_ids).get(column_id)


def is_of_replicas(name: str) -> bool:
    """Whether a file beside `table.json` is one that only a replicated table has."""
    return _OF_REPLICAS.match(name) is not None


def split_table_name(text: str) -> tuple[str, str]:
    """`db.table` -> (db, table). Raises `UsageError`."""
    database, dot, name = text.partition(".")
    if not dot or not _IDENTIFIER.match(database) or not _IDENTIFIER.match(name):
        raise UsageError(f"not a table name: {text!r}", hint="write it as database.table, letters, digits and '_' only")
    return database, name


def encode(definition: TableDefinition) -> bytes:
    """The bytes of `table.json`. Raises `Refused` for a definition that could not be read back."""
    return _document.encode(definition)


def decode(data: bytes, *, path: str) -> TableDefinition:
    """The definition of a `table.json`, with every field within its bounds. Raises `Damaged` naming the path."""
    try:
        if len(data) > bounds.LARGEST_DOCUMENT_BYTES:
            raise UsageError(f"it has {len(data)} bytes")
        definition = _document.decode(data)
    except (UsageError, *bounds.UNREADABLE) as error:
        raise Damaged(
            f"{path} cannot be read: {error}", hint="every disk of the policy holds a copy; run 'frostline fsck'"
        ) from error
    if not _is_read(definition.format):
        raise Damaged(f"{path} has format {definition.format}; this version reads {FORMAT}", hint="upgrade frostline")
    return definition


def meaning(data: bytes) -> TableDefinition | None:
    """What a `table.json` that `decode` refuses means: its fields have their types, and one a value out of bounds. None
    for what is no definition, and for one of a later version."""
    try:
        definition = _decoder.decode(data)
    except bounds.UNREADABLE:
        return None
    numbers = (definition.version, definition.schema_version, definition.last_column_id)
    is_sound = _is_read(definition.format) and not any(bounds.fault_in_count("", number) for number in numbers)
    return definition if is_sound and _UUID.match(definition.uuid) else None


def within_bounds(definition: TableDefinition) -> TableDefinition:
    """The same with the default of each setting that is out of bounds, and without rules that wait out of bounds."""
    settings = msgspec.structs.asdict(definition.settings)
    late = {name for name, count in settings.items() if bounds.fault_in_count(name, count)}
    return msgspec.structs.replace(
        definition,
        settings=TableSettings(**{name: count for name, count in settings.items() if name not in late}),
        ttl=tuple(rule for rule in definition.ttl if 0 <= rule.after_seconds <= LONGEST_TTL_SECONDS),
    )


def version_in(data: bytes) -> int | None:
    """The version that a `table.json` says, however damaged it is; None where none can be found."""
    match = _VERSION.search(data)
    return int(match[1]) if match else None


def is_of_later_version(data: bytes) -> bool:
    """Whether a later version of Frostline wrote the `table.json`."""
    try:
        return _format_decoder.decode(data).format > FORMAT
    except bounds.UNREADABLE:
        return False


def fault_in(definition: TableDefinition) -> str | None:
    """What is wrong with a definition; None when nothing is. What has a fault is not read, and so never written."""
    if not _is_read(definition.format):  # of a later version, which may say more
        return None
    if not _UUID.match(definition.uuid):
        return f"{definition.uuid[:80]!r} is no uuid"
    split_table_name(definition.full_name)
    if definition.keeper is not msgspec.UNSET and not _KEEPER_PATH.match(definition.keeper):
        return f"{definition.keeper[:80]!r} is no path in Keeper"
    names = [column.name for column in definition.columns]
    known = set(names)
    if not all(names) or len(known) != len(names) or not names:
        return "its columns need names, each its own"
    used = (*definition.order_by, *(field.column for field in definition.partition_by))
    if lacking := set(used) - known:
        return f"it has no column {min(lacking)[:80]!r}"
    counts = {"version": definition.version, "schema_version": definition.schema_version}
    counts |= {"last_column_id": definition.last_column_id, **msgspec.structs.asdict(definition.settings)}
    counts["first_block"] = definition.numbers_from
    counts |= {f"the id of {column.name}": column.id for column in definition.columns}
    counts |= {f"the parameter of {field}": field.parameter or 0 for field in definition.partition_by}
    for what, count in counts.items():
        if fault := bounds.fault_in_count(what, count):
            return fault
    if fault := _fault_in_nested_ids(definition):
        return fault
    late = (rule.after_seconds for rule in definition.ttl if not 0 <= rule.after_seconds <= LONGEST_TTL_SECONDS)
    return next((f"a rule waits {seconds} seconds" for seconds in late), None)


def _is_read(version: int) -> bool:
    return PLAIN_FORMAT <= version <= FORMAT


def _fault_in_nested_ids(definition: TableDefinition) -> str | None:
    is_numbered = definition.format == FORMAT
    late = () if definition.late_ids is msgspec.UNSET else definition.late_ids.first_ids
    ids = [number for column in definition.columns for number in (column.id, *column.nested_ids)]
    since = 0 if definition.late_ids is msgspec.UNSET else definition.late_ids.schema_version
    for number in (*ids, since, *(number for pair in late for number in pair)):
        if fault := bounds.fault_in_count("an id", number):
            return fault
    for column in definition.columns:
        if bool(column.nested_ids) != (is_numbered and "<" in column.type):
            return f"the fields within {column.name} {'have' if column.nested_ids else 'need'} ids"
    if not is_numbered:
        return None if definition.late_ids is msgspec.UNSET else "it has late_ids and no ids of nested fields"
    return None if len(set(ids)) == len(ids) <= max(ids) <= definition.last_column_id else "an id is used twice"


class _Format(msgspec.Struct):
    format: int


_document = Document("table.json", TableDefinition, fault=fault_in, order="deterministic")
_decoder = msgspec.json.Decoder(TableDefinition)
_format_decoder = msgspec.json.Decoder(_Format)
