"""What a sample's rows say of the table that is made from it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from oplog.errors import UsageError
from tiering.insert.inputs.bucket_sources import BucketSources
from tiering.insert.inputs.sources import read_each, sample_sources
from tiering.insert.reshaping import Reshaping
from tiering.parquet.column_ranges import column_range
from tiering.table.columns.type_texts import arrow_type
from tiering.table.columns.types import from_json
from tiering.table.names import name_text

_STEPS = (("day", timedelta(days=1)), ("month", timedelta(days=30)))
_MOST_PARTITIONS = 62
"""So many of the sample are not yet too many parts; a coarser step is taken for more."""


class Suggestion(msgspec.Struct, frozen=True):
    """A partition by time that the sample speaks for."""

    partition_by: str
    column: str
    rows: int
    first: date
    last: date


def suggest_partition(path: str, reshaping: Reshaping, buckets: BucketSources | None = None) -> Suggestion | None:
    """By the first rows of the file, and of several times by the first in the sort order, else in the file. None where
    there is no time; a sample whose rows cannot be read suggests nothing either."""
    definition = reshaping.definition
    times = [column.name for column in definition.columns if _is_time(arrow_type(column.type))]
    names = [name for name in definition.order_by if name in times] or times
    if not names:
        return None
    try:
        streams = read_each(sample_sources(path, buckets)[:1], reshaping)
        batch = next(next(streams), None)
    except UsageError:
        return None
    if batch is None or batch.column(names[0]).null_count == batch.num_rows:
        return None
    known, kind = column_range(pa.chunked_array([batch.column(names[0])])), arrow_type(definition.column(names[0]).type)
    first, last = from_json(known.min, kind), from_json(known.max, kind)
    return Suggestion(
        f"{_transform(_moment(last) - _moment(first))}({name_text(names[0])})",
        names[0],
        batch.num_rows,
        first,
        last,
    )


def _transform(span: timedelta) -> str:
    return next((name for name, step in _STEPS if span <= step * _MOST_PARTITIONS), "year")


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC)
