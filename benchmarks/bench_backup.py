"""Backups against restic, rclone and s5cmd on the same files, and against what a store can do at best.

Each row of figures is chosen by name; the S3 server is Ceph. Whoever is compared runs in turn as a fresh process, and
the least time of the rounds counts, since another program can only add to it; processor time stands beside it. With
SMALL=1 everything is small: that shows that it runs, and says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import backup_many, bench_gc
from benchmarks.backup_home import (
    TABLE,
    Home,
    Restic,
    make_parts,
    rclone,
    rclone_and_sync,
    s5cmd,
    versions,
)
from benchmarks.measure import Figure, Run, bound_figure, python, ratio_figure, report, run, scratch
from tests.servers import Server, ceph

SMALL = bool(os.environ.get("SMALL"))
MB = 1_000_000
LARGE_PARTS, LARGE_BYTES = (4, 5 * MB) if SMALL else (20, 100 * MB)
SMALL_PARTS, SMALL_BYTES = (50, 250_000) if SMALL else (2_000, 250_000)
INSERTS = 5 if SMALL else 20
DIRECTIONS = (4, 8, 16)
"""How many requests at a time are tried where the best counts."""

COUNTED = """
import json, sys
from pathlib import Path
from backup import Repository
from backup.create.request import CreateRequest
from tiering.config.reading import load
from tiering.engine.store import Store
config = load(Path(sys.argv[1]))
with Store.open(config, workers=8) as store, Repository.open(sys.argv[2], config=config) as repository:
    stores = [repository.storage.store, *(disk.store for disk in store.object_disks())]
    made = repository.create(store, CreateRequest())
    counts = repository.storage.store.counts()
    print(json.dumps({
        "writes": counts["PUT"] + counts["COPY"] + counts["DELETE"],
        "client_bytes": sum(one.bytes_sent + one.bytes_received for one in stores),
        **made.document(),
    }))
"""
"""A backup that counts what it asks of the repository."""

BARE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from disks.config import ObjectDiskConfig
from disks.stores.base import ByteRange
from disks.stores.open import open_store
what, source_url, target_url, workers = sys.argv[1:4] + [int(sys.argv[4])]
source, target = (open_store(ObjectDiskConfig(url=url)) for url in (source_url, target_url))
items = [item for item in source.list() if item.size_bytes > 900_000]
def copy(numbered):
    number, item = numbered
    target.copy(item.key, f"{number:06d}", source=source)
def read(numbered):
    _, item = numbered
    for start in range(0, item.size_bytes, 1 << 24):
        source.get(item.key, ByteRange(start, min(start + (1 << 24), item.size_bytes)))
with ThreadPoolExecutor(workers) as pool:
    print(sum(1 for _ in pool.map({"copy": copy, "read": read}[what], enumerate(items))))
"""
"""The requests alone: copy or read the data objects of a prefix."""

LATENCIES = """
import json, sys, time
from datetime import UTC, datetime
from pathlib import Path
from benchmarks import data
from tiering.config.reading import load
from tiering.engine.store import Store
config, count, seed = load(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
rows = data.events(10_000, start=datetime(2026, 1, 1, tzinfo=UTC), days=10, seed=seed)
with Store.open(config) as store:
    store.create_table(data.definition("inserted"), if_not_exists=True)
    table = store.table("bench.inserted")
    found = []
    for number in range(count + 2):
        batches = rows.slice(number).to_batches()
        began = time.perf_counter()
        table.insert(batches)
        found.append(time.perf_counter() - began)
    print(json.dumps(found[2:]))
"""
"""How long each of some inserts took."""


@dataclass(frozen=True, slots=True)
class Least:
    """The least of some runs, which need not be one of them."""

    seconds: float
    cpu_seconds: float


