"""Stream a table's rows as Arrow, from whatever tier they lie on.

Pruned before anything is read: parts and files by `part.json`, then row groups and pages by the engine; columns that
are not asked for are not read. Memory is bounded: batches flow from the files to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import DataFrame, Expr, col

from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.query.engine_errors import translated
from tiering.query.filters import from_tuples
from tiering.query.parquet_tables import EngineSession
from tiering.query.selection import Selection, hold_leases, select_files
from tiering.table.pruning import TRUE, Predicate
from tiering.table.schema import TableDefinition
from tiering.table.types import arrow_schema


class Counters:
    """What a scan or query read; final when its rows were."""

    def __init__(self, selections: Iterable[Selection]) -> None:
        chosen = list(selections)
        self.parts_read = sum(selection.parts_read for selection in chosen)
        """Parts left after pruning; the engine may skip some of them by their footers."""
        self.parts_pruned = sum(selection.parts_pruned for selection in chosen)
        self.bytes_read = 0
        """Bytes of column data requested from the files' stores; footers are not counted."""


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
    wanted = [definition.column(name).name for name in columns] if columns is not None else None
    if isinstance(filter, pc.Expression):
        from tiering.query.dataset import table_dataset

        return (
            table_dataset(context, definition, parts, handed_out=False)
            .scanner(columns=wanted, filter=filter)
            .to_reader()
        )
    predicate, expression = from_tuples(filter, definition) if filter else (TRUE, None)
    return stream_table(context, definition, parts, predicate, expression, wanted)[0]


def stream_table(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    predicate: Predicate,
    expression: Expr | None,
    columns: Sequence[str] | None,
) -> tuple[pa.RecordBatchReader, Counters]:
    """As `scan`, with the counters. `predicate` must hold wherever `expression` does."""
    leases = ExitStack()
    try:
        hold_leases(context, parts, leases)
        selection = select_files(context, definition, parts, predicate)
        session = EngineSession(context, leases)
        names = [column.name for column in definition.columns] if columns is None else list(columns)

        def declared() -> DataFrame:
            frame = session.frame(definition, selection.files)
            frame = frame if expression is None else frame.filter(expression)
            return frame.select(*[col('"' + name.replace('"', '""') + '"') for name in names])

        schema = arrow_schema(definition)
        schema = pa.schema([schema.field(name).remove_metadata().with_nullable(True) for name in names])
        counters = Counters([selection])
        with translated(session):
            frame = session.planned(declared)
    except BaseException:
        leases.close()
        raise
    return pa.RecordBatchReader.from_batches(schema, stream(session, frame, schema, counters, leases)), counters


def stream(
    session: EngineSession, frame: DataFrame, schema: pa.Schema, counters: Counters, leases: ExitStack
) -> Iterator[pa.RecordBatch]:
    """Run the plan; count, release the leases and translate errors at the end."""
    with leases, translated(session):
        for batch in frame.execute_stream():
            arrow = batch.to_pyarrow()
            yield arrow if arrow.schema.equals(schema) else _conformed(arrow, schema)
        counters.bytes_read = bytes_scanned(frame)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        array if array.type.equals(field.type) else array.cast(field.type)
        for array, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bytes_scanned(frame: DataFrame) -> int:
    """The bytes that the sources of a finished plan asked their stores for."""
    total = 0
    for _, metrics in frame.execution_plan().collect_metrics():
        total += sum(int(str(metric.value or 0)) for metric in metrics.metrics() if metric.name == "bytes_scanned")
    return total
