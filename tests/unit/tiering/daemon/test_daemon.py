"""The daemon on a real store: passes, stops, survives failures, and is alone. Guards P15 and the exit contract."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from disks import effects
from oplog.errors import Locked, NoSpace, Transient
from tests.command_line import Frostline
from tests.mounts import mounted
from tests.unit.tiering.daemon.running import FAST, NEWEST, Clock, disks_of, until
from tests.unit.tiering.daemon.running import clock as clock
from tests.unit.tiering.daemon.running import store as store
from tiering.catalog import reachability, tables
from tiering.config.settings import DaemonConfig, embedded
from tiering.daemon import daemon
from tiering.daemon.control import SOCKET_FILE
from tiering.daemon.daemon import MemoryKeeping
from tiering.daemon.jobs.kinds import kinds
from tiering.daemon.jobs.status import job_rows
from tiering.daemon.live import live_status
from tiering.daemon.lock import daemon_lock
from tiering.daemon.status import STATUS_FILE, DaemonStatus, StatusRecord, read_status
from tiering.engine.maintenance import TickReport
from tiering.engine.store import Store
from tiering.facts.metrics.collect import look
from tiering.facts.status import daemon_row, store_status
from tiering.table.definitions import define_table


def insert(store: Store, rows: int = 10) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    table = store.table("d.t")
    table.insert([pa.record_batch([[NEWEST] * rows, list(range(rows))], schema=schema)])
    store.refresh()


def age(clock: Clock) -> None:
    """The parts are a few real moments old; the rule counts from their rows."""
    clock.now = datetime.now(UTC) + timedelta(days=2)


def test_one_pass_moves_what_is_due(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[object] = []
    monkeypatch.setattr(MemoryKeeping, "worked", lambda self: worked.append(self))
    insert(store)
    assert disks_of(store) == ["ssd"]
    age(clock)
    reports: list[TickReport] = []
    done = daemon.run(store, FAST, threading.Event(), once=True, on_tick=reports.append)
    assert disks_of(store) == ["s3"]
    assert (done.running, done.ticks, done.moved, done.failures) == (False, 1, 1, 0)
    assert len(reports[0].moves.moved) == 1
    assert len(worked) == 1, "what it left in memory is to be given back"
    capacity = store.context.journal.capacity.hours(1, clock())
    assert (capacity["ssd"], capacity["s3"]) == ([0], [sum(part.facts.size_bytes for part in store.parts())])
    assert read_status(store.context.config.state_directory) == done


def test_passes_go_on_until_it_is_stopped(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr(MemoryKeeping, "look", lambda self: looked.append(self))
    insert(store)
    state = store.context.config.state_directory
    stop = threading.Event()
    settings = DaemonConfig(tick_seconds=0.05, gc_seconds=0.2)
    thread = threading.Thread(target=daemon.run, args=(store, settings, stop))
    thread.start()
    until(lambda: read_status(state).ticks >= 2)
    assert read_status(state).running
    assert read_status(state).pid == os.getpid()
    age(clock)
    until(lambda: read_status(state).moved == 1)
    until(lambda: read_status(state).last_gc is not None)
    until(lambda: looked)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not read_status(state).running
    assert disks_of(store) == ["s3"]


def test_a_daemon_that_can_write_nothing_down_says_what_it_does(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a quota the file system has room, and what lies there is of before: that the daemon answers by itself."""
    state, stop, full = store.context.config.state_directory, threading.Event(), threading.Event()
    replace = effects.replace_file

    def refuse(path: Path, data: bytes) -> None:
        if full.is_set() and path.parent == state:
            raise NoSpace(f"no space left on device: {path}")
        replace(path, data)

    monkeypatch.setattr(effects, "replace_file", refuse)
    thread = threading.Thread(target=daemon.run, args=(store, FAST, stop))
    thread.start()
    try:
        until(lambda: live_status(state)[0].ticks >= 2)
        assert live_status(state)[0].problem == ""
        full.set()
        until(lambda: live_status(state)[0].problem)
        known, jobs = live_status(state)
        assert known.unkept == f"no space left on device: {state / STATUS_FILE}"
        until(lambda: live_status(state)[0].ticks > read_status(state).ticks + 1)
        assert (read_status(state).unkept, jobs.keys()) == ("", kinds().keys())
        assert daemon_row(store.context.config).unkept == known.unkept, "all who look are told the same"
        full.clear()
        until(lambda: live_status(state)[0].problem == "")
        (state / SOCKET_FILE).unlink()
        assert live_status(state)[0].running, "without an answer what is written down is shown"
        assert daemon_row(store.context.config).pid == os.getpid()
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert live_status(state)[0] == read_status(state)


