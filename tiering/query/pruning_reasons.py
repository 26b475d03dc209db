"""Why parts were left out of an answer: which condition of the statement `part.json` contradicts, in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

from tiering.catalog.catalog import StoredPart
from tiering.catalog.stored import described
from tiering.table.columns.type_texts import field_type
from tiering.table.names import path_text
from tiering.table.part import Part
from tiering.table.pruning import And, Compare, In, IsNull, Not, Or, Predicate, StartsWith, Unknown, matching_files
from tiering.table.schema import TableDefinition

_TOGETHER = "by no condition alone, by all together"


def pruning_reasons(definition: TableDefinition, parts: Iterable[StoredPart], predicate: Predicate) -> list[str]:
    """A line for each reason, those of most parts first; none where no part is left out."""
    conditions = _by_columns(predicate)
    found = Counter(
        _reason(definition, part, conditions)
        for _, part in described(parts)
        if not matching_files(predicate, part, definition)
    )
    return [f"{definition.full_name}: {count} left out {reason}" for reason, count in found.most_common()]


def _reason(definition: TableDefinition, part: Part, conditions: list[And]) -> str:
    for condition in conditions:
        if not matching_files(condition, part, definition):
            return f"by {predicate_text(condition, definition)}"
    return _TOGETHER if part.rows else "because they have no rows"


def _by_columns(predicate: Predicate) -> list[And]:
    """What must hold, in pieces that go by the same columns and fields."""

    def order(condition: Predicate) -> list[str]:
        return sorted(_fields_of(condition))

    conditions = sorted(dict.fromkeys(_conjuncts(predicate)), key=order)
    return [And(tuple(group)) for _, group in groupby(conditions, key=order)]


def _fields_of(predicate: Predicate) -> set[str]:
    match predicate:
        case And(children) | Or(children):
            return set().union(*map(_fields_of, children))
        case Not(child):
            return _fields_of(child)
        case Unknown():
            return set()
        case _:
            return {path_text(predicate.column, predicate.fields)}


def _conjuncts(predicate: Predicate) -> Iterator[Predicate]:
    match predicate:
        case And(children):
            for child in children:
                yield from _conjuncts(child)
        case Or((only,)):
            yield from _conjuncts(only)
        case Unknown():
            return
        case _:
            yield predicate


def predicate_text(predicate: Predicate, definition: TableDefinition) -> str:
    """The condition as SQL has it; `...` for what is not understood."""
    match predicate:
        case And(children) | Or(children):
            word = " AND " if isinstance(predicate, And) else " OR "
            texts = [
                f"({text})" if isinstance(child, Or) and len(child.children) > 1 and len(children) > 1 else text
                for child in children
                for text in [predicate_text(child, definition)]
            ]
            return word.join(texts) or ("true" if isinstance(predicate, And) else "false")
        case Not(child):
            return f"NOT ({predicate_text(child, definition)})"
        case Compare(column, operator, value, fields):
            return f"{path_text(column, fields)} {operator} {_value(_type(definition, column, fields), value)}"
        case In(column, values, negated, fields):
            kind = _type(definition, column, fields)
            listed = ", ".join(_value(kind, value) for value in values)
            return f"{path_text(column, fields)} {'NOT ' if negated else ''}IN ({listed})"
        case IsNull(column, negated, fields):
            return f"{path_text(column, fields)} IS {'NOT ' if negated else ''}NULL"
        case StartsWith(column, prefix, negated, fields):
            return f"{path_text(column, fields)} {'NOT ' if negated else ''}LIKE {_quoted(prefix + '%')}"
        case _:
            return "..."


def _type(definition: TableDefinition, name: str, fields: tuple[str, ...]) -> str:
    """Of a field that conditions go by; nothing for one that the table does not have."""
    kind = next((column.type for column in definition.columns if column.name == name), None)
    return (field_type(kind, fields) if kind else None) or ""


def _value(kind: str, value: Any) -> str:
    if value is None:
        return "NULL"
    try:
        if kind == "date":
            return _quoted(str(date(1970, 1, 1) + timedelta(days=value)))
        if kind.startswith("timestamp"):
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value // 1000)
            return _quoted(moment.isoformat(sep=" ").replace("+00:00", ""))
    except OverflowError:  # beyond the years that Python knows
        return str(value)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
