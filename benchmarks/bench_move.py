"""Move 500 MB of parts from SSD to S3, against rclone, s5cmd and a bare loop over the same client, on one server.

Two shapes: 5 parts of 100 MB and 2,000 parts of 250 KB. Everyone gets the same files, starts as a fresh process, and
writes to a prefix of its own in the same bucket. Each turn has a server of its own, which is warmed up by a copy that
does not count (the first copy to a fresh Ceph takes 7 % longer), and begins with somebody else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Figure, bound_figure, ratio_figure, report, run, scratch
from disks.local.disk import LocalDisk
from oplog.kinds import Inserted, TableCreated
from tests.servers import Server, ceph, ministack
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import ColumnRange, DataFile, Part

TABLE = schema.TableDefinition(
    uuid="5f0e8b1c-0000-4000-8000-000000000001",
    database="bench",
    name="moves",
    columns=(schema.Column(1, "k", "int64", nullable=False),),
    order_by=("k",),
    policy="hot_cold",
    last_column_id=1,
)

LIMIT_LOOP = """
import sys, json, hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from disks.config import ObjectDiskConfig
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.metered import Meter
from urllib.parse import urlsplit
root, url, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
parts = urlsplit(url)
store = S3Store.from_config(ObjectDiskConfig(url=url), parts.netloc, parts.path.lstrip("/"), Meter())
files = sorted(root.rglob("*.parquet"))
def put(item):
    number, file = item
    store.put(f"{number:06d}", file, sha256=hashlib.sha256(file.read_bytes()).digest())
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(put, enumerate(files)))
"""


def make_parts(root: Path, count: int, part_bytes: int) -> None:
    """A local disk with a table of `count` incompressible parts of about `part_bytes`."""
    disk = LocalDisk("ssd", root)
    random = numpy.random.default_rng(7)
    with disk.transaction(TableCreated()) as transaction:
        transaction.create(f"{TABLE.directory}/{schema.TABLE_FILE}", schema.encode(TABLE))
        transaction.commit()
    for first in range(0, count, 100):
        with disk.transaction(Inserted()) as transaction:
            for number in range(first + 1, min(first + 100, count) + 1):
                file = transaction.scratch() / f"{number}.parquet"
                values = random.integers(0, 2**62, part_bytes // 8)
                values.sort()
                pq.write_table(pa.table({"k": values}), file, compression="none", use_dictionary=False)
                data = file.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                part = Part(
                    table=TABLE.uuid,
                    name=f"all_{number}_{number}_0",
                    rows=len(values),
                    size_bytes=len(data),
                    created=datetime.now(UTC),
                    files=(DataFile("data-0000.parquet", len(values), len(data), digest),),
                    columns={"1": ColumnRange(int(values[0]), int(values[-1]))},
                )
                directory = TABLE.part_directory(part.name)
                transaction.create(f"{directory}/data-0000.parquet", file, sha256=digest)
                transaction.create(f"{directory}/part.json", part_format.encode(part))
            transaction.commit()
    disk.close()


@dataclass(frozen=True, slots=True)
class Shape:
    """What is moved."""

    label: str
    count: int
    part_bytes: int


class Bench:
    """The parts of a directory against one server."""

    def __init__(self, server: Server, directory: Path, count: int) -> None:
        self.environment = server.environment()
        self.bucket = server.new_bucket()
        self.directory = directory
        self.parts = directory / "parts"
        self.count = count
        self.requests = 0

    def fresh_url(self) -> str:
        return f"s3://{self.bucket}/{uuid.uuid4().hex}/"

    def frostline(self, workers: int) -> float:
        home = self.directory / f"home-{uuid.uuid4().hex}"
        shutil.copytree(self.parts, home / "ssd", copy_function=_link)
        config = home / "frostline.yaml"
        disks = {
            "ssd": {"type": "local", "path": str(home / "ssd")},
            "s3": {"type": "object_disk", "url": self.fresh_url()},
        }
        volumes = [{"name": "hot", "disks": ["ssd"]}, {"name": "cold", "disks": ["s3"]}]
        config.write_text(
            json.dumps(
                {"state_path": str(home / "state"), "disks": disks, "policies": {"hot_cold": {"volumes": volumes}}}
            )
        )
        base = [str(Path(sys.executable).with_name("frostline")), "-c", str(config), "--json", "-j", str(workers), "-y"]
        run([*base, "parts"], environment=self.environment)
        command = [*base, "move", TABLE.full_name, "--partition", "all", "--to-disk", "s3"]
        result = run(command, environment=self.environment)
        moved = json.loads(result.output)
        assert len(moved["moved"]) == self.count, result.output[:2000]
        self.requests = sum(move["requests"] for move in moved["moved"])
        shutil.rmtree(home)
        return result.seconds

    def s5cmd(self, workers: int) -> float:
        server = ["--endpoint-url", self.environment["AWS_ENDPOINT_URL"]]
        command = ["s5cmd", *server, "--numworkers", str(workers), "--log", "error", "cp", "--include", "*.parquet"]
        return self._peer([*command, f"{self.parts}/store/*", self.fresh_url()])

    def rclone(self, workers: int) -> float:
        remote = f":s3:{self.fresh_url().removeprefix('s3://')}"
        options = ["--s3-provider", "Other", "--s3-env-auth", "--s3-endpoint", self.environment["AWS_ENDPOINT_URL"]]
        fast = ["--transfers", str(workers), "--checkers", str(workers), "--no-check-dest", "--s3-no-check-bucket"]
        plain = ["--s3-force-path-style", "--include", "*.parquet", "-q"]
        return self._peer(["rclone", "copy", *options, *fast, *plain, f"{self.parts}/store", remote])

    def limit(self, workers: int) -> float:
        return run(
            [sys.executable, "-c", LIMIT_LOOP, str(self.parts / "store"), self.fresh_url(), str(workers)],
            environment=self.environment,
        ).seconds

    def _peer(self, command: list[str]) -> float:
        command[0] = str(Path(sys.executable).with_name(command[0]))
        return run(command, environment=self.environment).seconds


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def compare(start: Callable[[], AbstractContextManager[Server]], shape: Shape, label: str, rounds: int) -> list[Figure]:
    """Medians of everyone at the best of a few concurrencies, in turn. Each turn has a server of its own: they keep
    objects in memory, and one that is nearly full answers no more."""
    seconds: dict[tuple[str, int], list[float]] = {}
    names = ["frostline", "s5cmd", "rclone", "limit"]
    with scratch() as directory:
        make_parts(directory / "parts", shape.count, shape.part_bytes)
        for workers in (4, 8, 16) * rounds:
            with start() as server:
                bench = Bench(server, directory, shape.count)
                bench.limit(workers)
                for name in names:
                    seconds.setdefault((name, workers), []).append(getattr(bench, name)(workers))
            names = [*names[1:], names[0]]
    best: dict[str, float] = {}
    for (name, _), values in seconds.items():
        best[name] = min(best.get(name, float("inf")), statistics.median(values))
    peer = min(("s5cmd", "rclone"), key=lambda name: best[name])
    detail = " ".join(f"{name} {value:.2f} s" for name, value in best.items())
    return [
        ratio_figure(
            f"move {label}, against {peer}",
            best["frostline"],
            best[peer],
            at_most=1.0,
            baseline_name=peer,
            detail=detail,
        ),
        ratio_figure(
            f"move {label}, against the bare loop",
            best["frostline"],
            best["limit"],
            at_most=1.15,
            baseline_name="bare loop",
        ),
        bound_figure(
            f"write requests a moved part, {label}", bench.requests / bench.count, at_most=1.2, unit="requests"
        ),
    ]


SHAPES = {"large": Shape("5 x 100 MB", 5, 100_000_000), "small": Shape("2,000 x 250 KB", 2000, 250_000)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", choices=["ministack", "ceph"], default="ceph")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    options = parser.parse_args()
    start = {"ministack": ministack, "ceph": ceph}[options.server]
    for name in options.shape or SHAPES:
        report(compare(start, SHAPES[name], f"{SHAPES[name].label} ({options.server})", options.rounds))


if __name__ == "__main__":
    main()
