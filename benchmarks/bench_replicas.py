"""Three replicas of a table in one process, each with a home of its own, on a real ZooKeeper that syncs its disk.

What one replica inserts the others fetch by HTTP on loopback and register in Keeper, as daemons do: by following the
log. How long the server takes for a read and a write of its own is printed beside, for all of this waits for it; and
requests are counted, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy
import pyarrow as pa

from benchmarks.measure import Figure, bound_figure, ratio_figure, report, scratch, timed
from disks import effects
from disks.config import LocalDiskConfig
from disks.workers.progress import Silent
from tests.servers import zookeeper
from tiering.config.settings import Config, InterserverConfig, KeeperConfig, PolicyConfig, VolumeConfig
from tiering.engine.replicated import Quorum
from tiering.engine.store import Store
from tiering.table.schema import Column, TableDefinition
from zerocopy.execution import work
from zerocopy.keeper.client import Keeper
from zerocopy.replica.connections import connections

NAMES = ("a", "b", "c")
TABLE = "bench.t"
SINGLE = 40
MANY = 200
"""Parts of 100 KB, a fifth of those of the goal."""
FETCHED_BYTES = 256 * 1024 * 1024
FETCHED_PARTS = 128
"""Of a MiB each."""
IDLE_SECONDS = 60.0
PROGRAM = ("rsync", "-a") if shutil.which("rsync") else ("cp", "-a")
"""What files are copied by, to compare."""


@dataclass(slots=True)
class Node:
    """One machine, as its daemon has it open."""

    store: Store
    beside: list[Store] = field(default_factory=list)
    """What its follower works with."""

    def requests(self) -> int:
        return sum(connections(store.context).keeper.requests for store in [self.store, *self.beside])


def config(home: Path, name: str, keeper: KeeperConfig) -> Config:
    return Config(
        state_path=str(home / name / "state"),
        disks={"ssd": LocalDiskConfig(path=str(home / name / "ssd"))},
        policies={"local": PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("ssd",)),))},
        keeper=keeper,
        interserver=InterserverConfig(port=0, secret="a-secret-of-the-benchmark"),
        macros={"shard": "01", "replica": name},
    )


def definition(name: str) -> TableDefinition:
    database, short = name.split(".")
    columns = (Column(id=1, name="k", type="int64"), Column(id=2, name="noise", type="float64"))
    return TableDefinition(
        uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        database=database,
        name=short,
        columns=columns,
        order_by=("k",),
        policy="local",
        last_column_id=2,
    )


@contextmanager
def nodes(home: Path, keeper: KeeperConfig, *, follow: bool) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        made: list[Node] = []
        for name in NAMES:
            store = stack.enter_context(Store.open(config(home, name, keeper)))
            work.create(store.context, TABLE, definition(TABLE), "local", None, None, if_not_exists=True)
            node = Node(store)
            made.append(node)
            stack.callback(store.context.stop.set)

            def beside(node: Node = node) -> Store:
                own = node.store
                opened = own.beside(own.context.config, own.context.stop, Silent())
                node.beside.append(opened)
                return opened

            work.serve(store.context, beside if follow else None)
        yield made


def rows(seed: int, count: int) -> pa.Table:
    """Rows of 16 bytes that do not compress."""
    noise = numpy.random.default_rng(seed).random(count)
    return pa.table({"k": pa.array(numpy.arange(count) + seed * 1_000_000), "noise": pa.array(noise)})


def plain(home: Path, keeper: KeeperConfig, count: int, size: int) -> list[float]:
    """The seconds of each insert into a table of one machine."""
    with Store.open(config(home, "plain", keeper)) as store:
        store.create_table(definition(TABLE))
        table = store.table(TABLE)
        return [timed(partial(table.insert, rows(seed, size).to_batches())) for seed in range(count)]


def singles(home: Path, keeper: KeeperConfig, beyond: float, detail: str) -> Iterator[Figure]:
    """One part at a time, there on all three."""
    with nodes(home, keeper, follow=True) as (a, b, c):
        table = a.store.table(TABLE)
        table.insert(rows(9_999, 10).to_batches(), quorum=Quorum(3))
        before = [node.requests() for node in (a, b, c)]
        waiting = connections(a.store.context).keeper.requests
        took = [timed(partial(table.insert, rows(seed, 10).to_batches(), quorum=Quorum(3))) for seed in range(SINGLE)]
        waited = connections(a.store.context).keeper.requests - waiting
        counts = [(node.requests() - one) / SINGLE for node, one in zip((a, b, c), before, strict=True)]
        before = [connections(a.store.context).keeper.requests]
        for seed in range(SINGLE, 2 * SINGLE):
            table.insert(rows(seed, 10).to_batches())
        inserting = (connections(a.store.context).keeper.requests - before[0]) / SINGLE
    extra = sorted(1000 * (one - beyond) for one in took)
    yield bound_figure(
        "Keeper requests an inserted part, inserting", inserting, at_most=4, unit="requests", detail=f"{waited} waiting"
    )
    yield bound_figure("Keeper requests an inserted part, each other one", max(counts[1:]), at_most=6, unit="requests")
    median, p95 = statistics.median(extra), extra[int(0.95 * len(extra))]
    yield bound_figure(
        "part on three replicas beyond the plain insert, median", median, at_most=25, unit="ms", detail=detail
    )
    yield bound_figure("part on three replicas beyond the plain insert, p95", p95, at_most=80, unit="ms", detail=detail)


def many(home: Path, keeper: KeeperConfig, detail: str) -> Figure:
    """Parts of 100 KB until all three have all, against the plain inserts on one."""
    alone = sum(plain(home, keeper, MANY, 6_250))
    with nodes(home, keeper, follow=True) as (a, *_):
        table = a.store.table(TABLE)

        def all_of_them() -> None:
            for seed in range(MANY):
                table.insert(rows(seed, 6_250).to_batches())
            table.insert(rows(MANY, 6_250).to_batches(), quorum=Quorum(3, 600))

        together = timed(all_of_them)
    name = f"{MANY} parts of 100 KB through 3 replicas"
    return ratio_figure(name, together, alone, at_most=2.5, baseline_name="plain inserts on one", detail=detail)


def fetch(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """Large parts from one replica to another."""
    count = FETCHED_BYTES // 16
    with nodes(home, keeper, follow=False) as (a, b, _):
        a.store.table(TABLE).insert(rows(1, count).to_batches())
        source = home / "a" / "ssd" / a.store.definition(TABLE).directory
        target = home / "copied"
        ours = timed(lambda: work.sync(b.store.context, b.store.definition(TABLE)))
        copied = timed(partial(copy, source, target))
    name = f"fetch of {FETCHED_BYTES >> 20} MiB"
    yield ratio_figure(name, ours, copied, at_most=1.0, baseline_name=f"{PROGRAM[0]} and sync")


def fetch_many(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """Many parts from one replica to another: what a part costs beside its bytes."""
    with nodes(home, keeper, follow=False) as (a, b, _):
        table = a.store.table(TABLE)
        for seed in range(FETCHED_PARTS):
            table.insert(rows(seed, 65_536).to_batches())
        source = home / "a" / "ssd" / a.store.definition(TABLE).directory
        before, synced = b.requests(), [0]

        def count(phase: str, effect: str, arguments: tuple[object, ...]) -> None:
            if phase == "before" and effect.startswith(("fs.fsync", "fs.sync")):
                synced[0] += len(arguments)

        effects.set_hook(count)
        ours = timed(lambda: work.sync(b.store.context, b.store.definition(TABLE)))
        effects.set_hook(None)
        copied = timed(partial(copy, source, home / "copied"))
    name = f"fetch of {FETCHED_PARTS} parts of 1 MiB"
    yield ratio_figure(name, ours, copied, at_most=1.0, baseline_name=f"{PROGRAM[0]} and sync")
    yield bound_figure(f"{name}: syncs a part", synced[0] / FETCHED_PARTS, at_most=6, unit="syncs")
    asked = (b.requests() - before) / FETCHED_PARTS
    yield bound_figure(f"{name}: Keeper requests a part", asked, at_most=1, unit="requests")


def copy(source: Path, target: Path) -> None:
    subprocess.run([*PROGRAM, f"{source}/", str(target)], check=True)
    os.sync()


def idle(home: Path, keeper: KeeperConfig) -> Figure:
    """What a table asks Keeper while nothing happens, with a pass each half minute."""
    with nodes(home, keeper, follow=True) as (a, b, _):
        a.store.table(TABLE).insert(rows(1, 10).to_batches(), quorum=Quorum(3))
        for node in (a, b):
            node.store.tick()
        before, end = b.requests(), time.monotonic() + IDLE_SECONDS
        while time.monotonic() < end:
            time.sleep(IDLE_SECONDS / 2)
            b.store.tick()
        number = (b.requests() - before) * 60 / IDLE_SECONDS
    return bound_figure("Keeper requests a minute and replica, idle", number, at_most=10, unit="requests")


def latencies(keeper: KeeperConfig) -> str:
    """Of the server itself: what one read and one write take."""
    with Keeper(keeper) as session:
        session.make_path("/latency")
        reads = [timed(lambda: session.get("/latency")) for _ in range(50)]
        writes = [timed(lambda: session.set("/latency", b"x")) for _ in range(50)]
    return f"(Keeper: read {1000 * statistics.median(reads):.2f} ms, write {1000 * statistics.median(writes):.2f} ms)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("singles", "many", "fetch", "idle"), help="these alone")
    options = parser.parse_args()
    with scratch() as home, zookeeper() as server:
        keeper = KeeperConfig(hosts=(server.endpoint_url.removeprefix("http://"),), root="/bench")

        def part(name: str) -> tuple[Path, KeeperConfig]:
            place = KeeperConfig(hosts=keeper.hosts, root=f"/bench-{name}")
            with Keeper(place) as session:
                session.make_path("/")
            return home / name, place

        detail = latencies(part("latency")[1])
        figures: list[Figure] = []
        if options.only in (None, "singles"):
            place = part("singles")
            beyond = statistics.median(plain(*place, SINGLE, 10))
            figures += singles(*place, beyond, f"{detail}; plain {1000 * beyond:.1f} ms")
        if options.only in (None, "many"):
            figures.append(many(*part("many"), detail))
        if options.only in (None, "fetch"):
            figures += fetch(*part("fetch"))
            figures += fetch_many(*part("fetch-many"))
        if options.only in (None, "idle"):
            figures.append(idle(*part("idle")))
        report(figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
