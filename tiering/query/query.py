"""SQL over all tiers, read-only, on DuckDB (docs/decisions/0001-query-engine.md).

In two steps: the statement is planned over empty tables of the right columns, which shows what each table is filtered
by and which columns are read; parts that cannot match are left out by their `part.json`; then it runs over the files of
the rest. Tables are named `database.table`; those of `tiering.query.system_tables` are there, too, where no table has
the name. Rows that a merge mode will collapse are seen as they are stored until a merge has done it, tombstones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa

from oplog.errors import NotFound, UsageError
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.set_aside import SetAsidePart, find_set_aside
from tiering.query.pruning_reasons import pruning_reasons
from tiering.query.scan import Counters, stream
from tiering.query.selection import FileMissing, hold_leases, select_files
from tiering.query.sql.engine import EngineOutgrown
from tiering.query.sql.plan import Access
from tiering.query.sql.planning import declare_rows, plan_statement
from tiering.query.sql.session import SqlSession
from tiering.query.sql.statement import Statement, read_statement
from tiering.query.system_tables import NAMES as SYSTEM_TABLES
from tiering.query.system_tables import system_table
from tiering.table.pruning import TRUE, Or, Predicate, partition_may_match
from tiering.table.schema import TableDefinition
from tiering.table.type_texts import type_text

PartsFor = Callable[[Predicate], tuple[list[StoredPart], int]]
"""The parts of a table, without some of those that hold no row for which this is true; and how many these are."""
Resolve = Callable[[str], tuple[TableDefinition, PartsFor]]
"""Full table name -> the table and its parts. Raises `NotFound`."""

_NOTHING = Access(Or(()), frozenset())
_EXPLAINED = pa.schema([("plan", pa.string())])


class QueryResult:
    """The answer as a stream that is read once; `bytes_read` is final afterwards."""

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        counters: Counters,
        set_aside: Sequence[SetAsidePart] = (),
        session: SqlSession | None = None,
    ) -> None:
        self.reader = reader
        self._session = session
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

    def done_so_far(self) -> tuple[float | None, int]:
        """How much of the statement is computed, 0 to 1, or None where that is not known; and how many bytes of column
        data were read for it. From any thread."""
        return (self._session.share_done, self._session.bytes_read) if self._session is not None else (None, 0)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises `Damaged`, `AccessDenied`, … in the middle rather than leave rows out."""
        return iter(self.reader)

    def read_all(self) -> pa.Table:
        """The whole answer in memory."""
        return self.reader.read_all()


def run_sql(
    context: Context, sql: str, resolve: Resolve, *, allow_files: bool = False, held: ExitStack | None = None
) -> QueryResult:
    """Run one read-only statement; with `allow_files` it may read local files, which it names. What is `held` for it is
    closed when the answer was read, or fails, or nobody holds it any more; where there is nothing to read, and where
    this raises, it is left to the caller.

    Raises `UsageError` with the engine's words for bad SQL and for anything that would write, `NotFound` for unknown
    tables, `Damaged` when a file of the answer is gone or broken.
    """
    was_missing = False
    while True:
        try:
            return _run(context, sql, resolve, allow_files, held or ExitStack())
        except EngineOutgrown:
            continue
        except FileMissing:
            # A part was moved or merged between looking and reading; or it is really gone, then this says so again.
            if was_missing:
                raise
            was_missing = True
            context.catalog.refresh()


def _run(context: Context, sql: str, resolve: Resolve, allow_files: bool, held: ExitStack) -> QueryResult:
    leases = ExitStack()
    try:
        session = SqlSession(context, leases, allow_files=allow_files)
        statement = read_statement(session.connection, sql, allow_files=allow_files)
        resolved = _resolve(context, session, statement, resolve)
        definitions = {name: definition for name, (definition, _) in resolved.items()}
        reads, schema = plan_statement(session.connection, statement.text, definitions)
        accesses = {name: reads.tables.get(name, _NOTHING) for name in resolved}
        found = {
            name: parts_for(TRUE if statement.is_explained else accesses[name].predicate)
            for name, (_, parts_for) in resolved.items()
        }
        hold_leases(context, [stored for parts, _ in found.values() for stored in parts], leases)
        selections = {
            name: select_files(context, definitions[name], parts, accesses[name].predicate, left_out=left_out)
            for name, (parts, left_out) in found.items()
        }
        session.open(
            {name: (definitions[name], selections[name].files, accesses[name]) for name in resolved},
            stops_early=reads.stops_early,
            local_files=statement.files,
        )
        counters = Counters(selections.values())
        if statement.is_explained:
            reasons = [
                reason
                for name, (parts, _) in found.items()
                for reason in pruning_reasons(definitions[name], parts, accesses[name].predicate)
            ]
            return QueryResult(_explained(session, statement, counters, reasons, leases), counters)
        gaps = [
            gap
            for table, parts_for in resolved.values()
            for gap in find_set_aside(context.disks, table, partial(_all_of, parts_for))
        ]
    except BaseException:
        leases.close()
        raise
    ending = ExitStack()
    ending.enter_context(held.pop_all())  # first, so that it is closed last
    ending.enter_context(leases)
    rows = pa.RecordBatchReader.from_batches(schema, stream(session, statement.text, schema, counters, ending))
    return QueryResult(rows, counters, gaps, session)


def _resolve(
    context: Context, session: SqlSession, statement: Statement, resolve: Resolve
) -> dict[str, tuple[TableDefinition, PartsFor]]:
    """The tables of the statement with their parts; those of the system are there afterwards."""
    resolved = {}
    for name in statement.tables:
        try:
            resolved[name] = resolve(name)
        except NotFound:
            if name not in SYSTEM_TABLES:
                raise
            declare_rows(session.connection, name, system_table(context, name))
    return resolved


def parts_for(context: Context, definition: TableDefinition, predicate: Predicate) -> tuple[list[StoredPart], int]:
    """The parts that may hold a row for which the predicate is true, by the partition that they are in; and how many
    others there are."""

    def may_match(values: tuple[Any, ...]) -> bool:
        return partition_may_match(predicate, values, definition)

    return context.catalog.parts_where(definition, may_match)


def _all_of(parts_for: PartsFor) -> list[StoredPart]:
    parts, _ = parts_for(TRUE)
    return parts


def _explained(
    session: SqlSession, statement: Statement, counters: Counters, reasons: Sequence[str], leases: ExitStack
) -> pa.RecordBatchReader:
    """What would be read, why no more, and how: a line a row."""
    with leases:
        plans = session.explained(statement.text)
    lines = [
        f"{counters.parts_read} parts to read, {counters.parts_pruned} left out by what part.json says of them",
        *reasons,
    ]
    lines += [line.rstrip() for _, plan in plans for line in plan.splitlines()]
    return pa.table({"plan": lines}, _EXPLAINED).to_reader()


def _type_name(kind: pa.DataType) -> str:
    try:
        return type_text(kind)
    except UsageError:
        return str(kind)
