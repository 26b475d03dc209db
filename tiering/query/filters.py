"""Filters as callers write them, turned into what prunes (`tiering.table.pruning`) and into what the engine evaluates.

From Python: `[("carrier", "=", "AA"), ("ts", ">=", datetime(…))]` means all of them; a list of such lists means any of
those. Operators: = == != < <= > >=, in, not in, between, is null, is not null, starts with. From SQL: the filters of an
optimised DataFusion plan, in which casts are already unwrapped and constants folded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from datafusion import Expr, col, functions, lit

from oplog.errors import UsageError
from tiering.table.pruning import (
    TRUE,
    And,
    Compare,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    domain_value,
)
from tiering.table.schema import Column, TableDefinition
from tiering.table.types import arrow_type

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
_MIRRORED: dict[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_APPLY: dict[Operator, Callable[[Expr, Expr], Expr]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_HINT = (
    "write a filter as [(column, operator, value), …]; operators: = != < <= > >=, in, not in, between, is null, "
    "is not null, starts with"
)


# ---- from Python


def from_tuples(filter: Sequence[Any], definition: TableDefinition) -> tuple[Predicate, Expr]:  # noqa: A002
    """What prunes and what the engine evaluates. Raises `UsageError`, or `NotFound` for an unknown column."""
    if not filter:
        return And(()), lit(True)
    if all(_is_condition(item) for item in filter):
        return _conjunction(filter, definition)
    if all(isinstance(item, Sequence) and not isinstance(item, str) and item for item in filter):
        pairs = [_conjunction(item, definition) for item in filter]
        whole = pairs[0][1]
        for _, expression in pairs[1:]:
            whole = whole | expression
        return Or(tuple(predicate for predicate, _ in pairs)), whole
    raise UsageError(f"not a filter: {filter!r}", hint=_HINT)


def _is_condition(item: Any) -> bool:
    return isinstance(item, Sequence) and len(item) in (2, 3) and all(isinstance(word, str) for word in item[:2])


def _conjunction(conditions: Sequence[Any], definition: TableDefinition) -> tuple[Predicate, Expr]:
    pairs = []
    for condition in conditions:
        if not _is_condition(condition):
            raise UsageError(f"not a condition: {condition!r}", hint=_HINT)
        pairs.append(_condition(condition, definition))
    whole = pairs[0][1]
    for _, expression in pairs[1:]:
        whole = whole & expression
    return And(tuple(predicate for predicate, _ in pairs)), whole


def _condition(condition: Sequence[Any], definition: TableDefinition) -> tuple[Predicate, Expr]:
    column = definition.column(condition[0])
    operator = " ".join(condition[1].lower().split())
    name, field = column.name, _column(column.name)
    if operator in ("is null", "is not null"):
        negated = operator == "is not null"
        return IsNull(name, negated), field.is_not_null() if negated else field.is_null()
    if len(condition) != 3:
        raise UsageError(f"the condition {tuple(condition)!r} has no value", hint=_HINT)
    value = condition[2]
    if operator in _OPERATORS:
        return _comparison(column, _OPERATORS[operator], _scalar(column, value))
    if operator in ("in", "not in"):
        scalars = [_scalar(column, item) for item in _values(condition)]
        values = [_domain(column, scalar) for scalar in scalars]
        negated = operator == "not in"
        predicate: Predicate = Unknown() if _UNCLEAR in values else In(name, tuple(values), negated)
        if not scalars:
            return predicate, lit(negated)
        return predicate, functions.in_list(field, [lit(scalar) for scalar in scalars], negated)
    if operator == "between":
        bounds = _values(condition)
        if len(bounds) != 2:
            raise UsageError(f"between takes two values: {tuple(condition)!r}", hint=_HINT)
        low, low_expression = _comparison(column, ">=", _scalar(column, bounds[0]))
        high, high_expression = _comparison(column, "<=", _scalar(column, bounds[1]))
        return And((low, high)), low_expression & high_expression
    if operator == "starts with" and isinstance(value, str) and column.type == "string":
        return StartsWith(name, value), functions.starts_with(field, lit(value))
    raise UsageError(f"unknown operator in {tuple(condition)!r}", hint=_HINT)


def _values(condition: Sequence[Any]) -> list[Any]:
    if isinstance(condition[2], (str, bytes)) or not hasattr(condition[2], "__iter__"):
        raise UsageError(f"{condition[1]} takes a list of values: {tuple(condition)!r}", hint=_HINT)
    return list(condition[2])


def _comparison(column: Column, operator: Operator, scalar: pa.Scalar) -> tuple[Predicate, Expr]:
    expression = _APPLY[operator](_column(column.name), lit(scalar))
    value = _domain(column, scalar)
    return Unknown() if value is _UNCLEAR else Compare(column.name, operator, value), expression


def _column(name: str) -> Expr:
    # col() folds unquoted names to lower case
    return col('"' + name.replace('"', '""') + '"')


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


# ---- from an optimised plan


def table_filters(plan: Any, definitions: Mapping[str, TableDefinition]) -> dict[str, Predicate]:
    """For each table, by its full name, a filter that every row of it that the plan uses passes.

    `plan` is an optimised DataFusion `LogicalPlan`. A table scanned several times gets the filters of all its scans,
    one of which must hold.
    """
    found: dict[str, list[Predicate]] = {}
    scans = _collect(plan, [], definitions, found)
    # Subqueries that the optimiser left inside expressions are no inputs of the plan: their scans would be overlooked.
    shown = sum(line.lstrip().startswith("TableScan:") for line in plan.display_indent().splitlines())
    if scans != shown:
        return dict.fromkeys(definitions, TRUE)
    return {name: Or(tuple(found[name])) if name in found else TRUE for name in definitions}


def _collect(
    plan: Any, above: list[Expr], definitions: Mapping[str, TableDefinition], found: dict[str, list[Predicate]]
) -> int:
    """Count the scans. `above` holds the filters directly over `plan`: any other node in between may rename columns."""
    node = _variant(plan)
    kind = type(node).__name__
    if kind == "TableScan":
        name = ".".join(piece for piece in node.fqn()[1:] if piece)
        if name in definitions:
            expressions = [*above, *node.filters()]
            children = tuple(from_expression(expression, definitions[name]) for expression in expressions)
            found.setdefault(name, []).append(And(children))
        return 1
    above = [*above, node.predicate()] if kind == "Filter" else []
    return sum(_collect(child, above, definitions, found) for child in plan.inputs())


def from_expression(expression: Expr, definition: TableDefinition) -> Predicate:
    """What a DataFusion expression says about the table's columns; `Unknown` for all that is not understood."""
    node = _variant(expression)
    match type(node).__name__:
        case "BinaryExpr":
            return _from_binary(node, definition)
        case "Not":
            return Not(from_expression(node.expr(), definition))
        case "IsNull" | "IsNotNull" as kind:
            column = _column_of(node.expr(), definition)
            return IsNull(column.name, kind == "IsNotNull") if column else Unknown()
        case "IsTrue":
            return _implied(from_expression(node.expr(), definition))
        case "Column":
            column = _column_of(expression, definition)
            return Compare(column.name, "=", True) if column and column.type == "bool" else Unknown()
        case "InList":
            return _from_in_list(node, definition)
        case "Between":
            inside = And(
                (
                    _compare(node.expr(), ">=", node.low(), definition),
                    _compare(node.expr(), "<=", node.high(), definition),
                )
            )
            return Not(inside) if node.negated() else inside
        case "Like":
            return _from_like(node, definition)
        case "Literal":
            value = expression.python_value()
            value = value.as_py() if isinstance(value, pa.Scalar) else value
            return And(()) if value is True else Or(()) if value is False or value is None else Unknown()
        case _:
            return Unknown()


