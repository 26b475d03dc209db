"""Checks of an object disk: its log, snapshots and pins, the blobs it names, and the cache (I3, I4, I6, I7, I8, I15).

The table that everything is compared with is replayed from the log, so a damaged cache is found and hides nothing. The
log is replayed, and the parts are looked at, while the listing comes in: the entries are listed first, so whatever they
name was there before the listing of the blobs began.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.row_bytes import read_row
from disks.file_table.table import FileTable
from disks.file_table.views import TableReader
from disks.object_disk.history import TableAsOf
from disks.object_disk.pending_deletes import announced
from disks.object_disk.references import (
    Inventory,
    ListedBlobs,
    inventory,
    retained_from,
)
from disks.stores.base import ByteRange
from disks.workers.progress import Progress
from oplog import pins, snapshot
from oplog.errors import Damaged, NotFound, Refused
from oplog.replay import FileRow
from oplog.revision import OPERATIONS_PREFIX, SNAPSHOTS_PREFIX, commit_key, snapshot_key
from restore.check.cache import CachedTable
from restore.check.findings import Checked, CheckResult, Findings, Problem
from restore.check.listing import PrefixListing, still_kept
from restore.check.merged_over import MergedOver
from restore.check.options import CheckOptions, CountedPin
from restore.check.unexpected import (
    SharedObjects,
    add_at,
    check_gaps,
    check_identity,
    check_overslept,
    check_strangers,
    check_uncounted,
)
from tiering.table.part import PART_FILE
from tiering.table.schema import TABLE_FILE

_NAMED_OBJECT = re.compile(r"(?:operations|snapshots|pins|gc)/\S+?(?=[\s:,)]|\Z)")
_SECOND_LOOKS = 100
"""Blobs missing from the listing that are looked up one by one: is the blob gone, or the listing short?"""
_READ_BY_SURVEY = (f"/{PART_FILE}", f"/{TABLE_FILE}")
"""The survey checks these against their digest when it reads them."""
_SNAPSHOTS_COMPARED = 3
"""How many of the newest snapshots a quick check compares with the log, row by row."""


class _Lost(msgspec.Struct, frozen=True):
    """A named blob that the listing does not show with its size."""

    row: FileRow
    key: str
    size_bytes: int
    found_bytes: int | None


class BucketTree(msgspec.Struct):
    """The files of an object disk, read past its cache."""

    source: LoggedDisk
    table: TableAsOf | FileTable | TableReader
    """The replayed log; what the cache has when it cannot be replayed."""
    cache: CachedTable
    log: Inventory
    """The entries and snapshots, listed before everything else."""
    listing: PrefixListing
    checked: Checked
    look_at_all: bool = False
    """Look up every blob that the listing lacks, and not only the first: a repair acts on it."""
    counted: Sequence[CountedPin] = ()
    """The pins that something elsewhere counts on."""
    over: MergedOver = msgspec.field(default_factory=MergedOver)
    """What the replayed entries tell of merges over parts that had left."""

    @property
    def disk(self) -> str:
        return self.source.name

    def sweep(self, findings: Findings) -> Iterator[FileRow]:
        """As `FileTree.sweep`; at its end, what the listing shows."""
        shared = SharedObjects()
        for row in self.table.rows():
            shared.note(row)
            inline = row.inline
            if inline is not None:
                if not row.path.endswith(_READ_BY_SURVEY) and hashlib.sha256(inline).hexdigest() != row.sha256:
                    add_at(findings, "I15", "inline bytes do not match their SHA-256", self.disk, row)
            elif row.key is None and row.size_bytes:
                what = "the file has neither an object nor inline bytes"
                add_at(findings, "I3", what, self.disk, row, unusable="missing")
            yield row
        shared.tell(self.disk, self.table.rows(), findings)
        found = self.listing.result()
        self.checked.objects += len(found.blobs)
        _check_listing(self.source, self.log, found, findings)
        _check_schema(self.source, found, findings)
        check_identity(self.source, findings)
        check_gaps(self.source, found, findings)
        check_strangers(self.source, found, findings)
        check_overslept(self.source, findings)
        _check_pins(self.source, found, findings, self.counted)
        if isinstance(self.table, TableAsOf):
            _check_end(self.source, self.log, findings)
            _check_retained(self.source, found, self.table, findings)
            _check_announcements(self.source, found, self.table, findings)
            self.over.tell(self, findings)
        self._check_blobs(found.blobs, findings)

    def rows(self) -> Iterator[FileRow]:
        return self.table.rows()

    def find(self, path: str) -> FileRow | None:
        return self.table.get(path)

    def content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        return read_row(self.source.store, row, byte_range, disk=self.disk)

    def close(self) -> None:
        self.listing.close()
        self.cache.close()
        if not isinstance(self.table, TableReader):
            self.table.close()

    def _check_blobs(self, listed: ListedBlobs, findings: Findings) -> None:
        """Every object that a file needs is listed with its size."""
        lacking = listed.lacking(self.table)
        if lacking:
            there = listed.sizes(lacking)
            lost = [
                _Lost(row, key, size_bytes, there.get(key))
                for row in self.table.rows()
                for key, size_bytes in row.blobs
                if key in lacking and there.get(key) != size_bytes
            ]
            self._tell_lost(lost, findings)

    def _tell_lost(self, all_lost: list[_Lost], findings: Findings) -> None:
        gone = [lost.key for lost in all_lost if lost.found_bytes is None]
        looked_at = dict.fromkeys(gone if self.look_at_all else gone[:_SECOND_LOOKS])
        with ThreadPoolExecutor(16, thread_name_prefix="fsck") as pool:
            sizes = dict(zip(looked_at, pool.map(self._size, looked_at), strict=True))
        times = Counter(lost.key for lost in all_lost)
        for lost in all_lost:
            there = sizes.get(lost.key)
            if there is not None:
                what = "the listing does not show the object, which exists: the listing is incomplete"
                add_at(findings, "I15", what, self.disk, lost.row, key=lost.key)
            elif lost.found_bytes is None:
                several = times[lost.key] > 1
                what = f"object {lost.key} is missing" + (f", which {times[lost.key]} paths name" if several else "")
                add_at(findings, "I8" if several else "I3", what, self.disk, lost.row, key=lost.key, unusable="missing")
            else:
                what = f"object {lost.key} has {lost.found_bytes} bytes and the file table says {lost.size_bytes}"
                add_at(findings, "I3", what, self.disk, lost.row, key=lost.key, unusable="altered")

    def _size(self, key: str) -> int | None:
        try:
            return self.source.store.head(key).size_bytes
        except NotFound:
            return None


def check_bucket(
    disk: LoggedDisk,
    findings: Findings,
    result: CheckResult,
    how: CheckOptions,
    progress: Progress,
) -> BucketTree:
    """Check log, snapshots and cache, and begin the listing, which a sweep of the tree ends. Returns the files as the
    log has them; as the cache has them, if the log cannot be replayed. `result.repaired` tells of a cache that was
    rebuilt, or would be."""
    store = disk.store
    log = inventory([*store.list(OPERATIONS_PREFIX), *store.list(SNAPSHOTS_PREFIX)])
    check_uncounted(disk, log, findings)
    with ExitStack() as stack:
        listing = stack.enter_context(closing(PrefixListing(disk, how.lister(disk.name), progress, head=log.head)))
        cache = stack.enter_context(closing(CachedTable(disk)))
        past, over = _replay(disk, log, cache, findings, every_snapshot=how.read_data)
        table = past if past is not None else cache.rows_or_nothing()
        tree = BucketTree(
            disk,
            table,
            cache,
            log,
            listing,
            result.checked,
            look_at_all=how.repair,
            counted=how.pins.get(disk.name, ()),
            over=over,
        )
        stack.pop_all()
    if past is None:
        if cache.problem is not None:
            findings.add(Problem("I7", cache.problem, disk.name, path=str(disk.table_path)))
        return tree
    what = _fault_of_cache(disk, cache, past)
    repair = how.repair and not (past.revision == 0 and cache.count())  # an empty bucket is an empty mount point
    if what is not None and repair:
        if not how.dry_run:
            rows, table_digest = past.stored, past.table_digest.hex
            disk.replace_cache(rows, past.revision, past.digest, table_digest=table_digest, proved=past.is_proved)
        verb = "would rebuild" if how.dry_run else "rebuilt"
        result.repaired.append(f"disk {disk.name}: {verb} the local file table from {disk.store.name} ({what})")
    if what is not None and (how.dry_run or not repair):
        findings.add(Problem("I7", what, disk.name, path=str(disk.table_path)))
    return tree


def _damage(disk: LoggedDisk, findings: Findings, invariant: str, error: Damaged | NotFound) -> None:
    named = _NAMED_OBJECT.search(error.message)
    findings.add(Problem(invariant, error.message, disk.name, object=named[0] if named else None))


def _check_listing(disk: LoggedDisk, log: Inventory, inventory: Inventory, findings: Findings) -> None:
    """The whole listing shows every entry that the listing of the log's own prefix showed before it."""
    oldest = min(inventory.commits, default=0)  # gc may have taken older ones meanwhile
    for revision in sorted(revision for revision in log.commits.keys() - inventory.commits.keys() if revision > oldest):
        key = commit_key(revision)
        message = f"the listing does not show log entry {key}, which another listing shows: it is incomplete"
        findings.add(Problem("I15", message, disk.name, object=key))
    if inventory.blobs.repeated is not None:
        message = f"the listing shows object {inventory.blobs.repeated} twice: it is not reliable"
        findings.add(Problem("I15", message, disk.name, object=inventory.blobs.repeated))


