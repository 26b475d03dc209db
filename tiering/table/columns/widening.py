"""Which types a column may get without rewriting its parts: those that hold all that its type holds. Pure.

Readers cast what older parts hold (`columns.types.widened`). The order of values stays: sort orders, ranges and
sparse indexes of older parts stay true; what `part.json` says in texts is read as values of today's type.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as pa

from oplog.errors import UsageError
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import from_json
from tiering.table.part import Part
from tiering.table.partition_limits import lowest_id
from tiering.table.schema import Column, PartitionField, TableDefinition

_UNITS = ("s", "ms", "us", "ns")
_DIGITS = {8: (3, 3), 16: (5, 5), 32: (10, 10), 64: (19, 20)}
"""Decimal digits of signed and unsigned numbers of so many bits."""
_TIMES = frozenset({"year", "month", "day", "hour"})
_NANOSECONDS_FROM, _NANOSECONDS_TO = datetime(1677, 9, 22, tzinfo=UTC), datetime(2262, 4, 11, tzinfo=UTC)
"""Within these, moments have a place among 64-bit counts of nanoseconds."""


def holds_all(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of the old type is one of the new type, another one. Of nanoseconds, those of their time."""
    if old == new:
        return False
    if pa.types.is_integer(old):
        if pa.types.is_integer(new):
            return _holds_whole(old, new)
        if pa.types.is_decimal(new):
            return bool(new.precision - new.scale >= _DIGITS[old.bit_width][pa.types.is_unsigned_integer(old)])
        return bool(new == pa.float64() and old.bit_width <= 32)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if pa.types.is_timestamp(old) and pa.types.is_timestamp(new):
        return bool(old.tz == new.tz and _UNITS.index(new.unit) > _UNITS.index(old.unit))
    if pa.types.is_date(old):
        return bool(pa.types.is_timestamp(new))
    return bool(old == pa.float32() and new == pa.float64())


def _holds_whole(old: pa.DataType, new: pa.DataType) -> bool:
    was_unsigned, is_unsigned = pa.types.is_unsigned_integer(old), pa.types.is_unsigned_integer(new)
    return bool(new.bit_width > old.bit_width and (was_unsigned or not is_unsigned))


def wider_words(kind: pa.DataType) -> str:
    """What a column of the type may become, for messages."""
    if pa.types.is_integer(kind):
        digits = _DIGITS[kind.bit_width][pa.types.is_unsigned_integer(kind)]
        known = (pa.int16(), pa.int32(), pa.int64(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float64())
        found = [str(wider).replace("double", "float64") for wider in known if holds_all(kind, wider)]
        return " or ".join([*found, f"decimal({digits}, 0) and larger"])
    if pa.types.is_decimal(kind):
        return "decimals with as many digits before and after the point, or more"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return f"{' or '.join(_UNITS[_UNITS.index(kind.unit) + 1 :])} in the same zone"
    if pa.types.is_date(kind):
        return "timestamps"
    return "float64" if kind == pa.float32() else "nothing"


def check_partitions(definition: TableDefinition, column: Column, new: pa.DataType) -> None:
    """Raise `UsageError` where rows of equal values would get into partitions of other names than they have."""
    old = arrow_type(column.type)
    for field in definition.partition_by:
        if field.column == column.name and not _same_partitions(field, old, new):
            raise UsageError(
                f"cannot change column {column.name} from {column.type}: {field} would give its partitions other ids",
                hint="only partitions by year, month, day or hour keep their ids, and those by an "
                "integer that stays one",
            )


def _same_partitions(field: PartitionField, old: pa.DataType, new: pa.DataType) -> bool:
    if field.transform in _TIMES:
        return True
    return bool(pa.types.is_integer(old) and pa.types.is_integer(new))


def check_parts(old: TableDefinition, new: TableDefinition, parts: Iterable[Part]) -> None:
    """Raise `UsageError` when a part holds moments that nanoseconds do not reach, or rows whose partition the new type
    would call otherwise. Looks at no part without need."""
    was = {column.id: column for column in old.columns}
    renumbered = _renumbered(old, new)
    finer = [
        column
        for column in new.columns
        if column.type.startswith("timestamp[ns") and column.id in was and was[column.id].type != column.type
    ]
    for part in parts if finer or renumbered else ():
        for field, column in renumbered:
            _check_lowest(part, field, column, new)
        for column in finer:
            known = part.columns.get(str(column.id))
            if known is None or known.nulls >= part.rows:
                continue
            kind = arrow_type(was[column.id].type)
            bounds = [_moment(from_json(bound, kind)) for bound in (known.min, known.max) if bound is not None]
            if len(bounds) < 2 or not all(_NANOSECONDS_FROM <= bound < _NANOSECONDS_TO for bound in bounds):
                held = f"part {part.name} has {known.min} to {known.max}"
                raise UsageError(
                    f"cannot change column {column.name} to {column.type}: {held}",
                    hint="nanoseconds reach from 1677-09-22 to 2262-04-10; microseconds reach further",
                )


def _renumbered(old: TableDefinition, new: TableDefinition) -> list[tuple[PartitionField, Column]]:
    """The fields of `truncate` whose column, as it was, has another type now."""
    now = {column.id: column.type for column in new.columns}
    truncated = [(field, old.column(field.column)) for field in old.partition_by if field.transform == "truncate"]
    return [(field, column) for field, column in truncated if now.get(column.id, column.type) != column.type]


def _check_lowest(part: Part, field: PartitionField, column: Column, new: TableDefinition) -> None:
    """That the part is not of the lowest partition, whose id depends on the type."""
    known, width = part.columns.get(str(column.id)), field.parameter or 1
    least = known.min if known is not None else None
    if isinstance(least, int) and lowest_id(field, floor := least // width * width, column.type) != floor:
        (now,) = (other.type for other in new.columns if other.id == column.id)
        raise UsageError(
            f"cannot change column {column.name} from {column.type} to {now}: {field} would call the partition of part "
            f"{part.name} otherwise, which has {least}",
            hint=f"partition {part.part_name.partition} has the rows below {floor + width}: move them to another table",
        )


def _moment(value: object) -> datetime:
    if not isinstance(value, datetime):
        return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)
    return value if value.tzinfo else value.replace(tzinfo=UTC)
