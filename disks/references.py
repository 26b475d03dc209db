"""Which objects of a bucket may go: pure functions over a listing. No I/O, no clock.

An object is deleted only when its name is one that Frostline gives, no reference names it, its age is known and
sane, and it is older than the guard interval. Everything else is kept and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from disks.stores.base import ObjectInfo
from oplog.revision import (
    LEASES_PREFIX,
    PINS_PREFIX,
    SCHEMA_VERSION_KEY,
    parse_blob_key,
    parse_commit_key,
    parse_snapshot_key,
)

INTENTS_PREFIX = "gc/"
"""A collection announces here what it is about to delete; a restore looks here after it has taken its pin."""

EARLIEST_SANE = datetime(2006, 1, 1, tzinfo=UTC)
"""No object store existed before: an older time is a broken clock, not an old object."""

FUTURE_TOLERANCE = timedelta(minutes=5)
"""Clocks differ; a time further ahead than this is not believed."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """One listing of a disk's prefix, sorted by what the names mean."""

    blobs: tuple[ObjectInfo, ...]
    commits: Mapping[int, ObjectInfo]
    snapshots: Mapping[int, ObjectInfo]
    pins: tuple[ObjectInfo, ...]
    intents: tuple[ObjectInfo, ...]
    foreign: tuple[str, ...]
    """Names Frostline does not give. Reported, never touched."""

    @property
    def head(self) -> int:
        """The highest revision any commit carries; 0 for an empty log."""
        return max(self.commits, default=0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Every blob of a listing in exactly one class."""

    referenced: tuple[ObjectInfo, ...]
    pending: tuple[ObjectInfo, ...]
    """Unnamed, but so young that an unfinished transaction may still name it."""
    orphaned: tuple[ObjectInfo, ...]
    """Unnamed and old enough to go; the oldest first."""
    suspicious: tuple[ObjectInfo, ...]
    """Unnamed, but with a time in the future or before object stores existed: kept until somebody looks."""


def inventory(objects: Iterable[ObjectInfo]) -> Inventory:
    """Sort a listing by what the names mean."""
    blobs: list[ObjectInfo] = []
    commits: dict[int, ObjectInfo] = {}
    snapshots: dict[int, ObjectInfo] = {}
    pins: list[ObjectInfo] = []
    intents: list[ObjectInfo] = []
    foreign: list[str] = []
    for entry in objects:
        key = entry.key
        if parse_blob_key(key) is not None:
            blobs.append(entry)
        elif (revision := parse_commit_key(key)) is not None:
            commits[revision] = entry
        elif (revision := parse_snapshot_key(key)) is not None:
            snapshots[revision] = entry
        elif _is_document(key, LEASES_PREFIX):
            continue
        elif _is_document(key, PINS_PREFIX):
            pins.append(entry)
        elif _is_document(key, INTENTS_PREFIX):
            intents.append(entry)
        elif key != SCHEMA_VERSION_KEY:
            foreign.append(key)
    return Inventory(tuple(blobs), commits, snapshots, tuple(pins), tuple(intents), tuple(foreign))


def _is_document(key: str, prefix: str) -> bool:
    name = key.removeprefix(prefix)
    return key.startswith(prefix) and name.endswith(".json") and "/" not in name


def sane_time(modified: datetime, now: datetime) -> bool:
    """Whether an object's time can be believed."""
    return EARLIEST_SANE <= modified <= now + FUTURE_TOLERANCE


def classify(
    blobs: Iterable[ObjectInfo], referenced: Collection[str], *, head: int, now: datetime, guard: timedelta
) -> Verdict:
    """Put every blob into its class. `head` is the last revision the listing showed: a blob uploaded for a later one
    belongs to a transaction that was under way."""
    named: list[ObjectInfo] = []
    pending: list[ObjectInfo] = []
    orphaned: list[ObjectInfo] = []
    suspicious: list[ObjectInfo] = []
    for blob in blobs:
        uploaded_for = parse_blob_key(blob.key)
        if blob.key in referenced:
            named.append(blob)
        elif uploaded_for is None or not sane_time(blob.modified, now):
            suspicious.append(blob)
        elif uploaded_for > head or now - blob.modified < guard:
            pending.append(blob)
        else:
            orphaned.append(blob)
    orphaned.sort(key=lambda blob: (blob.modified, blob.key))
    return Verdict(tuple(named), tuple(pending), tuple(orphaned), tuple(suspicious))


def retained_from(commits: Mapping[int, ObjectInfo], *, now: datetime, retention: timedelta) -> int:
    """The oldest revision that must stay restorable: the last one before the first commit within the retention.

    The store's clock counts, not the writers'. A commit with an unbelievable time counts as within the retention.
    """
    horizon = now - retention
    within = [
        revision
        for revision, entry in commits.items()
        if entry.modified > horizon or not sane_time(entry.modified, now)
    ]
    return min(within) - 1 if within else max(commits, default=0)


def newest_at_or_below(revisions: Iterable[int], limit: int) -> int:
    """The largest revision not above the limit; 0 when there is none (the empty table before revision 1)."""
    return max((revision for revision in revisions if revision <= limit), default=0)


def collectable_log(
    commits: Iterable[int], snapshots: Collection[int], *, base: int, pinned: Iterable[int]
) -> tuple[list[int], list[int]]:
    """The commits and snapshots that no restorable revision needs, ascending.

    Revisions from `base` to the head are rebuilt from the newest snapshot at or below `base` and the commits after it;
    a pinned older revision from its own snapshot and the commits up to it. All of those stay, and so do the newest
    snapshot and the commit of the one that `base` needs: a disk at rest must still find the entry it applied last.
    What is left of the log has no gaps.
    """
    start = newest_at_or_below(snapshots, base)
    older = {revision: newest_at_or_below(snapshots, revision) for revision in pinned if revision < start}
    floor = min((first for revision, first in older.items() if first < revision), default=start)
    old_commits = [revision for revision in sorted(commits) if revision < start and revision <= floor]
    kept_snapshots = {start, max(snapshots, default=0), *older.values()}
    old_snapshots = [revision for revision in sorted(snapshots) if revision < start and revision not in kept_snapshots]
    return old_commits, old_snapshots


def disagreement(one: Sequence[ObjectInfo], other: Sequence[ObjectInfo]) -> str | None:
    """Why two listings of one prefix, taken one after the other, cannot both be complete; None when they agree.

    Blobs may have been added between them, and log objects and pins may have come and gone; no blob may change or go.
    """
    for name, listing in (("first", one), ("second", other)):
        keys = [entry.key for entry in listing]
        if len(set(keys)) != len(keys):
            return f"the {name} listing shows an object twice"
    earlier = {entry.key for entry in one}
    later = {entry.key: entry for entry in other}
    for entry in one:
        if parse_blob_key(entry.key) is None:
            continue
        again = later.get(entry.key)
        if again is None:
            return f"object {entry.key} is in the first listing and not in the second"
        if (again.size_bytes, again.modified) != (entry.size_bytes, entry.modified):
            return f"object {entry.key} changed between two listings"
    newest = max((entry.modified for entry in one), default=EARLIEST_SANE)
    for entry in other:
        if entry.key not in earlier and entry.modified < newest - FUTURE_TOLERANCE and parse_blob_key(entry.key):
            return f"object {entry.key} is in the second listing and not in the first, though it is older"
    return None
