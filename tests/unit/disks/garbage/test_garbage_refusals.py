"""What a collection does not rely on: it stops, or deletes nothing (I4, I5, P25 to P36)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.garbage.collect import is_root
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.references import (
    INTENTS_PREFIX,
)
from oplog import pins
from oplog.errors import AccessDenied, Refused
from oplog.kinds import Restored
from oplog.revision import blob_key, commit_key, snapshot_key
from tests.committed import put, remove
from tests.unit.disks.garbage import buckets
from tests.unit.disks.garbage.buckets import LATER, NOW, Bucket, collect, run
from tests.unit.disks.garbage.buckets import _who_lists as _who_lists
from tests.unit.disks.garbage.buckets import bucket as bucket
from tests.unit.disks.garbage.buckets import disk as disk


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
    if buckets.in_ranges:
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
    assert "listing of the log is empty" in fresh.refused
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