def _variant(thing: Any) -> Any:
    try:
        return thing.to_variant()
    except Exception:  # noqa: BLE001 - some expressions have no Python form; they are then not understood
        return None


def _from_binary(node: Any, definition: TableDefinition) -> Predicate:
    left, operator, right = node.left(), node.op(), node.right()
    if operator in ("AND", "OR"):
        pair = (from_expression(left, definition), from_expression(right, definition))
        return And(pair) if operator == "AND" else Or(pair)
    if operator not in _OPERATORS:
        return Unknown()
    compared = _compare(left, _OPERATORS[operator], right, definition)
    if isinstance(compared, Unknown):
        return _compare(right, _MIRRORED[_OPERATORS[operator]], left, definition)
    return compared


def _compare(left: Expr, operator: Operator, right: Expr, definition: TableDefinition) -> Predicate:
    column, scalar = _column_of(left, definition), _literal(right)
    if column is None or scalar is None:
        return Unknown()
    value = _domain(column, scalar)
    return Unknown() if value is _UNCLEAR else Compare(column.name, operator, value)


def _from_in_list(node: Any, definition: TableDefinition) -> Predicate:
    column = _column_of(node.expr(), definition)
    scalars = [_literal(item) for item in node.list()]
    if column is None or None in scalars:
        return Unknown()
    values = tuple(_domain(column, scalar) for scalar in scalars)
    return Unknown() if _UNCLEAR in values else In(column.name, values, node.negated())


def _from_like(node: Any, definition: TableDefinition) -> Predicate:
    column, pattern = _column_of(node.expr(), definition), _literal(node.pattern())
    if column is None or pattern is None or column.type != "string" or node.escape_char() is not None:
        return Unknown()
    text = pattern.as_py()
    if not isinstance(text, str) or "\\" in text:
        return Unknown()
    prefix = text.split("%")[0].split("_")[0]
    if text == prefix + "%":
        return StartsWith(column.name, prefix, node.negated())
    return Unknown() if node.negated() else _implied(StartsWith(column.name, prefix))


def _implied(predicate: Predicate) -> Predicate:
    """Something that holds wherever the filter is true, but not the other way: its negation says nothing."""
    return And((predicate, Unknown()))


def _column_of(expression: Expr, definition: TableDefinition) -> Column | None:
    """The table's column, if the expression is one. Names without a table are the optimiser's own."""
    node = _variant(expression)
    if type(node).__name__ != "Column" or node.relation() is None:
        return None
    return next((column for column in definition.columns if column.name == node.name()), None)


def _literal(expression: Expr) -> pa.Scalar | None:
    if type(_variant(expression)).__name__ != "Literal":
        return None
    try:
        value = expression.python_value()
    except Exception:  # noqa: BLE001 - a literal without an Arrow form is not understood
        return None
    return value if isinstance(value, pa.Scalar) else pa.scalar(value)
