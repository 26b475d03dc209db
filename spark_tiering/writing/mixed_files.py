"""Whether files mix the partitions of a table, so that tasks which write what they read would leave very many parts.

What Parquet says of its row groups tells; of ORC, and of columns that nothing is said of, it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from oplog.errors import FrostlineError
from spark_tiering.writing.file_shares import FileShare
from tiering.insert.reshaping import Reshaping
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import cast_column
from tiering.table.schema import Column, PartitionField
from tiering.table.transforms import apply_transform

MOST_PARTS = 4
"""Times as many as rows in ranges leave, which is about one for each partition and task: fewer are left to merges."""
_PLACED = ("year", "month", "day", "hour", "truncate", "identity")
"""What puts values near each other into one partition."""
Interval = tuple[int, int]
"""The first and the last partition that a row group may have rows of, by numbers that go up."""


def are_mixed(shares: Sequence[Sequence[FileShare]], reshaping: Reshaping) -> bool:
    """Whether these tasks would leave too many parts. Reads the footers of the files; one that cannot be read is no
    matter here, for who reads its rows says why."""
    fields = [field for field in reshaping.definition.partition_by if field.transform in _PLACED]
    if len(shares) == 1 or not fields:
        return False
    paths = {column.name: path for path, column in reshaping.columns().items()}
    found: dict[str, list[list[Interval]]] = {str(field): [] for field in fields}
    for share in shares:
        groups = [group for piece in share for group in _row_groups(piece)]
        for field in fields:
            column = reshaping.definition.column(field.column)
            intervals = _intervals(groups, paths.get(field.column, field.column), field, column)
            if intervals is None:
                found.pop(str(field), None)
            elif str(field) in found:
                found[str(field)].append(intervals)
    return too_many(found)


def too_many(intervals: Mapping[str, Sequence[Sequence[Interval]]]) -> bool:
    """The same, by what is known of each task's row groups for each partition field. Pure."""
    if not intervals:
        return False
    tasks = list(zip(*intervals.values(), strict=True))
    parts = sum(prod(map(spread, task)) for task in tasks)
    partitions = prod(spread(interval for task in field for interval in task) for field in intervals.values())
    return parts > MOST_PARTS * (partitions + len(tasks))


def spread(intervals: Iterable[Interval]) -> int:
    """How many partitions the intervals have together, at least one. Pure."""
    count, end = 0, None
    for first, last in sorted(intervals):
        begin = first if end is None else max(first, end + 1)
        count += max(last - begin + 1, 0)
        end = last if end is None else max(end, last)
    return max(count, 1)


def _row_groups(piece: FileShare) -> list[Any]:
    """Of the file, what the task reads; one that is None where that is not known."""
    source = piece.file.source
    if source.format != "parquet" or source.compression:
        return [None]
    try:
        metadata = pq.read_metadata(source.path)
    except (OSError, pa.ArrowException):
        return [None]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chosen = piece.span.within([group.num_rows for group in groups]) if piece.span is not None else range(len(groups))
    return [groups[number] for number in chosen if groups[number].num_rows]


def _intervals(groups: Sequence[Any], path: str, field: PartitionField, column: Column) -> list[Interval] | None:
    """Of the row groups with values of the column; None where it is not known of one."""
    bounds: list[Any] = []
    for group in groups:
        stated = _stated(group, path) if group is not None else None
        if stated is None:
            return None
        bounds += stated
    numbers = _numbers(bounds, field, column) if bounds else []
    return list(zip(numbers[::2], numbers[1::2], strict=True)) if numbers is not None else None


def _stated(group: Any, path: str) -> tuple[Any, ...] | None:
    """The least and the greatest value of a column, nothing where all are null; None where that is not said, or where
    Python has no such date."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == path:
            stated = chunk.statistics
            if stated is None or not (stated.has_min_max or stated.null_count == group.num_rows):
                return None
            try:
                return (stated.min, stated.max) if stated.has_min_max else ()
            except (OverflowError, ValueError):
                return None
    return ()


def _numbers(values: Sequence[Any], field: PartitionField, column: Column) -> list[int] | None:
    """The partitions of values, by numbers that go up by one; None where partitions have none."""
    kind = arrow_type(column.type)
    if field.transform in ("identity", "truncate") and not (pa.types.is_integer(kind) or pa.types.is_date(kind)):
        return None
    try:
        placed = apply_transform(field, cast_column(pa.array(values), column, where="", first_row=0))
    except (FrostlineError, pa.ArrowException, OverflowError):  # the last: above 2**63
        return None
    whole = placed.cast(pa.int32()) if pa.types.is_date(placed.type) else placed
    width = field.parameter or 1 if field.transform == "truncate" else 1
    return [number // width for number in whole.to_pylist()]
