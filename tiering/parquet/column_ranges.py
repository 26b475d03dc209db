"""The smallest and largest values of columns, as `part.json` keeps them: for tables, row by row group, and over files.

Long texts are shortened outwards, so that a range may be wider than the values and is never narrower.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiering.parquet.dictionaries import used_values
from tiering.table.columns.nested_ids import field_id, held_type, members_within
from tiering.table.columns.type_texts import arrow_type, fields_within, leaf_ranges
from tiering.table.columns.types import as_json, from_json
from tiering.table.part import ColumnRange, DataFile
from tiering.table.pruning import range_key
from tiering.table.schema import Column, TableDefinition

_TEXT_LIMIT = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000}
"""Nanoseconds are counted as microseconds."""
KEY_TEXT_LIMIT = 256
"""Characters of a text that the sparse index keeps: enough to tell most keys apart."""


def combine_ranges(files: Sequence[DataFile], definition: TableDefinition) -> dict[str, ColumnRange]:
    """The ranges over all files, by `range_key`. Of a field within structs none where one of the files has none."""
    combined: dict[str, ColumnRange] = {}
    for key, _, fields, kind in ranged_fields(definition):
        ranges = [(file.columns[key], file.rows) for file in files if key in file.columns]
        if ranges and not (fields and len(ranges) < len(files)):
            # Files of nulls only bound nothing and unbound nothing.
            valued = [known for known, rows in ranges if known.nulls < rows]
            combined[key] = ColumnRange(
                min=_outermost([known.min for known in valued], kind, lowest=True),
                max=_outermost([known.max for known in valued], kind, lowest=False),
                nulls=sum(known.nulls for known, _ in ranges),
            )
    return combined


def ranged_fields(definition: TableDefinition) -> Iterator[tuple[str, Column, tuple[str, ...], pa.DataType]]:
    """The columns, and after each the fields within its structs: key, column, names of the field, type."""
    for column in definition.columns:
        kind = arrow_type(column.type)
        yield range_key(column), column, (), kind
        for fields, inner, _ in fields_within(kind):
            yield range_key(column, fields), column, fields, inner


def grouped_columns(definition: TableDefinition) -> set[str]:
    """The columns whose ranges `part.json` has of each row group."""
    times = {column.name for column in definition.columns if column.type.startswith(("timestamp", "date"))}
    return times | {*definition.order_by, *(field.column for field in definition.partition_by)}


class FileRanges:
    """The ranges of a file's columns and fields so far, or of a row group's."""

    def __init__(self, definition: TableDefinition, columns: Collection[str] | None = None) -> None:
        """`columns`: only of these, and of no fields within them."""
        self._found = [
            (key, column.name, fields, RangeSoFar())
            for key, column, fields, _ in ranged_fields(definition)
            if columns is None or (column.name in columns and not fields)
        ]

    def add(self, rows: pa.Table) -> None:
        """Rows with the table's columns."""
        for _, name, fields, known in self._found:
            # A field is null where one of its structs is, for any value beneath.
            known.add(pc.struct_field(rows.column(name), list(fields)) if fields else rows.column(name))

    def result(self) -> dict[str, ColumnRange]:
        """By `range_key`."""
        return {key: known.result() for key, _, _, known in self._found}


def group_ranges(rows: pa.Table, definition: TableDefinition) -> dict[str, ColumnRange]:
    """What `part.json` says of a row group of these rows."""
    ranges = FileRanges(definition, grouped_columns(definition))
    ranges.add(rows)
    return ranges.result()


def _outermost(values: list[Any], kind: pa.DataType, *, lowest: bool) -> Any:
    """The smallest or largest of JSON values, compared as what they stand for; None when one is unknown."""
    if not values or None in values:
        return None
    ordered = sorted(values, key=lambda value: from_json(value, kind))
    return ordered[0 if lowest else -1]


def stated_ranges(group: pq.RowGroupMetaData, keys: Mapping[int, str]) -> dict[str, ColumnRange]:
    """What a row group's statistics say of these leaves, by the key that each has. They leave NaN out."""
    found: dict[str, ColumnRange] = {}
    for number, key in keys.items():
        known = group.column(number).statistics
        if known is not None and known.has_min_max and known.has_null_count:
            low, high = _stated(known)
            if _is_json(low) and _is_json(high):
                found[key] = ColumnRange(low, high, known.null_count)
    return found


def leaf_keys(schema: pq.ParquetSchema, held: Mapping[int, range], definition: TableDefinition) -> dict[int, str]:
    """The `range_key` of each leaf of a file that holds one value a row. `held` says which of its leaves hold the
    columns of these ids."""
    found: dict[int, str] = {}
    for column in definition.columns:
        leaves, kind = held.get(column.id, range(0)), arrow_type(column.type)
        if leaves and column.nested_ids:
            found |= _member_keys(schema, leaves, column, definition)
            continue
        if not leaves or len(leaves) != len(leaf_ranges([kind])[0]):
            continue
        named = [((), kind, range(1)), *fields_within(kind)]
        for fields, inner, places in named:
            number = leaves.start + places.start
            if not pa.types.is_nested(inner) and schema.column(number).max_repetition_level == 0:
                found[number] = range_key(column, fields)
    return found


