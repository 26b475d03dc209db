"""ClickHouse's columns as columns of ours: which type becomes which. Pure.

| ClickHouse | here |
|---|---|
| Bool, (U)Int8 to 64, Float32, Float64, String | the same |
| Date, Date32 | date |
| DateTime, DateTime64(P) | timestamp in UTC, of ms, us or ns |
| Decimal up to 38 digits | decimal |
| FixedString(N) | binary |
| Enum, UUID, IPv4, IPv6 | string |
| Nullable(T), LowCardinality(T), Array(T), SimpleAggregateFunction(f, T) | nullable, T, list<T>, T |

Every other type is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from oplog.clickhouse.columns import SourceColumn
from oplog.clickhouse.types import Argument, ColumnType, NotAType, parse, written
from oplog.errors import UsageError

_SIMPLE = {
    "Bool": pa.bool_(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
}
_AS_TEXT = ("String", "UUID", "IPv4", "IPv6")
_DIGITS = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38}
_ZONE_SIGNS = frozenset("/_+-")
_DEEPEST = 32
_LONGEST_FIXED = 0xFFFFFF
"""Bytes of a FixedString that ClickHouse takes."""


class Mapping(msgspec.Struct, frozen=True):
    """What becomes of a type: the Arrow type, and the one of ClickHouse's to which the values are cast for that."""

    arrow: pa.DataType
    cast: str
    nullable: bool = False


def mapping_of(column: SourceColumn) -> Mapping:
    """Raises `UsageError` that names the column and its type when tables here cannot hold it."""
    try:
        return _mapping(_parsed(column), 0)
    except _Unknown as unknown:
        inside = "" if unknown.args[0] == column.kind else f", in {column.kind}"
        raise UsageError(
            f"column {column.name} has the type {unknown.args[0]}{inside}, which no table here can hold",
            hint="ClickHouse can rewrite it: ALTER TABLE … MODIFY COLUMN, or a table with another type",
        ) from unknown


def declared_type(column: SourceColumn) -> str:
    """The column's type as a statement has it: written from what was understood. Raises as `mapping_of` does."""
    mapping_of(column)
    return written(_parsed(column))


def text_condition(expression: str, cast: str) -> str | None:
    """A condition of ClickHouse's that holds where all texts of the value are UTF-8; None when it has none."""
    kind = cast
    if kind.startswith("Array("):
        inner = text_condition("x", kind[6:-1])
        return f"arrayAll(x -> {inner}, {expression})" if inner else None
    return f"ifNull(isValidUTF8({expression}), 1)" if kind in ("String", "Nullable(String)") else None


class _Unknown(Exception):
    """A type that has no mapping."""


def _parsed(column: SourceColumn) -> ColumnType:
    try:
        return parse(column.kind)
    except NotAType:
        raise _Unknown(column.kind) from None


def _mapping(column_type: ColumnType, depth: int) -> Mapping:
    name, arguments = column_type.name, column_type.arguments
    if depth > _DEEPEST:
        raise _Unknown(written(column_type))
    if arguments is None:
        if name in _SIMPLE:
            return Mapping(_SIMPLE[name], name)
        if name in _AS_TEXT:
            return Mapping(pa.string(), "String")
        if name in ("Date", "Date32"):
            return Mapping(pa.date32(), "Date32")
        if name == "DateTime":
            return _timestamp(0)
        raise _Unknown(name)
    types, numbers = _types(arguments), _numbers(arguments)
    match name:
        case "Enum8" | "Enum16" if arguments and all(map(_is_value, arguments)):
            return Mapping(pa.string(), "String")
        case "DateTime" if len(arguments) == 1 and _is_zone(arguments[0]):
            return _timestamp(0)
        case "DateTime64" if _is_moment(arguments):
            return _timestamp(int(arguments[0].number or 0))
        case "Decimal" | "Decimal32" | "Decimal64" | "Decimal128" if numbers is not None:
            if (decimal := _decimal(name, numbers)) is not None:
                return decimal
        case "FixedString" if numbers is not None and len(numbers) == 1 and 1 <= numbers[0] <= _LONGEST_FIXED:
            return Mapping(pa.binary(), f"FixedString({numbers[0]})")
        case "LowCardinality" if len(types) == 1:
            return _mapping(types[0], depth + 1)
        case "SimpleAggregateFunction" if len(types) == 2 and types[0].arguments is None:
            return _mapping(types[1], depth + 1)
        case "Nullable" if len(types) == 1:
            inner = _mapping(types[0], depth + 1)
            return Mapping(inner.arrow, f"Nullable({inner.cast})", nullable=True)
        case "Array" if len(types) == 1:
            inner = _mapping(types[0], depth + 1)
            return Mapping(pa.list_(inner.arrow), f"Array({inner.cast})")
    raise _Unknown(written(column_type))


def _types(arguments: Sequence[Argument]) -> list[ColumnType]:
    """The arguments, where all are types without a name; else none."""
    found = [one.type for one in arguments if one.type is not None and one.name is None]
    return found if len(found) == len(arguments) else []


def _numbers(arguments: Sequence[Argument]) -> list[int] | None:
    """The arguments, where all are whole numbers that are not negative."""
    texts = [one.number for one in arguments if one.number is not None and one.text is None]
    if len(texts) != len(arguments) or not all(text.isdecimal() for text in texts):
        return None
    return list(map(int, texts))


def _is_value(argument: Argument) -> bool:
    return argument.text is not None and argument.number is not None and "." not in argument.number


def _is_zone(argument: Argument) -> bool:
    text = argument.text
    if not text or argument.number is not None:
        return False
    return text.isascii() and all(sign.isalnum() or sign in _ZONE_SIGNS for sign in text)


def _is_moment(arguments: Sequence[Argument]) -> bool:
    """Of a DateTime64: its digits, and a time zone perhaps."""
    digits = _numbers(arguments[:1])
    return digits is not None and [0] <= digits <= [9] and len(arguments) <= 2 and all(map(_is_zone, arguments[1:]))


def _timestamp(digits: int) -> Mapping:
    unit, kept = ("ms", 3) if digits <= 3 else ("us", 6) if digits <= 6 else ("ns", 9)
    return Mapping(pa.timestamp(unit, tz="UTC"), f"DateTime64({kept}, 'UTC')")


def _decimal(name: str, numbers: Sequence[int]) -> Mapping | None:
    """None for one with more digits than a decimal here."""
    if name in _DIGITS and len(numbers) == 1:
        precision, scale = _DIGITS[name], numbers[0]
    elif name == "Decimal" and 1 <= len(numbers) <= 2:
        precision, scale = (*numbers, 0)[:2]
    else:
        return None
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        return None
    return Mapping(pa.decimal128(precision, scale), f"Decimal({precision}, {scale})")
