"""`ingest --spark` of Parquet files into a sorted table with a partition a day, against Spark writing the same rows as
sorted, partitioned Parquet, and beside `insert`, which is one process; and the memory of all processes.

    python -m benchmarks.bench_spark_ingest [--rows 32000000] [--files 64] [--partitions 8] [--skewed] [--workers N]

The files hold log lines in the order of time, the table is sorted by service and time; its bucket is a directory. All
run as whole processes with two cores and heaps of one size; with `--workers` Spark runs on a cluster beside them. Rows
are counted and a sum of them is compared each time. Spark promises less: no digest of what is written, no commit, and
nobody knows of a file that it went in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from benchmarks import spark_data
from benchmarks.bench_spark_reader import master_of
from benchmarks.measure import Figure, TreeRun, ratio_figure, report, run_tree, scratch
from tests.spark.cluster import environment
from tiering.engine.store import Store

SPARK = """
import json, sys, time
from pyspark.sql import SparkSession, functions as F
source, target, conf, master = sys.argv[1:]
builder = SparkSession.builder.master(master).appName("benchmark")
for name, value in json.loads(conf).items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
began = time.perf_counter()
frame = session.read.parquet(source).withColumn("day", F.to_date("ts"))
tasks = max(sum(1 for _ in frame.inputFiles()) // 4, 2)
frame = frame.repartitionByRange(tasks, "day", "service", "ts").sortWithinPartitions("day", "service", "ts")
frame.write.partitionBy("day").parquet(target)
job = time.perf_counter() - began
session.stop()
print(json.dumps({"spark": {"seconds": job}}))
"""

Found = tuple[float, TreeRun, int]
"""Seconds of the job alone, the whole process, and how many bytes it wrote."""


def conf(heap: str) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": heap,
        "spark.executor.memory": heap,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
    }


def write_files(directory: Path, options: argparse.Namespace) -> tuple[int, int]:
    """The files to take in; how many rows they have, and the sum of one column."""
    directory.mkdir()
    rows = total = 0
    slots = options.files // options.partitions
    for number in range(slots * options.partitions):
        day = 0 if options.skewed and number % 4 else number // slots
        part = spark_data.part_rows(day, number % slots, options.rows // options.files, slots).sort_by("ts")
        pq.write_table(part, directory / f"{number:05d}.parquet", compression="zstd")
        rows += part.num_rows
        total += sum(chunk.sum().as_py() for chunk in part.column("trace").chunks)
    return rows, total


def by_verb(files: Path, expected: tuple[int, int], options: argparse.Namespace, *words: str) -> Found:
    """A new table that the verb takes the files into."""
    with scratch() as home:
        config = spark_data.configuration(home)
        document = json.loads(config.read_text()) | {"spark": {"conf": conf(options.heap)}}
        config.write_text(json.dumps(document))
        definition = spark_data.definition()
        with Store.open(config) as store:
            store.create_table(definition)
        verb, *flags = words
        command = [
            str(Path(sys.executable).with_name("frostline")),
            "--config",
            str(config),
            "--json",
            verb,
            spark_data.TABLE,
        ]
        done = run_tree([*command, *map(str, sorted(files.iterdir())), *flags], environment=environment())
        with Store.open(config) as store:
            answer = store.query(f"SELECT count(*), sum(trace) FROM {spark_data.TABLE}").read_all()
            check([column[0].as_py() for column in answer.columns], expected)
            written = sum(stored.part.size_bytes for stored in store.parts(spark_data.TABLE))
        told: dict[str, Any] = json.loads(done.output)
        return told["spark"]["seconds"] if "spark" in told else done.seconds, done, written


def by_spark(files: Path, expected: tuple[int, int], options: argparse.Namespace) -> Found:
    with scratch() as home:
        target = home / "out"
        command = [sys.executable, "-c", SPARK, str(files), str(target), json.dumps(conf(options.heap)), options.master]
        done = run_tree(command, environment=environment())
        query = f"SELECT count(*), sum(trace) FROM read_parquet('{target}/*/*.parquet')"
        check(duckdb.sql(query).fetchall()[0], expected)
        written = sum(file.stat().st_size for file in target.rglob("*.parquet"))
        return json.loads(done.output.splitlines()[-1])["spark"]["seconds"], done, written


def check(found: Any, expected: tuple[int, int]) -> None:
    assert tuple(map(int, found)) == expected, (found, expected)


def median(runs: list[Found]) -> tuple[float, float, float, int]:
    """Of job seconds and whole seconds; the highest memory of all; the bytes written."""
    whole = statistics.median(run.seconds for _, run, _ in runs)
    return statistics.median(job for job, _, _ in runs), whole, max(run.peak_bytes for _, run, _ in runs), runs[0][2]


def compared(options: argparse.Namespace) -> list[Figure]:
    ways: dict[str, Callable[[Path, tuple[int, int]], Found]] = {
        "ingest": lambda files, expected: by_verb(
            files, expected, options, "ingest", "--spark", "--master", options.master
        ),
        "Spark": lambda files, expected: by_spark(files, expected, options),
        "insert": lambda files, expected: by_verb(files, expected, options, "insert"),
    }
    runs: dict[str, list[Found]] = {name: [] for name in ways}
    with scratch() as directory:
        files = directory / "files"
        expected = write_files(files, options)
        for _ in range(options.rounds):
            for name, way in ways.items():
                runs[name].append(way(files, expected))
    (job, whole, peak, size), (spark_job, spark_whole, spark_peak, spark_size) = map(
        median, (runs["ingest"], runs["Spark"])
    )
    _, insert_whole, insert_peak, _ = median(runs["insert"])
    skewed = ", three quarters in one day" if options.skewed else ""
    where = f"{options.workers} workers" if options.workers else "local[2]"
    what = f"ingest of {options.rows / 1e6:.0f} M rows{skewed}, {where}"
    detail = f"(wrote {size / 1e6:.0f} MB and {spark_size / 1e6:.0f} MB)"
    heap = f"(heaps of {options.heap})"
    times = [
        ratio_figure(what, job, spark_job, at_most=0.7, baseline_name="Spark alone", detail=detail),
        beside(f"{what}, whole processes", whole, spark_whole, "Spark alone"),
        beside(f"{what}, whole processes", whole, insert_whole, "insert"),
    ]
    if options.workers:  # they are processes of nobody's here
        return times
    return [
        *times,
        beside(f"{what}, memory of all processes", peak / 2**20, spark_peak / 2**20, "Spark alone", "MiB", heap),
        beside(f"{what}, memory of all processes", peak / 2**20, insert_peak / 2**20, "insert", "MiB"),
    ]


def beside(name: str, value: float, other: float, other_name: str, unit: str = "s", detail: str = "") -> Figure:
    """A figure without a goal."""
    return Figure(name, value, unit, "none", met=True, baseline=other, baseline_name=other_name, detail=detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rows", type=int, default=32_000_000)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--skewed", action="store_true", help="three quarters of the files are of one day")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="2g")
    parser.add_argument("--workers", type=int, help="of a standalone cluster, instead of local[2]")
    options = parser.parse_args()
    with master_of(options.workers) as options.master:
        report(compared(options))


if __name__ == "__main__":
    main()
