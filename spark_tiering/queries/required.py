"""What the scans of a query need: the query is planned over empty files of the same schema, and its plan is asked.

Planned in a copy of the session, so that no setting and no view of it is seen in the user's. The conditions that come
out may select more rows than the query does, never fewer: Spark applies its own once more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from oplog.errors import UsageError
from spark_tiering.references import elements
from tiering.query.sql.column_types import identifier, text
from tiering.query.sql_filter import parse_filter
from tiering.table.columns.type_texts import arrow_type
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""In microseconds."""
_EPOCH = datetime(1970, 1, 1)
_MOST_VALUES = 200
"""Of an `in`: each costs some calls to Java."""


class Need(msgspec.Struct, frozen=True):
    """What all scans of one table need together."""

    columns: tuple[str, ...]
    """In the table's order; none when only the number of rows counts."""
    filter: str = ""
    """True of every row that any of the scans wants."""


def required_of(
    session: SparkSession,
    text: str,
    args: dict[str, Any] | list[Any] | None,
    tables: Mapping[str, tuple[TableDefinition, StructType]],
) -> dict[str, Need]:
    """What the query needs of the tables, by the names of the views that it uses for them."""
    from pyspark.sql import SparkSession

    copy = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
    # Planned as a whole: an adaptive plan shows its subqueries only while it runs.
    copy.conf.set("spark.sql.adaptive.enabled", "false")
    with TemporaryDirectory(prefix="frostline-plan-") as name:
        for view, (_, schema) in tables.items():
            (Path(name) / view).mkdir()
            copy.read.schema(schema).parquet(f"file://{name}/{view}").createOrReplaceTempView(view)
        scans: dict[str, list[tuple[set[str], str]]] = {view: [] for view in tables}
        for scan in _scans(copy.sql(text, args)._jdf.queryExecution().executedPlan()):
            for view in _views_of(scan, name):
                definition = tables[view][0]
                columns = {str(field) for field in scan.requiredSchema().fieldNames()}
                scans[view].append((columns, _all_of(scan.dataFilters(), definition)))
    return {view: _together(found, tables[view][0]) for view, found in scans.items()}


def _scans(plan: Any) -> Iterable[Any]:
    if plan.getClass().getSimpleName() == "FileSourceScanExec":
        yield plan
    for below in (*elements(plan.children()), *elements(plan.subqueries())):
        yield from _scans(below)


def _views_of(scan: Any, directory: str) -> list[str]:
    """The view over whose empty directory this scan is; none for a scan of something else."""
    paths = (str(path.toUri().getPath()) for path in elements(scan.relation().location().rootPaths()))
    return [Path(path).name for path in paths if Path(path).parent == Path(directory)]


def _together(scans: Sequence[tuple[set[str], str]], definition: TableDefinition) -> Need:
    wanted = {name for columns, _ in scans for name in columns}
    conditions = sorted({condition for _, condition in scans})
    return Need(
        tuple(column.name for column in definition.columns if column.name in wanted),
        "" if not all(conditions) else " or ".join(f"({condition})" for condition in conditions),
    )


# -- conditions --------------------------------------------------------------------------------------------------------


def _all_of(filters: Any, definition: TableDefinition) -> str:
    conditions = dict.fromkeys(_condition(expression, definition) for expression in elements(filters))
    return " and ".join(condition for condition in conditions if condition and _is_understood(condition, definition))


def _is_understood(condition: str, definition: TableDefinition) -> bool:
    try:
        parse_filter(condition, definition)
    except UsageError:
        return False
    return True


