"""The object disk: its cache is only a cache, and writers on several machines lose nothing. Guards I2, I6, I7, I15, P38
to P40, P44, P45."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from disks import effects
from disks.base import Disk
from disks.config import ObjectDiskConfig
from disks.host.locks import OwnedDirectory
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.lease import Lease
from disks.registry import open_disk
from disks.stores.base import ObjectInfo, StoreCapabilities
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.metered import MeteredStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.entry import Commit, Create, now
from oplog.errors import (
    AlreadyExists,
    Conflict,
    Damaged,
    DiskUnreachable,
    FrostlineError,
    LeaseExpired,
    Locked,
    NotFound,
    OutcomeUnknown,
    Refused,
)
from oplog.kinds import CommitKind, Inserted, Merged, Moved, OtherKind
from oplog.revision import commit_key, parse_commit_key, snapshot_key
from restore.check.check import check
from tests.damage import unchecked_documents


def put(disk: Disk, files: dict[str, bytes], kind: CommitKind = Inserted()) -> int | None:  # noqa: B008 - frozen
    with disk.transaction(kind) as transaction:
        for path, data in files.items():
            transaction.create(path, data)
        return transaction.commit()


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


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


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("s3")


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


def test_writers_on_two_machines_lose_nothing(store: MemoryStore, tmp_path: Path) -> None:
    """P40: eight threads on two caches; every acknowledged commit is there once, in a dense log."""
    disks = [ObjectDisk("s3", store, tmp_path / f"machine{number}", snapshot_every_commits=7) for number in range(2)]
    acknowledged: list[tuple[int | None, str]] = []
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for count in range(8):
                path = f"w{number}/{count}"
                acknowledged.append((put(disks[number % 2], {path: b"x"}), path))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(revision or 0 for revision, _ in acknowledged) == list(range(1, 65))
    fresh = ObjectDisk("s3", store, tmp_path / "fresh")
    assert {(fresh.stat(path).revision, path) for _, path in acknowledged} == set(acknowledged)
    for disk in disks:
        disk.refresh()
        assert content(disk) == content(fresh)


_WRITER = """
import sys
from pathlib import Path
from disks.object_disk.disk import ObjectDisk
from disks.stores.directory import DirectoryStore
from oplog.kinds import Inserted
bucket, state, name = sys.argv[1:]
disk = ObjectDisk("s3", DirectoryStore(Path(bucket)), Path(state), snapshot_every_commits=5)
for count in range(15):
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{name}/{count}/part.json", name.encode())
        transaction.create(f"{name}/{count}/x", name.encode())
        print(transaction.commit())
"""


@pytest.mark.parametrize("shared", [True, False], ids=["one machine", "two machines"])
def test_two_processes_on_one_prefix(tmp_path: Path, shared: bool) -> None:
    bucket = tmp_path / "bucket"
    arguments = [
        [sys.executable, "-c", _WRITER, str(bucket), str(tmp_path / ("state" if shared else f"state{name}")), name]
        for name in ("a", "b", "c")
    ]
    writers = [subprocess.Popen(argument, stdout=subprocess.PIPE, text=True) for argument in arguments]
    outputs = [writer.communicate(timeout=60)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    revisions = [int(line) for output in outputs for line in output.split()]
    assert sorted(revisions) == list(range(1, 46))
    config = ObjectDiskConfig(url=f"file://{bucket}")
    disk = open_disk("s3", config, tmp_path / "fresh")
    assert len(list(disk.walk())) == 90
    for name in ("a", "b", "c"):
        assert len(list(disk.small_files(name, "part.json"))) == 15


def test_a_change_is_checked_again_after_a_lost_race(store: MemoryStore, tmp_path: Path) -> None:
    one, two = ObjectDisk("s3", store, tmp_path / "a"), ObjectDisk("s3", store, tmp_path / "b")
    put(one, {"t/p1/x": b"", "t/p2/x": b""})
    two.refresh()
    with one.transaction(Merged()) as transaction:
        transaction.remove("t/p1")
        transaction.commit()
    with two.transaction(Merged()) as transaction, pytest.raises(Conflict):  # its cache still shows t/p1
        transaction.require(present=("t/p1",))
        transaction.create("t/p3/x", b"")
        transaction.commit()
    with one.transaction(OtherKind("late")) as transaction:
        transaction.create("late", b"")
        transaction.commit()
    with two.transaction(OtherKind("uses it")) as transaction:  # its cache does not show it yet
        transaction.rename("late", "used")
        transaction.commit()
    one.refresh()
    assert one.list() == ["t/", "used"]


def test_dying_between_the_entry_and_the_cache_loses_nothing(store: MemoryStore, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {"a": b""})

    def die(when: str, name: str, args: tuple[object, ...]) -> None:
        if name == "sqlite.commit" and when == "before":
            raise Killed

    with pytest.raises(Killed), disk.transaction(Inserted()) as transaction:
        transaction.create("b", b"")
        effects.set_hook(die)
        try:
            transaction.commit()
        finally:
            effects.set_hook(None)
    again = ObjectDisk("s3", store, tmp_path / "a")
    assert again.list() == ["a", "b"]
    assert again.revision == 2


def test_an_unknown_outcome_is_taken_in_by_the_next_look(tmp_path: Path) -> None:
    class Unplugged(WrappedStore):
        unplugged = False

        def put_if_absent(self, key: str, payload: bytes, **more: object) -> None:
            if not self.unplugged or key not in {info.key for info in self.inner.list("operations/")}:
                self.inner.put_if_absent(key, payload, **more)  # type: ignore[arg-type]
            if self.unplugged:
                raise OutcomeUnknown("reset")

    store = Unplugged(MemoryStore())
    disk = ObjectDisk("s3", store, tmp_path / "a")
    put(disk, {"a": b""})
    store.unplugged = True
    with pytest.raises(OutcomeUnknown):
        put(disk, {"b": b""})
    store.unplugged = False
    disk.refresh()
    assert disk.list() == ["a", "b"]


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


class Unconditional(WrappedStore):
    """A store that overwrites: conditional writes are a look followed by a put."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(conditional_put=False, checks_sha256=True)


