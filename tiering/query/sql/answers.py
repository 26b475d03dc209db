"""What the engine answers, in types that files and other programs know."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa

from tiering.table.columns.types import cast_column
from tiering.table.schema import Column

WHOLE_NUMBER = {b"frostline:whole": b"1"}
"""Of a decimal that is a sum of whole numbers: a number like any other, but for its width."""


def answer_schema(relation: Any) -> pa.Schema:
    """The columns of the answer, of which nothing is computed."""
    found = relation.limit(0).to_arrow_table().schema
    return pa.schema(
        [
            pa.field(name, plain_type(kind), metadata=WHOLE_NUMBER if str(own) == "HUGEINT" else None)
            for name, own, kind in zip(relation.columns, relation.types, found.types, strict=True)
        ]
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without the engine's own variants."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind) or pa.types.is_interval(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly these types."""
    if not schema.names:
        return batch.select([])
    arrays = [_conformed(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type.equals(kind):
        return array
    if pa.types.is_interval(array.type) and pa.types.is_duration(kind):
        return _durations(array).cast(kind)
    if kind == pa.uuid():
        return cast_column(array, Column(0, "", "uuid"), where="", first_row=0)
    if pa.types.is_interval(array.type):
        return pa.array([None if value is None else _interval(value) for value in array.to_pylist()], kind)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array if array.type.equals(kind) else array.cast(kind)


def _durations(array: pa.Array) -> pa.Array:
    """Of intervals that were made of microseconds, and hold neither months nor days."""
    import pyarrow.compute as pc

    valid, words = array.buffers()
    numbers = pa.Array.from_buffers(pa.int64(), 2 * (array.offset + len(array)), [None, words])
    pairs = pa.Array.from_buffers(pa.list_(pa.int64(), 2), len(array), [valid], -1, array.offset, [numbers])
    return pc.divide(pc.list_element(pairs, 1), 1000).cast(pa.duration("us"))


def _interval(value: Any) -> str:
    """As SQL writes it, without what is 0."""
    counted = [f"{count} {unit}" for count, unit in ((value.months, "months"), (value.days, "days")) if count]
    microseconds = value.nanoseconds // 1000
    if microseconds or not counted:
        counted.append(f"{Decimal(microseconds).scaleb(-6):f} seconds")
    return " ".join(counted)
