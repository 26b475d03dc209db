"""Which rows of Arrow batches a filter of `tiering.table.pruning` selects, as SQL says: those where it is true.

Floats as the query engine and Spark have them: NaN is greater than every number.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from oplog.errors import UsageError
from tiering.table.columns.type_texts import arrow_type, field_type
from tiering.table.pruning import And, Compare, In, IsNull, Not, Or, Predicate, StartsWith
from tiering.table.schema import TableDefinition

_COMPARISONS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def row_mask(predicate: Predicate, rows: pa.RecordBatch | pa.Table, definition: TableDefinition) -> Any:
    """True where the row is selected, false or null where it is not. The rows have the table's types.

    Raises `UsageError` for a predicate with parts that are not understood.
    """
    match predicate:
        case And(children):
            return _joined(pc.and_kleene, children, rows, definition, empty=True)
        case Or(children):
            return _joined(pc.or_kleene, children, rows, definition, empty=False)
        case Not(child):
            return pc.invert(row_mask(child, rows, definition))
        case Compare(name, operator, value, fields):
            return _compared(_values(rows, name, fields), operator, value, _type(definition, name, fields))
        case In(name, values, negated, fields):
            column, kind = _values(rows, name, fields), _type(definition, name, fields)
            found = _joined_masks(pc.or_kleene, [_compared(column, "=", value, kind) for value in values], rows, False)
            return pc.invert(found) if negated else found
        case IsNull(name, negated, fields):
            return pc.is_valid(_values(rows, name, fields)) if negated else pc.is_null(_values(rows, name, fields))
        case StartsWith(name, prefix, negated, fields):
            found = pc.starts_with(_values(rows, name, fields), pattern=prefix)
            return pc.invert(found) if negated else found
        case _:
            raise UsageError(f"rows cannot be selected by {predicate}")


def _values(rows: pa.RecordBatch | pa.Table, name: str, fields: tuple[str, ...]) -> Any:
    """The column, or the field within its structs: null where one of these is."""
    return pc.struct_field(rows.column(name), list(fields)) if fields else rows.column(name)


def _type(definition: TableDefinition, name: str, fields: tuple[str, ...]) -> str:
    kind = field_type(definition.column(name).type, fields)
    assert kind is not None
    return kind


def _joined(
    join: Any,
    children: tuple[Predicate, ...],
    rows: pa.RecordBatch | pa.Table,
    definition: TableDefinition,
    *,
    empty: bool,
) -> Any:
    return _joined_masks(join, [row_mask(child, rows, definition) for child in children], rows, empty)


def _joined_masks(join: Any, masks: list[Any], rows: pa.RecordBatch | pa.Table, empty: bool) -> Any:
    if not masks:
        return pa.repeat(pa.scalar(empty), rows.num_rows)
    whole = masks[0]
    for mask in masks[1:]:
        whole = join(whole, mask)
    return whole


def _compared(column: Any, operator: str, value: Any, type_text: str) -> Any:
    kind = arrow_type(type_text)
    if value is None:
        return pa.repeat(pa.scalar(None, pa.bool_()), len(column))
    if pa.types.is_timestamp(kind):
        column, value = _whole_moments(column, operator, value, kind)
    elif pa.types.is_date(kind):
        column, value = column.cast(pa.int32()), pa.scalar(value, pa.int32())
    elif not pa.types.is_decimal(kind):
        value = pa.scalar(value, kind)
    found = _COMPARISONS[operator](column, value)
    if pa.types.is_floating(kind) and operator in (">", ">="):
        found = pc.or_kleene(found, pc.is_nan(column))
    return found


def _whole_moments(column: Any, operator: str, nanoseconds: int, kind: pa.DataType) -> tuple[Any, pa.Scalar]:
    """A moment in the unit of the column. For one between two of the column's moments, the neighbour that gives the
    same answer: x < 1.5 is x < 2, x <= 1.5 is x <= 1."""
    unit = _NANOSECONDS[kind.unit]
    whole, rest = divmod(nanoseconds, unit)
    if rest and operator in ("=", "!=", "<", ">="):
        if operator in ("=", "!="):
            raise UsageError(f"no moment of a column of {kind} equals one of {nanoseconds} ns since 1970")
        whole += 1
    return column.cast(pa.int64()), pa.scalar(whole, pa.int64())
