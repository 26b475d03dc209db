"""Rows of a data frame in ranges of a table's partitions and sort key, by a shuffle: so that a task writes few parts,
and none has much more than its share. Also rows that tasks read themselves, as far as Spark carries them unchanged.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from oplog.errors import FrostlineError, Transient, UsageError
from spark_tiering.arrow_types import carried_schema, carried_type, conform
from spark_tiering.references import quoted
from spark_tiering.writing.file_shares import FileShare, rows_of
from tiering.insert.reshaping import Reshaping
from tiering.table.columns.type_texts import arrow_type
from tiering.table.schema import PartitionField, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

_ERROR = "what a task found wrong"
"""A column beside those of the table: no task that reads answers to the driver."""


def in_ranges(rows: DataFrame, definition: TableDefinition, tasks: int) -> DataFrame:
    """The rows in so many ranges of about one size: first those of one partition, then by their keys."""
    if tasks == 1:
        return rows.coalesce(1)
    ranges = _ranges(rows, definition)
    return rows.repartitionByRange(tasks, *ranges) if ranges else rows.repartition(tasks)


def are_carried(definition: TableDefinition) -> bool:
    """Whether rows of the table come through Spark unchanged."""
    try:
        kinds = [(arrow_type(column.type), carried_type(column)) for column in definition.columns]
    except UsageError:
        return False
    return all(kind == carried for kind, carried in kinds if pa.types.is_nested(kind))


def read_by_tasks(session: SparkSession, shares: Sequence[Sequence[FileShare]], reshaping: Reshaping) -> DataFrame:
    """The rows of files that tasks open themselves, which `are_carried`; `rows_or_error` takes them."""
    from pyspark import cloudpickle
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = [field.with_nullable(True) for field in carried_schema(reshaping.definition.columns)]
    schema = pa.schema([*columns, pa.field(_ERROR, pa.binary())])
    pickled = [(bytes(cloudpickle.dumps(share)),) for share in shares]
    tasks = session.createDataFrame(session.sparkContext.parallelize(pickled, len(pickled)), "share binary")
    return tasks.mapInArrow(_Reading(reshaping, schema), from_arrow_schema(schema))


def rows_or_error(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of `read_by_tasks`, or of Spark itself. Raises what the former found wrong with a file."""
    for batch in batches:
        if _ERROR not in batch.schema.names:
            yield batch
            continue
        for error in batch.column(_ERROR).drop_null():
            raise pickle.loads(error.as_py())
        yield batch.drop_columns([_ERROR])


@dataclass(frozen=True)
class _Reading:
    """What a task does that reads and does not write."""

    reshaping: Reshaping
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import cloudpickle

        for share in [pickle.loads(share.as_py()) for batch in batches for share in batch.column(0)]:
            try:
                for rows in rows_of(share, self.reshaping):
                    error = pa.nulls(rows.num_rows, pa.binary())
                    yield conform(rows.append_column(_ERROR, error), self.schema)
            except Transient:
                raise  # Spark tries again
            except FrostlineError as error:
                values = {_ERROR: bytes(cloudpickle.dumps(error))}
                yield pa.RecordBatch.from_pylist([values], self.schema)


def _ranges(rows: DataFrame, definition: TableDefinition) -> list[Expression]:
    from pyspark.sql import functions

    there = set(rows.columns)
    by = [_partition(rows, field) for field in definition.partition_by if field.column in there]
    keys = [functions.col(quoted(name)) for name in definition.order_by if name in there]
    return [one for one in by if one is not None] + keys


def _partition(rows: DataFrame, field: PartitionField) -> Expression | None:
    """What is equal for rows of one partition, or of a few; None where Spark does not count as we do."""
    from pyspark.sql import functions
    from pyspark.sql.types import IntegralType, StringType

    value, kind = functions.col(quoted(field.column)), rows.schema[field.column].dataType
    match field.transform:
        case "year" | "month" | "day" | "hour":
            return functions.date_trunc(field.transform, value)
        case "truncate" if isinstance(kind, StringType):
            return functions.substring(value, 1, field.parameter or 1)
        case "truncate" if isinstance(kind, IntegralType):
            # Wider: the multiple below the least number is no number of the column's type, which Spark refuses.
            return value.cast("decimal(20,0)") - functions.pmod(value, functions.lit(field.parameter or 1))
        case "truncate" | "identity":
            return value
    return None
