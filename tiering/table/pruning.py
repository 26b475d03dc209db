"""Which parts and files can hold a row that a filter selects: pure, from `part.json` alone.

`may_match` answers "could the filter be true for some row here?". No is a proof, yes a possibility: what is not
understood (`Unknown`), not known (a missing range) or not ordered (NaN) may match. A filter is true, false or null, as
in SQL; a row is selected where it is true. Values are compared in one domain a column type (`domain_value`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import isnan
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from tiering.table.names import path_text
from tiering.table.part import ColumnRange, DataFile, Part
from tiering.table.partition_limits import may_be_wrong, time_range
from tiering.table.schema import Column, PartitionField, TableDefinition

Operator = Literal["=", "!=", "<", "<=", ">", ">="]

_NEGATED: dict[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_SECOND = 1_000_000_000
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?\s*(Z|[+-]\d\d:?\d\d)?\Z", re.IGNORECASE
)


class Compare(msgspec.Struct, frozen=True):
    """`column operator value`; null where either is null. `value` is a domain value."""

    column: str
    operator: Operator
    value: Any
    fields: tuple[str, ...] = ()
    """Of a field within the column's structs, its names from the outermost on; so in the others, too."""


class In(msgspec.Struct, frozen=True):
    """The column equals one of the values; `negated`: none of them. Null where the column is null."""

    column: str
    values: tuple[Any, ...]
    negated: bool = False
    fields: tuple[str, ...] = ()


class IsNull(msgspec.Struct, frozen=True):
    """The column is null; `negated`: it is not."""

    column: str
    negated: bool = False
    fields: tuple[str, ...] = ()


class StartsWith(msgspec.Struct, frozen=True):
    """The text begins with the prefix; `negated`: it does not."""

    column: str
    prefix: str
    negated: bool = False
    fields: tuple[str, ...] = ()


class And(msgspec.Struct, frozen=True):
    """All of them; of none: true."""

    children: tuple[Predicate, ...]


class Or(msgspec.Struct, frozen=True):
    """Any of them; of none: false."""

    children: tuple[Predicate, ...]


class Not(msgspec.Struct, frozen=True):
    """True where the child is false; null where it is null."""

    child: Predicate


class Unknown(msgspec.Struct, frozen=True):
    """A filter that is not understood here: it may select any row."""


Predicate = Compare | In | IsNull | StartsWith | And | Or | Not | Unknown

TRUE = And(())


def columns_of(predicate: Predicate) -> set[str]:
    """The names of the columns that decide."""
    match predicate:
        case And(children) | Or(children):
            return set().union(*(columns_of(child) for child in children))
        case Not(child):
            return columns_of(child)
        case Compare() | In() | IsNull() | StartsWith():
            return {predicate.column}
        case _:
            return set()


def may_match(predicate: Predicate, part: Part, definition: TableDefinition) -> bool:
    """Whether the part can hold a row for which the predicate is true. Never False for a part that does."""
    facts = _Facts(part.rows, part.columns, definition)
    if part.rows and len(part.partition_values) == len(definition.partition_by):
        facts.partitions = tuple(zip(definition.partition_by, part.partition_values, strict=True))
    return part.rows > 0 and _may(_normal(predicate, negate=False), facts)


def partition_may_match(predicate: Predicate, values: tuple[Any, ...], definition: TableDefinition) -> bool:
    """The same of any part of a partition whose parts have these `partition_values`."""
    facts = _Facts(1, {}, definition)
    if len(values) == len(definition.partition_by):
        facts.partitions = tuple(zip(definition.partition_by, values, strict=True))
    return _may(_normal(predicate, negate=False), facts)


def matching_files(predicate: Predicate, part: Part, definition: TableDefinition) -> tuple[DataFile, ...]:
    """The part's files that can hold a selected row, in order; none when the part as a whole cannot."""
    if not may_match(predicate, part, definition):
        return ()
    normal = _normal(predicate, negate=False)
    return tuple(file for file in part.files if _file_may(normal, file, definition))


def _file_may(normal: Predicate, file: DataFile, definition: TableDefinition) -> bool:
    if not file.rows or not _may(normal, _Facts(file.rows, file.columns, definition)):
        return False
    groups = _matching_groups(normal, file, definition)
    return groups is None or bool(groups)


