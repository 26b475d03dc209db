"""Scans of a table through `format("frostline")`, against Spark's own Parquet reader on local copies of its files.

Both in one session of `local[2]`, in turn, into Spark's `noop` sink, which takes every row and keeps none. The bucket
is a directory, so that the reader is measured and not a server that competes for the same cores; `--server` has one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spark_tiering
from benchmarks import spark_data
from benchmarks.measure import paired, ratio_figure, report, scratch, timed
from tests.servers import ministack
from tests.spark.cluster import standalone
from tiering.engine.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RARE_SERVICE = "service = 'b-009.x'"
RARE_TRACE = f"trace < {(1 << 40) // 100}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=32_000_000)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="a store that benchmarks.spark_data made, instead of a new one")
    parser.add_argument("--server", action="store_true", help="the bucket is on an S3 server, not a directory")
    parser.add_argument("--nullable", action="store_true", help="the columns of the table may hold nulls; none does")
    parser.add_argument("--plain", action="store_true", help="a session without spark_tiering.PROPERTIES")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = options.directory or stack.enter_context(scratch())
        if options.server:
            server = stack.enter_context(ministack())
            os.environ.update(server.environment())
            directory = stack.enter_context(scratch())
        config = directory / "frostline.yaml"
        if not config.exists():
            url = f"s3://{server.new_bucket()}/bench/" if options.server else None
            spark_data.configuration(directory, url)
            size = {"rows": options.rows, "number": options.parts, "partitions": options.partitions}
            spark_data.fill(config, **size, nullable=options.nullable)
        copies = stack.enter_context(scratch()) / "parquet"
        copy_files(config, copies)
        session = start(recommended=not options.plain)
        stack.callback(session.stop)
        measure(session, config, copies, options.rounds)


def copy_files(config: Path, copies: Path) -> None:
    """The table's files under names that Spark reads."""
    copies.mkdir(parents=True)
    with Store.open(config) as store:
        for part in store.parts(spark_data.TABLE):
            for file in part.part.files:
                data = store.disk(part.disk).read(part.path(file.name))
                (copies / f"{part.part.name}-{file.name}").write_bytes(data)


@contextmanager
def master_of(workers: int | None) -> Iterator[str]:
    """The master of a standalone cluster of so many workers on this machine, of one processor each; or `local[2]`."""
    if workers is None:
        yield "local[2]"
        return
    with standalone(workers, "3g") as cluster:
        yield cluster.url


def start(*, recommended: bool, master: str = "local[2]") -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.executor.memory": "2g",
        "spark.log.level": "ERROR",
    }
    if recommended:
        conf |= spark_tiering.PROPERTIES
    session = SparkSession.builder.master(master).appName("bench").config(map=conf).getOrCreate()
    spark_tiering.register(session)
    return session


def measure(session: SparkSession, config: Path, copies: Path, rounds: int) -> None:
    def table(**options: str) -> DataFrame:
        reader = session.read.format("frostline").option("config", str(config))
        return reader.options(**options).load(spark_data.TABLE)

    def parquet() -> DataFrame:
        return session.read.parquet(str(copies))

    def scanned(frame: Callable[[], DataFrame]) -> Callable[[], float]:
        return lambda: timed(lambda: frame().write.format("noop").mode("overwrite").save())

    shapes: list[tuple[str, Any, Any, float]] = [
        ("all columns", table, parquet, 1.5),
    ]
    for label, condition in (("service", RARE_SERVICE), ("trace", RARE_TRACE)):
        shapes.append(
            (
                f"1 of 10 columns, 1 % of the rows by {label}",
                lambda condition=condition: table(columns="latency_ms", filter=condition),
                lambda condition=condition: parquet().where(condition).select("latency_ms"),
                1.2,
            )
        )
    for label, ours, theirs, at_most in shapes:
        rows = ours().count()
        assert rows == theirs().count(), label
        seconds, baseline = paired(scanned(ours), scanned(theirs), rounds=rounds)
        processor = [_processor_seconds(scanned(frame)) for frame in (ours, theirs)]
        detail = f"({rows} rows; {processor[0]:.1f} s of processor time, Spark's reader {processor[1]:.1f} s)"
        report(
            [
                ratio_figure(
                    f"reader: {label}",
                    seconds,
                    baseline,
                    at_most=at_most,
                    baseline_name="Spark's Parquet reader",
                    detail=detail,
                )
            ]
        )


def _processor_seconds(work: Callable[[], float]) -> float:
    """Of the JVM and its Python workers: sturdier than the time on a machine that others use, too."""
    before = _spent()
    work()
    after = _spent()
    return sum(seconds - before.get(process, 0.0) for process, seconds in after.items())


def _spent() -> dict[int, float]:
    """Seconds by process, of all that descend from this one (Linux)."""
    found: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks = int(fields[11]) + int(fields[12])
            found[int(entry.name)] = int(fields[1]), ticks / os.sysconf("SC_CLK_TCK")

    def descends(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = found.get(process, (0, 0.0))[0]
        return process == os.getpid()

    return {process: seconds for process, (_, seconds) in found.items() if process != os.getpid() and descends(process)}


if __name__ == "__main__":
    main()