def test_without_conditional_writes_one_machine_writes(store: MemoryStore, tmp_path: Path) -> None:
    bucket = Unconditional(store)
    one = ObjectDisk("s3", bucket, tmp_path / "a", lease_settle_seconds=0.01)
    two = ObjectDisk("s3", bucket, tmp_path / "b", lease_settle_seconds=0.01)
    put(one, {"a": b""})
    assert one.capabilities.writers == "one"
    with pytest.raises(Locked) as caught:
        put(two, {"b": b""})
    assert caught.value.exit_code == 11
    put(one, {"c": b""})
    same_machine = ObjectDisk("s3", bucket, tmp_path / "a", lease_settle_seconds=0.01)
    put(same_machine, {"d": b""})
    two.refresh()
    assert two.list() == ["a", "c", "d"]


def test_a_lease_runs_out_is_renewed_and_can_be_released(store: MemoryStore, tmp_path: Path) -> None:
    """P60."""

    def lease(name: str, term_seconds: float) -> Lease:
        return Lease(store, tmp_path / name, term_seconds=term_seconds, grace_seconds=0.0, settle_seconds=0.0)

    short = lease("a", 0.05)
    short.hold()
    threading.Event().wait(0.1)
    other = lease("b", 60.0)
    other.hold()
    with pytest.raises(Locked):
        short.hold()
    other.hold()
    other.release()
    short.hold()


def test_a_lease_needs_no_delete(tmp_path: Path) -> None:
    """P56: under Object Lock claims pile up, and yet one that was let go or has run out keeps nobody waiting."""
    store = MemoryStore(keep_for=timedelta(days=30))

    def lease(name: str, term_seconds: float = 60.0) -> Lease:
        return Lease(store, tmp_path / name, term_seconds=term_seconds, grace_seconds=30.0, settle_seconds=0.0)

    one, two = lease("a"), lease("b")
    one.hold()
    with pytest.raises(Locked):
        two.hold()
    one.hold()
    one.release()
    two.hold()
    with pytest.raises(Locked):
        one.hold()
    two.release()
    short = lease("c", 0.05)
    for _ in range(3):
        short.hold()
        threading.Event().wait(0.1)
    short.release()
    one.hold()


def test_of_many_claims_one_wins(store: MemoryStore, tmp_path: Path) -> None:
    outcomes: list[str] = []

    def claim(number: int) -> None:
        try:
            Lease(store, tmp_path / f"{number}.json", settle_seconds=0.2).hold()
            outcomes.append("won")
        except Locked:
            outcomes.append("locked")

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["locked"] * 5 + ["won"]


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
        assert len(list(again.small_files("t", "part.json"))) == 200
        again.close()
        path.write_bytes(raw)


