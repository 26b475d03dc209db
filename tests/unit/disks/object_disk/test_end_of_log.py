"""A machine that lags behind a truncated log: its entry never counts in the hole, whoever is stopped where. L1 to L4 of
the design; I2, I6."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from disks.base import Disk
from disks.garbage.collect import GcReport, collect
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ByteRange, ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import Conflict, Damaged, NotFound, OutcomeUnknown
from oplog.kinds import Dropped, Inserted
from oplog.log import OperationsLog
from oplog.revision import commit_key, floor_key, parse_commit_key
from restore.check.check import check
from tests.unit.disks.object_disk.stopping import TRUNCATING, Stopping


def put(disk: Disk, *paths: str, reason: str = "") -> int | None:
    with disk.transaction(Inserted(), reason=reason) as transaction:
        for path in paths:
            transaction.create(f"{path}.json", path.encode())
        return transaction.commit()


def files(disk: Disk) -> list[str]:
    disk.refresh()
    return [info.path.removesuffix(".json") for info in disk.walk()]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("s3")


@pytest.fixture
def stopping(store: MemoryStore) -> Stopping:
    return Stopping(store)


@pytest.fixture
def a(stopping: Stopping, tmp_path: Path) -> ObjectDisk:
    """The machine that stops."""
    return ObjectDisk("s3", stopping, tmp_path / "a", snapshot_every_commits=4)


@pytest.fixture
def b(store: MemoryStore, tmp_path: Path) -> ObjectDisk:
    return ObjectDisk("s3", store, tmp_path / "b", snapshot_every_commits=4)


def truncate(b: ObjectDisk, *, rounds: int = 10) -> None:
    """Others commit, and collect the entries that the stopped machine knows and would write."""
    for number in range(rounds):
        put(b, f"t/b{number}")
    report = collect_later(b)
    assert report.refused is None
    assert report.log_deleted > 0


def collect_later(disk: Disk) -> GcReport:
    """When no lock keeps anything, where there are locks."""
    return collect(disk, TRUNCATING, now=datetime.now(UTC) + timedelta(hours=1))


def entries(store: MemoryStore) -> list[int]:
    return [revision for info in store.list("operations/") if (revision := parse_commit_key(info.key)) is not None]


def test_no_commit_is_acknowledged_in_a_truncated_log_s_hole(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping
) -> None:
    put(a, "t/first")
    put(b, "t/second")
    put(a, "t/third")
    head = a.revision
    stopping.before = lambda: truncate(b)
    revision = put(a, "t/late")
    assert revision is not None
    assert revision > head + 10, "behind what the others wrote"
    assert "t/late" in files(b)
    assert files(a) == files(b)
    fresh = ObjectDisk("s3", store, b.state_path.parent / "c")
    assert files(fresh) == files(b)


def test_the_hole_that_holds_a_stray_entry_is_told_and_collected(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping
) -> None:
    put(a, "t/first")
    stopping.before = lambda: truncate(b)
    put(a, "t/late")
    stray = 2
    assert stray in entries(store)
    assert any("revision 2" in note for note in a.recover())
    report = collect_later(b)
    assert report.refused is None
    assert stray not in entries(store)
    assert files(a) == files(b)


def test_a_drop_in_the_hole_takes_effect_or_fails_visibly(a: ObjectDisk, b: ObjectDisk, stopping: Stopping) -> None:
    """It is not lost."""
    put(a, "t/first", "t/second")
    stopping.before = lambda: truncate(b)
    with a.transaction(Inserted()) as transaction:
        transaction.remove("t/second.json")
        transaction.commit()
    assert "t/second" not in files(b)


def test_a_precondition_is_looked_at_again_behind_the_hole(a: ObjectDisk, b: ObjectDisk, stopping: Stopping) -> None:
    put(a, "t/first")

    def others() -> None:
        with b.transaction(Inserted()) as transaction:
            transaction.remove("t/first.json")
            transaction.commit()
        truncate(b)

    stopping.before = others
    with pytest.raises(Conflict), a.transaction(Inserted()) as transaction:
        transaction.require(present=("t/first.json",))
        transaction.create("t/late.json", b"late")
        transaction.commit()
    assert files(a) == files(b)
    assert "t/late" not in files(b)


def test_a_writer_stopped_after_its_entry_is_right_if_built_on(
    a: ObjectDisk, b: ObjectDisk, stopping: Stopping
) -> None:
    put(a, "t/first")
    stopping.after = lambda: [put(b, f"t/b{number}") for number in range(3)]
    assert put(a, "t/late") == 2
    assert files(a) == files(b)
    assert "t/late" in files(b)


def test_a_writer_stopped_past_its_entry_says_it_cannot_know(a: ObjectDisk, b: ObjectDisk, stopping: Stopping) -> None:
    """Stopped for longer than its entry is kept."""
    put(a, "t/first")
    stopping.after = lambda: truncate(b)
    with pytest.raises(OutcomeUnknown, match="it is unknown whether it counts"):
        put(a, "t/late")
    assert files(a) == files(b)
    assert "t/late" in files(b)


def test_a_first_entry_is_not_put_where_one_was_collected(a: ObjectDisk, b: ObjectDisk, stopping: Stopping) -> None:
    assert files(a) == []
    stopping.before = lambda: truncate(b)
    revision = put(a, "t/late")
    assert revision is not None
    assert revision > 10
    assert files(a) == files(b)


def test_a_stray_entry_built_on_by_another_stray_counts_for_none(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    """Both machines stood still at the first entry. What the second one reads in the hole it takes for the next entry:
    only what it puts itself shows that the log goes on elsewhere."""
    put(a, "t/first")
    c = ObjectDisk("s3", store, tmp_path / "c", snapshot_every_commits=4)
    assert files(c) == ["t/first"]
    stopping.before = lambda: truncate(b)
    stopping.after = lambda: put(c, "t/of-c")
    put(a, "t/of-a")
    assert {2, 3} <= set(entries(store)), "both are in the hole"
    assert files(a) == files(b) == files(c)
    assert {"t/of-a", "t/of-c"} <= set(files(b))
    assert collect_later(b).refused is None
    assert min(entries(store)) > 3


def test_a_hole_that_is_filled_to_its_end_leads_nowhere(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    """There is no gap to be seen then: only that the last entry of the hole is not what the log's first names."""
    put(a, "t/first")
    c = ObjectDisk("s3", store, tmp_path / "c", snapshot_every_commits=4)
    assert files(c) == ["t/first"]

    def all_but_the_last() -> None:
        for number in range(3):
            put(b, f"t/b{number}")
        b.write_snapshot()
        gone = [commit_key(revision) for revision in (1, 2, 3)]
        store.put_if_absent(floor_key(4), b"{}", sha256=hashlib.sha256(b"{}").digest())
        store.delete(gone)

    stopping.before = all_but_the_last
    stopping.after = lambda: put(c, "t/of-c")
    put(a, "t/of-a")
    assert files(a) == files(b) == files(c)
    assert {"t/of-a", "t/of-c"} <= set(files(b))


