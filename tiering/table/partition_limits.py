"""Where partitions end: the times of one, and those of `truncate` at the least numbers of a type. Pure."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any, Literal

from tiering.table.schema import Column, PartitionField

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DECIMAL_DIGITS = 28
"""To so many older versions rounded."""
_LEAST = {f"int{bits}": -(1 << (bits - 1)) for bits in (8, 16, 32, 64)}


def time_range(transform: Literal["hour", "day", "month", "year"], ordinal: int, a_day: int) -> tuple[int, int]:
    """The first and the last moment of the ordinal that a time transform gives, in units of which a day has so many."""
    match transform:
        case "hour":
            first, end = ordinal * (a_day // 24), (ordinal + 1) * (a_day // 24)
        case "day":
            first, end = ordinal * a_day, (ordinal + 1) * a_day
        case "month":
            first, end = _days_before_month(ordinal) * a_day, _days_before_month(ordinal + 1) * a_day
        case "year":
            first, end = _days_before_month(ordinal * 12) * a_day, _days_before_month(ordinal * 12 + 12) * a_day
    return first, end - 1


def _days_before_month(months: int) -> int:
    """Days from 1970-01-01 to the first of the month that many months after it."""
    year, month = 1970 + months // 12, months % 12 + 1
    # Whole 400-year cycles first: `date` knows the years 1 to 9999 only.
    cycles = (year - 2000) // 400
    return date(year - 400 * cycles, month, 1).toordinal() - _EPOCH_ORDINAL + cycles * 146_097


def may_be_wrong(field: PartitionField, stored: Any, column: Column) -> bool:
    """Whether older versions may have written this value of `truncate`, in the column's domain, for values of another
    partition: they wrapped below the least number of a signed type, and rounded decimals to 28 digits. What widened
    since may have been written with fewer bits."""
    if isinstance(stored, Decimal):
        return len(stored.as_tuple().digits) > _DECIMAL_DIGITS
    if isinstance(stored, int) and column.type in _LEAST:
        width = field.parameter or 1
        narrower = (least for least in _LEAST.values() if least >= _LEAST[column.type])
        return any(least % width and _wrapped(least, width) == stored for least in narrower)
    return False


def _wrapped(least: int, width: int) -> int:
    """What becomes of the multiple of the width below the least number of a type, kept in that type."""
    return (least // width * width - least) % (-2 * least) + least


def lowest_id(field: PartitionField, value: int, type_text: str) -> int:
    """The number that the id of a partition of `truncate` has. Ids never change: of the partition below the least
    number of a signed type it is what the value wraps to, as older versions had it; unless another partition has it."""
    least, width = _LEAST.get(type_text, value), field.parameter or 1
    is_below = value < least or (value == least and least % width)
    return wrapped if is_below and (wrapped := _wrapped(least, width)) % width else value
