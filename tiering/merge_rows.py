"""What a merge mode does to rows with equal keys, on streams of sorted tables. Pure.

`replacing` keeps of each key the row with the highest version, of equal versions the one inserted last; `summing` keeps
one row a key with its number columns added up, other columns as inserted first. Rows come sorted by key, equal keys in
insertion order. A run of equal keys may reach over several tables: its rows are held back until the next key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from oplog.errors import UsageError
from tiering.definitions import parse_merge_mode
from tiering.schema import Delete, TableDefinition
from tiering.transforms import one_array
from tiering.ttl import EARLIEST_PLAUSIBLE

_COMBINE_ROWS = 65_536


def combine_rows(tables: Iterable[pa.Table], definition: TableDefinition) -> Iterator[pa.Table]:
    """The tables with the table's merge mode applied."""
    mode, columns = parse_merge_mode(definition.merge_mode)
    if mode == "ordinary":
        yield from tables
        return
    for table in whole_runs(_gathered(tables), definition.order_by):
        runs = run_numbers(table, definition.order_by)
        if runs[-1].as_py() + 1 == table.num_rows and mode == "replacing":
            yield table
        elif mode == "replacing":
            yield _replaced(table, runs, columns[0] if columns else None)
        else:
            yield _summed(table, runs, columns)


def live_rows(tables: Iterable[pa.Table], definition: TableDefinition, now: datetime) -> Iterator[pa.Table]:
    """The tables without rows that a TTL rule deletes. Rows without a time, or with one before 1971, stay."""
    rules = [rule for rule in definition.ttl if isinstance(rule.action, Delete)]
    for table in tables:
        live = table
        for rule in rules:
            column = live.column(rule.column)
            oldest_kept = _time_scalar(now - rule.after, column.type)
            implausible = _time_scalar(EARLIEST_PLAUSIBLE, column.type)
            keep = pc.or_(pc.greater(column, oldest_kept), pc.less(column, implausible))
            live = live.filter(pc.fill_null(keep, True))
        yield live


def whole_runs(tables: Iterable[pa.Table], keys: Sequence[str]) -> Iterator[pa.Table]:
    """The same rows in tables that never separate rows of one key."""
    held: list[pa.Table] = []
    for table in tables:
        if table.num_rows == 0:
            continue
        start = last_run_start(table, keys)
        if start == 0 and (not held or same_key(held[0], 0, table, 0, keys)):
            held.append(table)
            continue
        if held and not same_key(held[0], 0, table, 0, keys):
            yield pa.concat_tables(held)
            held = []
        if start:
            yield pa.concat_tables([*held, table.slice(0, start)])
            held = []
        held = [table.slice(start)]
    if held:
        yield pa.concat_tables(held)


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
    """Whether two rows have equal keys; nulls are equal."""
    return all(left.column(name)[left_row].equals(right.column(name)[right_row]) for name in keys)


def run_numbers(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """For each row the number of its run of equal keys, from 0. The table is sorted and not empty."""
    rows = table.num_rows
    changed: Any = None
    for name in keys:
        column = one_array(table.column(name))
        before, after = column.slice(0, rows - 1), column.slice(1)
        # One null beside a value is a change, two nulls are none.
        differs = pc.if_else(
            pc.and_(before.is_null(), after.is_null()), False, pc.fill_null(pc.not_equal(before, after), True)
        )
        changed = differs if changed is None else pc.or_(changed, differs)
    flags = pa.concat_arrays([pa.array([0], pa.int64()), changed.cast(pa.int64())])
    return pc.cumulative_sum(flags)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Fewer, larger tables: the work on each is vectorised."""
    pending: list[pa.Table] = []
    rows = 0
    for table in tables:
        pending.append(table)
        rows += table.num_rows
        if rows >= _COMBINE_ROWS:
            yield pa.concat_tables(pending)
            pending, rows = [], 0
    if pending:
        yield pa.concat_tables(pending)


def _replaced(table: pa.Table, runs: pa.Array, version: str | None) -> pa.Table:
    rows = table.num_rows
    order: pa.Array = None
    if version is not None:
        columns = {"run": runs, "version": one_array(table.column(version))}
        # Stable, rows without a version first: the last of each run is the one to keep.
        keys = [("run", "ascending", "at_end"), ("version", "ascending", "at_start")]
        order = pc.sort_indices(pa.table(columns), sort_keys=keys)
    last = pc.fill_null(pc.not_equal(runs.slice(0, rows - 1), runs.slice(1)), True)
    positions = pc.indices_nonzero(pa.concat_arrays([last, pa.array([True])]))
    return table.take(positions if order is None else order.take(positions))


def _summed(table: pa.Table, runs: pa.Array, columns: Sequence[str]) -> pa.Table:
    rows = table.num_rows
    changed = pc.not_equal(runs.slice(0, rows - 1), runs.slice(1))
    first = table.take(pc.indices_nonzero(pa.concat_arrays([pa.array([True]), changed])))
    for name in columns:
        field = table.schema.field(name)
        grouped = pa.table({"run": runs, "value": one_array(table.column(name))})
        sums = grouped.group_by("run", use_threads=False).aggregate([("value", "sum")]).sort_by("run")
        try:
            total = sums.column("value_sum").cast(field.type)
        except pa.ArrowInvalid as error:
            raise UsageError(
                f"the sum of column {name} does not fit {field.type}",
                hint="widen the column, or leave it out of the merge mode; nothing was changed",
            ) from error
        first = first.set_column(first.schema.get_field_index(name), field, total)
    return first


def _time_scalar(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    utc = moment.astimezone(UTC)
    if pa.types.is_date(kind):
        return pa.scalar(utc.date(), kind)
    if kind.tz is None:
        return pa.scalar(utc.replace(tzinfo=None), pa.timestamp("us")).cast(kind, safe=False)
    return pa.scalar(utc, pa.timestamp("us", "UTC")).cast(kind, safe=False)
