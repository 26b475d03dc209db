"""What the daemon costs while nothing is due, how soon it works, what a scrape takes, and how evenly it moves.

    python -m benchmarks.bench_daemon [--parts 10000] [--seconds 3600]

An hour of rest is the figure; less tells as much of the processor, and little of the memory. The jobs that run once an
hour have run before the rest begins; what they took counts as what an hour adds.

The bucket is a directory, of which a look costs nothing: it is given the `look_seconds` that a bucket of S3 has.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from benchmarks.bench_catalog import TABLE, fill, part
from benchmarks.measure import Figure, bound_figure, report, scratch, timed
from disks.registry import LOOK_SECONDS
from tiering.config.settings import PacingConfig, PolicyConfig, embedded
from tiering.daemon.jobs.status import job_rows
from tiering.facts.metrics import exposition
from tiering.facts.metrics.families import families
from tiering.facts.metrics.process import Process
from tiering.facts.metrics.snapshot import Amount, DiskSeen, Overdue, PartsSeen, Seen
from tiering.policy.decide import Options, decide
from tiering.policy.placement import DiskState
from tiering.table.part import ColumnRange, Part, PartName
from tiering.table.schema import MoveToVolume, TableDefinition, TtlRule

NOW = datetime(2026, 2, 1, tzinfo=UTC)
SPREAD_SECONDS = 14_400
_TICK = timedelta(seconds=30)
_HOURLY_JOBS = 2
"""That are on by default: gc and cold merges."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is left alone")
    options = parser.parse_args()
    figures = [_scrape(), _evenness(options.parts)]
    with scratch() as base:
        home = base / "home"
        fill(home, options.parts, days=options.parts + 1)  # two of a day would be merged, and they have no data
        figures += _resting(home, options.seconds)
    report(figures)


def _scrape() -> Figure:
    """The answer of a store of 100 tables and 100,000 parts on three tiers. What it is made of was seen by a pass."""
    places = {
        PartsSeen(f"db.table{number}", disk, volume, "active"): Amount(333, 10**6, 10**9)
        for number in range(100)
        for disk, volume in (("ssd", "hot"), ("hdd", "warm"), ("s3", "cold"))
    }
    overdue = {f"db.table{number}": Overdue(10, 10**6, NOW) for number in range(100)}
    backups = {f"db.table{number}": {"taken": NOW, "verified": NOW, "drilled": NOW} for number in range(100)}
    seen = Seen(NOW, places, overdue, (DiskSeen("ssd", "local", True, 1, 2),), backups=backups)
    with scratch() as home:
        config = embedded(home)
        config.state_directory.mkdir(parents=True)

        def answer() -> None:
            exposition.text(families(seen, Process(up=True, jobs=job_rows(config)), version="1"))

        answer()
        seconds = min(timed(answer) for _ in range(5))
    return bound_figure("a scrape: 100 tables, 100,000 parts", seconds * 1000, at_most=50, unit="ms")


@dataclass(frozen=True, slots=True)
class _Placed:
    definition: TableDefinition
    part: Part
    name: PartName
    disk: str


def _evenness(count: int) -> Figure:
    """So many parts become due in one second, and are spread: the most of them in a pass to the mean of passes."""
    table = msgspec.structs.replace(TABLE, ttl=(TtlRule(86400, "c0", MoveToVolume("cold")),))
    moment = (NOW - timedelta(days=1)).isoformat()
    parts = []
    for number in range(1, count + 1):
        one = msgspec.structs.replace(part(1), name=f"20260131_{number}_{number}_0", created=NOW - timedelta(hours=1))
        one = msgspec.structs.replace(one, columns={"1": ColumnRange(moment, moment)})
        parts.append(_Placed(table, one, PartName.parse(one.name), "ssd"))
    volumes = embedded(Path("/")).policies["hot_cold"].volumes
    policies = {"hot_cold": PolicyConfig(volumes=volumes, pacing=PacingConfig(spread_seconds=SPREAD_SECONDS))}
    disks = {"ssd": DiskState(10**15, 5 * 10**14), "s3": DiskState(None, None)}
    moved: Counter[int] = Counter()
    decided = decide(parts, disks, policies, NOW, Options(remote=frozenset({"s3"})))
    moved[0] = len(decided.moves)
    for stay in decided.stays:
        assert stay.reason.kind == "spread", stay.reason
        assert stay.next_due is not None
        moved[-(-(stay.next_due - NOW) // _TICK)] += 1
    mean = count / (SPREAD_SECONDS / _TICK.total_seconds())
    name = f"{count} parts due at once: most in a pass to the mean"
    return bound_figure(name, max(moved.values()) / mean, at_most=1.3, unit="x")


def _resting(home: Path, seconds: float) -> list[Figure]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "FROSTLINE_HOME": str(home), "FROSTLINE_METRICS__PORT": str(port)}
    environment["FROSTLINE_DISKS__S3__LOOK_SECONDS"] = f"{LOOK_SECONDS:.0f}"
    command = [str(Path(sys.executable).with_name("frostline")), "daemon", "run"]
    figures = []
    for what in ("first start (each part is read)", "start"):
        began = time.perf_counter()
        daemon = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while daemon.poll() is None and passes(home, daemon.pid) < 1:
                time.sleep(0.01)
            figures.append(bound_figure(f"{what} to the first pass", time.perf_counter() - began, at_most=2, unit="s"))
            if what == "start":
                figures += _left_alone(daemon.pid, port, seconds)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    return figures


def _left_alone(pid: int, port: int, seconds: float) -> list[Figure]:
    while _first_runs(port) < _HOURLY_JOBS:
        time.sleep(1)
    (before, jobs), asked = _processor_seconds(pid), _requests(port)
    time.sleep(seconds)
    share = (_processor_seconds(pid)[0] - before) / seconds + jobs / 3600
    a_minute = (_requests(port) - asked) / seconds * 60
    scrape = min(timed(lambda: _scraped(port)) for _ in range(5))
    return [
        bound_figure(f"processor, {seconds:.0f} s of rest and an hour's jobs", share * 100, at_most=0.5, unit="%"),
        bound_figure("memory", resident_bytes(pid) / 2**20, at_most=120, unit="MiB"),
        bound_figure("requests of the bucket", a_minute, at_most=1, unit="a minute"),
        bound_figure("a scrape of it", scrape * 1000, at_most=50, unit="ms"),
    ]


def passes(home: Path, pid: int) -> int:
    with suppress(OSError, ValueError):
        status = json.loads((home / "state" / "daemon.json").read_bytes())
        return int(status["ticks"]) if status["pid"] == pid else 0
    return 0


def _scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def _requests(port: int) -> float:
    lines = _scraped(port).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("frostline_store_requests_total{"))


def _first_runs(port: int) -> int:
    """How many jobs beside the passes have run to their end."""
    lines = _scraped(port).splitlines()
    begun = sum(line.startswith("frostline_job_last_run_timestamp_seconds{") for line in lines)
    running = sum(line.startswith("frostline_job_running{") and line.endswith(" 1.0") for line in lines)
    return begun - running - 1


def _processor_seconds(pid: int) -> tuple[float, float]:
    """Of the process, and of those of its children that have ended: its jobs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, jobs = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return own / os.sysconf("SC_CLK_TCK"), jobs / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
