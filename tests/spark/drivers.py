"""Driver programs for the tests on a cluster: `python -m tests.spark.drivers URL WHAT HOME`, one JSON document out."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import spark_tiering.running.spark_runner
from oplog.errors import Transient
from spark_tiering.running.session import log_file, spark_session
from spark_tiering.running.spark_runner import SparkRunner
from tests.spark.cluster import CONF
from tests.spark.pieces import Attempt, nap, whereabouts, work
from tiering.config.settings import Config, SparkConfig, embedded


def whereabouts_of_tasks(runner: SparkRunner, home: Path) -> list[Any]:
    """From which file our code comes in each executor."""
    return _all(runner, whereabouts, list(range(4)))


def first_attempts_that_die(runner: SparkRunner, home: Path) -> list[Any]:
    """Attempts that each piece took."""
    return _all(runner, work, [Attempt(home / "notes", number, "die once") for number in range(3)])


def naps(runner: SparkRunner, home: Path) -> list[Any]:
    """Two pieces that take long enough for somebody to kill a worker; a line on stderr when they run."""
    threading.Timer(3.0, lambda: print("running", file=sys.stderr, flush=True)).start()
    return _all(runner, nap, [8.0, 8.0])


def without_executors(runner: SparkRunner, home: Path) -> list[Any]:
    """What people are told while a cluster gives no executor to two jobs at once, and then that both were stopped."""
    told: list[Any] = []
    stop = threading.Event()

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logging.getLogger("spark_tiering").addHandler(Reader())
    spark_tiering.running.spark_runner.WITHOUT_EXECUTOR_SECONDS = 1.0
    threading.Timer(8.0, stop.set).start()

    def job(what: str) -> str:
        try:
            runner.run(nap, [0.0], title=what, on_done=lambda index, answer: told.append(answer), stop=stop)
        except Transient as error:
            return error.message
        return "done"

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(job, ("first", "second")))
    return [*told, *ends]


def _all(runner: SparkRunner, function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    found: list[Any] = [None] * len(items)
    runner.run(function, items, title="testing", on_done=found.__setitem__)
    return found


WHAT: dict[str, Callable[[SparkRunner, Path], list[Any]]] = {
    "whereabouts": whereabouts_of_tasks,
    "die once": first_attempts_that_die,
    "naps": naps,
    "without executors": without_executors,
}


def settings(home: Path, url: str) -> Config:
    """The embedded store below a directory, and executors of 512 MB on the cluster."""
    base = embedded(home)
    spark = SparkConfig(master=url, conf=dict(CONF))
    return Config(state_path=base.state_path, disks=base.disks, policies=base.policies, spark=spark)


def main(url: str, what: str, home: str) -> None:
    config = settings(Path(home), url)
    session = spark_session(config, app="tests")
    try:
        print(json.dumps(WHAT[what](SparkRunner(session, log=str(log_file(config))), Path(home))))
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
