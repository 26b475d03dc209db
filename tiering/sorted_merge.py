"""Many sorted Parquet files as one sorted stream of Arrow tables, with bounded memory.

The query engine (DataFusion) merges files that are declared sorted; it never sorts. Files whose key ranges do not meet
are read one after the other, so a merge of disjoint parts costs no comparisons and holds one file open. What is left
is merged at most `MAX_OPEN_FILES` at a time: more become intermediate files first.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

# The engine's allocator reads these when it is loaded. Taking memory as it is needed, not by the arena, saves a merge
# of 64 files 120 MB: each file is opened in a thread, each thread has its arenas.
os.environ.setdefault("MIMALLOC_EAGER_COMMIT", "0")
os.environ.setdefault("MIMALLOC_ARENA_EAGER_COMMIT", "0")

from datafusion import DataFrame, SessionConfig, SessionContext, col, lit
from datafusion.expr import Expr, SortExpr
from datafusion.object_store import AmazonS3

from disks.base import Location
from disks.effects import op, remove_file
from disks.stores.base import S3Connection
from oplog.errors import Damaged
from tiering.part import DataFile
from tiering.schema import TableDefinition
from tiering.types import arrow_schema, arrow_type, default_scalar, from_json

MAX_OPEN_FILES = 64
"""Each open file costs about 7 MB of decoding buffers; with these a merge stays below 700 MB."""

_ORDER = "__frostline_order"
_QUEUED_TABLES = 2
_TABLE_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class SortedFile:
    """A file to merge. `names` maps field ids to the names of its columns; `order` says which part came first."""

    location: Location
    file: DataFile
    names: dict[int, str]
    order: int
    label: str
    """For messages: disk and path."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """A file's range of the first sort column; an end is None where it is open."""

    low: Any
    high: Any


def merged(files: Sequence[SortedFile], definition: TableDefinition, scratch: Path) -> Iterator[pa.Table]:
    """The rows of all files in sort order, equal keys in `order`. Raises `Damaged` for a file that cannot be read."""
    for number, cluster in enumerate(clusters(files, definition)):
        members = cluster
        level = 0
        while len(members) > MAX_OPEN_FILES:
            members = _reduced(members, definition, scratch / f"merge-{number}-{level}")
            level += 1
        yield from _merge_open(members, definition)
        if level:
            _remove_intermediate(members)


def clusters(files: Sequence[SortedFile], definition: TableDefinition) -> list[list[SortedFile]]:
    """Groups of files in key order: every key of a group is below every key of the next."""
    bounds = [(_bounds(item.file, definition), item) for item in files if item.file.rows]
    unbounded = [pair for pair in bounds if pair[0].low is None]
    ordered = sorted((pair for pair in bounds if pair[0].low is not None), key=lambda pair: pair[0].low)
    if unbounded:
        # A file that may begin anywhere meets every other one.
        return [sorted(files, key=lambda item: item.order)]
    groups: list[list[SortedFile]] = []
    high: Any = None
    for known, item in ordered:
        if groups and (high is None or known.low <= high):
            groups[-1].append(item)
            high = None if high is None or known.high is None else max(high, known.high)
        else:
            groups.append([item])
            high = known.high
    return [sorted(group, key=lambda item: item.order) for group in groups]


def _bounds(file: DataFile, definition: TableDefinition) -> _Bounds:
    column = definition.column(definition.order_by[0])
    known = file.columns.get(str(column.id))
    if known is None or known.min is None:
        return _Bounds(None, None)
    kind = arrow_type(column.type)
    # Nulls sort last, so a file with nulls has no upper bound.
    high = None if known.nulls or known.max is None else from_json(known.max, kind)
    return _Bounds(from_json(known.min, kind), high)


