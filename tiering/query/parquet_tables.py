"""Parts as tables of the query engine (DataFusion), which opens local files and S3 objects by itself.

All files of one store become one external table with many locations, so that the engine divides them among its workers
and holds few of them open, however many there are. Files of an older schema version are mapped to the table's columns
by field id. Files that the engine cannot open by itself are first fetched through their disk.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as pads
from datafusion import DataFrame, ExecutionPlan, Expr, RuntimeEnvBuilder, SessionConfig, SessionContext, col, lit
from datafusion.catalog import Table
from datafusion.object_store import AmazonS3

from disks.base import Location
from disks.stores.base import ByteRange, S3Connection
from oplog.errors import Damaged, NotFound
from tiering.catalog.context import Context
from tiering.query.filesystem import read_schema
from tiering.query.selection import FileMissing, SelectedFile
from tiering.table.schema import Column, TableDefinition
from tiering.table.types import arrow_schema, arrow_type, default_scalar, field_ids

FOOTER_HINT_BYTES = 64 * 1024
"""What the engine asks for first of a file; enough for the footer of a part of a few hundred row groups."""
_CHECK_THREADS = 16
_COPY_BYTES = 8 * 1024 * 1024
_STYLE_VARIABLE = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
_CERTIFICATES_VARIABLE = "SSL_CERT_FILE"
_environment_lock = threading.Lock()
_SETTINGS = {
    # Column names are as the table says; unquoted names are not folded to lower case.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
    "datafusion.catalog.information_schema": "false",
    "datafusion.catalog.default_catalog": "frostline",
    "datafusion.execution.parquet.metadata_size_hint": str(FOOTER_HINT_BYTES),
}
_PRUNING_SETTINGS = ("parquet.pruning", "parquet.enable_page_index", "collect_statistics")
_SQL_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "TINYINT UNSIGNED",
    pa.uint16(): "SMALLINT UNSIGNED",
    pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.string_view(): "VARCHAR",
    pa.binary(): "BYTEA",
    pa.date32(): "DATE",
}
_FRACTION_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _may_hold_nan(definition: TableDefinition, selected: SelectedFile) -> bool:
    """Whether a column of fractions has no upper bound though it has values: NaN is in it, or nobody knows."""
    ranges = selected.file.columns or selected.stored.part.columns
    known = [ranges.get(str(column.id)) for column in definition.columns if column.type.startswith("float")]
    return any(one is not None and one.max is None and one.nulls < selected.file.rows for one in known)


class EngineSession:
    """One session of the engine, for one query. Tables are added as data frames, for SQL or for `scan`."""

    def __init__(self, context: Context, closing: ExitStack, *, text_views: bool = False) -> None:
        """`closing` ends the session: it removes what the session keeps on the disk. With `text_views`, texts are views
        inside the engine: a fifth less work in a query, but more where every row leaves the engine."""
        workers = max(os.cpu_count() or 1, context.workers)
        memory_bytes = max(1 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
        runtime = RuntimeEnvBuilder().with_disk_manager_os().with_fair_spill_pool(memory_bytes)
        self.engine = SessionContext(SessionConfig(_SETTINGS).with_target_partitions(workers), runtime)
        declaring = {
            "datafusion.sql_parser.map_string_types_to_utf8view": str(text_views).lower(),
            "datafusion.execution.time_zone": "UTC",
            # Or else declaring a table reads the footers of all its files, which planning reads in any case.
            "datafusion.execution.collect_statistics": "false",
        }
        self._declarations = SessionContext(SessionConfig(_SETTINGS | declaring).with_target_partitions(workers))
        """Where tables over files are declared, by statements that no query may make."""
        self._context = context
        self._hosts: dict[S3Connection, str] = {}
        self._objects: dict[str, SelectedFile] = {}
        self._closing = closing
        self._text_views = text_views
        self._copies: str | None = None

    def frame(self, definition: TableDefinition, files: Sequence[SelectedFile]) -> DataFrame:
        """The rows of the files with exactly the table's columns, in its order and types. Opens no data."""
        if not files:
            return self._empty(definition)
        if any(_may_hold_nan(definition, file) for file in files):
            self._read_without_statistics()
        frames = list(self._frames(definition, files))
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        return whole

    def _read_without_statistics(self) -> None:
        """Statistics in files leave NaN out, which is greater than every number: by them the engine would pass over row
        groups with rows of the answer. Parts and files are pruned before, by ranges that know of NaN."""
        for session in (self.engine, self._declarations):
            for name in _PRUNING_SETTINGS:
                session.sql(f"SET datafusion.execution.{name} = false").collect()

    def _empty(self, definition: TableDefinition) -> DataFrame:
        return self.engine.read_batch(pa.RecordBatch.from_pylist([], schema=self._schema(definition.columns)))

    def file_named_in(self, text: str) -> SelectedFile | None:
        """The file whose object an engine's message names."""
        found = [key for key in self._objects if key in text]
        return self._objects[max(found, key=len)] if found else None

    def check_complete(self, frame: DataFrame) -> None:
        """Raise `FileMissing` when a file is gone. To be called between planning and running.

        The engine takes a path without an object for an empty directory and leaves it out. So files that its plan does
        not name, be it for this or because their footers answer the query, are looked at.
        """
        named = _paths_in(frame.execution_plan())
        broken = self.first_broken(file for key, file in self._objects.items() if key not in named)
        if broken is not None:
            raise broken

    def first_broken(self, files: Iterable[SelectedFile] | None = None) -> Damaged | None:
        """What is wrong with the first of the files (default: all of the session) that is gone or cut off, found by
        reading its last bytes; None when nothing is."""
        wanted = list(self._objects.values() if files is None else files)
        if not wanted:
            return None
        with ThreadPoolExecutor(_CHECK_THREADS, thread_name_prefix="check") as pool:
            return next((error for error in pool.map(self._broken, wanted) if error is not None), None)

    def _broken(self, file: SelectedFile) -> Damaged | None:
        size = file.file.size_bytes
        try:
            if self._context.disk(file.stored.disk).read(file.path, ByteRange(size - 4, size)) == b"PAR1":
                return None
        except (NotFound, Damaged) as error:
            return FileMissing(f"{file} cannot be read: {error.message}", hint=file.hint)
        return Damaged(f"{file} is not the Parquet file it was", hint=file.hint)

    def _frames(self, definition: TableDefinition, files: Sequence[SelectedFile]) -> Iterator[DataFrame]:
        """One frame for each store and schema version."""
        groups: dict[tuple[str, int], list[SelectedFile]] = {}
        for selected in files:
            file = selected if selected.location is not None else self._fetched(selected)
            host = self._register(file)
            groups.setdefault((host, file.stored.part.schema_version), []).append(file)
        for (host, version), members in groups.items():
            urls = [_engine_url(file, host) for file in members]
            if version == definition.schema_version:
                yield self._many_files(urls, self._schema(definition.columns))
            else:
                stored = read_schema(self._context, members[0].stored, members[0].file)
                yield self._mapped(urls, definition, field_ids(stored))

    def _mapped(self, urls: list[str], definition: TableDefinition, names: dict[int, str]) -> DataFrame:
        """Files of an older schema: their columns by field id, under today's names; newer columns by their default."""
        held = [column for column in definition.columns if column.id in names]
        schema = self._schema(held, names)
        frame = self._many_files(urls, schema)
        return frame.select(*[self._expression(column, names.get(column.id)) for column in definition.columns])

    def _schema(self, columns: Iterable[Column], names: Mapping[int, str] | None = None) -> pa.Schema:
        """Columns as the engine reads them: without field ids, all nullable (an older part may lack one)."""
        return pa.schema(
            [pa.field(names[column.id] if names else column.name, self._type(column)) for column in columns]
        )

    def _type(self, column: Column) -> pa.DataType:
        kind = arrow_type(column.type)
        return pa.string_view() if self._text_views and pa.types.is_string(kind) else kind

    def _expression(self, column: Column, stored_name: str | None) -> Expr:
        value = lit(default_scalar(column)) if stored_name is None else _quoted(stored_name)
        return value.cast(self._type(column)).alias(column.name)

    def _many_files(self, urls: list[str], schema: pa.Schema) -> DataFrame:
        """One table over the files, with exactly this schema. Opens none of them."""
        columns = ", ".join(f"{_identifier(field.name)} {_sql_type(field.type)}" for field in schema)
        locations = ", ".join(f"'{url}'" for url in urls)
        self._declarations.sql(
            f"CREATE OR REPLACE EXTERNAL TABLE files ({columns}) STORED AS PARQUET LOCATION ({locations})"
        )
        frame = self.engine.read_table(self._declarations.table_provider("files"))
        if frame.schema().types == schema.types:
            return frame
        # SQL names no zone but the session's, and all texts of a table are views or none.
        return frame.select(*[_quoted(field.name).cast(field.type).alias(field.name) for field in schema])

    def _fetched(self, file: SelectedFile) -> SelectedFile:
        """The file as a local copy that the engine can open, kept as long as the session."""
        if self._copies is None:
            self._copies = self._closing.enter_context(TemporaryDirectory(prefix="frostline-query-"))
        copy = Path(self._copies) / f"{len(self._objects)}.parquet"
        disk, size = self._context.disk(file.stored.disk), file.file.size_bytes
        with copy.open("wb") as target:
            for start in range(0, size, _COPY_BYTES):
                target.write(disk.read(file.path, ByteRange(start, min(start + _COPY_BYTES, size))))
        return SelectedFile(file.stored, file.file, Location(f"file://{copy}"))

    def _register(self, file: SelectedFile) -> str:
        """Make the store of the file known to the engine under a host name of its own, so that two stores with buckets
        of one name do not meet. Empty for local files."""
        assert file.location is not None
        connection = file.location.s3
        self._objects[_key(file.location).lstrip("/")] = file
        if connection is None:
            return ""
        if connection not in self._hosts:
            host = f"store-{len(self._hosts)}"
            self.engine.register_object_store("s3://", _engine_store(connection), host)
            self._hosts[connection] = host
        return self._hosts[connection]


