"""No disk begins in the prefix of another one, whoever configured that. P63"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import oplog.revision
from disks.base import Disk
from disks.config import ObjectDiskConfig
from disks.registry import open_disk
from oplog.errors import Refused
from oplog.kinds import TableCreated

PREFIXES = sorted(
    {value for name, value in vars(oplog.revision).items() if name.endswith("_PREFIX") and value.endswith("/")}
)
"""What a disk keeps its own objects below."""


def disk_at(
    tmp_path: Path, place: str, machine: str = "a", *, log: str | None = None, log_format: Literal[1, 2] = 2
) -> Disk:
    config = ObjectDiskConfig(url=f"file://{tmp_path}/bucket/{place}", log=log, log_format=log_format)
    return open_disk("s3", config, tmp_path / machine)


def write(disk: Disk, path: str = "store/a.txt") -> None:
    with disk.transaction(TableCreated(), reason="test") as transaction:
        transaction.create(path, b"some bytes")
        transaction.commit()


def files_in(tmp_path: Path) -> set[Path]:
    return {path for path in (tmp_path / "bucket").rglob("*") if path.is_file()}


@pytest.mark.parametrize("below", [*PREFIXES, "others/", "others/deeper/"])
def test_a_disk_within_a_disk_is_refused(tmp_path: Path, below: str) -> None:
    """I16: whatever the outer one keeps there, it stays as it was."""
    outer = disk_at(tmp_path, "store/")
    write(outer)
    before = files_in(tmp_path)
    inner = disk_at(tmp_path, f"store/{below}", "b")
    with pytest.raises(Refused, match="is within a disk"):
        write(inner)
    assert files_in(tmp_path) == before
    write(outer, "store/b.txt")


@pytest.mark.parametrize(("log", "log_format"), [("x", 2), (None, 1)], ids=["one-log-of-several", "log-of-clickhouse"])
def test_other_logs_are_refused_as_well(tmp_path: Path, log: str | None, log_format: Literal[1, 2]) -> None:
    """I16"""
    write(disk_at(tmp_path, "store/"))
    before = files_in(tmp_path)
    with pytest.raises(Refused, match="is within a disk"):
        write(disk_at(tmp_path, "store/operations/", "b", log=log, log_format=log_format))
    assert files_in(tmp_path) == before


def test_one_that_has_begun_goes_on(tmp_path: Path) -> None:
    """A disk of an older version, around which another one lies."""
    write(disk_at(tmp_path, "store/inner/"))
    write(disk_at(tmp_path, "store/", "b"))
    write(disk_at(tmp_path, "store/inner/", "c"), "store/b.txt")
    assert disk_at(tmp_path, "store/inner/", "d").read("store/b.txt") == b"some bytes"


def test_other_machines_and_neighbours_are_not_refused(tmp_path: Path) -> None:
    write(disk_at(tmp_path, "store/"))
    write(disk_at(tmp_path, "store/", "b"), "store/b.txt")
    write(disk_at(tmp_path, "store2/", "c"))
    write(disk_at(tmp_path, "sto/", "d"))