def _check_schema(disk: LoggedDisk, inventory: Inventory, findings: Findings) -> None:
    if not disk.log.check_schema() and (inventory.commits or len(inventory.blobs)):
        message = f"{disk.store.name} does not say which format its log has"
        findings.add(Problem("I15", message, disk.name, object=".SCHEMA_VERSION"))


def _check_pins(disk: LoggedDisk, inventory: Inventory, findings: Findings, counted: Sequence[CountedPin]) -> None:
    """Every pin can be read, what it holds is still there (I4: the log gives that revision), and each that
    something counts on keeps it (I12)."""
    readable: list[pins.Pin] = []
    for pin_object in pins.listed(disk.store):
        try:
            readable += pins.read_listed(disk.store, pin_object)
        except Damaged as error:
            _damage(disk, findings, "I15", error)
    for pin in readable:
        reach = pin.revision
        while reach in inventory.commits:
            reach -= 1
        if pin.revision > inventory.head or not any(
            reach <= start <= pin.revision for start in {0, *inventory.snapshots}
        ):
            message = (
                f"pin {pin.name} of {pin.holder} holds revision {pin.revision}, which the log does not give any more"
            )
            findings.add(Problem("I4", message, disk.name, object=f"pins/{pin.name}.json"))
    for expected in counted:
        if (why := pins.why_not_kept(readable, expected.name, expected.revision)) is not None:
            message = (
                f"pin {expected.name} {why}: {expected.by} counts on it, and nothing keeps revision {expected.revision}"
            )
            findings.add(Problem("I12", message, disk.name, object=f"pins/{expected.name}.json"))


