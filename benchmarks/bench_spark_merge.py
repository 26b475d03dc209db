"""A cold merge by Spark: against DuckDB and against Spark's own read, sort and write of the same rows; how much memory
its workers need whatever the size of a partition; and two workers against one.

The bucket is a directory, unless `--server` names an S3 server: on a machine of two cores a server would compete with
the merge for them. DuckDB and Spark read and write local files, and promise less: no digest of what is read or written,
no commit. Every round begins with a fresh copy of the same store.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import spark_data
from benchmarks.measure import Figure, TreeRun, bound_figure, ratio_figure, report, run_tree, scratch
from tests import servers
from tests.spark.cluster import environment, standalone
from tiering.engine.store import Store

COLD = """
import json, sys, time
from pathlib import Path
from benchmarks.spark_data import TABLE, imported
from disks.stores.address import StoreAddress
from spark_tiering.running.spark_runner import SparkRunner
from spark_tiering.running.session import spark_session
from tiering.merge.cold.job import Workers
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.config.settings import Config, SparkConfig

path, master = sys.argv[1:]
loaded = load(Path(path))
conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m"}
spark = SparkConfig(conf=conf)
config = Config(state_path=loaded.state_path, disks=loaded.disks, policies=loaded.policies, spark=spark)
began = time.perf_counter()
session = spark_session(config, app="benchmark", master=master)
runner = SparkRunner(session)
# Starting is one thing and merging another: the first job of a session also starts a Python in every slot.
modules = ["tiering.merge.cold.shard_merge"] * runner.slots
runner.run(imported, modules, title="start", on_done=lambda index, seconds: None)
started = time.perf_counter() - began
with Store.open(config) as store:
    rows = sum(stored.part.rows for stored in store.parts(TABLE))
    store_of = lambda disk: StoreAddress.of(config.disks[disk.name])
    workers = Workers(runner, store_of, groups_in_flight=4)
    began = time.perf_counter()
    done = store.merge_cold(TABLE, workers, MergeRequest(final=True, cold=ColdOptions()))
    job = time.perf_counter() - began
    assert not done.failures and not done.not_begun, [failure.error.message for failure in done.failures]
    left = store.parts(TABLE)
    assert len(left) == len({stored.name.partition for stored in left}) == len(done.merges)
    assert sum(stored.part.rows for stored in left) == rows
session.stop()
print(json.dumps({"job": job, "start": started, "shards": done.shards, "worker_bytes": done.peak_memory_bytes,
                  "cpu": done.cpu_seconds, "bytes": sum(stored.part.size_bytes for stored in left)}))
"""

DUCKDB = """
import duckdb, json, sys, time
from pathlib import Path
source, target = Path(sys.argv[1]), Path(sys.argv[2])
target.mkdir()
began = time.perf_counter()
duckdb.sql("SET threads = 2; SET memory_limit = '1GB'; SET preserve_insertion_order = false")
for partition in sorted(source.iterdir()):
    duckdb.sql(f\"\"\"COPY (SELECT * FROM read_parquet('{partition}/*.parquet') ORDER BY service, ts)
        TO '{target}/{partition.name}.parquet' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 131072)\"\"\")
job = time.perf_counter() - began
print(json.dumps({"job": job, "bytes": sum(file.stat().st_size for file in target.iterdir())}))
"""

SPARK = """
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
source, target, heap = sys.argv[1:]
partitions = len(list(Path(source).iterdir()))
builder = SparkSession.builder.master("local[2]").appName("benchmark")
for name, value in {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": heap,
    "spark.sql.session.timeZone": "UTC", "spark.sql.parquet.compression.codec": "zstd",
}.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
began = time.perf_counter()
day = F.datediff(F.to_date("ts"), F.lit("2026-01-01")).cast("int")
frame = session.read.option("recursiveFileLookup", "true").parquet(source)
frame.repartitionById(partitions, day).sortWithinPartitions("service", "ts").write.parquet(target)
job = time.perf_counter() - began
session.stop()
files = list(Path(target).glob("*.parquet"))
assert len(files) == partitions, len(files)
print(json.dumps({"job": job, "bytes": sum(file.stat().st_size for file in files)}))
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A store to merge: copies of it are merged, since a merge happens once."""

    directory: Path
    options: argparse.Namespace

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """The configuration of a fresh copy."""
        with scratch() as place:
            config = spark_data.configuration(place)
            shutil.copytree(self.directory / "state", place / "state")
            shutil.copytree(self.directory / "bucket", place / "bucket", copy_function=os.link)
            yield config

    def export(self, target: Path) -> None:
        """The table's files, a directory a partition, for others to read."""
        with Store.open(self.directory / "frostline.yaml") as store:
            for stored in store.parts(spark_data.TABLE):
                directory = target / stored.name.partition
                directory.mkdir(parents=True, exist_ok=True)
                for file in stored.part.files:
                    data = store.disk(stored.disk).read(stored.path(file.name))
                    (directory / f"{stored.part.name}-{file.name}").write_bytes(data)


def made(options: argparse.Namespace, stack: ExitStack, *, rows: int, parts: int, partitions: int) -> Source:
    directory = stack.enter_context(scratch())
    spark_data.fill(spark_data.configuration(directory), rows=rows, number=parts, partitions=partitions)
    return Source(directory, options)


def child(script: str, *arguments: str | Path) -> tuple[dict[str, Any], TreeRun]:
    done = run_tree([sys.executable, "-c", script, *map(str, arguments)], environment=environment())
    return json.loads(done.output.splitlines()[-1]), done


