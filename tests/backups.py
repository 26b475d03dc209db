"""A machine with a small store, and a repository for its backups: in directories, or on a real S3 server."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backup.create.request import CreateRequest, CreateResult
from backup.recover.request import Renaming, RestoreRequest, RestoreResult
from backup.repository import Repository
from backup.scope import scope_of
from backup.verify.verify import VerifyRequest, VerifyResult
from disks.config import LocalDiskConfig, ObjectDiskConfig
from tests.crash.invariants import Rows, rows_of
from tests.crash.site import TABLE, events, insert, move
from tests.servers import Server
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.engine.store import Store

__all__ = ["TABLE", "Machine", "Renaming", "events", "insert", "machine_on", "move"]


@dataclass
class Machine:
    """One machine's store below `root`, and the repository that its backups go to."""

    root: Path
    bucket: ObjectDiskConfig
    repository_url: str
    ssd: str = "ssd"
    extra: dict[str, object] = field(default_factory=dict)

    def config(self) -> Config:
        return Config(
            state_path=str(self.root / "state"),
            disks={self.ssd: LocalDiskConfig(path=str(self.root / self.ssd)), "s3": self.bucket},
            policies={
                "hot_cold": PolicyConfig(
                    volumes=(VolumeConfig(name="hot", disks=(self.ssd,)), VolumeConfig(name="cold", disks=("s3",)))
                )
            },
        )

    def write_config(self, file: Path) -> Path:
        """What the command line reads, with the repository in it."""
        file.write_text(
            f"state_path: {self.root / 'state'}\n"
            f"disks:\n  {self.ssd}: {{type: local, path: {self.root / self.ssd}}}\n"
            f"  s3: {{type: object_disk, url: '{self.bucket.url}'}}\n"
            "policies:\n  hot_cold:\n    volumes:\n"
            f"      - {{name: hot, disks: [{self.ssd}]}}\n      - {{name: cold, disks: [s3]}}\n"
            f"backup:\n  repository: {self.repository_url}\n"
        )
        return file

    def open(self) -> Store:
        return Store.open(self.config(), actor="test", workers=4)

    @contextmanager
    def repository(self) -> Iterator[Repository]:
        with Repository.open(self.repository_url, config=self.config()) as opened:
            yield opened

    def init(self) -> None:
        Repository.init(self.repository_url, config=self.config()).close()

    def create(self, name: str, **options: object) -> CreateResult:
        tables, partitions = options.pop("tables", None), options.pop("partitions", None)
        scope = scope_of(tables, partitions)  # type: ignore[arg-type]
        with self.open() as store, self.repository() as repository:
            return repository.create(store, CreateRequest(name=name, scope=scope, **options))  # type: ignore[arg-type]

    def verify(self, name: str | None = None, share: float = 0.0) -> list[VerifyResult]:
        with self.repository() as repository:
            return repository.verify(name, VerifyRequest(share=share))

    def restore(self, name: str, *renamings: str, **options: object) -> RestoreResult:
        tables, partitions = options.pop("tables", None), options.pop("partitions", None)
        request = RestoreRequest(
            name=name,
            scope=scope_of(tables, partitions),  # type: ignore[arg-type]
            renamings=tuple(map(Renaming.parse, renamings)),
            **options,  # type: ignore[arg-type]
        )
        with self.open() as store, self.repository() as repository:
            return repository.restore(store, request)

    def rows(self, table: str = TABLE) -> Rows:
        with self.open() as store:
            return rows_of(store, table)

    def digests(self, table: str = TABLE) -> dict[str, dict[str, str]]:
        """Part -> file -> SHA-256 of the bytes as they lie on their disk."""
        with self.open() as store:
            return {
                stored.part.name: {
                    file.name: hashlib.sha256(store.disk(stored.disk).read(stored.path(file.name))).hexdigest()
                    for file in stored.part.files
                }
                for stored in store.parts(table)
            }

    def lose_state(self) -> None:
        """All that the machine itself has."""
        shutil.rmtree(self.root)

    def lose_bucket(self) -> None:
        """What lay in the bucket; only for one in a directory."""
        shutil.rmtree(self.bucket.url.removeprefix("file://"))


def machine_on(
    base: Path, server: Server | None = None, *, name: str = "machine", like: Machine | None = None
) -> Machine:
    """A machine below `base`: bucket and repository beside it, or on the server; or those of the machine `like`."""
    if like is not None:
        return Machine(base / name, like.bucket, like.repository_url)
    if server is None:
        bucket = ObjectDiskConfig(url=(base / "bucket" / "store").as_uri() + "/")
        return Machine(base / name, bucket, (base / "repository").as_uri())
    place = server.new_bucket()
    bucket = server.disk(f"s3://{place}/store/")
    return Machine(base / name, bucket, f"s3://{place}/backups")


def filled(machine: Machine) -> Machine:
    """One table: January cold, February hot, and two parts of January."""
    with machine.open() as store:
        store.create_table(events())
        insert(store, 0)
        insert(store, 1000, months=(1,))
        move(store, "cold", "202601")
        insert(store, 2000)
    return machine


def with_ssd(machine: Machine, ssd: str) -> Machine:
    """The same machine with its SSD under another name."""
    return Machine(machine.root, machine.bucket, machine.repository_url, ssd=ssd)


def other_bucket(machine: Machine, base: Path) -> ObjectDiskConfig:
    """A fresh bucket of the same kind."""
    if machine.bucket.url.startswith("file:"):
        return ObjectDiskConfig(url=(base / "other" / "store").as_uri() + "/")
    return msgspec.structs.replace(machine.bucket, url=machine.bucket.url.replace("/store/", "/other/"))
