"""Reads and writes on a real cluster: killed workers and straggling tasks cost time, and no row (I1, I2)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.servers import REPOSITORY, Server
from tests.spark.cluster import Cluster, environment, standalone
from tests.spark.stores import opened, table, write_config
from tests.spark.table_jobs import STRAGGLING_SECONDS
from tiering.table.schema import PartitionField

ROWS = 4000
TIMEOUT_SECONDS = 200
WHOLE = [ROWS, ROWS, ROWS * (ROWS - 1) // 2]


@pytest.fixture
def config(ministack: Server, tmp_path: Path) -> Path:
    file = write_config(tmp_path, ministack, hot=False)
    columns = {"service": "string", "ts": "timestamp[us, UTC]", "count": "uint64", "note": "string"}
    with opened(file) as store:
        store.create_table(table("db.logs", columns, ["service", "ts"], PartitionField("day", "ts")))
    return file


def run(cluster: Cluster, config: Path, what: str) -> list[int]:
    done = cluster.run("tests.spark.table_jobs", str(config), what, str(ROWS), timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.in_turn
def test_executors_write_and_read_what_the_driver_plans(cluster: Cluster, config: Path) -> None:
    assert run(cluster, config, "write") == WHOLE
    with opened(config) as store:
        assert len(store.parts("db.logs")) == 4


@pytest.mark.in_turn
def test_of_two_attempts_of_a_straggler_one_is_committed(cluster: Cluster, config: Path) -> None:
    assert TIMEOUT_SECONDS < STRAGGLING_SECONDS  # who waits for it is too late: the copy has to win
    assert run(cluster, config, "speculate") == WHOLE
    with opened(config) as store:
        assert len(store.parts("db.logs")) == 4


@pytest.mark.in_turn
def test_a_worker_killed_in_the_middle_of_a_write_costs_no_row(java: None, ministack: Server, config: Path) -> None:
    with standalone() as cluster:
        program = [sys.executable, "-m", "tests.spark.table_jobs", cluster.url, str(config), "slow", str(ROWS)]
        driver = subprocess.Popen(
            program,
            cwd=REPOSITORY,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        killer = threading.Thread(target=_kill_when_busy, args=(cluster,))
        killer.start()
        output, errors = driver.communicate(timeout=TIMEOUT_SECONDS)
        killer.join()
    assert driver.returncode == 0, errors
    assert json.loads(output) == WHOLE


def _kill_when_busy(cluster: Cluster) -> None:
    """Kill the first worker once a task runs in its executor: that one's stderr says so."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for log in (cluster.directory / "work0").glob("*/*/stderr"):
            if "running" in log.read_text(errors="replace"):
                cluster.kill_worker(0)
                return
        time.sleep(0.1)
