"""Parts as tables of the query engine (DataFusion), which gets no byte that was not compared with what was written.

Local files it opens by itself, after the columns that the plan reads were compared; all others, and local ones of which
there is too much to look at before the first row, it reads through `tiering.query.served_files`. All files of one place
become one external table with many locations, so that the engine divides them among its workers and holds few of them
open, however many there are. Files of an older schema version are mapped to the table's columns by field id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.dataset as pads
from datafusion import DataFrame, Expr, RuntimeEnvBuilder, SessionConfig, SessionContext, col, lit
from datafusion.catalog import Table

from tiering.catalog.context import Context
from tiering.query.engine_files import EngineFiles
from tiering.query.filesystem import read_schema
from tiering.query.selection import SelectedFile
from tiering.table.schema import Column, TableDefinition
from tiering.table.types import arrow_schema, arrow_type, default_scalar, field_ids

_SETTINGS = {
    # Column names are as the table says; unquoted names are not folded to lower case.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
    "datafusion.catalog.information_schema": "false",
    "datafusion.catalog.default_catalog": "frostline",
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
        self._files = EngineFiles(context, self.engine, closing)
        self._text_views = text_views

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

    def table(self, rows: pa.RecordBatch) -> Table:
        """Rows that are in memory, as a table."""
        return Table(self.engine.read_batch(rows).into_view())

    def _read_without_statistics(self) -> None:
        """Statistics in files leave NaN out, which is greater than every number: by them the engine would pass over row
        groups with rows of the answer. Parts and files are pruned before, by ranges that know of NaN."""
        for name in _PRUNING_SETTINGS:
            self._set(name, "false")

    def _set(self, name: str, value: object) -> None:
        for session in (self.engine, self._declarations):
            session.sql(f"SET datafusion.execution.{name} = {value}").collect()

    def _empty(self, definition: TableDefinition) -> DataFrame:
        return self.engine.read_batch(pa.RecordBatch.from_pylist([], schema=self._schema(definition.columns)))

    def planned(self, declare: Callable[[], DataFrame]) -> DataFrame:
        """What `declare` makes of frames of this session, ready to run: all that the engine will read is there and is
        what was written, or will be compared as it is read. Raises `FileMissing` and `Damaged`."""
        frame = declare()
        if not self._files.compare_local(frame):
            frame = declare()
        self._files.check_complete(frame)
        return frame

    def error_of(self, text: str) -> Exception | None:
        """Why the engine could not read a file, when that is what its message is about."""
        return self._files.error_of(text)

    def _frames(self, definition: TableDefinition, files: Sequence[SelectedFile]) -> Iterator[DataFrame]:
        """One frame for each place and schema version."""
        groups: dict[tuple[str, int], list[SelectedFile]] = {}
        for file in files:
            groups.setdefault((self._files.place(file), file.stored.part.schema_version), []).append(file)
        for (_, version), members in groups.items():
            if version == definition.schema_version:
                names = {column.id: column.name for column in definition.columns}
            else:
                names = field_ids(read_schema(self._context, members[0].stored, members[0].file))
            urls = [self._files.url(file, list(names.values())) for file in members]
            self._set("parquet.metadata_size_hint", self._files.footer_bytes)
            if version == definition.schema_version:
                yield self._many_files(urls, self._schema(definition.columns))
            else:
                yield self._mapped(urls, definition, names)

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


def planning_table(definition: TableDefinition) -> Table:
    """The table without rows: plans name it, and show the filters on it."""
    return Table(pads.dataset(arrow_schema(definition).remove_metadata().empty_table()))


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
