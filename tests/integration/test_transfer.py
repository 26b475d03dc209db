"""restore.transfer.transfer: a disk filled from another bucket. Guards I4, I6, I7, I14 and P32, P33, P37, P39, P54.

The source is only read; what is committed is the source's tree, byte for byte, over objects of the target's own.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.open import open_store
from disks.stores.wrappers.metered import MeteredStore
from disks.stores.wrappers.wrapped import ReadOnlyStore, WrappedStore
from disks.workers import object_copier
from oplog.errors import Damaged, Locked, NotFound, Refused, UsageError
from oplog.kinds import OtherKind, Restored
from oplog.revision import SNAPSHOTS_PREFIX, parse_blob_key
from restore.clickhouse.bucket import read_bucket
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from restore.transfer import blob_copies, changes, transfer
from restore.transfer.transfer import restore_from
from tests.compat.buckets import captured, in_memory
from tests.integration.rebuilding import objects, put, remove, rows, work
from tests.integration.transferring import TABLE, blobs, content
from tests.servers import Server, ministack
from tiering.cli import main


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ministack() as running:
        yield running


@pytest.fixture(params=["memory", "directory", "s3", pytest.param("ceph", marks=pytest.mark.ceph)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], ObjectStore]:
    """Stores of one kind, by name."""

    def opened(name: str) -> ObjectStore:
        match request.param:
            case "memory":
                return MeteredStore(MemoryStore(name))
            case "directory":
                return MeteredStore(DirectoryStore(tmp_path / "buckets" / name))
        server: Server = request.getfixturevalue("ceph" if request.param == "ceph" else "server")
        return open_store(server.disk(f"s3://{server.new_bucket()}/{name}/"))

    return opened


@pytest.fixture
def source(tmp_path: Path) -> ObjectDisk:
    disk = ObjectDisk("source", MemoryStore("source"), tmp_path / "source")
    put(disk, f"{TABLE}/p1/data.parquet", f"{TABLE}/p2/data.parquet", "store/bbb/t1/p1/data.parquet")
    put(disk, f"{TABLE}/table.json", "store/bbb/t1/table.json", f"{TABLE}/p1/part.json")
    return disk


@pytest.fixture
def target(tmp_path: Path) -> ObjectDisk:
    return ObjectDisk("target", MemoryStore("target"), tmp_path / "target")


@pytest.mark.in_turn
def test_a_disk_comes_over_from_another_bucket(stores: Callable[[str], ObjectStore], tmp_path: Path) -> None:
    """I7: every file, byte for byte, over copies of its own; the source is not touched; a second time does nothing."""
    one = ObjectDisk("one", stores("one"), tmp_path / "one", snapshot_every_commits=7)
    work(one, random.Random(1), 20)
    before = objects(one)
    two = ObjectDisk("two", stores("two"), tmp_path / "two")
    put(two, "store/mine/p1/f", "store/mine/table.json")
    mine = rows(two)

    preview = restore_from(two, ReadOnlyStore(one.store), RebuildRequest())
    assert (preview.applied, preview.created, preview.removed) == (False, len(rows(one)), 0)
    assert rows(two) == mine
    assert preview.copy is not None
    assert preview.copy.objects == len({row.key for row in rows(one).values() if row.key})

    result = restore_from(two, ReadOnlyStore(one.store), RebuildRequest(apply=True, actor="test", reason="because"))
    assert content(two) == content(one) | {path: two.read(path) for path in mine}
    assert {path: rows(two)[path] for path in mine} == mine
    assert not set(blobs(two)) & set(blobs(one))
    assert objects(one) == before
    assert (result.commit, result.missing_objects) == (2, [])
    assert result.copy is not None
    assert (result.copy.done, result.copy.inside_store) == (preview.copy.objects, True)
    assert len(blobs(two)) == preview.copy.objects + 1
    entry = list(two.entries())[-1].commit
    assert isinstance(entry.kind, Restored)
    assert (entry.kind.word, entry.actor, entry.reason) == ("restore", "test", "because")
    assert (entry.kind.source, entry.kind.source_revision) == (one.store.name, 20)

    again = restore_from(two, ReadOnlyStore(one.store), RebuildRequest(apply=True))
    assert (again.commit, again.unchanged) == (None, len(rows(one)))
    assert two.revision == 2
    fresh = ObjectDisk("two", two.store, tmp_path / "fresh")
    assert rows(fresh) == rows(two)


def test_links_stay_links(source: ObjectDisk, target: ObjectDisk) -> None:
    """I8: one object of the source is one object of the target, however many paths name it."""
    with source.transaction(OtherKind("freeze")) as transaction:
        transaction.link(f"{TABLE}/p1/data.parquet", "shadow/p1/data.parquet")
        transaction.commit()
    restore_from(target, source.store, RebuildRequest(apply=True))
    assert rows(target)[f"{TABLE}/p1/data.parquet"].key == rows(target)["shadow/p1/data.parquet"].key
    assert len(blobs(target)) == 3


def test_an_old_revision_a_time_one_path(source: ObjectDisk, target: ObjectDisk) -> None:
    between = datetime.now(UTC)
    remove(source, f"{TABLE}/p1")
    put(source, f"{TABLE}/p3/data.parquet")
    assert restore_from(target, source.store, RebuildRequest(revision=1)).files == 3
    assert restore_from(target, source.store, RebuildRequest(time=between)).revision == 2
    result = restore_from(target, source.store, RebuildRequest(revision=2, paths=[f"{TABLE}/p1"], apply=True))
    assert sorted(rows(target)) == [f"{TABLE}/p1/data.parquet", f"{TABLE}/p1/part.json"]
    assert result.copy is not None
    assert result.copy.objects == 1
    with pytest.raises(NotFound):
        restore_from(target, source.store, RebuildRequest(revision=9))
    with pytest.raises(UsageError):
        restore_from(target, source.store, RebuildRequest(revision=1, time=between))
    with pytest.raises(NotFound, match="No such table"):
        restore_from(target, source.store, RebuildRequest(tables=["db.t"]))


def test_a_table_becomes_that_of_the_source_and_others_stay(source: ObjectDisk, target: ObjectDisk) -> None:
    """P37: what is new in a table of the source goes; a table it does not know, and what is out of scope, stay."""
    restore_from(target, source.store, RebuildRequest(apply=True))
    put(
        target,
        f"{TABLE}/p9/data.parquet",
        "store/bbb/t1/p9/data.parquet",
        "store/ccc/t2/p1/f",
        "store/ccc/t2/table.json",
    )
    before = {path: row for path, row in rows(target).items() if not path.startswith(TABLE)}
    result = restore_from(target, source.store, RebuildRequest(paths=[TABLE], apply=True))
    assert (result.created, result.removed) == (0, 1)
    assert {path: row for path, row in rows(target).items() if not path.startswith(TABLE)} == before
    assert restore_from(target, source.store, RebuildRequest(apply=True)).removed == 1
    assert sorted(set(rows(target)) - set(rows(source))) == ["store/ccc/t2/p1/f", "store/ccc/t2/table.json"]


def test_taken_ranges_of_block_numbers_stay_taken(source: ObjectDisk, target: ObjectDisk) -> None:
    restore_from(target, source.store, RebuildRequest(apply=True))
    put(target, f"{TABLE}/blocks-7.json")
    restore_from(target, source.store, RebuildRequest(apply=True))
    assert f"{TABLE}/blocks-7.json" in rows(target)


def test_the_counter_goes_on_and_no_key_is_used_twice(source: ObjectDisk, target: ObjectDisk) -> None:
    """P39, I6: back to an old revision, write, back again."""
    for revision in (2, 1, 2, 1):
        restore_from(target, source.store, RebuildRequest(revision=revision, apply=True))
        put(target, f"store/mine/{target.revision}")
        restore(target, RebuildRequest(revision=target.revision - 1, apply=True))
    revisions = [entry.commit.revision for entry in target.entries()]
    assert revisions == list(range(1, len(revisions) + 1))
    assert len(set(blobs(target))) == len(blobs(target))
    named = Counter(
        operation.key
        for entry in target.entries()
        if not isinstance(entry.commit.kind, Restored) or entry.commit.kind.source
        for operation in entry.commit.operations
        if (operation_key := getattr(operation, "key", None)) is not None and operation_key
    )
    assert set(named.values()) == {1}


def test_stores_that_cannot_copy_are_read_and_written(
    source: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes go through this machine, are verified, and a large object never lies in memory."""
    target = ObjectDisk("target", DirectoryStore(tmp_path / "bucket"), tmp_path / "target")
    monkeypatch.setattr(object_copier, "_IN_MEMORY_BYTES", 7)
    result = restore_from(target, source.store, RebuildRequest(apply=True))
    assert content(target) == content(source)
    assert result.copy is not None
    assert result.copy.inside_store is False
    assert list((tmp_path / "target" / "scratch").iterdir()) == []
    for key in blobs(target):
        assert set(target.store.head(key).metadata) == {"path", "sha256"}


