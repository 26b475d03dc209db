"""Who may take a lock, and what one who waits for it is told. Guards P60."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from pathlib import Path

import pytest

from disks.host import locks
from disks.host.locks import file_lock, hold_lock
from oplog.errors import Locked
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.table.definitions import define_table


def test_who_waits_is_told_who_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "_SAID_AFTER_SECONDS", 0.0)
    path = tmp_path / "a.lock"
    with file_lock(path), caplog.at_level(logging.WARNING):
        with (
            pytest.raises(Locked, match=f"process {os.getpid()} .*python.*since 20") as locked,
            file_lock(path, timeout_seconds=0.05),
        ):
            pass
        assert locked.value.hint
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"process {os.getpid()}" in said, "once, however long it takes"
    assert str(path) in said


def test_the_journals_lock_tells_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "state" / "daemon.lock"
    with (
        hold_lock(path, resource="the lock", hint="h"),
        pytest.raises(Locked, match=f"held by process {os.getpid()} .*since 20"),
        hold_lock(path, resource="the lock", hint="h"),
    ):
        pass


def test_state_disks_and_locks_are_this_users_alone(tmp_path: Path) -> None:
    """Another user who opens a lock file could hold everybody up."""
    before = os.umask(0)
    try:
        with Store.open(embedded(tmp_path / "home")) as store:
            store.create_table(define_table("d.t", columns=["k:int64"], order_by="k", policy="hot_cold"))
            store.tick()
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").rglob("*")}
    assert [modes[tmp_path / "home" / name] for name in ("state", "ssd")] == [0o700, 0o700]
    lock_files = {path: mode for path, mode in modes.items() if path.suffix in (".lock", ".owner")}
    assert lock_files
    assert set(lock_files.values()) == {0o600}, lock_files


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """A group that shares a store made its directories itself."""
    (tmp_path / "state").mkdir(mode=0o770)
    (tmp_path / "state").chmod(0o770)
    Store.open(embedded(tmp_path)).close()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o770


def test_no_holder_is_named_where_none_is_known(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "free.lock", os.O_RDWR | os.O_CREAT)
    try:
        assert locks.holder_of(descriptor) == "another process"
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert str(os.getpid()) in locks.holder_of(descriptor)
    finally:
        os.close(descriptor)
