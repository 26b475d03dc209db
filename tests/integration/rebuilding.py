"""Disks with a random past, in a directory and on an S3 server."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disks.config import ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from oplog.kinds import Dropped, Inserted, OtherKind
from oplog.replay import FileRow
from restore.rebuild.plan import table_digest
from tests.servers import Server, ministack

Opener = Callable[[str], ObjectDisk]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ministack() as running:
        yield running


@pytest.fixture(params=["directory", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same bucket as seen from machines with separate local state."""
    if request.param == "directory":
        (tmp_path / "bucket").mkdir()
        config = ObjectDiskConfig(url=f"file://{tmp_path}/bucket/prefix/", snapshot_every_commits=7)
    else:
        server: Server = request.getfixturevalue("server")
        config = server.disk(f"s3://{server.new_bucket()}/prefix/", snapshot_every_commits=7)
    disks: list[ObjectDisk] = []

    def open_on(machine: str) -> ObjectDisk:
        disk = open_disk("cold", config, tmp_path / machine)
        assert isinstance(disk, ObjectDisk)
        disks.append(disk)
        return disk

    yield open_on
    for disk in disks:
        disk.close()


@pytest.fixture
def local(tmp_path: Path) -> ObjectDisk:
    """A disk in a directory, for what does not depend on the store."""
    disk = open_disk("cold", ObjectDiskConfig(url=f"file://{tmp_path}/bucket/"), tmp_path / "home")
    assert isinstance(disk, ObjectDisk)
    return disk


def rows(disk: ObjectDisk) -> dict[str, FileRow]:
    return {row.path: row for row in disk.file_table.rows()}


def digest(disk: ObjectDisk) -> str:
    return table_digest(rows(disk))


def put(disk: ObjectDisk, *paths: str) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path in paths:
            transaction.create(path, f"content of {path}".encode())
        transaction.commit()


def remove(disk: ObjectDisk, *paths: str) -> None:
    with disk.transaction(Dropped()) as transaction:
        for path in paths:
            transaction.remove(path)
        transaction.commit()


def work(disk: ObjectDisk, dice: random.Random, commits: int) -> dict[int, str]:
    """Random commits of every operation; the digest of the table at each revision."""
    history = {0: table_digest({})}
    for number in range(commits):
        parts = sorted({path.rsplit("/", 1)[0] for path in rows(disk)})
        with disk.transaction(OtherKind("work")) as transaction:
            name = f"store/t{dice.randrange(3)}/p{number}"
            match dice.randrange(6) if parts else 0:
                case 3:
                    transaction.remove(dice.choice(parts))
                case 4:
                    transaction.rename(dice.choice(parts), name)
                case 5:
                    transaction.link(dice.choice(sorted(rows(disk))), f"{name}/linked.parquet")
                case _:
                    for index in range(dice.randrange(1, 4)):
                        transaction.create(f"{name}/data-{index}.parquet", dice.randbytes(dice.randrange(0, 300)))
                    transaction.create(f"{name}/part.json", b'{"number": %d}' % number)
            transaction.commit()
        history[disk.revision] = digest(disk)
    return history


def lose_local_state(disk: ObjectDisk) -> None:
    disk.close()
    shutil.rmtree(disk.state_path)


def objects(disk: ObjectDisk) -> dict[str, int]:
    return {info.key: info.size_bytes for info in disk.store.list()}
