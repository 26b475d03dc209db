"""Copies that others make for a restore: resumed, refused and streamed as those made here (I4, I7, P37)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectStore
from disks.stores.memory import MemoryStore
from disks.workers import object_copier
from disks.workers.runner import Run, Runner, threads
from oplog.errors import Damaged, Refused, Transient
from oplog.kinds import Inserted
from restore.rebuild.request import RebuildRequest
from restore.transfer import blob_copies, transfer
from restore.transfer.blob_copies import RemoteCopying, SourceChanged
from restore.transfer.transfer import restore_from

FILES = 10


@dataclass(frozen=True)
class Here:
    store: ObjectStore

    def open(self) -> ObjectStore:
        return self.store


def stops(after: int) -> Runner:
    """Runs some pieces, and then fails."""

    @contextmanager
    def hook(run: Run) -> Iterator[Run]:
        yield run._replace(items=run.items[:after])
        if len(run.items) > after:
            raise Transient("all executors are gone")

    return threads().hooked(hook)


class Copies(MemoryStore):
    """Counts the copies it makes, or refuses to make any."""

    def __init__(self, *, able: bool = True, keep_for: timedelta | None = None) -> None:
        super().__init__(keep_for=keep_for)
        self.able = able
        self.copied: list[str] = []

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        if not self.able:
            raise Refused("two different servers")
        super().copy(source_key, target_key, source=source)
        self.copied.append(target_key)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(blob_copies, "_BATCH_OBJECTS", 3)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def source(tmp_path: Path) -> ObjectDisk:
    disk = ObjectDisk("source", MemoryStore("source"), tmp_path / "source")
    with disk.transaction(Inserted()) as transaction:
        for number in range(FILES):
            transaction.create(f"store/aaa/t0/p{number}/data", f"bytes of {number}".encode())
        transaction.create("store/aaa/t0/table.json", b"{}")
        transaction.commit()
    return disk


def disk_of(store: MemoryStore, tmp_path: Path) -> ObjectDisk:
    return ObjectDisk("target", store, tmp_path / "target")


def restored(
    target: ObjectDisk, source: ObjectDisk, runner: Runner | None = None, seen: ObjectStore | None = None
) -> Any:
    """`seen`: the source as executors see it."""
    elsewhere = RemoteCopying(runner or threads(2), Here(target.store), Here(seen or source.store))
    return restore_from(target, source.store, RebuildRequest(apply=True), elsewhere=elsewhere)


def content(disk: ObjectDisk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


def test_a_restore_whose_executors_went_away_goes_on(source: ObjectDisk, tmp_path: Path) -> None:
    """P37: what they had copied is not copied again."""
    store = Copies()
    target = disk_of(store, tmp_path)
    with pytest.raises(Transient):
        restored(target, source, stops(2))
    assert len(store.copied) == 6
    assert list(target.walk()) == []
    result = restored(target, source)
    assert len(set(store.copied)) == len(store.copied) == FILES
    assert result.copy.done == FILES - 6
    assert content(target) == content(source)


@pytest.mark.parametrize("in_memory_bytes", [1 << 20, 4])
def test_two_servers_that_do_not_know_each_other(
    source: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory_bytes: int
) -> None:
    """I7: the bytes go through the executors, and are compared with their SHA-256. Nothing stays in their way."""
    monkeypatch.setattr(object_copier, "_IN_MEMORY_BYTES", in_memory_bytes)
    target = disk_of(Copies(able=False), tmp_path)
    result = restored(target, source)
    assert (result.copy.done, result.copy.inside_store) == (FILES, False)
    assert content(target) == content(source)
    assert list(tmp_path.glob("frostline-*")) == []


def test_a_task_that_died_when_done_is_fine_on_a_locked_bucket(source: ObjectDisk, tmp_path: Path) -> None:
    """Done again, its objects are there and cannot be written again."""

    @contextmanager
    def twice(run: Run) -> Iterator[Run]:
        threads().run(run.function, run.items, title=run.title, on_done=lambda index, result: None)
        yield run

    for able in (True, False):
        target = ObjectDisk("target", Copies(able=able, keep_for=timedelta(days=1)), tmp_path / str(able))
        restored(target, source, threads().hooked(twice))
        assert content(target) == content(source)


def test_altered_bytes_are_no_copy(source: ObjectDisk, tmp_path: Path) -> None:
    """I1."""
    key = source.stat("store/aaa/t0/p3/data").key
    assert key is not None
    data, info = source.store._objects[key]  # type: ignore[attr-defined]
    source.store._objects[key] = (bytes(len(data)), info)  # type: ignore[attr-defined]
    with pytest.raises(Damaged, match="p3/data"):
        restored(disk_of(Copies(able=False), tmp_path), source)


def test_copies_that_were_not_made_are_noticed(source: ObjectDisk, tmp_path: Path) -> None:
    """P39: the store says yes and does nothing."""

    class Says(Copies):
        def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
            if len(self.copied) != 4:
                super().copy(source_key, target_key, source=source)
            self.copied.append(target_key)

    with pytest.raises(Damaged, match="instead of"):
        restored(disk_of(Says(), tmp_path), source, threads())


def test_an_object_the_source_collects_meanwhile_is_replanned(
    source: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gone for an executor is no reason to give up: the source's log has moved on."""
    read: list[str] = []
    original = transfer.read_source

    def counted(*arguments: Any, **options: Any) -> Any:
        read.append("")
        return original(*arguments, **options)

    monkeypatch.setattr(transfer, "read_source", counted)
    monkeypatch.setattr(transfer, "_ATTEMPTS", 2)
    with pytest.raises(SourceChanged):
        restored(disk_of(Copies(able=False), tmp_path), source, seen=MemoryStore("source"))
    assert len(read) == 2
