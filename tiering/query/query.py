"""SQL over all tiers, read-only, on DuckDB (docs/decisions/0001-query-engine.md).

In two steps: the statement is planned over empty tables of the right columns, which shows what each table is filtered
by and which columns are read; parts that cannot match are left out by their `part.json`; then it runs over the files of
the rest. Tables are named `database.table`; those of `tiering.query.system_tables` are there, too, where no table has
the name. Rows that a merge mode will collapse are seen as stored until a merge has done it, tombstones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from oplog.errors import NotFound
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies.set_aside import SetAsidePart, find_set_aside
from tiering.config.units import counted, format_size
from tiering.query.scan import Counters, stream
from tiering.query.selection import begin_again, hold_leases, select_files
from tiering.query.sql.engine import EngineOutgrown
from tiering.query.sql.plain_answers import AnswerColumns
from tiering.query.sql.plan import Access
from tiering.query.sql.planning import check_columns, declare_rows, plan_once
from tiering.query.sql.session import SqlSession
from tiering.query.sql.statement import Statement, read_statement
from tiering.table.pruning import TRUE, Or, Predicate, partition_may_match
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa

PartsFor = Callable[[Predicate], tuple[list[StoredPart], int]]
"""The parts of a table, without some of those that hold no row for which this is true; and how many these are."""
Resolve = Callable[[str], tuple[TableDefinition, PartsFor]]
"""Full table name -> the table and its parts. Raises `NotFound`."""

_NOTHING = Access(Or(()), frozenset())
_OF_THE_STORE = "system."
_FEW_ROWS = 100_000
"""Of so many the answer is soon written, in whichever way."""


@dataclass(frozen=True)
class Answer:
    """The rows of a statement, which runs when they are iterated, once."""

    columns: AnswerColumns
    batches: Callable[[], Iterator[pa.RecordBatch]]
    rows: Callable[[], Iterator[list[list[Any]]]]
    """As JSON values, some at a time. Only of plain columns."""


class QueryResult:
    """The answer as a stream that is read once; `bytes_read` is final afterwards."""

    def __init__(
        self,
        answer: Answer,
        counters: Counters,
        set_aside: Sequence[SetAsidePart] = (),
        session: SqlSession | None = None,
    ) -> None:
        self._answer = answer
        self._session = session
        self.set_aside = set_aside
        """Parts of the tables that a repair set aside: their rows are not in the answer."""
        self._counters = counters

    @cached_property
    def reader(self) -> pa.RecordBatchReader:
        """All of it, for programs that speak Arrow."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._answer.batches())

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the answer; names may repeat, as SQL allows."""
        return self._answer.columns.schema

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(name, type) as `table.json` writes types."""
        return self._answer.columns.described

    @property
    def is_plain(self) -> bool:
        """Whether `plain_rows` has it without Arrow."""
        return self._answer.columns.is_plain

    @property
    def may_be_long(self) -> bool:
        """Whether so many rows were read that Arrow, which writes CSV faster, may be worth its import."""
        return self._counters.rows > _FEW_ROWS

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

    @property
    def requests(self) -> int:
        """What the disks that are no local ones were asked for, so far known, footers too."""
        return self._counters.requests

    @property
    def bytes_fetched(self) -> int:
        """Bytes that these requests were for."""
        return self._counters.bytes_fetched

    def done_so_far(self) -> tuple[float | None, int]:
        """How much of the statement is computed, 0 to 1, or None where that is not known; and how many bytes of column
        data were read for it. From any thread."""
        return (self._session.share_done, self._session.bytes_read) if self._session is not None else (None, 0)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises `Damaged`, `AccessDenied`, … in the middle rather than leave rows out."""
        return iter(self.reader)

    def plain_rows(self) -> Iterator[list[list[Any]]]:
        """The rows as JSON values, some at a time. Raises as `batches` does."""
        if self.is_plain:
            return self._answer.rows()
        from tiering.query.plain_values import plain_rows

        return map(plain_rows, self.batches())

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

    def begin() -> QueryResult:
        while True:
            with suppress(EngineOutgrown):
                return _run(context, sql, resolve, allow_files, held or ExitStack())

    return begin_again(context, begin)


def _run(context: Context, sql: str, resolve: Resolve, allow_files: bool, held: ExitStack) -> QueryResult:
    leases = ExitStack()
    try:
        session = SqlSession(context, leases, allow_files=allow_files)
        statement = read_statement(session.connection, sql, allow_files=allow_files)
        resolved = _resolve(context, session, statement, resolve)
        definitions = {name: definition for name, (definition, _) in resolved.items()}
        for definition in definitions.values():
            check_columns(definition)
        empty = session.empty_tables if len(resolved) == len(statement.tables) else None  # else system tables are there
        reads, columns = plan_once(session.connection, statement, definitions, empty)
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
            summary=reads.summary,
            rows_enough=reads.rows_enough if len(resolved) == 1 else None,
            runs=not statement.is_explained,
            local_files=statement.files,
            may_mean=statement.may_mean,
        )
        counters = Counters(selections.values())
        if statement.is_explained:
            from tiering.query.pruning_reasons import pruning_reasons

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
    answer = Answer(
        columns,
        lambda: stream(session, session.batches(statement.text, columns.schema), counters, ending),
        lambda: stream(session, session.rows(statement.text, columns), counters, ending),
    )
    return QueryResult(answer, counters, gaps, session)


def _resolve(
    context: Context, session: SqlSession, statement: Statement, resolve: Resolve
) -> dict[str, tuple[TableDefinition, PartsFor]]:
    """The tables of the statement with their parts; those of the system are there afterwards."""
    resolved = {}
    for name in statement.tables:
        try:
            resolved[name] = resolve(name)
        except NotFound:
            if not name.startswith(_OF_THE_STORE):
                raise
            from tiering.query.system_tables import NAMES, system_table

            if name not in NAMES:
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
) -> Answer:
    """What would be read, why no more, and how: a line a row."""
    with leases:
        plans = session.explained(statement.text)
    lines = [
        f"{counted(counters.parts_read, 'part')} to read, {counters.parts_pruned} left out by what part.json says of"
        " them",
        *reasons,
    ]
    requests, asked_bytes = session.will_ask
    if requests:
        lines.insert(1, f"at most {counted(requests, 'request')} for {format_size(asked_bytes)} in buckets")
    lines += [line.rstrip() for _, plan in plans for line in plan.splitlines()]
    columns = AnswerColumns(["plan"], ["VARCHAR"])

    def batches() -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        yield pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=columns.schema)

    return Answer(columns, batches, lambda: iter([[[line] for line in lines]]))