def test_a_bystander_s_fsck_names_an_older_version_s_hole_commit(
    a: ObjectDisk,
    b: ObjectDisk,
    store: MemoryStore,
    stopping: Stopping,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A commit that an older version acknowledged in the hole."""
    put(a, "t/first")
    stopping.before = lambda: truncate(b)
    with monkeypatch.context() as older:
        older.setattr("oplog.log.check_end", lambda *arguments: None)
        put(a, "t/late")
    bystander = ObjectDisk("s3", store, tmp_path / "c", retention_seconds=0)
    assert "t/late" not in files(bystander)
    [problem] = check({"s3": bystander}).problems
    assert (problem.invariant, problem.object) == ("I6", commit_key(2))
    assert "it is ignored" in problem.what
    assert collect_later(b).refused is None
    assert not check({"s3": bystander}).problems


def test_a_bystander_s_fsck_finds_nothing_once_it_is_recommitted(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    put(a, "t/first")
    stopping.before = lambda: truncate(b)
    put(a, "t/late")
    assert 2 in entries(store)
    assert not check({"s3": ObjectDisk("s3", store, tmp_path / "c", retention_seconds=0)}).problems


def test_fsck_knows_a_recommit_though_it_is_computed_again(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    """As a drop is, which leaves the marks that others have made meanwhile."""
    put(a, "t/first")

    def drop() -> None:
        with a.transaction(Dropped(), reason="drop table t") as transaction:
            transaction.made_from(a.revision)
            for path in files(a):
                transaction.remove(f"{path}.json")
            transaction.commit()

    stopping.before = lambda: truncate(b)
    with pytest.raises(Conflict, match="was worked out"):
        drop()
    bystander = ObjectDisk("s3", store, tmp_path / "c", retention_seconds=0)
    [problem] = check({"s3": bystander}).problems
    assert "no later entry does the same" in problem.what
    drop()
    assert not check({"s3": bystander}).problems


@pytest.mark.parametrize("noted", [0, 1, 2])
def test_a_stray_entry_right_below_the_oldest_one_is_not_shown(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path, noted: int
) -> None:
    """There is no gap between the two then, and the stray entry is built on what the machine has noted."""
    put(a, "t/first")
    put(a, "t/second")
    if noted:
        assert len(list(a.entries())) == len(list(a.commits().touching("t"))) == 2

    def all_but_the_last() -> None:
        for number in range(4):
            put(b, f"t/b{number}")
        b.write_snapshot()
        store.put_if_absent(floor_key(4), b"{}", sha256=hashlib.sha256(b"{}").digest())
        store.delete([commit_key(revision) for revision in (1, 2, 3)])

    stopping.before = all_but_the_last
    with a.transaction(Inserted(), reason="late") as transaction:
        transaction.create("t/late.json", b"late")
        committed = transaction.commit()
    assert entries(store) == [3, 4, 5, 6, 7]
    assert committed == 7
    if noted == 2:
        assert [entry.commit.reason for entry in a.entries(2)][-1] == "late", "asked from where it stood"
    for disk in (a, b):
        disk.refresh()
        assert [entry.commit.revision for entry in disk.entries()] == [4, 5, 6, 7]
        assert [entry.commit.revision for entry in disk.commits().touching("t")] == [4, 5, 6, 7]
    assert not check({"s3": ObjectDisk("s3", store, tmp_path / "c", retention_seconds=0)}).problems


def test_another_s_stray_entry_for_a_collected_one_is_no_proof(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    """The entry of the first machine counted, and was collected while it stood still. Made again it is doubled."""
    put(a, "t/first")
    behind = Stopping(store)
    c = ObjectDisk("s3", behind, tmp_path / "c", snapshot_every_commits=4)
    assert files(c) == ["t/first"]

    def others() -> None:
        truncate(b)
        behind.after = lambda: seen.append(a.store.head(commit_key(2)).size_bytes)
        put(c, "t/of-c")

    seen: list[int] = []
    stopping.after = others
    with pytest.raises(OutcomeUnknown, match="it is unknown whether it counts"):
        put(a, "t/late", reason="once")
    assert seen, "a stray entry lay in the place of the first one"
    assert 2 in entries(store)
    assert files(a) == files(b) == files(c)
    assert {"t/late", "t/of-c"} <= set(files(b))


def test_another_s_stray_entry_that_others_built_on_is_no_proof(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    put(a, "t/first")
    behind = Stopping(store)
    c, d = (ObjectDisk("s3", behind, tmp_path / name, snapshot_every_commits=4) for name in "cd")
    assert files(c) == files(d) == ["t/first"]

    def others() -> None:
        truncate(b)
        behind.after = lambda: put(d, "t/of-d")
        put(c, "t/of-c")

    stopping.after = others
    with pytest.raises(OutcomeUnknown, match="it is unknown whether it counts"):
        put(a, "t/late")
    assert {2, 3} <= set(entries(store))
    assert files(a) == files(b)
    assert {"t/late", "t/of-c", "t/of-d"} <= set(files(b))


def test_work_from_a_state_is_not_put_behind_a_stray_entry(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    """Two stood still. The stray entry that one of them met in the hole left alone what the entry there had changed.
    Even one that did not touch it."""
    put(a, "t/first", "u/first")
    c = ObjectDisk("s3", store, tmp_path / "c", snapshot_every_commits=4)
    assert files(c) == ["t/first", "u/first"]
    made_from = a.revision

    def others() -> None:
        with b.transaction(Inserted()) as transaction:
            transaction.remove("t/first.json")
            transaction.commit()
        for number in range(3):
            put(b, f"u/{number}")
        b.write_snapshot()
        store.put_if_absent(floor_key(3), b"{}", sha256=hashlib.sha256(b"{}").digest())
        store.delete([commit_key(revision) for revision in (1, 2)])
        put(c, "u/of-c")

    stopping.before = others
    with pytest.raises(Conflict, match="was worked out"), a.transaction(Inserted()) as transaction:
        transaction.made_from(made_from, within=["t"])
        transaction.create("t/late.json", b"late")
        transaction.commit()
    assert "t/late" not in files(b)


def test_one_who_died_with_its_entry_in_the_hole_stops_nobody(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    put(a, "t/first")
    stopping.before, stopping.after = lambda: truncate(b), die
    with pytest.raises(Died):
        put(a, "t/late")
    assert 2 in entries(store)
    again = ObjectDisk("s3", store, tmp_path / "a")
    assert files(again) == files(b)
    put(again, "t/again")
    assert files(again) == files(b)
    assert collect_later(b).refused is None
    assert 2 not in entries(store)


def test_leftovers_before_a_stray_entry_do_not_make_it_count(
    a: ObjectDisk, b: ObjectDisk, store: MemoryStore, stopping: Stopping, tmp_path: Path
) -> None:
    """A collection that could not delete entry 1 leaves it: the stray second one goes on from it by its digest."""
    put(a, "t/first")
    kept = store.get(commit_key(1))
    behind = ObjectDisk("s3", store, tmp_path / "c")
    assert files(behind) == ["t/first"]

    def others() -> None:
        truncate(b)
        store.put(commit_key(1), kept, sha256=hashlib.sha256(kept).digest())

    stopping.before = others
    put(a, "t/late")
    for disk in (a, behind, ObjectDisk("s3", store, tmp_path / "d")):
        assert files(disk) == files(b)
    assert collect_later(b).refused is None
    assert min(entries(store)) > 2


def test_a_head_that_is_old_is_looked_at_before_a_commit(a: ObjectDisk, b: ObjectDisk, store: MemoryStore) -> None:
    put(a, "t/first")
    truncate(b)
    a.cache.end_seen = replace(a.cache.end_seen, wall=a.cache.end_seen.wall - a.retention_seconds / 3)
    put(a, "t/late")
    assert min(entries(store)) > 2, "no stray entry"
    assert a.recover() == []
    assert files(a) == files(b)


class Reading(WrappedStore):
    """Lets others work right before an entry is read."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.before: Callable[[], object] | None = None

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if parse_commit_key(key) is not None and self.before is not None:
            others, self.before = self.before, None
            others()
        return self.inner.get(key, byte_range)


def test_what_is_collected_between_list_and_read_is_no_damage(b: ObjectDisk, store: MemoryStore) -> None:
    for number in range(4):
        put(b, f"t/first{number}")
    reading = Reading(store)
    reading.before = lambda: truncate(b)
    with pytest.raises(NotFound, match="is not kept any more"):
        list(OperationsLog(reading).entries())
    store.delete([commit_key(b.revision - 1)])
    listed = iter([b.revision - 1, b.revision])
    with pytest.raises(Damaged, match="was listed but cannot be read"):
        list(OperationsLog(reading).entries(b.revision - 2, listed=listed))


def test_opening_during_truncation_starts_at_the_newer_snapshot(
    b: ObjectDisk, store: MemoryStore, tmp_path: Path
) -> None:
    class Listing(WrappedStore):
        """Lets others work right before the entries are listed, once the snapshots are known."""

        others: Callable[[], object] | None = None
        knows = False

        def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
            self.knows = self.knows or prefix == "snapshots/"
            if prefix == "operations/" and self.knows and self.others is not None:
                others, self.others = self.others, None
                others()
            return self.inner.list(prefix, start_after=start_after)

    for number in range(3):
        put(b, f"t/first{number}")
    store.delete([info.key for info in store.list("snapshots/")])
    listing = Listing(store)
    listing.others = lambda: truncate(b)
    fresh = ObjectDisk("s3", listing, tmp_path / "c")
    assert files(fresh) == files(b)
    assert listing.others is None
    store.delete([info.key for info in store.list("snapshots/") if info.key.endswith(".zst")])
    with pytest.raises(Damaged, match="no snapshot replaces it"):
        files(ObjectDisk("s3", store, tmp_path / "d"))
