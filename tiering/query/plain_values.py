"""The values of an answer as JSON has them, for verbs, scripts and the dashboard. Works where pandas is not installed,
whose times pyarrow takes for nanoseconds when it is. Pure."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tiering.config.units import format_time
from tiering.query.sql.answers import WHOLE_NUMBER

_EPOCH = datetime(1970, 1, 1)  # moments of no zone as well


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
    """The values of a column as JSON has them."""
    kind = column.type
    if pa.types.is_float32(kind):  # the shortest number that is this one
        column = column.cast(pa.string()).cast(pa.float64())
    counted = _counted(kind)
    if counted != kind:
        column = column.cast(counted)
    if pa.types.is_nested(kind) or pa.types.is_timestamp(kind):
        return [_plain_nested(value, kind) for value in column.to_pylist()]
    return [_plain(value) for value in column.to_pylist()]


def _counted(kind: pa.DataType) -> pa.DataType:
    """The type with whole numbers for nanoseconds, which Python's times do not have."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_counted(kind.value_type)))
    return kind


def _plain_nested(value: Any, kind: pa.DataType) -> Any:
    """Structs are objects; maps, too, where their keys are texts that occur once: else they are lists of pairs."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return _moment(value, kind)
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
    """With nanoseconds only when there are any."""
    if isinstance(value, datetime):
        return format_time(value) if kind.tz else value.isoformat()
    microseconds, rest = divmod(value, 1000)
    moment = _EPOCH + timedelta(microseconds=microseconds)
    text = moment.isoformat(timespec="microseconds") + f"{rest:03}" if rest else moment.isoformat()
    return f"{text}Z" if kind.tz else text


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
