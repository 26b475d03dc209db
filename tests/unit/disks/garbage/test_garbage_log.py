"""The log under collection: entries, snapshots, pins and the clock.

Nothing goes that a revision may need (I4, I5, P25 to P36).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.effects import set_hook
from disks.garbage.announcements import announce
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.history import past_at
from disks.object_disk.references import (
    INTENTS_PREFIX,
    inventory,
)
from oplog import pins, snapshot
from oplog.errors import AccessDenied, Damaged, NotFound, Refused
from oplog.kinds import Restored
from oplog.revision import commit_key, parse_commit_key, snapshot_key
from tests.committed import put, remove
from tests.unit.disks.garbage.buckets import LATER, Bucket, collect, run
from tests.unit.disks.garbage.buckets import _who_lists as _who_lists
from tests.unit.disks.garbage.buckets import bucket as bucket
from tests.unit.disks.garbage.buckets import disk as disk


def test_a_pin_keeps_its_revision(bucket: Bucket, disk: ObjectDisk) -> None:
    """P33, I4: and one that ran out is removed and keeps nothing."""
    key = put(disk, "a/gone")
    pinned_revision = disk.revision
    remove(disk, "a/gone")
    put(disk, "a/live")
    pins.create(bucket, "backup-1", pinned_revision, holder="test", until=LATER + timedelta(days=1))
    report = run(disk, compact_after_commits=1)
    assert (report.orphaned, report.deleted) == (0, 0)
    assert key in bucket.blobs
    past = past_at(disk.log, inventory(bucket.list()), pinned_revision)
    assert [row.key for row in past.table.rows()] == [key]
    past.close()
    after = run(disk, now=LATER + timedelta(days=2), compact_after_commits=1)
    assert (after.deleted, after.pins_expired) == (1, ["backup-1"])
    assert not any(name.startswith("pins/") for name in bucket.keys)


def test_entries_go_only_behind_a_snapshot_that_was_read(
    bucket: Bucket, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, I15: what two pinned revisions name was read from the entries between them, and not from the snapshot that
    the later one is rebuilt from when those are gone."""
    monkeypatch.setattr("disks.garbage.kept_revisions._ENTRY_BYTES", -1000)
    for number in range(1, 7):
        put(disk, f"a/{number}")
        if number in (2, 5, 6):
            disk.write_snapshot()
    pins.create(bucket, "first", 2, holder="test")
    pins.create(bucket, "second", 5, holder="test")
    bucket.spoil(snapshot_key(5))
    before = bucket.keys
    report = run(disk, compact_after_commits=1)
    assert report.refused is not None
    assert "cannot be read" in report.refused
    assert (report.log_deleted, before - bucket.keys) == (0, set())
    bucket.delete([snapshot_key(5)])
    report = run(disk, compact_after_commits=1)
    assert report.refused is None
    assert report.log_deleted > 0
    for revision, files in ((2, 2), (5, 5)):
        past = past_at(disk.log, inventory(bucket.list()), revision)
        assert len(list(past.rows())) == files
        past.close()


def test_many_pins_cost_one_pass(bucket: Bucket, disk: ObjectDisk) -> None:
    """An entry is read once, however many pinned revisions come after it."""
    for number in range(1, 31):
        put(disk, f"a/{number}")
        if number % 2:
            remove(disk, f"a/{number}")
    reads: list[str] = []
    get = bucket.get
    bucket.get = lambda key, byte_range=None: reads.append(key) or get(key, byte_range)  # type: ignore[method-assign, assignment, func-returns-value]
    asked = []
    for pinned in (1, 30):
        for revision in range(1, pinned + 1):
            pins.create(bucket, f"{pinned}-{revision}", revision, holder="test")
        reads.clear()
        assert collect(disk, now=LATER, max_delete_fraction=1.0).refused is None
        asked.append(sum(key.startswith("operations/") for key in reads))
    assert asked[1] <= asked[0] + 2


