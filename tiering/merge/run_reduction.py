"""Runs of rows with equal keys in a sorted table, each made into one row. Pure, and whole columns at a time.

A run is known by its first row: `run_starts` gives these, the other functions take them. Nulls are skipped; where a run
has no value, the result is null. NaN is one value, above all numbers, as it sorts; only as a version it is below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from oplog.errors import UsageError
from tiering.table.transforms import one_array

Rows = NDArray[numpy.int64]
"""Row numbers."""

_WIDE_SUM_DIGITS = 28
"""Decimals of so many digits: 10^10 of them cannot exceed 38."""


def run_starts(table: pa.Table, keys: Sequence[str]) -> Rows:
    """The first row of each run of equal keys. The table is sorted and not empty; nulls are equal, NaNs too."""
    changed = numpy.zeros(table.num_rows, bool)
    changed[0] = True
    for name in keys:
        changed[1:] |= _differs(one_array(table.column(name)))
    return numpy.flatnonzero(changed)


def newest_rows(table: pa.Table, starts: Rows, version: str | None) -> Rows:
    """The row of each run with the highest version, of equal versions the last; a row without a version is below all.
    Without a version column the last row of each run."""
    ends = _ends(starts, table.num_rows)
    if version is None or len(starts) == table.num_rows:
        return ends - 1
    values, valid, _ = _ordered_numbers(one_array(table.column(version)))
    comparable = valid & (values == values)
    worst = _worst(values.dtype, largest=True)
    best = numpy.maximum.reduceat(numpy.where(comparable, values, worst), starts)
    found = _last_where(comparable & (values == numpy.repeat(best, ends - starts)), starts)
    if (without := found < 0).any():
        not_numbers = _last_where(valid & ~comparable, starts)
        found = numpy.where(without, numpy.where(not_numbers < 0, ends - 1, not_numbers), found)
    return found


def reduced(table: pa.Table, starts: Rows, functions: Sequence[tuple[str, str]]) -> pa.Table:
    """One row a run: the named columns by their functions, all others as in the run's first row.

    Raises `UsageError` for a sum that does not fit its column.
    """
    result = table.take(pa.array(starts))
    for name, function in functions:
        place = table.schema.get_field_index(name)
        values = one_array(table.column(name))
        result = result.set_column(place, table.schema.field(place), _FUNCTIONS[function](values, starts, name))
    return result


# ---- functions: (values, starts of runs, the column's name for messages) -> one value a run


def _sum(values: pa.Array, starts: Rows, name: str) -> pa.Array:
    kind = values.type
    try:
        if pa.types.is_decimal(kind):
            return _decimal_sum(values, starts).cast(kind)
        numbers, valid = _numbers(values)
        wide = numpy.float64 if pa.types.is_floating(kind) else numpy.dtype(f"{numbers.dtype.kind}8")
        numbers = numpy.where(valid, numbers, numbers.dtype.type(0)).astype(wide)
        with numpy.errstate(over="ignore", invalid="ignore"):
            total = numpy.add.reduceat(numbers, starts)
        if kind.bit_width == 64 and wide != numpy.float64:
            # Sums of whole numbers wrap around; one of floating point does not, and is off by far less than 2^62.
            exact = numpy.add.reduceat(numbers.astype(numpy.float64), starts)
            if (numpy.abs(exact - total.astype(numpy.float64)) > 2.0**62).any():
                raise pa.ArrowInvalid("integer overflow")
        return pa.array(total, mask=~_any_of(valid, starts)).cast(kind)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"the sum of column {name} does not fit {kind}",
            hint="widen the column, or leave it out of the merge mode; nothing was changed",
        ) from error


def _decimal_sum(values: pa.Array, starts: Rows) -> pa.Array:
    if values.type.precision > _WIDE_SUM_DIGITS:
        values = values.cast(pa.decimal256(76, values.type.scale))
    runs = numpy.repeat(numpy.arange(len(starts)), _ends(starts, len(values)) - starts)
    grouped = pa.table({"run": runs, "value": values}).group_by("run", use_threads=False)
    return one_array(grouped.aggregate([("value", "sum")]).sort_by("run").column("value_sum"))


def _smallest(values: pa.Array, starts: Rows, name: str) -> pa.Array:
    return _extreme(values, starts, largest=False)


def _largest(values: pa.Array, starts: Rows, name: str) -> pa.Array:
    return _extreme(values, starts, largest=True)


def _extreme(values: pa.Array, starts: Rows, *, largest: bool) -> pa.Array:
    numbers, valid, ranked = _ordered_numbers(values)
    filled = numpy.where(valid, numbers, _worst(numbers.dtype, largest=largest))
    # fmin passes over NaN, maximum does not: both take it for the largest value.
    found = (numpy.maximum if largest else numpy.fmin).reduceat(filled, starts)
    result = pa.array(found, mask=~_any_of(valid, starts))
    if ranked is not None:
        return ranked.take(result)
    return result.cast(values.type) if pa.types.is_boolean(values.type) else result.view(values.type)


def _first(values: pa.Array, starts: Rows, name: str) -> pa.Array:
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    places = numpy.minimum.reduceat(numpy.where(valid, numpy.arange(len(values)), len(values)), starts)
    return values.take(pa.array(places, mask=places == len(values)))


def _last(values: pa.Array, starts: Rows, name: str) -> pa.Array:
    places = _last_where(values.is_valid().to_numpy(zero_copy_only=False), starts)
    return values.take(pa.array(places, mask=places < 0))


_FUNCTIONS = {"sum": _sum, "min": _smallest, "max": _largest, "any": _first, "anyLast": _last}


# ---- columns as numpy arrays


def _numbers(values: pa.Array) -> tuple[NDArray[Any], NDArray[numpy.bool]]:
    """A column of fixed width as numbers, and where it has values; what stands at a null means nothing."""
    kind = values.type
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        values = values.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if values.null_count:
        values = values.fill_null(0)
    return values.to_numpy(zero_copy_only=False), valid


def _ordered_numbers(values: pa.Array) -> tuple[NDArray[Any], NDArray[numpy.bool], pa.Array | None]:
    """Numbers that are ordered like the values, where there are values, and for ranks the values they stand for."""
    kind = values.type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind)):
        return *_numbers(values), None
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = numpy.empty(len(order), numpy.int64)
    ranks[order.to_numpy()] = numpy.arange(len(order))
    indices, valid = _numbers(encoded.indices)
    numbers = ranks[indices] if len(ranks) else indices.astype(numpy.int64)
    return numbers, valid, encoded.dictionary.take(order)


def _differs(values: pa.Array) -> NDArray[numpy.bool]:
    """For each row but the first whether it differs from the one before."""
    kind = values.type
    found: NDArray[numpy.bool]
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        unequal = pc.not_equal(values.slice(0, len(values) - 1), values.slice(1))
        found = unequal.fill_null(False).to_numpy(zero_copy_only=False)
    else:
        numbers, valid = _numbers(values)
        found = numbers[1:] != numbers[:-1]
        if pa.types.is_floating(kind):
            not_numbers = numpy.isnan(numbers)
            found &= ~(not_numbers[1:] & not_numbers[:-1])
    if values.null_count:
        found = (found & valid[1:] & valid[:-1]) | (valid[1:] != valid[:-1])
    return found


def _worst(kind: numpy.dtype[Any], *, largest: bool) -> Any:
    """What any value beats: when the largest is looked for, or the smallest."""
    if kind.kind == "f":
        return kind.type(-numpy.inf) if largest else kind.type(numpy.nan)
    limits = numpy.iinfo(kind)
    return kind.type(limits.min if largest else limits.max)


def _ends(starts: Rows, rows: int) -> Rows:
    return numpy.append(starts[1:], rows)


def _any_of(flags: NDArray[numpy.bool], starts: Rows) -> NDArray[numpy.bool]:
    return numpy.logical_or.reduceat(flags, starts)


def _last_where(flags: NDArray[numpy.bool], starts: Rows) -> Rows:
    """The last flagged row of each run, -1 where there is none."""
    return numpy.maximum.reduceat(numpy.where(flags, numpy.arange(len(flags)), -1), starts)
