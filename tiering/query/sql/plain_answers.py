"""Answers as JSON has them, straight from the engine's cursor: without Arrow, whose import takes as long as a query.

The same values as `tiering.query.plain_values` makes of Arrow's, for the types that are here; an answer with any other
type goes that way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from oplog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES = {
    "BOOLEAN": "bool",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
    "HUGEINT": "decimal(38, 0)",
    "DOUBLE": "float64",
    "VARCHAR": "string",
    "BLOB": "binary",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp[us]",
    "TIMESTAMP WITH TIME ZONE": "timestamp[us, UTC]",
}
_MOMENTS = frozenset({"DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"})
"""Python's do not have all of the engine's, such as infinity; the engine writes each as a text."""
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)\Z", re.ASCII)
_MICROSECOND_DIGITS = 6


class AnswerColumns:
    """The columns of a statement's answer, of which nothing is computed."""

    def __init__(self, names: Sequence[str], kinds: Sequence[str], schema: pa.Schema | None = None) -> None:
        """`kinds`: types of the engine. The schema can be made of plain ones alone."""
        self.names = tuple(names)
        self._kinds = tuple(kinds)
        self.is_plain = schema is None
        """Whether `rows_of` knows all types."""
        self._schema = schema

    @classmethod
    def of(cls, relation: Any) -> Self:
        """Those of the engine's relation."""
        kinds = tuple(map(str, relation.types))
        if all(kind in _TYPES or _DECIMAL.match(kind) for kind in kinds):
            return cls(relation.columns, kinds)
        from tiering.query.sql.answers import answer_schema

        return cls(relation.columns, kinds, answer_schema(relation))

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow's."""
        if self._schema is not None:
            return self._schema
        import pyarrow as pa

        from tiering.query.sql.answers import WHOLE_NUMBER
        from tiering.table.columns.type_texts import arrow_type

        return pa.schema(
            [
                pa.field(name, arrow_type(_type_text(kind)), metadata=WHOLE_NUMBER if kind == "HUGEINT" else None)
                for name, kind in zip(self.names, self._kinds, strict=True)
            ]
        )

    @property
    def described(self) -> list[tuple[str, str]]:
        """(name, type) as `table.json` writes types."""
        if self._schema is not None:
            return [(field.name, _arrow_text(field.type)) for field in self._schema]
        return list(zip(self.names, map(_type_text, self._kinds), strict=True))

    def asked(self, statement: str) -> str:
        """The statement with the texts of its moments in place of them. Only of plain ones."""
        columns = [f"c{place}" for place in range(len(self._kinds))]
        asked = [
            f"CAST({name} AS VARCHAR)" if kind in _MOMENTS else name
            for name, kind in zip(columns, self._kinds, strict=True)
        ]
        if asked == columns:
            return statement
        return f"SELECT {', '.join(asked)} FROM (\n{statement}\n) AS answer({', '.join(columns)})"

    def rows_of(self, fetched: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """What the engine's cursor has of the statement that was `asked`, as rows of JSON values."""
        converted = [_conversion(kind) for kind in self._kinds]
        if not any(converted):
            return [list(row) for row in fetched]
        columns = (
            [
                _each(convert, values) if convert else values
                for convert, values in zip(converted, zip(*fetched, strict=True), strict=True)
            ]
            if fetched
            else []
        )
        return [list(row) for row in zip(*columns, strict=True)]


def _type_text(kind: str) -> str:
    match = _DECIMAL.match(kind)
    return f"decimal({match[1]}, {match[2]})" if match else _TYPES[kind]


def _arrow_text(kind: pa.DataType) -> str:
    from tiering.table.columns.type_texts import type_text

    try:
        return type_text(kind)
    except UsageError:
        return str(kind)


def _conversion(kind: str) -> Callable[[Any], Any] | None:
    """From the engine's value to JSON's; None where they are the same."""
    match kind:
        case "HUGEINT":
            return _whole
        case "BLOB":
            return bytes.hex
        case "TIME" | "TIMESTAMP":
            return _moment
        case "TIMESTAMP WITH TIME ZONE":
            return _zoned
        case _:
            return str if _DECIMAL.match(kind) else None


def _each(convert: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _whole(value: int) -> int | str:
    """A number, unless it has more digits than numbers have in JSON."""
    return value if -(1 << 63) <= value < 1 << 63 else str(value)


def _moment(text: str) -> str:
    """As RFC 3339 has it, microseconds only when there are any; what has no such text is left as the engine has it."""
    if "(BC)" in text:
        return text
    written, point, digits = text.partition(".")
    return written.replace(" ", "T") + (f".{digits:0<{_MICROSECOND_DIGITS}}" if point else "")


def _zoned(text: str) -> str:
    """The engine's zone is UTC."""
    if not text.endswith("+00"):
        return text
    moment = _moment(text.removesuffix("+00"))
    return moment if "(BC)" in moment else f"{moment}Z"
