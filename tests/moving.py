"""Stores for tests of moves: parts of random bytes on real disks, and proof of where every byte of them is."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

from disks.config import DiskConfig, LocalDiskConfig, ObjectDiskConfig
from disks.registry import open_disk
from oplog.kinds import Inserted, TableCreated
from tiering.catalog.catalog import Catalog
from tiering.catalog.context import Context
from tiering.catalog.reservation import Reservations
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.journal.journal import Journal
from tiering.policy.plan import Move, Reason
from tiering.table import part, schema
from tiering.table.part import PART_FILE, DataFile, Part
from tiering.table.schema import Column, TableDefinition

TABLE = TableDefinition(
    uuid="abc11111-0000-4000-8000-000000000001",
    database="d",
    name="t",
    columns=(Column(id=1, name="ts", type="timestamp[us, UTC]"),),
    order_by=("ts",),
    policy="p",
)


def configuration(home: Path, *, s3: DiskConfig | None = None, **ssd: object) -> Config:
    """Three volumes of one disk each: two directories and a bucket, in a directory unless `s3` says where."""
    return Config(
        state_path=str(home / "state"),
        disks={
            "ssd": LocalDiskConfig(path=str(home / "ssd"), **ssd),  # type: ignore[arg-type]
            "ssd2": LocalDiskConfig(path=str(home / "ssd2")),
            "s3": s3 or ObjectDiskConfig(url=(home / "bucket").as_uri() + "/"),
        },
        policies={
            "p": PolicyConfig(
                volumes=(
                    VolumeConfig(name="hot", disks=("ssd",)),
                    VolumeConfig(name="warm", disks=("ssd2",)),
                    VolumeConfig(name="cold", disks=("s3",)),
                )
            )
        },
    )


def open_context(config: Config, *, workers: int = 1) -> Context:
    disks = {name: open_disk(name, disk, config.state_directory) for name, disk in config.disks.items()}
    context = Context(
        config=config,
        disks=disks,
        catalog=Catalog(config, disks),
        journal=Journal(config.state_directory),
        reservations=Reservations(config, disks),
        workers=workers,
        actor="test",
    )
    context.catalog.refresh()
    return context


def close(context: Context) -> None:
    for disk in context.disks.values():
        disk.close()
    context.journal.close()


def create_table(context: Context) -> None:
    for disk in context.disks.values():
        with disk.transaction(TableCreated()) as transaction:
            transaction.create(f"{TABLE.directory}/table.json", schema.encode(TABLE))
            transaction.commit()


def put_part(context: Context, number: int, *, disk: str = "ssd", files: int = 2, size: int = 20_000) -> Part:
    """A part of random files; nothing in a move looks inside them."""
    contents = {f"data-{index:04}.parquet": os.urandom(size) for index in range(files)}
    made = Part(
        table=TABLE.uuid,
        name=f"all_{number}_{number}_0",
        rows=10,
        size_bytes=files * size,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        files=tuple(
            DataFile(name=name, rows=5, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in contents.items()
        ),
    )
    directory = TABLE.part_directory(made.name)
    with context.disk(disk).transaction(Inserted()) as transaction:
        for name, data in contents.items():
            transaction.create(f"{directory}/{name}", data)
        transaction.create(f"{directory}/{PART_FILE}", part.encode(made))
        transaction.commit()
    context.catalog.refresh()
    return made


def move(made: Part, target: str = "s3", source: str = "ssd", *, keep_source: bool = False) -> Move:
    return Move(
        table="d.t",
        table_uuid=TABLE.uuid,
        part=made.name,
        source=source,
        target=target,
        bytes=made.size_bytes,
        reason=Reason("manual", "a test"),
        keep_source=keep_source,
    )


def holders(context: Context, made: Part) -> list[str]:
    """The disks that hold the part, every byte of it compared with its digest."""
    found = []
    for name, disk in sorted(context.disks.items()):
        directory = TABLE.part_directory(made.name)
        names = disk.list(directory)
        if not names:
            continue
        assert names == sorted([PART_FILE, *(file.name for file in made.files)]), (name, names)
        for file in made.files:
            assert hashlib.sha256(disk.read(f"{directory}/{file.name}")).hexdigest() == file.sha256
        assert part.decode(disk.read(f"{directory}/{PART_FILE}"), path="") == made
        found.append(name)
    return found