def in_turn(contenders: Mapping[str, Callable[[], Run]], rounds: int) -> dict[str, Least]:
    """Everyone in turn, so that a machine whose speed drifts treats all alike; each begins once."""
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    names = list(contenders)
    for _ in range(rounds):
        for name in names:
            done = contenders[name]()
            runs[name].append(done)
            print(f"  {name}: {done.seconds:.2f} s, processor {done.cpu_seconds:.2f} s", file=sys.stderr)
        names = [*names[1:], names[0]]
    return {name: least(done) for name, done in runs.items()}


def least(runs: list[Run]) -> Least:
    return Least(min(done.seconds for done in runs), min(done.cpu_seconds for done in runs))


def against(
    label: str, ours: Least, theirs: Least, who: str, at_most: float, *, processor: bool = False
) -> list[Figure]:
    """Wall time against a peer's; with `processor` its time, too, as a figure of its own."""
    detail = f"(processor {ours.cpu_seconds:.2f} s, {who} {theirs.cpu_seconds:.2f} s)"
    wall = ratio_figure(
        f"{label}, against {who}", ours.seconds, theirs.seconds, at_most=at_most, baseline_name=who, detail=detail
    )
    cpu = ratio_figure(
        f"{label}, processor, against {who}", ours.cpu_seconds, theirs.cpu_seconds, at_most=at_most, baseline_name=who
    )
    return [wall, cpu] if processor else [wall]


# -- a directory -----------------------------------------------------------------------------------------------------


def large_home(directory: Path, bucket_url: str = "", environment: dict[str, str] | None = None) -> Home:
    """2 GB in parts of 100 MB, which a verb has seen before."""
    home = Home(directory / "home", bucket_url, environment or {})
    make_parts(home, LARGE_PARTS, LARGE_BYTES)
    home.frostline("parts")
    return home


def first_directory(rounds: int) -> list[Figure]:
    """A first backup to a directory, against restic and rclone."""
    with scratch() as directory:
        home, restic = large_home(directory), Restic(directory)

        def ours() -> Run:
            url = f"file://{directory}/repository"
            home.backup("init", url)
            done = home.backup("create", "--to", url)
            assert json.loads(done.output)["new_bytes"] >= LARGE_PARTS * LARGE_BYTES
            shutil.rmtree(directory / "repository")
            return done

        def theirs() -> Run:
            restic("init")
            done = restic("backup", str(home.ssd / "store"))
            restic.forget_everything()
            return done

        def copied() -> Run:
            done = rclone_and_sync(home.ssd / "store", directory / "copy", 4)
            shutil.rmtree(directory / "copy")
            return done

        best = in_turn({"frostline": ours, "restic": theirs, "rclone": copied}, rounds)
    label = f"first backup of {LARGE_PARTS * LARGE_BYTES / 1e9:g} GB to a directory"
    return [
        *against(label, best["frostline"], best["restic"], "restic", 0.4, processor=True),
        *against(label, best["frostline"], best["rclone"], "rclone copy and sync", 1.05, processor=True),
    ]


def restore_directory(rounds: int) -> list[Figure]:
    """A restore from a directory onto a machine that has nothing."""
    with scratch() as directory:
        home, restic, url = large_home(directory), Restic(directory), f"file://{directory}/repository"
        home.backup("init", url)
        home.backup("create", "--to", url)
        restic("init")
        restic("backup", str(home.ssd / "store"))
        rclone_and_sync(home.ssd / "store", directory / "copy", 4)
        shutil.rmtree(home.root)

        def ours() -> Run:
            fresh = Home(directory / "fresh")
            done = fresh.backup("restore", "latest", "--to", url)
            assert json.loads(done.output)["parts"] == LARGE_PARTS
            shutil.rmtree(fresh.root)
            return done

        def theirs() -> Run:
            done = restic("restore", "latest", "--target", str(directory / "back"))
            shutil.rmtree(directory / "back")
            return done

        def copied() -> Run:
            done = rclone_and_sync(directory / "copy", directory / "back", 4)
            shutil.rmtree(directory / "back")
            return done

        best = in_turn({"frostline": ours, "restic": theirs, "rclone": copied}, rounds)
    label = f"restore of {LARGE_PARTS * LARGE_BYTES / 1e9:g} GB"
    return [
        *against(label, best["frostline"], best["restic"], "restic restore", 0.5),
        *against(label, best["frostline"], best["rclone"], "rclone copy and sync", 1.1),
    ]


