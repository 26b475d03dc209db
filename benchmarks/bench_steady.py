"""Thousands of small inserts, one after the other, beside a daemon that merges and moves: times and memory stay flat.

    python -m benchmarks.bench_steady [INSERTS] [--outages N]

Each insert is a commit of one row into one of 20 days, by one process that stays open. A tenth of the days is due at
once, so that the daemon moves what it has merged. Processor time is compared, for other programs may be busy too.

With outages the bucket is one of S3, and that many times, evenly spread, it cannot be reached for a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa

from benchmarks.bench_catalog import TABLE, frostline
from benchmarks.bench_daemon import resident_bytes
from benchmarks.measure import Figure, bound_figure, ratio_figure, report, scratch
from tests.broken_line import Line
from tests.servers import ministack
from tiering.config.reading import load
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table.schema import MoveToVolume, TtlRule

INSERTS = 3000
DAYS = 20
TENTHS = 10
OUTAGE_SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("inserts", nargs="?", type=int, default=INSERTS)
    parser.add_argument("--outages", type=int, default=0)
    options = parser.parse_args()
    with ExitStack() as stack:
        home = stack.enter_context(scratch())
        line = stack.enter_context(_bucket(home)) if options.outages else None
        report(_steady(home, options.inserts, line, options.outages))


@contextmanager
def _bucket(home: Path) -> Iterator[Line]:
    """A bucket of S3 for the store, which finds it in `config.yaml`; the line to it."""
    with ministack() as server:
        line = Line(server.endpoint_url)
        bucket = server.new_bucket()
        os.environ.update(server.environment() | {"AWS_ENDPOINT_URL": line.endpoint_url})
        disk = {"type": "object_disk", "url": f"s3://{bucket}/store/"}
        volumes = [
            {"name": "hot", "disks": ["ssd"]},
            {"name": "cold", "disks": ["s3"], "perform_ttl_move_on_insert": False},  # inserts do not know of outages
        ]
        config = {
            "state_path": str(home / "state"),
            "disks": {"ssd": {"type": "local", "path": str(home / "ssd")}, "s3": disk},
            "policies": {"hot_cold": {"volumes": volumes}},
        }
        (home / "config.yaml").write_text(json.dumps(config))
        try:
            yield line
        finally:
            line.cut()


def _steady(home: Path, count: int, line: Line | None = None, outages: int = 0) -> list[Figure]:
    rule = TtlRule((DAYS - 2) * 86400, "c0", MoveToVolume("cold"))
    newest = datetime.now(UTC).replace(microsecond=0)
    environment = {**os.environ, "FROSTLINE_HOME": str(home)}
    if line is not None:
        environment["FROSTLINE_CONFIG"] = str(home / "config.yaml")
    command = [str(Path(sys.executable).with_name("frostline")), "daemon", "run"]
    away = {count * (number + 1) // (outages + 1) for number in range(outages)}
    mended = float("inf")
    processor: list[float] = []
    ours: list[int] = []
    theirs: list[int] = []
    with Store.open(embedded(home) if line is None else load(home / "config.yaml")) as store:
        store.create_table(msgspec.structs.replace(TABLE, ttl=(rule,)))
        table = store.table(TABLE.full_name)
        daemon = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for number in range(count):
                if line is not None and number in away:
                    line.cut()
                    mended = time.monotonic() + OUTAGE_SECONDS
                if line is not None and time.monotonic() > mended:
                    line.mend()
                    mended = float("inf")
                began = time.process_time()
                table.insert(_row(number, newest - timedelta(days=number % DAYS)).to_batches())
                processor.append(time.process_time() - began)
                if number % (count // TENTHS) == count // TENTHS - 1:
                    ours.append(resident_bytes(os.getpid()))
                    theirs.append(resident_bytes(daemon.pid))
            shown = frostline(home, "status")
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
        store.refresh()
        parts = store.parts()
        assert sum(stored.facts.rows for stored in parts) == count, "rows were lost, or doubled"
        cold = sum(stored.disk == "s3" for stored in parts)
    tenth = count // TENTHS
    medians = [statistics.median(processor[start : start + tenth]) for start in range(0, tenth * TENTHS, tenth)]
    left = f"({len(parts)} parts are left, {cold} of them cold; ms of each tenth: "
    left += ", ".join(f"{median * 1000:.1f}" for median in medians) + ")"
    first, last = "the second tenth", "the last tenth"
    return [
        ratio_figure(
            f"{count} inserts, {last}", medians[-1], medians[1], at_most=1.3, baseline_name=first, detail=left
        ),
        _memory("memory of who inserts", ours),
        _memory("memory of the daemon", theirs),
        bound_figure("status afterwards", shown.cpu_seconds, at_most=0.5, unit="s of processor time"),
    ]


def _memory(name: str, seen: list[int]) -> Figure:
    megabytes = [size / 1e6 for size in seen]
    detail = f"(MB after each tenth: {', '.join(f'{size:.0f}' for size in megabytes)})"
    half = megabytes[TENTHS // 2 - 1]  # the daemon has merged and moved by then
    return ratio_figure(name, megabytes[-1], half, at_most=1.1, baseline_name="after half", unit="MB", detail=detail)


def _row(number: int, moment: datetime) -> pa.Table:
    first = pa.array([moment + timedelta(microseconds=number)], pa.timestamp("us", "UTC"))
    others = {column.name: pa.array([number], pa.int64()) for column in TABLE.columns[1:]}
    return pa.table({TABLE.columns[0].name: first, **others})


if __name__ == "__main__":
    main()
