"""A store whose commits are taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from oplog.errors import Refused
from restore.history.undo import preview, undo
from tests.crash.site import TABLE, events, rows
from tiering.catalog import tables
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.engine.store import Store
from tiering.table.schema import TableDefinition

JANUARY = "202601"


def volume(name: str, *disks: str) -> VolumeConfig:
    return VolumeConfig(name=name, disks=disks)


def config(root: Path, machine: str = "one") -> Config:
    """Two local disks and two buckets; another machine has disks of its own and the same buckets."""
    return Config(
        state_path=str(root / machine / "state"),
        disks={
            "ssd": LocalDiskConfig(path=str(root / machine / "ssd")),
            "s3": ObjectDiskConfig(url=(root / "bucket").as_uri() + "/", snapshot_every_commits=4),
            "far": ObjectDiskConfig(url=(root / "far").as_uri() + "/"),
        },
        policies={
            "hot_cold": PolicyConfig(volumes=(volume("hot", "ssd"), volume("cold", "s3"))),
            "cold": PolicyConfig(volumes=(volume("cold", "s3"),)),
            "all": PolicyConfig(volumes=(volume("hot", "ssd"), volume("cold", "s3"), volume("far", "far"))),
        },
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(config(tmp_path), actor="alice@here") as opened:
        yield opened


@pytest.fixture
def disk(store: Store) -> ObjectDisk:
    return store.object_disk("s3")


def create(store: Store, policy: str = "cold", number: int = 1, name: str = TABLE) -> TableDefinition:
    definition = msgspec.structs.replace(events(number, name=name), policy=policy)
    return store.create_table(definition)


def insert(store: Store, first: int, *, months: tuple[int, ...] = (1,), table: str = TABLE) -> list[str]:
    return list(store.table(table).insert([rows(first, months=months)]).parts)


def keys(store: Store, table: str = TABLE) -> list[int]:
    return sorted(store.table(table).scan(columns=["key"]).read_all()["key"].to_pylist())


def parts(store: Store, table: str = TABLE) -> dict[str, str]:
    """Part -> disk of everything that lies there, outdated copies too."""
    return {
        f"{stored.part.name}{'' if stored.state == 'active' else ' ' + stored.state}": stored.disk
        for stored in store.parts(table, include_outdated=True)
    }


def move(store: Store, to: str, *, keep: bool = False, table: str = TABLE) -> int | None:
    report = store.apply(store.plan_manual_move(table, partition=JANUARY, to_disk=to, keep_source=keep))
    assert not report.failed
    return store.object_disk("s3").revision


def drop_january(store: Store, table: str = TABLE) -> None:
    to_delete = [stored for stored in store.parts(table) if stored.name.partition == JANUARY]
    tables.drop_parts(store.context, to_delete, reason="test")


def take_back(store: Store, revision: int | None = None) -> int:
    """Undo the revision, or the newest one; the undo's own revision."""
    disk = store.object_disk("s3")
    _, done = undo(store.context, disk, disk.revision if revision is None else revision)
    assert done is not None
    assert done == disk.revision
    return done


def refused(store: Store, revision: int, *words: str) -> str:
    """Undo refuses; preview says the same, and neither changes anything."""
    disk = store.object_disk("s3")
    head, before = disk.revision, parts(store) if TABLE in {t.full_name for t in store.definitions()} else {}
    objections = preview(store.context, disk, revision).objections
    with pytest.raises(Refused) as error:
        undo(store.context, disk, revision)
    assert "\n" not in error.value.message, "a line end is shown as \\n"
    for word in words:
        assert word in error.value.message
        assert any(word in objection for objection in objections), objections
    assert disk.revision == head
    assert before == {} or parts(store) == before
    return error.value.hint
