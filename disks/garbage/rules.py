"""The rules that every collection goes by, whatever kind of disk it is of: caps, limits, quarantine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from disks.contracts.bucket_disk import BucketDisk
from disks.garbage.announcements import Announced
from disks.garbage.report import GcReport, SafetyStop
from disks.object_disk.references import Blobs, BlobState, ListedBlobs, sane_time
from disks.stores.base import ObjectInfo


class GcRules(msgspec.Struct, frozen=True):
    """What a collection may do: built once, where the question comes in, and handed through whole."""

    guard: timedelta = timedelta(hours=24)
    """Younger objects stay: no operation may run longer between its first upload and its commit."""
    delete: bool = False
    """Delete what may go; else only report it."""
    max_delete_bytes: int | None = None
    """Stop there; a later run goes on."""
    max_delete_fraction: float = 0.1
    """Delete nothing when a larger share of the blobs would go."""
    quarantine: timedelta = timedelta(0)
    """Delete only what a run this long ago announced."""
    retention: timedelta | None = None
    """None: the disk's own."""
    compact_after_commits: int = 100
    """Write a snapshot when so many log entries can go for it."""
    allow_short_guard: bool = False
    allow_bucket_root: bool = False
    """Delete on a disk that is a whole bucket."""

    def retention_on(self, disk: BucketDisk) -> timedelta:
        """How long what was removed from this disk stays."""
        return timedelta(seconds=disk.retention_seconds) if self.retention is None else self.retention


def by_age(blobs: Blobs, named: Collection[str], guard: timedelta, now: datetime) -> BlobState:
    """Put every blob into its class where only references and ages tell."""
    pending, orphaned, suspicious = [], [], []
    for blob in blobs.outside(named):
        if not sane_time(blob.modified, now):
            suspicious.append(blob)
        elif now - blob.modified < guard:
            pending.append(blob)
        else:
            orphaned.append(blob)
    orphaned.sort(key=lambda blob: (blob.modified, blob.key))
    counted = len(blobs) - len(pending) - len(orphaned) - len(suspicious)
    return BlobState(counted, tuple(pending), tuple(orphaned), tuple(suspicious))


def count_verdict(verdict: BlobState, report: GcReport) -> None:
    """The counts of a verdict, in the report."""
    report.referenced = verdict.referenced
    report.pending = len(verdict.pending)
    report.orphaned = len(verdict.orphaned)
    report.orphaned_bytes = sum(blob.size_bytes for blob in verdict.orphaned)
    report.orphans = [blob.key for blob in verdict.orphaned]
    report.suspicious = [blob.key for blob in verdict.suspicious]


def check_caps(blobs: ListedBlobs, verdict: BlobState, rules: GcRules) -> None:
    """Raise `SafetyStop` when too large a share would go."""
    by_count = len(verdict.orphaned) / max(len(blobs), 1)
    by_bytes = sum(blob.size_bytes for blob in verdict.orphaned) / max(blobs.total_bytes, 1)
    share = max(by_count, by_bytes)
    if share > rules.max_delete_fraction:
        raise SafetyStop(
            f"{share:.0%} of the blobs are orphaned and at most {rules.max_delete_fraction:.0%} may be deleted "
            f"in one run; if that is right, allow it with --max-delete-fraction {min(share + 0.01, 1):.2f}"
        )


def out_of_quarantine(
    orphaned: Sequence[ObjectInfo], condemned: Announced, rules: GcRules, now: datetime, report: GcReport
) -> list[ObjectInfo]:
    """The orphans that were condemned long enough ago. Condemns those that were not yet."""
    if not rules.quarantine:
        return list(orphaned)
    due = [
        blob for blob in orphaned if blob.key in condemned.since and now - condemned.since[blob.key] >= rules.quarantine
    ]
    condemned.add([blob.key for blob in orphaned if blob.key not in condemned.since], now)
    report.quarantined = len(orphaned) - len(due)
    return due


def within_limit(orphaned: Sequence[ObjectInfo], rules: GcRules, report: GcReport) -> list[ObjectInfo]:
    """The oldest of them, up to `max_delete_bytes`."""
    limit = rules.max_delete_bytes
    if limit is None:
        return list(orphaned)
    chosen: list[ObjectInfo] = []
    for blob in orphaned:
        if blob.size_bytes > limit:
            report.limited = True
            break
        limit -= blob.size_bytes
        chosen.append(blob)
    return chosen


def is_root(store_name: str) -> bool:
    """Whether a store's name (`s3://bucket/prefix/`, `file:///path/`) has no prefix."""
    scheme, _, place = store_name.partition("://")
    bucket, _, prefix = place.partition("/")
    return not prefix.strip("/") and (scheme == "file" or bool(bucket)) and scheme in ("s3", "file")
