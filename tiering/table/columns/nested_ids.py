"""The ids of the fields within a column's type: members of structs, elements of lists, keys and values of maps. Pure.

A column keeps them as a list, from the outside in and in the type's order (`Column.nested_ids`); in Arrow they are in
the metadata of the inner fields, which Parquet writers store. The middle group of a list or map has none. Files of a
table that is older than these ids have none either: `TableDefinition.late_ids` says which ones stand for their fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from oplog.errors import Damaged
from tiering.table.columns.type_texts import arrow_type, fields_within
from tiering.table.names import path_text
from tiering.table.schema import FORMAT, Column, LateIds, TableDefinition

FIELD_ID = b"PARQUET:field_id"


def nested_fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields directly within a type; none of a type that does not nest."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def of_fields(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """A type as `kind`, of other fields."""
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    return pa.map_(*fields) if pa.types.is_map(kind) else pa.list_(fields[0])


def step_names(kind: pa.DataType) -> list[str]:
    """What a path calls the fields directly within a type."""
    if pa.types.is_struct(kind):
        return [field.name for field in kind]
    return ["key", "value"] if pa.types.is_map(kind) else ["element"] if pa.types.is_list(kind) else []


def field_id(field: pa.Field) -> int | None:
    """The id in the field's metadata."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def ids_within(kind: pa.DataType) -> tuple[int, ...] | None:
    """The ids of all fields within the type; None where one of them has none."""
    found: list[int] = []
    for field in nested_fields(kind):
        number, inner = field_id(field), ids_within(field.type)
        if number is None or inner is None:
            return None
        found += [number, *inner]
    return tuple(found)


def count_within(kind: pa.DataType) -> int:
    """How many fields there are within the type."""
    return sum(1 + count_within(field.type) for field in nested_fields(kind))


def with_ids(kind: pa.DataType, ids: Sequence[int]) -> pa.DataType:
    """The type, with these ids of the fields within it. Raises `Damaged` where they are more or fewer."""
    if len(ids) != count_within(kind):
        raise Damaged(
            f"a definition has {len(ids)} ids for the fields within {kind}",
            hint="bring an older state back with 'frostline restore DISK --revision N'",
        )
    return _with_ids(kind, iter(ids))


def _with_ids(kind: pa.DataType, ids: Iterator[int]) -> pa.DataType:
    fields = []
    for field in nested_fields(kind):
        metadata = {FIELD_ID: str(next(ids)).encode()}
        fields.append(pa.field(field.name, _with_ids(field.type, ids), field.nullable, metadata))
    return of_fields(kind, fields) if fields else kind


def column_type(column: Column) -> pa.DataType:
    """The column's Arrow type, with the ids of the fields within it."""
    return _column_type(column.type, column.nested_ids)


@lru_cache(maxsize=4096)
def _column_type(text: str, ids: tuple[int, ...]) -> pa.DataType:
    return with_ids(arrow_type(text), ids) if ids else arrow_type(text)


def member_id(column: Column, names: tuple[str, ...]) -> int | None:
    """The id of a member of the column's structs; None where there is none, or members have no ids."""
    return _member_id(column.type, column.nested_ids, names)


@lru_cache(maxsize=4096)
def _member_id(text: str, ids: tuple[int, ...], names: tuple[str, ...]) -> int | None:
    kind, number = _column_type(text, ids), None
    for name in names:
        index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if index < 0:
            return None
        number, kind = field_id(kind.field(index)), kind.field(index).type
    return number


def members_within(kind: pa.DataType) -> Iterator[tuple[int, pa.DataType, range]]:
    """The ids of the members of a type's structs, at any depth and outside of lists and maps, with their types and the
    leaves that each has, counted from the type's first. The type has ids."""
    for names, inner, leaves in fields_within(kind):
        member = kind
        for name in names:
            field = member.field(name)
            member = field.type
        number = field_id(field)
        assert number is not None
        yield number, inner, leaves


