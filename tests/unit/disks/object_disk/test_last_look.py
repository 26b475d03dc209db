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

import msgspec
import pytest

from disks.object_disk import last_look
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.last_look import LastLook
from disks.stores.memory import MemoryStore
from oplog.errors import NoSpace
from oplog.kinds import OtherKind

State = dict[str, str]


@pytest.fixture
def state() -> State:
    """What a file table at revision 7 says of itself."""
    return {"revision": "7"}


@pytest.fixture
def looked(tmp_path: Path, state: State) -> LastLook:
    """One that saw revision 7."""
    return again(LastLook(tmp_path), state)


def again(look: LastLook, state: State) -> LastLook:
    """A look that ends well."""
    state |= look.begin()
    look.end(7)
    assert look.age_seconds(state) < 60
    return look


def test_a_look_counts_for_tables_that_have_what_it_saw(looked: LastLook, tmp_path: Path, state: State) -> None:
    assert 0 <= looked.age_seconds(state) < 60
    assert LastLook(tmp_path).age_seconds(state | {"revision": "8"}) < 60
    assert looked.age_seconds(state | {"revision": "6"}) == math.inf
    assert looked.age_seconds({"revision": "7"}) == math.inf


def test_it_has_an_age_on_a_clock_that_goes_back(
    looked: LastLook, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, steady = time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    monkeypatch.setattr(time, "monotonic", lambda: steady + 70)
    assert 69 < looked.age_seconds(state) < 3600
    monkeypatch.setattr(time, "time", lambda: now + 100)
    assert looked.age_seconds(state) > 99


def test_it_ends_with_the_boot(looked: LastLook, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_look, "_boot", lambda: "another")
    assert looked.age_seconds(state) == math.inf


def test_it_ends_with_a_copy(looked: LastLook, tmp_path: Path, state: State) -> None:
    """Whether the copy keeps the times or not, takes the file's place or is written into it."""
    file, copy = tmp_path / "looked", tmp_path / "copy"
    shutil.copy2(file, copy)
    content = file.read_bytes()
    os.replace(copy, file)
    assert looked.age_seconds(state) == math.inf
    again(looked, state)
    os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))  # the time of change is now
    assert looked.age_seconds(state) == math.inf
    again(looked, state)
    file.write_bytes(content)
    assert looked.age_seconds(state) == math.inf


def test_an_older_one_does_not_count_in_a_file_of_its_number(tmp_path: Path, state: State) -> None:
    """As file systems give them again that were freed; nor where it was put back at the very time it was written."""
    file = tmp_path / "looked"
    looked = again(LastLook(tmp_path), state)
    older = file.read_bytes()
    again(looked, state)
    newest = msgspec.json.decode(file.read_bytes())
    forged = msgspec.json.encode(msgspec.json.decode(older) | {"inode": newest["inode"], "written": newest["written"]})
    file.write_bytes(forged)
    found = file.stat()
    assert found.st_ctime_ns == found.st_mtime_ns
    assert looked.age_seconds(state) == math.inf
    assert looked.age_seconds(state | {"look": msgspec.json.decode(older)["name"]}) < 60  # nothing else tells


def test_it_ends_when_a_commit_begins_meanwhile(tmp_path: Path, state: State) -> None:
    look, committing = LastLook(tmp_path), LastLook(tmp_path)
    state |= look.begin()
    committing.void()
    look.end(7)
    assert look.age_seconds(state) == math.inf
    state |= look.begin()
    other = LastLook(tmp_path)
    state |= other.begin()  # and the first one's end says nothing of the second one's look
    look.end(7)
    assert look.age_seconds(state) == math.inf
    other.end(7)
    assert look.age_seconds(state) < 60


def test_a_look_that_fails_does_not_count(tmp_path: Path, state: State) -> None:
    look = LastLook(tmp_path)
    state |= look.begin()
    look.abandon()
    look.end(7)
    assert look.age_seconds(state) == math.inf
    (tmp_path / "looked").write_text("{")
    assert look.age_seconds(state) == math.inf


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


def test_a_look_is_remembered_without_waiting_for_the_disk(disk: ObjectDisk) -> None:
    """And what is written afterwards is waited for again."""
    disk.refresh()
    with disk.file_table.read() as view:
        first = view.state()["look"]
    disk.refresh()
    with disk.file_table.read() as view:
        assert view.state()["look"] != first
    assert disk.file_table._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert not disk.refresh_when_due()


def test_an_unwritable_file_table_is_looked_at_each_time(disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> object:
        raise NoSpace("as the test says")

    with monkeypatch.context() as patch:
        patch.setattr("disks.file_table.table.transaction", full)
        disk.refresh()
    assert disk.refresh_when_due()
    assert not disk.refresh_when_due()
