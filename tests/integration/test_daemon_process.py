"""A real daemon, asked over its socket, killed, begun again and stopped (P15)."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.command_line import Frostline
from tiering.config.settings import embedded
from tiering.daemon.control import SOCKET_FILE
from tiering.daemon.jobs.record import JobRecord, read
from tiering.daemon.status import read_status
from tiering.engine.store import Store
from tiering.table.definitions import define_table

COMMAND = (sys.executable, "-m", "tiering.cli.main")


def until(condition: Callable[[], object], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    monkeypatch.delenv("FROSTLINE_CONFIG", raising=False)
    with Store.open(embedded(tmp_path)) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
    return tmp_path / "state"


@pytest.fixture
def begin(state: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen([*COMMAND, "daemon", "run"]))
        until(lambda: read_status(state).pid == begun[-1].pid and read_status(state).ticks)
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


@pytest.mark.in_turn
def test_it_is_asked_killed_begun_again_and_stopped(
    state: Path, begin: Callable[[], subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    frostline = Frostline(capsys)
    process = begin()
    assert stat.S_IMODE((state / SOCKET_FILE).stat().st_mode) == 0o600
    assert frostline.json("daemon", "trigger", "snapshots") == {"jobs": ["snapshots"], "dry_run": False}
    until(lambda: read(state).get("snapshots", JobRecord()).result == "done")
    frostline("daemon", "pause", "gc")
    jobs = {one["job"]: one for one in frostline.json("daemon", "status")["jobs"]}
    assert jobs["gc"]["state"] == "paused"
    assert jobs["snapshots"]["state"] == "off"
    assert jobs["policy"]["next_run"] is not None or jobs["policy"]["state"] == "running"
    frostline("daemon", "trigger", "nonsense", code=10)
    assert "the jobs are: policy" in frostline.error
    assert subprocess.run([*COMMAND, "daemon", "run", "--once", "gc"], check=False).returncode == 11

    process.kill()
    process.wait()
    assert (state / SOCKET_FILE).exists(), "a killed one leaves its socket"
    frostline("daemon", "trigger", "gc", code=1)
    assert "no daemon runs" in frostline.error

    process = begin()
    until((state / SOCKET_FILE).exists)
    assert read(state)["gc"].paused, "a pause outlives the daemon"
    assert read(state)["snapshots"].runs == 1
    frostline("daemon", "resume")
    assert not read(state)["gc"].paused
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == 0
    assert not (state / SOCKET_FILE).exists()
    done = subprocess.run([*COMMAND, "daemon", "run", "--once", "gc"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "gc done")
    assert os.path.exists(state / "jobs" / "gc.json")


@pytest.mark.in_turn
def test_a_changed_file_is_in_force_and_a_bad_one_is_said(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = state.parent / "frostline.yaml"
    text = subprocess.run([*COMMAND, "config", "default"], check=True, capture_output=True, text=True).stdout
    file.write_text(text)
    monkeypatch.setenv("FROSTLINE_CONFIG", str(file))
    process = subprocess.Popen([*COMMAND, "daemon", "run"])
    try:
        until(lambda: read_status(state).pid == process.pid and read_status(state).ticks)
        frostline = Frostline(capsys)
        file.write_text(f"{text}daemon: {{gc_seconds: 2h}}\nlimits: {{workers: 3}}\n")
        until(lambda: read_status(state).config_read)
        jobs = {one["job"]: one for one in frostline.json("daemon", "status")["jobs"]}
        assert jobs["gc"]["schedule"] == "every 2 h"
        assert frostline.json("daemon", "reload", code=3) == {
            "changed": [],
            "kept": ["limits.workers"],
            "dry_run": False,
        }
        assert "restart    needed for limits.workers" in frostline("daemon", "status")

        file.write_text(f"{text}daemon: {{gc_seconds: never}}\n")
        until(lambda: read_status(state).config_problem)
        assert "daemon.gc_seconds" in read_status(state).config_problem
        assert "config     not in force: " in frostline("daemon", "status", code=3)
        file.write_text(text.replace("disks:", "disks: ]["))
        found = frostline.json("daemon", "status", code=3)
        assert (found["pid"], "not YAML" in found["config_problem"]) == (process.pid, True)
        assert {one["job"]: one["schedule"] for one in found["jobs"]}["gc"] == "every 2 h"
        frostline("daemon", "pause", "gc")
        frostline("daemon", "resume", "gc")
        frostline("daemon", "reload", code=2)

        file.write_text(text)
        before = read_status(state).config_read
        process.send_signal(signal.SIGHUP)
        until(lambda: read_status(state).config_read != before)
        assert (read_status(state).config_problem, read_status(state).config_kept) == ("", ())
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.in_turn
def test_it_ends_within_an_endless_copy_and_the_next_one_moves(
    state: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """The next daemon moves the part."""
    with Store.open(embedded(state.parent)) as store:
        rows = pa.record_batch({"k": np.random.default_rng(7).integers(0, 2**62, 200_000)})
        store.table("d.t").insert([rows])
        store.context.journal.overrides.pin(
            store.definitions()[0].uuid, part=store.parts("d.t")[0].part.name, volume="cold"
        )
    for _ in range(20):
        slow = subprocess.Popen([*COMMAND, "--bwlimit", "1K", "daemon", "run"], stderr=subprocess.PIPE, text=True)
        try:
            until(lambda pid=slow.pid: read_status(state).pid == pid and _is_copying(state))
            slow.send_signal(signal.SIGTERM)
            _, told = slow.communicate(timeout=300)  # at this pace the copy takes half an hour
        finally:
            slow.kill()
        if slow.returncode != 0:  # that is in order: the signal came between two steps of the copy
            break
    assert slow.returncode == 143
    assert "stopped within a step" in told
    begin()
    until(lambda: read_status(state).moved == 1)
    with Store.open(embedded(state.parent)) as store:
        assert [part.disk for part in store.parts("d.t")] == ["s3"]
        assert store.table("d.t").scan(columns=["k"]).read_all().num_rows == 200_000


def _is_copying(state: Path) -> bool:
    with Store.open(embedded(state.parent), recover=False) as store:
        return any(move.state == "copying" for move in store.context.journal.work.moves(active=True))


@pytest.mark.in_turn
def test_its_log_is_json_and_has_no_secret(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One object a line, whatever happens: a job and a hook that fail, a file that is not valid."""
    file = state.parent / "frostline.yaml"
    text = subprocess.run([*COMMAND, "config", "default"], check=True, capture_output=True, text=True).stdout
    text += """
hooks: {chat: {url: "http://127.0.0.1:9/hook-path", secret: hook-secret, allow_private: true, attempts: 1}}
interserver: {secret: interserver-secret, port: 0}
keeper: {user: frost, password: keeper-password}
"""
    file.touch(0o600)
    file.write_text(text + "daemon: {log_format: json}\n")
    monkeypatch.setenv("FROSTLINE_CONFIG", str(file))
    monkeypatch.delenv("FROSTLINE_BACKUP", raising=False)
    process = subprocess.Popen([*COMMAND, "-vv", "daemon", "run"], stderr=subprocess.PIPE)
    said: list[bytes] = []
    assert process.stderr is not None
    lines = process.stderr
    reader = threading.Thread(target=lambda: said.extend(lines))
    reader.start()
    try:
        until(lambda: process.poll() is not None or read_status(state).ticks)
        subprocess.run([*COMMAND, "daemon", "trigger", "backup"], check=True)
        until(lambda: read(state).get("backup", JobRecord()).result == "failed")
        until(lambda: any(hook.given_up for hook in read_status(state).hooks))
        file.write_text(text + "daemon: {log_format: xml}\n")
        until(lambda: read_status(state).config_problem)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) in (0, 143)
    finally:
        process.kill()
        process.wait()
        reader.join()
    found = [json.loads(line) for line in said]
    assert all(line.isascii() for line in said)
    assert all({"time", "level", "logger", "message"} <= event.keys() for event in found)
    assert {"job backup", "the configuration"} <= {event.get("where") for event in found}
    for secret in (b"hook-path", b"hook-secret", b"interserver-secret", b"keeper-password"):
        assert not [line for line in said if secret in line], secret


def test_what_is_wrong_with_the_start_is_a_line_too(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROSTLINE_DAEMON__TICK_SECONDS", "soon")
    done = subprocess.run([*COMMAND, "daemon", "run", "--log-format", "json"], check=False, capture_output=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    event = json.loads(line)
    assert (event["level"], event["error"]["kind"], event["error"]["exit_code"]) == ("error", "usage", 2)
    monkeypatch.delenv("FROSTLINE_DAEMON__TICK_SECONDS")
    done = subprocess.run([*COMMAND, "daemon", "run", "--log-format", "xml"], check=False, capture_output=True)
    assert done.returncode == 2
