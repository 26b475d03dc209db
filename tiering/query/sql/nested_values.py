"""Values of older files as expressions of the query engine: the fields within a column found by their ids."""

from __future__ import annotations

import pyarrow as pa

from tiering.query.sql.column_types import identifier, sql_type, text
from tiering.table.columns.nested_ids import column_type, field_id
from tiering.table.schema import Column


def current_value(value: str, held: pa.DataType, column: Column) -> str:
    """The column's value of today from one of a file, which has the type `held`: a field that was renamed since has its
    new name, one that was dropped is left out, one that was added is null."""
    return _shaped(value, held, column_type(column), 0)


def _shaped(value: str, held: pa.DataType, kind: pa.DataType, level: int) -> str:
    name = f"v{level}"
    if pa.types.is_struct(kind):
        by_id = {field_id(field): field for field in held}
        members = []
        for field in kind:
            source = by_id.get(field_id(field))
            if source is None:
                member = f"CAST(NULL AS {sql_type(field.type)})"
            else:
                member = _shaped(f"struct_extract({value}, {text(source.name)})", source.type, field.type, level)
            members.append(f"{identifier(field.name)} := {member}")
        return _unless_null(value, f"struct_pack({', '.join(members)})")
    if pa.types.is_map(kind):
        key = _shaped(f"{name}.key", held.key_type, kind.key_type, level + 1)
        item = _shaped(f"{name}.value", held.item_type, kind.item_type, level + 1)
        entries = f"list_transform(map_entries({value}), lambda {name}: struct_pack(k := {key}, v := {item}))"
        return _unless_null(value, f"map_from_entries({entries})")
    if pa.types.is_list(kind):
        element = _shaped(name, held.value_type, kind.value_type, level + 1)
        return f"list_transform({value}, lambda {name}: {element})"
    return value


def _unless_null(value: str, expression: str) -> str:
    return f"CASE WHEN {value} IS NULL THEN NULL ELSE {expression} END"
