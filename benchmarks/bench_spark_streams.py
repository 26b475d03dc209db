"""Streams of Spark into a table, and what came into one since a revision, in one session.

    python -m benchmarks.bench_spark_streams [--batches 60] [--rows 50000] [--commits 1000] [--total N] [--workers N]

The stream reads a Parquet file a batch and writes it to a table in a directory bucket; against Spark's Parquet sink.
Changes: commits that together bring 1 % of the rows, read by `changes_since`, against reading the whole table, which is
large enough that the start of a job is not what is measured. Rows are counted and their sum is compared.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import spark_data
from benchmarks.bench_spark_reader import master_of, start
from benchmarks.measure import bound_figure, paired, ratio_figure, report, scratch, timed
from tiering.engine.store import Store
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = {"k": "int64", "value": "float64", "name": "string"}
MOST_PARTS = 12
_ROWS_AT_ONCE = 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rows", type=int, default=50_000, help="of a batch")
    parser.add_argument("--commits", type=int, default=1000, help="that bring 1 %% of the rows of `changes_since`")
    parser.add_argument("--total", type=int, default=100_000_000, help="rows of the table of `changes_since`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="of a standalone cluster, instead of local[2]")
    options = parser.parse_args()
    with ExitStack() as stack:
        home = stack.enter_context(scratch())
        config = spark_data.configuration(home)
        session = start(recommended=True, master=stack.enter_context(master_of(options.workers)))
        stack.callback(session.stop)
        streams(session, config, home, options.batches, options.rows, options.rounds)
        changes(session, config, options.commits, options.total, options.rounds)


def streams(session: SparkSession, config: Path, home: Path, batches: int, rows: int, rounds: int) -> None:
    incoming = home / "incoming"
    incoming.mkdir()
    for number in range(batches):
        pq.write_table(_rows(number * rows, rows), incoming / f"{number:05d}.parquet")
    turns = itertools.count()

    def run(begin: Callable[[Any, Path, str], Any]) -> float:
        name = f"run{next(turns)}"
        with Store.open(config) as store:
            store.create_table(_definition(name))
        stream = session.readStream.schema("k bigint, value double, name string").option("maxFilesPerTrigger", "1")
        writer = stream.parquet(str(incoming)).coalesce(1).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(home / f"{name}.checkpoint"))
        return timed(lambda: begin(writer, home / f"{name}.parquet", name).awaitTermination())

    def ours(writer: Any, directory: Path, name: str) -> Any:
        return writer.format("frostline").option("config", str(config)).start(f"bench.{name}")

    def theirs(writer: Any, directory: Path, name: str) -> Any:
        return writer.format("parquet").start(str(directory))

    seconds, baseline = paired(lambda: run(ours), lambda: run(theirs), rounds=rounds)
    with Store.open(config) as store:
        found = store.query("SELECT count(*), sum(k) FROM bench.run0").read_all()
        assert [column[0].as_py() for column in found.columns] == [batches * rows, sum(range(batches * rows))]
        left = len(store.parts("bench.run0"))
    what = f"stream of {batches} batches of {rows} rows"
    report(
        [
            ratio_figure(what, seconds, baseline, at_most=1.2, baseline_name="Spark's Parquet sink"),
            bound_figure(f"{what}: parts left", left, at_most=MOST_PARTS, unit="parts"),
        ]
    )


def changes(session: SparkSession, config: Path, commits: int, total: int, rounds: int) -> None:
    each = max(total // 100 // commits, 1)
    old = total - commits * each
    definition = _definition("grown")
    with Store.open(config) as store:
        store.create_table(definition)
        for first in range(0, old, _ROWS_AT_ONCE):
            store.table(definition.full_name).insert(_rows(first, min(_ROWS_AT_ONCE, old - first)).to_batches())
        since = store.object_disk("s3").revision or 0
        for number in range(commits):
            store.table(definition.full_name).insert(_rows(old + number * each, each).to_batches())

    def read(**options: str) -> tuple[int, int]:
        frame: DataFrame = (
            session.read.format("frostline").option("config", str(config)).options(**options).load("bench.grown")
        )
        rows, keys = frame.selectExpr("count(*)", "sum(k)").collect()[0]
        return int(rows), int(keys)

    assert read(changes_since=str(since)) == (commits * each, sum(range(old, total)))
    assert read() == (total, sum(range(total)))
    seconds, baseline = paired(
        lambda: timed(lambda: read(changes_since=str(since))), lambda: timed(read), rounds=rounds
    )
    what = f"changes_since over {commits} commits, 1 % of {total} rows"
    report([ratio_figure(what, seconds, baseline, at_most=0.05, baseline_name="reading the table")])


def _rows(first: int, count: int) -> pa.Table:
    keys = numpy.arange(first, first + count)
    names = pa.array(numpy.char.add("name ", (keys % 1000).astype(str)))
    return pa.table({"k": keys, "value": numpy.sqrt(keys), "name": names})


def _definition(name: str) -> TableDefinition:
    return TableDefinition(
        uuid=f"5f0e8b1c-0000-4000-8000-{sum(map(ord, name)):012d}",
        database="bench",
        name=name,
        columns=tuple(Column(number, column, kind) for number, (column, kind) in enumerate(COLUMNS.items(), 1)),
        order_by=("k",),
        policy="cold",
        last_column_id=len(COLUMNS),
    )


if __name__ == "__main__":
    main()
