"""Commits to a local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from disks.local.disk import LocalDisk
from oplog.kinds import Inserted


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    disk = LocalDisk("hot", tmp_path)
    put(disk, "t/table.json", "u/table.json")
    return disk


def put(disk: LocalDisk, *files: str) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path in files:
            transaction.create(path, b"1")
        transaction.commit()
