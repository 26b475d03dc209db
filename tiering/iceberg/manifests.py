"""Manifests and manifest lists of a publication, made from `part.json` alone: no footer is read.

Parts in the order of their names are cut into groups, one manifest each. A group ends behind every part whose name has
a certain hash, so that a change of some parts changes their groups only, and all other manifests are carried over. A
manifest's key has the digest of its group, the revision that it was written for, and a random word: no key is written
twice.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa
from pyiceberg import manifest as avro
from pyiceberg.conversions import to_bytes
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec as AvroSpec
from pyiceberg.schema import Schema as AvroSchema
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from oplog.errors import Damaged
from tiering.catalog.stored import StoredPart
from tiering.iceberg.metadata import WRITE_AGAIN, PartitionSpec, Schema
from tiering.iceberg.schema import partition_values, plain_value
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import from_json
from tiering.table.part import ColumnRange, DataFile, Part
from tiering.table.schema import Column, TableDefinition

_CODEC: Literal["deflate"] = "deflate"
"""Not zstd, which DuckDB 1.5 does not read in Avro."""
_PARTS_A_GROUP = 32
"""On average."""
_MOST_PARTS = 128
_DIGEST_LETTERS = 24

AvroTypes = tuple[AvroSchema, AvroSpec]


class Group(msgspec.Struct, frozen=True):
    """The parts of one manifest."""

    digest: str
    parts: tuple[StoredPart, ...]


class Manifest(msgspec.Struct, frozen=True):
    """A new manifest."""

    name: str
    data: bytes
    row: ManifestFile
    """Its row in the manifest list."""


class Mapped(msgspec.Struct, frozen=True):
    """What a publication makes of a definition."""

    definition: TableDefinition
    schema: Schema
    spec: PartitionSpec
    columns: tuple[Column, ...]

    def avro(self) -> AvroTypes:
        """Schema and partitions for the writer of manifests."""
        schema = AvroSchema.model_validate_json(msgspec.json.encode(self.schema))
        return schema, AvroSpec.model_validate_json(msgspec.json.encode(self.spec))


def groups_of(parts: Iterable[StoredPart], mapped: Mapped) -> list[Group]:
    """The groups of the parts. The same parts give the same groups, and a part belongs to few of them over time."""
    columns = msgspec.json.encode(mapped.schema).decode()
    groups: list[Group] = []
    gathered: list[StoredPart] = []
    for part in sorted(parts, key=lambda part: part.name):
        gathered.append(part)
        if zlib.crc32(part.label.encode()) % _PARTS_A_GROUP == 0 or len(gathered) == _MOST_PARTS:
            groups.append(_group(gathered, columns))
            gathered = []
    return [*groups, _group(gathered, columns)] if gathered else groups


def _group(parts: Sequence[StoredPart], columns: str) -> Group:
    names = [f"{part.label} {part.revision}" for part in parts]
    text = "\n".join([columns, *names])
    return Group(hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS], tuple(parts))


def digest_in(path: str) -> str:
    """The digest of the group of a manifest, by its key or URL."""
    return path.rpartition("/")[2].split("-", 1)[0]


def write_manifest(
    group: Group,
    mapped: Mapped,
    types: AvroTypes,
    *,
    url: str,
    revision: int,
    published: Sequence[int],
    described: Callable[[Sequence[StoredPart]], Iterable[tuple[StoredPart, Part]]],
    location: Callable[[str], str],
) -> Manifest:
    """The manifest of a group.

    `types`: `mapped.avro()`. `url`: of its directory. `published`: the revisions of earlier snapshots, ascending: what
    came after the last of them is added by this one. `location`: the URL of a file of the disk. Raises `Refused` for a
    part that cannot be published.
    """
    schema, spec = types
    name = f"{group.digest}-{revision}-{secrets.token_hex(4)}.avro"
    output = _InMemory(f"{url}/{name}")
    entries = []  # before the writer, which cannot be left without an entry
    for stored, part in described(group.parts):
        created = stored.revision or revision
        shown = next((number for number in published if number >= created), None)
        values = Record(*partition_values(part, mapped.definition))
        entries += [
            ManifestEntry.from_args(
                _table_format_version=2,
                status=ManifestEntryStatus.ADDED if shown is None else ManifestEntryStatus.EXISTING,
                snapshot_id=shown or revision,
                sequence_number=shown or revision,
                file_sequence_number=shown or revision,
                data_file=_data_file(file, mapped, schema, location(stored.path(file.name)), values),
            )
            for file in part.files
        ]
    with avro.write_manifest(2, spec, schema, output, revision, _CODEC) as writer:
        for entry in entries:
            writer.add_entry(entry)
    return Manifest(name, output.data, writer.to_manifest_file())


def _data_file(file: DataFile, mapped: Mapped, schema: AvroSchema, url: str, values: Record) -> IcebergFile:
    counts: dict[int, int] = {}
    nulls: dict[int, int] = {}
    low: dict[int, bytes] = {}
    high: dict[int, bytes] = {}
    for column in mapped.columns:
        known = file.columns.get(str(column.id))
        if known is None or (known.min is None and known.max is None and known.nulls < file.rows):
            continue
        counts[column.id], nulls[column.id] = file.rows, known.nulls
        kind = schema.find_type(column.id)
        if isinstance(kind, PrimitiveType):
            low |= _bound(column, known, kind, lowest=True)
            high |= _bound(column, known, kind, lowest=False)
    return IcebergFile.from_args(
        _table_format_version=2,
        content=DataFileContent.DATA,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=values,
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        column_sizes=None,
        value_counts=counts,
        null_value_counts=nulls,
        nan_value_counts=None,
        lower_bounds=low,
        upper_bounds=high,
        key_metadata=None,
        split_offsets=[group.offset_bytes for group in file.row_groups] or None,
        equality_ids=None,
        sort_order_id=None,
    )


def _bound(column: Column, values: ColumnRange, kind: PrimitiveType, *, lowest: bool) -> dict[int, bytes]:
    """The bound of a column by its id. Of floating-point numbers none above: NaN is greater, and is not counted."""
    stored, arrow = values.min if lowest else values.max, arrow_type(column.type)
    if stored is None or isinstance(arrow, pa.UuidType) or (pa.types.is_floating(arrow) and not lowest):
        return {}
    return {column.id: to_bytes(kind, plain_value(from_json(stored, arrow)))}


def write_list(rows: Sequence[ManifestFile], *, url: str, revision: int, parent: int | None) -> bytes:
    """The manifest list of the snapshot of a revision."""
    output = _InMemory(url)
    with avro.write_manifest_list(2, output, revision, parent, revision, _CODEC) as writer:
        writer.add_manifests(list(rows))
    return output.data


def read_list(data: bytes, *, url: str) -> list[ManifestFile]:
    """The rows of a manifest list. Raises `Damaged` for one that cannot be read."""
    try:
        return list(avro.read_manifest_list(_InMemoryInput(url, data)))
    except Exception as error:  # the library has no error of its own for this
        raise Damaged(
            f"{url} is not a manifest list: {error}",
            hint=WRITE_AGAIN,
        ) from error


class _InMemoryInput(InputFile):
    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._data)


class _Kept(io.BytesIO):
    """Keeps what was written when it is closed."""

    data = b""

    def close(self) -> None:
        if not self.closed:
            self.data = self.getvalue()
        super().close()


class _InMemory(OutputFile):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._stream = _Kept()

    @property
    def data(self) -> bytes:
        return self._stream.data

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        return _InMemoryInput(self.location, self.data)

    def create(self, overwrite: bool = False) -> Any:
        return self._stream
