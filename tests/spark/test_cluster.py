"""A real master with two workers: our code reaches them, and a worker that is lost costs nothing but time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import REPOSITORY
from tests.spark.cluster import Cluster, environment, standalone


@pytest.mark.in_turn
def test_executors_run_the_code_that_the_driver_sends(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("tests.spark.drivers", "whereabouts", str(tmp_path))
    assert done.returncode == 0, done.stderr
    places = json.loads(done.stdout)
    assert len({process for _, process in places}) == 2  # one Python a worker
    assert all("frostline-" in file and ".zip" in file for file, _ in places)
    assert done.stderr == ""  # what Spark says is in its log


@pytest.mark.in_turn
def test_a_piece_whose_executor_process_dies_runs_again(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("tests.spark.drivers", "die once", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0, 2], [1, 2], [2, 2]]


@pytest.mark.in_turn
def test_a_worker_that_is_killed_costs_time_only(java: None, tmp_path: Path) -> None:
    with standalone() as cluster:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.drivers", cluster.url, "naps", str(tmp_path)],
            cwd=REPOSITORY,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert driver.stderr is not None
        assert driver.stderr.readline().strip() == "running"
        cluster.kill_worker(0)
        output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors
    assert json.loads(output) == [8.0, 8.0]


@pytest.mark.in_turn
def test_a_cluster_without_executors_is_waited_for_with_a_word(java: None, tmp_path: Path) -> None:
    """As long as somebody wants to wait: the tasks may not be lost, and nothing else would say why they do not run."""
    with standalone(workers=0) as cluster:
        done = cluster.run("tests.spark.drivers", "without executors", str(tmp_path))
    assert done.returncode == 0, done.stderr
    warning, *ends = json.loads(done.stdout)
    assert f"waiting for an executor: {cluster.url}" in warning
    assert ends == ["first: stopped", "second: stopped"]
