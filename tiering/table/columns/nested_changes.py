"""Changes of the fields within a column: members of structs are added, renamed and dropped, any field is widened. Pure.

A path is written as in SQL, `geo.lat` or `"my column"."a b"`. The field of a list is called `element`, those of a map
are called `key` and `value` (`stops.element.name`). A column whose name is the whole text comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from oplog.errors import NotFound, UsageError
from tiering.table.columns.nested_ids import (
    FIELD_ID,
    column_type,
    count_within,
    ids_within,
    nested_fields,
    of_fields,
    step_names,
    with_ids,
)
from tiering.table.columns.type_texts import arrow_type, type_text
from tiering.table.columns.widening import holds_all, wider_words
from tiering.table.names import check_name, listed, path_text, unquoted
from tiering.table.schema import Column, TableDefinition

_STEP = r'(?:"(?:[^"]|"")+"|[^":.]+)'
_PATH = re.compile(rf"\s*({_STEP}(?:\.{_STEP})+)\s*(?::(.*))?\Z", re.DOTALL)
_STEPS = re.compile(_STEP)


class FieldPath(msgspec.Struct, frozen=True):
    """A field within a column, by its names, and what the text says after the colon."""

    column: Column
    names: tuple[str, ...]
    rest: str | None

    def __str__(self) -> str:
        return path_text(self.column.name, self.names)


def field_path(definition: TableDefinition, text: str) -> FieldPath | None:
    """The path that the text begins with; None where it names a column, or one that the table does not have."""
    match = _PATH.match(text)
    if match is None:
        return None
    columns = {column.name: column for column in definition.columns}
    steps = [unquoted(step.strip()) for step in _STEPS.findall(match[1])]
    column = columns.get(steps[0])
    if match[1] in columns or column is None or not count_within(arrow_type(column.type)):
        return None
    return FieldPath(column, tuple(steps[1:]), match[2])


def add_member(path: FieldPath, kind: pa.DataType, number: int) -> Column:
    """The column with one more member in a struct, the last; it and the fields within it get ids from `number` on."""
    check_name(path.names[-1])
    typed = with_ids(kind, range(number + 1, number + 1 + count_within(kind)))
    added = pa.field(path.names[-1], typed, metadata={FIELD_ID: str(number).encode()})

    def change(kind: pa.DataType) -> list[pa.Field]:
        fields = nested_fields(kind)
        if any(field.name == added.name for field in fields):
            raise UsageError(f"there is a field {path} already", hint="choose another name")
        return [*fields, added]

    return _changed(path, change)


def rename_member(path: FieldPath, new: str) -> Column:
    """The column with a member of a struct called otherwise."""
    check_name(new)

    def change(kind: pa.DataType) -> list[pa.Field]:
        fields = nested_fields(kind)
        place = _place(kind, path.names[-1], path)
        if any(field.name == new for field in fields):
            raise UsageError(f"there is a field {new} beside {path} already", hint="choose another name")
        return [field.with_name(new) if number == place else field for number, field in enumerate(fields)]

    return _changed(path, change, within_keys=True)


def new_name(path: FieldPath, text: str) -> str:
    """The name that the text gives to the field: a name, or the path with another last step."""
    steps = [unquoted(step.strip()) for step in _STEPS.findall(text)] if _PATH.match(text) else [unquoted(text.strip())]
    if len(steps) > 1 and steps[:-1] != [path.column.name, *path.names[:-1]]:
        raise UsageError(f"cannot move field {path} to {text.strip()}", hint="a field keeps its place: change its name")
    return steps[-1]


def drop_member(path: FieldPath) -> Column:
    """The column without a member of a struct, which is not the only one."""

    def change(kind: pa.DataType) -> list[pa.Field]:
        fields = nested_fields(kind)
        place = _place(kind, path.names[-1], path)
        if len(fields) == 1:
            raise UsageError(
                f"cannot drop {path}: its struct has no other field", hint=f"drop {_above(path)} as a whole"
            )
        return [field for number, field in enumerate(fields) if number != place]

    return _changed(path, change)


def widen_field(path: FieldPath, kind: pa.DataType) -> Column:
    """The column with a field of a type that holds all its old values."""

    def change(above: pa.DataType) -> list[pa.Field]:
        fields = nested_fields(above)
        place = _place(above, path.names[-1], path)
        old = fields[place].type
        if old.equals(kind) or not holds_all(old, kind):
            raise UsageError(
                f"cannot change {path} from {type_text(old)} to {type_text(kind)}",
                hint=f"types may only widen: {type_text(old)} to {wider_words(old)}",
            )
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            raise UsageError(
                f"cannot change {path} to {type_text(kind)}: moments within lists and structs are not known",
                hint="microseconds reach further than nanoseconds",
            )
        return [field.with_type(kind) if number == place else field for number, field in enumerate(fields)]

    return _changed(path, change, of_struct=False, within_keys=True)


_Change = Callable[[pa.DataType], list[pa.Field]]
"""From the type that holds the field to its fields of then."""


def _changed(path: FieldPath, change: _Change, *, of_struct: bool = True, within_keys: bool = False) -> Column:
    kind = _within(path, column_type(path.column), path.names[:-1], change, of_struct, within_keys)
    ids = ids_within(kind)
    assert ids is not None
    changed: Column = msgspec.structs.replace(path.column, type=type_text(kind), nested_ids=ids)
    return changed


def _within(
    path: FieldPath, kind: pa.DataType, names: Sequence[str], change: _Change, of_struct: bool, within_keys: bool
) -> pa.DataType:
    fields = nested_fields(kind)
    if not names:
        if not fields or (of_struct and not pa.types.is_struct(kind)):
            raise UsageError(
                f"{_above(path)} is a {type_text(kind)}, whose fields cannot be added, renamed or dropped",
                hint="those of structs can: below 'element' of a list, 'value' of a map",
            )
        return of_fields(kind, change(kind))
    place = _place(kind, names[0], path)
    if pa.types.is_map(kind) and place == 0 and not within_keys:
        raise UsageError(
            f"cannot change {path}: keys of a map stay what they are", hint="a field of them can be renamed"
        )
    field = fields[place]
    fields[place] = field.with_type(_within(path, field.type, names[1:], change, of_struct, within_keys))
    return of_fields(kind, fields)


def _place(kind: pa.DataType, name: str, path: FieldPath) -> int:
    steps = step_names(kind)
    if name not in steps:
        raise NotFound(f"there is no field {path}", hint=f"beside it there would be: {listed(steps) or 'nothing'}")
    return steps.index(name)


def _above(path: FieldPath) -> str:
    return path_text(path.column.name, path.names[:-1])