def _member_keys(
    schema: pq.ParquetSchema, leaves: range, column: Column, definition: TableDefinition
) -> dict[int, str]:
    """The same of the members of the column's structs, by the ids that the file has for them."""
    stored = next((field for field in schema.to_arrow_schema() if field_id(field) == column.id), None)
    held = held_type(stored.type, column, definition) if stored is not None else None
    if held is None or len(leaves) != len(leaf_ranges([held])[0]):
        return {}
    found = {}
    for number, inner, places in members_within(held):
        leaf = leaves.start + places.start
        if not pa.types.is_nested(inner) and schema.column(leaf).max_repetition_level == 0:
            found[leaf] = str(number)
    return found


def _stated(statistics: pq.Statistics) -> tuple[Any, Any]:
    """The smallest and the largest value. Of moments, without pandas, which Arrow would import."""
    if statistics.logical_type.type != "TIMESTAMP":
        return as_json(statistics.min), as_json(statistics.max)
    kind = json.loads(statistics.logical_type.to_json())
    micros = {"milliseconds": 1000, "microseconds": 1, "nanoseconds": Fraction(1, 1000)}[kind["timeUnit"]]
    epoch = datetime(1970, 1, 1, tzinfo=UTC if kind["isAdjustedToUTC"] else None)
    bounds = (floor(statistics.min_raw * micros), ceil(statistics.max_raw * micros))
    try:
        low, high = (as_json(epoch + timedelta(microseconds=bound)) for bound in bounds)
    except OverflowError:  # beyond the years that Python knows
        return None, None
    return low, high


def _is_json(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, datetime | date)


def column_range(column: pa.ChunkedArray) -> ColumnRange:
    """The range of one column."""
    known = RangeSoFar()
    known.add(column)
    return known.result()


class RangeSoFar:
    """Smallest and largest value of a column so far, and the count of nulls."""

    def __init__(self) -> None:
        self._min: Any = None
        self._max: Any = None
        self._nulls = 0
        self._bounded_above = True

    def add(self, column: pa.ChunkedArray) -> None:
        self._nulls += column.null_count
        if pa.types.is_dictionary(column.type) and column.null_count < len(column):
            column = used_values(column)
        kind = column.type
        if column.null_count == len(column) or not _is_bounded(kind):
            return
        if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
            # Engines sort NaN above every number, so no number is an upper bound.
            self._bounded_above = False
            if column.null_count + pc.sum(pc.is_nan(column)).as_py() == len(column):
                self._min = float("-inf")
                return
        low, high = _bounds(column)
        self._min = low if self._min is None else min(self._min, low)
        self._max = high if self._max is None else max(self._max, high)

    def result(self) -> ColumnRange:
        return ColumnRange(
            min=_lower_text(as_json(self._min)),
            max=as_json(_short_upper(self._max)) if self._bounded_above else None,
            nulls=self._nulls,
        )


def _is_bounded(kind: pa.DataType) -> bool:
    """Whether values of the type have an order that everybody knows."""
    return not (pa.types.is_nested(kind) or pa.types.is_duration(kind) or kind == pa.uuid())


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(column)
    low, high = found["min"], found["max"]
    if pa.types.is_timestamp(column.type):
        # Python keeps microseconds: round outwards.
        return _moment(low), _moment(high, more_nanoseconds=999)
    return low.as_py(), high.as_py()


def _moment(moment: pa.Scalar, *, more_nanoseconds: int = 0) -> datetime:
    """In UTC: the first and last days that Python has lie outside of its calendar in other zones."""
    unit = moment.type.unit
    count = moment.value if unit != "ns" else (moment.value + more_nanoseconds) // 1000
    seconds, fraction = divmod(count, _PER_SECOND[unit])
    return _EPOCH + timedelta(seconds=seconds, microseconds=fraction * (1_000_000 // _PER_SECOND[unit]))


def key_json(value: pa.Scalar) -> Any:
    if pa.types.is_timestamp(value.type) and value.is_valid:
        return as_json(_moment(value))
    return _lower_text(as_json(value.as_py()), limit=KEY_TEXT_LIMIT)


def _lower_text(value: Any, *, limit: int = _TEXT_LIMIT) -> Any:
    """A long text's beginning, which sorts no higher."""
    return value[:limit] if isinstance(value, str) and len(value) > limit else value


def _short_upper(value: Any) -> Any:
    """A short text or byte string that sorts no lower than a long one: its beginning, the last place raised; None if
    that place cannot be raised. Other values unchanged."""
    if isinstance(value, bytes) and len(value) > _TEXT_LIMIT // 2:  # two hexadecimal digits a byte
        beginning = value[: _TEXT_LIMIT // 2]
        return None if beginning[-1] == 0xFF else beginning[:-1] + bytes((beginning[-1] + 1,))
    if isinstance(value, str) and len(value) > _TEXT_LIMIT:
        raised = ord(value[_TEXT_LIMIT - 1]) + 1
        return None if 0xD800 <= raised <= 0xDFFF or raised > 0x10FFFF else value[: _TEXT_LIMIT - 1] + chr(raised)
    return value