# -- the S3 server ---------------------------------------------------------------------------------------------------


def fresh_repository(home: Home, server: Server) -> str:
    """The URL of a new repository on the server."""
    home.environment = server.environment()
    url = f"s3://{server.new_bucket()}/repository"
    home.backup("init", url)
    return url


def first_s3(rounds: int) -> list[Figure]:
    """The same to S3. Everyone has a server of his own each time, for it keeps objects in memory."""
    with scratch() as directory:
        home, data = large_home(directory), directory / "home" / "ssd" / "store"
        peers = peers_on_s3(home, directory, data)
        best = in_turn(peers, rounds)
    return s3_figures(f"first backup of {LARGE_PARTS * LARGE_BYTES / 1e9:g} GB to S3", best, 0.5, 1.05)


def peers_on_s3(home: Home, directory: Path, data: Path) -> dict[str, Callable[[], Run]]:
    """Ours, restic, s5cmd and rclone, each on a fresh server."""

    def ours() -> Run:
        with ceph() as server:
            return home_backup(home, fresh_repository(home, server))

    def theirs() -> Run:
        with ceph() as server:
            restic = Restic(directory, server, server.new_bucket())
            restic("init")
            done = restic("backup", str(data))
        restic.forget_everything()
        return done

    def copied(program: Callable[[Server, Path, str, int], Run]) -> Run:
        with ceph() as server:
            return program(server, data, server.new_bucket(), home.workers)

    return {
        "frostline": ours,
        "restic": theirs,
        "s5cmd": lambda: copied(s5cmd),
        "rclone": lambda: copied(rclone),
    }


def home_backup(home: Home, url: str) -> Run:
    return home.backup("create", "--to", url)


def s3_figures(label: str, best: Mapping[str, Least], restic_goal: float, copy_goal: float) -> list[Figure]:
    copier = min(("s5cmd", "rclone"), key=lambda name: best[name].seconds)
    return [
        *against(label, best["frostline"], best["restic"], "restic", restic_goal, processor=True),
        *against(label, best["frostline"], best[copier], copier, copy_goal, processor=True),
    ]


def small_parts(rounds: int) -> list[Figure]:
    """Many small parts to S3."""
    with scratch() as directory:
        home = Home(directory / "home")
        make_parts(home, SMALL_PARTS, SMALL_BYTES)
        home.frostline("parts")
        peers = peers_on_s3(home, directory, home.ssd / "store")
        best = in_turn({name: peers[name] for name in ("frostline", "restic")}, rounds)
        with ceph() as server:
            url = fresh_repository(home, server)
            counted = json.loads(python(COUNTED, str(home.config), url, environment=home.environment).output)
    label = f"{SMALL_PARTS:,} parts of {SMALL_BYTES // 1000} KB to S3"
    return [
        *against(label, best["frostline"], best["restic"], "restic", 0.5),
        bound_figure(
            f"{label}, write requests",
            counted["writes"],
            at_most=round(counted["bytes"] / 2**20) + 5,
            unit="requests",
            detail="(at most one a MiB and five)",
        ),
    ]


