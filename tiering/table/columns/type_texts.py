"""The texts of column types in `table.json`, and their Arrow types. Pure.

`arrow_type` and `type_text` are inverse on canonical texts. Types nest: `list<T>`, `map<K, V>` and
`struct<name: T, "other name": T>`, in which every value may be null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from zoneinfo import ZoneInfo

import pyarrow as pa

from oplog.errors import UsageError
from tiering.table.names import NAME, check_name, check_told_apart, name_text, read_name

_SIMPLE: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
    "uuid": pa.uuid(),
}
_ALIASES = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "bytes": "binary",
    "date32": "date",
    "time[us]": "time",
    "duration[us]": "duration",
    "interval": "duration",
    "timestamp": "timestamp[us, UTC]",
    "datetime": "timestamp[us, UTC]",
}
_NAMES = {arrow: text for text, arrow in _SIMPLE.items()}
SIMPLE_TYPES = tuple(_SIMPLE)
"""The types without parameters."""
_TIMESTAMP = re.compile(
    r"timestamp\[\s*(s|ms|us|ns)\s*(?:,\s*(?:tz\s*=\s*)?([A-Za-z0-9_+:/-]+)\s*)?\]\Z", re.IGNORECASE
)
_DECIMAL = re.compile(r"decimal(?:128)?\(\s*(\d+)\s*,\s*(-?\d+)\s*\)\Z", re.IGNORECASE)
_OFFSET = re.compile(r"([+-](?:[01]\d|2[0-3])):?([0-5]\d)\Z")
_NESTED = re.compile(r"(list|map|struct)<(.*)>\Z", re.IGNORECASE | re.DOTALL)
_MOST_LEVELS = 32
_KNOWN = (
    "types are bool, int8 to int64, uint8 to uint64, float32, float64, string, binary, uuid, date, time, duration, "
    "timestamp[us], timestamp[us, UTC], decimal(10, 2), list<TYPE>, map<TYPE, TYPE> and struct<NAME: TYPE, …>"
)


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type of a type text or a common alias (`int`, `double`, `timestamp` = microseconds UTC).

    Raises `UsageError` that lists the known types.
    """
    return _arrow_type(text, 0)


def _arrow_type(text: str, level: int) -> pa.DataType:
    wanted = text.strip()
    lowered = wanted.lower()
    lowered = _ALIASES.get(lowered, lowered)
    if lowered in _SIMPLE:
        if level and lowered in ("uuid", "duration"):
            raise _not_inside(lowered)
        return _SIMPLE[lowered]
    source = wanted if lowered == wanted.lower() else lowered
    if match := _TIMESTAMP.match(source):
        return pa.timestamp(match[1].lower(), tz=match[2])
    if match := _DECIMAL.match(source):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise UsageError(
                f"not a decimal type: {text!r}",
                hint="precision is 1 to 38 and scale 0 to the precision; keep longer numbers as string or as float64",
            )
        return pa.decimal128(precision, scale)
    if (match := _NESTED.match(source)) and level < _MOST_LEVELS:
        return _nested(match[1].lower(), match[2], text, level + 1)
    raise UsageError(f"not a column type: {text!r}", hint=_KNOWN)


def _nested(word: str, inside: str, text: str, level: int) -> pa.DataType:
    pieces = list(split_outside(inside))
    if word == "list" and len(pieces) == 1:
        return pa.list_(_arrow_type(re.sub(r"\A\s*item:\s*", "", pieces[0], flags=re.IGNORECASE), level))
    if word == "map" and len(pieces) == 2:
        return pa.map_(_arrow_type(pieces[0], level), _arrow_type(pieces[1], level))
    if word != "struct":
        raise UsageError(f"not a column type: {text!r}", hint=_KNOWN)
    fields = []
    for piece in pieces:
        name, rest = read_name(piece)
        if not rest.startswith(":"):
            raise UsageError(f"not a column type: {text!r}", hint=_KNOWN)
        fields.append(pa.field(name, _arrow_type(rest[1:], level)))
    return _distinct(pa.struct(fields))


def type_text(kind: pa.DataType) -> str:
    """The canonical text of an Arrow type; variants that store the same values (large_string, dictionary, decimal64)
    map to the plain type. Raises `UsageError` for types that tables cannot hold, with what to do instead.
    """
    return _type_text(kind, 0)


