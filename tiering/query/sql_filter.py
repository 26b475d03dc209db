"""A condition as SQL text, `service = 'api' and ts >= '2026-01-01'`, for callers that cannot write Python.

The dialect is that of `frostline query`. What is accepted is exactly what `tiering.table.pruning` understands:
comparisons of a column with a constant, in, between, like 'begin%', is null, and, or, not. So the same condition prunes
parts and files, and selects rows (`tiering.query.row_masks`) with the same answer, wherever that is done.
"""

from __future__ import annotations

from typing import Any

import pyarrow.dataset as pads
from datafusion import SessionConfig, SessionContext, SQLOptions
from datafusion.catalog import Table

from oplog.errors import UsageError
from tiering.query.engine_errors import sql_error
from tiering.query.filters import from_expression
from tiering.table.pruning import TRUE, And, Not, Or, Predicate, Unknown
from tiering.table.schema import TableDefinition
from tiering.table.types import arrow_schema

_HINT = (
    "a filter compares columns with constants: = != < <= > >=, in (…), between, like 'begin%', is null, joined by and, "
    "or, not; a float32 column with cast(0.5 as float)"
)
_NAME = "filtered"


def parse_filter(text: str, definition: TableDefinition) -> Predicate:
    """The condition. Constants are folded now: `now() - interval '3 days'` is one moment, for all who use the answer.

    Raises `UsageError` for what is no SQL, and for what is more than comparisons with constants.
    """
    if not text.strip():
        return TRUE
    settings = {
        "datafusion.sql_parser.enable_ident_normalization": "false",
        "datafusion.sql_parser.map_string_types_to_utf8view": "false",
    }
    engine = SessionContext(SessionConfig(settings))
    engine.register_table(_NAME, Table(pads.dataset(arrow_schema(definition).remove_metadata().empty_table())))
    options = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    try:
        frame = engine.sql_with_options(f"select * from {_NAME} where (\n{text}\n)", options)
        plan = frame.optimized_logical_plan()
    except Exception as error:
        raise sql_error(str(error)) from error
    predicate = _of_plan(plan, definition)
    if predicate is None or not _is_exact(predicate):
        raise UsageError(f"this filter is more than comparisons of columns with constants: {text.strip()}", hint=_HINT)
    return predicate


def _of_plan(plan: Any, definition: TableDefinition) -> Predicate | None:
    """The condition that an optimised plan over the table alone states; None for any other plan."""
    node = plan.to_variant()
    match type(node).__name__:
        case "EmptyRelation":
            return Or(())
        case "TableScan" if node.fqn()[-1:] == [_NAME] or _NAME in str(node.fqn()):
            return And(tuple(from_expression(expression, definition) for expression in node.filters()))
        case "Filter":
            (below,) = plan.inputs()
            rest = _of_plan(below, definition)
            return None if rest is None else And((from_expression(node.predicate(), definition), rest))
        case _:
            return None


def _is_exact(predicate: Predicate) -> bool:
    match predicate:
        case Unknown():
            return False
        case And(children) | Or(children):
            return all(_is_exact(child) for child in children)
        case Not(child):
            return _is_exact(child)
        case _:
            return True