def test_a_second_daemon_is_told_who_is_first(store: Store, tmp_path: Path, clock: Clock) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=daemon.run, args=(store, FAST, stop))
    thread.start()
    state = store.context.config.state_directory
    until(lambda: read_status(state).ticks)
    with (
        Store.open(embedded(tmp_path), clock=clock) as second,
        pytest.raises(Locked, match=f"held by process {os.getpid()}") as caught,
    ):
        daemon.run(second, FAST, threading.Event(), once=True)
    assert caught.value.exit_code == 11
    stop.set()
    thread.join(60)


@pytest.mark.parametrize(
    "error", [Transient("no route to host"), OSError(5, "Input/output error"), ValueError("defect")]
)
def test_a_failing_pass_is_shown_and_the_next_one_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    original = store.tick
    calls: list[int] = []

    def tick(**arguments: object) -> TickReport:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return original(**arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "tick", tick)
    stop = threading.Event()
    thread = threading.Thread(target=daemon.run, args=(store, FAST, stop))
    thread.start()
    until(lambda: len(calls) >= 3)
    stop.set()
    thread.join(60)
    final = read_status(store.context.config.state_directory)
    assert final.failures == 1
    assert str(error) in final.last_error


def test_a_slow_pass_is_not_overtaken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    overlaps: list[int] = []
    original = store.tick

    def tick(**arguments: object) -> TickReport:
        overlaps.append(len(running))
        running.append(1)
        time.sleep(0.2)
        running.pop()
        return original(**arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "tick", tick)
    stop = threading.Event()
    thread = threading.Thread(target=daemon.run, args=(store, FAST, stop))
    thread.start()
    until(lambda: len(overlaps) >= 3)
    stop.set()
    thread.join(60)
    assert set(overlaps) == {0}


