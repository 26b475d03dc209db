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

import re
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from oplog.clickhouse.columns import SourceColumn
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
_CHECKED = re.compile(
    r"""Enum(?:8|16)\((?:'(?:[^'\\]|\\.)*'\ =\ -?\d+(?:,\ (?!\))|(?=\))))+\)
    |DateTime(?:\('[\w+/-]+'\))?|DateTime64\(\d(?:,\ '[\w+/-]+')?\)|FixedString\(\d+\)""",
    re.VERBOSE | re.ASCII,
)
"""Types with texts of the part's inside: they go into a query, so nothing else may stand there."""
_AS_TEXT = ("String", "UUID", "IPv4", "IPv6")
_DIGITS = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38}
_DEEPEST = 32


class Mapping(msgspec.Struct, frozen=True):
    """What becomes of a type: the Arrow type, and the one of ClickHouse's to which the values are cast for that."""

    arrow: pa.DataType
    cast: str
    nullable: bool = False


def mapping_of(column: SourceColumn) -> Mapping:
    """Raises `UsageError` that names the column and its type when tables here cannot hold it."""
    try:
        return _mapping(column.kind, 0)
    except _Unknown as unknown:
        inside = "" if unknown.args[0] == column.kind else f", in {column.kind}"
        raise UsageError(
            f"column {column.name} has the type {unknown.args[0]}{inside}, which no table here can hold",
            hint="ClickHouse can rewrite it: ALTER TABLE … MODIFY COLUMN, or a table with another type",
        ) from unknown


def text_condition(expression: str, cast: str) -> str | None:
    """A condition of ClickHouse's that holds where all texts of the value are UTF-8; None when it has none."""
    kind = cast
    if kind.startswith("Array("):
        inner = text_condition("x", kind[6:-1])
        return f"arrayAll(x -> {inner}, {expression})" if inner else None
    return f"ifNull(isValidUTF8({expression}), 1)" if kind in ("String", "Nullable(String)") else None


class _Unknown(Exception):
    """A type that has no mapping."""


def _mapping(kind: str, depth: int) -> Mapping:
    word, _, rest = kind.partition("(")
    inside = _arguments(rest.removesuffix(")")) if kind.endswith(")") else []
    if kind in _SIMPLE:
        return Mapping(_SIMPLE[kind], kind)
    checked = _CHECKED.fullmatch(kind) is not None
    if kind in _AS_TEXT or (checked and word in ("Enum8", "Enum16")):
        return Mapping(pa.string(), "String")
    if kind in ("Date", "Date32"):
        return Mapping(pa.date32(), "Date32")
    if checked and word in ("DateTime", "DateTime64"):
        return _timestamp(int(inside[0]) if word == "DateTime64" else 0, kind)
    if word.startswith("Decimal") and all(text.isdecimal() for text in inside):
        return _decimal(word, [int(text) for text in inside], kind)
    if checked and word == "FixedString":
        return Mapping(pa.binary(), kind)
    if depth < _DEEPEST and inside:
        if word == "LowCardinality" and len(inside) == 1:
            return _mapping(inside[0], depth + 1)
        if word == "SimpleAggregateFunction" and len(inside) == 2 and inside[0].isidentifier():
            return _mapping(inside[1], depth + 1)
        if word == "Nullable" and len(inside) == 1:
            inner = _mapping(inside[0], depth + 1)
            return Mapping(inner.arrow, f"Nullable({inner.cast})", nullable=True)
        if word == "Array" and len(inside) == 1:
            inner = _mapping(inside[0], depth + 1)
            return Mapping(pa.list_(inner.arrow), f"Array({inner.cast})")
    raise _Unknown(kind)


def _timestamp(digits: int, kind: str) -> Mapping:
    if not 0 <= digits <= 9:
        raise _Unknown(kind)
    unit, kept = ("ms", 3) if digits <= 3 else ("us", 6) if digits <= 6 else ("ns", 9)
    return Mapping(pa.timestamp(unit, tz="UTC"), f"DateTime64({kept}, 'UTC')")


def _decimal(word: str, numbers: Sequence[int], kind: str) -> Mapping:
    precision, scale = (_DIGITS.get(word, 0), *numbers) if len(numbers) == 1 else (*numbers, 0, 0)[:2]
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise _Unknown(kind)
    return Mapping(pa.decimal128(precision, scale), f"Decimal({precision}, {scale})")


def _arguments(text: str) -> list[str]:
    """What stands between commas that are in no parentheses and no quotes."""
    found, depth, quoted, begin = [], 0, False, 0
    for place, character in enumerate(text):
        if character == "'":
            quoted = not quoted
        elif not quoted and character in "()":
            depth += 1 if character == "(" else -1
        elif not quoted and character == "," and not depth:
            found.append(text[begin:place].strip())
            begin = place + 1
    return [*found, text[begin:].strip()] if text else []