def with_zones(kind: pa.DataType) -> pa.DataType:
    """The type, with each time zone as the libraries that read it know it: `Z` is `UTC`, `+0530` is `+05:30`. Raises
    `UsageError` for one that they do not know. Types of tables that are there already are not asked."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, _zone(kind.tz))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_zones(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(with_zones(kind.key_type), with_zones(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(with_zones(kind.value_type))
    return kind


@lru_cache(maxsize=64)
def _zone(name: str) -> str:
    if name.upper() in ("UTC", "Z"):
        return "UTC"
    if match := _OFFSET.match(name):
        return f"{match[1]}:{match[2]}"
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # what it raises for a bad name depends on the name
        raise UsageError(
            f"no such time zone: {name!r}", hint="use a name or an offset, such as UTC, Europe/Berlin or +05:30"
        ) from error
    return name


def simple_text(kind: pa.DataType) -> str | None:
    """The text of a type that has no parameters; None of any other."""
    return _NAMES.get(kind)


def _type_text(kind: pa.DataType, level: int) -> str:
    if kind in _NAMES:
        if level and kind in (pa.uuid(), pa.duration("us")):
            raise _not_inside(_NAMES[kind])
        return _NAMES[kind]
    for fits, text in _VARIANTS:
        if fits(kind):
            return text
    if pa.types.is_dictionary(kind):
        return _type_text(kind.value_type, level)
    if pa.types.is_timestamp(kind):
        return f"timestamp[{kind.unit}, {kind.tz}]" if kind.tz else f"timestamp[{kind.unit}]"
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_duration(kind) and kind.unit != "ns":
        return _type_text(pa.duration("us"), level)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"list<{_type_text(kind.value_type, level + 1)}>"
    if pa.types.is_map(kind):
        return f"map<{_type_text(kind.key_type, level + 1)}, {_type_text(kind.item_type, level + 1)}>"
    if pa.types.is_struct(kind):
        fields = (f"{name_text(check_name(one.name))}: {_type_text(one.type, level + 1)}" for one in _distinct(kind))
        return f"struct<{', '.join(fields)}>"
    raise UsageError(f"tables cannot hold the type {kind}", hint=_way_round(kind))


_VARIANTS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_binary_view, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
    (pa.types.is_date, "date"),
    (pa.types.is_float16, "float32"),
    (pa.types.is_time32, "time"),
)


def _way_round(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return "decimals have up to 38 digits: a shorter decimal takes the numbers that fit, and float64 all, rounded"
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        name = "time" if pa.types.is_time(kind) else "duration"
        return f"the type {name} has microseconds; int64 holds the number of nanoseconds"
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return "write it as a list, of which Arrow converts such a view"
    if isinstance(kind, pa.BaseExtensionType):
        return f"its values are stored as {kind.storage_type}: a column of such a type takes them"
    if pa.types.is_null(kind):
        return "there is no value to infer a type from"
    return _KNOWN


def _not_inside(name: str) -> UsageError:
    return UsageError(
        f"the type {name} cannot be inside of another type",
        hint="as a column of its own it can: insert --select 'a.b as c' takes a field out of a struct; "
        f"inside, {'string' if name == 'uuid' else 'int64'} holds the same",
    )


def _distinct(kind: pa.StructType) -> pa.StructType:
    """The struct itself. Raises `UsageError` where its fields cannot be told apart by who reads it."""
    hint = "rename one of them, or make columns of them with insert --select"
    check_told_apart((field.name for field in kind), "the fields", hint)
    if not kind.num_fields:
        raise UsageError("a struct without fields holds nothing", hint="leave it out, or keep it as a string")
    return kind


def split_outside(text: str) -> Iterator[str]:
    """The pieces of a list, which is split outside of quotes and brackets only."""
    depth, start, place = 0, 0, 0
    while place < len(text):
        character = text[place]
        if character == '"' and (match := NAME.match(text, place)):
            place = match.end()
            continue
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            yield text[start:place]
            start = place + 1
        place += 1
    yield text[start:]


def leaf_ranges(kinds: Iterator[pa.DataType] | list[pa.DataType]) -> list[range]:
    """For each column, which of a Parquet file's leaves hold its values: files keep those, and know no columns."""
    found, start = [], 0
    for kind in kinds:
        count = _leaves(kind)
        found.append(range(start, start + count))
        start += count
    return found


def fields_within(kind: pa.DataType) -> Iterator[tuple[tuple[str, ...], pa.DataType, range]]:
    """The fields of a type's structs, at any depth and outside of lists and maps: of these a row has one value. With
    the leaves that each has, counted from the type's first."""
    if not pa.types.is_struct(kind):
        return
    for field, leaves in zip(kind, leaf_ranges([field.type for field in kind]), strict=True):
        yield (field.name,), field.type, leaves
        for names, found, inner in fields_within(field.type):
            yield (field.name, *names), found, range(leaves.start + inner.start, leaves.start + inner.stop)


@lru_cache(maxsize=4096)
def field_type(text: str, fields: tuple[str, ...]) -> str | None:
    """The type of a field within the structs of a type; None where there is no such field."""
    if not fields:
        return text
    return next((type_text(kind) for names, kind, _ in fields_within(arrow_type(text)) if names == fields), None)


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(_leaves(field.type) for field in kind)
    if pa.types.is_nested(kind):
        return _leaves(kind.value_type)
    return 1
