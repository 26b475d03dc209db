"""disks.workers.object_copier: the bytes of a file under a key that the caller gives (I15)."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.workers import object_copier
from disks.workers.object_copier import ObjectCopier, ObjectCopy, SourceDamaged
from oplog.errors import AlreadyExists, NotFound

DATA = b"0123456789"
DIGEST = hashlib.sha256(DATA).hexdigest()


def store_with(**objects: bytes) -> MemoryStore:
    store = MemoryStore("source")
    for key, data in objects.items():
        store.put(key, data, sha256=hashlib.sha256(data).digest())
    return store


@pytest.mark.parametrize("in_memory_bytes", [3, 100])
@pytest.mark.parametrize("inside_store", [None, False])
def test_the_key_is_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory_bytes: int, inside_store: bool | None
) -> None:
    monkeypatch.setattr(object_copier, "_IN_MEMORY_BYTES", in_memory_bytes)
    target = MemoryStore("target")
    copier = ObjectCopier(target, store_with(a=DATA), tmp_path, inside_store=inside_store)
    assert copier.copy(ObjectCopy((("a", 10),), "blobs/1", DIGEST, {"path": "a"})) == DIGEST
    assert target.get("blobs/1") == DATA
    assert copier.inside_store is (inside_store is None)
    assert target.head("blobs/1").metadata == ({} if copier.inside_store else {"path": "a", "sha256": DIGEST})
    assert list(tmp_path.iterdir()) == []


def test_several_objects_become_one(tmp_path: Path) -> None:
    target = MemoryStore("target")
    copier = ObjectCopier(target, store_with(a=DATA[:4], b=DATA[4:]), tmp_path)
    assert copier.copy(ObjectCopy((("a", 4), ("b", 6)), "blobs/1")) == DIGEST
    assert target.get("blobs/1") == DATA
    assert target.head("blobs/1").metadata == {}


def test_stores_that_are_not_one(tmp_path: Path) -> None:
    """What the store refuses comes through here, and it is not asked again."""
    source = DirectoryStore(tmp_path / "bucket")
    source.put("a", DATA, sha256=hashlib.sha256(DATA).digest())
    copier = ObjectCopier(MemoryStore("target"), source, tmp_path / "scratch")
    assert copier.copy(ObjectCopy((("a", 10),), "blobs/1", DIGEST)) == DIGEST
    assert copier.inside_store is False


@pytest.mark.parametrize("in_memory_bytes", [3, 100])
def test_what_is_wrong_with_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory_bytes: int) -> None:
    monkeypatch.setattr(object_copier, "_IN_MEMORY_BYTES", in_memory_bytes)
    target = MemoryStore("target")
    copier = ObjectCopier(target, store_with(a=b"012345678x"), tmp_path, inside_store=False)
    with pytest.raises(SourceDamaged, match="instead of"):
        copier.copy(ObjectCopy((("a", 10),), "blobs/1", DIGEST))
    with pytest.raises(NotFound):
        copier.copy(ObjectCopy((("b", 10),), "blobs/1", DIGEST))
    assert list(target.list()) == []


def test_a_key_that_is_taken(tmp_path: Path) -> None:
    """By the same bytes it is the copy of an earlier try; what they are only their metadata tells."""
    target = MemoryStore("target", keep_for=timedelta(days=1))
    copier = ObjectCopier(target, store_with(a=DATA, b=DATA[::-1]), tmp_path, inside_store=False)
    wanted = ObjectCopy((("a", 10),), "blobs/1", DIGEST, {})
    assert copier.copy(wanted) == copier.copy(wanted) == DIGEST
    with pytest.raises(AlreadyExists):
        copier.copy(ObjectCopy((("b", 10),), "blobs/1", metadata={}))
    with pytest.raises(AlreadyExists):
        copier.copy(ObjectCopy((("a", 10),), "blobs/1", DIGEST))
