"""A table as a data frame for a query: by Spark's own reader where it can, else only what the query needs of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_tiering.arrow_types import carried_type, spark_schema
from spark_tiering.datasource import NAME, is_registered, register
from spark_tiering.queries.native import Native, native_frame
from spark_tiering.queries.required import Need
from spark_tiering.reading.read_options import ReadOptions
from spark_tiering.references import quoted
from tiering.engine.store import Store
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table_frame(
    session: SparkSession,
    store: Store,
    definition: TableDefinition,
    asked: ReadOptions,
    given: Mapping[str, str],
    need: Need,
    native: Native,
) -> DataFrame:
    """All columns of the table in its order, with the rows that are needed, as `native` says. The name of the frame in
    its plan says what was taken, and why. Raises `Refused` where `native` says `always` and cannot be."""
    frame, taken = native_frame(session, store, definition, asked, need, native)
    return (frame if frame is not None else _source_frame(session, definition, asked, given, need)).alias(taken)


def _source_frame(
    session: SparkSession, definition: TableDefinition, asked: ReadOptions, given: Mapping[str, str], need: Need
) -> DataFrame:
    """Through the data source. A name must mean what it means over the whole table, so all columns are there; those
    that are not needed raise an error if Spark ever computes them."""
    from pyspark.sql import functions

    if not is_registered(session):
        register(session)
    columns = need.columns or (_narrowest(definition, asked),)
    reader = session.read.format(NAME).options(**given).option("columns", json.dumps(columns))
    frame = reader.option("filter", need.filter).load(asked.table)
    schema = spark_schema(definition.columns, truncate_nanoseconds=asked.truncate_nanoseconds)
    message = f"was not read of {definition.full_name}, as the query did not need it: name it in the query"
    return frame.select(
        *(
            functions.col(quoted(field.name))
            if field.name in columns
            else functions.raise_error(f"column {field.name} {message}").cast(field.dataType).alias(field.name)
            for field in schema
        )
    )


def _narrowest(definition: TableDefinition, asked: ReadOptions) -> str:
    """The column to read where only rows are counted."""

    def width(column: Column) -> int:
        kind = carried_type(column, truncate_nanoseconds=asked.truncate_nanoseconds)
        return int(kind.bit_width) if pa.types.is_primitive(kind) else 1024

    return min(definition.columns, key=width).name
