"""A disk is asked for its kinds through wrappers, and a wrapper's own methods come first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from disks.base import Disk
from disks.clickhouse.disk import ClickHouseDisk
from disks.contracts.bucket_disk import BucketDisk, ClickHouseLogDisk, LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.contracts.identified_disk import IdentifiedDisk
from disks.kinds import as_disk, identity_of, stamps_of, with_commits
from disks.local.disk import LocalDisk
from disks.memory import MemoryDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from disks.wrappers.broken import BrokenDisk
from disks.wrappers.wrapped import WrappedDisk
from oplog.errors import Refused, UsageError
from oplog.kinds import Inserted

KINDS = (LoggedDisk, ClickHouseLogDisk, BucketDisk, DirectoryDisk, IdentifiedDisk)
DISKS: dict[str, tuple[Callable[[Path], Disk], set[type[Disk]]]] = {
    "memory": (lambda path: MemoryDisk(), set()),
    "local": (lambda path: LocalDisk("hot", path / "hot"), {DirectoryDisk, IdentifiedDisk}),
    "object": (lambda path: ObjectDisk("s3", MemoryStore(), path), {LoggedDisk, BucketDisk, IdentifiedDisk}),
    "clickhouse": (lambda path: ClickHouseDisk("s3", MemoryStore(), path), {ClickHouseLogDisk, BucketDisk}),
    "broken": (lambda path: BrokenDisk(LocalDisk("hot", path), Refused("another disk")), set()),
}


@pytest.mark.parametrize("wrappers", [0, 1, 2])
@pytest.mark.parametrize("name", DISKS)
def test_a_wrapper_is_of_the_kinds_of_its_inner_disk(name: str, wrappers: int, tmp_path: Path) -> None:
    make, kinds = DISKS[name]
    disk = make(tmp_path)
    for _ in range(wrappers):
        disk = WrappedDisk(disk)
    assert {kind for kind in KINDS if as_disk(disk, kind) is not None} == kinds
    for kind in kinds:
        view = as_disk(disk, kind)
        assert view is as_disk(disk, kind)
        assert (view is disk) == (wrappers == 0)
        assert as_disk(view, kind) is view
    disk.close()


class ElsewhereDisk(WrappedDisk):
    """Gives its files other bytes and another directory."""

    def read(self, path: str, byte_range: object = None) -> bytes:
        return b"changed"

    def local_path(self, path: str) -> Path:
        return Path("/elsewhere") / path


def test_the_methods_of_a_wrapper_come_first(tmp_path: Path) -> None:
    disk = ElsewhereDisk(WrappedDisk(LocalDisk("hot", tmp_path / "hot")))
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a", b"1")
        transaction.commit()
    directory = as_disk(disk, DirectoryDisk)
    assert directory is not None
    assert directory.read("a") == b"changed"
    assert directory.local_path("a") == Path("/elsewhere/a")
    assert directory.stored_bytes() == 1
    assert identity_of(disk) is not None
    assert len(stamps_of(disk)) == 1


def test_a_wrapper_hands_on_what_is_set(tmp_path: Path) -> None:
    """The marks of other logs are set on the disk that commits, whoever asked for it."""
    inner = ObjectDisk("s3", MemoryStore(), tmp_path)
    logged = as_disk(WrappedDisk(inner), LoggedDisk)
    assert logged is not None
    marks = object()
    logged.marks = marks  # type: ignore[assignment]
    assert inner.marks is marks
    logged.close()


def test_a_disk_without_commits_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it has no operations log"):
        with_commits(WrappedDisk(MemoryDisk()))
    with pytest.raises(UsageError, match="records files and renames"):
        with_commits(WrappedDisk(ClickHouseDisk("s3", MemoryStore(), tmp_path)))
    assert (identity_of(MemoryDisk()), stamps_of(MemoryDisk())) == (None, ())
