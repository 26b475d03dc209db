"""Lists, maps and structs of one type as another: field by field, by name. Pure.

A struct's fields may come in any order, and some of them not at all: they are null then. A map comes as a map, as a
list of structs of a key and a value, or as a struct, whose fields that are null are not in it. A text is JSON, a map
in it an object or a list of pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isinf
from typing import Any

import pyarrow as pa

from oplog.errors import UsageError
from tiering.table.columns.kept_values import is_text
from tiering.table.names import listed

_TEXT = pa.string()


class _Fraction(float):
    """A number of JSON, with its digits: a decimal takes these, for a float does not have them all."""

    def __new__(cls, digits: str) -> _Fraction:
        number = super().__new__(cls, digits)
        number.digits = digits
        return number

    digits: str


Cast = Callable[[pa.Array, pa.DataType], pa.Array]
"""For values that are not nested."""


def cast_nested(array: pa.Array, kind: pa.DataType, cast: Cast) -> pa.Array:
    """The array as the nested type. Raises `pa.ArrowException` for what does not fit, `UsageError` for fields that the
    type does not have."""
    source = array.type
    if source.equals(kind):
        return array
    if pa.types.is_null(source):
        return pa.nulls(len(array), kind)
    if is_text(source):
        return _of_texts(array, kind, cast)
    if not pa.types.is_nested(kind):
        return cast(array, kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(source):
        return _struct(array, kind, cast)
    if pa.types.is_map(kind):
        return _map(array, kind, cast)
    if pa.types.is_list(kind) and (pa.types.is_list(source) or pa.types.is_large_list(source) or _is_fixed(source)):
        plain = plain_list(array)
        values = _inner(plain.values, kind.value_type, cast)
        return pa.ListArray.from_arrays(plain.offsets, values, mask=plain.is_null()).cast(kind)
    raise pa.ArrowInvalid(f"{source} is no {kind}")


def without_unknown(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array without those fields of structs that the type does not have. Raises `pa.ArrowInvalid` for a text
    that is no JSON."""
    if pa.types.is_nested(kind) and not pa.types.is_map(kind) and is_text(array.type):
        array = parsed(array, kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        known = {field.name: field.type for field in kind}
        kept = {
            field.name: without_unknown(struct_member(array, number), known[field.name])
            for number, field in enumerate(array.type)
            if field.name in known
        }
        if kept:
            return pa.StructArray.from_arrays(list(kept.values()), names=list(kept), mask=array.is_null())
        return pa.nulls(len(array), kind)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        plain = plain_list(array)
        values = without_unknown(plain.values, kind.value_type)
        return pa.ListArray.from_arrays(plain.offsets, values, mask=plain.is_null())
    return array


def holds_map(kind: pa.DataType) -> bool:
    """Whether there is a map anywhere in the type."""
    if pa.types.is_struct(kind):
        return any(holds_map(field.type) for field in kind)
    return bool(pa.types.is_map(kind) or (pa.types.is_list(kind) and holds_map(kind.value_type)))


def with_texts(kind: pa.DataType, is_text: Callable[[pa.DataType], bool], instead: pa.DataType = _TEXT) -> pa.DataType:
    """The type, with texts in the place of those that are read as such; or with another type."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, with_texts(field.type, is_text, instead)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(with_texts(kind.value_type, is_text, instead))
    return instead if is_text(kind) else kind


def _inner(array: pa.Array, kind: pa.DataType, cast: Cast) -> pa.Array:
    if pa.types.is_nested(kind) or pa.types.is_null(array.type):
        return cast_nested(array, kind, cast)
    return cast(array, kind)


def struct_member(array: pa.StructArray, number: int) -> pa.Array:
    """The values of a field, null where the struct is."""
    import pyarrow.compute as pc

    return pc.struct_field(array, [number])


def _struct(array: pa.StructArray, kind: pa.StructType, cast: Cast) -> pa.Array:
    given = {field.name: number for number, field in enumerate(array.type)}
    if unknown := sorted(set(given) - {field.name for field in kind}):
        raise UsageError(
            f"there are fields that the table does not have: {listed(unknown)}",
            hint=f"it has: {listed([field.name for field in kind])}; --ignore-unknown leaves the others out",
        )
    fields = [
        _inner(struct_member(array, given[field.name]), field.type, cast)
        if field.name in given
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())


def _map(array: pa.Array, kind: pa.MapType, cast: Cast) -> pa.Array:
    if pa.types.is_struct(array.type):
        array = _entries(array, kind.item_type, cast)
    elif pa.types.is_list(array.type) and pa.types.is_null(array.type.value_type):
        return pa.array(array.to_pylist(), kind)  # none of them has an entry
    elif pa.types.is_list(array.type) and pa.types.is_struct(array.type.value_type):
        plain = plain_list(array)
        if plain.values.type.num_fields != 2:
            raise pa.ArrowInvalid(f"{array.type} is no {kind}")
        return _map_of(plain, plain.values.field(0), plain.values.field(1), kind, cast)
    if not pa.types.is_map(array.type):
        raise pa.ArrowInvalid(f"{array.type} is no {kind}")
    plain = copied(array)
    return _map_of(plain, plain.keys, plain.items, kind, cast)


def _entries(array: pa.StructArray, item_type: pa.DataType, cast: Cast) -> pa.MapArray:
    """The fields of structs that have a value, as the entries of maps: by their positions, for Python does not have
    every value."""
    names = [field.name for field in array.type]
    columns = [_inner(field, item_type, cast) for field in array.flatten()]
    items = pa.concat_arrays([pa.nulls(0, item_type), *columns])
    held = [column.is_valid().to_pylist() for column in columns]
    keys: list[str] = []
    order: list[int] = []
    offsets = [0]
    for row in range(len(array)):
        there = [number for number, valid in enumerate(held) if valid[row]]
        keys += [names[number] for number in there]
        order += [number * len(array) + row for number in there]
        offsets.append(len(order))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(keys, pa.string()),
        items.take(pa.array(order, pa.int64())),
        type=pa.map_(pa.string(), item_type),
        mask=array.is_null(),
    )


def _map_of(array: pa.Array, keys: pa.Array, items: pa.Array, kind: pa.MapType, cast: Cast) -> pa.Array:
    keys, items = _inner(keys, kind.key_type, cast), _inner(items, kind.item_type, cast)
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())


def plain_list(array: pa.Array) -> pa.ListArray:
    kind = pa.list_(array.type.value_type)
    return copied(array if array.type.equals(kind) else array.cast(kind))


def copied(array: Any) -> Any:
    """With its own values alone, as building an array from offsets wants it: those of rows outside of a slice may not
    fit."""
    count = len(array.keys if pa.types.is_map(array.type) else array.values)
    is_whole = array.offset == 0 and len(array) and array.offsets[0].as_py() == 0 and array.offsets[-1].as_py() == count
    return array if is_whole else array.take(pa.array(range(len(array)), pa.int64()))


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))


def _of_texts(array: pa.Array, kind: pa.DataType, cast: Cast) -> pa.Array:
    found = parsed(array, kind)
    if not (pa.types.is_nested(found.type) or pa.types.is_null(found.type)):
        raise pa.ArrowInvalid(f"a text is no JSON for {kind}: {found.type}")
    return cast_nested(found, kind, cast)


def parsed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What texts of JSON for the nested type hold, in types of their own. Raises `pa.ArrowInvalid`."""
    try:
        values = [None if text is None else _loaded(text) for text in array.to_pylist()]
        return pa.array([_as_pairs(value, kind) for value in values])
    except (ValueError, TypeError, OverflowError) as error:
        raise pa.ArrowInvalid(f"a text is no JSON for {kind}: {error}") from error


def _loaded(text: str) -> Any:
    return json.loads(text, parse_float=_Fraction)


def _as_pairs(value: Any, kind: pa.DataType) -> Any:
    """The value with lists of pairs where the type has maps; JSON where it has texts, digits where it has decimals."""
    if pa.types.is_decimal(kind) and isinstance(value, int | float) and not isinstance(value, bool):
        return value.digits if isinstance(value, _Fraction) else str(value)
    if pa.types.is_floating(kind) and isinstance(value, _Fraction) and isinf(value):
        raise ValueError(f"{value.digits} is too large for a {kind}")
    if pa.types.is_floating(kind) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [{"key": key, "value": _as_pairs(item, kind.item_type)} for key, item in value.items()]
    if (
        pa.types.is_map(kind)
        and isinstance(value, list)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    ):
        return [{"key": key, "value": _as_pairs(item, kind.item_type)} for key, item in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        types = {field.name: field.type for field in kind}
        return {name: _as_pairs(item, types[name]) if name in types else item for name, item in value.items()}
    if pa.types.is_string(kind) and not isinstance(value, str | None):
        return json.dumps(value, ensure_ascii=False)
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_as_pairs(item, kind.value_type) for item in value]
    return value
