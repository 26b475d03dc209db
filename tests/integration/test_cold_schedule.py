"""The daemon's cold merges: begun when due, in processes of their own, noted, and ended with the daemon."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tiering.config.settings import DaemonConfig, embedded
from tiering.daemon import daemon
from tiering.daemon.cold_schedule import ColdSchedule
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table

COMMAND = (sys.executable, "-m", "tiering.cli.main")


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


def test_the_daemon_merges_what_rests_when_it_is_due(store: Store) -> None:
    settings = DaemonConfig(tick_seconds=60, gc_seconds=3600, cold_merge_seconds=0.2)
    stop = threading.Event()
    worker = threading.Thread(target=daemon.run, args=(store, settings, stop))
    worker.start()
    try:
        until(lambda: daemon.status(store.context.config.state_directory).last_cold_merge)
    finally:
        stop.set()
        worker.join()
    assert part_names(store) == ["all_1_6_1"]
    known = daemon.status(store.context.config.state_directory)
    assert (known.merged, known.failures, known.last_error) == (1, 0, "")
    assert store.query("SELECT count(*) c FROM d.t").read_all().to_pylist() == [{"c": 12}]


def test_what_a_run_says_when_it_fails_is_kept(store: Store) -> None:
    settings = DaemonConfig(cold_merge_options=("--target-size=much",))
    schedule = ColdSchedule(store, settings, COMMAND)
    schedule.begin()
    ended = []
    until(lambda: ended.append(found) if (found := schedule.look()) else ended)
    assert (ended[0].table, ended[0].merged) == ("d.t", 0)
    assert "much" in ended[0].problem
    assert len(part_names(store)) == 6


def test_tables_that_are_paused_or_have_nothing_due_are_left_alone(store: Store) -> None:
    schedule = ColdSchedule(store, DaemonConfig(), COMMAND)
    store.context.journal.wishes.pause(None, ["merges"], actor="test")
    schedule.begin()
    assert schedule.look() is None
    assert schedule._running is None
    store.context.journal.wishes.resume(None, ["merges"])
    store.merge("d.t", MergeRequest())
    store.apply(store.plan_manual_move("d.t", partition="all", to_disk="ssd"))
    store.refresh()
    schedule.begin()
    assert schedule._running is None


def test_a_run_ends_with_the_daemon(store: Store) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    schedule = ColdSchedule(store, DaemonConfig(), command)
    schedule.begin()
    assert schedule._running is not None
    process = schedule._running[1]
    began = time.monotonic()
    schedule.stop()
    assert process.poll() is not None
    assert time.monotonic() - began < 30
    assert schedule.look() is None
