"""What a merge does to rows on their way: TTL deletes, and the table's merge mode on rows with equal keys. Pure.

Rows come sorted by key, equal keys in insertion order. A run of equal keys may reach over several tables: its rows are
held back until the next key, and those of a long run are made into one meanwhile, so that memory is bounded also where
most rows have one key. What the modes mean, `tiering.table.merge_modes` says; `tiering.merge.run_reduction` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from oplog.errors import UsageError
from tiering.merge.run_reduction import newest_rows, reduced, run_starts
from tiering.policy.ttl import EARLIEST_PLAUSIBLE
from tiering.table.merge_modes import MergeMode, parse_merge_mode
from tiering.table.schema import Delete, TableDefinition

_COMBINE_ROWS = 65_536
_COMBINE_BYTES = 32 * 1024 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "day": 86_400 * 10**9}
_HELD_ROWS = 4 * _COMBINE_ROWS
"""A run of more rows is made into one row before its end is seen."""


def combine_rows(
    tables: Iterable[pa.Table], definition: TableDefinition, *, drop_deleted: bool = False
) -> Iterator[pa.Table]:
    """The tables with the table's merge mode applied.

    `drop_deleted` says that these are all rows of their keys that there are: only then do tombstones go. In a merge of
    some of the parts a tombstone that goes would let an older row of its key, in another part, come back.
    """
    mode = parse_merge_mode(definition.merge_mode)
    if mode.name == "ordinary":
        yield from tables
        return

    def row_of(run: pa.Table) -> pa.Table:
        """One row of the run's rows, which stands for them in what follows; the run where no row can."""
        try:
            return _row_a_key(run, definition.order_by, mode)
        except UsageError:  # a sum of some of the rows may not fit where that of all does
            return run

    for table in whole_runs(_gathered(tables), definition.order_by, row_of):
        kept = _row_a_key(table, definition.order_by, mode)
        yield _without_deleted(kept, mode.deleted) if drop_deleted and mode.deleted else kept


def _row_a_key(table: pa.Table, keys: Sequence[str], mode: MergeMode) -> pa.Table:
    """What the mode makes of whole runs. Of a run's first rows, made into one, and the others it makes the same."""
    starts = run_starts(table, keys)
    if mode.functions:
        return reduced(table, starts, mode.functions)
    newest = newest_rows(table, starts, mode.version)
    return table if len(newest) == table.num_rows else table.take(pa.array(newest))


def live_rows(tables: Iterable[pa.Table], definition: TableDefinition, now: datetime | None) -> Iterator[pa.Table]:
    """The tables without rows that a TTL rule deletes at that time; None: no rule does. Rows without a time, or with
    one before 1971, stay."""
    if now is None:
        yield from tables
        return
    rules = [
        (rule.column, now - EARLIEST_PLAUSIBLE, rule.after)
        for rule in definition.ttl
        if isinstance(rule.action, Delete)
    ]
    for table in tables:
        live = table
        for name, longest, after in rules:
            if after <= longest:  # else only times that look missing are due
                live = live.filter(_is_live(live.column(name), now - after))
        yield live


def _is_live(times: pa.ChunkedArray, last_due: datetime) -> pa.ChunkedArray:
    """Which rows stay, of those in which times up to the last are due."""
    counts = times.cast(pa.int32() if pa.types.is_date32(times.type) else pa.int64()).cast(pa.int64())
    after, before = _units(last_due, times.type), _units(EARLIEST_PLAUSIBLE, times.type)
    return pc.fill_null(pc.or_(pc.greater(counts, after), pc.less(counts, before)), True)


def whole_runs(
    tables: Iterable[pa.Table], keys: Sequence[str], shortened: Callable[[pa.Table], pa.Table]
) -> Iterator[pa.Table]:
    """The same rows in tables that never separate rows of one key. Of a run that is long, `shortened` says the rows
    that stand for those that came so far."""
    held = _HeldRun(shortened)
    for table in tables:
        if table.num_rows == 0:
            continue
        start = last_run_start(table, keys)
        goes_on = held.tables and same_key(held.tables[0], 0, table, 0, keys)
        if start == 0 and (goes_on or not held.tables):
            held.add(table)
            continue
        if held.tables and not goes_on:
            yield held.take()
        if start:
            held.tables.append(table.slice(0, start))
            yield held.take()
        held.add(table.slice(start))
    if held.tables:
        yield held.take()


class _HeldRun:
    """Rows of one key whose last may not have come. Those that one row can stand for do not gather."""

    def __init__(self, shortened: Callable[[pa.Table], pa.Table]) -> None:
        self.tables: list[pa.Table] = []
        self._shortened = shortened
        self._most_rows = _HELD_ROWS

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        if sum(held.num_rows for held in self.tables) > self._most_rows:
            self.tables = [self._shortened(pa.concat_tables(self.tables))]
            self._most_rows = max(_HELD_ROWS, 2 * self.tables[0].num_rows)

    def take(self) -> pa.Table:
        tables, self.tables, self._most_rows = self.tables, [], _HELD_ROWS
        return pa.concat_tables(tables)


def last_run_start(table: pa.Table, keys: Sequence[str]) -> int:
    """The row where the last key begins."""
    low, high = 0, table.num_rows - 1
    while low < high:
        middle = (low + high) // 2
        if same_key(table, middle, table, table.num_rows - 1, keys):
            high = middle
        else:
            low = middle + 1
    return low


def same_key(left: pa.Table, left_row: int, right: pa.Table, right_row: int, keys: Sequence[str]) -> bool:
    """Whether two rows have equal keys; nulls are equal, NaNs too."""
    return all(_same(left.column(name)[left_row], right.column(name)[right_row]) for name in keys)


def _same(left: pa.Scalar, right: pa.Scalar) -> bool:
    if left.equals(right):
        return True
    if not pa.types.is_floating(left.type):
        return False
    one, other = left.as_py(), right.as_py()
    return one is not None and other is not None and one != one and other != other


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Fewer, larger tables: the work on each is vectorised."""
    pending: list[pa.Table] = []
    rows = size_bytes = 0
    for table in tables:
        pending.append(table)
        rows += table.num_rows
        size_bytes += table.nbytes
        if rows >= _COMBINE_ROWS or size_bytes >= _COMBINE_BYTES:
            yield pa.concat_tables(pending)
            pending, rows, size_bytes = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


def _without_deleted(table: pa.Table, deleted: str) -> pa.Table:
    marks = table.column(deleted)
    stays = pc.equal(marks, pa.scalar(0).cast(marks.type))
    return table.filter(pc.fill_null(stays, True))


def _units(moment: datetime, kind: pa.DataType) -> int:
    """The moment in the type's unit since 1970, rounded down, as far as 64 bits go. Casts to nanoseconds wrap."""
    micros = (moment - _EPOCH) // timedelta(microseconds=1)
    unit = "day" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    return min(micros * 1000 // _NANOSECONDS[unit], 2**63 - 1)
