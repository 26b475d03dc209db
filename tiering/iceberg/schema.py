"""A table's columns, partitions and sort order as Iceberg has them, and what Iceberg has no type for.

Ids are the table's own. Refused by name: types that Iceberg lacks, and those that a reader of Iceberg gets wrong
without an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

import pyarrow as pa

from oplog.errors import Refused, UsageError
from tiering.iceberg.metadata import (
    Field,
    ListType,
    MapType,
    PartitionSpec,
    PartitionSpecField,
    Schema,
    SortField,
    SortOrder,
    StructType,
    Type,
)
from tiering.table.columns.nested_ids import FIELD_ID
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import arrow_field, from_json
from tiering.table.names import name_text
from tiering.table.part import Part
from tiering.table.partition_limits import may_be_wrong
from tiering.table.schema import Column, PartitionField, TableDefinition
from tiering.table.transforms import mended_values

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST_PARTITION_ID = 1000
_MOST_DIGITS = 38
_BUCKETED_DIGITS = 28

_WIDER = "make the column wider: 'frostline table alter {} --widen-column {}:{}'; or leave it out, with --without {}"
_LEAVE_OUT = "leave it out, with --without {}"


def published_columns(definition: TableDefinition, without: Collection[str]) -> tuple[Column, ...]:
    """The columns of the publication. Raises `UsageError` for a name that the table does not have, and for one that
    partitions are made of."""
    for name in without:
        column = definition.column(name)
        if any(field.column == column.name for field in definition.partition_by):
            raise UsageError(f"column {name} cannot be left out: {definition.full_name} is partitioned by it")
    return tuple(column for column in definition.columns if column.name not in without)


def iceberg_schema(definition: TableDefinition, without: Collection[str]) -> Schema:
    """The columns with their ids. Raises `Refused` naming each column that cannot be published."""
    fields, problems = [], []
    for column in published_columns(definition, without):
        try:
            kind = _type(arrow_field(column).type, definition, column)
            fields.append(Field(column.id, column.name, not column.nullable, kind))
        except Refused as error:
            problems.append(error)
    if problems:
        raise Refused("; ".join(problem.message for problem in problems), hint=problems[0].hint)
    return Schema(definition.schema_version, tuple(fields))


def _type(kind: pa.DataType, definition: TableDefinition, column: Column) -> Type:
    if isinstance(kind, pa.UuidType):
        return "uuid"
    if pa.types.is_struct(kind):
        return StructType(tuple(_inner(field, definition, column) for field in kind))
    if pa.types.is_map(kind):
        key, value = (_inner(field, definition, column) for field in (kind.key_field, kind.item_field))
        return MapType(key.id, key.type, value.id, value.type, value.required)
    if pa.types.is_list(kind):
        element = _inner(kind.value_field, definition, column)
        return ListType(element.id, element.type, element.required)
    return _plain(kind, definition, column)


def _inner(field: pa.Field, definition: TableDefinition, column: Column) -> Field:
    text = (field.metadata or {}).get(FIELD_ID)
    if text is None:
        name = name_text(column.name)
        raise Refused(
            f"column {column.name} has fields without ids, and other engines read these as null",
            hint=f"'frostline table rewrite {definition.full_name}' gives them ids; or {_LEAVE_OUT.format(name)}",
        )
    return Field(int(text), field.name, not field.nullable, _type(field.type, definition, column))


def _plain(kind: pa.DataType, definition: TableDefinition, column: Column) -> str:
    name = name_text(column.name)
    if pa.types.is_boolean(kind):
        return "boolean"
    if kind == pa.uint32():
        hint = _WIDER.format(definition.full_name, name, "int64", name)
        raise Refused(
            f"column {column.name} is uint32, of which PyIceberg leaves out rows and Spark reads none", hint=hint
        )
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return "int" if kind.bit_width < 32 or kind == pa.int32() else "long"
    if pa.types.is_floating(kind):
        return "float" if kind == pa.float32() else "double"
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _MOST_DIGITS:
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_string(kind):
        return "string"
    if pa.types.is_binary(kind):
        return "binary"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_time(kind) and kind.unit == "us":
        return "time"
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        zone = f", {kind.tz}" if kind.tz else ""
        hint = _WIDER.format(definition.full_name, name, f"'timestamp[us{zone}]'", name)
        raise Refused(
            f"column {column.name} is {column.type}: Iceberg has microseconds, and readers mistake it", hint=hint
        )
    if kind == pa.uint64():
        hint = _WIDER.format(definition.full_name, name, "'decimal(20, 0)'", name)
        raise Refused(f"column {column.name} is {column.type}, and Iceberg has no type for it", hint=hint)
    raise Refused(
        f"column {column.name} is {column.type}, and Iceberg has no type for it", hint=_LEAVE_OUT.format(name)
    )


def check_stored(definition: TableDefinition, columns: Collection[Column], stored: pa.Schema, part: str) -> None:
    """Raise `Refused` when files with this schema, by their field ids, would be read otherwise than Frostline reads
    them: where a column is missing that has a default, or has a type that Iceberg does not widen."""
    fields = {int(field.metadata[FIELD_ID]): field for field in stored if FIELD_ID in (field.metadata or {})}
    for column in columns:
        field, name = fields.get(column.id), name_text(column.name)
        problem = ""
        if field is None and column.default is not None:
            problem = f"part {part} is older than column {column.name}, whose default other engines do not know"
        elif field is not None and not _widens(field.type, arrow_field(column).type):
            problem = f"part {part} has column {column.name} as {field.type}, which other engines do not widen"
        elif field is not None and pa.types.is_nested(field.type) and not _has_ids(field.type):
            problem = f"part {part} has no ids within column {column.name}, and other engines read null there"
        elif field is not None and not _keeps_fields(field.type, arrow_field(column).type):
            problem = f"part {part} has no field that is left of a struct in {column.name}: other engines read null"
        if problem:
            raise Refused(
                problem,
                hint=f"'frostline table rewrite {definition.full_name}' writes it again; or --without {name}",
            )


def _has_ids(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.ExtensionType) or not pa.types.is_nested(kind):
        return True
    fields = _fields_of(kind)
    return b"" not in fields and all(_has_ids(field.type) for field in fields.values())


def _keeps_fields(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether each struct of the new type has a field that the old one has, by id. Without one Spark cannot tell a
    struct from a null."""
    if isinstance(new, pa.ExtensionType) or not pa.types.is_nested(new):
        return True
    before, after = _fields_of(old), _fields_of(new)
    shared = before.keys() & after.keys()
    return bool(shared) and all(_keeps_fields(before[key].type, after[key].type) for key in shared)


