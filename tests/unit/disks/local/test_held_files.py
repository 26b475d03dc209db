"""Files that other processes are going to read stay as long as was asked for (I1, I14), and not a moment longer."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.local.disk import LocalDisk
from oplog.errors import NotFound
from oplog.kinds import Inserted, Merged

SOON = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    disk = LocalDisk("ssd", tmp_path / "ssd")
    with disk.transaction(Inserted()) as transaction:
        transaction.create("store/a/data-0000.parquet", b"bytes")
        transaction.create("store/b/data-0000.parquet", b"other bytes")
        transaction.commit()
    return disk


def remove(disk: LocalDisk, path: str) -> None:
    with disk.transaction(Merged()) as transaction:
        transaction.remove(path)
        transaction.commit()


def test_what_is_held_stays_readable_when_it_is_removed(disk: LocalDisk) -> None:
    paths = ["store/b/data-0000.parquet", "store/a/data-0000.parquet"]
    held = disk.hold(paths, until=datetime.now(UTC) + SOON, process=os.getpid())
    remove(disk, "store/a")
    assert disk.recover() == []
    assert [file.read_bytes() for file in held] == [b"other bytes", b"bytes"]
    assert not disk.exists("store/a")
    assert [info.path for info in disk.walk()] == ["store/b/data-0000.parquet"]


def test_it_goes_when_its_time_is_over(disk: LocalDisk) -> None:
    (file,) = disk.hold(["store/a/data-0000.parquet"], until=datetime.now(UTC), process=os.getpid())
    disk.recover()
    assert not file.exists()
    assert disk.read("store/a/data-0000.parquet") == b"bytes"


def test_it_goes_with_the_process_that_it_was_for(disk: LocalDisk) -> None:
    other = subprocess.Popen(["sleep", "60"])
    (file,) = disk.hold(["store/a/data-0000.parquet"], until=datetime.now(UTC) + SOON, process=other.pid)
    disk.recover()
    assert file.exists()
    other.kill()
    other.wait()
    disk.hold(["store/b/data-0000.parquet"], until=datetime.now(UTC) + SOON, process=os.getpid())
    assert not file.exists()


def test_what_another_container_holds_stays_for_a_day(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen(["sleep", "60"])
    (file,) = disk.hold(["store/a/data-0000.parquet"], until=datetime.now(UTC) + 9 * DAY, process=other.pid)
    other.kill()
    other.wait()
    monkeypatch.setattr("disks.local.held_files.sight", lambda: "others")
    disk.recover()
    assert file.exists(), "whether its process lives is not to be seen from here"
    yesterday = (datetime.now(UTC) - DAY - SOON).timestamp()
    os.utime(file.parent, (yesterday, yesterday))
    disk.recover()
    assert not file.exists()


def test_what_is_gone_cannot_be_held(disk: LocalDisk) -> None:
    remove(disk, "store/a")
    with pytest.raises(NotFound, match="is gone"):
        disk.hold(["store/a/data-0000.parquet"], until=datetime.now(UTC) + SOON, process=os.getpid())
