"""SQL over all tiers, read-only, on DataFusion (docs/decisions/0001-query-engine.md).

In two steps: the statement is planned over empty tables of the right columns, which shows what each table is filtered
by; parts that cannot match are left out by their `part.json`; then it runs over the files of the rest. Tables are named
`database.table`; those of `tiering.query.system_tables` are there, too, where no table has the name. Rows that a merge
mode will collapse are seen as they are stored until a merge has done it, tombstones too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from datafusion import DataFrame, SQLOptions
from datafusion.catalog import CatalogProvider, SchemaProvider, Table

from oplog.errors import NotFound, UsageError
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.set_aside import SetAside, find_set_aside
from tiering.query.engine_errors import READ_ONLY_HINT, sql_error, translated
from tiering.query.filters import table_filters
from tiering.query.parquet_tables import EngineSession, planning_table
from tiering.query.scan import Counters, stream
from tiering.query.selection import FileMissing, hold_leases, select_files
from tiering.query.system_tables import NAMES as SYSTEM_TABLES
from tiering.query.system_tables import system_table
from tiering.table.schema import TableDefinition
from tiering.table.types import type_text

Resolve = Callable[[str], tuple[TableDefinition, list[StoredPart]]]
"""Full table name -> the table and its parts. Raises `NotFound`."""

_CATALOG = "frostline"
_MAX_TABLES = 100
_WRITES = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*(create|drop|alter|insert|update|delete|merge|copy|truncate|set|reset|begin|commit|"
    r"rollback|prepare|execute|deallocate|grant|revoke|attach|detach|use)\b",
    re.IGNORECASE | re.DOTALL,
)
"""For a plain answer. What enforces it are the engine's options."""


class QueryResult:
    """The answer as a stream that is read once; `bytes_read` is final afterwards."""

    def __init__(self, reader: pa.RecordBatchReader, counters: Counters, set_aside: Sequence[SetAside] = ()) -> None:
        self.reader = reader
        self.set_aside = set_aside
        """Parts of the tables that a repair set aside: their rows are not in the answer."""
        self._counters = counters

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the answer; names may repeat, as SQL allows."""
        return self.reader.schema

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(name, type) as `table.json` writes types."""
        return [(field.name, _type_name(field.type)) for field in self.schema]

    @property
    def parts_read(self) -> int:
        """Parts left after pruning."""
        return self._counters.parts_read

    @property
    def parts_pruned(self) -> int:
        """Parts that cannot hold a row of the answer."""
        return self._counters.parts_pruned

    @property
    def bytes_read(self) -> int:
        """Bytes of column data requested so far known: 0 until the answer was read."""
        return self._counters.bytes_read

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises `Damaged`, `AccessDenied`, … in the middle rather than leave rows out."""
        return iter(self.reader)

    def read_all(self) -> pa.Table:
        """The whole answer in memory."""
        return self.reader.read_all()


def run_sql(context: Context, sql: str, resolve: Resolve) -> QueryResult:
    """Run one read-only statement.

    Raises `UsageError` with the engine's words for bad SQL and for anything that would write, `NotFound` for unknown
    tables, `Damaged` when a file of the answer is gone or broken.
    """
    try:
        return _run(context, sql, resolve)
    except FileMissing:
        # A part was moved or merged between looking and reading; or it is really gone, then this says so again.
        context.catalog.refresh()
        return _run(context, sql, resolve)


def _run(context: Context, sql: str, resolve: Resolve) -> QueryResult:
    if re.match(r"\s*show\b", sql, re.IGNORECASE):
        raise UsageError("SHOW is not possible here", hint="use 'frostline table list' and 'frostline table show'")
    if word := _WRITES.match(sql):
        raise UsageError(f"query only reads; {word[1].upper()} is not possible here", hint=READ_ONLY_HINT)
    leases = ExitStack()
    try:
        session = EngineSession(context, leases, text_views=True)
        tables = _Databases()
        session.engine.register_catalog_provider(_CATALOG, tables)
        plan, resolved = _plan(context, session, tables, sql, resolve)
        hold_leases(context, [stored for _, parts in resolved.values() for stored in parts], leases)
        filters = table_filters(plan.optimized_logical_plan(), {name: entry[0] for name, entry in resolved.items()})
        selections = {
            name: select_files(context, definition, parts, filters[name])
            for name, (definition, parts) in resolved.items()
        }

        def declared() -> DataFrame:
            for name, selection in selections.items():
                tables.known[name] = Table(session.frame(resolved[name][0], selection.files).into_view())
            return _sql(session, sql)

        counters = Counters(selections.values())
        with translated(session):
            frame = session.planned(declared)
    except BaseException:
        leases.close()
        raise
    schema = _plain(frame.schema())
    gaps = [gap for entry in resolved.values() for gap in find_set_aside(context.disks, *entry)]
    rows = pa.RecordBatchReader.from_batches(schema, stream(session, frame, schema, counters, leases))
    return QueryResult(rows, counters, gaps)


def _plan(
    context: Context, session: EngineSession, tables: _Databases, sql: str, resolve: Resolve
) -> tuple[DataFrame, dict[str, tuple[TableDefinition, list[StoredPart]]]]:
    """The statement over empty tables, and those of the system. Tables are resolved as planning asks for them, so it
    fails at first."""
    resolved: dict[str, tuple[TableDefinition, list[StoredPart]]] = {}
    for _ in range(_MAX_TABLES):
        tables.asked.clear()
        try:
            frame = _sql(session, sql)
            frame.optimized_logical_plan()
            return frame, resolved
        except Exception as error:
            unknown = [name for name in tables.asked if name not in tables.known]
            if not unknown:
                raise sql_error(str(error)) from error
            for name in unknown:
                try:
                    resolved[name] = resolve(name) if "." in name else _no_database(name, str(error))
                    tables.known[name] = planning_table(resolved[name][0])
                except NotFound:
                    if name not in SYSTEM_TABLES:
                        raise
                    tables.known[name] = session.table(system_table(context, name))
    raise UsageError(f"the statement names more than {_MAX_TABLES} tables")


def _no_database(name: str, message: str) -> Any:
    if "not found" not in message:
        raise sql_error(message)
    raise NotFound(f"No such table: {name}", hint="tables are named database.table; 'frostline table list' shows them")


def _sql(session: EngineSession, sql: str) -> DataFrame:
    options = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    return session.engine.sql_with_options(sql, options)


class _Databases(CatalogProvider):
    """The databases of the engine. Notes what planning asks for; nothing may be opened while it asks."""

    def __init__(self) -> None:
        self.known: dict[str, Table] = {}
        self.asked: list[str] = []

    def schema_names(self) -> set[str]:
        return {name.partition(".")[0] for name in self.known}

    def schema(self, name: str) -> Any:
        return _Database(self, name)


class _Database(SchemaProvider):
    def __init__(self, tables: _Databases, name: str) -> None:
        self._tables = tables
        self._prefix = "" if name == "public" else f"{name}."

    def table_names(self) -> set[str]:
        return {name.removeprefix(self._prefix) for name in self._tables.known if name.startswith(self._prefix)}

    def table(self, name: str) -> Table | None:
        self._tables.asked.append(self._prefix + name)
        return self._tables.known.get(self._prefix + name)

    def table_exist(self, name: str) -> bool:
        return self._prefix + name in self._tables.known


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without the engine's own variants of text and binary, and without metadata."""
    return pa.schema([pa.field(field.name, _plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def _type_name(kind: pa.DataType) -> str:
    try:
        return type_text(kind)
    except UsageError:
        return str(kind)
