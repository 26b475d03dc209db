"""Checks of an object disk: its log, snapshots and pins, the blobs it names, and the cache (I3, I6, I7, I15).

The table that everything is compared with is replayed from the log, so a damaged cache is found and hides nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from disks.base import FileInfo
from disks.history import Past
from disks.object_disk import ObjectDisk
from disks.references import Inventory, inventory, newest_at_or_below, retained_from
from disks.row_content import read_row, row_info
from disks.stores.base import ByteRange
from oplog import pins, snapshot
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow
from oplog.revision import commit_key, snapshot_key
from restore.cache import Cache, read_cache
from restore.findings import Checked, Findings, Problem, locate
from restore.plan import missing_objects

_NAMED_OBJECT = re.compile(r"(?:operations|snapshots|pins)/\S+?(?=[\s:,)]|\Z)")
_SECOND_LOOKS = 100
"""Blobs missing from the listing that are looked up one by one: is the blob gone, or the listing short?"""
_GAPS_SHOWN = 10


@dataclass
class BucketTree:
    """The files of an object disk, read past its cache."""

    source: ObjectDisk
    rows: Mapping[str, FileRow]

    @property
    def disk(self) -> str:
        return self.source.name

    @cached_property
    def files(self) -> dict[str, FileInfo]:
        return {path: row_info(row) for path, row in self.rows.items()}

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        row = self.rows.get(path)
        if row is None:
            raise NotFound(f"no file {path} on disk {self.disk}")
        return read_row(self.source.store, row, byte_range, disk=self.disk)


def check_bucket(
    disk: ObjectDisk, findings: Findings, checked: Checked, *, repair: bool, repaired: list[str]
) -> BucketTree:
    """Check everything but the parts. Returns the files as the log has them; as the cache has them, if the log cannot
    be replayed."""
    found = inventory(disk.store.list())
    checked.objects += len(found.blobs)
    _check_schema(disk, found, findings)
    _check_gaps(disk, found, findings)
    _check_pins(disk, findings)
    cache = read_cache(disk)
    past = _replay(disk, found, cache, findings, repair=repair, repaired=repaired)
    if past is None:
        return BucketTree(disk, cache.rows)
    _check_end(disk, found, findings)
    rows = past.rows()
    past.close()
    _check_blobs(disk, found, rows, findings)
    return BucketTree(disk, rows)


def _damage(disk: ObjectDisk, findings: Findings, invariant: str, error: Damaged | NotFound) -> None:
    named = _NAMED_OBJECT.search(error.message)
    findings.add(Problem(invariant, error.message, disk.name, object=named[0] if named else None))


def _check_schema(disk: ObjectDisk, found: Inventory, findings: Findings) -> None:
    if not disk.log.check_schema() and (found.commits or found.blobs):
        what = f"{disk.store.name} does not say which format its log has"
        findings.add(Problem("I15", what, disk.name, object=".SCHEMA_VERSION"))


def _check_gaps(disk: ObjectDisk, found: Inventory, findings: Findings) -> None:
    """Entries may be missing only where a snapshot stands in for them and the retention has run out."""
    retention = timedelta(seconds=disk.retention_seconds)
    base = retained_from(found.commits, now=datetime.now(UTC), retention=retention)
    start = newest_at_or_below(found.snapshots, base)
    end = max(found.head, max(found.snapshots, default=0))
    lost = [revision for revision in range(start + 1, end + 1) if revision not in found.commits]
    for revision in lost[:_GAPS_SHOWN]:
        what = f"log entry of revision {revision} is missing"
        if revision == lost[:_GAPS_SHOWN][-1] and len(lost) > _GAPS_SHOWN:
            what += f"; so are {len(lost) - _GAPS_SHOWN} more"
        findings.add(Problem("I6", what, disk.name, object=commit_key(revision)))


def _check_pins(disk: ObjectDisk, findings: Findings) -> None:
    try:
        pins.list_pins(disk.store)
    except Damaged as error:
        _damage(disk, findings, "I15", error)


def _check_end(disk: ObjectDisk, found: Inventory, findings: Findings) -> None:
    """The entry after the last listed one must not exist: else the listing is short."""
    key = commit_key(found.head + 1)
    if any(True for _ in disk.log.revisions(found.head)):
        return  # somebody committed while we looked
    try:
        disk.store.get(key)
    except NotFound:
        return
    findings.add(Problem("I15", f"the listing does not show log entry {key}, which exists", disk.name, object=key))


def _replay(
    disk: ObjectDisk, found: Inventory, cache: Cache, findings: Findings, *, repair: bool, repaired: list[str]
) -> Past | None:
    """The table at the listed head, from the oldest start that reaches it, comparing snapshots and cache on the way."""
    reach = found.head
    while reach in found.commits:
        reach -= 1
    starts = sorted(start for start in {0, *found.snapshots} if start >= reach and start <= found.head)
    for start in starts:
        try:
            past = Past(disk.log, start, until=found.head)
        except (Damaged, NotFound) as error:
            _damage(disk, findings, "I15", error)
            continue
        try:
            _pass(disk, found, cache, past, findings)
        except (Damaged, NotFound) as error:
            past.close()
            _damage(disk, findings, "I6", error)
            continue
        _check_cache(disk, cache, past, findings, repair=repair, repaired=repaired)
        return past
    if not starts:
        what = f"the file table at revision {found.head} cannot be rebuilt: no snapshot and no unbroken log reach it"
        findings.add(Problem("I7", what, disk.name))
    return None


def _pass(disk: ObjectDisk, found: Inventory, cache: Cache, past: Past, findings: Findings) -> None:
    """Go to the head; stop at every snapshot to compare it, and where the cache stands."""
    stops = {revision for revision in found.snapshots if past.revision < revision <= found.head}
    compared = cache.exists and cache.problem is None and past.revision <= cache.revision <= found.head
    if compared:
        stops.add(cache.revision)
    for stop in sorted(stops):
        past.advance(stop)
        if stop in found.snapshots:
            _compare_snapshot(disk, past, stop, findings)
        if compared and stop == cache.revision:
            cache.differs = cache.digest != past.digest or cache.rows != past.rows()
    past.advance(found.head)


def _compare_snapshot(disk: ObjectDisk, past: Past, revision: int, findings: Findings) -> None:
    key = snapshot_key(revision)
    try:
        header, rows = snapshot.read(disk.store, revision)
        same = header.digest == past.digest and {row.path: row for row in rows} == past.rows()
    except (Damaged, NotFound) as error:
        _damage(disk, findings, "I15", error)
        return
    if not same:
        what = f"the snapshot of revision {revision} does not hold what the log says"
        findings.add(Problem("I7", what, disk.name, object=key))


def _check_cache(
    disk: ObjectDisk, cache: Cache, past: Past, findings: Findings, *, repair: bool, repaired: list[str]
) -> None:
    what = cache.problem
    if what is None and cache.revision > past.revision and disk.log.head(past.revision) < cache.revision:
        what = f"the local file table is at revision {cache.revision} and the log ends at {past.revision}"
    if what is None and cache.differs:
        what = f"the local file table is not what the log says at revision {cache.revision}"
    if what is None:
        return
    if repair:
        disk.replace_cache(past.rows().values(), past.revision, past.digest)
        repaired.append(f"disk {disk.name}: rebuilt the local file table from {disk.store.name} ({what})")
    else:
        findings.add(Problem("I7", what, disk.name, path=str(disk.table_path)))


def _check_blobs(disk: ObjectDisk, found: Inventory, rows: Mapping[str, FileRow], findings: Findings) -> None:
    """Every named blob is listed with its size; inline bytes match their digest."""
    lost = missing_objects(rows, {blob.key: blob.size_bytes for blob in found.blobs})
    gone = [entry.key for entry in lost if entry.found_bytes is None][:_SECOND_LOOKS]
    with ThreadPoolExecutor(16, thread_name_prefix="fsck") as pool:
        hidden = {
            key for key, size in zip(gone, pool.map(lambda key: _size(disk, key), gone), strict=True) if size >= 0
        }
    for entry in lost:
        place = locate(entry.path)
        if entry.key in hidden:
            what, invariant = "the listing does not show the object, which exists: the listing is incomplete", "I15"
        elif entry.found_bytes is None:
            what, invariant = f"object {entry.key} is missing", "I3"
        else:
            what = f"object {entry.key} has {entry.found_bytes} bytes and the file table says {entry.size_bytes}"
            invariant = "I3"
        table, part = (place.uuid, place.part) if place else (None, None)
        findings.add(Problem(invariant, what, disk.name, table, part, entry.path, entry.key))
    for path, row in rows.items():
        if row.inline is not None and row.sha256 and hashlib.sha256(row.inline).hexdigest() != row.sha256:
            findings.add(Problem("I15", "inline bytes do not match their SHA-256", disk.name, path=path))


def _size(disk: ObjectDisk, key: str) -> int:
    try:
        return disk.store.head(key).size_bytes
    except NotFound:
        return -1
