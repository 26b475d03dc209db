"""The object disk: its cache is only a cache, and writers on several machines lose nothing. Guards I2, I6, I7, I15, P38
to P40, P44, P45."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from disks.host.locks import OwnedDirectory
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.entry import Commit, Create, now
from oplog.errors import (
    Damaged,
    DiskUnreachable,
    FrostlineError,
    NotFound,
    Refused,
)
from oplog.kinds import Inserted, Moved
from oplog.revision import commit_key, snapshot_key
from tests.damage import unchecked_documents
from tests.unit.disks.object_disk.contents import content, put
from tests.unit.disks.object_disk.contents import store as store


class Counting(WrappedStore):
    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.requests: list[str] = []

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.requests.append(f"LIST {prefix}")
        return super().list(prefix, start_after=start_after)

    def get(self, key: str, byte_range: object = None) -> bytes:
        self.requests.append(f"GET {key}")
        return self.inner.get(key)

    def put(self, key: str, payload: object, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self.requests.append(f"PUT {key}")
        self.inner.put(key, payload, sha256=sha256, metadata=metadata)  # type: ignore[arg-type]

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.requests.append(f"PUT {key}")
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)


def test_requests_are_counted_on_one_hand(store: MemoryStore, tmp_path: Path) -> None:
    counting = Counting(store)
    disk = ObjectDisk("s3", counting, tmp_path / "a")
    assert counting.requests == []
    assert disk.list() == []
    assert len(counting.requests) == 2
    put(disk, {"t/p/part.json": b"{}", "t/p/x": b"x" * 9_000})
    counting.requests.clear()
    put(disk, {f"t/p{number}/part.json": b"{}" for number in range(20)} | {"t/q/x": b"x" * 9_000})
    assert [request.split()[0] for request in counting.requests] == ["PUT", "PUT", "LIST"], (
        "one blob, one commit, and the proof that the log ends with it"
    )
    counting.requests.clear()
    again = ObjectDisk("s3", counting, tmp_path / "a")
    assert again.exists("t/p")
    assert counting.requests == ["LIST operations/", "GET .SCHEMA_VERSION"], "what follows, and what it is"


def test_a_rebuild_reads_the_newest_snapshot_and_what_follows(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a", snapshot_every_commits=10)
    for number in range(34):
        put(disk, {f"t/p{number}/part.json": b"%d" % number})
    counting = Counting(store)
    fresh = ObjectDisk("s3", counting, tmp_path / "b")
    assert content(fresh) == content(disk)
    gets = [request for request in counting.requests if request.startswith("GET")]
    assert gets[:2] == ["GET .SCHEMA_VERSION", f"GET {snapshot_key(30)}"]
    assert len(gets) == 1 + 1 + 4 + 1, "the version, the snapshot, what follows, and the entry that proves the snapshot"
    assert len(counting.requests) - len(gets) <= 4


def test_every_revision_can_be_read_back(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a", snapshot_every_commits=4)
    expected: dict[int, list[str]] = {0: []}
    for number in range(11):
        put(disk, {f"t/{number}": b""})
        with disk.transaction(Moved()) as transaction:
            transaction.rename(f"t/{number}", f"u/{number}")
            if number:
                transaction.remove(f"u/{number - 1}")
            transaction.commit()
        for revision in (2 * number + 1, 2 * number + 2):
            expected[revision] = []
        expected[2 * number + 2] = [f"u/{number}"]
        expected[2 * number + 1] = sorted([f"t/{number}", *([f"u/{number - 1}"] if number else [])])
    for revision, paths in expected.items():
        table = disk.table_at(revision)
        assert [row.path for row in table.rows()] == paths
        table.close()
    with pytest.raises(NotFound, match="no revision 23"):
        disk.table_at(23)


def test_a_damaged_snapshot_is_passed_over_and_said(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a", snapshot_every_commits=3)
    for number in range(7):
        put(disk, {f"t/{number}": b""})
    data = store.get(snapshot_key(6))[:-9]
    store.delete([snapshot_key(6)])
    store.put(snapshot_key(6), data, sha256=hashlib.sha256(data).digest())
    fresh = ObjectDisk("s3", store, tmp_path / "b")
    assert content(fresh) == content(disk)
    (note,) = fresh.recover()
    assert snapshot_key(6) in note
    assert fresh.recover() == []


def test_a_snapshot_that_cannot_be_written_fails_no_commit(tmp_path: Path) -> None:
    class NoSnapshots(WrappedStore):
        def put_if_absent(self, key: str, payload: bytes, **more: object) -> None:
            if key.startswith("snapshots/"):
                raise FrostlineError("no")
            self.inner.put_if_absent(key, payload, **more)  # type: ignore[arg-type]

    disk = ObjectDisk("s3", NoSnapshots(MemoryStore()), tmp_path / "a", snapshot_every_commits=1)
    assert put(disk, {"a": b""}) == 1
    assert put(disk, {"b": b""}) == 2


@pytest.mark.parametrize("damage", ["empty", "zeros", "cut", "junk", "older schema", "no table"])
def test_a_damaged_cache_is_set_aside_and_rebuilt(store: MemoryStore, tmp_path: Path, damage: str) -> None:
    """P45."""
    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {f"t/p{number}/part.json": b"%d" % number * 100 for number in range(300)})
    expected = content(disk)
    disk.close()
    path = disk.table_path
    data = path.read_bytes()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "zeros":
            path.write_bytes(bytes(len(data)))
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "junk":
            path.write_bytes(b"junk" * 1_000)
        case "older schema":
            import sqlite3

            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA user_version = 99")
            connection.close()
        case _:
            import sqlite3

            with sqlite3.connect(path) as connection:
                connection.execute("DROP TABLE state")
            connection.close()
    again = ObjectDisk("s3", store, tmp_path / "a")
    assert content(again) == expected
    (note,) = again.recover()
    assert "set aside" in note
    assert again.recover() == []
    assert put(again, {"more": b""}) == 2


def test_a_cache_of_another_bucket_is_rebuilt(tmp_path: Path) -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    put(ObjectDisk("s3", one, tmp_path / "a"), {"one": b""})
    put(ObjectDisk("s3", two, tmp_path / "b"), {"two": b""})
    disk = ObjectDisk("s3", two, tmp_path / "a")
    assert disk.list() == ["two"]
    assert "rebuilt" in disk.recover()[0]


def test_a_bucket_that_was_emptied_is_not_an_empty_disk(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {"a": b""})
    store.delete([info.key for info in list(store.list())])
    with pytest.raises(DiskUnreachable, match="holds no disk"):
        ObjectDisk("s3", store, tmp_path / "a").list()


def test_a_lost_or_altered_object_is_never_good_data(store: MemoryStore, tmp_path: Path) -> None:
    """I15."""
    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {"t/x": b"x" * 9_000, "t/y": b"y" * 9_000})
    x, y = disk.stat("t/x").key, disk.stat("t/y").key
    assert x is not None
    assert y is not None
    store.delete([x, y])
    other = b"z" * 9_000
    store.put(y, other, sha256=hashlib.sha256(other).digest())
    with pytest.raises(Damaged, match=x):
        disk.read("t/x")
    with pytest.raises(Damaged, match=y):
        disk.read("t/y")


def test_hostile_paths_of_a_log_are_refused(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a")
    commit = Commit(
        revision=1,
        previous="0" * 64,
        writer="evil",
        time=now(),
        kind=Inserted(),
        operations=(Create("../../etc/passwd", 0, "00" * 32, inline=b""),),
    )
    with unchecked_documents():
        disk.log.append(commit)
    with pytest.raises(Damaged, match="unsafe path"):
        disk.list()


def test_a_read_only_disk_writes_nothing(store: MemoryStore, tmp_path: Path) -> None:
    put(ObjectDisk("s3", store, tmp_path / "a"), {"t/x": b"x"})
    before = [info.key for info in store.list()]
    disk = ObjectDisk("s3", store, tmp_path / "b", read_only=True)
    assert content(disk) == {"t/x": b"x"}
    with pytest.raises(Refused):
        disk.transaction(Inserted())
    assert [info.key for info in store.list()] == before


def test_scratch_of_a_dead_process_is_swept_of_a_live_one_kept(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a")
    dead = OwnedDirectory(tmp_path / "a" / "scratch")
    (dead.path / "half").write_bytes(b"x")
    os.close(dead._descriptor)  # as a crash would
    with disk.transaction(Inserted()) as transaction:
        live = transaction.scratch()
        assert len(disk.recover()) == 1
        assert disk.recover() == []
        assert live.exists()
        assert not dead.path.exists()


def test_the_log_says_who_did_what_and_why(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a")
    with disk.transaction(Moved(sources={"hot": ("p",)}), reason="TTL", actor="daemon") as transaction:
        transaction.create("t/p/x", b"x" * 9_000, blob_set="p")
        transaction.require(absent=("t/q",))
        transaction.commit()
    (found,) = disk.entries()
    commit = found.commit
    assert (commit.kind, commit.reason, commit.actor) == (Moved(sources={"hot": ("p",)}), "TTL", "daemon")
    assert (commit.absent, commit.size_bytes) == (("t/q",), 9_000)
    key = disk.stat("t/p/x").key
    assert key is not None
    assert store.head(key).metadata["path"] == "t/p/x"
    put(disk, {"a": b""})
    put(disk, {"b": b""})
    assert [one.commit.revision for one in disk.entries(limit=2)] == [2, 3]
    assert [one.commit.revision for one in disk.entries(since=1, until=2)] == [2]
    assert commit_key(3) in {info.key for info in store.list("operations/")}


class _Clock:
    """Stands in for `time` in a transaction, so that hours pass at once."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


