"""The daemon's cold merges: begun when due, in processes of their own, noted, and ended with the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tiering.config.settings import Config, DaemonConfig, IngestConfig, JobConfig, embedded
from tiering.daemon import daemon
from tiering.daemon.jobs.kinds import kinds
from tiering.daemon.jobs.record import read
from tiering.daemon.jobs.row import JobRow
from tiering.daemon.jobs.runs import JobFiles, RunOrder, run
from tiering.daemon.jobs.status import job_rows
from tiering.daemon.status import DaemonStatus, read_status
from tiering.engine.small_parts import Crowded
from tiering.engine.store import Store
from tiering.facts.growth import of_store
from tiering.facts.metrics import collect
from tiering.facts.metrics.process import process_families
from tiering.facts.status import store_status
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Six parts in a bucket whose volume prefers not to merge."""
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    with Store.open(embedded(tmp_path)) as opened:
        opened.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        for number in range(6):
            opened.table("d.t").insert(pa.table({"k": [number, number + 10]}).to_batches())
        opened.apply(opened.plan_manual_move("d.t", partition="all", to_disk="s3"))
        opened.refresh()
        yield opened


def until(condition: Callable[[], object], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def part_names(store: Store) -> list[str]:
    store.refresh()
    return [stored.part.name for stored in store.parts("d.t")]


def test_the_daemon_merges_what_rests_when_it_is_due(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROSTLINE_DAEMON__COLD_MERGE_SECONDS", "1")
    settings = DaemonConfig(tick_seconds=60, gc_seconds=3600, cold_merge_seconds=0.2)
    stop = threading.Event()
    worker = threading.Thread(target=daemon.run, args=(store, settings, stop))
    worker.start()
    try:
        until(lambda: read_status(store.context.config.state_directory).last_cold_merge)
    finally:
        stop.set()
        worker.join()
    assert part_names(store) == ["all_1_6_1"]
    known = read_status(store.context.config.state_directory)
    assert (known.merged, known.failures, known.last_error) == (1, 0, "")
    assert store.query("SELECT count(*) c FROM d.t").read_all().to_pylist() == [{"c": 12}]


def test_what_a_run_says_when_it_fails_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROSTLINE_DAEMON__COLD_MERGE_OPTIONS", "[--target-size=much]")
    monkeypatch.setenv("FROSTLINE_DAEMON__COLD_MERGE_SECONDS", "60")
    report = daemon.run_job(store, "cold_merges", threading.Event())
    assert (report.result, report.merged, report.code) == ("failed", 0, 2)
    assert "much" in report.said
    assert read(store.context.config.state_directory)["cold_merges"].failures == 1
    assert len(part_names(store)) == 6


def test_tables_that_are_paused_or_have_nothing_due_are_left(store: Store) -> None:
    steps, config = kinds()["cold_merges"].steps, every(store, 60)
    assert steps is not None
    assert steps(config, store) == [["merge", "d.t", "--cold"]]
    store.context.journal.overrides.pause(None, ["merges"], actor="test")
    assert steps(config, store) == []
    store.context.journal.overrides.resume(None, ["merges"])
    store.merge("d.t", MergeRequest())
    store.apply(store.plan_manual_move("d.t", partition="all", to_disk="ssd"))
    store.refresh()
    assert steps(config, store) == []


def test_files_are_taken_on_a_schedule(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job runs the verb for each entry of the configuration; nobody's configuration has it off."""
    kind, none = kinds()["ingest"], store.context.config
    assert kind.steps is not None
    assert (kind.steps(none, store), kind.every(none)) == ([], None)
    one = IngestConfig(table="d.t", files=("/lake/*.parquet", "s3a://lake/*.csv"), options=("--batch-bytes=1GiB",))
    config = msgspec.structs.replace(none, daemon=DaemonConfig(ingests=(one,)))
    assert kind.every(config) == 3600
    assert kind.steps(config, store) == [
        ["ingest", "d.t", "/lake/*.parquet", "s3a://lake/*.csv", "--spark", "--batch-bytes=1GiB"]
    ]
    monkeypatch.setenv("FROSTLINE_DAEMON__INGESTS", "[{table: d.t, files: [/nowhere/at-all.parquet]}]")
    report = daemon.run_job(store, "ingest", threading.Event())  # starts no Spark: there are no files
    assert (report.result, "/nowhere/at-all.parquet" in report.said) == ("failed", True)


def every(store: Store, seconds: float | None, most_parts: int = 100) -> Config:
    """The store's configuration with other times of cold merges."""
    config = store.context.config
    daemon = DaemonConfig(cold_merge_seconds=seconds, cold_merge_parts=most_parts)
    store.context.config = msgspec.structs.replace(config, daemon=daemon)
    return store.context.config


def test_very_many_small_parts_are_merged_without_being_asked(store: Store) -> None:
    """Late rows leave a part each time: the job is on by default, for the partitions that have more than so many.
    The merge is reported."""
    kind = kinds()["cold_merges"]
    assert kind.steps is not None
    assert kind.schedule(every(store, None)).is_on
    assert not kind.schedule(every(store, None, most_parts=0)).is_on
    for most_parts, expected in ((6, []), (5, [["merge", "d.t", "--cold"]])):
        config = every(store, None, most_parts=most_parts)
        assert kind.steps(config, store) == expected
        crowds = store_status(store).crowded
        assert crowds == [Crowded("d.t", "s3", "all", 6)] * len(expected)
        assert [finding.check for finding in of_store(store)] == ["many-parts"] * len(expected)
        assert collect.look(store).crowded == ({"d.t": 6} if expected else {})
    job = {"cold_merges": JobConfig(cron="@daily")}
    explicit = msgspec.structs.replace(config.daemon, jobs=job, cold_merge_parts=100)
    assert kind.steps(msgspec.structs.replace(config, daemon=explicit), store) == expected, "it has a time of its own"


def test_what_gc_found_is_kept_as_numbers(store: Store, tmp_path: Path) -> None:
    """An object that nothing names is counted by the job, for the metrics."""
    stored = store.parts("d.t")[0]
    key = store.object_disk("s3").stat(stored.path(stored.part.files[0].name)).key
    assert key is not None
    named = tmp_path / "bucket" / "store" / key
    stray = named.with_name(named.name[:-32] + "a" * 32)
    stray.write_bytes(b"x" * 7)
    before = time.time() - 3 * 86400
    os.utime(stray, (before, before))
    assert daemon.run_job(store, "gc", threading.Event()).result == "done"
    figures = read(store.context.config.state_directory)["gc"].figures
    assert figures == {"orphaned": 1, "orphaned_bytes": 7}
    found = {family.name: family.samples for family in process_families(collect.process(DaemonStatus(), jobs(store)))}
    assert found["frostline_orphaned_bytes"] == [((), 7)]
    assert store_status(store).garbage == figures
    assert [finding.check for finding in of_store(store)] == ["garbage"]


def jobs(store: Store) -> list[JobRow]:
    return job_rows(store.context.config)


def test_a_run_ends_with_the_daemon(tmp_path: Path) -> None:
    stop = threading.Event()
    order = RunOrder(job="gc", state=str(tmp_path), run="1")
    program = (sys.executable, "-c", "import os, sys, time; os.write(2, b'up'); time.sleep(600)")
    threading.Timer(0.5, stop.set).start()
    report = run(order, stop, program=program)
    assert (report.result, report.code) == ("stopped", -15)


def test_a_process_on_another_store_than_its_daemon_refuses(store: Store, tmp_path: Path) -> None:
    order = RunOrder(job="gc", state=str(tmp_path / "elsewhere"), run="1")
    (tmp_path / "elsewhere").mkdir()
    report = run(order, threading.Event())
    assert (report.result, report.code) == ("failed", 13)
    assert "the configuration says" in report.said


def test_a_process_whose_daemon_is_gone_ends(store: Store) -> None:
    """Standard input ends when the daemon does."""
    state = store.context.config.state_directory
    order = RunOrder(job="cold_merges", state=str(state), run="1")
    command = [sys.executable, "-m", "tiering.cli.child", msgspec.json.encode(order).decode()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(100) in (143, -15)
    assert JobFiles(state, "cold_merges").report("1") is None
    assert not JobFiles(state, "cold_merges").is_held
