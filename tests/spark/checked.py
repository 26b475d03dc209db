"""A store that Spark checks, and damage to it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disks.config import DiskConfig
from disks.garbage import listing
from disks.garbage.collect import GcReport, collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from disks.stores.address import StoreAddress
from disks.workers.runner import Remote, Runner
from oplog.kinds import Dropped, Inserted, TableCreated
from restore.check import data as check_data
from restore.check.check import CheckOptions, CheckResult, check
from restore.transfer import blob_copies
from spark_tiering.running.spark_runner import SparkRunner
from tests.servers import Server
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import DataFile, Part
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TABLE = TableDefinition(
    uuid="abc0000000000000",
    database="db",
    name="events",
    columns=(Column(id=1, name="n", type="int64"),),
    order_by=("n",),
    policy="cold",
)
DATA = "data-0000.parquet"
PARTS = 12
LATER = datetime.now(UTC) + timedelta(days=3)
SECRET = "frostline-secret"


def config_of(server: Server, bucket: str, prefix: str = "p", **more: Any) -> DiskConfig:
    return server.disk(f"s3://{bucket}/{prefix}/", snapshot_every_commits=0, **more)


@pytest.fixture(params=["ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


class Site:
    """A disk in a bucket with parts, and Spark to look at it."""

    def __init__(self, server: Server, directory: Path, runner: Runner) -> None:
        self.server, self.runner = server, runner
        self.bucket = server.new_bucket()
        self.config = config_of(server, self.bucket)
        disk = open_disk("cold", self.config, directory)
        assert isinstance(disk, ObjectDisk)
        self.disk = disk
        with disk.transaction(TableCreated()) as transaction:
            transaction.create(f"{TABLE.directory}/table.json", schema.encode(TABLE))
            transaction.commit()
        for number in range(1, PARTS + 1):
            add_part(disk, number)

    @property
    def remote(self) -> Remote:
        return Remote(self.runner, StoreAddress.of(self.config))

    def check(self, *, here: bool = False, **options: Any) -> CheckResult:
        remote = {} if here else {"cold": self.remote}
        return check({"cold": self.disk}, CheckOptions(**options, remote=remote))

    def collect(self, *, here: bool = False, now: datetime | None = LATER, **options: Any) -> GcReport:
        rules = GcRules(**{"max_delete_fraction": 1.0, **options})
        return collect(self.disk, rules, now=now, remote=None if here else self.remote)

    def key(self, number: int) -> str:
        key = self.disk.stat(f"{TABLE.part_directory(f'all_{number}_{number}_0')}/{DATA}").key
        assert key is not None
        return key

    def drop(self, number: int) -> str:
        key = self.key(number)
        with self.disk.transaction(Dropped()) as transaction:
            transaction.remove(TABLE.part_directory(f"all_{number}_{number}_0"))
            transaction.commit()
        return key

    def lose(self, key: str) -> None:
        self.server.client().delete_object(Bucket=self.bucket, Key=f"p/{key}")

    def put(self, key: str, data: bytes) -> None:
        self.server.client().put_object(Bucket=self.bucket, Key=f"p/{key}", Body=data)

    def abandon(self) -> str:
        """A blob of a transaction that never committed."""
        key = self.disk.transaction(Inserted()).create("never/committed", b"abandoned").key
        assert key is not None
        return key

    def blobs(self) -> set[str]:
        return {info.key for info in self.disk.store.list("r")}


def add_part(disk: ObjectDisk, number: int, rows: int = 1_000) -> None:
    target = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(rows))}), target)
    data, name = target.getvalue(), f"all_{number}_{number}_0"
    file = DataFile(name=DATA, rows=rows, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    part = Part(table=TABLE.uuid, name=name, rows=rows, size_bytes=len(data), created=datetime.now(UTC), files=(file,))
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{TABLE.part_directory(name)}/{DATA}", data)
        transaction.create(f"{TABLE.part_directory(name)}/part.json", part_format.encode(part))
        transaction.commit()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of work so small that there are several."""
    monkeypatch.setitem(listing.cut_ranges.__kwdefaults__, "keys", 4)
    monkeypatch.setattr(check_data, "_BATCH_FILES", 4)
    monkeypatch.setattr(blob_copies, "_BATCH_OBJECTS", 4)


@pytest.fixture
def site(server: Server, tmp_path: Path, spark: SparkSession, small: None) -> Iterator[Site]:
    made = Site(server, tmp_path / "state", SparkRunner(spark))
    yield made
    made.disk.close()


def damage(site: Site) -> None:
    """An object altered, one torn, one gone, one gone that a retained revision names, foreign names, young garbage."""
    data = site.disk.store.get(site.key(2))
    site.put(site.key(2), bytes(len(data)))
    site.put(site.key(3), data[:-1])
    site.lose(site.key(4))
    site.lose(site.drop(5))
    site.put("notes.txt", b"mine")
    site.put("r-notes", b"mine")
    site.abandon()
