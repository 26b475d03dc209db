"""Which objects of a bucket may go: pure functions over a listing. No I/O, no clock.

An object is deleted only when its name is one that Frostline gives, no reference names it, its age is known and
sane, and it is older than the guard interval. Everything else is kept and counted.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from disks.stores.base import ObjectInfo
from oplog import bounds
from oplog.pins import unreleased
from oplog.revision import (
    DISK_KEY,
    GC_PREFIX,
    LEASES_PREFIX,
    MARKS_PREFIX,
    PINS_PREFIX,
    PUBLICATIONS_PREFIX,
    SCHEMA_VERSION_KEY,
    WRITERS_PREFIX,
    is_blob_key,
    is_scratch_key,
    parse_blob_key,
    parse_commit_key,
    parse_floor_key,
    parse_snapshot_key,
)

INTENTS_PREFIX = GC_PREFIX
"""A collection announces here what it is about to delete; a restore looks here after it has taken its pin."""

DETACHED_DIRECTORY = "detached"
"""In a table's directory: parts that a repair set aside, named `<reason>_<part>`. Nothing reads them."""

_SET_ASIDE = re.compile(rf"store/[^/]+/[^/]+/{DETACHED_DIRECTORY}/.")

EARLIEST_SANE = datetime(2006, 1, 1, tzinfo=UTC)
"""No object store existed before: an older time is a broken clock, not an old object."""

FUTURE_TOLERANCE = timedelta(minutes=5)
"""Clocks differ; a time further ahead than this is not believed."""


class NamesBlobs(Protocol):
    """A file table, as far as its blobs go."""

    def blobs(self) -> Iterator[tuple[str, int]]:
        """Every object with its size in bytes, in any order."""


class ListedBlobs(Protocol):
    """The blobs that a listing shows: all of them (`Blobs`), or what they are compared with and the differences
    (`disks.garbage.listing.ComparedBlobs`)."""

    @property
    def repeated(self) -> str | None:
        """A key that the listing showed twice: then it is no listing to rely on."""

    @property
    def total_bytes(self) -> int:
        """The sum of their sizes."""

    @property
    def doubtful(self) -> Collection[str] | None:
        """Those that `outside` may give, for any set of references; None: any of them."""

    def __len__(self) -> int: ...

    def outside(self, referenced: Collection[str]) -> Iterator[ObjectInfo]:
        """Those that are not referenced, in the order of the listing."""

    def lacking(self, table: NamesBlobs) -> set[str]:
        """The blobs of the table that are not listed with their size."""

    def sizes(self, keys: Collection[str]) -> dict[str, int]:
        """Those of the keys that are listed, with their sizes in bytes."""


class Blobs:
    """The blobs of one listing, in its order: a million of them in 280 MB."""

    __slots__ = ("_modified", "_sizes", "repeated")

    def __init__(self, blobs: Iterable[ObjectInfo] = ()) -> None:
        self._sizes: dict[str, int] = {}
        self._modified = array("d")
        self.repeated: str | None = None
        """A key that the listing showed twice: then it is no listing to rely on."""
        for blob in blobs:
            self.add(blob)

    def add(self, blob: ObjectInfo) -> None:
        """The next one of the listing."""
        if blob.key in self._sizes:
            self.repeated = blob.key
            return
        self._sizes[blob.key] = blob.size_bytes
        self._modified.append(blob.modified.timestamp())

    def size_of(self, key: str) -> int | None:
        """Its size in bytes; None when the listing does not show it."""
        return self._sizes.get(key)

    def __len__(self) -> int:
        return len(self._sizes)

    def keys(self) -> Collection[str]:
        """Their keys."""
        return self._sizes.keys()

    def __iter__(self) -> Iterator[ObjectInfo]:
        for (key, size_bytes), modified in zip(self._sizes.items(), self._modified, strict=True):
            yield ObjectInfo(key, size_bytes, datetime.fromtimestamp(modified, UTC))

    def outside(self, referenced: Collection[str]) -> Iterator[ObjectInfo]:
        """Those that are not referenced, in the order of the listing."""
        for (key, size_bytes), modified in zip(self._sizes.items(), self._modified, strict=True):
            if key not in referenced:
                yield ObjectInfo(key, size_bytes, datetime.fromtimestamp(modified, UTC))

    def lacking(self, table: NamesBlobs) -> set[str]:
        """The blobs of the table that are not listed with their size."""
        return {key for key, size_bytes in table.blobs() if self._sizes.get(key) != size_bytes}

    def sizes(self, keys: Collection[str]) -> dict[str, int]:
        """Those of the keys that are listed, with their sizes in bytes."""
        return {key: self._sizes[key] for key in keys if key in self._sizes}

    @property
    def doubtful(self) -> None:
        """Any of them may be unnamed."""
        return None

    @property
    def newest(self) -> datetime:
        """When the youngest of them was written."""
        return datetime.fromtimestamp(max(self._modified), UTC) if self._modified else EARLIEST_SANE

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes.values())