def test_what_the_last_pass_met_is_trouble_until_one_goes_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0: well; 3: trouble; 1: none runs. By what the daemon wrote down last, while it holds its lock."""
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    frostline = Frostline(capsys)
    assert frostline.json("daemon", "status", code=1)["running"] is False

    class Asking:
        def __init__(self) -> None:
            self.seen: list[tuple[int, str]] = []

        def begin(self, status: DaemonStatus, working: Callable[[], bool]) -> None: ...

        def passed(self, status: DaemonStatus, problem: str) -> None:
            out, code = frostline.any("daemon", "status")
            self.seen.append((code, out))
            if len(self.seen) == 3:
                stop.set()

        def end(self) -> None: ...

    asking, stop = Asking(), threading.Event()
    with Store.open(embedded(tmp_path)) as store:
        original, calls = store.tick, iter([False, True, False])

        def tick(**arguments: Any) -> TickReport:
            if next(calls, False):
                raise Transient("no route to host")
            return original(**arguments)

        monkeypatch.setattr(store, "tick", tick)
        daemon.run(store, FAST, stop, watch=asking)
    assert [code for code, _ in asking.seen[:3]] == [0, 3, 0]
    assert "trouble    no route to host" in asking.seen[1][1]
    frostline("daemon", "status", code=1)


@pytest.mark.parametrize("kept_by", ["its back-off", "a pause", "a disk that is away"])
def test_a_part_that_fails_is_trouble_until_it_is_mended(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kept_by: str
) -> None:
    """P15: whatever keeps it from being tried: seen as well again between two tries, and while the bucket was away."""
    insert(store)
    (file,) = Path(store.context.config.disks["ssd"].path).rglob("*.parquet")  # type: ignore[union-attr]
    whole = file.read_bytes()
    file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    clock.now = datetime.now(UTC)  # which the journal's tries are dated by, and long after the rows
    told: list[str] = []
    kept: list[dict[str, int]] = []
    for _ in range(2):
        told.append(daemon.run(store, FAST, threading.Event(), once=True).trouble)
        kept.append(store_status(store).waiting_moves)
        if kept_by == "a pause":
            store.context.journal.overrides.pause(None, ["moves"], actor="test")
        elif kept_by == "a disk that is away":
            monkeypatch.setattr(reachability, "whole_tables", lambda context: [])
    assert all("does not have the SHA-256" in trouble and "all_1_1_0" in trouble for trouble in told), told
    assert "well again" not in caplog.text
    assert kept == [{"backoff": 1}, {"paused" if kept_by == "a pause" else "backoff": 1}]
    monkeypatch.undo()
    store.context.journal.overrides.resume(None, ["moves"])
    file.write_bytes(whole)
    clock.now += timedelta(days=2)
    assert daemon.run(store, FAST, threading.Event(), once=True).trouble == ""
    assert disks_of(store) == ["s3"]


def test_a_pass_with_trouble_is_no_job_that_is_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """I15: `daemon status` ends with 3, and its job `policy` says why."""
    stop = threading.Event()
    original = store.tick
    seen: list[tuple[str | None, str]] = []

    def tick(**arguments: Any) -> TickReport:
        (policy,) = (one for one in job_rows(store.context.config) if one.job == "policy")
        seen.append((policy.result, policy.said))
        if len(seen) == 2:
            stop.set()
        report = original(**arguments)
        report.problems.append("disk hdd is missing")
        return report

    monkeypatch.setattr(store, "tick", tick)
    daemon.run(store, FAST, stop)
    assert seen[1] == ("found", "disk hdd is missing")


def test_a_move_of_a_part_that_is_gone_fails_no_more(store: Store, clock: Clock) -> None:
    """P15: `status`, metrics and their alert told of it until the journal had forgotten it."""
    insert(store)
    (file,) = Path(store.context.config.disks["ssd"].path).rglob("*.parquet")  # type: ignore[union-attr]
    file.write_bytes(b"x" + file.read_bytes()[1:])
    clock.now = datetime.now(UTC)
    assert daemon.run(store, FAST, threading.Event(), once=True).trouble
    assert (store_status(store).failed_moves, look(store).failing_moves) == (1, 1)
    tables.drop_parts(store.context, store.parts("d.t"), reason="test")
    assert daemon.run(store, FAST, threading.Event(), once=True).trouble == ""
    assert (store_status(store).failed_moves, look(store).failing_moves) == (0, 0)


def test_the_guard_of_its_gc_is_set_and_a_pause_is_kept(store: Store) -> None:
    settings = DaemonConfig(gc_guard_seconds=7200)
    config = msgspec.structs.replace(store.context.config, daemon=settings)
    steps = kinds()["gc"].steps
    assert steps is not None
    assert steps(config, store) == [["gc", "s3", "--guard-interval", "7200s"]]
    deleting = msgspec.structs.replace(config, daemon=DaemonConfig(gc_delete=True))
    assert steps(deleting, store) == [["gc", "s3", "--guard-interval", "86400s", "--delete"]]
    store.context.journal.overrides.pause(None, ["gc"], actor="test")
    assert steps(config, store) == []


def test_the_status_of_a_store_without_a_daemon(tmp_path: Path) -> None:
    assert read_status(tmp_path) == DaemonStatus()
    (tmp_path / STATUS_FILE).write_bytes(b"{")
    assert read_status(tmp_path) == DaemonStatus()


def test_sigterm_ends_between_steps(tmp_path: Path) -> None:
    script = """
