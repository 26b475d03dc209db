"""Three replicas with a log each in one bucket: what cold parts cost that another replica has there already.

What is counted does not change with the machine: bytes between the replicas, requests to the bucket, objects, requests
to Keeper. Beside it the time of a fetch, of which the bucket (a directory) takes little.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiohttp import web
from msgspec.structs import replace

from benchmarks.bench_replicas import NAMES, TABLE, Node, definition, rows
from benchmarks.bench_replicas import config as plain_config
from benchmarks.measure import Figure, bound_figure, paired, ratio_figure, report, scratch, timed
from disks.config import ObjectDiskConfig
from disks.contracts.bucket_disk import BucketDisk
from disks.kinds import as_disk
from disks.stores.wrappers.metered import MeteredStore
from tests.servers import Server, rclone, zookeeper
from tiering.config.settings import Config, KeeperConfig, PolicyConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.schema import PartitionField
from zerocopy.execution import following, work
from zerocopy.execution.steps import Done
from zerocopy.keeper.client import Keeper
from zerocopy.replica import lifecycle

FETCHED_BYTES = 500_000_000
PARTS = 100
COLD_PARTS = 10_000
HOT_PARTS = 100
MOVED_PARTS = 1_000
BLOCK = 50
"""Of them that are inserted at once, a partition each."""
FETCHES = 5


def config(home: Path, name: str, keeper: KeeperConfig) -> Config:
    """As without a bucket, and a bucket with a log of the machine's own."""
    bare = plain_config(home, name, keeper)
    volumes = (VolumeConfig(name="hot", disks=("ssd",)), VolumeConfig(name="cold", disks=("s3",)))
    cold = ObjectDiskConfig(url=f"{(home / 'bucket').as_uri()}/", log=name)
    return replace(bare, disks={**bare.disks, "s3": cold}, policies={"local": PolicyConfig(volumes=volumes)})


@contextmanager
def nodes(
    home: Path,
    keeper: KeeperConfig,
    *names: str,
    partitioned: bool = False,
    bucket: ObjectDiskConfig | None = None,
) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        made: list[Node] = []
        for name in names:
            configured = config(home, name, keeper)
            if bucket is not None:
                configured = replace(configured, disks={**configured.disks, "s3": bucket})
            store = stack.enter_context(Store.open(configured))
            table = definition(TABLE)
            if partitioned:
                table = replace(table, partition_by=(PartitionField(transform="identity", column="k"),))
            lifecycle.create(store.context, TABLE, table, "local", None, None, if_not_exists=True)
            following.serve(store.context, None)
            made.append(Node(store))
        yield made


def counts(*given: Node) -> dict[str, int]:
    """Requests to the bucket so far."""
    found: dict[str, int] = {}
    for node in given:
        store = as_disk(node.store.disk("s3"), BucketDisk).store  # type: ignore[union-attr]
        assert isinstance(store, MeteredStore)
        for verb, count in store.counts().items():
            found[verb] = found.get(verb, 0) + count
    return found


def objects(home: Path) -> int:
    return sum("-file-" in path.name for path in (home / "bucket").iterdir())


class Answers:
    """The bytes that replicas give one another."""

    def __init__(self) -> None:
        self.sent = 0

    def listen(self) -> None:
        original = web.Response.__init__

        def made(response: Any, *arguments: Any, **named: Any) -> None:
            original(response, *arguments, **named)
            self.sent += len(response.body or b"") if isinstance(response.body, bytes) else 0

        web.Response.__init__ = made  # type: ignore[method-assign]


