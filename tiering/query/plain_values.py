"""The values of an answer as JSON has them, for verbs, scripts and the dashboard. Works where pandas is not installed,
whose times pyarrow takes for nanoseconds when it is. Pure."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tiering.config.units import format_time
from tiering.query.sql.answers import WHOLE_NUMBER

_FRACTIONS = {"s": (1, 0), "ms": (1_000, 6), "us": (1_000_000, 6), "ns": (1_000_000_000, 9)}
"""Unit -> how many are a second, and the digits that are written of one."""
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After which the calendar is the same again."""
_ENDLESS_DAYS, _ENDLESS_UNITS = (1 << 31) - 1, (1 << 63) - 1
"""What the engine has for infinity; for its opposite, less than zero."""


def plain_rows(batch: pa.RecordBatch) -> list[list[Any]]:
    """The rows as JSON values: times as RFC 3339, decimals as text, bytes as hex."""
    columns = [
        list(map(_whole, column.to_pylist())) if _is_whole(field) else plain_values(column)
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(batch.num_rows)]


def _is_whole(field: pa.Field) -> bool:
    return bool(field.metadata) and WHOLE_NUMBER.items() <= field.metadata.items()


def _whole(value: Decimal | None) -> int | str | None:
    """A number, unless it has more digits than numbers have in JSON."""
    return None if value is None else int(value) if -(1 << 63) <= value < 1 << 63 else str(value)


def plain_values(column: pa.Array) -> list[Any]:
    """The values of a column as JSON has them. Moments that Python does not have, before year 1, after 9999 or
    infinite, are written as the engine writes them."""
    kind = column.type
    if pa.types.is_float32(kind):  # the shortest number that is this one
        column = column.cast(pa.string()).cast(pa.float64())
    counted = _counted(kind)
    try:
        values = (column if counted == kind else column.cast(counted)).to_pylist()
    except (OverflowError, ValueError):
        values = column.cast(_counted(kind, all_moments=True)).to_pylist()
    if pa.types.is_nested(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return [_plain_nested(value, kind) for value in values]
    return [_plain(value) for value in values]


def _counted(kind: pa.DataType, *, all_moments: bool = False) -> pa.DataType:
    """The type with whole numbers for nanoseconds, which Python's times do not have; or for all moments."""
    if pa.types.is_timestamp(kind) and (all_moments or kind.unit == "ns"):
        return pa.int64()
    if pa.types.is_date(kind) and all_moments:
        return pa.int32() if pa.types.is_date32(kind) else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type, all_moments=all_moments)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (_counted(one, all_moments=all_moments) for one in (kind.key_type, kind.item_type))
        return pa.map_(key, item)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_counted(kind.value_type, all_moments=all_moments)))
    return kind


def _plain_nested(value: Any, kind: pa.DataType) -> Any:
    """Structs are objects; maps, too, where their keys are texts that occur once: else they are lists of pairs."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return _moment(value, kind)
    if pa.types.is_date(kind) and isinstance(value, int):
        return _day(value if pa.types.is_date32(kind) else value // 86_400_000)
    if not pa.types.is_nested(kind):
        return _plain(value)
    if pa.types.is_struct(kind):
        return {field.name: _plain_nested(value[field.name], field.type) for field in kind}
    if not pa.types.is_map(kind):
        return [_plain_nested(item, kind.value_type) for item in value]
    pairs = [(_plain_nested(key, kind.key_type), _plain_nested(item, kind.item_type)) for key, item in value]
    keys = {key for key, _ in pairs if isinstance(key, str)}
    return dict(pairs) if len(keys) == len(pairs) else [list(pair) for pair in pairs]


def _moment(value: datetime | int, kind: pa.TimestampType) -> str:
    """With a fraction of a second only when there is one."""
    if isinstance(value, datetime):
        return format_time(value) if kind.tz else value.isoformat()
    if abs(value) == _ENDLESS_UNITS:
        return _endless(value)
    per_second, digits = _FRACTIONS[kind.unit]
    seconds, fraction = divmod(value, per_second)
    day, second = divmod(seconds, 86_400)
    if kind.unit == "ns" and fraction % 1_000 == 0:
        per_second, digits, fraction = 1_000_000, 6, fraction // 1_000
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    if fraction:
        clock += f".{fraction * 10**digits // per_second:0{digits}}"
    written = _day(day)
    return f"{written} {clock}" if written.endswith(")") else f"{written}T{clock}{'Z' if kind.tz else ''}"


def _day(days: int) -> str:
    """The day that is so many after 1970-01-01; years before 1 as those before Christ."""
    if abs(days) == _ENDLESS_DAYS:
        return _endless(days)
    cycles, day = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    found = date.fromordinal(day + 1)
    year = found.year + cycles * _CYCLE_YEARS
    written = f"{year if year > 0 else 1 - year:04}-{found:%m-%d}"
    return written if year > 0 else f"{written} (BC)"


def _endless(value: int) -> str:
    return "infinity" if value > 0 else "-infinity"


def _plain(value: Any) -> Any:
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    return value
