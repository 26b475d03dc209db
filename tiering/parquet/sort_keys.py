"""Sort keys as Python values: what rows and row groups are compared by outside Arrow. Pure.

A key is a tuple with one pair a column: how far behind the values it sorts (0; NaN 1; null 2), and the value. A shorter
key sorts before every longer one that begins with it, so it bounds from below whatever it is the beginning of.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from tiering.parquet.column_ranges import KEY_TEXT_LIMIT
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import from_json
from tiering.table.part import DataFile
from tiering.table.schema import TableDefinition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

Key = tuple[tuple[int, Any], ...]


class SortKeyRange(msgspec.Struct, frozen=True):
    """Keys from `low` on, below `high`; None leaves an end open."""

    low: Key | None = None
    high: Key | None = None

    def __contains__(self, key: Key) -> bool:
        return (self.low is None or key >= self.low) and (self.high is None or key < self.high)


EVERYTHING = SortKeyRange()


def row_key(table: pa.Table, row: int, names: Sequence[str]) -> Key:
    """The sort key of one row."""
    values = (plain(table.column(name)[row]) for name in names)
    return tuple((2, 0) if value is None else (1, 0) if value != value else (0, value) for value in values)


def plain(value: pa.Scalar) -> Any:
    """The value for Python to compare. A time is its count of units: finer than Python's own."""
    return value.value if isinstance(value, pa.TimestampScalar) else value.as_py()


def rows_below(table: pa.Table, bound: Key, names: Sequence[str], *, inclusive: bool = False) -> int:
    """How many rows of a sorted table have keys below the bound, or equal to it when `inclusive`."""
    low, high = 0, table.num_rows
    while low < high:
        middle = (low + high) // 2
        key = row_key(table, middle, names)
        if key < bound or (inclusive and key == bound):
            low = middle + 1
        else:
            high = middle
    return low


def stored_key(first_key: Sequence[Any], definition: TableDefinition) -> Key | None:
    """The key that a row group's `first_key` stands for; None when that cannot be said (NaN and infinities).

    A long text, and a time finer than a microsecond, are kept shortened: the key ends there. Such a key is no higher
    than the one it stands for, and of two keys the higher one never stands for the lower.
    """
    key: list[tuple[int, Any]] = []
    if len(first_key) != len(definition.order_by):
        return None
    for name, value in zip(definition.order_by, first_key, strict=True):
        kind = arrow_type(definition.column(name).type)
        if value is None:
            if pa.types.is_floating(kind):
                return None
            key.append((2, 0))
            continue
        key.append((0, _stored_value(value, kind)))
        if isinstance(value, str) and len(value) >= KEY_TEXT_LIMIT:
            break
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            break
    return tuple(key)


def _stored_value(value: Any, kind: pa.DataType) -> Any:
    """What `plain` gives of the value. A moment finer than a microsecond may be cut to one that its column lacks."""
    if not pa.types.is_timestamp(kind):
        return plain(pa.scalar(from_json(value, kind), kind))
    moment = from_json(value, pa.timestamp("us", "UTC")) - _EPOCH
    return moment // timedelta(microseconds=1) * _PER_SECOND[kind.unit] // 1_000_000


def row_groups_within(file: DataFile, definition: TableDefinition, within: SortKeyRange) -> tuple[int, ...]:
    """The numbers of the file's row groups that can hold a key of the range: neighbours, perhaps none."""
    keys = [stored_key(group.first_key, definition) for group in file.row_groups]
    following = [*keys[1:], *([None] if keys else [])]
    return tuple(
        number
        for number, (first, after) in enumerate(zip(keys, following, strict=True))
        # The last row of a group may have the first key of the next one.
        if (within.low is None or after is None or after >= within.low)
        and (within.high is None or first is None or first < within.high)
    )
