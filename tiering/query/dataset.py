"""A table as a pyarrow dataset: what pandas, Polars (`scan_pyarrow_dataset`) and DuckDB read by themselves.

    dataset = store.table("nyc.flights").dataset()
    polars.scan_pyarrow_dataset(dataset).filter(…);  duckdb.sql("select … from dataset");  dataset.to_table(filter=…)

Every data file is a fragment that carries what `part.json` says of its columns, so that readers drop fragments before
they open them. Arrow compares each page with its checksum. Footers of local files are compared when the dataset is
made; those of objects are not, which Arrow reads by itself and late.

The dataset is the table as it was when it was made. While it lives, for six hours at most, no file that is removed
leaves the SSD: a merged or moved part takes its space until then. Drop the last reference to a dataset that is not
needed any more, and make a new one for each long piece of work.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem, S3FileSystem

from disks.base import Location
from disks.stores.base import S3Connection
from oplog.errors import NotFound, Refused
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.config.units import counted
from tiering.parquet.checked_local import LocalRead
from tiering.query.checked_parts import check_local_files, local_read, read_schema
from tiering.query.filesystem import FrostlineFileSystem
from tiering.query.selection import FileMissing, SelectedFile
from tiering.table.columns.current_shape import current_values
from tiering.table.columns.nested_ids import is_current
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import default_array, default_scalar, field_ids, plain_schema
from tiering.table.part import ColumnRange, DataFile
from tiering.table.schema import Column, TableDefinition

MAX_CONVERTED_BYTES = 256 * 1024 * 1024
"""Parts older than a rename or a new default cannot be fragments; up to this size they are read at once instead."""
LONGEST_LEASE_SECONDS = 6 * 3600.0
_LONGEST_BOUND = 64
"""Bounds of texts longer than this may be cut off; they are then not used."""

_CHECKS_OF_ANSWERS = "AWS_RESPONSE_CHECKSUM_VALIDATION"
_environment = threading.Lock()

_FORMAT = pads.ParquetFileFormat(pre_buffer=True, page_checksum_verification=True)


def table_dataset(
    context: Context, definition: TableDefinition, parts: Sequence[StoredPart], *, handed_out: bool = True
) -> pads.Dataset:
    """The parts, on whatever tier, as one dataset. One that is not handed out reads all files through their disks: then
    every byte is compared with what was written, and DuckDB may not be given it (`_filesystem`).

    Raises `Damaged` for a local file whose footer is not what was written, `FileMissing` for one that is gone,
    `Refused` when too much of the table predates a renamed column: a merge converts it.
    """
    schema = plain_schema(definition)
    leases = ExitStack()
    for disk in sorted({stored.disk for stored in parts}):
        leases.enter_context(context.disk(disk).read_lease())
    try:
        children = _children(context, definition, parts, schema, handed_out)
    except NotFound as error:
        leases.close()
        raise FileMissing(error.message, hint="run 'frostline fsck'; no partial result is given") from error
    except BaseException:
        leases.close()
        raise
    dataset = children[0] if len(children) == 1 else pads.UnionDataset(schema, children)
    _keep(leases, dataset)
    return dataset


def _keep(leases: ExitStack, dataset: pads.Dataset) -> None:
    """Release the leases with the dataset, or when it has had its time: one that is forgotten in a notebook must not
    fill the SSD. Reading a file that is gone then is an error, never fewer rows."""
    once = threading.Lock()

    def release() -> None:
        if once.acquire(blocking=False):
            timer.cancel()
            leases.close()

    timer = threading.Timer(LONGEST_LEASE_SECONDS, release)
    timer.daemon = True
    timer.start()
    weakref.finalize(dataset, release)


def _children(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    schema: pa.Schema,
    handed_out: bool,
) -> list[pads.Dataset]:
    tables = {definition.full_name: list(parts)}
    schemas = _stored_schemas(context, definition, parts)
    remote_files = PyFileSystem(FSSpecHandler(FrostlineFileSystem(context, lambda: tables)))
    systems: dict[S3Connection | str, tuple[Any, list[pads.Fragment]]] = {}
    converted: list[tuple[StoredPart, DataFile]] = []
    footers: list[LocalRead] = []
    for stored in parts:
        fits = _reads_as_it_is(definition, schemas.get(stored.part.schema_version))
        for file in stored.part.files:
            if not fits:
                converted.append((stored, file))
                continue
            guarantee = _guarantee(definition, file.rows, file.columns or stored.part.columns)
            location = context.disk(stored.disk).location(stored.path(file.name))
            selected = SelectedFile(stored, file, location, stored.part.schema_version)
            if handed_out and selected.local_path is not None:
                footers.append(local_read(selected, ()))
            scheme, _, path = location.url.partition("://") if location is not None else ("", "", "")
            key: S3Connection | str = (location is not None and location.s3) or scheme
            if key not in systems:
                systems[key] = ((handed_out and location is not None and _filesystem(location)) or remote_files, [])
            system, fragments = systems[key]
            if system is remote_files:
                path = f"{definition.full_name}/{stored.facts.name}/{file.name}"
            fragments.append(_FORMAT.make_fragment(path, system, guarantee, file_size=file.size_bytes))
    check_local_files(footers)
    children: list[pads.Dataset] = [
        pads.FileSystemDataset(fragments, schema, _FORMAT, system) for system, fragments in systems.values()
    ]
    if converted or not children:
        children.append(pads.dataset(_convert(context, definition, converted, schemas, schema)))
    return children


def _filesystem(location: Location) -> Any:
    """Arrow's own filesystem where it has one; else None. A reader that holds the interpreter lock while it waits for
    Arrow (DuckDB) would wait for ever if Arrow's threads needed that lock to read. Never written through."""
    if location.url.startswith("file://"):
        return LocalFileSystem()
    if location.s3 is None:
        return None
    connection = location.s3
    scheme, _, host = (connection.endpoint_url or "https://").partition("://")
    with _without_checks_of_answers():
        return S3FileSystem(
            access_key=connection.access_key_id,
            secret_key=connection.secret_access_key,
            session_token=connection.session_token,
            region=connection.region,
            endpoint_override=host or None,
            scheme=scheme,
            force_virtual_addressing=connection.virtual_host_style,
        )


