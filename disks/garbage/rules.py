"""The rules that every collection goes by, whatever kind of disk it is of: caps, limits, quarantine."""

from __future__ import annotations

from collections.abc import Sequence

from disks.garbage.announcements import Announced
from disks.garbage.report import GcReport, Rules, SafetyStop
from disks.object_disk.references import ListedBlobs, Verdict
from disks.stores.base import ObjectInfo


def count_verdict(verdict: Verdict, report: GcReport) -> None:
    """The counts of a verdict, in the report."""
    report.referenced = verdict.referenced
    report.pending = len(verdict.pending)
    report.orphaned = len(verdict.orphaned)
    report.orphaned_bytes = sum(blob.size_bytes for blob in verdict.orphaned)
    report.orphans = [blob.key for blob in verdict.orphaned]
    report.suspicious = [blob.key for blob in verdict.suspicious]


def check_caps(blobs: ListedBlobs, verdict: Verdict, rules: Rules) -> None:
    """Raise `SafetyStop` when too large a share would go."""
    by_count = len(verdict.orphaned) / max(len(blobs), 1)
    by_bytes = sum(blob.size_bytes for blob in verdict.orphaned) / max(blobs.total_bytes, 1)
    share = max(by_count, by_bytes)
    if share > rules.max_delete_fraction:
        raise SafetyStop(
            f"{share:.0%} of the blobs are orphaned and at most {rules.max_delete_fraction:.0%} may go at "
            f"once; if that is right, allow it with --max-delete-fraction {min(share + 0.01, 1):.2f}"
        )


def out_of_quarantine(
    orphaned: Sequence[ObjectInfo], condemned: Announced, rules: Rules, report: GcReport
) -> list[ObjectInfo]:
    """The orphans that were condemned long enough ago. Condemns those that were not yet."""
    if not rules.quarantine:
        return list(orphaned)
    due = [
        blob
        for blob in orphaned
        if blob.key in condemned.since and rules.now - condemned.since[blob.key] >= rules.quarantine
    ]
    condemned.add([blob.key for blob in orphaned if blob.key not in condemned.since], rules.now)
    report.quarantined = len(orphaned) - len(due)
    return due


def within_limit(orphaned: Sequence[ObjectInfo], rules: Rules, report: GcReport) -> list[ObjectInfo]:
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
