"""`vN.metadata.json` of a publication: an Iceberg v2 table, in the words of the specification.

Source: https://iceberg.apache.org/spec/, "Table Metadata" and "Appendix C: JSON serialization". Field names are those
of the specification with `_` for `-`. A snapshot's id and sequence number are the disk's revision that it shows.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged
from oplog.revision import PUBLICATIONS_PREFIX

WRITE_AGAIN = "'frostline iceberg publish TABLE --anew' writes it again from the log"
"""What to do about a publication that is damaged."""

TABLE_VERSION = "frostline.table-version"
COMPLETE_UNTIL = "frostline.complete-until"
ROWS_ELSEWHERE = "frostline.rows-elsewhere"


class StructType(msgspec.Struct, frozen=True, tag_field="type", tag="struct"):
    """A struct."""

    fields: tuple[Field, ...]


class ListType(msgspec.Struct, frozen=True, tag_field="type", tag="list", rename="kebab"):
    """A list."""

    element_id: int
    element: Type
    element_required: bool = False


class MapType(msgspec.Struct, frozen=True, tag_field="type", tag="map", rename="kebab"):
    """A map."""

    key_id: int
    key: Type
    value_id: int
    value: Type
    value_required: bool = False


Type = str | StructType | ListType | MapType


class Field(msgspec.Struct, frozen=True):
    """A column, or a field within a struct."""

    id: int
    name: str
    required: bool
    type: Type


class Schema(msgspec.Struct, frozen=True, tag_field="type", tag="struct", rename="kebab"):
    """The columns of one version."""

    schema_id: int
    fields: tuple[Field, ...]


class PartitionSpecField(msgspec.Struct, frozen=True, rename="kebab"):
    """A transform of a column."""

    source_id: int
    field_id: int
    name: str
    transform: str


class PartitionSpec(msgspec.Struct, frozen=True, rename="kebab"):
    """How rows are divided into partitions."""

    spec_id: int
    fields: tuple[PartitionSpecField, ...] = ()


class SortField(msgspec.Struct, frozen=True, rename="kebab"):
    """A column that rows are sorted by."""

    transform: str
    source_id: int
    direction: str
    null_order: str


class SortOrder(msgspec.Struct, frozen=True, rename="kebab"):
    """How rows are sorted within a file."""

    order_id: int
    fields: tuple[SortField, ...] = ()


class IcebergSnapshot(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """The table at one revision."""

    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    manifest_list: str
    summary: dict[str, str]
    parent_snapshot_id: int | None = None
    schema_id: int | None = None


class SnapshotLogEntry(msgspec.Struct, frozen=True, rename="kebab"):
    """When a snapshot became the current one."""

    timestamp_ms: int
    snapshot_id: int


class Reference(msgspec.Struct, frozen=True, rename="kebab"):
    """A branch."""

    snapshot_id: int
    type: Literal["branch", "tag"] = "branch"


class TableMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """All of the document."""

    format_version: int
    table_uuid: str
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    current_schema_id: int
    schemas: tuple[Schema, ...]
    default_spec_id: int
    partition_specs: tuple[PartitionSpec, ...]
    last_partition_id: int
    default_sort_order_id: int
    sort_orders: tuple[SortOrder, ...]
    properties: dict[str, str]
    current_snapshot_id: int
    refs: dict[str, Reference]
    snapshots: tuple[IcebergSnapshot, ...]
    snapshot_log: tuple[SnapshotLogEntry, ...] = ()

    @property
    def current(self) -> IcebergSnapshot | None:
        """The snapshot that readers see."""
        return next((one for one in self.snapshots if one.snapshot_id == self.current_snapshot_id), None)


def _fault_in(metadata: TableMetadata) -> str | None:
    if metadata.format_version != 2:
        return f"it has format version {metadata.format_version}, and this version of Frostline writes 2"
    return None if metadata.current is not None else "it names a current snapshot that it does not have"


_document = Document("publication of a table", TableMetadata, fault=_fault_in)


def encode(metadata: TableMetadata) -> bytes:
    """The bytes of the file. Raises `Refused` for metadata that could not be read back."""
    return _document.encode(metadata)


def decode(data: bytes, *, path: str) -> TableMetadata:
    """The metadata of a file. Raises `Damaged` naming the path."""
    try:
        return _document.decode(data)
    except bounds.UNREADABLE as error:
        raise Damaged(
            f"{path} is not a publication that Frostline made: {error}",
            hint=WRITE_AGAIN,
        ) from error


def directory_of(uuid: str) -> str:
    """The directory of a table's publication, below the disk's prefix."""
    return f"{PUBLICATIONS_PREFIX}{uuid}"


def metadata_key(uuid: str, version: int) -> str:
    """The key of a version of the metadata."""
    return f"{directory_of(uuid)}/metadata/v{version}.metadata.json"