def second_backup(rounds: int) -> list[Figure]:
    """A second backup after one part in a hundred is new. Then each old part's bytes are changed behind its back: a
    backup that read one of them would fail."""
    more = max(1, SMALL_PARTS // 100)
    with scratch() as directory, ceph() as server:
        home = Home(directory / "home")
        make_parts(home, SMALL_PARTS, SMALL_BYTES)
        url = fresh_repository(home, server)
        restic = Restic(directory, server, server.new_bucket())
        home_backup(home, url)
        restic("init")
        restic("backup", str(home.ssd / "store"))
        have = SMALL_PARTS

        def ours() -> Run:
            nonlocal have
            make_parts(home, more, SMALL_BYTES, first=have + 1)
            have += more
            home.frostline("parts")
            done = home_backup(home, url)
            assert json.loads(done.output)["new_bytes"] < (more + 1) * SMALL_BYTES, done.output
            return done

        best = in_turn({"frostline": ours, "restic": lambda: restic("backup", str(home.ssd / "store"))}, rounds)
        change_all_bytes(home.ssd)
        unread = home.told("backup", "create", "--to", url)
    label = f"second backup, {more} of {SMALL_PARTS:,} parts are new"
    return [
        *against(label, best["frostline"], best["restic"], "restic", 0.3),
        bound_figure("old parts that a later backup read", unread["new_bytes"], at_most=0, unit="bytes"),
    ]


def change_all_bytes(ssd: Path) -> None:
    """A byte of every data file, in place."""
    for file in ssd.rglob("*.parquet"):
        with file.open("r+b") as data:
            data.seek(1000)
            byte = data.read(1)[0]
            data.seek(1000)
            data.write(bytes([byte ^ 1]))


def after_moves(rounds: int) -> list[Figure]:
    """A backup after every part moved from the SSD to S3."""
    with scratch() as directory, ceph() as server:
        home = Home(directory / "home", f"s3://{server.new_bucket()}/cold/")
        make_parts(home, SMALL_PARTS, SMALL_BYTES)
        url = fresh_repository(home, server)
        home_backup(home, url)
        home.frostline("move", TABLE.full_name, "--partition", "all", "--to-disk", "s3")
        runs = [home_backup(home, url) for _ in range(rounds)]
        sent = [json.loads(done.output)["new_bytes"] for done in runs]
    best = least(runs)
    label = f"backup after {SMALL_PARTS:,} parts moved to S3"
    return [
        bound_figure(f"{label}, first", runs[0].seconds, at_most=2, unit="s", detail=cpu(runs[0])),
        bound_figure(f"{label}, least", best.seconds, at_most=2, unit="s", detail=cpu(best)),
        bound_figure(f"{label}, data sent", max(sent), at_most=0, unit="bytes"),
    ]


def cpu(done: Run | Least) -> str:
    return f"(processor {done.cpu_seconds:.2f} s)"


def cold_copy(rounds: int) -> list[Figure]:
    """Copies inside one endpoint, against the bare requests."""
    count, part_bytes = (10, MB) if SMALL else (100, 10 * MB)
    with scratch() as directory, ceph() as server:
        bucket = server.new_bucket()
        home = Home(directory / "home", f"s3://{bucket}/cold/", server.environment())
        make_parts(home, count, part_bytes)
        home.frostline("move", TABLE.full_name, "--partition", "all", "--to-disk", "s3")

        def bare(workers: int) -> Run:
            words = ["copy", f"s3://{bucket}/cold/", f"s3://{bucket}/bare-{uuid.uuid4().hex}/", str(workers)]
            done = python(BARE, *words, environment=home.environment)
            assert int(done.output) == count, done.output
            return done

        def ours(workers: int) -> Run:
            home.workers = workers
            url = f"s3://{bucket}/{uuid.uuid4().hex}"
            home.backup("init", url)
            done = home_backup(home, url)
            assert json.loads(done.output)["copied_server_side"] >= count * part_bytes, done.output
            return done

        contenders = {f"frostline, {n}": (lambda n=n: ours(n)) for n in DIRECTIONS}
        contenders |= {f"bare, {n}": (lambda n=n: bare(n)) for n in DIRECTIONS}
        found = in_turn(contenders, rounds)
        url = fresh_repository(home, server)
        counted = json.loads(python(COUNTED, str(home.config), url, environment=home.environment).output)
    best = best_of(found)
    label = f"--cold copy of {count * part_bytes / 1e9:g} GB inside one endpoint"
    return [
        *against(label, best["frostline"], best["bare"], "the bare requests", 1.1),
        bound_figure(f"{label}, bytes of the client", counted["client_bytes"], at_most=MB, unit="bytes"),
    ]


def best_of(found: Mapping[str, Least]) -> dict[str, Least]:
    """Of each contender, its best concurrency."""
    best: dict[str, Least] = {}
    for name, figure in sorted(found.items(), key=lambda item: -item[1].seconds):
        best[name.partition(",")[0]] = figure
    return best


def read_data(rounds: int) -> list[Figure]:
    """`verify --read-data`, against the plain read of the same objects."""
    count, part_bytes = (10, MB) if SMALL else (20, 50 * MB)
    with scratch() as directory, ceph() as server:
        home = Home(directory / "home")
        make_parts(home, count, part_bytes)
        url = fresh_repository(home, server)
        home_backup(home, url)

        def ours(workers: int) -> Run:
            home.workers = workers
            return home.backup("verify", "latest", "--read-data", "--to", url)

        def bare(workers: int) -> Run:
            return python(BARE, "read", f"{url}/", f"{url}/", str(workers), environment=home.environment)

        contenders = {f"frostline, {n}": (lambda n=n: ours(n)) for n in DIRECTIONS}
        contenders |= {f"bare, {n}": (lambda n=n: bare(n)) for n in DIRECTIONS}
        best = best_of(in_turn(contenders, rounds))
    label = f"verify --read-data of {count * part_bytes / 1e9:g} GB"
    return against(label, best["frostline"], best["bare"], "the plain read", 1.15)


def insert_latency(rounds: int) -> list[Figure]:
    """Inserts alone and while a backup runs with --bwlimit, in turn."""
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    with scratch() as directory:
        home = large_home(directory)

        def inserts(name: str, seed: int) -> None:
            words = [str(home.config), str(INSERTS), str(seed)]
            done = run([sys.executable, "-c", LATENCIES, *words], cwd=Path(__file__).parent.parent)
            found[name] += json.loads(done.output)

        for turn in range(2 * rounds):
            inserts("alone", 2 * turn)
            url = f"file://{directory}/repository-{turn}"
            home.backup("init", url)
            command = home.command("backup", "create", "--to", url, "--bwlimit", "10k" if SMALL else "20M", "-j", "2")
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            inserts("beside", 2 * turn + 1)
            assert process.poll() is None, "the backup ended before the inserts did"
            process.send_signal(signal.SIGKILL)
            process.wait()
    figures = []
    for name, value in (("median", statistics.median), ("p95", lambda times: statistics.quantiles(times, n=20)[-1])):
        figures.append(
            ratio_figure(
                f"insert while a backup runs with --bwlimit, {name}",
                value(found["beside"]),
                value(found["alone"]),
                at_most=1.2,
                baseline_name="without one",
                detail=f"({len(found['alone'])} inserts each)",
            )
        )
    return figures


def gc_of_pins(rounds: int) -> list[Figure]:
    """gc with a hundred pinned revisions, against one."""
    return [bench_gc.figure(rounds=max(3, rounds))]


ROWS: dict[str, Callable[[int], list[Figure]]] = {
    "first-directory": first_directory,
    "first-s3": first_s3,
    "small": small_parts,
    "second": second_backup,
    "moved": after_moves,
    "pin": lambda rounds: backup_many.pin(5_000 if SMALL else 50_000, rounds),
    "gc": gc_of_pins,
    "cold-copy": cold_copy,
    "restore": restore_directory,
    "verify": lambda rounds: backup_many.quick_verify(2_000 if SMALL else 50_000, rounds),
    "read-data": read_data,
    "list": lambda rounds: backup_many.list_backups(50 if SMALL else 1_000, rounds),
    "insert": insert_latency,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"rows: {' '.join(ROWS)}")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="only these")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    print(versions(), file=sys.stderr)
    for name in options.rows or ROWS:
        report(ROWS[name](options.rounds))


if __name__ == "__main__":
    main()
