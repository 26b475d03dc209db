"""Driver programs that read and write a table on a cluster: `python -m tests.spark.table_jobs URL CONFIG WHAT ROWS`,
one JSON document out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import spark_tiering
from spark_tiering.running.session import spark_session
from tests.spark.drivers import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}
STRAGGLING_SECONDS = 600.0


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """What the tests write: four tasks."""
    return spark.range(0, rows, 1, 4).selectExpr(
        "concat('s', cast(pmod(id, 17) as string)) as service",
        "timestamp_micros(1767225600000000 + id * 1000000) as ts",
        "cast(id as decimal(20,0)) as count",
        "cast(null as string) as note",
    )


def straggling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of the first task hangs after its rows went by."""
    from pyspark import TaskContext

    context = TaskContext.get()
    yield from batches
    if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(STRAGGLING_SECONDS)


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes long enough for somebody to kill a worker."""
    for batch in batches:
        print("running", file=sys.stderr, flush=True)
        time.sleep(3)
        yield batch


def main(url: str, config: str, what: str, rows: str) -> None:
    chosen = settings(Path(config).parent / "driver", url)
    if what == "speculate":
        chosen.spark.conf.update(SPECULATION)
    session = spark_session(chosen, app="tests")
    spark_tiering.register(session)
    try:
        frame = rows_of(session, int(rows))
        if what == "speculate":
            frame = frame.mapInArrow(straggling, frame.schema)
        elif what == "slow":
            frame = frame.mapInArrow(slow, frame.schema)
        frame.write.format("frostline").mode("append").option("config", config).save("db.logs")
        table = session.read.format("frostline").option("config", config).load("db.logs")
        found = table.selectExpr("count(*)", "count(distinct count)", "sum(count)").collect()[0]
        print(json.dumps([int(value or 0) for value in found]))
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
