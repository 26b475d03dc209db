"""Column types on their way into Spark and back: what its Arrow boundary carries, and what becomes of the rest.

Spark takes signed integers, floats, decimals up to 38 digits, UTF-8 and binary, dates, microsecond timestamps with UTC
or without a zone, durations, and lists, maps and structs of these. Everything else is converted to the next type that
holds every value, times of a day and UUIDs to texts, or refused by name when there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from oplog.errors import UsageError
from tiering.table.columns.type_texts import arrow_type
from tiering.table.schema import Column

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
NANOSECONDS_HINT = "option('nanoseconds', 'truncate') cuts them to microseconds; option('columns', …) leaves them out"


def carried_type(column: Column, *, truncate_nanoseconds: bool = False) -> pa.DataType:
    """The Arrow type in which Spark gets the column's values, none of them changed.

    Raises `UsageError` for nanoseconds, which no type of Spark holds, unless they may be truncated.
    """
    return _carried(arrow_type(column.type), column, truncate_nanoseconds)


def _carried(kind: pa.DataType, column: Column, truncate: bool) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns" and not truncate:
            raise UsageError(
                f"column {column.name} is {column.type}, and Spark has no nanoseconds", hint=NANOSECONDS_HINT
            )
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_list(kind):
        return pa.list_(_carried(kind.value_type, column, truncate))
    if pa.types.is_map(kind):
        return pa.map_(_carried(kind.key_type, column, truncate), _carried(kind.item_type, column, truncate))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _carried(field.type, column, truncate)) for field in kind])
    if pa.types.is_time(kind) or kind == pa.uuid():
        return pa.string()
    return _WIDER.get(kind, kind)


def carried_schema(columns: Iterable[Column], *, truncate_nanoseconds: bool = False) -> pa.Schema:
    """The columns as Spark gets them. Older parts may lack a column, but not null only one that has a default."""
    return pa.schema(
        [
            pa.field(column.name, carried_type(column, truncate_nanoseconds=truncate_nanoseconds), column.nullable)
            for column in columns
        ]
    )


def spark_schema(columns: Iterable[Column], *, truncate_nanoseconds: bool = False) -> StructType:
    """The same as Spark writes it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(carried_schema(columns, truncate_nanoseconds=truncate_nanoseconds))


def unknown_names(schema: StructType, types: Mapping[str, pa.DataType], path: str = "") -> Iterator[str]:
    """The columns of the schema, and the fields of its structs (`point.x`), that have no type among these."""
    for field in schema.fields:
        if field.name not in types:
            yield f"{path}{field.name}"
        else:
            yield from _unknown_within(field.dataType, types[field.name], f"{path}{field.name}.")


def _unknown_within(asked: DataType, kind: pa.DataType, path: str) -> Iterator[str]:
    """Of structs at any depth; what is another kind of type altogether is cast, or refused by the cast."""
    match asked.typeName():
        case "struct" if pa.types.is_struct(kind):
            yield from unknown_names(asked, {field.name: field.type for field in kind}, path)  # type: ignore[arg-type]
        case "array" if pa.types.is_list(kind):
            yield from _unknown_within(asked.elementType, kind.value_type, f"{path}element.")  # type: ignore[attr-defined]
        case "map" if pa.types.is_map(kind):
            yield from _unknown_within(asked.keyType, kind.key_type, f"{path}key.")  # type: ignore[attr-defined]
            yield from _unknown_within(asked.valueType, kind.item_type, f"{path}value.")  # type: ignore[attr-defined]


def conform(batch: pa.RecordBatch, schema: pa.Schema, *, truncate_nanoseconds: bool = False) -> pa.RecordBatch:
    """The batch with exactly this schema, column by column. Raises `UsageError` naming a value that does not fit."""
    if batch.schema.equals(schema):
        return batch
    return pa.RecordBatch.from_arrays(
        [_converted(batch.column(field.name), field, truncate_nanoseconds) for field in schema], schema=schema
    )


def _converted(array: pa.Array, field: pa.Field, truncate: bool) -> pa.Array:
    if array.type.equals(field.type):
        return array
    if array.type == pa.uuid():
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
    try:
        # Truncation is the one loss that may have been allowed, and only Arrow's time casts know it.
        return array.cast(field.type, safe=not (truncate and has_nanoseconds(array.type)))
    except pa.ArrowException as error:
        raise UsageError(
            f"column {field.name} holds a value that does not fit {field.type}: {error}",
            hint="read it with the type that the table has, and convert it in Spark",
        ) from error


def has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(has_nanoseconds(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")
