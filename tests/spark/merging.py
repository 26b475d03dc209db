"""A store whose parts lie in a bucket of an S3 server, and a driver program that merges them on a cluster:
`python -m tests.spark.merging URL CONFIG NOTES`, one JSON document out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pyarrow as pa

from disks.stores.address import StoreAddress
from disks.workers.runner import Runner
from spark_tiering.running.session import log_file, spark_session
from spark_tiering.running.spark_runner import SparkRunner
from tests.servers import Server
from tests.spark.cluster import CONF
from tiering.config.reading import load
from tiering.config.settings import Config, PolicyConfig, SparkConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.merge.cold.job import ColdMergeReport, Workers
from tiering.merge.cold.shard_merge import MergeTask, ShardResult, merge_shard
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.table.definitions import define_table

SHARD_BYTES = 64 * 1024
MONTHS = ("202601", "202602")


def config_of(server: Server, home: Path, bucket: str, **more: Any) -> Config:
    """A machine whose parts lie in the bucket, on a volume that prefers not to merge."""
    disk = server.disk(f"s3://{bucket}/store/", **more)
    volume = VolumeConfig(name="cold", disks=("cold",), prefer_not_to_merge=True)
    return Config(
        state_path=str(home / "state"),
        disks={"cold": disk},
        policies={"cold": PolicyConfig(volumes=(volume,))},
        spark=SparkConfig(master="local[2]", conf={"spark.driver.memory": "1g"}),
    )


def write_config(config: Config, path: Path) -> Path:
    path.write_text(json.dumps(msgspec.to_builtins(config)))
    path.chmod(0o600)
    return path


def fill(config: Config, *, parts: int = 6, rows: int = 6000) -> None:
    """Table `d.t` with so many parts in each of two months; keys of the parts overlap."""
    generator = numpy.random.default_rng(7)
    with Store.open(config) as store:
        columns = ["service:string", "ts:timestamp", "value:float64", "n:int64"]
        options: dict[str, Any] = {"order_by": "service,ts", "partition_by": "month(ts)", "policy": "cold"}
        settings = ["row_group_rows=500"]
        store.create_table(define_table("d.t", columns=columns, settings=settings, **options))
        for number in range(parts):
            stamps = generator.integers(1_767_225_600, 1_767_225_600 + 59 * 86_400, rows) * 1_000_000
            table = pa.table(
                {
                    "service": [f"service-{n:03d}" for n in generator.zipf(1.4, rows) % 200],
                    "ts": pa.array(stamps, pa.timestamp("us", "UTC")),
                    "value": generator.random(rows),
                    "n": range(number * rows, (number + 1) * rows),
                }
            )
            store.table("d.t").insert(table.to_batches())


def all_rows(config: Config) -> list[dict[str, Any]]:
    """Every row, in the order of its number."""
    with Store.open(config) as store:
        return store.query("SELECT * FROM d.t ORDER BY n").read_all().to_pylist()


def part_names(config: Config) -> list[str]:
    with Store.open(config) as store:
        return [stored.part.name for stored in store.parts("d.t")]


def merge(store: Store, runner: Runner, *, merging: Any = merge_shard) -> ColdMergeReport:
    """Merge all of the table by the runner, in shards of 64 KiB."""
    configs = store.context.config.disks
    workers = Workers(runner, lambda disk: StoreAddress.of(configs[disk.name]), merge=merging)
    return store.merge_cold("d.t", workers, MergeRequest(cold=ColdOptions(shard_bytes=SHARD_BYTES)))


@dataclass(frozen=True)
class Straggling:
    """The first attempt of one shard takes for ever, after it has uploaded what it wrote."""

    notes: Path

    def __call__(self, task: MergeTask) -> ShardResult:
        result = merge_shard(task)
        note = self.notes / "straggled"
        # Of one group only: the double needs a free worker.
        if task.shard.number == 1 and "/202601_" in task.target and not note.exists():
            note.touch()
            time.sleep(600)
        return result


def main(url: str, config_path: str, notes: str) -> None:
    loaded = load(Path(config_path))
    conf = {
        **CONF,
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.interval": "200ms",
    }
    config = msgspec.structs.replace(loaded, spark=SparkConfig(master=url, conf=conf))
    session = spark_session(config, app="tests")
    try:
        runner = SparkRunner(session, log=str(log_file(config)))
        with Store.open(config) as store:
            report = merge(store, runner, merging=Straggling(Path(notes)))
        print(json.dumps({"merged": _outputs(report), "failures": [f.error.message for f in report.failures]}))
    finally:
        session.stop()


def _outputs(report: ColdMergeReport) -> Sequence[str | None]:
    return sorted(str(result.output) for result in report.merges)


if __name__ == "__main__":
    main(*sys.argv[1:])
