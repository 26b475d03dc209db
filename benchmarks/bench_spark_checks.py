"""`fsck --read-data` by executors against one process, and one worker against two.

A disk in a directory, 2 GiB in files of 32 MiB and of 64 KiB: large ones are hashing, small ones are requests. In one
process with 8 threads; with `local[2]`; and on a standalone cluster of workers with one core each, which read no faster
than a network. Spark's start is not in the figures, it is in their details.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import Figure, python, ratio_figure, report, scratch
from disks.stores.directory import DirectoryStore
from oplog import entry
from oplog.entry import GENESIS_DIGEST, Commit, Create
from oplog.kinds import Inserted
from oplog.revision import SCHEMA_VERSION_KEY, blob_key, commit_key
from tests.spark.cluster import environment, standalone

LARGE = (32 << 20, 32)
SMALL = (64 << 10, 16_384)
"""Size in bytes, and how many: 1 GiB each."""
ROUNDS = 3
NETWORK = 64_000_000
"""Bytes a second that each worker reads at most: on one machine they share everything else."""

CHECK = """
import json, sys, time
from contextlib import ExitStack
from pathlib import Path
from disks.config import ObjectDiskConfig
from disks.registry import open_disk
from disks.workers.runner import Remote
from disks.stores.address import StoreAddress
from restore.check.check import CheckOptions, check
from tiering.config.settings import Config, SparkConfig, embedded

root, master, rounds, files, limit = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
config = ObjectDiskConfig(url=(root / "bucket").as_uri() + "/")
remote, start = {}, 0.0
with ExitStack() as stack:
    if master != "here":
        from spark_tiering.running.spark_runner import SparkRunner
        from spark_tiering.running.session import spark_session
        began = time.perf_counter()
        base = embedded(root / "spark")
        conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
        spark = SparkConfig(master=master, conf={**conf, "spark.driver.bindAddress": "127.0.0.1"})
        settings = Config(state_path=base.state_path, disks=base.disks, policies=base.policies, spark=spark)
        session = spark_session(settings, app="benchmark")
        stack.callback(session.stop)
        remote = {"cold": Remote(SparkRunner(session), StoreAddress.of(config, bytes_per_second=limit or None))}
        start = time.perf_counter() - began
    disk = open_disk("cold", config, root / f"state-{master.partition(':')[0]}")
    disk.refresh()
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        result = check({"cold": disk}, CheckOptions(read_data=True, remote=remote))
        seconds.append(time.perf_counter() - began)
        assert result.ok and result.checked.files_read == files, result.problems[:3]
print(json.dumps({"start": start, "first": seconds[0], "seconds": seconds[1:]}))
"""


def fill(root: Path, size_bytes: int, number: int) -> None:
    """A disk as inserts would have left it. Without syncing: what is measured is reading."""
    (root / "operations").mkdir(parents=True)
    chance = random.Random(size_bytes)
    operations = []
    for one in range(number):
        data = chance.randbytes(size_bytes)
        key = blob_key(1)
        (root / key).write_bytes(data)
        operations.append(Create(f"data/{one:06d}", size_bytes, hashlib.sha256(data).hexdigest(), key=key))
    commit = Commit(
        revision=1,
        previous=GENESIS_DIGEST,
        writer="benchmark",
        time=datetime.now(UTC),
        kind=Inserted(),
        operations=tuple(operations),
    )
    (root / commit_key(1)).write_bytes(entry.encode(commit))
    (root / SCHEMA_VERSION_KEY).write_bytes(b"2")
    assert sum(1 for _ in DirectoryStore(root).list("r")) == number


def seconds_of(root: Path, master: str, files: int, *, limit: int = 0) -> tuple[float, str]:
    """The median of a check, and what came before it. `limit`: bytes a second of each executor."""
    arguments = (str(root), master, str(ROUNDS), str(files), str(limit))
    done = python(CHECK, *arguments, environment=environment())
    found = json.loads(done.output)
    return statistics.median(found["seconds"]), f"(start {found['start']:.1f} s, first {found['first']:.1f} s)"


def figures(root: Path, files: int, what: str) -> list[Figure]:
    """Executors against threads of one process, on the same processors."""
    here, _ = seconds_of(root, "here", files)
    local, detail = seconds_of(root, "local[2]", files)
    name = f"fsck --read-data, local[2], {what}"
    return [ratio_figure(name, local, here, at_most=1.5, baseline_name="in process", detail=detail)]


def scaling(root: Path, files: int, what: str) -> list[Figure]:
    """Two workers against one, each with a network of its own."""
    took: dict[int, float] = {}
    for workers in (1, 2):
        with standalone(workers=workers) as cluster:
            took[workers], _ = seconds_of(root, cluster.url, files, limit=NETWORK)
    faster = took[1] / took[2]
    name = f"fsck --read-data, two workers, {what}"
    detail = f"{faster:.2f} times as fast"
    return [Figure(name, took[2], "s", "1.6 times as fast", faster >= 1.6, took[1], "one worker", detail)]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for (size_bytes, number), what in ((LARGE, "1 GiB in 32 objects"), (SMALL, "1 GiB in 16,384 objects")):
        with scratch() as directory:
            fill(directory / "bucket", size_bytes, number)
            report(figures(directory, number, what))
            if number == LARGE[1]:
                report(scaling(directory, number, f"{what}, 64 MB/s each"))


if __name__ == "__main__":
    main()