class Inventory(msgspec.Struct, frozen=True):
    """One listing of a disk's prefix, sorted by what the names mean."""

    blobs: ListedBlobs
    commits: Mapping[int, ObjectInfo]
    leftovers: Mapping[int, ObjectInfo]
    """Entries below the floor: an interrupted collection left them, or a machine that lagged behind put them there.
    None is of the log."""
    floors: tuple[int, ...]
    """What the collections said they keep from, ascending; the last one counts."""
    snapshots: Mapping[int, ObjectInfo]
    pins: tuple[ObjectInfo, ...]
    intents: tuple[ObjectInfo, ...]
    scratch: tuple[ObjectInfo, ...]
    """What `doctor` and `objbench` wrote: it belongs to nothing."""
    foreign: tuple[str, ...]
    """Names Frostline does not give. Reported, never touched."""

    @property
    def head(self) -> int:
        """The highest revision any commit carries; 0 for an empty log."""
        return max(self.commits, default=0)


class BlobState(msgspec.Struct, frozen=True):
    """Every blob of a listing in exactly one class."""

    referenced: int
    """How many blobs something names."""
    pending: tuple[ObjectInfo, ...]
    """Unnamed, but so young that an unfinished transaction may still name it."""
    orphaned: tuple[ObjectInfo, ...]
    """Unnamed and old enough to go; the oldest first."""
    suspicious: tuple[ObjectInfo, ...]
    """Unnamed, but with a time in the future or before object stores existed: kept until somebody looks."""


def inventory(objects: Iterable[ObjectInfo]) -> Inventory:
    """Sort a listing by what the names mean."""
    blobs = Blobs()
    commits: dict[int, ObjectInfo] = {}
    floors: list[int] = []
    snapshots: dict[int, ObjectInfo] = {}
    pins: list[ObjectInfo] = []
    intents: list[ObjectInfo] = []
    scratch: list[ObjectInfo] = []
    foreign: list[str] = []
    for entry in objects:
        key = entry.key
        if is_blob_key(key):
            blobs.add(entry)
        elif (revision := parse_commit_key(key)) is not None:
            commits[revision] = entry
        elif (revision := parse_snapshot_key(key)) is not None and entry.size_bytes <= bounds.LARGEST_SNAPSHOT_BYTES:
            snapshots[revision] = entry
        elif (revision := parse_floor_key(key)) is not None:
            floors.append(revision)
        elif any(_is_document(key, prefix) for prefix in (LEASES_PREFIX, WRITERS_PREFIX, MARKS_PREFIX)):
            continue
        elif _is_document(key, PINS_PREFIX):
            pins.append(entry)
        elif _is_document(key, INTENTS_PREFIX):
            intents.append(entry)
        elif is_scratch_key(key):
            scratch.append(entry)
        elif key not in (SCHEMA_VERSION_KEY, DISK_KEY) and not key.startswith(PUBLICATIONS_PREFIX):
            foreign.append(key)
    wanted = set(unreleased(pin.key for pin in pins))
    in_force = tuple(pin for pin in pins if pin.key in wanted)
    floor = max(floors, default=0)
    leftovers = {revision: commits.pop(revision) for revision in sorted(commits) if revision < floor}
    return Inventory(
        blobs,
        commits,
        leftovers,
        tuple(sorted(floors)),
        snapshots,
        in_force,
        tuple(intents),
        tuple(scratch),
        tuple(foreign),
    )


def _is_document(key: str, prefix: str) -> bool:
    name = key.removeprefix(prefix)
    return key.startswith(prefix) and name.endswith(".json") and "/" not in name


def is_set_aside(path: str) -> bool:
    """Whether the file is one of a part that was set aside: that its object may be gone is known."""
    return _SET_ASIDE.match(path) is not None


def sane_time(modified: datetime, now: datetime) -> bool:
    """Whether an object's time can be believed."""
    return EARLIEST_SANE <= modified <= now + FUTURE_TOLERANCE