def _fields_of(kind: pa.DataType) -> dict[bytes, pa.Field]:
    """The fields within a type, by id."""
    inner = (
        [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [kind.field(n) for n in range(kind.num_fields)]
    )
    return {(field.metadata or {}).get(FIELD_ID, b""): field for field in inner}


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether Iceberg reads the old type as the new one; source: "Schema Evolution" of the specification."""
    if old == new or pa.types.is_nested(new):
        return old == new or _widens_within(old, new)
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return bool(old != pa.uint32())  # PyIceberg leaves rows out, and Spark fails
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return bool(old == pa.float32() and new == pa.float64())


def _widens_within(old: pa.DataType, new: pa.DataType) -> bool:
    """Fields are matched by id, and may be added."""
    if type(old) is not type(new):
        return False
    if pa.types.is_map(new):
        return _widens(old.key_type, new.key_type) and _widens(old.item_type, new.item_type)
    if pa.types.is_list(new):
        return _widens(old.value_type, new.value_type)
    before, after = _fields_of(old), _fields_of(new)
    return all(_widens(before[key].type, after[key].type) for key in before.keys() & after.keys())


def partition_spec(definition: TableDefinition) -> PartitionSpec:
    """How the table is partitioned. Raises `Refused` for partitions that are not those of Iceberg."""
    fields: list[PartitionSpecField] = []
    for number, field in enumerate(definition.partition_by):
        kind = arrow_type(definition.column(field.column).type)
        if field.transform == "bucket" and pa.types.is_decimal(kind) and kind.precision > _BUCKETED_DIGITS:
            raise Refused(
                f"{definition.full_name} cannot be published: {field} of more than {_BUCKETED_DIGITS} digits",
                hint="Iceberg has other buckets for such numbers: partition a new table by another transform",
            )
        transform = field.transform if field.parameter is None else f"{field.transform}[{field.parameter}]"
        name = field.column if field.transform == "identity" else f"{field.column}_{field.transform}"
        source = definition.column(field.column).id
        name = _free(name, definition, field, {other.name for other in fields})
        fields.append(PartitionSpecField(source, _FIRST_PARTITION_ID + number, name, transform))
    return PartitionSpec(0, tuple(fields))


def _free(name: str, definition: TableDefinition, field: PartitionField, taken: Collection[str]) -> str:
    """Of a partition field other than the column itself, a name that no column and no field of those taken has."""
    names = {column.name for column in definition.columns}.union(taken)
    while field.transform != "identity" and name in names:
        name += "_"
    return name


def sort_orders(definition: TableDefinition, columns: Collection[Column]) -> tuple[SortOrder, ...]:
    """The unsorted order, which each table has, and that of the table as far as its columns are published."""
    fields = []
    for name in definition.order_by:
        column = definition.column(name)
        if column not in columns:
            break
        fields.append(SortField("identity", column.id, "asc", "nulls-last"))
    return (SortOrder(0), *([SortOrder(1, tuple(fields))] if fields else []))


def partition_values(part: Part, definition: TableDefinition) -> Iterator[Any]:
    """The values of a part's partition as manifests have them. Raises `Refused` for one that readers of Iceberg would
    take for another partition."""
    values = mended_values(part.partition_values, part.columns, definition)
    if len(values) != len(definition.partition_by):
        raise _other_partition(part, definition, "it does not say its partition")
    for field, stored in zip(definition.partition_by, values, strict=True):
        column = definition.column(field.column)
        if stored is None or field.transform in ("year", "month", "day", "hour", "bucket"):
            yield stored
            continue
        kind = arrow_type(column.type)
        value = plain_value(from_json(stored, kind))
        if field.transform == "truncate" and may_be_wrong(field, value, column):
            raise _other_partition(part, definition, f"its value of {field} may be that of another partition")
        is_cut = field.transform == "truncate" and pa.types.is_integer(kind) and value % int(field.parameter or 1)
        if pa.types.is_integer(kind) and (is_cut or not _fits(value, kind)):
            raise _other_partition(part, definition, f"its value of {field} is below the least {column.type}")
        yield value


def _fits(value: int, kind: pa.DataType) -> bool:
    bits = 32 if kind.bit_width < 32 or kind == pa.int32() else 64
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def _other_partition(part: Part, definition: TableDefinition, why: str) -> Refused:
    hint = f"'frostline merge {definition.full_name} --cold --final' may write it again"
    return Refused(f"part {part.name} cannot be published: {why}", hint=hint)


def plain_value(value: Any) -> Any:
    """Moments as the numbers that Iceberg counts them by: days, or microseconds since 1970 or midnight."""
    match value:
        case datetime():
            since = value.replace(tzinfo=UTC) - _EPOCH if value.tzinfo is None else value - _EPOCH
            return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        case date():
            return value.toordinal() - _EPOCH_DAY
        case time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case UUID():
            return value.bytes
        case _:
            return value
