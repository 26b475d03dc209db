"""How long a file that lands in the inbox takes until its rows are in answers, beside a daemon at work.

    python -m benchmarks.bench_landing [--files 60] [--age 4]

Files land one after the other, by a rename, at moments that do not keep step with the daemon's. The rows of one are
queryable when its commit is there; it is seen by its report in `done/`, which is written after that, so the figure
errs on the slow side.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bench_daemon import passes
from benchmarks.measure import Figure, bound_figure, report, scratch
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table.definitions import define_table

ROWS = 100
LOOK_SECONDS = 0.005
GIVEN_UP_SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--age", type=float, default=4.0, help="inbox.batch_seconds: how long a file waits for others")
    options = parser.parse_args()
    with scratch() as home:
        seconds = _landed(home, options.files, options.age)
    median, late = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    detail = f"({options.files} files, which wait {options.age:g} s for others)"
    report([_figure("median", median, options.age + 0.5, detail), _figure("p95", late, options.age + 1, detail)])


def _figure(name: str, seconds: float, at_most: float, detail: str) -> Figure:
    return bound_figure(f"rename to queryable, {name}", seconds, at_most=at_most, unit="s", detail=detail)


def _landed(home: Path, files: int, age: float) -> list[float]:
    with Store.open(embedded(home)) as store:
        store.create_table(define_table("d.t", columns=["k:int64", "v:string"], order_by="k", policy="hot_cold"))
    landing = home / "inbox" / "d.t"
    landing.mkdir(parents=True)
    environment = {
        **os.environ,
        "FROSTLINE_HOME": str(home),
        "FROSTLINE_INBOX__PATH": str(home / "inbox"),
        "FROSTLINE_INBOX__BATCH_SECONDS": f"{age:g}",
        "FROSTLINE_DAEMON__TICK_SECONDS": "5",
    }
    command = [str(Path(sys.executable).with_name("frostline")), "daemon", "run"]
    daemon = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    chance = random.Random(1)
    seconds = []
    try:
        while daemon.poll() is None and passes(home, daemon.pid) < 1:
            time.sleep(0.01)
        for number in range(files):
            time.sleep(chance.random())
            seconds.append(_one(landing, number))
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
    with Store.open(embedded(home)) as store:
        assert sum(one.facts.rows for one in store.parts()) == files * ROWS, "rows were lost, or doubled"
    return seconds


def _one(landing: Path, number: int) -> float:
    name = f"{number:06}.csv"
    written = landing / f".{name}"
    lines = "".join(f"{number * ROWS + row},value {row}\n" for row in range(ROWS))
    written.write_text(f"k,v\n{lines}")
    began = time.perf_counter()
    written.rename(landing / name)
    done = landing / "done" / f"{name}.report.json"
    while not done.exists():
        assert time.perf_counter() - began < GIVEN_UP_SECONDS, f"{name} did not go in"
        time.sleep(LOOK_SECONDS)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