import signal, sys, threading
from pathlib import Path
from tiering.daemon import daemon
from tiering.engine.store import Store
from tiering.config.settings import DaemonConfig, embedded

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with Store.open(embedded(Path(sys.argv[1]))) as store:
    daemon.run(store, DaemonConfig(tick_seconds=0.05), stop, on_tick=lambda _: print("tick", flush=True))
print("ended", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "tick\n"
    state = tmp_path / "state"
    assert read_status(state).pid == child.pid
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=100)
    assert output.endswith("ended\n")
    assert child.returncode == 0
    assert not read_status(state).running


@pytest.mark.in_turn
def test_sigterm_is_how_the_command_ends_well(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tiering.cli.main import main; main()", "daemon", "run"]
    child = subprocess.Popen(
        command, env={**os.environ, "FROSTLINE_HOME": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    )
    until(lambda: read_status(tmp_path / "state").ticks)
    child.send_signal(signal.SIGTERM)
    _, told = child.communicate(timeout=100)
    assert child.returncode == 0
    assert "stopped between two steps" in told


def test_a_killed_daemon_frees_the_store(tmp_path: Path) -> None:
    script = """
import sys, threading
from pathlib import Path
from tiering.daemon import daemon
from tiering.engine.store import Store
from tiering.config.settings import DaemonConfig, embedded

with Store.open(embedded(Path(sys.argv[1]))) as store:
    daemon.run(store, DaemonConfig(), threading.Event(), on_tick=lambda _: print("tick", flush=True))
"""
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.communicate()
    assert not read_status(tmp_path / "state").running
    with Store.open(embedded(tmp_path)) as store:
        assert daemon.run(store, FAST, threading.Event(), once=True).ticks == 1


def test_a_merge_that_fails_waits_longer_each_time(tmp_path: Path) -> None:
    """P15: a pass tries what failed again, but not every pass; what is well again is merged by itself."""
    moment = [datetime.now(UTC)]
    with Store.open(embedded(tmp_path), clock=lambda: moment[0]) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        for key in range(12):
            store.table("d.t").insert(pa.table({"k": [key]}).to_batches())
        (broken,) = tmp_path.glob("ssd/store/*/*/all_1_1_0/data-0000.parquet")
        good = broken.read_bytes()
        broken.write_bytes(bytes(len(good)))
        moment[0] = datetime.now(UTC)  # the journal notes by the wall clock when something failed
        assert store.tick(only="merges").problems
        waiting = store.tick(only="merges")
        assert not waiting.problems
        assert "1 attempt failed" in waiting.waiting[0]
        moment[0] += timedelta(minutes=2)
        assert store.tick(only="merges").problems, "after a minute it is tried again"
        moment[0] = datetime.now(UTC) + timedelta(minutes=1)
        assert store.tick(only="merges").waiting, "and now after two"
        broken.write_bytes(good)
        moment[0] += timedelta(hours=7)
        assert store.tick(only="merges").merges


def test_a_status_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """On a full state disk the record is that of before: `daemon status` must not call it well."""
    with mounted(tmp_path / "state", size="1m") as mount, daemon_lock(mount.path):
        StatusRecord(mount.path, DaemonStatus(running=True, ticks=3))
        assert read_status(mount.path).problem == ""
        mount.fill()
        known = read_status(mount.path)
        assert (known.ticks, known.running) == (3, True)
        assert "is full" in known.trouble
        mount.free()
        assert read_status(mount.path).problem == ""


def test_a_daemon_that_cannot_be_asked_says_that_it_works(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    (store.context.config.state_directory / SOCKET_FILE).mkdir()
    stop = threading.Event()
    done = daemon.run(store, DaemonConfig(), stop, on_tick=lambda _: stop.set())
    assert done.ticks == 1
    assert "the daemon cannot be asked anything" in done.last_error
    assert "; it runs, but 'frostline daemon status'" in caplog.text
