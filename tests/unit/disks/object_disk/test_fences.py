"""A collection beside a writer that is stopped anywhere: nothing that the log names is deleted. L5 and L6 of the
design; I3, I4, P27, P33."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from disks.base import Disk
from disks.garbage.collect import collect
from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import Conflict, FrostlineError, Refused
from oplog.kinds import Fenced, Inserted
from oplog.revision import is_blob_key
from tests.unit.disks.object_disk.stopping import TRUNCATING, Stopping


class Deleting(WrappedStore):
    """Stops a collection right before it deletes blobs."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.before: Callable[[], object] | None = None

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        wanted = list(keys)
        if self.before is not None and any(map(is_blob_key, wanted)):
            others, self.before = self.before, None
            others()
        return self.inner.delete(wanted)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("s3")


@pytest.fixture
def stopping(store: MemoryStore) -> Stopping:
    return Stopping(store)


@pytest.fixture
def deleting(store: MemoryStore) -> Deleting:
    return Deleting(store)


@pytest.fixture
def a(stopping: Stopping, tmp_path: Path) -> ObjectDisk:
    """The machine that writes."""
    return ObjectDisk("s3", stopping, tmp_path / "a", snapshot_every_commits=0)


@pytest.fixture
def b(deleting: Deleting, tmp_path: Path) -> ObjectDisk:
    """The one that collects."""
    disk = ObjectDisk("s3", deleting, tmp_path / "b", snapshot_every_commits=0)
    for number in range(3):
        put(disk, f"t/b{number}")
    return disk


def put(disk: Disk, path: str) -> int | None:
    with disk.transaction(Inserted()) as transaction:
        transaction.create(path, path.encode() * 20_000)
        return transaction.commit()


def readable(disk: Disk) -> list[str]:
    """The files, each of which can be read."""
    disk.refresh()
    found = [info.path for info in disk.walk()]
    for path in found:
        disk.read(path)
    return found


def test_a_commit_that_waited_does_not_name_collected_blobs(a: ObjectDisk, b: ObjectDisk, stopping: Stopping) -> None:
    assert readable(a) == ["t/b0", "t/b1", "t/b2"]
    stopping.before = lambda: collect(b, TRUNCATING)  # it had looked, and its request waits
    with pytest.raises(Refused, match="of t/late is gone"):
        put(a, "t/late")
    assert readable(b) == ["t/b0", "t/b1", "t/b2"]
    assert put(a, "t/late") is not None, "the next attempt uploads it anew"
    assert "t/late" in readable(b)


def test_what_a_collection_is_about_to_delete_is_not_named(a: ObjectDisk, b: ObjectDisk, deleting: Deleting) -> None:
    """It stands still between its last look and its delete."""
    assert readable(a)
    with a.transaction(Inserted()) as transaction:
        transaction.create("t/late", b"late" * 20_000)

        def commits() -> None:
            with pytest.raises(Refused, match=r"a collection is deleting object .* of t/late"):
                transaction.commit()

        deleting.before = commits
        assert collect(b, TRUNCATING).deleted == 1
    assert deleting.before is None
    assert readable(a) == readable(b)


def test_what_was_committed_before_the_fence_is_spared(a: ObjectDisk, b: ObjectDisk, store: MemoryStore) -> None:
    """It stands still between its listing and its fence."""
    assert readable(a)
    with a.transaction(Inserted()) as transaction:
        transaction.create("t/late", b"late" * 20_000)
        fence = b.fence

        def late(announcement: str) -> int:
            assert transaction.commit() is not None
            return fence(announcement)

        b.fence = late  # type: ignore[method-assign]
        report = collect(b, TRUNCATING)
    assert (report.refused, report.orphaned, report.deleted) == (None, 1, 0)
    assert "t/late" in readable(b)


def test_a_fence_is_an_entry_that_changes_nothing(a: ObjectDisk, b: ObjectDisk) -> None:
    before = readable(a)
    assert a.fence("gc/x.json") == 4
    assert readable(b) == before
    (entry,) = b.entries(since=3)
    assert entry.commit.kind == Fenced(announcement="gc/x.json")
    assert entry.commit.operations == ()


def test_young_objects_without_a_fence_are_not_asked_for(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    head = store.head
    monkeypatch.setattr(store, "head", lambda key: asked.append(key) or head(key))
    b.fence("gc/x.json")
    put(a, "t/first")
    assert asked == [], "the fence was there before the upload"
    with a.transaction(Inserted()) as transaction:
        transaction.create("t/second", b"second" * 20_000)
        b.fence("gc/y.json")
        transaction.commit()
    assert len(asked) == 1, "this one came between"
    assert readable(a) == readable(b)


def test_work_from_one_state_is_not_committed_to_another(a: ObjectDisk, b: ObjectDisk) -> None:
    """Unless what came between touched nothing that it is about."""
    for within, path, fits in (
        (None, "t/x", False),
        (["t"], "t/y", False),
        (["t"], "u/y", True),
        (["t/b1"], "t", True),
    ):
        with a.transaction(Inserted()) as transaction:
            a.refresh()
            transaction.made_from(a.revision, within)
            transaction.create(f"done/{path}{len(within or ())}.json", b"{}")
            put(b, f"{path}/new" if fits else path)
            if fits:
                assert transaction.commit() is not None
            else:
                with pytest.raises(Conflict, match="was worked out"):
                    transaction.commit()


def test_a_fence_is_nothing_that_anything_was_worked_out_from(a: ObjectDisk, b: ObjectDisk) -> None:
    with a.transaction(Inserted()) as transaction:
        a.refresh()
        transaction.made_from(a.revision)
        transaction.create("t/done.json", b"{}")
        b.fence("gc/x.json")
        assert transaction.commit() is not None
