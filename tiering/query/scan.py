"""Stream a table's rows as Arrow, from whatever tier they lie on.

Pruned before anything is read: parts and files by `part.json`, then row groups and pages by the engine; columns that
are not asked for are not read. Memory is bounded: batches flow from the files to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.query.selection import FileMissing, Selection, hold_leases, select_files
from tiering.query.sql.column_types import engine_names, identifier
from tiering.query.sql.engine import EngineOutgrown
from tiering.query.sql.plan import Access
from tiering.query.sql.planning import plan_statement, table_name
from tiering.query.sql.session import SqlSession
from tiering.table.pruning import TRUE, Predicate
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa


Piece = TypeVar("Piece")


class Counters:
    """What a scan or query read; final when its rows were."""

    def __init__(self, selections: Iterable[Selection]) -> None:
        chosen = list(selections)
        self.parts_read = sum(selection.parts_read for selection in chosen)
        """Parts left after pruning; the engine may skip some of them by their footers."""
        self.parts_pruned = sum(selection.parts_pruned for selection in chosen)
        self.rows = sum(file.file.rows for selection in chosen for file in selection.files)
        """In the files that are left."""
        self.bytes_read = 0
        """Bytes of column data requested from the files' stores; footers are not counted."""
        self.requests = self.bytes_fetched = 0
        """What was asked of disks that are no local ones, footers too."""


def scan(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002
) -> pa.RecordBatchReader:
    """The rows of the parts that pass the filter, in no particular order, as a stream that is read once.

    `filter` is a list of tuples (`tiering.query.filters`) or a pyarrow expression. Raises `NotFound` for unknown
    columns, `UsageError` for a filter that is none, `Damaged` while reading when a file is missing or broken: never
    fewer rows.
    """
    import pyarrow.compute as pc

    from tiering.query.filters import from_tuples

    wanted = [definition.column(name).name for name in columns] if columns is not None else None
    if isinstance(filter, pc.Expression):
        from tiering.query.dataset import table_dataset

        return (
            table_dataset(context, definition, parts, handed_out=False)
            .scanner(columns=wanted, filter=filter)
            .to_reader()
        )
    predicate, condition = from_tuples(filter, definition) if filter else (TRUE, None)
    return stream_table(context, definition, parts, predicate, condition, wanted)[0]


def stream_table(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    predicate: Predicate,
    condition: str | None,
    columns: Sequence[str] | None,
) -> tuple[pa.RecordBatchReader, Counters]:
    """As `scan`, with the counters. `predicate` must hold wherever the condition, which is SQL, does."""
    import pyarrow as pa

    from tiering.table.columns.types import plain_schema

    names = [column.name for column in definition.columns] if columns is None else list(columns)
    known = engine_names(definition)
    chosen = ", ".join(identifier(known[name]) for name in names) or "1"
    statement = f"SELECT {chosen} FROM {table_name(definition.full_name)}"
    statement += f" WHERE {condition}" if condition is not None else ""
    schema = plain_schema(definition)
    schema = pa.schema([schema.field(name) for name in names])
    while True:
        with suppress(EngineOutgrown):
            session, counters, leases = _open(context, definition, parts, predicate, statement)
            break
    batches = stream(session, session.batches(statement, schema), counters, leases)
    return pa.RecordBatchReader.from_batches(schema, batches), counters


def _open(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    predicate: Predicate,
    statement: str,
) -> tuple[SqlSession, Counters, ExitStack]:
    leases = ExitStack()
    try:
        hold_leases(context, parts, leases)
        selection = select_files(context, definition, parts, predicate)
        session = SqlSession(context, leases, ordered=False)
        reads, _ = plan_statement(
            session.connection, statement, {definition.full_name: definition}, session.empty_tables
        )
        access = reads.tables.get(definition.full_name, Access.whole(definition))
        session.open({definition.full_name: (definition, selection.files, access)}, stops_early=reads.stops_early)
    except BaseException:
        leases.close()
        raise
    return session, Counters([selection]), leases


def stream(session: SqlSession, pieces: Iterator[Piece], counters: Counters, leases: ExitStack) -> Iterator[Piece]:
    """What the session answers; count, and release the leases at the end. What is handed out is not given again: for a
    file that goes now the whole has to be asked for again."""
    with leases:
        try:
            yield from pieces
        except FileMissing as error:
            raise FileMissing(
                error.message, hint=f"repeat it: the part may be elsewhere by now; else {error.hint}"
            ) from error
        counters.bytes_read = session.bytes_read
        counters.requests, counters.bytes_fetched = session.asked.requests, session.asked.bytes
