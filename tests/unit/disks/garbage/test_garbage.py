"""disks.garbage.collect: nothing that is named ever goes, and every doubt stops a collection (I4, I5, P25 to P36)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks.effects import set_hook
from disks.garbage import collect as garbage
from disks.garbage.announcements import announce
from disks.garbage.collect import GcReport, is_root
from disks.garbage.listing import cut_ranges
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.history import past_at
from disks.object_disk.pending_deletes import announced
from disks.object_disk.references import (
    INTENTS_PREFIX,
    Blobs,
    classify,
    collectable_log,
    disagreement,
    inventory,
    retained_from,
)
from disks.stores.base import ObjectInfo, ObjectStore, Upload
from disks.stores.bucket_settings import BucketSettings, ObjectLock, OldVersion
from disks.stores.memory import MemoryStore
from disks.workers.runner import LocalRunner, Remote
from oplog import pins, snapshot
from oplog.errors import AccessDenied, Damaged, FrostlineError, NotFound, Refused, Retained
from oplog.kinds import Inserted, Restored
from oplog.revision import blob_key, commit_key, parse_blob_key, parse_commit_key, snapshot_key
from tests.committed import put, remove
from tests.turns import examples

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=3)
"""When everything written by a test is older than guard and retention."""


class Bucket(MemoryStore):
    """A memory store whose clock, listings and answers a test can bend."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Callable[[int, str], bool] = lambda listing, key: False
        self.listings = 0
        self.on_list: Callable[[str], None] = lambda prefix: None
        self.refuses: dict[str, FrostlineError] = {}
        self.unreadable: dict[str, FrostlineError] = {}
        self.uploads: list[Upload] = []

    def date(self, key: str, modified: datetime) -> None:
        data, info = self._objects[key]
        self._objects[key] = (data, ObjectInfo(info.key, info.size_bytes, modified, info.metadata))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.on_list(prefix)
        if prefix == "":
            self.listings += 1
        shown = list(super().list(prefix, start_after=start_after))
        return iter([info for info in shown if not self.hidden(self.listings, info.key)])

    def get(self, key: str, byte_range: Any = None) -> bytes:
        if key in self.unreadable:
            raise self.unreadable[key]
        return super().get(key, byte_range)

    def delete(self, keys: Any) -> dict[str, FrostlineError | None]:
        wanted = tuple(keys)
        refused: dict[str, FrostlineError | None] = {key: self.refuses[key] for key in wanted if key in self.refuses}
        return super().delete([key for key in wanted if key not in refused]) | refused

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        return iter(list(self.uploads))

    def abort_upload(self, upload: Upload) -> None:
        self.uploads.remove(upload)

    @property
    def keys(self) -> set[str]:
        return set(self._objects)

    @property
    def blobs(self) -> set[str]:
        return {key for key in self._objects if parse_blob_key(key) is not None}

    def spoil(self, key: str, data: bytes = b"{not json") -> None:
        _, info = self._objects[key]
        self._objects[key] = (data, ObjectInfo(key, len(data), info.modified))