def _check_end(disk: LoggedDisk, log: Inventory, findings: Findings) -> None:
    """The entry after the last listed one must not exist: else the listing is short."""
    key = commit_key(log.head + 1)
    try:
        if any(True for _ in disk.log.revisions(log.head)):
            return  # somebody committed while we looked
    except Damaged:
        return  # what lies behind the log has no name of an entry, and was named
    try:
        disk.store.get(key)
    except NotFound:
        return
    except Refused:  # a link: no object, though it has the name of one
        pass
    findings.add(Problem("I15", f"the listing does not show log entry {key}, which exists", disk.name, object=key))


def _replay(
    disk: LoggedDisk,
    log: Inventory,
    cache: CachedTable,
    findings: Findings,
    *,
    every_snapshot: bool,
) -> tuple[TableAsOf | None, MergedOver]:
    """The table at the listed head, from the oldest start that reaches it, comparing snapshots and cache on the way."""
    reach = log.head
    while reach in log.commits:
        reach -= 1
    starts = sorted(start for start in {0, *log.snapshots} if reach <= start <= log.head)
    for start in starts:
        try:
            past = TableAsOf(disk.log, start, until=log.head, moves=False)
        except (Damaged, NotFound) as error:
            _damage(disk, findings, "I15", error)
            continue
        over = MergedOver()
        past.on_commit = over.note
        try:
            _pass(disk, log, cache, past, findings, every_snapshot=every_snapshot)
        except (Damaged, NotFound) as error:
            past.close()
            _damage(disk, findings, "I6", error)
            continue
        return past, over
    if not starts:
        what = f"the file table at revision {log.head} cannot be rebuilt: no snapshot and no unbroken log reach it"
        findings.add(Problem("I7", what, disk.name))
    return None, MergedOver()


