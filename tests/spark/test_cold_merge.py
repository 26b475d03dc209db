"""I13: cold merges by Spark, on a real S3 server: whatever dies, is late or is refused, the rows are the same.

What must not happen to the store while a merge runs is in tests/crash/test_cold_merge_races.py, without Spark.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from disks.stores.open import open_store
from spark_tiering.running.spark_runner import SparkRunner
from tests.meddling import Exchange, meddling
from tests.servers import REPOSITORY, Server
from tests.spark.cluster import Cluster, environment
from tests.spark.dying import dying
from tests.spark.merging import all_rows, config_of, fill, merge, part_names, write_config
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.merge.cold.job import Workers
from tiering.merge.request import ColdOptions, MergeRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MERGED = ["202601_1_6_1", "202602_1_6_1"]


@pytest.fixture
def config(ministack: Server, tmp_path: Path) -> Config:
    made = config_of(ministack, tmp_path, ministack.new_bucket())
    fill(made)
    return made


def digests(config: Config) -> list[tuple[str, str, int]]:
    with Store.open(config) as store:
        return [(file.name, file.sha256, file.rows) for stored in store.parts("d.t") for file in stored.part.files]


@pytest.mark.in_turn
def test_spark_writes_the_same_files_as_this_process(
    spark: SparkSession, ministack: Server, tmp_path: Path, config: Config
) -> None:
    here = config_of(ministack, tmp_path / "here", ministack.new_bucket())
    fill(here)
    before = all_rows(config)
    with Store.open(here) as store:
        store.merge_cold(
            "d.t", Workers.of_this_process(store.context), MergeRequest(cold=ColdOptions(shard_bytes=64 * 1024))
        )
    with Store.open(config) as store:
        report = merge(store, SparkRunner(spark))
    assert not report.failures
    assert report.shards > 4
    assert digests(config) == digests(here)
    assert part_names(config) == MERGED
    assert all_rows(config) == before


@pytest.mark.in_turn
def test_an_executor_that_dies_costs_time_only(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    """Each shard is merged and uploaded, then its process is gone before it can say so; what it wrote is garbage."""
    before = all_rows(config)
    with Store.open(config) as store:
        report = merge(store, SparkRunner(spark).hooked(dying(tmp_path / "notes")))
        assert not report.failures
        wasted = len([key for key in keys(config) if "-file-" in key]) - sum(len(s.part.files) for s in store.parts())
    assert wasted >= report.shards
    assert (all_rows(config), part_names(config)) == (before, MERGED)


def keys(config: Config) -> list[str]:
    store = open_store(config.disks["cold"])
    try:
        return [info.key for info in store.list()]
    finally:
        store.close()


def test_a_store_that_asks_for_patience_gets_it(
    spark: SparkSession, ministack: Server, tmp_path: Path, config: Config
) -> None:
    """Every third read or write of an object by the executors is refused with a 503, or cut short."""
    before = all_rows(config)
    count = 0

    def answer(found: Exchange) -> None:
        nonlocal count
        if "-file-" not in found.path or found.method not in ("GET", "PUT"):
            return
        count += 1
        if count % 3 == 0:
            found.status, found.body = 503, b"<Error><Code>SlowDown</Code></Error>"
            found.headers["content-type"] = "application/xml"

    bucket = str(config.disks["cold"].url).split("/")[2]
    with meddling(ministack, answer=answer) as slow, Store.open(config_of(slow, tmp_path / "slow", bucket)) as store:
        report = merge(store, SparkRunner(spark))
    assert not report.failures
    assert count > 30
    assert (all_rows(config), part_names(config)) == (before, MERGED)


@pytest.mark.in_turn
def test_a_driver_that_is_killed_leaves_everything_as_it_was(config: Config, tmp_path: Path, java: None) -> None:
    """Killed when the first output is in the bucket and nothing names it; the next run does the work."""
    before, path = all_rows(config), write_config(config, tmp_path / "frostline.json")
    command = [sys.executable, "-m", "tiering.cli.main", "-c", str(path), "merge", "d.t", "--spark", "--json"]
    known = set(keys(config))
    driver = subprocess.Popen(
        [*command, "--shard-size", "1MiB", "--groups-in-flight", "1"],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not {key for key in keys(config) if "-file-" in key} - known and time.monotonic() < deadline:
        assert driver.poll() is None
        time.sleep(0.02)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert all_rows(config) == before
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (all_rows(config), part_names(config)) == (before, MERGED)
    assert json.loads(done.stdout)["spark"]["tasks"] >= 1
    with Store.open(config) as store:
        assert not store.context.journal.work.merges(active=True)


@pytest.mark.in_turn
def test_of_a_straggler_and_its_double_one_counts(config: Config, tmp_path: Path, cluster: Cluster) -> None:
    """A shard whose first attempt hangs is made again elsewhere (speculation); both uploaded, one is named."""
    before, path = all_rows(config), write_config(config, tmp_path / "frostline.json")
    notes = tmp_path / "notes"
    notes.mkdir()
    done = cluster.run("tests.spark.merging", str(path), str(notes))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"merged": MERGED, "failures": []}
    assert (notes / "straggled").exists()
    assert (all_rows(config), part_names(config)) == (before, MERGED)


@pytest.mark.in_turn
def test_spark_submit_runs_the_command_line(config: Config, tmp_path: Path, java: None) -> None:
    """What was submitted decides where it runs; the exit code and the document are the command's own."""
    import pyspark

    before, path = all_rows(config), write_config(config, tmp_path / "frostline.json")
    where = subprocess.run(
        [sys.executable, "-m", "spark_tiering.submit"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1,3]"]
    # Spark sends what the command says on stderr to stdout, and a busy machine has time for a line of progress.
    options = ["-c", str(path), "--json", "--no-progress"]
    command = [*submit, "--conf", "spark.ui.enabled=false", where.stdout.strip(), *options]
    seen = {
        **environment(),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }

    def submitted(*verb: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *verb], cwd=tmp_path, env=seen, capture_output=True, text=True, timeout=120, check=False
        )

    done = submitted("merge", "d.t", "--spark")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spark"]["master"] == "local[1,3]"
    assert (all_rows(config), part_names(config)) == (before, MERGED)
    assert submitted("merge", "d.nothing", "--spark").returncode == 10


@pytest.mark.in_turn
@pytest.mark.parametrize("seconds", [3, 8])
def test_ctrl_c_ends_a_merge_whatever_spark_is_doing(config: Config, tmp_path: Path, java: None, seconds: int) -> None:
    """While Spark starts, or while it works: one line, the documented exit code, and no trace of Python or Java."""
    before, path = all_rows(config), write_config(config, tmp_path / "frostline.json")
    merging = subprocess.Popen(
        [sys.executable, "-m", "tiering.cli.main", "-c", str(path), "merge", "d.t", "--spark", "--shard-size", "1MiB"],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    time.sleep(seconds)
    merging.send_signal(signal.SIGINT)
    said, _ = merging.communicate(timeout=60)
    assert all_rows(config) == before
    if merging.returncode != 0:  # a fast machine was done before
        assert merging.returncode == 130
        assert "interrupted" in said
        assert "Traceback" not in said
