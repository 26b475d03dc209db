"""A store of two disks that is checked, with ways to damage it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disks.base import Disk
from disks.local.disk import LocalDisk
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from oplog.kinds import Inserted, TableCreated
from restore.check.check import CheckOptions, CheckResult, check
from restore.check.findings import Problem
from tests.faulty_store import FaultyStore
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import DataFile, Part
from tiering.table.schema import Column, TableDefinition

TABLE = TableDefinition(
    uuid="abc0000000000000",
    database="db",
    name="events",
    columns=(Column(id=1, name="n", type="int64"),),
    order_by=("n",),
    policy="hot_cold",
)
POLICIES = {"hot_cold": ["ssd", "cold"]}
DATA = "data-0000.parquet"


def parquet(rows: int) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(rows))}), target)
    return target.getvalue()


def add_part(disk: Disk, name: str, *, rows: int = 10, edit: Callable[[Part], Part] | None = None) -> str:
    """A real part in one transaction; its directory."""
    data = parquet(rows)
    file = DataFile(name=DATA, rows=rows, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    part = Part(table=TABLE.uuid, name=name, rows=rows, size_bytes=len(data), created=datetime.now(UTC), files=(file,))
    directory = TABLE.part_directory(name)
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{directory}/{DATA}", data)
        transaction.create(f"{directory}/part.json", part_format.encode(edit(part) if edit else part))
        transaction.commit()
    return directory


def define(disk: Disk, definition: TableDefinition = TABLE) -> None:
    with disk.transaction(TableCreated()) as transaction:
        if disk.exists(f"{definition.directory}/table.json"):
            transaction.remove(f"{definition.directory}/table.json")
        transaction.create(f"{definition.directory}/table.json", schema.encode(definition))
        transaction.commit()


class Site:
    """An SSD and a bucket with two parts each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bucket = MemoryStore()
        self.faults = FaultyStore(self.bucket)
        self.ssd = LocalDisk("ssd", root / "ssd")
        self.cold = ObjectDisk("cold", self.faults, root / "state", snapshot_every_commits=0)
        for disk in (self.ssd, self.cold):
            define(disk)
        add_part(self.ssd, "all_3_3_0")
        add_part(self.ssd, "all_4_4_0")
        add_part(self.cold, "all_1_1_0")
        add_part(self.cold, "all_2_2_0")

    @property
    def disks(self) -> dict[str, Disk]:
        return {"ssd": self.ssd, "cold": self.cold}

    def check(self, **options: object) -> CheckResult:
        moving = options.pop("moving", ())
        return check(self.disks, CheckOptions(**options), policies=POLICIES, moving=moving)  # type: ignore[arg-type]

    def only(self, **options: object) -> Problem:
        """The one problem of the store."""
        result = self.check(**options)
        assert not result.ok
        assert len(result.problems) == 1, result.problems
        return result.problems[0]

    def blob(self, part: str, name: str = DATA) -> str:
        key = self.cold.stat(f"{TABLE.part_directory(part)}/{name}").key
        assert key is not None
        return key

    def spoil(self, key: str, change: Callable[[bytes], bytes]) -> None:
        data, info = self.bucket._objects[key]
        changed = change(data)
        self.bucket._objects[key] = (changed, ObjectInfo(key, len(changed), info.modified))

    def file(self, part: str, name: str = DATA) -> Path:
        return self.root / "ssd" / TABLE.part_directory(part) / name


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
