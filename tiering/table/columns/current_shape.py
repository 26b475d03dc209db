"""What an older file holds of a column, as the column's type of today. Pure.

Fields within lists, maps and structs are found by their ids, as columns are: one that has another name since is
renamed, one that was dropped is left out, one that was added later is null.
"""

from __future__ import annotations

import pyarrow as pa

from tiering.table.columns.nested import copied, plain_list, struct_member
from tiering.table.columns.nested_ids import column_type, field_id, held_type, is_current
from tiering.table.columns.types import widened
from tiering.table.schema import Column, TableDefinition


def current_values(array: pa.Array, column: Column, definition: TableDefinition) -> pa.Array:
    """The values that a file of the table holds of the column, as its type of today."""
    kind = column_type(column)
    if is_current(array.type, column, definition) and (array.type.equals(kind) or not column.nested_ids):
        return widened(array, kind)
    held = held_type(array.type, column, definition)
    return widened(array, kind) if held is None else _shaped(array, held, kind)


def _shaped(array: pa.Array, held: pa.DataType, kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        places = {field_id(field): place for place, field in enumerate(held)}
        members = [
            _shaped(struct_member(array, place), held.field(place).type, field.type)
            if (place := places.get(field_id(field))) is not None
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        plain = copied(array)
        keys = _shaped(plain.keys, held.key_type, kind.key_type)
        values = _shaped(plain.items, held.item_type, kind.item_type)
        return pa.MapArray.from_arrays(plain.offsets, keys, values, type=kind, mask=plain.is_null())
    if pa.types.is_list(kind):
        plain = plain_list(array)
        values = _shaped(plain.values, held.value_type, kind.value_type)
        return pa.ListArray.from_arrays(plain.offsets, values, type=kind, mask=plain.is_null())
    return widened(array, kind)
