"""Statements planned over empty tables, which take no time and know no file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import msgspec
from msgspec.structs import replace

from tiering.query.sql.column_types import column_sql_type, engine_names, identifier, literal, text
from tiering.query.sql.errors import sql_error
from tiering.query.sql.kept import KeptByText
from tiering.query.sql.plain_answers import AnswerColumns
from tiering.query.sql.plan import (
    COLUMN_OPTIMIZERS,
    FILTER_OPTIMIZERS,
    UNUSED_OPTIMIZERS,
    Access,
    PlanReads,
    explained_columns,
    plan_reads,
)
from tiering.query.sql.statement import Statement, is_planned_alike, schema_of
from tiering.table.names import check_told_apart, folded
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa

_CONFIG = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "enable_external_file_cache": False,
}
_optimizers: set[str] = set()
"""All that the engine has; empty until it was asked."""


def connect(config: Mapping[str, Any] | None = None) -> duckdb.DuckDBPyConnection:
    """An engine of its own, in memory."""
    connection = duckdb.connect(config={**_CONFIG, **(config or {})})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = true")  # counted, for who asks how far it is
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET parquet_metadata_cache = true")
    _plan_to_run(connection)
    return connection


class EmptyTables:
    """The tables without rows over which one engine plans, kept from statement to statement: they take longer to make
    than most statements to plan."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, tuple[Column, ...], str]] = {}
        """By name, as the engine compares names: the name, its columns, and what the empty table is called."""
        self._made = 0

    def declared(
        self, connection: duckdb.DuckDBPyConnection, definitions: Mapping[str, TableDefinition]
    ) -> dict[str, str]:
        """What the empty table of each is called. In place of a transaction in which nothing was declared another one
        is begun where some are new."""
        lacking = [name for name, definition in definitions.items() if not self._has(name, definition)]
        if lacking:
            connection.execute("ROLLBACK")
            connection.execute("BEGIN")
            for name in lacking:
                self._made += 1
                empty = f"empty_{self._made}"
                _declare_empty(connection, name, definitions[name], empty)
                if (former := self._known.pop(folded(name), None)) is not None:
                    connection.execute(f"DROP TABLE temp.{former[2]}")
                self._known[folded(name)] = name, definitions[name].columns, empty
            connection.execute("COMMIT")
            connection.execute("BEGIN")
        return {name: self._known[folded(name)][2] for name in definitions}

    def _has(self, name: str, definition: TableDefinition) -> bool:
        known = self._known.get(folded(name))
        return known is not None and known[:2] == (name, definition.columns)


class _Plan(msgspec.Struct, frozen=True):
    """Of a statement over tables of these columns, by the full names of the tables."""

    columns: Mapping[str, tuple[Column, ...]]
    reads: PlanReads
    answer: AnswerColumns

    def is_of(self, definitions: Mapping[str, TableDefinition]) -> bool:
        """Whether these tables have the columns over which it was planned."""
        return self.columns == _columns_of(definitions)


_plans: KeptByText[_Plan] = KeptByText()


def plan_once(
    connection: duckdb.DuckDBPyConnection,
    statement: Statement,
    definitions: Mapping[str, TableDefinition],
    kept: EmptyTables | None,
) -> tuple[PlanReads, AnswerColumns]:
    """As `plan_statement`; what is said of the same text over tables of the same columns is kept, unless time, chance
    or a table that is no store's is in it."""
    known = _plans.get(statement.text) if kept is not None else None
    if kept is None or known is None or not known.is_of(definitions) or not is_planned_alike(connection, statement):
        reads, answer = plan_statement(connection, statement.text, definitions, kept)
        if kept is not None:
            _plans.put(statement.text, _Plan(_columns_of(definitions), reads, answer))
        return reads, answer
    kept.declared(connection, definitions)
    return known.reads, known.answer


def _columns_of(definitions: Mapping[str, TableDefinition]) -> dict[str, tuple[Column, ...]]:
    return {name: definition.columns for name, definition in definitions.items()}


def plan_statement(
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    definitions: Mapping[str, TableDefinition],
    kept: EmptyTables | None = None,
) -> tuple[PlanReads, AnswerColumns]:
    """What the statement reads of the tables, by their full names, and the columns of its answer. Afterwards the tables
    are there, without rows. `kept`: those of the engine, where nothing is declared in its transaction. Raises
    `UsageError`, `LimitReached`."""
    check_told_apart(definitions, "tables", "query them one after the other")
    if kept is not None:
        empty = kept.declared(connection, definitions)
    else:
        empty = {name: f"planning_{number}" for number, name in enumerate(definitions)}
        for name, stand_in in empty.items():
            _declare_empty(connection, name, definitions[name], stand_in)
    stand_ins = {stand_in: name for name, stand_in in empty.items()}
    planned = {stand_in: definitions[name] for stand_in, name in stand_ins.items()}
    try:
        columns = AnswerColumns.of(connection.sql(statement))
        found = _reads(connection, statement, planned)
    except duckdb.Error as error:
        raise sql_error(error) from None
    tables = {stand_ins[stand_in]: access for stand_in, access in found.tables.items()}
    return replace(found, tables=tables), columns


def _declare_empty(
    connection: duckdb.DuckDBPyConnection, name: str, definition: TableDefinition, stand_in: str
) -> None:
    kinds = [column_sql_type(column.type) for column in definition.columns]
    declared = ", ".join(f"c{place} {kind}" for place, kind in enumerate(kinds))
    connection.execute(f"CREATE TEMP TABLE {stand_in} ({declared})")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_schema(name)}")
    declare(connection, definition, name, f"FROM temp.{stand_in}")