class Changing(WrappedStore):
    """Gives other bytes than it was given, of the same length."""

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        data = self.inner.get(key, byte_range)
        return b"X" * len(data) if parse_blob_key(key) else data


@pytest.mark.parametrize("in_memory_bytes", [7, 1 << 20])
def test_changed_bytes_are_never_committed(
    source: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory_bytes: int
) -> None:
    """P54, I15."""
    target = ObjectDisk("target", DirectoryStore(tmp_path / "bucket"), tmp_path / "target")
    monkeypatch.setattr(object_copier, "_IN_MEMORY_BYTES", in_memory_bytes)
    with pytest.raises(Damaged, match=r"data\.parquet is damaged"):
        restore_from(target, Changing(source.store), RebuildRequest(apply=True))
    assert target.revision == 0
    assert blobs(target) == []


class Forgetful(MemoryStore):
    """Answers a copy with 200 and makes none."""

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        return


def test_a_copy_that_was_only_promised_is_found_out(source: ObjectDisk, tmp_path: Path) -> None:
    """P54: the listing proves every copy before the commit names it."""
    target = ObjectDisk("target", Forgetful("target"), tmp_path / "target")
    with pytest.raises(Damaged, match="has no bytes instead of"):
        restore_from(target, source.store, RebuildRequest(apply=True))
    assert target.revision == 0


