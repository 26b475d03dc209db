"""Partition transforms with the meaning Iceberg gives them, vectorised, and the partition ids in part names.

Transformed values are integers (years, months, days, hours since 1970; bucket numbers) or the column's own values
(identity, truncate). `partition_id` makes them a text that is safe in a path: `2026`, `202601`, `20260131`,
`2026013112` for times, the number for buckets, the value itself where it is short and plain, else a hash. Several
fields are joined by `.`; a null is `null`; an unpartitioned table has the one partition `all`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from oplog.errors import UsageError
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import as_json, from_json, moment_text
from tiering.table.part import ColumnRange
from tiering.table.partition_limits import lowest_id
from tiering.table.schema import Column, PartitionField, TableDefinition

UNPARTITIONED = "all"
NULL_ID = "null"
_PLAIN = re.compile(r"[A-Za-z0-9=-]{1,48}\Z")
_EPOCH = date(1970, 1, 1)
_TIME_TRANSFORMS = frozenset({"year", "month", "day", "hour"})
_EXACT = Context(prec=100)
_BUCKETED = Context(prec=28, rounding=ROUND_HALF_EVEN)
"""`bucket` rounds decimals to 28 digits, as it always did: another number of digits would give values other buckets."""
_LOWEST = -(1 << 63)


def check_transform(field: PartitionField, column: Column) -> None:
    """Whether the transform takes the column's type. Raises `UsageError`."""
    kind = arrow_type(column.type)
    match field.transform:
        case "year" | "month" | "day":
            fits = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        case "hour":
            fits = pa.types.is_timestamp(kind)
        case "identity":
            fits = _is_plain(kind) and not pa.types.is_floating(kind)
        case "bucket":
            fits = _is_plain(kind) and not pa.types.is_floating(kind) and not pa.types.is_boolean(kind)
        case "truncate":
            fits = (
                pa.types.is_integer(kind)
                or pa.types.is_decimal(kind)
                or pa.types.is_string(kind)
                or pa.types.is_binary(kind)
            )
    if not fits:
        raise UsageError(
            f"cannot partition by {field}: {column.name} is {column.type}",
            hint="year, month, day and hour take times; identity, bucket and truncate take numbers and texts",
        )
    if field.transform in ("bucket", "truncate") and not (field.parameter and field.parameter > 0):
        raise UsageError(
            f"{field.transform} of {column.name} needs a width above 0", hint=f"{field.transform}(16, column)"
        )


def apply_transform(field: PartitionField, values: pa.Array) -> pa.Array:
    """The transformed values; nulls stay null. They are of a type that holds them: those of `truncate` may be below the
    least value of the column's type, and moments in nanoseconds are partitioned by microsecond."""
    match field.transform:
        case "identity":
            return _microseconds(values) if values.type == pa.timestamp("ns", _zone(values.type)) else values
        case "year" | "month" | "day" | "hour":
            return _time_ordinals(field.transform, values)
        case "bucket":
            return _buckets(values, field.parameter or 1)
        case "truncate":
            return _truncated(values, field.parameter or 1)


def partition_id(definition: TableDefinition, values: tuple[Any, ...]) -> str:
    """The id in part names, `[A-Za-z0-9.=-]+`: one for each partition, whatever its values."""
    if not definition.partition_by:
        return UNPARTITIONED
    pieces = [
        _field_id(field, value, definition.column(field.column).type)
        for field, value in zip(definition.partition_by, values, strict=True)
    ]
    joined = ".".join(pieces)
    return joined if len(joined) <= 120 else _hashed(joined)


