"""Filters as callers write them, turned into what prunes (`tiering.table.pruning`) and into what the engine evaluates.

`[("carrier", "=", "AA"), ("ts", ">=", datetime(…))]` means all of them; a list of such lists means any of those.
Operators: = == != < <= > >=, in, not in, between, is null, is not null, starts with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from oplog.errors import UsageError
from tiering.query.sql.column_types import engine_names, identifier, literal, text
from tiering.table.columns.type_texts import arrow_type
from tiering.table.pruning import (
    And,
    Compare,
    In,
    IsNull,
    Operator,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    domain_value,
)
from tiering.table.schema import Column, TableDefinition

_OPERATORS: dict[str, Operator] = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<>": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_HINT = (
    "write a filter as [(column, operator, value), …]; operators: = != < <= > >=, in, not in, between, is null, "
    "is not null, starts with"
)


def from_tuples(filter: Sequence[Any], definition: TableDefinition) -> tuple[Predicate, str]:  # noqa: A002
    """What prunes, and the SQL that the engine evaluates. Raises `UsageError`, or `NotFound` for an unknown column."""
    if not filter:
        return And(()), "true"
    if all(_is_condition(item) for item in filter):
        return _conjunction(filter, definition)
    if all(isinstance(item, Sequence) and not isinstance(item, str) and item for item in filter):
        pairs = [_conjunction(item, definition) for item in filter]
        return Or(tuple(predicate for predicate, _ in pairs)), _joined(" OR ", pairs)
    raise UsageError(f"not a filter: {filter!r}", hint=_HINT)


def _is_condition(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) in (2, 3) and all(isinstance(word, str) for word in value[:2])


def _conjunction(conditions: Sequence[Any], definition: TableDefinition) -> tuple[Predicate, str]:
    pairs = []
    for condition in conditions:
        if not _is_condition(condition):
            raise UsageError(f"not a condition: {condition!r}", hint=_HINT)
        pairs.append(_condition(condition, definition))
    return And(tuple(predicate for predicate, _ in pairs)), _joined(" AND ", pairs)


def _joined(word: str, pairs: Sequence[tuple[Predicate, str]]) -> str:
    return "(" + word.join(condition for _, condition in pairs) + ")"


def _condition(condition: Sequence[Any], definition: TableDefinition) -> tuple[Predicate, str]:
    column = definition.column(condition[0])
    operator = " ".join(condition[1].lower().split())
    name, field = column.name, identifier(engine_names(definition)[column.name])
    if operator in ("is null", "is not null"):
        negated = operator == "is not null"
        return IsNull(name, negated), f"{field} IS {'NOT ' if negated else ''}NULL"
    if len(condition) != 3:
        raise UsageError(f"the condition {tuple(condition)!r} has no value", hint=_HINT)
    value = condition[2]
    if operator in _OPERATORS:
        return _comparison(column, field, _OPERATORS[operator], _scalar(column, value))
    if operator in ("in", "not in"):
        scalars = [_scalar(column, item) for item in _values(condition)]
        values = [_domain(column, scalar) for scalar in scalars]
        negated = operator == "not in"
        predicate: Predicate = Unknown() if _UNCLEAR in values else In(name, tuple(values), negated)
        if not scalars:
            return predicate, str(negated)
        listed = ", ".join(map(literal, scalars))
        return predicate, f"{field} {'NOT ' if negated else ''}IN ({listed})"
    if operator == "between":
        bounds = _values(condition)
        if len(bounds) != 2:
            raise UsageError(f"between takes two values: {tuple(condition)!r}", hint=_HINT)
        low, low_condition = _comparison(column, field, ">=", _scalar(column, bounds[0]))
        high, high_condition = _comparison(column, field, "<=", _scalar(column, bounds[1]))
        return And((low, high)), f"({low_condition} AND {high_condition})"
    if operator == "starts with" and isinstance(value, str) and column.type == "string":
        return StartsWith(name, value), f"starts_with({field}, {text(value)})"
    raise UsageError(f"unknown operator in {tuple(condition)!r}", hint=_HINT)


def _values(condition: Sequence[Any]) -> list[Any]:
    if isinstance(condition[2], (str, bytes)) or not hasattr(condition[2], "__iter__"):
        raise UsageError(f"{condition[1]} takes a list of values: {tuple(condition)!r}", hint=_HINT)
    return list(condition[2])


def _comparison(column: Column, field: str, operator: Operator, scalar: pa.Scalar) -> tuple[Predicate, str]:
    condition = f"{field} {operator} {literal(scalar)}"
    value = _domain(column, scalar)
    return Unknown() if value is _UNCLEAR else Compare(column.name, operator, value), condition


def _scalar(column: Column, value: Any) -> pa.Scalar:
    """The value as a scalar of the column's type. Raises `UsageError` when it does not fit without loss."""
    kind = arrow_type(column.type)
    try:
        if isinstance(value, pa.Scalar):
            return value.cast(kind)
        if value is None:
            return pa.scalar(None, kind)
        if column.type == "date":
            days = domain_value("date", value)
            if days is None:
                raise ValueError("write a day like 2026-01-31")
            return pa.scalar(days, pa.int32()).cast(kind)
        if isinstance(value, str) and pa.types.is_timestamp(kind):
            nanoseconds = domain_value("timestamp[ns]", value)
            if nanoseconds is None:
                raise ValueError("write a time like 2026-01-31 or 2026-01-31T12:00:00Z")
            return pa.scalar(nanoseconds, pa.timestamp("ns", kind.tz)).cast(kind)
        if pa.types.is_floating(kind) and isinstance(value, int):
            return pa.scalar(float(value), kind)
        if pa.types.is_integer(kind) and isinstance(value, float):
            return pa.scalar(value, pa.float64())
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"column {column.name} is {column.type}; {value!r} does not fit: {error}", hint=_HINT
        ) from error


_UNCLEAR = object()
"""A literal without a place in the column's domain: nothing follows from it."""


def _domain(column: Column, scalar: pa.Scalar) -> Any:
    """The scalar in the domain of `tiering.table.pruning`; None for null, `_UNCLEAR` where it cannot be compared."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_timestamp(kind) and column.type.startswith("timestamp"):
        factor = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}[kind.unit]
        return int(scalar.value) * factor
    if pa.types.is_date32(kind) and column.type == "date":
        return int(scalar.value)
    if pa.types.is_temporal(kind) or column.type == "date" or column.type.startswith("timestamp"):
        return _UNCLEAR
    value = domain_value(column.type, scalar.as_py())
    return _UNCLEAR if value is None else value