def matching_groups(predicate: Predicate, file: DataFile, definition: TableDefinition) -> frozenset[int] | None:
    """The row groups that can hold a selected row, by their places in the file; None where `part.json` says nothing of
    them that could leave one out."""
    return _matching_groups(_normal(predicate, negate=False), file, definition)


def _matching_groups(normal: Predicate, file: DataFile, definition: TableDefinition) -> frozenset[int] | None:
    deciding = columns_of(normal)
    keys = {range_key(column) for column in definition.columns if column.name in deciding}
    if not any(keys & group.columns.keys() for group in file.row_groups):
        return None
    return frozenset(
        number
        for number, group in enumerate(file.row_groups)
        if group.rows and _may(normal, _Facts(group.rows, group.columns, definition))
    )


def rows_may_match(
    predicate: Predicate, rows: int, ranges: Mapping[str, ColumnRange], definition: TableDefinition
) -> bool:
    """The same of any rows whose ranges are known, by `range_key`: a row group's."""
    return rows > 0 and _may(_normal(predicate, negate=False), _Facts(rows, ranges, definition))


def all_match(predicate: Predicate, rows: int, ranges: Mapping[str, ColumnRange], definition: TableDefinition) -> bool:
    """Whether the predicate is true for all rows whose ranges these are, and for any other values within the ranges.
    Only what is understood can be."""
    facts = _Facts(rows, ranges, definition)
    normal = _normal(predicate, negate=False)
    return _is_never_null(normal, facts) and not _may(_normal(predicate, negate=True), facts)


def _is_never_null(predicate: Predicate, facts: _Facts) -> bool:
    match predicate:
        case And(children) | Or(children):
            return all(_is_never_null(child, facts) for child in children)
        case Compare(column, _, value, fields):
            return value is not None and _has_no_nulls(facts.range(column, fields))
        case In(column, values, _, fields):
            return None not in values and _has_no_nulls(facts.range(column, fields))
        case StartsWith(column, _, _, fields):
            return _has_no_nulls(facts.range(column, fields))
        case IsNull():
            return True
        case _:
            return False


def _has_no_nulls(values: _Range | None) -> bool:
    """Of floats this is not asked: no range has their NaNs."""
    return values is not None and not values.has_nulls and not _is_float(values.type)


def range_key(column: Column, fields: tuple[str, ...] = ()) -> str:
    """Under which `part.json` has the range of a column, or of a field within its structs: by ids, for both can be
    renamed. In a table whose nested fields have no ids, fields go by their names, which they keep."""
    if fields and column.nested_ids:
        from tiering.table.columns.nested_ids import member_id  # which needs Arrow, as a daemon at rest does not

        return str(member_id(column, fields))
    return path_text(str(column.id), fields)


class _Facts:
    """What is known of the rows of a part or file."""

    def __init__(self, rows: int, ranges: Mapping[str, ColumnRange], definition: TableDefinition) -> None:
        self.rows = rows
        self.columns = {column.name: column for column in definition.columns}
        self.partitions: tuple[tuple[PartitionField, Any], ...] = ()
        self._ranges = ranges

    def range(self, name: str, fields: tuple[str, ...]) -> _Range | None:
        """What is known of the values; None when nothing is (an unknown column, one added later, a field of a part
        whose `part.json` is older than the ranges of fields)."""
        column = self.columns.get(name)
        stored = self._ranges.get(range_key(column, fields)) if column else None
        kind = _type_of(column, fields) if column else None
        if kind is None or stored is None:
            return None
        return _Range(
            kind,
            _widened(kind, stored.min, up=False),
            _widened(kind, stored.max, up=True),
            has_nulls=stored.nulls > 0,
            all_null=stored.nulls >= self.rows,
        )


def _type_of(column: Column, fields: tuple[str, ...]) -> str | None:
    if not fields:
        return column.type
    from tiering.table.columns.type_texts import field_type  # which needs Arrow, as a daemon at rest does not

    return field_type(column.type, fields)


class _Range(msgspec.Struct, frozen=True):
    type: str
    low: Any
    """None: unknown"""
    high: Any
    has_nulls: bool
    all_null: bool


