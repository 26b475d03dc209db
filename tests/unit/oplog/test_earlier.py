"""Entries that bring the texts of those before them: fewer requests, and no other answer (L3, I6, P39)."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path

import msgspec
import pytest
import zstandard

from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.metered import MeteredStore
from oplog import earlier, entry
from oplog.entry import GENESIS_DIGEST, Commit
from oplog.errors import Damaged
from oplog.kinds import Inserted
from oplog.log import OperationsLog
from oplog.revision import commit_key


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("s3")


def put(disk: ObjectDisk, number: int) -> None:
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"store/abc/{number:04}/part.json", b"{}" * 20)
        transaction.commit()


def filled(store: MemoryStore, path: Path, commits: int) -> ObjectDisk:
    disk = ObjectDisk("s3", store, path, snapshot_every_commits=0)
    for number in range(commits):
        put(disk, number)
    return disk


def replace(store: MemoryStore, key: str, data: bytes) -> None:
    store.put(key, data, sha256=hashlib.sha256(data).digest())


def commit_at(revision: int, previous: str) -> Commit:
    return Commit(revision=revision, previous=previous, writer="w", time=entry.now(), kind=Inserted())


def catch_up(store: MemoryStore, late: ObjectDisk) -> int:
    """How many GETs it takes."""
    metered = late.store
    assert isinstance(metered, MeteredStore)
    before = metered.counts()["GET"]
    late.refresh()
    return metered.counts()["GET"] - before


def test_whoever_is_far_behind_reads_one_object_for_64_commits(store: MemoryStore, tmp_path: Path) -> None:
    late = ObjectDisk("s3", MeteredStore(store), tmp_path / "late")
    writer = filled(store, tmp_path / "writer", 5)
    late.refresh()
    for number in range(5, 200):
        put(writer, number)
    assert catch_up(store, late) == 3 + 200 % 64
    assert late.file_table.head() == writer.file_table.head()
    assert sorted(late.list()) == sorted(writer.list())
    read = [store.get(commit_key(revision)) for revision in (64, 128, 192)]
    assert all(entry.decode(data, name="x").earlier for data in read)


def test_several_writers_bring_the_entries_of_all(store: MemoryStore, tmp_path: Path) -> None:
    a, b = (ObjectDisk("s3", store, tmp_path / name) for name in "ab")
    for number in range(140):
        put(a if number % 3 else b, number)
    log = OperationsLog(store)
    assert all(len(earlier.unpack(log.read(revision).commit, name="x")) == 63 for revision in (64, 128))


def test_a_machine_that_has_not_read_them_brings_none(store: MemoryStore, tmp_path: Path) -> None:
    filled(store, tmp_path / "a", 40).write_snapshot()
    fresh = ObjectDisk("s3", store, tmp_path / "b")
    for number in range(40, 64):
        put(fresh, number)
    assert not OperationsLog(store).read(64).commit.earlier
    late = ObjectDisk("s3", MeteredStore(store), tmp_path / "late")
    late.refresh()
    assert sorted(late.list()) == sorted(fresh.list())


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"none of zstd",
        zstandard.compress(b"no document\n{}"),
        zstandard.compress(b"0" * (3 * earlier.MOST_TEXT_BYTES)),
        zstandard.compress(b"\n" * 200_000),
    ],
    ids=["nothing", "torn", "no entries", "too much", "too many"],
)
def test_texts_that_do_not_fit_cost_requests_only(store: MemoryStore, packed: bytes) -> None:
    log, digest = OperationsLog(store), GENESIS_DIGEST
    for revision in range(1, 71):
        commit = commit_at(revision, digest)
        digest = log.append(msgspec.structs.replace(commit, earlier=packed) if earlier.brings(revision) else commit)
    assert [one.commit.revision for one in log.entries(by_copy=True)] == list(range(1, 71))


def test_texts_of_another_log_are_not_believed(store: MemoryStore, tmp_path: Path) -> None:
    """Whole and consistent, and not what the entry was built on."""
    texts, digest = [], GENESIS_DIGEST
    for revision in range(1, 64):
        texts.append(entry.encode(commit_at(revision, digest)))
        digest = entry.digest(texts[-1])
    forged = earlier.pack(texts)
    log, digest = OperationsLog(store), GENESIS_DIGEST
    for revision in range(1, 65):
        commit = commit_at(revision, digest)
        digest = log.append(msgspec.structs.replace(commit, earlier=forged) if earlier.brings(revision) else commit)
    assert not earlier.unpack(log.read(64).commit, name="x")
    assert [one.digest for one in log.entries(by_copy=True)] == [one.digest for one in log.entries()]


def test_entries_are_given_up_to_the_one_that_is_damaged(store: MemoryStore, tmp_path: Path) -> None:
    """Also where it is the one that would have brought them."""
    filled(store, tmp_path / "a", 70)
    replace(store, commit_key(64), b"torn")
    found = OperationsLog(store).entries(by_copy=True)
    assert [one.commit.revision for one in islice(found, 63)] == list(range(1, 64))
    with pytest.raises(Damaged, match=commit_key(64)):
        next(found)


def test_a_missing_entry_is_missed_though_a_later_one_brings_it(store: MemoryStore, tmp_path: Path) -> None:
    late = ObjectDisk("s3", store, tmp_path / "late")
    filled(store, tmp_path / "a", 70)
    store.delete([commit_key(30)])
    with pytest.raises(Damaged, match=commit_key(30)):
        late.refresh()


def test_large_entries_are_not_brought(store: MemoryStore) -> None:
    assert earlier.pack([b"x" * earlier.MOST_TEXT_BYTES]) != b""
    assert earlier.pack([b"x" * earlier.MOST_TEXT_BYTES, b"y"]) == b""


def test_a_reader_that_does_not_know_the_field_passes_over_it(store: MemoryStore, tmp_path: Path) -> None:
    class Older(msgspec.Struct):
        revision: int
        previous: str

    filled(store, tmp_path / "a", 64)
    data = store.get(commit_key(64))
    assert msgspec.json.decode(data, type=Older).revision == 64
    assert entry.encode(entry.decode(data, name="x")) == data