def test_a_log_entry_that_stays_ends_the_deletion_of_the_log(
    bucket: Bucket, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P30, P31: what is left of the log has no gaps beyond the request that failed, and the next run finishes."""
    monkeypatch.setattr("disks.garbage.collect._LOG_BATCH_KEYS", 1)
    for number in range(10):
        put(disk, f"a/{number}")
    bucket.refuses = {commit_key(4): AccessDenied("not this one")}
    report = run(disk, compact_after_commits=5)
    assert (report.log_deleted, list(report.failed)) == (3, [commit_key(4)])
    assert sorted(filter(None, map(parse_commit_key, bucket.keys))) == list(range(4, 11))
    bucket.refuses = {}
    assert run(disk, compact_after_commits=5).log_deleted == 6


def test_a_snapshot_that_lacks_a_file_replaces_no_entry(
    bucket: Bucket, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: its checksum is right and its content is not."""
    for number in range(10):
        put(disk, f"a/{number}")
    whole = snapshot.write
    monkeypatch.setattr(
        "oplog.snapshot.write", lambda store, revision, digest, rows: whole(store, revision, digest, list(rows)[1:])
    )
    report = run(disk, compact_after_commits=5)
    assert report.refused is not None
    assert "what the log says" in report.refused
    assert sorted(inventory(bucket.list()).commits) == list(range(1, 11))


def test_old_log_goes_behind_a_snapshot_that_was_proved(bucket: Bucket, disk: ObjectDisk, tmp_path: Path) -> None:
    """P42, P44: every retained revision stays restorable, the disk goes on, the counter too."""
    for number in range(10):
        put(disk, f"a/{number}")
    report = run(disk, compact_after_commits=5)
    assert report.snapshots_written == [10]
    assert report.log_deleted == 9
    found = inventory(bucket.list())
    assert list(found.commits) == [10]
    assert list(found.snapshots) == [10]
    with pytest.raises(NotFound) as gone:
        past_at(disk.log, found, 5)
    assert "revisions that can be restored: 10" in gone.value.hint
    fresh = ObjectDisk("cold", bucket, tmp_path / "fresh")
    assert [info.path for info in fresh.walk("a")] == sorted(f"a/{number}" for number in range(10))
    put(disk, "a/next")
    assert disk.revision == 11
    assert run(disk, compact_after_commits=5).refused is None


def test_a_machine_away_during_the_collection_catches_up(bucket: Bucket, disk: ObjectDisk, tmp_path: Path) -> None:
    """Its last applied entry is gone; the snapshot that took its place is enough."""
    other = ObjectDisk("cold", bucket, tmp_path / "other")
    put(other, "a/0")
    for number in range(1, 10):
        put(disk, f"a/{number}")
    remove(disk, "a/0")
    run(disk, compact_after_commits=5)
    put(disk, "a/10")
    other.refresh()
    assert [info.path for info in other.walk()] == [info.path for info in disk.walk()]
    assert other.revision == disk.revision == 13, "one of them the fence of the collection"


def test_a_snapshot_that_cannot_be_read_back_deletes_no_commit(bucket: Bucket, disk: ObjectDisk) -> None:
    for number in range(10):
        put(disk, f"a/{number}")
    bucket.unreadable[snapshot_key(10)] = Damaged("torn")
    assert "torn" in str(run(disk, compact_after_commits=5).refused)
    assert set(range(1, 11)) <= inventory(bucket.list()).commits.keys()


def test_a_read_only_disk_is_reported_on_and_not_collected(bucket: Bucket, disk: ObjectDisk, tmp_path: Path) -> None:
    put(disk, "a/live")
    reader = ObjectDisk("cold", bucket, tmp_path / "reader", read_only=True)
    assert collect(reader, now=LATER).referenced == 1
    with pytest.raises(Refused):
        run(reader)


def test_a_wrong_clock_deletes_nothing(bucket: Bucket, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's clock jumped a year ahead: everything looks old."""
    put(disk, "a/gone")
    remove(disk, "a/gone")

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=365)

    monkeypatch.setattr("disks.garbage.collect.datetime", Ahead)
    report = collect(disk, delete=True, max_delete_fraction=1.0)
    assert report.orphaned == 1
    assert report.refused is not None
    assert "clocks" in report.refused
    assert len(bucket.blobs) == 1


def test_a_wrong_clock_ends_no_pin_or_notice_without_orphans(
    bucket: Bucket, disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours ahead, a pin that lasts one hour more looks as if it had run out, and an announcement of another
    collection as if that were long over: the clocks are compared before the first write (I4, I5)."""
    put(disk, "a/live")
    now = datetime.now(UTC)
    pins.create(bucket, "live", 1, holder="test", until=now + timedelta(hours=1))
    theirs = announce(bucket, ["r-of-somebody"], now)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(hours=2)

    monkeypatch.setattr("disks.garbage.collect.datetime", Ahead)
    report = collect(disk, delete=True)
    assert report.orphaned == 0
    assert report.refused is not None
    assert "clocks" in report.refused
    assert [pin.name for pin in pins.list_pins(bucket)] == ["live"]
    assert theirs in bucket.keys
    bucket.clock_skew = lambda: timedelta(hours=-2)  # type: ignore[method-assign]
    assert "clocks" in str(collect(disk, delete=True).refused), "as the store itself tells"
    assert theirs in bucket.keys


def test_a_restore_between_the_proof_and_the_delete_is_seen(bucket: Bucket, disk: ObjectDisk) -> None:
    """P33: whoever takes a pin after the references were read stops the collection at its last look."""
    key = put(disk, "a/gone")
    remove(disk, "a/gone")

    def race(prefix: str) -> None:
        if prefix == pins.PINS_PREFIX and any(name.startswith(INTENTS_PREFIX) for name in bucket.keys):
            bucket.on_list = lambda prefix: None
            pins.create(bucket, "restore-x", 1, holder="test")

    bucket.on_list = race
    report = run(disk)
    assert report.refused is not None
    assert "restore-x" in report.refused
    assert key in bucket.blobs


def test_a_commit_between_the_proof_and_the_delete_is_seen(bucket: Bucket, disk: ObjectDisk) -> None:
    """I5: a commit that names an orphan again, made after the references were read."""
    key = put(disk, "a/gone")
    row = disk.file_table.get("a/gone")
    assert row is not None
    remove(disk, "a/gone")

    def race(prefix: str) -> None:
        if prefix == pins.PINS_PREFIX and any(name.startswith(INTENTS_PREFIX) for name in bucket.keys):
            bucket.on_list = lambda prefix: None
            with disk.transaction(Restored()) as transaction:
                transaction.adopt(row)  # type: ignore[attr-defined]
                transaction.commit()

    bucket.on_list = race
    assert run(disk).deleted == 0
    assert key in bucket.blobs
    assert disk.read("a/gone") == b"some bytes"


class Died(BaseException):
    """The process ends here."""


def test_dying_at_every_effect_loses_nothing_and_a_rerun_ends_it(tmp_path: Path) -> None:
    """P31, I4: enumerate the side effects of a collection, die at each, look, collect again."""
    step = 0
    while True:
        bucket = Bucket()
        disk = ObjectDisk("cold", bucket, tmp_path / str(step), snapshot_every_commits=0)
        for number in range(4):
            put(disk, f"a/{number}")
        for number in range(2):
            remove(disk, f"a/{number}")
        count = 0

        def die(when: str, name: str, arguments: tuple[object, ...], step: int = step) -> None:
            nonlocal count
            if when == "before" and name.startswith("store."):
                count += 1
                if count > step:
                    raise Died

        set_hook(die)
        try:
            run(disk, compact_after_commits=2)
        except Died:
            pass
        finally:
            set_hook(None)
        finished = count <= step
        fresh = ObjectDisk("cold", bucket, tmp_path / f"{step}-fresh")
        assert {info.path: fresh.read(info.path) for info in fresh.walk("a")} == {
            "a/2": b"some bytes",
            "a/3": b"some bytes",
        }
        report = run(fresh, compact_after_commits=2)
        assert report.refused is None
        assert len(bucket.blobs) == 2
        left = run(fresh, now=LATER, compact_after_commits=2)
        assert (left.orphaned, left.log_collectable, left.refused) == (0, 0, None)
        assert not inventory(bucket.list()).intents
        if finished:
            break
        step += 1
    assert step > 5