def clock_objection(skew: timedelta | None) -> str | None:
    """Why ages cannot be judged, by how far the store's clock is ahead of ours; None when they can, as far as known."""
    if skew is None or abs(skew) <= FUTURE_TOLERANCE:
        return None
    return f"the clocks of this machine and of the store differ by {abs(skew)}: ages cannot be judged"


def classify(
    blobs: ListedBlobs, referenced: Collection[str], *, head: int, now: datetime, guard: timedelta
) -> BlobState:
    """Put every blob into its class. `head` is the last revision that is settled, taken or proved to be free: a blob
    uploaded for a later one hints at entries that are not known, and stays."""
    pending: list[ObjectInfo] = []
    orphaned: list[ObjectInfo] = []
    suspicious: list[ObjectInfo] = []
    for blob in blobs.outside(referenced):
        uploaded_for = parse_blob_key(blob.key)
        if uploaded_for is None or not sane_time(blob.modified, now):
            suspicious.append(blob)
        elif uploaded_for > head or now - blob.modified < guard:
            pending.append(blob)
        else:
            orphaned.append(blob)
    orphaned.sort(key=lambda blob: (blob.modified, blob.key))
    named = len(blobs) - len(pending) - len(orphaned) - len(suspicious)
    return BlobState(named, tuple(pending), tuple(orphaned), tuple(suspicious))


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

    Revisions from `base` to the head are rebuilt from the newest snapshot at or below `base`, or from the one before it
    should that be damaged, and the commits after it; a pinned older revision from its own snapshot and the commits up
    to it. All of those stay, and so do the newest snapshot and the commit of the oldest one kept: a disk at rest must
    still find the entry it applied last. What is left of the log has no gaps.
    """
    newest = newest_at_or_below(snapshots, base)
    start = newest_at_or_below(snapshots, newest - 1) or newest
    older = {revision: newest_at_or_below(snapshots, revision) for revision in pinned if revision < start}
    floor = min((first for revision, first in older.items() if first < revision), default=start)
    old_commits = [revision for revision in sorted(commits) if revision < start and revision <= floor]
    kept_snapshots = {start, max(snapshots, default=0), *older.values()}
    old_snapshots = [revision for revision in sorted(snapshots) if revision < start and revision not in kept_snapshots]
    return old_commits, old_snapshots


def disagreement(
    first: Blobs, again: Iterable[ObjectInfo], *, is_blob: Callable[[str], bool] = is_blob_key
) -> str | None:
    """Why two listings of one prefix, taken one after the other, cannot both be complete; None when they agree.

    Blobs may have been added between them, and log objects and pins may have come and gone; no blob may change or go.
    The second listing is read as it comes and not kept.
    """
    objection, appeared = compare_listings(first, again, is_blob=is_blob)
    return objection or late(appeared, first.newest)


def compare_listings(
    first: Blobs, again: Iterable[ObjectInfo], *, is_blob: Callable[[str], bool] = is_blob_key
) -> tuple[str | None, list[ObjectInfo]]:
    """Why they cannot both be complete, as far as the range that they are of tells; and the blobs that only the second
    one shows, which must be new (`late`)."""
    appeared: list[ObjectInfo] = []
    if first.repeated is not None:
        return f"the first listing shows object {first.repeated} twice", appeared
    expected = iter(first)
    wanted = next(expected, None)
    last = ""
    for entry in again:
        if entry.key == last:
            return f"the second listing shows object {last} twice", appeared
        last = entry.key
        if not is_blob(entry.key):
            continue
        if wanted is not None and entry.key == wanted.key:
            if (entry.size_bytes, entry.modified) != (wanted.size_bytes, wanted.modified):
                return f"object {entry.key} changed between two listings", appeared
            wanted = next(expected, None)
        elif first.size_of(entry.key) is not None:  # one of another place in the first listing
            missing = wanted.key if wanted is not None else entry.key
            return f"object {missing} is not where the first listing has it in the second", appeared
        else:
            appeared.append(entry)
    if wanted is not None:
        return f"object {wanted.key} is in the first listing and not in the second", appeared
    return None, appeared


def late(appeared: Iterable[ObjectInfo], newest: datetime) -> str | None:
    """Which of the blobs that only a second listing shows is too old to be new, if one is; `newest` is the time of the
    youngest blob of the first."""
    for entry in appeared:
        if entry.modified < newest - FUTURE_TOLERANCE:
            return f"object {entry.key} is in the second listing and not in the first, though it is older"
    return None
