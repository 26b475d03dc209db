"""Column types of tables as types and constants of the query engine.

Arrow is imported for types that nest and for constants alone: it takes as long as a small query.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from oplog.errors import UsageError
from tiering.table.names import folded
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "duration": "INTERVAL",
    "uuid": "UUID",
}
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)\Z", re.ASCII)
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(, [A-Za-z0-9_+:/-]+)?\]\Z", re.ASCII)


def is_flat(text: str) -> bool:
    """Whether it is the canonical text of a type whose values are one leaf of a file; that of another may be, too."""
    return text in _NAMES or bool(_DECIMAL.match(text) or _TIMESTAMP.match(text))


def column_sql_type(text: str) -> str:
    """The engine's type for the values of a column of the type of this text, as `sql_type` says it."""
    if text in _NAMES:
        return _NAMES[text]
    if match := _TIMESTAMP.match(text):
        return _timestamp(match[1], bool(match[2]))
    if match := _DECIMAL.match(text):
        return f"DECIMAL({match[1]}, {match[2]})"
    from tiering.table.columns.type_texts import arrow_type

    return sql_type(arrow_type(text))


def sql_type(kind: pa.DataType) -> str:
    """The engine's type for the values of a column: moments in microseconds, and in nanoseconds where the column has
    them. Raises `UsageError` for a type that it cannot hold without loss."""
    import pyarrow as pa

    from tiering.table.columns.type_texts import simple_text

    if (text := simple_text(kind)) is not None:
        return _NAMES[text]
    if pa.types.is_timestamp(kind):
        return _timestamp(kind.unit, bool(kind.tz))
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"{sql_type(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({sql_type(kind.key_type)}, {sql_type(kind.item_type)})"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{identifier(field.name)} {sql_type(field.type)}' for field in kind)})"
    raise UsageError(f"query cannot read columns of type {kind}", hint="read the table with Store.table(…).dataset()")


def _timestamp(unit: str, has_zone: bool) -> str:
    return ("TIMESTAMPTZ" if has_zone else "TIMESTAMP") + ("_NS" if unit == "ns" else "")


def literal(value: pa.Scalar) -> str:
    """The value as a constant of the engine, of the type of its column. Lists are not constants here."""
    import pyarrow as pa

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
    """A name with any content, unchanged."""
    return '"' + name.replace('"', '""') + '"'


def engine_names(definition: TableDefinition) -> dict[str, str]:
    """The columns as statements of `scan` name them. The engine does not tell names apart that differ in their case
    alone: the later ones get a number."""
    return dict(_engine_names(tuple(column.name for column in definition.columns)))


@lru_cache(maxsize=256)
def _engine_names(columns: tuple[str, ...]) -> dict[str, str]:
    taken = {folded(column) for column in columns}
    names: dict[str, str] = {}
    used: set[str] = set()
    for column in columns:
        name, number = column, 0
        while folded(name) in used or (number and folded(name) in taken):
            number += 1
            name = f"{column}_{number}"
        used.add(folded(name))
        names[column] = name
    return names
