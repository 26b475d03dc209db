"""Column types of tables as types and constants of the query engine."""

from __future__ import annotations

import pyarrow as pa

from oplog.errors import UsageError
from tiering.table.schema import TableDefinition

_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.duration("us"): "INTERVAL",
    pa.uuid(): "UUID",
}


def sql_type(kind: pa.DataType) -> str:
    """The engine's type for the values of a column: moments in microseconds, and in nanoseconds where the column has
    them. Raises `UsageError` for a type that it cannot hold without loss."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_timestamp(kind):
        return ("TIMESTAMPTZ" if kind.tz else "TIMESTAMP") + ("_NS" if kind.unit == "ns" else "")
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"{sql_type(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({sql_type(kind.key_type)}, {sql_type(kind.item_type)})"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{identifier(field.name)} {sql_type(field.type)}' for field in kind)})"
    raise UsageError(f"query cannot read columns of type {kind}", hint="read the table with Store.table(…).dataset()")


def literal(value: pa.Scalar) -> str:
    """The value as a constant of the engine, of the type of its column. Lists are not constants here."""
    kind = value.type
    name = sql_type(kind)
    if not value.is_valid:
        return f"CAST(NULL AS {name})"
    if pa.types.is_timestamp(kind):
        return _moment(value.value, kind, name)
    if pa.types.is_date(kind):
        return f"(DATE '1970-01-01' + {value.value})"
    if pa.types.is_binary(kind):
        return f"from_hex('{value.as_py().hex()}')"
    if pa.types.is_list(kind):
        return f"CAST([{', '.join(literal(item) for item in value.values)}] AS {name})"
    return f"CAST({text(str(value.as_py()))} AS {name})"


def _moment(value: int, kind: pa.TimestampType, name: str) -> str:
    if kind.unit == "ns":
        return f"CAST(make_timestamp_ns({value}) AS {name})"
    micros = value * {"s": 1_000_000, "ms": 1_000, "us": 1}[kind.unit]
    return f"make_timestamp{'tz' if kind.tz else ''}({micros})"


def text(value: str) -> str:
    """A constant text. SQL itself ends at a NUL."""
    quoted = "'" + value.replace("'", "''") + "'"
    return quoted if "\0" not in value else "(" + quoted.replace("\0", "' || chr(0) || '") + ")"


def identifier(name: str) -> str:
    """A name as it is, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def engine_names(definition: TableDefinition) -> dict[str, str]:
    """The columns as statements name them. The engine does not tell names apart that differ in their case alone: the
    later ones get a number."""
    taken = {column.name.lower() for column in definition.columns}
    names: dict[str, str] = {}
    used: set[str] = set()
    for column in definition.columns:
        name, number = column.name, 0
        while name.lower() in used or (number and name.lower() in taken):
            number += 1
            name = f"{column.name}_{number}"
        used.add(name.lower())
        names[column.name] = name
    return names
