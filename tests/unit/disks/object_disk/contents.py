"""What an object disk holds, and how it gets there."""

from __future__ import annotations

import pytest

from disks.base import Disk
from disks.stores.memory import MemoryStore
from oplog.kinds import CommitKind, Inserted


def put(disk: Disk, files: dict[str, bytes], kind: CommitKind = Inserted()) -> int | None:  # noqa: B008 - frozen
    with disk.transaction(kind) as transaction:
        for path, data in files.items():
            transaction.create(path, data)
        return transaction.commit()


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("s3")
