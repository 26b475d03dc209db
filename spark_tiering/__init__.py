"""Spark: where large work runs, and a data source for tables. Nothing else in Frostline imports pyspark.

spark_tiering.register(spark)    then spark.read.format("frostline")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Make `format("frostline")` known to the session, and our code to its executors where they are elsewhere."""
    from spark_tiering.datasource import register as _register

    _register(session)
