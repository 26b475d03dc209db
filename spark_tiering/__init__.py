"""Spark: where large work runs, and a data source for tables. Nothing else in Frostline imports pyspark.

SparkSession.builder.config(map=spark_tiering.PROPERTIES)    sessions that read much
spark_tiering.register(spark)                                then spark.read.format("frostline")
spark_tiering.sql(spark, "select … from db.table")           reads what the query needs, and no more
spark_tiering.views(spark)                                   every table as a temporary view
spark_tiering.formats(spark)                                 every table as a format, for Spark's catalogue
spark_tiering.drop_partition("db.table", "202601")           as the verb does
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import SparkSession

    from spark_tiering.queries.catalogue import formats
    from spark_tiering.queries.sql import sql, views

__all__ = ["PROPERTIES", "drop_partition", "formats", "register", "sql", "views"]

_JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

PROPERTIES = {
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Properties of a session that make reading faster: less work in the JVM for each value and for each byte that a Python
worker hands to it. They must be there when Spark starts. The first two turn off the checks of bounds and of nulls that
Arrow makes for each value of a vector; Spark asks for nulls by itself."""


def register(session: SparkSession) -> None:
    """Make `format("frostline")` known to the session, and our code to its executors where they are elsewhere."""
    from spark_tiering.datasource import register as _register

    _register(session)


def drop_partition(table: str, partition: str, *, config: str | PathLike[str] | None = None) -> dict[str, int]:
    """Drop all parts of a partition on every disk; of each disk with a log the revision that did it, which
    `frostline undo` takes back. Raises `NotFound` where there is no such partition."""
    from spark_tiering.writing.write_job import drop_partition as _drop_partition

    return _drop_partition(table, partition, config=config)


def __getattr__(name: str) -> object:
    """What needs the engine, loaded when it is first used."""
    value: object
    match name:
        case "formats":
            from spark_tiering.queries.catalogue import formats as value
        case "sql":
            from spark_tiering.queries.sql import sql as value
        case "views":
            from spark_tiering.queries.sql import views as value
        case _:
            raise AttributeError(f"module 'spark_tiering' has no attribute {name!r}")
    globals()[name] = value
    return value
