"""A condition as SQL text, `service = 'api' and ts >= '2026-01-01'`, for callers that cannot write Python.

The dialect is that of `frostline query`. What is accepted is exactly what `tiering.table.pruning` understands:
comparisons of a column with a constant, in, between, like 'begin%', is null, and, or, not. So the same condition prunes
parts and files, and selects rows (`tiering.query.row_masks`) with the same answer, wherever that is done.
"""

from __future__ import annotations

from oplog.errors import UsageError
from tiering.table.pruning import TRUE, Or, Predicate
from tiering.table.schema import TableDefinition

_HINT = (
    "a filter compares columns with constants: = != < <= > >=, in (…), between, like 'begin%', is null, joined by and, "
    "or, not; a float32 column with cast(0.5 as float)"
)


def parse_filter(text: str, definition: TableDefinition) -> Predicate:
    """The condition. Constants are folded now: `now() - interval '3 days'` is one moment, for all who use the answer.

    Raises `UsageError` for what is no SQL, and for what is more than comparisons with constants.
    """
    if not text.strip():
        return TRUE
    # The engine takes longer to import than most reads without a condition take to plan.
    from tiering.query.sql.column_types import identifier
    from tiering.query.sql.plan import is_exact
    from tiering.query.sql.planning import check_columns, connect, plan_statement
    from tiering.query.sql.statement import read_statement

    check_columns(definition)
    name = definition.full_name
    quoted = ".".join(map(identifier, name.split(".", 1)))
    refused = UsageError(f"this filter is more than comparisons of columns with constants: {text.strip()}", hint=_HINT)
    with connect({"threads": 1}) as connection:
        try:
            statement = read_statement(connection, f"SELECT * FROM {quoted} WHERE (\n{text}\n)")
        except UsageError as error:
            raise UsageError(f"{text.strip()!r} is no expression of SQL: {error.message}", hint=_HINT) from error
        if statement.tables != (name,):
            raise refused
        reads, _ = plan_statement(connection, statement.text, {name: definition})
    predicate = reads.tables[name].predicate if name in reads.tables else Or(())
    if not reads.is_filter_alone or not is_exact(predicate):
        raise refused
    return predicate