def partition_values_json(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values as `part.json` holds them."""
    return tuple(as_json(value) for value in values)


def mended_values(
    values: tuple[Any, ...], columns: Mapping[str, ColumnRange], definition: TableDefinition
) -> tuple[Any, ...]:
    """The `partition_values` of a part with these, which an older version may have computed wrongly, and with these
    ranges of columns: what the values of a column say where all are of one partition."""
    if len(values) != len(definition.partition_by):
        return values
    fields = zip(definition.partition_by, values, strict=True)
    return tuple(_mended(field, value, columns, definition.column(field.column)) for field, value in fields)


def _mended(field: PartitionField, stored: Any, columns: Mapping[str, ColumnRange], column: Column) -> Any:
    known, kind = columns.get(str(column.id)), arrow_type(column.type)
    if stored is None or known is None or known.min is None or known.max is None:
        return stored
    if field.transform == "identity" and pa.types.is_timestamp(kind) and kind.unit == "ns":
        return _whole_microsecond(stored)
    if field.transform == "truncate" and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        ends = pa.array([from_json(known.min, kind), from_json(known.max, kind)], kind)
        low, high = apply_transform(field, ends).to_pylist()
        return as_json(low) if low == high else stored
    return stored


class Partition(msgspec.Struct, frozen=True):
    """A partition that occurs in a table, with how many of its rows belong to it."""

    id: str
    values: tuple[Any, ...]
    rows: int


def partition_rows(table: pa.Table, definition: TableDefinition) -> tuple[pa.Array | None, list[Partition]]:
    """A number for each row, and the partition of each number, in order of first appearance.

    The numbers are None when all rows belong to one partition.
    """
    if not definition.partition_by or table.num_rows == 0:
        return None, [Partition(partition_id(definition, ()), (), table.num_rows)] if table.num_rows else []
    codes, groups = _group_rows(table, definition)
    ids = [partition_id(definition, values) for values in groups]
    if len(groups) == 1:
        return None, [Partition(ids[0], groups[0], table.num_rows)]
    counts = {int(item["values"]): int(item["counts"]) for item in pc.value_counts(codes).to_pylist()}
    return codes, [Partition(ids[code], groups[code], counts[code]) for code in range(len(groups))]


def _group_rows(table: pa.Table, definition: TableDefinition) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """A dense group number for each row, and the values of each group."""
    codes: pa.Array = pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)
    groups: list[tuple[Any, ...]] = [()]
    for field in definition.partition_by:
        encoded = apply_transform(field, one_array(table.column(field.column))).dictionary_encode("encode")
        values = _python_values(encoded.dictionary)
        if groups == [()]:
            codes, groups = encoded.indices.cast(pa.int64()), [(value,) for value in values]
            continue
        pairs = pc.add(pc.multiply(codes, len(values)), encoded.indices.cast(pa.int64())).dictionary_encode()
        groups = [(*groups[pair // len(values)], values[pair % len(values)]) for pair in pairs.dictionary.to_pylist()]
        codes = pairs.indices.cast(pa.int64())
    return codes, groups


def _python_values(values: pa.Array) -> list[Any]:
    """The values; moments as `part.json` holds them, for Python's do not reach the first and last day in every zone."""
    if pa.types.is_timestamp(values.type):
        counts = values.cast(pa.int64()).to_pylist()
        return [None if count is None else moment_text(count, values.type.unit) for count in counts]
    return list(values.to_pylist())


def _zone(kind: pa.DataType) -> str | None:
    return kind.tz if pa.types.is_timestamp(kind) else None


def _microseconds(moments: pa.Array) -> pa.Array:
    """Moments in nanoseconds, rounded towards the past."""
    counts = moments.cast(pa.int64())
    whole = pc.divide(counts, 1000)
    floors = pc.subtract(whole, pc.greater(pc.multiply(whole, 1000), counts).cast(pa.int64()))
    return floors.cast(pa.timestamp("us", moments.type.tz))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


# ---- times


def _time_ordinals(transform: str, values: pa.Array) -> pa.Array:
    """Whole years, months, days or hours since 1970-01-01 UTC, rounded towards the past."""
    if pa.types.is_timestamp(values.type) and values.type.tz:
        # The same instant in UTC: a change of the type only.
        values = values.cast(pa.timestamp(values.type.unit, "UTC")).cast(pa.timestamp(values.type.unit))
    match transform:
        case "year":
            return pc.subtract(pc.year(values), 1970).cast(pa.int32())
        case "month":
            months = pc.add(pc.multiply(pc.subtract(pc.year(values), 1970), 12), pc.subtract(pc.month(values), 1))
            return months.cast(pa.int32())
        case "day":
            return values.cast(pa.date32(), safe=False).cast(pa.int32())
        case _:
            return pc.hours_between(pa.scalar(datetime(1970, 1, 1), values.type), values).cast(pa.int32())


def _time_text(transform: str, ordinal: int) -> str:
    match transform:
        case "year":
            return f"{1970 + ordinal:04d}"
        case "month":
            return f"{1970 + ordinal // 12:04d}{ordinal % 12 + 1:02d}"
        case "day":
            return _day_text(_EPOCH + timedelta(days=ordinal))
        case _:
            days, hour = divmod(ordinal, 24)
            return f"{_day_text(_EPOCH + timedelta(days=days))}{hour:02d}"


def _day_text(day: date) -> str:
    """The year as it is: whether `strftime` pads it with zeros depends on the system, and an id must not change."""
    return f"{day.year}{day.month:02d}{day.day:02d}"


# ---- bucket: murmur3, 32 bits, seed 0, as the Iceberg specification says


def _buckets(values: pa.Array, count: int) -> pa.Array:
    hashes = _hash_numbers(values) if _hashes_as_number(values.type) else _hash_distinct(values)
    positive = pc.bit_wise_and(hashes, pa.scalar(0x7FFFFFFF, pa.int64()))
    return pc.subtract(positive, pc.multiply(pc.divide(positive, count), count)).cast(pa.int32())


def _hashes_as_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _hash_numbers(values: pa.Array) -> pa.Array:
    """Whole numbers, dates (days) and timestamps (microseconds) hash as eight little-endian bytes."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    bits = values.cast(pa.int64(), safe=False).cast(pa.uint64(), safe=False)
    mask = pa.scalar(0xFFFFFFFF, pa.uint64())
    state = pa.scalar(0, pa.uint64())
    for word in (pc.bit_wise_and(bits, mask), pc.shift_right(bits, pa.scalar(32, pa.uint64()))):
        mixed = _multiplied(_rotated(_multiplied(word, 0xCC9E2D51), 15), 0x1B873593)
        rotated = _rotated(pc.bit_wise_xor(mixed, state), 13)
        state = pc.bit_wise_and(pc.add(pc.multiply(rotated, _u64(5)), _u64(0xE6546B64)), mask)
    state = pc.bit_wise_xor(state, _u64(8))
    state = _multiplied(pc.bit_wise_xor(state, pc.shift_right(state, _u64(16))), 0x85EBCA6B)
    state = _multiplied(pc.bit_wise_xor(state, pc.shift_right(state, _u64(13))), 0xC2B2AE35)
    return pc.bit_wise_xor(state, pc.shift_right(state, _u64(16))).cast(pa.int64())


def _u64(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint64())


def _multiplied(words: pa.Array, factor: int) -> pa.Array:
    return pc.bit_wise_and(pc.multiply(words, _u64(factor)), _u64(0xFFFFFFFF))


def _rotated(words: pa.Array, bits: int) -> pa.Array:
    high = pc.bit_wise_and(pc.shift_left(words, _u64(bits)), _u64(0xFFFFFFFF))
    return pc.bit_wise_or(high, pc.shift_right(words, _u64(32 - bits)))


def _hash_distinct(values: pa.Array) -> pa.Array:
    encoded = values.dictionary_encode()
    table = pa.array([murmur3(_hashed_bytes(value)) for value in encoded.dictionary.to_pylist()], pa.int64())
    return table.take(encoded.indices)


def _hashed_bytes(value: Any) -> bytes:
    match value:
        case str():
            return value.encode()
        case Decimal():
            unscaled = int(value.scaleb(-int(value.as_tuple().exponent), _BUCKETED))
            return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
        case _:
            return bytes(value)


def murmur3(data: bytes) -> int:
    """MurmurHash3 x86 32 bits with seed 0, as an unsigned number."""
    state, whole = 0, len(data) // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        state ^= (word << 15 | word >> 17) * 0x1B873593 & 0xFFFFFFFF
        state = ((state << 13 | state >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    if tail := int.from_bytes(data[whole:], "little"):
        word = tail * 0xCC9E2D51 & 0xFFFFFFFF
        state ^= (word << 15 | word >> 17) * 0x1B873593 & 0xFFFFFFFF
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16


# ---- truncate


def _truncated(values: pa.Array, width: int) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_binary(kind):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal(kind):
        encoded = values.dictionary_encode()
        floors = [_floor(value, width, kind.scale) for value in encoded.dictionary.to_pylist()]
        return pa.array(floors, pa.decimal256(76, kind.scale)).take(encoded.indices)
    if pa.types.is_uint64(kind):
        step = pa.scalar(width, kind)
        return pc.multiply(pc.divide(values, step), step)
    whole, step = values.cast(pa.int64()), pa.scalar(width, pa.int64())
    floor = pc.multiply(pc.divide(whole, step), step)
    # Division rounds towards zero, truncation towards minus infinity. The least numbers of 64 bits have no multiple
    # below them: their partition is called after the least number.
    lower = pc.if_else(pc.less(floor, _LOWEST + width), pa.scalar(_LOWEST, pa.int64()), pc.subtract(floor, step))
    return pc.if_else(pc.greater(floor, whole), lower, floor)


def _floor(value: Decimal, width: int, scale: int) -> Decimal:
    """The highest multiple of `width` units of the last decimal place that is not above the value."""
    unscaled = int(value.scaleb(scale, _EXACT))
    return Decimal(unscaled // width * width).scaleb(-scale, _EXACT)


# ---- ids


def _field_id(field: PartitionField, value: Any, type_text: str) -> str:
    if value is None:
        return NULL_ID
    if field.transform in _TIME_TRANSFORMS:
        text = _time_text(field.transform, int(value))
        return text if _PLAIN.match(text) else _hashed(text)
    match value:
        case bool():
            return "true" if value else "false"
        case int() if field.transform == "truncate":
            text = str(lowest_id(field, value, type_text))
        case str() if type_text.startswith("timestamp"):
            text = _moment_id(value)
        case date():
            return _day_text(value)
        case bytes():
            text = value.hex()
            return f"x{text}" if len(text) <= 40 else _hashed(value)
        case _:
            text = str(value)
    # A text that reads like a null, an escaped one or a hash would be taken for it.
    plain = _PLAIN.match(text) and text not in (NULL_ID, UNPARTITIONED) and "=" not in text
    return text if plain else _hashed(text)


def _moment_id(text: str) -> str:
    """Of a moment as `part.json` holds it: `20260131T120000`, with `-` and the fraction of the second behind it."""
    day, _, clock = text.removesuffix("Z").partition("T")
    year, month, rest = day.split("-")
    second, _, fraction = clock.replace(":", "").partition(".")
    return f"{int(year)}{month}{rest}T{second}" + (f"-{fraction}" if fraction else "")


def _whole_microsecond(text: str) -> str:
    """A moment as `part.json` holds it, without what is finer than a microsecond."""
    second, _, fraction = text.removesuffix("Z").partition(".")
    return f"{second}.{fraction[:6]}Z" if fraction[:6].strip("0") else f"{second}Z"


def _hashed(value: str | bytes) -> str:
    data = value.encode() if isinstance(value, str) else value
    prefix = re.sub(rb"[^A-Za-z0-9]+", b"-", data[:16]).decode().strip("-")
    return f"{prefix}={hashlib.sha256(data).hexdigest()[:20]}"


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values have an order and a text of their own."""
    return not (pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind) or kind == pa.uuid())