def fields_by_id(definition: TableDefinition) -> dict[int, tuple[str, pa.DataType]]:
    """The columns and the fields within them, by id: path and type."""
    found: dict[int, tuple[str, pa.DataType]] = {}

    def add(number: int, path: str, names: tuple[str, ...], kind: pa.DataType) -> None:
        found[number] = path_text(path, names), kind
        for step, field in zip(step_names(kind), nested_fields(kind), strict=True):
            if (inner := field_id(field)) is not None:
                add(inner, path, (*names, step), field.type)

    for column in definition.columns:
        add(column.id, column.name, (), column_type(column))
    return found


def held_type(kind: pa.DataType, column: Column, definition: TableDefinition) -> pa.DataType | None:
    """The type that a file has for the column, with the ids of the fields within it; None where these are matched by
    their names."""
    if not column.nested_ids:
        return None
    if ids_within(kind) is not None:
        return kind
    first = definition.first_nested_id(column.id)
    return None if first is None else with_ids(kind, range(first, first + count_within(kind)))


def is_current(kind: pa.DataType, column: Column, definition: TableDefinition) -> bool:
    """Whether a file's column of this type has the fields of today, in their order and with their names."""
    held = held_type(kind, column, definition)
    return held is None or (ids_within(held) == column.nested_ids and _names(held) == _names(column_type(column)))


def has_ids_of(kind: pa.DataType, column: Column, definition: TableDefinition) -> bool:
    """Whether a file's fields are those of the column by their ids, or none of them has an id and neither had files of
    the table at first."""
    held = held_type(kind, column, definition)
    if column.nested_ids:
        return held is not None and ids_within(held) == column.nested_ids
    return not count_within(kind) or not any(field_id(field) is not None for field in nested_fields(kind))


def _names(kind: pa.DataType) -> list[str]:
    return [
        name
        for step, field in zip(step_names(kind), nested_fields(kind), strict=True)
        for name in (step, *_names(field.type))
    ]


# ---- giving ids


def last_id(definition: TableDefinition) -> int:
    """The highest id that was given out."""
    ids = (number for column in definition.columns for number in (column.id, *column.nested_ids))
    return max(definition.last_column_id, *ids)


def numbered(definition: TableDefinition, *, is_new: bool = False) -> TableDefinition:
    """The definition with ids for the nested fields that have none. Unless the table is new, its files of before are
    without: these ids are remembered for them. The same definition always gets the same ids."""
    number, columns, first_ids = last_id(definition), [], []
    for column in definition.columns:
        count = 0 if column.nested_ids or "<" not in column.type else count_within(arrow_type(column.type))
        if count:
            first_ids.append((column.id, number + 1))
            column = msgspec.structs.replace(column, nested_ids=tuple(range(number + 1, number + 1 + count)))
            number += count
        columns.append(column)
    if not first_ids:
        return definition
    changed: TableDefinition = msgspec.structs.replace(
        definition, format=FORMAT, columns=tuple(columns), last_column_id=number
    )
    if is_new or definition.format == FORMAT:
        return changed
    late = LateIds(definition.schema_version + 1, tuple(first_ids))
    return msgspec.structs.replace(changed, late_ids=late)


def numbered_as(old: TableDefinition, newest: TableDefinition) -> TableDefinition:
    """An old definition of the table, with the ids that its nested fields have since."""
    if newest.late_ids is msgspec.UNSET or old.late_ids is not msgspec.UNSET:
        return old
    columns = []
    for column in old.columns:
        first = newest.first_nested_id(column.id)
        if first is not None and not column.nested_ids:
            ids = tuple(range(first, first + count_within(arrow_type(column.type))))
            column = msgspec.structs.replace(column, nested_ids=ids)
        columns.append(column)
    changed: TableDefinition = msgspec.structs.replace(
        old,
        format=FORMAT,
        columns=tuple(columns),
        late_ids=newest.late_ids,
        last_column_id=max(old.last_column_id, newest.last_column_id),
    )
    return numbered(changed)