def fetched(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """A new replica takes a large part over."""
    answers = Answers()
    answers.listen()
    seconds = []
    with nodes(home, keeper, "a") as (a,):
        a.store.table(TABLE).insert(rows(1, FETCHED_BYTES // 16).to_batches())
        a.store.merge(TABLE, MergeRequest(final=True))
        assert len(a.store.table(TABLE).parts()) == 1
        a.store.apply(a.store.plan_manual_move(TABLE, partition="all", to_disk="s3"))
        files = objects(home)
        for number in range(FETCHES):
            with nodes(home, keeper, f"new{number}") as (new,):
                new.store.disk("s3").refresh()
                before, sent = counts(new), answers.sent
                seconds.append(timed(lambda new=new: work.sync(new.store.context, new.store.definition(TABLE))))
                spent = {verb: count - before[verb] for verb, count in counts(new).items()}
                between = answers.sent - sent
        assert objects(home) == files
    yield bound_figure("bytes between replicas of a cold part of 500 MB", between / 1000, at_most=20, unit="KB")
    told = ", ".join(f"{count} {verb}" for verb, count in spent.items() if count)
    yield bound_figure(
        "requests to the bucket for it", sum(spent.values()), at_most=files + 2, unit="requests", detail=told
    )
    median = 1000 * sorted(seconds)[FETCHES // 2]
    yield bound_figure("sync that takes it over, median", median, at_most=60, unit="ms")


def elsewhere(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """A new replica whose bucket is on another server: it reads the part through the one that has it."""
    with rclone() as one, rclone() as two, nodes(home, keeper, "a", bucket=own_bucket(one, "a")) as (a,):
        a.store.table(TABLE).insert(rows(1, FETCHED_BYTES // 16).to_batches())
        a.store.merge(TABLE, MergeRequest(final=True))
        a.store.apply(a.store.plan_manual_move(TABLE, partition="all", to_disk="s3"))
        numbers = itertools.count()

        def fetch() -> float:
            name = f"other{next(numbers)}"
            with nodes(home, keeper, name, bucket=own_bucket(two, name)) as (new,):
                done: list[Done] = []
                seconds = timed(lambda: done.append(work.sync(new.store.context, new.store.definition(TABLE))))
                assert (len(done[0].fetched), done[0].adopted) == (1, []), done[0]
            shutil.rmtree(home / name)
            return seconds

        def copy() -> float:
            target = f"two:{two.new_bucket()}"
            command = [
                str(Path(sys.executable).parent / "rclone"),
                "copy",
                "one:bench-a",
                target,
                "--include",
                "*-file-*",
            ]
            environment = {**os.environ, "RCLONE_CONFIG": os.devnull, **remote("one", one), **remote("two", two)}
            seconds = timed(lambda: subprocess.run([*command, "--s3-no-check-bucket"], env=environment, check=True))
            subprocess.run([command[0], "purge", target], env=environment, check=True)
            return seconds

        ours, theirs = paired(fetch, copy)
    name = "full fetch of 500 MB where the bucket is another one"
    yield ratio_figure(name, ours, theirs, at_most=1.1, baseline_name="rclone from bucket to bucket")


def own_bucket(server: Server, name: str) -> ObjectDiskConfig:
    server.client().create_bucket(Bucket=f"bench-{name}")
    return server.disk(f"s3://bench-{name}/p/", log=name)


def remote(name: str, server: Server) -> dict[str, str]:
    """The server, as rclone is told of it."""
    told = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": server.endpoint_url,
        "ACCESS_KEY_ID": server.access_key_id,
        "SECRET_ACCESS_KEY": server.secret_access_key,
    }
    return {f"RCLONE_CONFIG_{name.upper()}_{key}": value for key, value in told.items()}


def moved(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """Parts that all three move to the bucket, in one batch each."""
    with nodes(home, keeper, *NAMES) as found:
        table = found[0].store.table(TABLE)
        for seed in range(PARTS):
            table.insert(rows(seed, 100).to_batches())
        for node in found[1:]:
            work.sync(node.store.context, node.store.definition(TABLE))
        asked, puts = [], []
        for node in found:
            before, put = node.requests(), counts(node)["PUT"]
            report_ = node.store.apply(node.store.plan_manual_move(TABLE, partition="all", to_disk="s3"))
            assert len(report_.moved) == PARTS
            asked.append(node.requests() - before)
            puts.append(counts(node)["PUT"] - put)
    detail = f"the first {asked[0]}, the others {asked[1]} and {asked[2]}"
    name = "Keeper requests a moved part, all replicas"
    yield bound_figure(name, sum(asked) / PARTS, at_most=8, unit="requests", detail=detail)
    yield bound_figure("objects of 3 replicas, a part", objects(home) / PARTS, at_most=1, unit="objects")
    told = f"the first {puts[0]}, the others {puts[1]} and {puts[2]}"
    yield bound_figure("PUTs of 3 replicas, a part", sum(puts) / PARTS, at_most=1.1, unit="PUTs", detail=told)


def serve(home: Path, keeper: KeeperConfig, bucket: ObjectDiskConfig | None, begun: Event, ended: Event) -> None:
    """What a machine of its own does: a process that gives the parts of replica `a`."""
    with nodes(home, keeper, "a", partitioned=True, bucket=bucket):
        begun.set()
        ended.wait()


@contextmanager
def serving(home: Path, keeper: KeeperConfig, bucket: ObjectDiskConfig | None = None) -> Iterator[None]:
    spawned = multiprocessing.get_context("spawn")
    begun, ended = spawned.Event(), spawned.Event()
    process = spawned.Process(target=serve, args=(home, keeper, bucket, begun, ended))
    process.start()
    try:
        assert begun.wait(120)
        yield
    finally:
        ended.set()
        process.join()


def joined(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """A new replica of a table of many small cold parts: two files each, of which `part.json` rides in the log. The one
    that has them is a process of its own, as on a machine of its own."""
    with nodes(home, keeper, "a", partitioned=True) as (a,):
        insert_blocks(a, range(COLD_PARTS // BLOCK))
        move_all(a, COLD_PARTS)
        a.store.disk("ssd").usage()  # waits until what was moved is deleted there: another machine's work
    with serving(home, keeper), nodes(home, keeper, "new", partitioned=True) as (new,):
        before, asked, done = counts(new), new.requests(), []
        definition_ = new.store.definition(TABLE)
        seconds = timed(lambda: done.append(work.sync(new.store.context, definition_)))
        assert len(done[0].adopted) == COLD_PARTS
        spent = sum(counts(new).values()) - sum(before.values())
        keepers = new.requests() - asked
    told = f"a part {spent / COLD_PARTS:.2f} requests to the bucket, {keepers / COLD_PARTS:.2f} to Keeper"
    yield bound_figure(f"new replica of {COLD_PARTS} cold parts", seconds, at_most=10, unit="s", detail=told)


def insert_blocks(node: Node, numbers: range) -> None:
    """Of many partitions each, so of many parts."""
    for number in numbers:
        keys = pa.array(range(number * BLOCK, (number + 1) * BLOCK), pa.int64())
        block = pa.table({"k": keys, "noise": pa.array([0.5] * BLOCK)})
        node.store.table(TABLE).insert(block.to_batches())


def move_all(node: Node, parts: int) -> None:
    """To the bucket, in one batch."""
    moves = [one for stored in node.store.parts(TABLE) for one in node.store.plan_manual_move(
        TABLE, part=stored.part.name, to_disk="s3")]  # fmt: skip
    assert len(node.store.apply(moves).moved) == parts


def one_log(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """The same on a disk that all replicas share by one log, with some parts that are hot; and what replicas that have
    all parts on disks of their own add to a move of these."""
    bucket = ObjectDiskConfig(url=f"{(home / 'bucket').as_uri()}/")
    with nodes(home, keeper, "a", partitioned=True, bucket=bucket) as (a,):
        insert_blocks(a, range(COLD_PARTS // BLOCK))
        move_all(a, COLD_PARTS)
        insert_blocks(a, range(COLD_PARTS // BLOCK, (COLD_PARTS + HOT_PARTS) // BLOCK))
        a.store.disk("ssd").usage()
    with serving(home, keeper, bucket), nodes(home, keeper, "new", partitioned=True, bucket=bucket) as (new,):
        before, asked = counts(new), new.requests()
        seconds = timed(lambda: work.sync(new.store.context, new.store.definition(TABLE)))
        assert len(new.store.parts(TABLE)) == COLD_PARTS + HOT_PARTS
        spent = sum(counts(new).values()) - sum(before.values())
        keepers = new.requests() - asked
    told = f"{spent} requests to the bucket, {keepers} to Keeper"
    name = f"new replica of {COLD_PARTS} parts on the shared disk, {HOT_PARTS} hot"
    yield bound_figure(name, seconds, at_most=5, unit="s", detail=told)
    other = replace(keeper, root=f"{keeper.root}-moved")
    with Keeper(other) as session:
        session.make_path("/")
        yield from _moved_by_one(home / "moved", other)


def _moved_by_one(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    bucket = ObjectDiskConfig(url=f"{(home / 'bucket').as_uri()}/")
    with nodes(home, keeper, *NAMES, partitioned=True, bucket=bucket) as found:
        first, *others = found
        insert_blocks(first, range(MOVED_PARTS // BLOCK))
        for node in others:
            work.sync(node.store.context, node.store.definition(TABLE))
        before = counts(*found)
        move_all(first, MOVED_PARTS)
        alone, there = counts(first)["PUT"], objects(home)
        for node in others:
            freed = work.sync(node.store.context, node.store.definition(TABLE)).freed
            assert len(freed) == MOVED_PARTS
        puts, first_puts = counts(*found)["PUT"] - before["PUT"], alone - before["PUT"]
        assert objects(home) == there
    name = f"{MOVED_PARTS} parts move to the shared disk"
    yield bound_figure(f"{name}: objects a part", there / MOVED_PARTS, at_most=1, unit="objects")
    told = f"{first_puts} of the one that moved"
    yield bound_figure(f"{name}: PUTs of 3 replicas", puts / first_puts, at_most=1, unit="x", detail=told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("fetched", "elsewhere", "moved", "joined", "one_log"), help="these alone")
    options = parser.parse_args()
    figures: list[Figure] = []
    with scratch() as home, zookeeper() as server:
        for measured in (fetched, elsewhere, moved, joined, one_log):
            if options.only in (None, measured.__name__):
                keeper = KeeperConfig(hosts=(server.endpoint_url,), root=f"/bench-{measured.__name__}")
                with Keeper(keeper) as session:
                    session.make_path("/")
                figures += measured(home / measured.__name__, keeper)
    report(figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