def test_what_is_refused(source: ObjectDisk, target: ObjectDisk, tmp_path: Path) -> None:
    """P32: a source round or within the target; I3: objects that are gone; a disk that is read-only; two at once."""
    inner = ObjectDisk("inner", DirectoryStore(tmp_path / "bucket" / "inner"), tmp_path / "inner")
    with pytest.raises(Refused, match="overlap"):
        restore_from(inner, DirectoryStore(tmp_path / "bucket"), RebuildRequest(apply=True))
    with pytest.raises(Refused, match="overlap"):
        restore_from(source, source.store, RebuildRequest())
    reader = ObjectDisk("target", target.store, tmp_path / "reader", read_only=True)
    assert restore_from(reader, source.store, RebuildRequest()).created == 6
    with pytest.raises(Refused, match="read-only"):
        restore_from(reader, source.store, RebuildRequest(apply=True))
    key = rows(source)[f"{TABLE}/p1/data.parquet"].key
    assert key is not None
    source.store.delete([key])
    assert [lost.key for lost in restore_from(target, source.store, RebuildRequest()).missing_objects] == [key]
    with pytest.raises(Refused, match=r"p1/data\.parquet"):
        restore_from(target, source.store, RebuildRequest(apply=True))
    assert objects(target) == {}
    assert restore_from(target, source.store, RebuildRequest(paths=["store/bbb"], apply=True)).applied
    with pytest.raises(NotFound):
        restore_from(target, MemoryStore("nothing"), RebuildRequest(apply=True))
    with transfer.file_lock(target.state_path / "restore.lock"), pytest.raises(Locked):
        restore_from(target, source.store, RebuildRequest(apply=True))


class Collecting(WrappedStore):
    """A source whose garbage goes while it is read."""

    def __init__(self, disk: ObjectDisk) -> None:
        super().__init__(disk.store)
        self.disk: ObjectDisk | None = disk

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if parse_blob_key(key) and self.disk is not None:
            disk, self.disk = self.disk, None
            remove(disk, f"{TABLE}/p1", f"{TABLE}/p2")
            put(disk, f"{TABLE}/p3/data.parquet")
            later = datetime.now(UTC) + timedelta(days=2)
            report = collect(disk, GcRules(delete=True, max_delete_fraction=1.0), now=later)
            assert report.deleted == 2
        return self.inner.get(key, byte_range)


def test_a_source_that_collects_meanwhile_is_planned_anew(source: ObjectDisk, tmp_path: Path) -> None:
    """P33: the newest revision moved on; an old one is no longer kept, and that is said."""
    for revision in (None, 2):
        target = ObjectDisk("target", DirectoryStore(tmp_path / f"b{revision}"), tmp_path / f"{revision}")
        if revision is None:
            restore_from(target, Collecting(source), RebuildRequest(apply=True))
            assert content(target) == content(source)
            assert f"{TABLE}/p3/data.parquet" in rows(target)
        else:
            with pytest.raises((Refused, NotFound)):
                restore_from(target, Collecting(source), RebuildRequest(revision=revision, apply=True))