def _reduced(files: Sequence[SortedFile], definition: TableDefinition, directory: Path) -> list[SortedFile]:
    """The files merged into fewer intermediate ones, neighbours together so that their order survives."""
    with op("fs.mkdir", directory):
        directory.mkdir(parents=True)
    count = -(-len(files) // MAX_OPEN_FILES)
    share = -(-len(files) // count)
    result = []
    for number in range(count):
        members = files[number * share : (number + 1) * share]
        path = directory / f"{number:04d}.parquet"
        rows = 0
        with op("fs.write", path), pq.ParquetWriter(path, arrow_schema(definition), compression="zstd") as writer:
            for table in _merge_open(members, definition):
                writer.write_table(table)
                rows += table.num_rows
        _remove_intermediate(members)
        result.append(
            SortedFile(
                Location(f"file://{path.absolute()}"),
                DataFile(name=path.name, rows=rows, size_bytes=path.stat().st_size, sha256=""),
                {column.id: column.name for column in definition.columns},
                number,
                str(path),
            )
        )
    return result


def _remove_intermediate(files: Sequence[SortedFile]) -> None:
    for item in files:
        if not item.file.sha256:
            remove_file(Path(item.location.url.removeprefix("file://")))


def _merge_open(files: Sequence[SortedFile], definition: TableDefinition) -> Iterator[pa.Table]:
    stream = _frame(files, definition).execute_stream()
    schema = arrow_schema(definition)
    labels = ", ".join(item.label for item in files[:3]) + (", …" if len(files) > 3 else "")
    names = [field.name for field in schema]

    def tables() -> Iterator[pa.Table]:
        pending: list[pa.RecordBatch] = []
        rows = 0
        try:
            for batch in stream:
                pending.append(batch.to_pyarrow())
                rows += pending[-1].num_rows
                if rows >= _TABLE_ROWS:
                    yield _table(pending, names, schema)
                    pending, rows = [], 0
        except Exception as error:
            # The engine raises plain exceptions for unreadable files; anything else passes through.
            if type(error) is not Exception and not isinstance(error, OSError | pa.ArrowException):
                raise
            raise Damaged(
                f"cannot read a part that is being merged ({labels}): {error}",
                hint="run 'frostline fsck'; the parts are kept as they are",
            ) from error
        if pending:
            yield _table(pending, names, schema)

    yield from prefetched(tables())


def _table(batches: list[pa.RecordBatch], names: list[str], schema: pa.Schema) -> pa.Table:
    """The batches in one chunk a column, with the table's own schema (field ids, nullability)."""
    table = pa.Table.from_batches(batches).select(names).combine_chunks()
    return pa.Table.from_arrays(table.columns, schema=schema)


def _frame(files: Sequence[SortedFile], definition: TableDefinition) -> DataFrame:
    """The merge as a plan: a union of files that are each sorted, under a sort the engine need not carry out."""
    batch_rows = 8192 if len(files) <= 16 else 4096 if len(files) <= 32 else 1024
    settings = {
        "datafusion.execution.parquet.schema_force_view_types": "false",
        "datafusion.optimizer.repartition_file_scans": "false",
        "datafusion.execution.collect_statistics": "false",
    }
    config = SessionConfig(settings).with_target_partitions(1).with_batch_size(batch_rows)
    engine = SessionContext(config)
    hosts: dict[S3Connection, str] = {}
    union: DataFrame | None = None
    for number, item in enumerate(files):
        frame = _file_frame(engine, hosts, item, definition)
        if len(files) > 1:
            frame = frame.with_column(_ORDER, lit(pa.scalar(number, pa.int32())))
        union = frame if union is None else union.union(frame)
    assert union is not None
    if len(files) == 1:
        return union
    return union.sort(*[_ascending(name) for name in (*definition.order_by, _ORDER)])


def _file_frame(
    engine: SessionContext, hosts: dict[S3Connection, str], item: SortedFile, definition: TableDefinition
) -> DataFrame:
    held = [column for column in definition.columns if column.id in item.names]
    schema = pa.schema([pa.field(item.names[column.id], arrow_type(column.type)) for column in held])
    by_name = {column.name: item.names.get(column.id) for column in definition.columns}
    order = [_ascending(by_name[name] or name) for name in definition.order_by]
    frame = engine.read_parquet(
        _url(engine, hosts, item.location), file_extension="", schema=schema, file_sort_order=[order]
    )
    wanted = []
    for column in definition.columns:
        stored = by_name[column.name]
        value = _quoted(stored) if stored is not None else lit(default_scalar(column)).cast(arrow_type(column.type))
        wanted.append(value.alias(column.name))
    return frame.select(*wanted)


def _url(engine: SessionContext, hosts: dict[S3Connection, str], location: Location) -> str:
    """The location as the engine opens it; a bucket gets a host name of its own in the session."""
    rest = location.url.partition("://")[2]
    if location.s3 is None:
        return f"file://{quote(rest)}"
    if location.s3 not in hosts:
        hosts[location.s3] = f"store-{len(hosts)}"
        connection = location.s3
        store = AmazonS3(
            bucket_name=connection.bucket,
            region=connection.region,
            access_key_id=connection.access_key_id,
            secret_access_key=connection.secret_access_key,
            session_token=connection.session_token,
            endpoint=connection.endpoint_url,
            allow_http=(connection.endpoint_url or "").startswith("http://"),
        )
        engine.register_object_store("s3://", store, hosts[location.s3])
    return f"s3://{hosts[location.s3]}/{quote(rest.partition('/')[2])}"


def _ascending(name: str) -> SortExpr:
    return _quoted(name).sort(ascending=True, nulls_first=False)


def _quoted(name: str) -> Expr:
    return col('"' + name.replace('"', '""') + '"')


def prefetched(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same tables, made in a thread of their own a few ahead, so that reading and writing overlap."""
    ready: queue.Queue[pa.Table | BaseException | None] = queue.Queue(_QUEUED_TABLES)
    stopped = threading.Event()

    def put(item: pa.Table | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.5)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for table in tables:
                put(table)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the reader, which raises it
            put(error)

    thread = threading.Thread(target=produce, name="merge-read", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def with_order(item: SortedFile, order: int) -> SortedFile:
    """The file at another place of the order."""
    return replace(item, order=order)