@contextmanager
def _without_checks_of_answers() -> Iterator[None]:
    """A client of AWS's that is made in this context compares no checksum that a store sends beside an answer, unless
    the environment asks for it: rclone sends that of the whole object beside a range. Pages are compared anyway."""
    with _environment:
        if _CHECKS_OF_ANSWERS in os.environ:
            yield
            return
        os.environ[_CHECKS_OF_ANSWERS] = "when_required"
        try:
            yield
        finally:
            del os.environ[_CHECKS_OF_ANSWERS]


# ---- older schemas


def _stored_schemas(context: Context, definition: TableDefinition, parts: Sequence[StoredPart]) -> dict[int, pa.Schema]:
    """Schema version -> the schema of its files, for versions other than today's: one footer each."""
    schemas: dict[int, pa.Schema] = {}
    for stored in parts:
        version = stored.part.schema_version
        if version != definition.schema_version and version not in schemas and stored.part.files:
            schemas[version] = read_schema(context, stored, stored.part.files[0])
    return schemas


def _reads_as_it_is(definition: TableDefinition, schema: pa.Schema | None) -> bool:
    """Whether matching columns and fields by name, with null for those missing, gives what matching by id gives."""
    if schema is None:
        return True
    names = field_ids(schema)
    taken = set(names.values())
    return all(
        names[column.id] == column.name
        and (not column.nested_ids or _has_same_fields(schema.field(column.name).type, column, definition))
        if column.id in names
        else column.name not in taken and column.default is None
        for column in definition.columns
    )


def _has_same_fields(kind: pa.DataType, column: Column, definition: TableDefinition) -> bool:
    return is_current(kind, column, definition) and bool(kind.equals(arrow_type(column.type)))


def _convert(
    context: Context,
    definition: TableDefinition,
    files: Sequence[tuple[StoredPart, DataFile]],
    schemas: Mapping[int, pa.Schema],
    schema: pa.Schema,
) -> pa.Table:
    size_bytes = sum(file.size_bytes for _, file in files)
    if size_bytes > MAX_CONVERTED_BYTES:
        raise Refused(
            f"{counted(len(files), 'file')} ({size_bytes} bytes) of {definition.full_name} predate a renamed column "
            "or field, a new field within a column, or a new default, which a dataset cannot map",
            hint=f"'frostline merge {definition.full_name} --final' rewrites them; scan() and query read them",
        )
    tables = [
        _convert_file(context, definition, stored, file, field_ids(schemas[stored.part.schema_version]))
        for stored, file in files
    ]
    return pa.concat_tables([schema.empty_table(), *tables])


def _convert_file(
    context: Context, definition: TableDefinition, stored: StoredPart, file: DataFile, names: dict[int, str]
) -> pa.Table:
    tables = {definition.full_name: [stored]}
    filesystem = FrostlineFileSystem(context, lambda: tables)
    with filesystem.open(f"{definition.full_name}/{stored.facts.name}/{file.name}", "rb") as source:
        held = pq.ParquetFile(source, pre_buffer=True).read([names[c.id] for c in definition.columns if c.id in names])
    return pa.table(
        {
            column.name: _current(held.column(names[column.id]), column, definition)
            if column.id in names
            else default_array(column, held.num_rows)
            for column in definition.columns
        }
    )


def _current(values: pa.ChunkedArray, column: Column, definition: TableDefinition) -> pa.ChunkedArray:
    chunks = [current_values(chunk, column, definition) for chunk in values.chunks]
    return pa.chunked_array(chunks, arrow_type(column.type))


# ---- what a fragment guarantees


def _guarantee(definition: TableDefinition, rows: int, ranges: Mapping[str, ColumnRange]) -> pc.Expression:
    """What holds for every row of the file, in the form that pyarrow simplifies filters with."""
    whole = pc.scalar(True)
    for column in definition.columns:
        known = ranges.get(str(column.id))
        bounds = None if known is None else _bounds(column, known, rows)
        if bounds is not None:
            whole = whole & bounds
    return whole


def _bounds(column: Column, column_range: ColumnRange, rows: int) -> pc.Expression | None:
    field = pc.field(column.name)
    if column_range.nulls >= rows > 0:
        return field.is_null()
    # NaN is in no range, and a filter may select it.
    if (
        column.type.startswith(("float", "list", "map", "struct", "binary", "bool", "uuid", "duration"))
        or column_range.min is None
        or column_range.max is None
    ):
        return None
    if (
        isinstance(column_range.max, str)
        and column.type == "string"
        and len(column_range.max.encode()) >= _LONGEST_BOUND
    ):
        return None
    low, high = _bound(column, column_range.min), _bound(column, column_range.max)
    if low is None or high is None:
        return None
    inside = (field >= low) & (field <= high)
    return inside if column_range.nulls == 0 else inside | field.is_null()


def _bound(column: Column, value: Any) -> pa.Scalar | None:
    kind = arrow_type(column.type)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return None  # may have been cut to microseconds
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        return default_scalar(Column(column.id, column.name, column.type, default=value))
    except Exception:  # noqa: BLE001 - a bound that does not fit the type bounds nothing
        return None
