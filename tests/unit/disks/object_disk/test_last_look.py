"""When a look at a bucket counts, and when it does not any more."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from disks.object_disk import last_look
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.last_look import LastLook
from disks.stores.memory import MemoryStore
from oplog.kinds import OtherKind


@pytest.fixture
def looked(tmp_path: Path) -> LastLook:
    """One that saw revision 7."""
    look = LastLook(tmp_path)
    look.begin()
    look.end(7)
    return look


def test_a_look_counts_for_tables_that_have_what_it_saw(looked: LastLook, tmp_path: Path) -> None:
    assert 0 <= looked.age_seconds(7) < 60
    assert LastLook(tmp_path).age_seconds(8) < 60
    assert looked.age_seconds(6) == math.inf


def test_it_has_an_age_on_a_clock_that_goes_back(looked: LastLook, monkeypatch: pytest.MonkeyPatch) -> None:
    now, steady = time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    monkeypatch.setattr(time, "monotonic", lambda: steady + 70)
    assert 69 < looked.age_seconds(7) < 3600
    monkeypatch.setattr(time, "time", lambda: now + 100)
    assert looked.age_seconds(7) > 99


def test_it_ends_with_the_boot(looked: LastLook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_look, "_boot", lambda: "another")
    assert looked.age_seconds(7) == math.inf


def test_it_ends_with_a_copy(looked: LastLook, tmp_path: Path) -> None:
    """Whether the copy keeps the times or not, takes the file's place or is written into it."""
    file, copy = tmp_path / "looked", tmp_path / "copy"
    shutil.copy2(file, copy)
    content = file.read_bytes()
    os.replace(copy, file)
    assert looked.age_seconds(7) == math.inf
    looked.begin()
    looked.end(7)
    assert looked.age_seconds(7) < 60
    os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))  # the time of change is now
    assert looked.age_seconds(7) == math.inf
    looked.begin()
    looked.end(7)
    file.write_bytes(content)
    assert looked.age_seconds(7) == math.inf


def test_it_ends_when_a_commit_begins_meanwhile(tmp_path: Path) -> None:
    look, committing = LastLook(tmp_path), LastLook(tmp_path)
    look.begin()
    committing.void()
    look.end(7)
    assert look.age_seconds(7) == math.inf
    look.begin()
    other = LastLook(tmp_path)
    other.begin()  # and the first one's end says nothing of the second one's look
    look.end(7)
    assert look.age_seconds(7) == math.inf
    other.end(8)
    assert look.age_seconds(8) < 60


def test_a_look_that_fails_does_not_count(tmp_path: Path) -> None:
    look = LastLook(tmp_path)
    look.begin()
    look.abandon()
    look.end(7)
    assert look.age_seconds(7) == math.inf
    (tmp_path / "looked").write_text("{")
    assert look.age_seconds(7) == math.inf


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ObjectDisk]:
    with closing(ObjectDisk("s3", MemoryStore("m"), tmp_path, look_seconds=1000)) as disk:
        with disk.transaction(OtherKind("test")) as transaction:
            transaction.create("a", b"a")
            transaction.commit()
        yield disk


def test_a_look_while_another_process_commits_does_not_count(disk: ObjectDisk, tmp_path: Path) -> None:
    """It may put its entry after the look, and die before it takes it into the table. Nobody waits for it."""
    with closing(sqlite3.connect(tmp_path / "files.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        disk.refresh()
        other.execute("ROLLBACK")
    assert disk.refresh_when_due()
    assert not disk.refresh_when_due()


def test_a_table_that_was_lost_is_read_anew(disk: ObjectDisk, tmp_path: Path) -> None:
    disk.refresh()
    disk.cache.close()
    for file in tmp_path.glob("files.db*"):
        file.unlink()
    assert disk.refresh_when_due()
    assert disk.list() == ["a"]