def _condition(expression: Any, definition: TableDefinition) -> str:
    """The condition in our SQL, or a weaker one; empty for one that says nothing here."""
    kind = str(expression.getClass().getSimpleName())
    below = list(elements(expression.children())) if kind in ("And", "Or") else []
    if kind in ("And", "Or"):
        both = [_condition(child, definition) for child in below]
        if kind == "Or" and not all(both):
            return ""
        return f" {kind.lower()} ".join(f"({condition})" for condition in both if condition)
    if kind in ("IsNull", "IsNotNull"):
        column = _column(expression.child(), definition)
        return f"{identifier(column)} is {'not ' if kind == 'IsNotNull' else ''}null" if column else ""
    if kind in _COMPARISONS:
        left, right, operator = expression.left(), expression.right(), _COMPARISONS[kind]
        if not _column(left, definition):
            left, right, operator = right, left, _FLIPPED[operator]
        return _comparison(_column(left, definition), operator, [right], definition)
    if kind == "In" and expression.list().size() <= _MOST_VALUES:
        return _comparison(_column(expression.value(), definition), "in", list(elements(expression.list())), definition)
    if kind == "StartsWith":
        column, prefix = _column(expression.left(), definition), _literal(expression.right(), "string")
        if column and prefix is not None and re.fullmatch(r"[^%_\\\x00]+", prefix):
            return f"{identifier(column)} like {text(prefix + '%')}"
    return ""


def _comparison(column: str, operator: str, values: Sequence[Any], definition: TableDefinition) -> str:
    if not column or not values:
        return ""
    kind = arrow_type(definition.column(column).type)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return _cut_comparison(column, operator, values[0], kind) if operator != "in" else ""
    constants = [_constant(value, kind) for value in values]
    if not all(constants):
        return ""
    right = f"({', '.join(constants)})" if operator == "in" else constants[0]
    return f"{identifier(column)} {operator} {right}"


def _cut_comparison(column: str, operator: str, value: Any, kind: pa.TimestampType) -> str:
    """What is true of a moment in nanoseconds where the comparison is of the microsecond that Spark gets of it, which
    differs by less than one."""
    found = _literal(value, "timestamp" if kind.tz else "timestamp_ntz")
    if found is None:
        return ""
    bounds = {">": int(found) - 1} if operator in ("=", ">", ">=") else {}
    bounds |= {"<": int(found) + 1} if operator in ("=", "<", "<=") else {}
    texts = {side: _moment_text(bound, kind) for side, bound in bounds.items()}
    return " and ".join(f"{identifier(column)} {side} {bound}" for side, bound in texts.items() if bound)


def _column(expression: Any, definition: TableDefinition) -> str:
    """The column that the expression is; empty for anything else."""
    if expression.getClass().getSimpleName() != "AttributeReference":
        return ""
    name = str(expression.name())
    return name if any(column.name == name for column in definition.columns) else ""


def _literal(expression: Any, *kinds: str) -> str | None:
    """The value of a constant of these types of Spark, as text."""
    if expression.getClass().getSimpleName() != "Literal" or str(expression.dataType().simpleString()) not in kinds:
        return None
    value = expression.value()
    return None if value is None else str(value if isinstance(value, int | str) else value.toString())


def _constant(expression: Any, kind: pa.DataType) -> str:
    """The constant as a value that our SQL compares exactly with a column of this type; empty where it cannot. Floats
    are left to Spark, whose NaN equals itself; so are decimals, which our SQL would take for floats."""
    if pa.types.is_integer(kind):
        found = _literal(expression, "tinyint", "smallint", "int", "bigint", "decimal(20,0)")
        bits = kind.bit_width
        low, high = (-(1 << bits - 1), 1 << bits - 1) if pa.types.is_signed_integer(kind) else (0, 1 << bits)
        return found if found is not None and low <= int(found) < high else ""
    if pa.types.is_string(kind):
        found = _literal(expression, "string")
        return text(found) if found is not None and "\x00" not in found else ""
    if pa.types.is_date(kind):
        found = _literal(expression, "date")
        moment = _moment(int(found) * 86_400_000_000) if found is not None else None
        return text(moment.date().isoformat()) if moment is not None else ""
    if pa.types.is_timestamp(kind):
        found = _literal(expression, "timestamp" if kind.tz else "timestamp_ntz")
        # A finer constant would be rounded to the column's unit.
        return _moment_text(int(found), kind) if found is not None and not int(found) % _UNITS[kind.unit] else ""
    return ""


def _moment_text(microseconds: int, kind: pa.TimestampType) -> str:
    moment = _moment(microseconds)
    if moment is None:
        return ""
    return text(moment.replace(tzinfo=UTC).isoformat() if kind.tz else moment.isoformat())


def _moment(microseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