class Overwriting(Unconditional):
    """Stops its machine between the look and the put that stand for a conditional write."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.between: Callable[[], object] | None = None

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        if key in {info.key for info in self.inner.list(key)}:
            raise AlreadyExists(key)
        if parse_commit_key(key) is not None and self.between is not None:
            others, self.between = self.between, None
            others()
        self.inner.put(key, payload, sha256=sha256, metadata=metadata)


@pytest.mark.parametrize("gone", [False, True], ids=["the successor holds it", "the successor has let it go"])
def test_a_writer_that_outslept_its_lease_acknowledges_nothing(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """P41: it wrote over the successor's entry; the successor finds out before it builds on that, and so does fsck."""
    ahead = timedelta(0)

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + ahead

    monkeypatch.setattr("disks.object_disk.lease.now", lambda: Later.now(UTC))
    monkeypatch.setattr("disks.stores.memory.datetime", Later)
    stopping = Overwriting(store)
    one = ObjectDisk("s3", stopping, tmp_path / "a", lease_settle_seconds=0.01)
    two = ObjectDisk("s3", Overwriting(store), tmp_path / "b", lease_settle_seconds=0.01)
    put(one, {"a": b""})

    def successor() -> None:
        nonlocal ahead
        ahead = timedelta(minutes=10)
        assert put(two, {"two": b""}) == 2
        if gone:
            two._lease.release()

    stopping.between = successor
    with pytest.raises(LeaseExpired, match="stood still until its turn was over"):
        put(one, {"one": b""})
    if not gone:
        with pytest.raises(Locked):
            put(one, {"again": b""})
    with pytest.raises(Damaged, match="wrote over it"):
        put(two, {"three": b""})
    bystander = ObjectDisk("s3", Overwriting(store), tmp_path / "c", lease_settle_seconds=0.01)
    [problem] = check({"s3": bystander}).problems
    assert (problem.invariant, commit_key(2) in problem.what) == ("I6", True)
    ahead = timedelta(days=5)
    put(bystander, {"of-the-bystander": b""})  # it sweeps old claims
    assert [found.object for found in check({"s3": bystander}).problems] == [problem.object]
    store.delete([problem.object or ""])
    assert not check({"s3": bystander}).problems


def test_a_lost_race_costs_the_refused_put_and_one_get(store: MemoryStore, tmp_path: Path) -> None:
    metered = MeteredStore(store)
    one = ObjectDisk("s3", metered, tmp_path / "a")
    two = ObjectDisk("s3", store, tmp_path / "b")
    put(two, {"first": b""})
    put(one, {"own": b""})
    two.refresh()
    for number in range(3):
        put(two, {f"of-two/{number}": b""})
    before = metered.counts()
    put(one, {"late.json": b"{}"})
    spent = {verb: count - before[verb] for verb, count in metered.counts().items() if count != before[verb]}
    assert spent == {"PUT": 4, "GET": 3, "LIST": 1}
    two.refresh()
    assert sorted(one.list()) == sorted(two.list())
    assert one.revision == two.revision == 6


class Faster(WrappedStore):
    """Somebody else commits right before each of this machine's entries, so many times."""

    def __init__(self, inner: MemoryStore, others: Callable[[], object], times: int) -> None:
        super().__init__(inner)
        self.others, self.left = others, times
        self.reads: list[str] = []

    def get(self, key: str, byte_range: object = None) -> bytes:
        self.reads.append(key)
        return self.inner.get(key)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        if parse_commit_key(key) is not None and self.left:
            self.left -= 1
            self.others()
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)


def test_who_is_second_repeatedly_goes_on_reading_entries_once(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P40: it waits for nothing in between, for then it would be behind again."""
    other = ObjectDisk("s3", store, tmp_path / "b", snapshot_every_commits=0)
    put(other, {"first": b""})
    slept: list[float] = []
    monkeypatch.setattr("disks.object_disk.disk.time.sleep", slept.append)
    faster = Faster(store, lambda: put(other, {f"b/{other.revision}": b""}), 150)
    disk = ObjectDisk("s3", faster, tmp_path / "a", snapshot_every_commits=0)
    assert disk.list() == ["first"]
    faster.reads.clear()
    assert put(disk, {"late": b""}) == 152
    assert slept == []
    assert [key for key in faster.reads if parse_commit_key(key)] == [
        commit_key(revision) for revision in range(2, 152)
    ]
    monkeypatch.setattr("disks.object_disk.disk._COMMIT_SECONDS", 0.0)
    faster.left = 150
    with pytest.raises(Conflict, match="100 other writers came first"):
        put(disk, {"later": b""})
