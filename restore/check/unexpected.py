"""What lies in a bucket and should not, and what should and does not, as far as names and sizes tell (I1, I6, I15).

A listing may be forged: a gap is a range, and no number costs more than what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, islice

from disks.contracts.bucket_disk import LoggedDisk
from disks.identity import read_object
from disks.object_disk.lease import overslept
from disks.object_disk.references import DETACHED_DIRECTORY, Inventory, newest_at_or_below, retained_from
from disks.object_disk.turns import name_of
from oplog import bounds
from oplog.entry import Commit
from oplog.errors import Damaged, NotFound, Refused
from oplog.log_end import newest_floor
from oplog.replay import FileRow
from oplog.revision import (
    DISK_KEY,
    OPERATIONS_PREFIX,
    PINS_PREFIX,
    SNAPSHOTS_PREFIX,
    commit_key,
    parse_snapshot_key,
    snapshot_key,
)
from restore.check.findings import Findings, Problem
from tiering.table.paths import locate, part_name

_GAPS_SHOWN = 10
_DATA_SUFFIX = ".parquet"


def add_at(
    findings: Findings,
    invariant: str,
    message: str,
    disk: str,
    row: FileRow,
    *,
    key: str | None = None,
    unusable: str | None = None,
) -> None:
    """Add what is wrong with a file; not with one of a part that was set aside for it."""
    located = locate(row.path)
    table, part = (located.uuid, located.part) if located else (None, None)
    if part == DETACHED_DIRECTORY:
        return  # set aside because of this, and shown as that
    findings.add(Problem(invariant, message, disk, table, part, row.path, key or row.key), unusable=unusable)


def check_gaps(disk: LoggedDisk, inventory: Inventory, findings: Findings) -> None:
    """Entries may be missing only where a snapshot stands in for them and the retention has run out."""
    retention = timedelta(seconds=disk.retention_seconds)
    base = retained_from(inventory.commits, now=datetime.now(UTC), retention=retention)
    start = newest_at_or_below(inventory.snapshots, base)
    end = max(inventory.head, max(inventory.snapshots, default=0))
    gaps = list(missing_ranges(inventory.commits, start, end))
    lost = sum(map(_length, gaps))
    shown = list(islice(chain.from_iterable(gaps), _GAPS_SHOWN))
    for revision in shown:
        message = f"log entry of revision {revision} is missing"
        if revision == shown[-1] and lost > _GAPS_SHOWN:
            message += f"; so are {lost - _GAPS_SHOWN} more"
        findings.add(Problem("I6", message, disk.name, object=commit_key(revision)))
    is_at_head = inventory.head in inventory.commits
    if lost > _GAPS_SHOWN and is_at_head:  # else the message would point at the wrong end of the gap
        message = f"log entry of revision {inventory.head} is there, {lost} below it are missing"
        findings.add(Problem("I6", message, disk.name, object=commit_key(inventory.head)))
    for revision in sorted(revision for revision in inventory.snapshots if revision > inventory.head):
        message = f"the snapshot is of revision {revision}, and the log ends at {inventory.head}"
        findings.add(Problem("I6", message, disk.name, object=snapshot_key(revision)))


def missing_ranges(revisions: Iterable[int], after: int, until: int) -> Iterator[range]:
    """What of (after, until] is not among the revisions: ranges, so that a number out of reach costs nothing."""
    last = after
    for revision in (*sorted(one for one in revisions if after < one <= until), until + 1):
        if revision > last + 1:
            yield range(last + 1, revision)
        last = revision


def _length(numbers: range) -> int:
    """`len` refuses what does not fit in 63 bits."""
    return numbers.stop - numbers.start


def check_uncounted(disk: LoggedDisk, inventory: Inventory, findings: Findings) -> None:
    """Entries that were put where the log had been collected, and that nobody committed again: their writer died, or is
    of a version that acknowledges them. Requests only where there are any, until a collection takes them."""
    floor = newest_floor(disk.store) if inventory.leftovers else None
    late = [
        number for number, info in inventory.leftovers.items() if floor is not None and info.modified > floor.modified
    ]
    try:
        read = {number: disk.log.read(number).commit for number in late}
        lost = {number: commit for number, commit in read.items() if commit.operations}
        for entry in disk.log.entries(min(inventory.commits, default=1) - 1) if lost else ():
            commit = entry.commit
            lost = {number: uncounted for number, uncounted in lost.items() if not _does_the_same(commit, uncounted)}
    except (Damaged, NotFound):
        return  # what is wrong with the log is said by who replays it
    for number, commit in lost.items():
        by = f" by {commit.actor}" if commit.actor else ""
        message = (
            f"log entry of revision {number} ({commit.kind.word}{by}) was put where the log had been collected: it "
            "is ignored, and no later entry does the same"
        )
        findings.add(Problem("I6", message, disk.name, object=commit_key(number)))


def _does_the_same(commit: Commit, stray: Commit) -> bool:
    """Whether it is the stray one, committed again. Operations computed a second time may differ: then its
    writer, who proved that the first one counted for nobody, and what it is for tell."""
    if commit.operations == stray.operations:
        return True
    same = (commit.kind, commit.actor, commit.reason) == (stray.kind, stray.actor, stray.reason)
    return same and name_of(commit) == name_of(stray) != ""


def check_overslept(disk: LoggedDisk, findings: Findings) -> None:
    """Entries that a machine put after its turn was over, where the store has no conditional writes: what they took the
    place of is nowhere in the bucket. Sends requests only on such stores."""
    if disk.store.capabilities.conditional_put and disk.capabilities.writers != "one":
        return
    try:
        for claim in overslept(disk.store):
            what = (
                f"{claim.overslept} was written by {claim.holder} after its lease expired: it may have replaced an "
                "object of another machine; compare with 'frostline fsck' on the others, then delete this object"
            )
            findings.add(Problem("I6", what, disk.name, object=claim.key))
    except Damaged as error:
        findings.add(Problem("I15", error.message, disk.name))


def check_identity(disk: LoggedDisk, findings: Findings) -> None:
    """The id in the bucket is the one that is known of it: who knows nothing yet goes by it."""
    try:
        known, found = disk.identity(), read_object(disk.store)
    except (Damaged, Refused) as error:
        findings.add(Problem("I16", error.message, disk.name, object=DISK_KEY))
        return
    if found != known:
        shown = f"is that of disk {found}" if found is not None else "is gone"
        findings.add(Problem("I16", f"the id of the disk {shown}; this is disk {known}", disk.name, object=DISK_KEY))


def check_strangers(disk: LoggedDisk, inventory: Inventory, findings: Findings) -> None:
    """What lies among the entries, the snapshots or the pins, and is none."""
    for key in inventory.foreign:
        if key.startswith((OPERATIONS_PREFIX, SNAPSHOTS_PREFIX, PINS_PREFIX)):
            message = "the object has no name of an entry, snapshot or pin"
            if parse_snapshot_key(key) is not None:
                message = "the snapshot is larger than any valid one: it is not read"
            findings.add(Problem("I6", message, disk.name, object=key))
    for revision, entry in inventory.commits.items():
        if entry.size_bytes > bounds.LARGEST_ENTRY_BYTES:
            message = f"log entry of revision {revision} has {entry.size_bytes} bytes, more than any valid one"
            findings.add(Problem("I15", message, disk.name, object=commit_key(revision)))


class SharedObjects:
    """No object is data of two parts of a table: its rows would count twice. Takes the rows as they come and keeps a
    number a blob; only when one occurs again are the rows looked at once more. Parts of ClickHouse in our log share
    objects by right: a mutation links the columns that it leaves unchanged, and the part it made covers the other."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._again: set[int] = set()

    def note(self, row: FileRow) -> None:
        """The next file."""
        if row.key is not None and row.path.endswith(_DATA_SUFFIX):
            number = hash(row.key)
            (self._again if number in self._seen else self._seen).add(number)

    def tell(self, disk: str, rows: Iterable[FileRow], findings: Findings) -> None:
        """Name each, with the first path that it has."""
        if not self._again:
            return
        first: dict[tuple[str, str], tuple[str, str]] = {}
        for row in rows:
            if row.key is None or hash(row.key) not in self._again or not row.path.endswith(_DATA_SUFFIX):
                continue
            place = locate(row.path)
            if place is None or place.part is None or part_name(place.part) is None:
                continue
            part, path = first.setdefault((place.uuid, row.key), (place.part, row.path))
            if part != place.part:
                what = f"object {row.key} is data of this part and of {part} ({path}): its rows count twice"
                add_at(findings, "I1", what, disk, row)
