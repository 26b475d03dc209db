"""Every kind of disk, opened as often as a test asks. Guards I2, I8, P37 to P40 and P61 by the tests that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from disks.base import Disk
from disks.clickhouse.disk import ClickHouseDisk
from disks.config import ObjectDiskConfig
from disks.local.disk import LocalDisk
from disks.memory import MemoryDisk
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from disks.stores.base import ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.open import open_store
from disks.stores.wrappers.named_log import NamedLogStore
from disks.wrappers.wrapped import WrappedDisk
from oplog.kinds import Inserted
from tests.documented import documented

Open = Callable[[], Disk]

KINDS = [
    "memory",
    "local",
    "documented",
    "object_memory",
    "object_directory",
    "object_documented",
    "object_s3",
    "object_lease",
    "object_log",
    "object_log_locked",
    "object_log_lease",
    "clickhouse_memory",
    "clickhouse_locked",
    "clickhouse_directory",
    "clickhouse_s3",
]
WRAPPED = ["memory", "local", "object_memory", "object_lease", "clickhouse_memory"]
"""Kinds that are also put into a wrapper: each class of disk, and both ways of an object disk to commit."""


@pytest.fixture(params=[*KINDS, *(f"wrapped_{kind}" for kind in WRAPPED)])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same disk once more, as another process would; all are closed at the end."""
    opened: list[Disk] = []
    one = MemoryDisk()
    memory, locked = MemoryStore("contract"), MemoryStore("locked", keep_for=timedelta(days=1))

    def again() -> Disk:
        disk = open_plain(request.param.removeprefix("wrapped_"))
        return WrappedDisk(disk) if request.param.startswith("wrapped_") else disk

    def open_plain(wanted: str) -> Disk:
        match wanted:
            case "memory":
                disk: Disk = one
            case "local":
                disk = LocalDisk("hot", tmp_path / "hot")
            case "documented":
                one_file = documented("disk").OneFileConfig(path=str(tmp_path / "one" / "files"))
                disk = open_disk("one", one_file, tmp_path / "state")
            case "object_documented":
                documented("store")
                config = ObjectDiskConfig(url=f"sqlite://{tmp_path}/objects.db")
                disk = open_disk("s3", config, tmp_path / "state")
            case "object_memory":
                disk = ObjectDisk("s3", memory, tmp_path / "state", snapshot_every_commits=3)
            case "object_directory":
                disk = ObjectDisk("s3", DirectoryStore(tmp_path / "bucket"), tmp_path / "state")
            case "object_log" | "object_log_locked":
                store = NamedLogStore(memory if wanted == "object_log" else locked, "replica-1")
                disk = ObjectDisk("s3", store, tmp_path / "state", snapshot_every_commits=3)
            case "object_log_lease":
                store = NamedLogStore(memory, "replica-1")
                disk = ObjectDisk("s3", store, tmp_path / "state", single_writer=True, lease_settle_seconds=0.0)
            case "object_lease":
                disk = ObjectDisk("s3", memory, tmp_path / "state", single_writer=True, lease_settle_seconds=0.0)
            case "clickhouse_memory":
                disk = ClickHouseDisk("s3", memory, tmp_path / "state", lease_settle_seconds=0.0)
            case "clickhouse_locked":
                disk = ClickHouseDisk("s3", locked, tmp_path / "state", lease_settle_seconds=0.0)
            case "clickhouse_directory":
                store: ObjectStore = DirectoryStore(tmp_path / "bucket")
                disk = ClickHouseDisk("s3", store, tmp_path / "state", lease_settle_seconds=0.0)
            case kind:
                url = f"s3://{request.getfixturevalue('bucket')}/prefix/"
                store = open_store(ObjectDiskConfig(url=url))
                if kind == "clickhouse_s3":
                    disk = ClickHouseDisk("s3", store, tmp_path / "state", lease_settle_seconds=0.0)
                else:
                    disk = ObjectDisk("s3", store, tmp_path / "state")
        opened.append(disk)
        return disk

    yield again
    for disk in opened:
        disk.close()


@pytest.fixture
def disk(open_again: Open) -> Disk:
    return open_again()


def put(disk: Disk, files: dict[str, bytes]) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path, data in files.items():
            transaction.create(path, data)
        transaction.commit()


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}