def merged(source: Source, master: str) -> tuple[dict[str, Any], TreeRun]:
    """One cold merge of a fresh copy."""
    with source.copy() as config:
        return child(COLD, config, master)


def merged_on_a_server(options: argparse.Namespace) -> Figure:
    """The merge with the bucket on an S3 server; nothing to compare with, the server works on the same cores."""
    with getattr(servers, options.server)() as server, scratch() as directory:
        os.environ.update(server.environment())
        config = spark_data.configuration(directory, f"s3://{server.new_bucket()}/bench/")
        spark_data.fill(config, rows=options.rows, number=options.parts, partitions=options.partitions)
        found, _ = child(COLD, config, "local[2]")
    return Figure(
        f"cold merge, local[2], {options.server}", found["job"], "s", "none", met=True, detail=f"({told(found)})"
    )


def told(found: dict[str, Any]) -> str:
    size = found["bytes"] / 1e6
    return f"{found['shards']} shards, {found['cpu']:.0f} s of processor time in them, {size:.0f} MB written"


def median(runs: list[tuple[dict[str, Any], TreeRun]]) -> tuple[float, float, float]:
    """Of job seconds, whole seconds, and the highest memory of all."""
    jobs = [found["job"] for found, _ in runs]
    return statistics.median(jobs), statistics.median(r.seconds for _, r in runs), max(r.peak_bytes for _, r in runs)


def compared(options: argparse.Namespace) -> list[Figure]:
    """The merge of all partitions, in turn with DuckDB and with Spark alone."""
    ours, duckdb, spark = [], [], []
    with ExitStack() as stack:
        source = made(options, stack, rows=options.rows, parts=options.parts, partitions=options.partitions)
        files = stack.enter_context(scratch()) / "files"
        source.export(files)
        for _ in range(options.rounds):
            ours.append(merged(source, "local[2]"))
            with scratch() as target:
                duckdb.append(child(DUCKDB, files, target / "out"))
            with scratch() as target:
                spark.append(child(SPARK, files, target / "out", options.heap))
    job, whole, peak = median(ours)
    duckdb_job, duckdb_whole, duckdb_peak = median(duckdb)
    spark_job, spark_whole, spark_peak = median(spark)
    what = f"{options.parts} parts, {options.rows / 1e6:.0f} M rows"
    detail = f"({told(ours[0][0])}; session and its workers {ours[0][0]['start']:.1f} s before)"
    others = f"(DuckDB used {duckdb_peak / 1e6:.0f} MB, wrote {duckdb[0][0]['bytes'] / 1e6:.0f} MB)"
    theirs = f"(a heap of {options.heap}; wrote {spark[0][0]['bytes'] / 1e6:.0f} MB)"
    return [
        ratio_figure(
            f"cold merge, local[2], {what}", job, duckdb_job, at_most=0.8, baseline_name="DuckDB", detail=detail
        ),
        ratio_figure(
            "the same, whole processes", whole, duckdb_whole, at_most=1.2, baseline_name="DuckDB", detail=others
        ),
        ratio_figure("the same, jobs", job, spark_job, at_most=0.35, baseline_name="Spark alone", detail=theirs),
        ratio_figure("the same, whole processes", whole, spark_whole, at_most=0.5, baseline_name="Spark alone"),
        ratio_figure(
            "memory of all processes",
            peak / 1e6,
            spark_peak / 1e6,
            at_most=0.5,
            baseline_name="Spark alone",
            unit="MB",
            detail=theirs,
        ),
    ]


def memory(options: argparse.Namespace) -> list[Figure]:
    """A worker's memory for one partition of as many parts, of more and more rows."""
    figures = []
    for times in (1, 2, 4):
        with ExitStack() as stack:
            rows = options.rows * times
            source = made(options, stack, rows=rows, parts=options.parts, partitions=1)
            found, done = merged(source, "local[2]")
        name = f"worker's memory, 1 partition, {options.parts} parts, {rows / 1e6:.0f} M rows"
        detail = f"({found['job']:.1f} s, {told(found)}; {done.peak_bytes / 1e6:.0f} MB in all processes)"
        figures.append(bound_figure(name, found["worker_bytes"] / 2**20, at_most=1024, unit="MiB", detail=detail))
    return figures


def workers(options: argparse.Namespace) -> list[Figure]:
    """Two workers against one, of one core each, on a standalone cluster."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        source = made(options, stack, rows=options.rows, parts=options.parts, partitions=options.partitions)
        for _ in range(options.rounds):
            for count, found in seconds.items():
                with standalone(workers=count, pinned=True) as cluster:
                    found.append(merged(source, cluster.url)[0]["job"])
    one, two = (statistics.median(seconds[count]) for count in (1, 2))
    return [
        Figure(
            "cold merge, two workers", two, "s", "1.6 times as fast as one", one / two >= 1.6, one, "one worker",
            f"({one / two:.2f} times as fast; standalone, one core each; the bucket is a directory)",
        )
    ]  # fmt: skip


def main() -> None:
    parts = {"compared": compared, "memory": memory, "workers": workers}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rows", type=int, default=32_000_000)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="6g", help="of Spark alone: with less it spills and takes longer")
    parser.add_argument("--only", choices=parts, action="append", help="these alone")
    parser.add_argument("--server", choices=("ceph", "ministack"), help="only the merge, in a bucket of this server")
    options = parser.parse_args()
    if options.server:
        report([merged_on_a_server(options)])
        return
    for name in options.only or parts:
        report(parts[name](options))


if __name__ == "__main__":
    main()