def test_uploads_half_a_guard_interval_old_do_not_commit(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P27: gc takes unnamed blobs for garbage after its guard interval; a commit must not name what may be gone."""
    clock = _Clock()
    monkeypatch.setattr("disks.host.moment.time", clock)
    disk = ObjectDisk("s3", store, tmp_path / "a")
    with disk.transaction(Moved()) as transaction:
        transaction.create("t/p/x", b"x" * 9_000)
        clock.now += 13 * 3600
        with pytest.raises(Refused, match="began 13 h ago"):
            transaction.commit()
    assert disk.list() == []
    assert disk.log.head() == 0


@pytest.mark.parametrize("lost", [False, True])
def test_an_older_transaction_than_the_guard_asks_for_its_blobs(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """The shortest guard that is allowed."""
    clock = _Clock()
    monkeypatch.setattr("disks.host.moment.time", clock)
    disk = ObjectDisk("s3", store, tmp_path / "a")
    with disk.transaction(Moved()) as transaction:
        key = transaction.create("t/p/x", b"x" * 9_000).key
        transaction.create("t/p/part.json", b"{}")
        assert key is not None
        clock.now += 2 * 3600
        if lost:
            store.delete([key])
            with pytest.raises(Refused, match=r"of t/p/x is gone"):
                transaction.commit()
        else:
            assert transaction.commit() == 1
    assert disk.exists("t/p/x") is not lost


def test_a_cache_damaged_inside_is_rebuilt_when_it_is_used(store: MemoryStore, tmp_path: Path) -> None:
    """P45: the file opens, its header is whole; what is wrong shows with the first page that is read."""
    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {f"t/p{number}/part.json": b"{}" * 100 for number in range(200)})
    wanted = content(disk)
    disk.close()
    path = tmp_path / "a" / "files.db"
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    path.write_bytes(raw)
    again = ObjectDisk("s3", store, tmp_path / "a")
    again.refresh()
    assert content(again) == wanted
    assert "set aside" in again.recover()[0]
    assert (tmp_path / "a" / "files.db.damaged").exists()


def test_a_lost_first_entry_and_a_lost_cache_lose_nothing(store: MemoryStore, tmp_path: Path) -> None:
    """The entry of a new disk's tables is the one that most depends on: a snapshot stands in for it from the start."""
    disk = ObjectDisk("s3", store, tmp_path / "a")
    for number in range(12):
        put(disk, {f"t/{number}.json": b"{}"})
    expected = list(disk.file_table)
    store.delete([commit_key(1), commit_key(9)])
    fresh = ObjectDisk("s3", store, tmp_path / "b")
    assert list(fresh.file_table) == expected
    assert fresh.revision == 12


def test_a_log_without_its_first_entries_is_damaged_not_retained(store: MemoryStore, tmp_path: Path) -> None:
    disk = ObjectDisk("s3", store, tmp_path / "a", snapshot_every_commits=0)
    for number in range(3):
        put(disk, {f"t/{number}.json": b"{}"})
    store.delete([commit_key(1)])
    with pytest.raises(Damaged, match="no snapshot replaces it"):
        ObjectDisk("s3", store, tmp_path / "b").refresh()


def test_damage_that_only_rows_show_is_repaired_by_a_reader(store: MemoryStore, tmp_path: Path) -> None:
    """P45: the pages that say how far the table is are whole, those that hold the files are not."""
    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {f"t/p{number}/part.json": b"{}" * 100 for number in range(200)})
    disk.refresh()
    wanted = disk.list("t")
    disk.close()
    path = tmp_path / "a" / "files.db"
    raw = path.read_bytes()
    page = 4096
    for number in range(len(raw) // page - 1, 1, -1):  # the first pages hold the schema and the state
        again = ObjectDisk("s3", store, tmp_path / "a")
        path.write_bytes(raw[: number * page] + b"\xa5" * page + raw[(number + 1) * page :])
        again.refresh()
        assert again.list("t") == wanted, number
        assert len(again.look_over("t", "part.json", {})) == 200
        again.close()
        path.write_bytes(raw)