def _engine_store(connection: S3Connection) -> AmazonS3:
    endpoint = connection.endpoint_url
    if endpoint is not None and connection.virtual_host_style:
        scheme, _, rest = endpoint.partition("://")
        endpoint = f"{scheme}://{connection.bucket}.{rest}"
    # The engine's client takes the addressing style and certificates from the environment alone, when it is made.
    wanted = {_STYLE_VARIABLE: str(connection.virtual_host_style).lower()}
    if connection.ca_bundle is not None:
        wanted[_CERTIFICATES_VARIABLE] = connection.ca_bundle
    with _environment_lock:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            return AmazonS3(
                bucket_name=connection.bucket,
                region=connection.region,
                access_key_id=connection.access_key_id,
                secret_access_key=connection.secret_access_key,
                session_token=connection.session_token,
                endpoint=endpoint,
                allow_http=(endpoint or "").startswith("http://"),
            )
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _paths_in(plan: ExecutionPlan) -> set[str]:
    """The paths of the files that a physical plan opens, and more that are none. Empty when it cannot be told."""
    try:
        encoded = plan.to_bytes()
    except Exception:  # noqa: BLE001 - a plan without an encoded form names nothing
        return set()
    # A path follows its length, which may look like one more character.
    runs = [run.decode() for run in re.findall(rb"[\x21-\x7e]{3,}", encoded)]
    return {*runs, *(run[1:] for run in runs)}


def planning_table(definition: TableDefinition) -> Table:
    """The table without rows: plans name it, and show the filters on it."""
    return Table(pads.dataset(arrow_schema(definition).remove_metadata().empty_table()))


def _engine_url(file: SelectedFile, host: str) -> str:
    assert file.location is not None
    key = _key(file.location)
    return f"s3://{host}/{quote(key)}" if host else f"file://{quote(key)}"


def _key(location: Location) -> str:
    """The object's key in its bucket, or the path of a local file. URLs of locations are not percent-encoded."""
    rest = location.url.partition("://")[2]
    return rest if location.s3 is None else rest.partition("/")[2]


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(name: str) -> Expr:
    # col() folds names without quotes to lower case
    return col(_identifier(name))


def _sql_type(kind: pa.DataType) -> str:
    """The engine's SQL for a column type of ours."""
    if pa.types.is_list(kind):
        return f"{_sql_type(kind.value_type)}[]"
    if pa.types.is_timestamp(kind):
        return f"TIMESTAMP({_FRACTION_DIGITS[kind.unit]})" + (" WITH TIME ZONE" if kind.tz else "")
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _SQL_TYPES[kind]
