"""The sizes that a local disk keeps: those of its files, whatever becomes of what is kept, by what has changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from disks.base import Fingerprint
from disks.local.disk import LocalDisk
from disks.local.sizes import KEPT_FROM, KeptSizes
from disks.local.tree import LocalTree
from oplog.kinds import Dropped
from tests.unit.disks.local.putting import put


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    disk = LocalDisk("hot", tmp_path / "hot", max_size_bytes=1 << 20)
    put(disk, "t/table.json", "u/table.json")
    put(disk, *(f"t/{number}/part.json" for number in range(KEPT_FROM)))
    return disk


def walked(disk: LocalDisk) -> int:
    return sum(info.size_bytes for info in disk.walk())


def scanned(disk: LocalDisk) -> set[str]:
    """The directories that the disk looks into to tell its sizes."""
    asked: set[str] = set()
    scan = LocalTree.scan

    def noted(tree: LocalTree, directory: str) -> object:
        asked.add(directory)
        return scan(tree, directory)

    with mock.patch.object(LocalTree, "scan", noted):
        assert disk.stored_bytes() == disk.usage().used_bytes
    assert disk.stored_bytes() == walked(disk)
    return asked


def test_only_what_commits_touched_is_looked_at(disk: LocalDisk) -> None:
    assert "t/3" in scanned(disk)
    assert scanned(disk) == {"", "u"}
    put(disk, "t/new/part.json", "t/3/more")
    assert scanned(disk) <= {"", "u", "t/new", "t/3"}
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("t/4")
        transaction.commit()
    assert scanned(disk) <= {"", "u", "t/4"}


def test_a_hand_among_the_parts_is_seen(disk: LocalDisk) -> None:
    disk.stored_bytes()
    (disk.root / "t/hand").mkdir()
    (disk.root / "t/hand/part.json").write_bytes(b"12345")
    assert "t/3" in scanned(disk)


def test_a_table_that_is_gone_is_kept_no_longer(disk: LocalDisk) -> None:
    disk.stored_bytes()
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("t")
        transaction.commit()
    put(disk, *(f"u/{number}/part.json" for number in range(KEPT_FROM)))
    scanned(disk)
    with closing(sqlite3.connect(disk.root / ".frostline/sizes.db")) as kept:
        assert kept.execute("SELECT path FROM directories").fetchall() == [("u",)]
        assert kept.execute("SELECT count(*) FROM sizes").fetchone() == (KEPT_FROM + 1,)


def test_what_is_no_directory_of_parts_is_not_kept(disk: LocalDisk) -> None:
    put(disk, "t/5/deep/file")
    assert "t/3" in scanned(disk)
    assert "t/3" in scanned(disk)


def _torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def _overwritten(file: Path) -> None:
    file.write_bytes(b"x" * 20_000)


def _of_another_layout(file: Path) -> None:
    with closing(sqlite3.connect(file)) as kept:
        kept.execute("PRAGMA user_version = 77")


def _flipped(file: Path) -> None:
    with closing(sqlite3.connect(file)) as kept:
        kept.execute("UPDATE directories SET bytes = bytes + 1")
        kept.commit()


def _a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("harm", [Path.unlink, _torn, _overwritten, _of_another_layout, _flipped, _a_directory])
def test_losing_it_costs_a_look(disk: LocalDisk, harm: Callable[[Path], None]) -> None:
    before = disk.stored_bytes()
    harm(disk.root / ".frostline/sizes.db")
    assert disk.stored_bytes() == before == walked(disk)
    put(disk, "t/new/part.json")
    assert disk.stored_bytes() == walked(disk)


def test_a_disk_that_is_only_read_keeps_nothing(disk: LocalDisk) -> None:
    only_read = LocalDisk("hot", disk.root, read_only=True)
    assert only_read.stored_bytes() == walked(disk)
    assert not (disk.root / ".frostline/sizes.db").exists()


def test_what_another_process_kept_meanwhile_is_not_counted_on(disk: LocalDisk) -> None:
    """Between the question for the state and the commit of the sizes another one notes a commit."""
    disk.stored_bytes()
    put(disk, "t/new/part.json")
    between = disk.changed_between

    def late(directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        names = between(directory, before, after)
        assert LocalDisk("hot", disk.root).stored_bytes() == walked(disk)
        return names

    disk._sizes = KeptSizes(disk.root / ".frostline/sizes.db", disk.state_of, late)
    assert disk.stored_bytes() == walked(disk)
