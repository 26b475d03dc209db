"""`top --once` and `top --json`: the overview for scripts, and for people without a terminal."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.homes import Home
from tests.tui.conftest import DUE
from tiering.config.settings import InboxConfig, PacingConfig, embedded
from tiering.daemon.control import ControlServer
from tiering.daemon.hooks.outbox import HookStatus
from tiering.daemon.lock import daemon_lock
from tiering.daemon.status import DaemonStatus, LaneStatus, StatusRecord
from tiering.engine.store import Store
from tiering.table.definitions import define_table
from tui.facts import work
from tui.facts.overview import overview


@pytest.mark.parametrize("verb", ["top", "dashboard"])
def test_the_overview_has_the_numbers_of_the_verbs(home: Home, verb: str) -> None:
    home.to_bucket(table="d.small")
    document = home.json(verb)
    status = home.json("status")
    assert document["status"] == status
    assert _without_room(document["disks"]) == _without_room(home.json("disks")["disks"])
    assert document["moves"] == home.json("moves", "list", "--active")["moves"] == []
    planned = [{key: value for key, value in move.items() if key != "cost"} for move in home.json("plan")["moves"]]
    assert document["due"] == planned
    assert [move["part"] for move in planned] == [DUE]
    assert document["trouble"] == []


def test_once_prints_text(home: Home) -> None:
    text = home("top", "--once")
    assert "2 tables, 3 parts, 13 rows" in text
    assert f"due        d.events {DUE}  ssd -> s3: " in text
    assert "no daemon runs" in text
    assert "!" not in text


def test_trouble_comes_first_with_the_command_that_goes_on(home: Home) -> None:
    home("pause", "d.events", "--moves")
    assert home("top", "--once").startswith("! moves of d.events are paused  [frostline resume d.events]\n")
    shutil.rmtree(home.path / "ssd")
    document = home.json("top")
    assert document["broken_disks"][0]["disk"] == "ssd"
    assert document["trouble"][0]["what"] == document["broken_disks"][0]["what"]
    assert document["trouble"][0]["command"] == "frostline doctor"


def test_what_keeps_due_parts_and_a_full_disk_are_said(home: Home) -> None:
    assert "moves: 0 under way, 1 due, 0 failed" in home("top", "--once")
    home("pause", "d.events", "--moves")
    assert "0 due (kept: 2 paused), 0 failed" in home("top", "--once")
    home("resume", "d.events")
    bucket = home.path.parent / "s3"
    bucket.rename(bucket.with_name("away"))
    assert "0 due (kept: 1 for an unavailable disk)" in home("top", "--once")
    bucket.with_name("away").rename(bucket)
    before = home.configuration.read_text()
    home.configuration.write_text(before.replace("low_space_ratio: 0", "low_space_ratio: 0.9999999"))
    (full,) = home.json("top")["trouble"]
    assert full["what"].startswith("disk ssd has ")
    assert full["command"] == "frostline doctor ssd"


def test_the_inbox_and_the_daemon_are_trouble_while_they_are(tmp_path: Path) -> None:
    """Files that failed, or that nobody takes; what the daemon met, not what it met once."""
    config = embedded(tmp_path)
    config = msgspec.structs.replace(config, inbox=InboxConfig(path=str(tmp_path / "inbox")))

    def trouble(store: Store) -> list[str]:
        return [trouble.what for trouble in overview(store).trouble]

    with Store.open(config) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        assert trouble(store) == []
        failed = tmp_path / "inbox" / "d.t" / "failed"
        failed.mkdir(parents=True)
        (failed.parent / "a.csv").write_text("k\n1\n")
        (line,) = trouble(store)
        assert line.startswith("1 file for d.t and no daemon")
        (failed / "b.csv").write_text("k\nx\n")
        with daemon_lock(config.state_directory):
            StatusRecord(config.state_directory, DaemonStatus(running=True, last_error="once", trouble="no room"))
            assert trouble(store) == ["the daemon's last pass: no room", "1 file of d.t failed; b.csv"]
            StatusRecord(config.state_directory, DaemonStatus(running=True, last_error="once"))
            assert trouble(store) == ["1 file of d.t failed; b.csv"]
            again = tmp_path / "inbox" / "d.again" / "failed"
            again.mkdir(parents=True)
            (again / "c.csv").write_text("k\nx\n")
            (again / "c.csv.report.json").write_text('{"error": "c.csv: row 1 is not a number"}')
            (line,) = trouble(store)
        assert line.startswith("2 files of 2 tables failed; of d.again c.csv")


def test_the_daemon_is_asked_or_else_what_it_wrote_is_shown(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    state, silent = home.path / "state", threading.Event()
    monkeypatch.setattr("tiering.facts.status._DAEMON_ANSWERS_SECONDS", 0.2)

    def answer(names: list[str]) -> dict[str, Any]:
        if silent.is_set():
            silent.clear()
            answered.wait()
        now = DaemonStatus(running=True, pid=os.getpid(), ticks=8, unkept="no room")
        return {"daemon": msgspec.to_builtins(now), "jobs": {}}

    answered, server = threading.Event(), ControlServer(state, {"status": answer})
    with daemon_lock(state):
        StatusRecord(state, DaemonStatus(running=True, pid=os.getpid(), ticks=7))
        server.begin()
        try:
            assert [home.json("status")["daemon"]["ticks"], home.json("top")["status"]["daemon"]["ticks"]] == [8, 8]
            assert "write its status: no room" in home("top", "--once")
            silent.set()
            assert home.json("status")["daemon"]["ticks"] == 7
        finally:
            answered.set()
            server.end()


def test_without_a_terminal_it_says_what_to_ask_for(home: Home) -> None:
    home("top", code=2)
    assert "--once prints the overview as text" in home.error


def _without_room(disks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Others write to the file system of the tests meanwhile."""
    return [{name: value for name, value in disk.items() if name != "free_bytes"} for disk in disks]