def _normal(predicate: Predicate, *, negate: bool) -> Predicate:
    """The same predicate, or its negation, without `Not`, nested `And`s made flat.

    Pushing the negation inwards is exact in three-valued logic: null stays null.
    """
    match predicate:
        case Not(child):
            return _normal(child, negate=not negate)
        case And(children) | Or(children):
            conjunction = isinstance(predicate, And) != negate
            parts: list[Predicate] = []
            for child in children:
                done = _normal(child, negate=negate)
                if isinstance(done, And if conjunction else Or):
                    parts.extend(done.children)
                else:
                    parts.append(done)
            return And(tuple(parts)) if conjunction else Or(tuple(parts))
        case Compare(operator=operator):
            return replace(predicate, operator=_NEGATED[operator]) if negate else predicate
        case In(negated=negated) | IsNull(negated=negated) | StartsWith(negated=negated):
            return replace(predicate, negated=negated != negate)
        case Unknown():
            return predicate


def _may(predicate: Predicate, facts: _Facts) -> bool:
    match predicate:
        case And(children):
            bounded = _bounded_on_both_sides(children)
            return all(
                _may_compare(child, facts, nan_excluded=(child.column, child.fields) in bounded)
                if isinstance(child, Compare)
                else _may(child, facts)
                for child in children
            )
        case Or(children):
            return any(_may(child, facts) for child in children)
        case Compare():
            return _may_compare(predicate, facts, nan_excluded=False)
        case In(column, values, negated, fields):
            if negated:
                # Null for a null column; NOT IN of the only value a column has is false for all of its rows.
                return all(_may(Compare(column, "!=", value, fields), facts) for value in values)
            return any(_may(Compare(column, "=", value, fields), facts) for value in values)
        case IsNull(column, negated, fields):
            known = facts.range(column, fields)
            return known is None or (not known.all_null if negated else known.has_nulls)
        case StartsWith():
            return _may_start_with(predicate, facts)
        case _:
            return True


def _bounded_on_both_sides(children: tuple[Predicate, ...]) -> set[tuple[str, tuple[str, ...]]]:
    """What the conjunction bounds from below and from above: there no NaN, of either sign, can pass."""
    compared = [child for child in children if isinstance(child, Compare)]
    above = {(child.column, child.fields) for child in compared if child.operator in (">", ">=", "=")}
    below = {(child.column, child.fields) for child in compared if child.operator in ("<", "<=", "=")}
    return above & below


def _may_compare(predicate: Compare, facts: _Facts, *, nan_excluded: bool) -> bool:
    value, operator = predicate.value, predicate.operator
    if value is None:
        return False
    if isinstance(value, float) and isnan(value):  # greater than all numbers or equal to none, by who compares
        return True
    if not _partitions_may(predicate, facts):
        return False
    known = facts.range(predicate.column, predicate.fields)
    if known is None:
        return True
    if known.all_null:
        return False
    # NaN sorts beyond every number in SQL engines (before them with the sign bit set) and is not in the ranges.
    if _is_float(known.type) and not (nan_excluded or operator == "="):
        return True
    try:
        return _may_in_range(operator, value, known.low, known.high)
    except TypeError:  # a value of another domain
        return True


def _may_in_range(operator: Operator, value: Any, low: Any, high: Any) -> bool:
    match operator:
        case "=":
            return (low is None or low <= value) and not _beyond(value, high)
        case "<":
            return low is None or bool(low < value)
        case "<=":
            return low is None or bool(low <= value)
        case ">":
            return high is None or (not _beyond(value, high) and (value != high or _is_open(high)))
        case ">=":
            return not _beyond(value, high)
        case "!=":
            return low is None or high is None or _is_open(high) or not (low == high == value)


def _beyond(value: Any, high: Any) -> bool:
    """Whether the value is greater than all of the range. A text that continues the maximum is not: the stored maximum
    of a long text may be only its beginning."""
    if high is None:
        return False
    if _is_open(high) and type(value) is type(high):
        return bool(value > high) and not value.startswith(high)
    return bool(value > high)


def _is_open(high: Any) -> bool:
    """Whether values above this maximum may exist: those it is a prefix of."""
    return isinstance(high, (str, bytes))


def _may_start_with(predicate: StartsWith, facts: _Facts) -> bool:
    known = facts.range(predicate.column, predicate.fields)
    if known is None:
        return True
    if known.all_null:
        return False
    low, high, prefix = known.low, known.high, predicate.prefix
    if not isinstance(low, str) or not isinstance(high, str):
        return True
    if predicate.negated:
        # Only texts between two that share the prefix surely share it; a shortened maximum proves nothing shorter.
        return not (low.startswith(prefix) and high.startswith(prefix))
    return not (low > prefix and not low.startswith(prefix)) and not _beyond(prefix, high)


