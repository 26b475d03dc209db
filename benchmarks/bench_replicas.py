"""Three replicas of a table, each a process with a home of its own, on a real ZooKeeper that syncs its disk.

What one replica inserts the others fetch by HTTP on loopback and register in Keeper, as daemons do: by following the
log. How long the server takes for a read and a write of its own is printed beside, for all of this waits for it; and
requests are counted, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import getpass
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy
import pyarrow as pa

from benchmarks.measure import Figure, bound_figure, ratio_figure, report, scratch, timed
from disks import effects
from disks.config import LocalDiskConfig
from disks.workers.progress import Silent
from tests.servers import zookeeper
from tiering.config.settings import Config, InterserverConfig, KeeperConfig, PolicyConfig, VolumeConfig
from tiering.engine.replication import Quorum
from tiering.engine.store import Store
from tiering.table.schema import Column, TableDefinition
from zerocopy.execution import following, work
from zerocopy.keeper.client import Keeper
from zerocopy.replica import lifecycle
from zerocopy.replica.connections import connections

NAMES = ("a", "b", "c")
TABLE = "bench.t"
SINGLE = 40
MANY = 1000
"""Parts of 100 KB."""
FETCHED_MIB = 1024
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
def node(home: Path, keeper: KeeperConfig, name: str, *, follow: bool) -> Iterator[Node]:
    """A replica of the table, which gives its parts to others; `follow`: and takes over what they insert."""
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(config(home, name, keeper)))
        lifecycle.create(store.context, TABLE, definition(TABLE), "local", None, None, if_not_exists=True)
        made = Node(store)
        stack.callback(store.context.stop.set)

        def beside() -> Store:
            opened = store.beside(store.context.config, store.context.stop, Silent())
            made.beside.append(opened)
            return opened

        following.serve(store.context, beside if follow else None)
        yield made


@contextmanager
def machine(home: Path, keeper: KeeperConfig, name: str, *, follow: bool) -> Iterator[Connection]:
    """The same in a process of its own: whenever it is told something it answers how often it has asked Keeper."""
    spawned = multiprocessing.get_context("spawn")
    here, there = spawned.Pipe()
    process = spawned.Process(target=_serve, args=(home, keeper, name, follow, there))
    process.start()
    there.close()
    try:
        here.recv()
        yield here
    finally:
        here.close()
        process.join()


def _serve(home: Path, keeper: KeeperConfig, name: str, follow: bool, there: Connection) -> None:
    with node(home, keeper, name, follow=follow) as own, suppress(EOFError):
        while True:
            there.send(own.requests())
            there.recv()


def requests(there: Connection) -> int:
    """How often the machine has asked Keeper."""
    there.send(None)
    return int(there.recv())


@contextmanager
def three(home: Path, keeper: KeeperConfig) -> Iterator[tuple[Node, list[Connection]]]:
    """The first in this process, and the others."""
    first, *others = NAMES
    with ExitStack() as stack:
        own = stack.enter_context(node(home, keeper, first, follow=True))
        yield own, [stack.enter_context(machine(home, keeper, name, follow=True)) for name in others]


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
    with three(home, keeper) as (a, others):
        table = a.store.table(TABLE)
        table.insert(rows(9_999, 10).to_batches(), quorum=Quorum(3))
        before = [requests(one) for one in others]
        waiting = connections(a.store.context).keeper.requests
        took = [timed(partial(table.insert, rows(seed, 10).to_batches(), quorum=Quorum(3))) for seed in range(SINGLE)]
        waited = connections(a.store.context).keeper.requests - waiting
        counts = [(requests(one) - earlier) / SINGLE for one, earlier in zip(others, before, strict=True)]
        earlier = connections(a.store.context).keeper.requests
        for seed in range(SINGLE, 2 * SINGLE):
            table.insert(rows(seed, 10).to_batches())
        inserting = (connections(a.store.context).keeper.requests - earlier) / SINGLE
    extra = sorted(1000 * (one - beyond) for one in took)
    yield bound_figure(
        "Keeper requests an inserted part, inserting", inserting, at_most=4, unit="requests", detail=f"{waited} waiting"
    )
    yield bound_figure("Keeper requests an inserted part, each other one", max(counts), at_most=6, unit="requests")
    median, p95 = statistics.median(extra), extra[int(0.95 * len(extra))]
    yield bound_figure(
        "part on three replicas beyond the plain insert, median", median, at_most=25, unit="ms", detail=detail
    )
    yield bound_figure("part on three replicas beyond the plain insert, p95", p95, at_most=80, unit="ms", detail=detail)


def many(home: Path, keeper: KeeperConfig, count: int, detail: str) -> Figure:
    """Parts of 100 KB until all three have all, against the plain inserts on one."""
    alone = sum(plain(home, keeper, count, 6_250))
    with three(home, keeper) as (a, _):
        table = a.store.table(TABLE)

        def all_of_them() -> None:
            for seed in range(count):
                table.insert(rows(seed, 6_250).to_batches())
            table.insert(rows(count, 6_250).to_batches(), quorum=Quorum(3, 600))

        together = timed(all_of_them)
    name = f"{count} parts of 100 KB through 3 replicas"
    return ratio_figure(name, together, alone, at_most=2.5, baseline_name="plain inserts on one", detail=detail)


def fetch(home: Path, keeper: KeeperConfig, megabytes: int) -> Iterator[Figure]:
    """A large part from one machine to another."""
    with node(home, keeper, "a", follow=False) as a:
        a.store.table(TABLE).insert(rows(1, (megabytes << 20) // 16).to_batches())
    with machine(home, keeper, "a", follow=False), node(home, keeper, "b", follow=False) as b:
        ours = timed(lambda: work.sync(b.store.context, b.store.definition(TABLE)))
        copied = timed(partial(copy, _parts(home, b), home / "copied"))
        name = f"fetch of {megabytes} MiB"
        yield ratio_figure(name, ours, copied, at_most=1.0, baseline_name=f"{PROGRAM[0]} and sync")
        if shutil.which("nginx") and shutil.which("curl"):
            source = _parts(home, b)
            files = [path.relative_to(source) for path in source.glob("*_*/*")]
            with nginx(home, source) as url:
                downloaded = timed(partial(download, url, files, home / "downloaded"))
            yield ratio_figure(name, ours, downloaded, at_most=1.3, baseline_name="curl from nginx and sync")


@contextmanager
def nginx(home: Path, directory: Path) -> Iterator[str]:
    """The address at which it gives the files of the directory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (home / "nginx").mkdir()
    configuration = home / "nginx" / "nginx.conf"
    configuration.write_text(
        f"daemon off; pid {home}/nginx/pid; error_log {home}/nginx/log; events {{}}\n"
        f"http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:{port}; root {directory}; }} }}\n"
        f"user {getpass.getuser()};\n"
    )
    process = subprocess.Popen(["nginx", "-c", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def download(url: str, files: Sequence[Path], target: Path) -> None:
    """By one connection, one after the other."""
    each = [word for file in files for word in ("-o", str(target / file), f"{url}/{file}")]
    subprocess.run(["curl", "-sf", "--create-dirs", *each], check=True)
    os.sync()


def fetch_many(home: Path, keeper: KeeperConfig) -> Iterator[Figure]:
    """Many parts from one machine to another: what a part costs beside its bytes."""
    with node(home, keeper, "a", follow=False) as a:
        for seed in range(FETCHED_PARTS):
            a.store.table(TABLE).insert(rows(seed, 65_536).to_batches())
    with machine(home, keeper, "a", follow=False), node(home, keeper, "b", follow=False) as b:
        before, synced = b.requests(), [0]

        def count(phase: str, effect: str, arguments: tuple[object, ...]) -> None:
            if phase == "before" and effect.startswith(("fs.fsync", "fs.sync")):
                synced[0] += len(arguments)

        effects.set_hook(count)
        ours = timed(lambda: work.sync(b.store.context, b.store.definition(TABLE)))
        effects.set_hook(None)
        copied = timed(partial(copy, _parts(home, b), home / "copied"))
        asked = (b.requests() - before) / FETCHED_PARTS
    name = f"fetch of {FETCHED_PARTS} parts of 1 MiB"
    yield ratio_figure(name, ours, copied, at_most=1.0, baseline_name=f"{PROGRAM[0]} and sync")
    yield bound_figure(f"{name}: syncs a part", synced[0] / FETCHED_PARTS, at_most=6, unit="syncs")
    yield bound_figure(f"{name}: Keeper requests a part", asked, at_most=1, unit="requests")


def _parts(home: Path, own: Node) -> Path:
    """Where replica `a` has those of the table."""
    return home / "a" / "ssd" / own.store.definition(TABLE).directory


def copy(source: Path, target: Path) -> None:
    subprocess.run([*PROGRAM, f"{source}/", str(target)], check=True)
    os.sync()


def idle(home: Path, keeper: KeeperConfig) -> Figure:
    """What a table asks Keeper while nothing happens, with a pass each half minute."""
    with ExitStack() as stack:
        a, b, _ = (stack.enter_context(node(home, keeper, name, follow=True)) for name in NAMES)
        a.store.table(TABLE).insert(rows(1, 10).to_batches(), quorum=Quorum(3))
        for one in (a, b):
            one.store.tick()
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
    parser.add_argument("--parts", type=int, default=MANY, help="of 100 KB, through three replicas")
    parser.add_argument("--mib", type=int, default=FETCHED_MIB, help="of the part that is fetched")
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
            figures.append(many(*part("many"), options.parts, detail))
        if options.only in (None, "fetch"):
            figures += fetch(*part("fetch"), options.mib)
            figures += fetch_many(*part("fetch-many"))
        if options.only in (None, "idle"):
            figures.append(idle(*part("idle")))
        report(figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