def test_jobs_are_followed_by_what_goes_on_beside_them(tmp_path: Path) -> None:
    """Lanes, the inbox by table, budgets and hooks, with the numbers that `daemon status` and `inbox status` have."""
    config = embedded(tmp_path)
    pacing = PacingConfig(bytes=1_000_000, money=0.5)
    policy = msgspec.structs.replace(config.policies["hot_cold"], pacing=pacing)
    inbox = InboxConfig(path=str(tmp_path / "inbox"))
    config = msgspec.structs.replace(config, policies={"hot_cold": policy}, inbox=inbox)
    with Store.open(config) as store:
        store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
        waiting = tmp_path / "inbox" / "d.t"
        (waiting / "failed").mkdir(parents=True)
        (waiting / "a.csv").write_text("k\n1\n")
        (waiting / "failed" / "b.csv").write_text("k\nx\n")
        begun = store.context.clock()
        lane = LaneStatus(lane="large moves", doing="moving parts", since=begun, bytes=2048, bytes_done=1024)
        hook = HookStatus(hook="pager", delivered=2, given_up=1, last_error="pager took more than 10 s")
        with daemon_lock(config.state_directory):
            StatusRecord(config.state_directory, DaemonStatus(running=True, lanes=(lane,), hooks=(hook,)))
            listing = work.jobs(store)
        rows = {row.job: (row.state, row.said) for row in listing.rows}
        assert next(iter(rows)) == "policy"
        assert rows["lane large moves"] == ("running", "moving parts: 1.0 KiB of 2.0 KiB")
        assert rows["inbox d.t"] == ("failed", "1 failed, 1 file 4 B waiting, 0 done")
        assert rows["budget hot_cold bytes"] == ("open", "0 B of 976.6 KiB in this interval")
        assert rows["budget hot_cold money"] == ("open", "0 of 0.5 USD in this interval")
        assert rows["hook pager"][0] == "failed"
        assert "1 given up; pager took more" in rows["hook pager"][1]
        assert not [name for name in (row.job for row in work.jobs(store).rows) if name.startswith(("lane", "hook"))]
        for row in listing.rows:
            assert all(isinstance(column.text(column.value(row)), str) for column in listing.columns)
            assert listing.document(row)