class Compacting(WrappedStore):
    """A source whose gc takes the first entries between the listing of the log and its reading."""

    def __init__(self, disk: ObjectDisk) -> None:
        super().__init__(disk.store)
        self.disk: ObjectDisk | None = disk

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        yield from builtins.list(self.inner.list(prefix, start_after=start_after))
        if prefix == SNAPSHOTS_PREFIX and self.disk is not None:
            disk, self.disk = self.disk, None
            disk.write_snapshot()
            later = datetime.now(UTC) + timedelta(days=2)
            assert collect(disk, GcRules(delete=True, compact_after_commits=1), now=later).refused is None


def test_a_source_whose_log_shrinks_meanwhile_is_read_again(tmp_path: Path, target: ObjectDisk) -> None:
    """P33."""
    source = ObjectDisk("source", MemoryStore("shrinking"), tmp_path / "shrinking", snapshot_every_commits=0)
    for number in range(4):
        put(source, f"a/{number}")
    shrinking = Compacting(source)
    restore_from(target, shrinking, RebuildRequest(apply=True))
    assert shrinking.disk is None
    assert content(target) == content(source)
    with pytest.raises(NotFound):
        restore_from(target, source.store, RebuildRequest(revision=2))


@pytest.mark.parametrize("there", [False, True])
def test_a_large_restore_commits_on_the_way(
    source: ObjectDisk, target: ObjectDisk, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """New tables come part by part and `table.json` last; a table that is there changes in one commit."""
    put(source, *(f"{TABLE}/p{number}/{name}" for number in range(3, 9) for name in ("data.parquet", "part.json")))
    if there:
        put(target, f"{TABLE}/table.json", f"{TABLE}/p0/data.parquet")
    monkeypatch.setattr(changes, "BATCH_FILES", 4)
    restore_from(target, source.store, RebuildRequest(apply=True))
    assert content(target) == content(source)
    commits = [entry.commit for entry in target.entries() if isinstance(entry.commit.kind, Restored)]
    (epoch,) = {commit.kind.epoch for commit in commits if isinstance(commit.kind, Restored)}
    assert epoch
    touching = [commit for commit in commits if any(TABLE in str(operation) for operation in commit.operations)]
    assert (len(touching) == 1) == there
    assert len(commits) > (0 if there else 3)
    for commit in touching[:-1]:
        paths = [getattr(operation, "path", "") for operation in commit.operations]
        assert not any(path.endswith("table.json") for path in paths)


class Died(BaseException):
    """The process ends here."""


def test_copies_that_gc_may_have_seen_are_made_anew(
    source: ObjectDisk, target: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: an interrupted restore that is taken up after half a day trusts none of its copies."""

    def die(*arguments: object) -> int:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(transfer._Transfer, "_commit", die)
        restore_from(target, source.store, RebuildRequest(apply=True))
    left = blobs(target)
    assert len(left) == 3
    monkeypatch.setattr(blob_copies, "RESUME_WITHIN", timedelta(0))
    restore_from(target, source.store, RebuildRequest(apply=True))
    assert not set(left) & {row.key for row in rows(target).values()}
    later = datetime.now(UTC) + timedelta(days=2)
    report = collect(target, GcRules(delete=True, max_delete_fraction=1.0), now=later)
    assert report.deleted == 3
    assert content(target) == content(source)


def test_copies_that_a_collection_has_announced_are_made_anew(
    source: ObjectDisk, target: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, P33."""
    announced: list[set[str]] = []

    def going(disk: ObjectDisk, *, now: datetime) -> set[str]:
        announced.append(set() if announced else {blobs(disk)[0]})
        return announced[-1]

    monkeypatch.setattr(transfer, "announced", going)
    restore_from(target, source.store, RebuildRequest(apply=True))
    assert len(announced) == 2
    assert not announced[0] & {row.key for row in rows(target).values()}
    assert content(target) == content(source)


def test_the_disk_of_a_clickhouse_server_comes_over(target: ObjectDisk) -> None:
    """I7: every file with its bytes, those of several objects and those of none; the digests are ours from then on."""
    store = in_memory(captured())
    tree = read_bucket(store)
    result = restore_from(target, ReadOnlyStore(store), RebuildRequest(apply=True))
    assert result.files == len(tree.files)
    for path, file in tree.files.items():
        row = rows(target)[path]
        assert target.read(path) == b"".join(store.get(key) for key, _ in file.blobs)
        assert len(row.sha256) == 64
    assert len(blobs(target)) == len({file.blobs for file in tree.files.values() if file.blobs})
    again = restore_from(target, ReadOnlyStore(store), RebuildRequest(apply=True))
    assert (again.commit, again.unchanged) == (None, len(tree.files))
    at_freeze = ObjectDisk("freeze", MemoryStore("freeze"), target.state_path / "freeze")
    old = read_bucket(store, revision=165)
    restore_from(at_freeze, store, RebuildRequest(revision=165, apply=True))
    assert set(rows(at_freeze)) == set(old.files)
    with pytest.raises(UsageError, match="no times"):
        restore_from(target, store, RebuildRequest(time=datetime.now(UTC)))


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table and one partition of it, by name; a yes is asked for where files go."""

    def frostline(home: str, *arguments: str, code: int = 0) -> dict[str, object]:
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / home))
        assert main.run(["--json", *arguments]) == code, capsys.readouterr().err
        out = capsys.readouterr().out
        return json.loads(out) if out.strip().startswith("{") else {}

    rows_file = tmp_path / "rows.csv"
    rows_file.write_text("ts,id\n2020-01-01T00:00:00Z,1\n2020-02-01T00:00:00Z,2\n")
    create = ("table", "create", "db.t", "--column", "ts:timestamp", "--column", "id:int64", "--order-by", "id")
    frostline("one", *create, "--partition-by", "month(ts)")
    frostline("one", "insert", "db.t", str(rows_file))
    for partition in ("202001", "202002"):
        frostline("one", "move", "db.t", "--partition", partition, "--to-disk", "s3")
    url = f"file://{tmp_path}/one/bucket/store/"
    restoring = ("restore", "s3", "--from", url, "--table", "db.t")

    assert frostline("two", *restoring, "--partition", "202001")["applied"] is False
    assert frostline("two", *restoring, "--partition", "209901", code=10) == {}
    assert frostline("two", "restore", "s3", "--from", url, "--partition", "202001", code=2) == {}
    part = frostline("two", *restoring, "--partition", "202001", "--apply")
    assert part["source"] == url
    assert part["copy"] == {"objects": 1, "bytes": part["copy"]["bytes"], "copied": 1, "server_side": True}  # type: ignore[index]
    sql = "SELECT id FROM db.t"
    assert frostline("two", "query", sql)["rows"] == [[1]]
    assert frostline("two", *restoring, "--apply")["unchanged"] == 4  # who gave the names of the part came with it
    assert sorted(frostline("two", "query", sql)["rows"]) == [[1], [2]]  # type: ignore[call-overload]
    frostline("two", *restoring, "--revision", "2", "--apply", code=13)
    assert frostline("two", *restoring, "--revision", "2", "--apply", "-n")["applied"] is False
    assert frostline("two", *restoring, "--revision", "2", "--apply", "-y")["removed"] == 2
    assert frostline("two", "query", sql)["rows"] == [[1]]
    assert (
        frostline("two", "restore", "s3", "--revision", "2", "--table", "db.t", "--partition", "202002")["created"] == 2
    )
    frostline("two", "restore", "s3", "--from", f"file://{tmp_path}/two/bucket/store/", code=13)
    assert frostline("one", "query", sql)["row_count"] == 2


def test_a_source_without_digests_that_changed_is_copied_anew(
    target: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: copies of an interrupted restore count only with the bytes that the source has now."""
    store = in_memory(captured())
    file = next(file for file in read_bucket(store).files.values() if len(file.blobs) == 1 and file.size_bytes > 10)

    def die(*arguments: object) -> int:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(transfer._Transfer, "_commit", die)
        restore_from(target, store, RebuildRequest(apply=True))
    count, (key, size_bytes) = len(blobs(target)), file.blobs[0]
    changed = b"X" * size_bytes
    store.put(key, changed, sha256=hashlib.sha256(changed).digest(), metadata=store.head(key).metadata)
    result = restore_from(target, store, RebuildRequest(paths=[file.path], apply=True))
    assert target.read(file.path) == changed
    assert result.copy is not None
    assert (result.copy.done, len(blobs(target))) == (1, count + 1)


def test_nothing_is_overwritten_or_deleted(source: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P56: under Object Lock, also when it is taken up again, and in place."""
    target = ObjectDisk("target", MemoryStore("worm", keep_for=timedelta(days=1)), tmp_path / "target")

    def die(*arguments: object) -> int:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(transfer._Transfer, "_commit", die)
        restore_from(target, source.store, RebuildRequest(apply=True))
    before = objects(target)
    result = restore_from(target, source.store, RebuildRequest(apply=True))
    assert result.copy is not None
    assert (result.copy.objects, result.copy.done) == (3, 0)
    put(target, "store/mine/f")
    restore(target, RebuildRequest(revision=1, apply=True))
    assert content(target) == content(source)
    assert before.items() <= objects(target).items()