class Here:
    """A store of this process, described by itself."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def open(self) -> ObjectStore:
        return self._store


in_ranges = False
"""Whether the bucket is listed in ranges of two keys, by others, or whole, here: every rule holds for both."""


@pytest.fixture(autouse=True, params=["whole", "ranges"])
def _who_lists(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "in_ranges", request.param == "ranges")
    monkeypatch.setitem(cut_ranges.__kwdefaults__, "keys", 2)


def collect(disk: ObjectDisk, *, now: datetime | None = None, **options: Any) -> GcReport:
    remote = Remote(LocalRunner(), Here(disk.store)) if in_ranges else None
    return garbage.collect(disk, GcRules(**options), now=now, remote=remote)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def disk(bucket: Bucket, tmp_path: Path) -> ObjectDisk:
    return ObjectDisk("cold", bucket, tmp_path / "state", snapshot_every_commits=0)


def orphan(disk: ObjectDisk, data: bytes = b"abandoned") -> str:
    """A blob of a transaction that never committed."""
    transaction = disk.transaction(Inserted())
    info = transaction.create("never/committed", data)
    transaction.abandon()
    assert info.key is not None
    return info.key


def run(disk: ObjectDisk, *, now: datetime | None = LATER, **options: Any) -> GcReport:
    """A collection three days later, with no cap on the share."""
    return collect(disk, now=now, **{"delete": True, "max_delete_fraction": 1.0, **options})


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


def test_a_bucket_that_is_behind_the_cache_stops_everything(bucket: Bucket, disk: ObjectDisk) -> None:
    """P29: the cache is a second witness of how far the log went."""
    put(disk, "a/live")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    put(disk, "a/newest")
    bucket.delete([commit_key(4)])
    report = run(disk)
    assert report.refused is not None
    assert "revision 4" in report.refused
    assert report.deleted == 0


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


def test_a_hidden_next_entry_stops_everything(bucket: Bucket, disk: ObjectDisk, tmp_path: Path) -> None:
    """P29: every listing hides the newest commit, whose blobs look abandoned."""
    put(disk, "a/live")
    put(disk, "a/newest")
    newest = commit_key(2)
    bucket.hidden = lambda listing, name: name == newest
    fresh = ObjectDisk("cold", bucket, tmp_path / "fresh")
    report = run(fresh, now=NOW + timedelta(days=400))
    assert report.refused is not None
    assert "log entry 2" in report.refused
    assert len(bucket.blobs) == 2


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


def test_an_unreadable_list_of_condemned_objects_stops_all(bucket: Bucket, disk: ObjectDisk) -> None:
    put(disk, "a/live")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    run(disk, quarantine=timedelta(hours=1))
    (name,) = (key for key in bucket.keys if key.startswith(INTENTS_PREFIX))
    bucket.spoil(name)
    report = run(disk, quarantine=timedelta(hours=1))
    assert report.refused is not None
    assert report.deleted == 0


@pytest.mark.parametrize("url", ["s3://bucket/", "s3://bucket", "file:///", "s3://bucket//"])
def test_a_disk_without_a_prefix_is_not_collected(bucket: Bucket, disk: ObjectDisk, url: str) -> None:
    """P32: an empty prefix, or a root, is refused; a report may be had."""
    put(disk, "a/gone")
    remove(disk, "a/gone")
    put(disk, "a/live")
    bucket.name = url
    disk.close()
    fresh = ObjectDisk("cold", bucket, disk.state_path.with_name("fresh"))
    with pytest.raises(Refused) as refused:
        run(fresh)
    assert refused.value.exit_code == 13
    assert len(bucket.blobs) == 2
    assert run(fresh, delete=False).orphaned == 1
    assert run(fresh, allow_bucket_root=True).deleted == 1


def test_a_prefix_is_no_root() -> None:
    """P32."""
    assert not any(map(is_root, ["s3://bucket/p/", "file:///srv/", "file:///srv/bucket/", "memory://x"]))


def test_the_guard_has_a_floor(disk: ObjectDisk) -> None:
    """P28."""
    put(disk, "a/live")
    for seconds in (0, 1, 3599):
        with pytest.raises(Refused) as refused:
            collect(disk, guard=timedelta(seconds=seconds))
        assert refused.value.exit_code == 13
    assert collect(disk, guard=timedelta(hours=1)).refused is None
    assert collect(disk, guard=timedelta(0), allow_short_guard=True).refused is None


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


@pytest.mark.parametrize("modified", [LATER + timedelta(days=1), datetime(1970, 1, 1, tzinfo=UTC)])
def test_impossible_times_are_kept_and_reported(bucket: Bucket, disk: ObjectDisk, modified: datetime) -> None:
    """I5: an object from the future or from before object stores has no age."""
    put(disk, "a/gone")
    remove(disk, "a/gone")
    (key,) = bucket.blobs
    bucket.date(key, modified)
    report = run(disk)
    assert (report.orphaned, report.deleted, report.suspicious) == (0, 0, [key])
    assert key in bucket.blobs


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


@pytest.mark.parametrize("source", ["pin", "commit", "snapshot", "denied pin", "gap"])
def test_an_unreadable_source_stops_everything(bucket: Bucket, disk: ObjectDisk, source: str) -> None:
    """I5: no proof, no delete."""
    put(disk, "a/live")
    if source == "snapshot":
        disk.write_snapshot()
    put(disk, "a/gone")
    remove(disk, "a/gone")
    pins.create(bucket, "p", 1, holder="test")
    match source:
        case "pin":
            bucket.spoil("pins/p.json")
        case "denied pin":
            bucket.unreadable["pins/p.json"] = AccessDenied("403")
        case "commit":
            bucket.spoil(commit_key(2))
        case "snapshot":
            bucket.spoil(snapshot_key(1))
        case "gap":
            bucket.delete([commit_key(2)])
    before = bucket.keys
    report = run(disk)
    assert report.refused is not None
    assert "references" in report.refused
    assert report.deleted == 0
    assert bucket.keys == before


def test_an_altered_commit_stops_everything(bucket: Bucket, disk: ObjectDisk) -> None:
    put(disk, "a/live")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    altered = bucket.get(commit_key(2)).replace(b"insert", b"insort")
    bucket.spoil(commit_key(2), altered)
    report = run(disk)
    assert report.refused is not None
    assert "altered" in report.refused


def test_listings_that_disagree_stop_everything(bucket: Bucket, disk: ObjectDisk) -> None:
    """P29: a truncated listing."""
    if in_ranges:
        pytest.skip("each range has its two listings: test_listing.py")
    put(disk, "a/live")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    victim = max(bucket.blobs)
    bucket.date(victim, NOW - timedelta(hours=1))
    for short in (1, 2):
        bucket.listings = 0
        bucket.hidden = lambda listing, key, short=short: listing == short and key == victim  # type: ignore[misc]
        report = run(disk)
        assert report.refused is not None, short
        assert report.deleted == 0


def test_a_listing_twice_without_a_live_object_stops_everything(bucket: Bucket, disk: ObjectDisk) -> None:
    """P25: if live objects are not in the listing, it is not a listing of this disk."""
    live = put(disk, "a/live")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    bucket.hidden = lambda listing, key: key == live
    report = run(disk)
    assert report.refused is not None
    assert live in report.refused


def test_a_listing_without_new_commits_deletes_nothing_of_theirs(bucket: Bucket, disk: ObjectDisk) -> None:
    """P29, P41: the last commit names an old blob again, and every listing hides it."""
    key = put(disk, "a/gone")
    row = disk.file_table.get("a/gone")
    assert row is not None
    remove(disk, "a/gone")
    put(disk, "a/live")
    with disk.transaction(Restored()) as transaction:
        transaction.adopt(row)  # type: ignore[attr-defined]
        transaction.commit()
    disk.close()
    fresh = ObjectDisk("cold", bucket, disk.state_path.with_name("fresh"))
    newest = commit_key(4)
    bucket.hidden = lambda listing, name: name == newest
    report = run(fresh)
    assert report.refused is not None
    assert newest.removeprefix("operations/") in report.refused or "log entry 4" in report.refused
    assert key in bucket.blobs


def test_an_empty_log_proves_nothing(bucket: Bucket, disk: ObjectDisk) -> None:
    """P32: a wrong prefix, or a log that is lost."""
    bucket.put(blob_key(1), b"x", sha256=hashlib.sha256(b"x").digest())
    report = run(disk, now=NOW + timedelta(days=400))
    assert report.refused is not None
    assert len(bucket.blobs) == 1


def test_an_empty_listing_of_a_disk_the_cache_knows_is_refused(
    bucket: Bucket, disk: ObjectDisk, tmp_path: Path
) -> None:
    """P29, P32: a wrong prefix, or a listing without a key. On a new machine the first entry contradicts it; a disk
    that was never written to is nothing to refuse."""
    put(disk, "a/live")
    bucket.hidden = lambda listing, key: True
    report = run(disk)
    assert report.refused is not None
    assert "knows better" in report.refused
    fresh = run(ObjectDisk("cold", bucket, tmp_path / "fresh"))
    assert fresh.refused is not None
    assert "a listing of the log is empty" in fresh.refused
    assert len(bucket.blobs) == 1
    assert run(ObjectDisk("cold", Bucket(), tmp_path / "never")).refused is None


def test_share_cap_refuses_and_byte_cap_ends_early(bucket: Bucket, disk: ObjectDisk) -> None:
    for number in range(4):
        put(disk, f"a/{number}", bytes(100))
    for number in range(3):
        remove(disk, f"a/{number}")
    refused = run(disk, max_delete_fraction=0.1)
    assert refused.refused is not None
    assert "--max-delete-fraction" in refused.refused
    assert refused.deleted == 0
    some = run(disk, max_delete_bytes=250)
    assert (some.deleted, some.deleted_bytes, some.limited, some.refused) == (2, 200, True, None)
    assert run(disk).deleted == 1


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
    assert "does not hold what the log says" in report.refused
    assert sorted(inventory(bucket.list()).commits) == list(range(1, 11))


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


# The pure part


def at(key: str, hours: float = 0, size_bytes: int = 1) -> ObjectInfo:
    return ObjectInfo(key, size_bytes, NOW - timedelta(hours=hours))


def test_retention_begins_before_the_first_young_commit() -> None:
    """With the revision before it."""
    commits = {1: at("", 50), 2: at("", 40), 3: at("", 10), 4: at("", 30)}
    day = timedelta(hours=24)
    assert retained_from(commits, now=NOW, retention=day) == 2
    assert retained_from(commits, now=NOW, retention=timedelta(0)) == 4
    assert retained_from(commits, now=NOW, retention=timedelta(hours=99)) == 0
    assert retained_from({}, now=NOW, retention=day) == 0
    strange = {**commits, 1: ObjectInfo("", 1, datetime(1970, 1, 1, tzinfo=UTC))}
    assert retained_from(strange, now=NOW, retention=day) == 0


def test_listings_agree_unless_a_blob_goes_changes_or_comes_late() -> None:
    """P29."""

    def objection(first: list[ObjectInfo], second: list[ObjectInfo]) -> str | None:
        found = inventory(first).blobs
        assert isinstance(found, Blobs)
        return disagreement(found, second)

    one, two, three = at(blob_key(1), 9), at(blob_key(2), 8), ObjectInfo(blob_key(3), 1, NOW)
    assert objection([one, two], [one, two]) is None
    assert objection([one], [one, three]) is None
    assert objection([one, three], [one, ObjectInfo(blob_key(2), 1, NOW), three]) is None
    assert objection([one, two], [one]) is not None
    assert objection([one, two], [two]) is not None
    assert objection([one, two], []) is not None
    assert objection([one], [ObjectInfo(one.key, 2, one.modified)]) is not None
    assert objection([one], [ObjectInfo(one.key, 1, NOW)]) is not None
    assert objection([two], [one, two]) is not None
    assert objection([one, one], [one]) is not None
    assert objection([one], [one, one]) is not None
    assert objection([one, two], [one, two, one]) is not None
    assert objection([at("pins/a.json")], []) is None


revisions = st.integers(min_value=1, max_value=30)


@settings(max_examples=examples(300))
@given(head=revisions, snapshots=st.sets(revisions), pinned=st.sets(revisions), data=st.data())
def test_no_log_object_goes_that_a_restorable_revision_needs(
    head: int, snapshots: set[int], pinned: set[int], data: st.DataObject
) -> None:
    """I4 for the log: whatever was restorable and is retained or pinned stays so."""
    base = data.draw(st.integers(min_value=0, max_value=head))
    snapshots = {revision for revision in snapshots if revision <= head}
    commits = set(range(1, head + 1))

    def possible(revision: int, commits: set[int], snapshots: set[int]) -> bool:
        return any(start <= revision and set(range(start + 1, revision + 1)) <= commits for start in (0, *snapshots))

    old_commits, old_snapshots = collectable_log(commits, snapshots, base=base, pinned=pinned)
    left_commits, left_snapshots = commits - set(old_commits), snapshots - set(old_snapshots)
    for revision in {*range(base, head + 1), *(pin for pin in pinned if pin <= head)}:
        assert possible(revision, left_commits, left_snapshots)
    assert head in left_commits
    assert sorted(left_commits) == list(range(min(left_commits), head + 1)), "a gap"
    assert not snapshots or max(snapshots) in left_snapshots


@settings(max_examples=examples(200))
@given(
    blobs=st.lists(st.tuples(st.integers(1, 9), st.integers(-50, 100), st.booleans()), max_size=20),
    head=st.integers(1, 9),
)
def test_only_old_unnamed_settled_blobs_are_orphans(blobs: list[tuple[int, int, bool]], head: int) -> None:
    """I5: each blob is in one class, and an orphan has every property that it needs to go."""
    listed = [at(blob_key(revision), hours) for revision, hours, _ in blobs]
    named = {entry.key for entry, (_, _, is_named) in zip(listed, blobs, strict=True) if is_named}
    verdict = classify(Blobs(listed), named, head=head, now=NOW, guard=timedelta(hours=24))
    assert verdict.referenced == len(named)
    classes = [*verdict.pending, *verdict.orphaned, *verdict.suspicious]
    assert sorted(entry.key for entry in classes) == sorted({entry.key for entry in listed} - named)
    for entry in verdict.orphaned:
        assert entry.key not in named
        assert (parse_blob_key(entry.key) or 99) <= head
        assert NOW - entry.modified >= timedelta(hours=24)
