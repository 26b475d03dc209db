"""Columns that directories of the path give to the files that Spark reads, as an insert gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from oplog.errors import Refused
from spark_tiering.references import quoted
from tiering.insert.inputs.hive import PathColumn
from tiering.insert.inputs.path_steps import value_of
from tiering.insert.reshaping import NULLS
from tiering.table.schema import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE, _HAS, _TEXT = "frostline file", "frostline has ", "frostline text "
_LOCAL = re.compile(r"\Afile:/+")


def with_path_columns(
    session: SparkSession, rows: DataFrame, said: Mapping[str, Mapping[str, PathColumn]], *, is_json: bool
) -> DataFrame:
    """The rows with the columns that the paths of their files say, by place. Each row fails that has another value
    there itself; of JSON, where rows need not have all columns, no value is none."""
    from pyspark.sql import functions

    found = {name: one for columns in said.values() for name, one in columns.items()}
    if not found:
        return rows
    facts = [(spelled, *_facts(said, spelled, list(found))) for spelled in map(_spelled, rows.inputFiles())]
    numbers = range(len(found))
    schema = ", ".join(
        [f"`{_FILE}` string", *(f"`{_HAS}{number}` boolean, `{_TEXT}{number}` string" for number in numbers)]
    )
    file = functions.regexp_replace("_metadata.file_path", "^file:/+", "file:/")
    names = rows.columns
    listed = functions.broadcast(session.createDataFrame(facts, schema))
    joined = rows.withColumn(_FILE, file).join(listed, _FILE, "left")
    columns = {name: functions.col(quoted(name)) for name in names}
    for number, (name, one) in enumerate(found.items()):
        kind = spark_type(one.column)
        value, has = functions.col(f"`{_TEXT}{number}`").cast(kind), functions.col(f"`{_HAS}{number}`")
        refused = functions.concat(
            functions.lit(f"a row has another value in column {name} than the directory of its file: "),
            functions.col(f"`{_FILE}`"),
        )
        if name not in columns:
            known = has.isNotNull()  # of a file that nobody listed nothing is made up
            columns[name] = functions.when(known, value).otherwise(functions.raise_error(refused).cast(kind))
            continue
        own = columns[name]
        own = functions.when(own.isin(*NULLS), None).otherwise(own) if _is_string(rows, name) else own
        own = own.cast(kind)
        agrees = own.eqNullSafe(value) | own.isNull() if is_json else own.eqNullSafe(value)
        columns[name] = (
            functions.when(~has, own).when(has & agrees, value).otherwise(functions.raise_error(refused).cast(kind))
        )
    return joined.select(*(value.alias(name) for name, value in columns.items()))


def spark_type(column: Column) -> Any:
    """How Spark holds the values of the column."""
    from spark_tiering.arrow_types import spark_schema

    return spark_schema([column], truncate_nanoseconds=True).fields[0].dataType


def _spelled(url: str) -> str:
    """A file as Spark's rows name it."""
    return _LOCAL.sub("file:/", url)


def _facts(said: Mapping[str, Mapping[str, PathColumn]], spelled: str, names: list[str]) -> list[bool | str | None]:
    place = next((place for place in (unquote(spelled), spelled) if place in said), None)
    if place is None:
        raise Refused(
            f"{spelled} is none of the files that were listed", hint="--no-hive takes the columns of the files alone"
        )
    columns = said[place]
    facts: list[bool | str | None] = []
    for name in names:
        one = columns.get(name)
        facts += [one is not None, value_of(one.step, place) if one is not None else None]
    return facts


def _is_string(rows: DataFrame, name: str) -> bool:
    from pyspark.sql.types import StringType

    return isinstance(rows.schema[name].dataType, StringType)
