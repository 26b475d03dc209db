"""A commit of very many files syncs the file system, where that tells of every failure (P14, P45)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disks import effects
from disks.host import file_system
from disks.local.commits import MANY_ARRIVALS
from disks.local.disk import LocalDisk
from disks.local.unsynced import OPEN_FILES
from oplog.errors import FrostlineError
from oplog.kinds import Inserted

EXT4, XFS, OVERLAY = 0xEF53, 0x58465342, 0x794C7630


@pytest.mark.parametrize(
    ("release", "kind", "tells"),
    [
        ("6.18.44-generic", EXT4, True),
        ("5.17.0", XFS, True),
        ("5.16.20", EXT4, False),
        ("4.19", EXT4, False),
        ("6.1.0", OVERLAY, False),
        ("unknown", EXT4, False),
    ],
)
def test_who_tells_of_every_failure(release: str, kind: int, tells: bool) -> None:
    assert file_system.tells_of_every_failure(release, kind) is tells


@contextmanager
def seen() -> Iterator[list[str]]:
    names: list[str] = []
    effects.set_hook(lambda when, name, arguments: names.append(name) if when == "after" else None)
    try:
        yield names
    finally:
        effects.set_hook(None)


def put(disk: LocalDisk, count: int) -> None:
    with disk.transaction(Inserted()) as transaction:
        for number in range(count):
            transaction.create(f"t/{number}/part.json", b"{}")
        transaction.commit()


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "tells_of_every_failure", lambda release, kind: True)


@pytest.mark.usefixtures("tells")
def test_many_files_are_durable_before_the_commit_names_after_it(tmp_path: Path) -> None:
    """Their names are durable after it."""
    disk = LocalDisk("d", tmp_path)
    many = max(MANY_ARRIVALS, OPEN_FILES) + 10
    with seen() as names:
        put(disk, many)
    first, second = (place for place, name in enumerate(names) if name == "fs.syncfs")
    renames = [place for place, name in enumerate(names) if name == "fs.rename"]
    writes = [place for place, name in enumerate(names) if name == "fs.write"]
    assert writes[many - 1] < first < renames[0]
    assert renames[many] < second < renames[-1]
    assert names.count("fs.fsync") < 5
    assert len([*disk.walk("t")]) == many


@pytest.mark.usefixtures("tells")
def test_few_files_do_not_wait_for_what_others_write(tmp_path: Path) -> None:
    with seen() as names:
        put(LocalDisk("d", tmp_path), 3)
    assert "fs.syncfs" not in names


def test_elsewhere_each_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "tells_of_every_failure", lambda release, kind: False)
    with seen() as names:
        put(LocalDisk("d", tmp_path), MANY_ARRIVALS + OPEN_FILES)
    assert "fs.syncfs" not in names


@pytest.mark.usefixtures("tells")
def test_a_failure_ends_the_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    disk = LocalDisk("d", tmp_path)
    monkeypatch.setattr(file_system, "syncfs", failing)
    with disk.transaction(Inserted()) as transaction:
        for number in range(OPEN_FILES + 1):
            transaction.create(f"t/{number}/part.json", b"{}")
        for _ in range(2):
            with pytest.raises((OSError, FrostlineError)):
                transaction.commit()
    monkeypatch.undo()
    assert [*disk.walk("t")] == []