def _reads(connection: duckdb.DuckDBPyConnection, statement: str, planned: Mapping[str, TableDefinition]) -> PlanReads:
    _plan_by(connection, FILTER_OPTIMIZERS)
    found = plan_reads(_serialized(connection, statement), planned)
    _plan_by(connection, COLUMN_OPTIMIZERS)
    ((_, plan),) = connection.execute(f"EXPLAIN (FORMAT json) {statement}").fetchall()
    columns = dict(explained_columns(plan, planned))
    if not columns.keys() >= found.tables.keys():
        other = plan_reads(_serialized(connection, statement), planned)
        columns = {name: access.columns for name, access in other.tables.items()} | columns
    _plan_to_run(connection)
    whole = {name: frozenset(range(len(table.columns))) for name, table in planned.items()}
    tables = {name: Access(access.predicate, columns.get(name, whole[name])) for name, access in found.tables.items()}
    return replace(found, tables=tables)


def _plan_to_run(connection: duckdb.DuckDBPyConnection) -> None:
    """Plan as statements are run."""
    connection.execute(f"SET disabled_optimizers = '{','.join(UNUSED_OPTIMIZERS)}'")


def _plan_by(connection: duckdb.DuckDBPyConnection, optimizers: Set[str]) -> None:
    """Plan by these optimizers alone."""
    if not _optimizers:
        _optimizers.update(name for (name,) in connection.execute("SELECT name FROM duckdb_optimizers()").fetchall())
    connection.execute(f"SET disabled_optimizers = '{','.join(_optimizers - optimizers)}'")


def _serialized(connection: duckdb.DuckDBPyConnection, statement: str) -> str:
    ((plan,),) = connection.execute(
        "SELECT json_serialize_plan($1, skip_null := true, skip_empty := true, skip_default := true, optimize := true)",
        [statement],
    ).fetchall()
    return str(plan)


def declare(
    connection: duckdb.DuckDBPyConnection,
    definition: TableDefinition,
    name: str,
    rows: str,
    shown: Iterable[int] | None = None,
) -> None:
    """Give the table of this full name these rows, a SELECT of its columns, or of those at these places."""
    known = list(engine_names(definition).values())
    names = ", ".join(map(identifier, known if shown is None else [known[place] for place in shown]))
    connection.execute(f"CREATE OR REPLACE VIEW {table_name(name)} ({names}) AS {rows}")


def declare_rows(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.RecordBatch) -> None:
    """Give a table of this full name the rows, which are in memory."""
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_schema(name)}")
    import pyarrow as pa

    connection.register("declared_rows", pa.Table.from_batches([rows]))
    connection.execute(f"CREATE TABLE {table_name(name)} AS FROM declared_rows")
    connection.unregister("declared_rows")


class HeldColumn(NamedTuple):
    """A column of what a view reads."""

    name: str
    held: Any = None
    """Its type, with ids, where the fields within the column are other ones today."""


def selected(
    definition: TableDefinition,
    source: str,
    sources: Mapping[int, HeldColumn | None] | None,
    compared: Collection[int],
    shown: Iterable[int],
) -> str:
    """Today's columns at the places that are `shown`, from those that the source has, which `sources` has by their
    ids; those that it has not by their default. Without `sources` none of them can be read, nor those that are None
    there; else those that were `compared`."""
    columns = []
    for number in shown:
        column = definition.columns[number]
        kind = column_sql_type(column.type)
        fault = f"column {column.name} was not compared"
        if sources is not None and column.id not in sources:
            value = _default(column)
        elif sources is None or (own := sources[column.id]) is None:
            value = _failing(fault, None)
        else:
            value = identifier(own.name)
            if own.held is not None:
                from tiering.query.sql.nested_values import current_value

                value = current_value(value, own.held, column)
            if kind == "INTERVAL":  # files hold the number
                value = f"to_microseconds({value})"
            if number not in compared:
                value = _failing(fault, value)
        columns.append(f"CAST({value} AS {kind})")
    return f"SELECT {', '.join(columns)} FROM {source}"


def _default(column: Column) -> str:
    if column.default is None:
        return "NULL"
    from tiering.table.columns.types import default_scalar

    return literal(default_scalar(column))


def _failing(fault: str, value: str | None) -> str:
    """What fails where it is computed. Of a column of a file it is no `error(…)`: the engine takes that for what gives
    another value each time, and computes correlated subqueries for every pair of rows then; nor is it a constant, which
    the engine might compute though nobody wants it, or leave out."""
    if value is None:
        return f"error({text(fault)})"
    said = f"concat({text(fault + ', null: ')}, {value} IS NULL)"
    return f"CASE WHEN CAST({said} AS BOOLEAN) THEN {value} END"


def table_name(full_name: str) -> str:
    """A table of ours as a statement names it."""
    return f"{_schema(full_name)}.{identifier(full_name.partition('.')[2])}"


def _schema(full_name: str) -> str:
    return f"memory.{identifier(schema_of(full_name.partition('.')[0]))}"


def check_columns(definition: TableDefinition) -> None:
    """Raise `UsageError` where a name may mean two columns of the table, which an older version made: an answer would
    be of the first one, whichever was meant."""
    hint = f"rename one of them: frostline table alter {definition.full_name} --rename-column '{{}}:NEW'"
    names = (column.name for column in definition.columns)
    check_told_apart(names, f"columns of {definition.full_name}", hint + "; scan in Python distinguishes them")
