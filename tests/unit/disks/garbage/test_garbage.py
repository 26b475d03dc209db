"""disks.garbage.collect: nothing that is named ever goes, and every doubt stops a collection (I4, I5, P25 to P36)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from disks.object_disk.disk import ObjectDisk
from disks.object_disk.pending_deletes import announced
from disks.object_disk.references import (
    INTENTS_PREFIX,
    inventory,
)
from disks.stores.base import Upload
from disks.stores.bucket_settings import BucketSettings, ObjectLock, OldVersion
from oplog import pins
from oplog.errors import AccessDenied, FrostlineError, Retained
from oplog.kinds import Inserted, Restored
from oplog.revision import blob_key, commit_key
from tests.committed import put, remove
from tests.unit.disks.garbage.buckets import LATER, NOW, Bucket, collect, run
from tests.unit.disks.garbage.buckets import _who_lists as _who_lists
from tests.unit.disks.garbage.buckets import bucket as bucket
from tests.unit.disks.garbage.buckets import disk as disk


def orphan(disk: ObjectDisk, data: bytes = b"abandoned") -> str:
    """A blob of a transaction that never committed."""
    transaction = disk.transaction(Inserted())
    info = transaction.create("never/committed", data)
    transaction.abandon()
    assert info.key is not None
    return info.key


def test_report_counts_and_deletes_nothing(bucket: Bucket, disk: ObjectDisk) -> None:
    put(disk, "a/live")
    put(disk, "a/gone", b"12345")
    remove(disk, "a/gone")
    before = bucket.keys
    report = collect(disk, now=LATER)
    assert (report.referenced, report.pending, report.orphaned, report.orphaned_bytes) == (1, 0, 1, 5)
    assert (report.deleted, report.deleted_bytes, report.refused) == (0, 0, None)
    assert bucket.keys == before


def test_delete_takes_only_orphans_and_a_second_run_nothing(bucket: Bucket, disk: ObjectDisk) -> None:
    """I4, I5, P31."""
    live = put(disk, "a/live")
    put(disk, "a/gone", b"12345")
    remove(disk, "a/gone")
    report = run(disk)
    assert (report.orphaned, report.deleted, report.deleted_bytes) == (1, 1, 5)
    assert bucket.blobs == {live}
    assert disk.read("a/live") == b"some bytes"
    assert not inventory(bucket.list()).intents
    again = run(disk)
    assert (again.orphaned, again.deleted, again.refused) == (0, 0, None)


class LockedBucket(Bucket):
    """Keeps everything until `locked_until` is None."""

    def __init__(self) -> None:
        super().__init__()
        self.locked_until: datetime | None = LATER + timedelta(days=27)

    def delete(self, keys: Any) -> dict[str, FrostlineError | None]:
        wanted = tuple(keys)
        if self.locked_until is None:
            return super().delete(wanted)
        return {key: Retained("kept", until=self.locked_until) if key in self._objects else None for key in wanted}


def test_what_a_lock_keeps_is_no_failure_and_goes_when_it_ends(tmp_path: Path) -> None:
    """P56, P31: a collection under Object Lock says until when, deletes nothing, and a later one has it all."""
    bucket = LockedBucket()
    disk = ObjectDisk("cold", bucket, tmp_path / "state", snapshot_every_commits=0)
    live = put(disk, "a/live")
    gone = put(disk, "a/gone", b"12345")
    remove(disk, "a/gone")
    pins.create(bucket, "old", 1, holder="test", until=NOW + timedelta(minutes=1))
    for _ in range(2):
        report = run(disk)
        assert (report.orphaned, report.deleted, report.failed, report.refused) == (1, 0, {}, None)
        assert report.kept[gone] == bucket.locked_until
        assert announced(disk, now=LATER) == set(), "an announcement that cannot be deleted must not stop a restore"
    assert disk.read("a/live") == b"some bytes"
    bucket.locked_until = None
    report = run(disk)
    assert (report.deleted, report.kept) == (1, {})
    assert bucket.blobs == {live}
    run(disk)
    assert not [key for key in bucket.keys if key.startswith(("pins/", INTENTS_PREFIX))]


def test_leftovers_of_killed_trials_go_and_only_those(bucket: Bucket, disk: ObjectDisk) -> None:
    """P26, P36: what doctor and objbench write has names of its own, and an owner: gc."""
    put(disk, "a/live")
    ours = [f"doctor/{'0a' * 8}/one", f"objbench/{'0b' * 8}/4096-17"]
    foreign = ["doctor/notes.txt", f"objbench/{'0b' * 8}/a/b", f"doctor/{'xy' * 8}/one"]
    for key in (*ours, *foreign):
        bucket.put(key, b"x", sha256=hashlib.sha256(b"x").digest())
    bucket.uploads = [Upload(f"doctor/{'0a' * 8}/parts", "1", NOW), Upload("doctor/notes", "2", NOW)]
    young = collect(disk, now=NOW + timedelta(hours=1), delete=True)
    assert young.scratch_deleted == 0
    report = run(disk)
    assert (report.scratch_deleted, sorted(report.foreign)) == (2, sorted(foreign))
    assert not bucket.keys.intersection(ours)
    assert bucket.keys.issuperset(foreign)
    assert [upload.upload_id for upload in bucket.uploads] == ["2"]


def test_a_blob_removed_a_minute_ago_outlives_its_own_age(bucket: Bucket, disk: ObjectDisk) -> None:
    """I4: what counts is when the last retained revision stopped naming it, not how old the object is."""
    key = put(disk, "a/old")
    for each in list(bucket.keys):
        bucket.date(each, NOW - timedelta(days=400))
    remove(disk, "a/old")
    report = run(disk, now=datetime.now(UTC) + timedelta(minutes=1))
    assert (report.referenced, report.orphaned, report.deleted) == (1, 0, 0)
    assert key in bucket.blobs
    assert run(disk).deleted == 1


def test_a_blob_that_came_and_went_within_the_retention_stays(bucket: Bucket, disk: ObjectDisk) -> None:
    """I4, I7: neither the oldest retained revision nor the newest names it, one in between does."""
    put(disk, "a/live")
    bucket.date(commit_key(1), NOW - timedelta(days=2))
    key = put(disk, "a/short-lived")
    remove(disk, "a/short-lived")
    report = run(disk, now=datetime.now(UTC) + timedelta(hours=2), guard=timedelta(hours=1))
    assert (report.referenced, report.orphaned, report.oldest_revision) == (2, 0, 1)
    assert key in bucket.blobs


def test_young_orphans_are_pending(bucket: Bucket, disk: ObjectDisk) -> None:
    """P27: an upload under way looks like garbage."""
    put(disk, "a/live")
    key = orphan(disk)
    report = run(disk, now=datetime.now(UTC) + timedelta(hours=2))
    assert (report.pending, report.orphaned, report.deleted) == (1, 0, 0)
    assert key in bucket.blobs


def test_an_abandoned_upload_goes_after_the_guard_in_an_idle_log(bucket: Bucket, disk: ObjectDisk) -> None:
    """P27: nobody else may ever commit; that the next entry does not exist is asked by name, not read off a listing."""
    put(disk, "a/live")
    key = orphan(disk)
    assert run(disk, now=datetime.now(UTC) + timedelta(hours=23)).pending == 1
    assert key in bucket.blobs
    assert run(disk).deleted == 1
    assert key not in bucket.blobs


def test_blobs_for_an_unsettled_revision_are_pending_at_any_age(bucket: Bucket, disk: ObjectDisk) -> None:
    """P29: entries between this and the head may be lost or hidden, and name it."""
    put(disk, "a/live")
    key = blob_key(3)
    bucket.put(key, b"x", sha256=hashlib.sha256(b"x").digest())
    report = run(disk, now=NOW + timedelta(days=400))
    assert (report.pending, report.deleted) == (1, 0)
    put(disk, "a/another")
    assert run(disk, now=NOW + timedelta(days=400)).deleted == 1
    assert key not in bucket.blobs


def test_a_quarantine_deletes_only_what_an_earlier_run_announced(bucket: Bucket, disk: ObjectDisk) -> None:
    """P31: between the two runs there is time to look. The lists go when nothing of them is left."""
    put(disk, "a/live")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    day = timedelta(days=1)
    first = run(disk, quarantine=day)
    assert (first.orphaned, first.quarantined, first.deleted) == (1, 1, 0)
    for key in bucket.keys:
        if key.startswith(INTENTS_PREFIX):
            bucket.date(key, LATER)
    soon = run(disk, quarantine=day, now=LATER + timedelta(hours=23))
    assert (soon.quarantined, soon.deleted) == (1, 0)
    assert announced(disk, now=LATER) == set(), "a list of condemned objects binds no restore"
    then = run(disk, quarantine=day, now=LATER + timedelta(hours=25))
    assert (then.quarantined, then.deleted) == (0, 1)
    assert not inventory(bucket.list()).intents


def test_what_is_named_again_during_its_quarantine_stays(bucket: Bucket, disk: ObjectDisk) -> None:
    """I4: condemned is not convicted; every run judges anew."""
    key = put(disk, "a/gone")
    row = disk.file_table.get("a/gone")
    assert row is not None
    remove(disk, "a/gone")
    put(disk, "a/live")
    assert run(disk, quarantine=timedelta(hours=1)).quarantined == 1
    with disk.transaction(Restored()) as transaction:
        transaction.adopt(row)  # type: ignore[attr-defined]
        transaction.commit()
    report = run(disk, quarantine=timedelta(hours=1), now=LATER + timedelta(days=30))
    assert (report.orphaned, report.deleted) == (0, 0)
    assert key in bucket.blobs
    assert not inventory(bucket.list()).intents


def test_foreign_names_are_reported_and_survive(bucket: Bucket, disk: ObjectDisk) -> None:
    """P26."""
    put(disk, "a/live")
    foreign = {"notes.txt", "backup/r01-file-x", "r101-file-abc", "snapshots/old.zst", "gc/deep/x.json", "pins.json"}
    for key in foreign:
        bucket.put(key, b"mine", sha256=hashlib.sha256(b"mine").digest())
    report = run(disk, now=NOW + timedelta(days=400))
    assert set(report.foreign) == foreign
    assert report.refused is None
    assert foreign <= bucket.keys


def test_results_are_read_a_key(bucket: Bucket, disk: ObjectDisk) -> None:
    """P30: a batch answers 200 with errors for some keys; the next run tries them again."""
    for number in range(7):
        put(disk, f"a/{number}")
        remove(disk, f"a/{number}")
    stubborn = sorted(bucket.blobs)[3]
    bucket.refuses = {stubborn: AccessDenied("not this one")}
    report = run(disk)
    assert (report.orphaned, report.deleted, list(report.failed)) == (7, 6, [stubborn])
    bucket.refuses = {}
    assert run(disk).deleted == 1
    assert bucket.blobs == set()


def test_errors_for_every_seventh_key_lose_nothing(bucket: Bucket, disk: ObjectDisk) -> None:
    """P30: errors are read a key, told, and the keys tried again until all are gone."""
    for number in range(40):
        put(disk, f"a/{number}")
        remove(disk, f"a/{number}")
    live = put(disk, "a/live")
    left = sorted(bucket.blobs - {live})
    runs = 0
    while left:
        bucket.refuses = {key: AccessDenied("not now") for number, key in enumerate(left, 1) if number % 7 == 0}
        report = run(disk)
        assert set(report.failed) == set(bucket.refuses)
        assert report.deleted == len(left) - len(bucket.refuses)
        left = sorted(bucket.blobs - {live})
        runs += 1
    assert runs == 2
    assert bucket.blobs == {live}


def test_old_versions_are_counted_and_never_touched(bucket: Bucket, disk: ObjectDisk) -> None:
    """P34: on a versioned bucket a delete adds a marker; the report says who pays."""
    put(disk, "a/live")
    old = [
        OldVersion(blob_key(1), 7, NOW),
        OldVersion(blob_key(1), 0, NOW, is_marker=True),
        OldVersion("somebody/else", 100, NOW),
    ]
    assert run(disk).versioning is None
    bucket.bucket_settings = lambda: BucketSettings("on", (), ObjectLock(False))  # type: ignore[method-assign]
    bucket.old_versions = lambda prefix="": iter(old)  # type: ignore[method-assign]
    report = run(disk)
    assert (report.versioning, report.old_versions, report.old_version_bytes) == ("on", 2, 7)


def test_old_uploads_are_aborted_but_no_young_or_foreign_ones(bucket: Bucket, disk: ObjectDisk) -> None:
    """P35."""
    put(disk, "a/live")
    old = Upload(blob_key(1), "1", NOW)
    young = Upload(blob_key(1), "2", LATER - timedelta(hours=1))
    foreign = Upload("somebody/else", "3", NOW)
    bucket.uploads = [old, young, foreign]
    assert run(disk, delete=False).uploads == 1
    assert bucket.uploads == [old, young, foreign]
    assert run(disk).uploads_aborted == 1
    assert bucket.uploads == [young, foreign]