def _pass(
    disk: LoggedDisk,
    log: Inventory,
    cache: CachedTable,
    past: TableAsOf,
    findings: Findings,
    *,
    every_snapshot: bool,
) -> None:
    """Go to the head; stop at snapshots to compare them, where the cache stands, and where the retention begins."""
    snapshots = sorted(revision for revision in log.snapshots if past.revision < revision <= log.head)
    if not every_snapshot:
        snapshots = snapshots[-_SNAPSHOTS_COMPARED:]
    compared = cache.comparable and past.revision <= cache.revision <= log.head
    retention = timedelta(seconds=disk.retention_seconds)
    base = max(retained_from(log.commits, now=datetime.now(UTC), retention=retention), past.revision)
    for stop in sorted({*snapshots, *([cache.revision] if compared else []), base}):
        past.advance(stop)
        if stop in snapshots:
            _compare_snapshot(disk, past, stop, findings)
        if compared and stop == cache.revision:
            cache.compare(past)
        if stop == base:
            past.removed = set()  # what went before the retention may be gone
    past.advance(log.head)


def _check_retained(disk: LoggedDisk, inventory: Inventory, past: TableAsOf, findings: Findings) -> None:
    """What a revision within the retention names is there, also when the newest does not name it any more (I4)."""
    removed = past.removed or set()
    lost = removed - inventory.blobs.sizes(removed).keys()
    if lost:
        lost -= past.keys(lost)
    for key in sorted(still_kept(disk, inventory, lost) if lost else ()):
        message = f"object {key} is missing: a revision that is still kept names it, and could not be restored"
        findings.add(Problem("I4", message, disk.name, object=key))


def _check_announcements(disk: LoggedDisk, inventory: Inventory, past: TableAsOf, findings: Findings) -> None:
    """What collections say they are about to delete can be read, and is nothing that the newest table names (I5)."""
    if not inventory.intents:
        return
    try:
        to_delete = announced(disk, now=datetime.now(UTC))
    except Damaged as error:
        named = _NAMED_OBJECT.search(error.message)
        findings.add(Problem("I5", error.message, disk.name, object=named[0] if named else None))
        return
    for key in sorted(to_delete & past.keys() if to_delete else ()):
        message = f"a collection announced that it deletes object {key}, which the newest revision names"
        findings.add(Problem("I5", message, disk.name, object=key))


def _compare_snapshot(disk: LoggedDisk, past: TableAsOf, revision: int, findings: Findings) -> None:
    key = snapshot_key(revision)
    try:
        header, rows = snapshot.read(disk.store, revision)
        same = past.holds(rows)
    except (Damaged, NotFound) as error:
        _damage(disk, findings, "I15", error)
        return
    if not same or header.digest != past.digest:
        what = f"the snapshot of revision {revision} does not hold what the log says"
        findings.add(Problem("I7", what, disk.name, object=key))


def _fault_of_cache(disk: LoggedDisk, cache: CachedTable, past: TableAsOf) -> str | None:
    if cache.problem is None and cache.revision > max(past.revision, _head(disk, past.revision)):
        return f"the local file table is at revision {cache.revision} and the log ends at {past.revision}"
    return cache.problem


def _head(disk: LoggedDisk, after: int) -> int:
    try:
        return disk.log.head(after)
    except Damaged:  # what lies behind the log was named
        return after