def _partitions_may(predicate: Compare, facts: _Facts) -> bool:
    for field, stored in facts.partitions:
        if field.column != predicate.column or predicate.fields:
            continue
        if stored is None:
            return False  # the transform of a value is never null: all rows are null here
        column = facts.columns.get(field.column)
        if column is None or _is_float(column.type):
            continue
        low, high = _partition_range(field, stored, column)
        try:
            if not _may_in_range(predicate.operator, predicate.value, low, high):
                return False
        except TypeError:
            continue
    return True


def _partition_range(field: PartitionField, stored: Any, column: Column) -> tuple[Any, Any]:
    """The column values of a partition: (low, high), None where not known. Buckets order nothing, and what an older
    version may have computed wrongly is not believed."""
    match field.transform:
        case "identity":
            return _widened(column.type, stored, up=False), _widened(column.type, stored, up=True)
        case "hour" | "day" | "month" | "year" if isinstance(stored, int):
            return time_range(field.transform, stored, 1 if column.type == "date" else 86_400 * _SECOND)
        case "truncate":
            low = domain_value(column.type, stored)
            if may_be_wrong(field, low, column):
                return None, None
            if isinstance(low, int) and not isinstance(low, bool):
                return low, low + (field.parameter or 1) - 1
            return low, low if isinstance(low, (str, bytes)) else None
        case _:
            return None, None


def _is_float(type_text: str) -> bool:
    return type_text.startswith("float")


def _widened(type_text: str, stored: Any, *, up: bool) -> Any:
    """A stored bound in the type's domain. Bounds of nanoseconds may have been cut to microseconds on their way, and a
    partition may hold all that there are of one."""
    value = domain_value(type_text, stored)
    if value is not None and type_text.startswith("timestamp[ns"):
        return value // 1000 * 1000 + (999 if up else 0)
    return value


def domain_value(type_text: str, value: Any) -> Any:
    """A Python or `part.json` value of the column type in the domain that bounds are compared in; None if it is none.

    Whole numbers, decimals and floats are numbers (compared exactly), dates days since 1970, timestamps nanoseconds
    since 1970 UTC (a time without a zone is UTC), binary bytes (hexadecimal as text).
    """
    if value is None:
        return None
    try:
        if type_text == "date":
            return _nanoseconds(value) // (86_400 * _SECOND) if _is_midnight(value) else None
        if type_text.startswith("timestamp"):
            return _nanoseconds(value)
        if type_text == "binary":
            return bytes.fromhex(value) if isinstance(value, str) else bytes(value)
        if type_text == "string":
            return value if isinstance(value, str) else None
        if type_text == "bool":
            return value if isinstance(value, bool) else None
        if type_text.startswith("decimal"):
            return Decimal(value) if isinstance(value, (str, int, Decimal)) else float(value)
        if _is_float(type_text) or type_text.removeprefix("u").startswith("int"):
            return value if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) else None
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        return None
    return None


def _is_midnight(value: Any) -> bool:
    return _nanoseconds(value) % (86_400 * _SECOND) == 0


def _nanoseconds(value: Any) -> int:
    if isinstance(value, str):
        return _parse_time(value)
    if isinstance(value, datetime):
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        extra = int(getattr(value, "nanosecond", 0))  # pandas' subclass
        seconds = (utc.toordinal() - _EPOCH_ORDINAL) * 86_400 + utc.hour * 3600 + utc.minute * 60 + utc.second
        return seconds * _SECOND + utc.microsecond * 1000 + extra
    if isinstance(value, date):
        return (value.toordinal() - _EPOCH_ORDINAL) * 86_400 * _SECOND
    raise TypeError(f"not a time: {value!r}")


@lru_cache(maxsize=4096)
def _parse_time(text: str) -> int:
    """RFC 3339 with up to nine digits of a second, a date alone, or without a zone (UTC). Raises ValueError."""
    match = _TIME.match(text.strip())
    if not match:
        raise ValueError(f"not a time: {text!r}")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_ORDINAL
    seconds = days * 86_400 + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    if zone and zone not in "Zz":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * _SECOND + int((fraction or "").ljust(9, "0") or 0)
