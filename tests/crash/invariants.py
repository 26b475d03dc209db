"""What must hold after every crash, as functions: each takes an open store and yields what is wrong, a line a finding.

They look at the disks themselves - directories, objects, log entries - and read Parquet with pyarrow alone, so that a
mistake in the product's own reading cannot hide one in its writing.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from oplog import entry
from oplog.errors import FrostlineError
from oplog.revision import parse_blob_key, parse_commit_key, parse_snapshot_key
from tests.crash.as_read import index_is_as_read
from tests.crash.harness import hooked
from tests.crash.site import Site, collect
from tests.keeping import is_keeping
from tiering.catalog.catalog import StoredPart
from tiering.engine.store import Store

Rows = tuple[tuple[object, ...], ...]

_HARMLESS = ("journal.commit", "fs.create", "fs.write")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a user can see of a store: tables with their version, and the rows of each."""

    tables: Mapping[str, tuple[int, Rows]]

    def __str__(self) -> str:
        return (
            ", ".join(f"{name} v{version}: {len(rows)} rows" for name, (version, rows) in self.tables.items()) or "none"
        )


def observe(store: Store) -> Seen:
    """Read everything that is active."""
    return Seen(
        {
            definition.full_name: (definition.version, rows_of(store, definition.full_name))
            for definition in store.definitions()
        }
    )


def rows_of(store: Store, table: str) -> Rows:
    """The rows of all active parts, in a fixed order."""
    found: list[tuple[object, ...]] = []
    for stored in store.parts(table):
        for file in stored.part.files:
            data = pq.read_table(io.BytesIO(store.disk(stored.disk).read(stored.path(file.name))))
            found += zip(*(data.column(name).to_pylist() for name in ("key", "ts", "text")), strict=True)
    return tuple(sorted(found))


def placement(store: Store) -> dict[str, str]:
    """Where each active part lies, by table and part."""
    return {f"{stored.definition.full_name}/{stored.part.name}": stored.disk for stored in store.parts()}


def no_alarm(store: Store) -> Iterator[str]:
    """I16: nothing that a crash leaves looks like a disk, or a journal, that was set back to an older copy."""
    yield from (f"I16 {fault.error.message}" for fault in store.faults())
    if store.context.identities is not None and store.context.identities.behind:
        yield f"I16 {store.context.identities.behind}"


def check(store: Store, site: Site, *watching: Store) -> list[str]:
    """Every invariant that holds at rest, after recovery; also as those see it that were open before."""
    return [
        *no_alarm(store),
        *readable_once(store),
        *journal_is_true(store),
        *no_overlap(store),
        *no_dangling_reference(store),
        *counter_is_dense(store),
        *rebuild_equals_table(store),
        *no_leftovers(site),
        *(index_is_as_read(store, *watching) if is_keeping() else ()),
    ]


def readable_once(store: Store) -> Iterator[str]:
    """I1: every part lies on one disk only; each of its files has the size and SHA-256 that part.json gives."""
    for broken in store.context.catalog.broken:
        yield f"I1 broken: {broken.disk}:{broken.path}: {broken.what}"
    for stored in _everything(store):
        label = f"{stored.definition.full_name}/{stored.part.name} on {stored.disk}"
        if stored.state != "active":
            yield f"I1 {label} is {stored.state} after recovery"
        for file in stored.part.files:
            try:
                data = store.disk(stored.disk).read(stored.path(file.name))
            except (FrostlineError, OSError) as error:
                yield f"I1 {label}: {file.name} cannot be read: {error}"
                continue
            if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
                yield f"I1 {label}: {file.name} differs from part.json"
        if sum(file.rows for file in stored.part.files) != stored.part.rows:
            yield f"I1 {label}: rows of the files do not add up"


def journal_is_true(store: Store) -> Iterator[str]:
    """I1, P15: a part whose last move the journal calls done lies where that move brought it; none is left half way."""
    where = {(stored.definition.uuid, stored.part.name): stored.disk for stored in store.parts()}
    judged: set[tuple[str, str]] = set()
    for record in store.context.journal.work.moves():  # newest first
        key = (record.table_uuid, record.part)
        if record.state in ("planned", "copying", "committed"):
            yield f"I14 move {record.id} of {record.part} is still {record.state} after recovery"
        if record.state == "done" and key not in judged and where.get(key, record.target) != record.target:
            yield f"I1 the journal says {record.part} was moved to {record.target}, yet it is on {where[key]}"
        judged.add(key)


def no_overlap(store: Store) -> Iterator[str]:
    """I2: no two active parts of a partition hold the same block."""
    partitions: dict[tuple[str, str], list[StoredPart]] = defaultdict(list)
    for stored in store.parts():
        partitions[stored.definition.uuid, stored.name.partition].append(stored)
    for parts in partitions.values():
        for one, other in itertools.combinations(parts, 2):
            if one.name.min_block <= other.name.max_block and other.name.min_block <= one.name.max_block:
                yield f"I2 {one.part.name} on {one.disk} and {other.part.name} on {other.disk} overlap"


def no_dangling_reference(store: Store) -> Iterator[str]:
    """I3, I8: every object that the file table names exists with its size, whatever other paths named it before."""
    for disk in store.object_disks():
        objects = {info.key: info.size_bytes for info in disk.store.list()}
        for info in disk.walk():
            if info.key is not None and objects.get(info.key) != info.size_bytes:
                yield f"I3 {disk.name}:{info.path} names {info.key}, which has {objects.get(info.key)} bytes"


def counter_is_dense(store: Store) -> Iterator[str]:
    """I6: revisions rise by one, each entry holds the digest of the one before, and the table is at the last one.

    Below the newest snapshot a gc that was interrupted may have left gaps: nothing needs those entries any more.
    """
    for disk in store.object_disks():
        needed_from = max((parse_snapshot_key(info.key) or 0 for info in disk.store.list("snapshots/")), default=0)
        previous: tuple[int, str] | None = None
        for info in disk.store.list("operations/"):
            revision = parse_commit_key(info.key) or 0
            data = disk.store.get(info.key)
            commit = entry.decode(data, name=info.key)
            follows = previous is not None and revision == previous[0] + 1
            if previous and not follows and previous[0] >= needed_from:
                yield f"I6 revision {revision} does not follow {previous[0]}"
            if previous and follows and commit.previous != previous[1]:
                yield f"I6 revision {revision} does not hold the digest of the one before"
            if commit.revision != revision:
                yield f"I6 entry {info.key} says revision {commit.revision}"
            previous = (revision, entry.digest(data))
        if previous and disk.revision != previous[0]:
            yield f"I6 the table of {disk.name} is at {disk.revision}, the log at {previous[0]}"


def rebuild_equals_table(store: Store) -> Iterator[str]:
    """I7: a machine that has only the bucket gets the same table, from the newest snapshot and the log after it."""
    for disk in store.object_disks():
        with tempfile.TemporaryDirectory(dir=_scratch()) as scratch:
            twin = open_disk(disk.name, store.context.config.disks[disk.name], Path(scratch))
            try:
                rebuilt, live = list(twin.walk()), list(disk.walk())
                if rebuilt != live:
                    difference = {str(info) for info in rebuilt} ^ {str(info) for info in live}
                    yield f"I7 a rebuild of {disk.name} differs: {sorted(difference)[:4]}"
            except FrostlineError as error:
                yield f"I7 {disk.name} cannot be rebuilt: {error}"
            finally:
                twin.close()


def past_is_restorable(disk: ObjectDisk, revisions: Mapping[int, set[str]]) -> Iterator[str]:
    """I4, I7: each of these revisions still gives the paths it had, and every object they name is there."""
    objects = {info.key: info.size_bytes for info in disk.store.list()}
    for revision, paths in revisions.items():
        try:
            table = disk.table_at(revision)
        except FrostlineError as error:
            yield f"I4 revision {revision} cannot be restored: {error}"
            continue
        rows = list(table.rows())
        table.close()
        if {row.path for row in rows} != paths:
            yield f"I7 revision {revision} has other paths"
        for row in rows:
            if row.key is not None and objects.get(row.key) != row.size_bytes:
                yield f"I4 object {row.key} of {row.path} at revision {revision} is gone"


def no_leftovers(site: Site, *, ignoring: tuple[str, ...] = ()) -> Iterator[str]:
    """I14: no staging, scratch, trash or temporary file is left; only files that the disks show, and their own few."""
    for directory, _, files in os.walk(site.root):
        inside = Path(directory).relative_to(site.root)
        segments = inside.parts
        if segments[:1] == ("repository",) or segments[:2] == ("state", "backup") or "readers" in segments:
            continue  # what a killed backup left is the next one's business: `backing_up.back_up` looks
        to_delete = {"staging", "committed", "trash", "hidden", ".incoming", "scratch"} & set(segments)
        if {*ignoring, site.scratch.name} & set(segments):  # the next shard on the machine sweeps what one left
            continue
        for name in files:
            if to_delete or name.endswith((".tmp", ".new", ".owner")):
                yield f"I14 leftover {inside / name}"
        if to_delete and len(segments) > segments.index(next(iter(to_delete))) + 1:
            yield f"I14 leftover directory {inside}"


@contextmanager
def opened_again(site: Site, violations: list[str]) -> Iterator[Store]:
    """I14: opening once more finds nothing to do and changes nothing. Locks and claims come and go, and so does what is
    kept of looks: no change."""
    changes: list[str] = []

    def note(when: str, name: str, arguments: tuple[object, ...]) -> None:
        if when == "before" and name not in _HARMLESS and not str(arguments[0]).endswith("/catalog.db"):
            changes.append(name)

    with hooked(note):
        store = site.open()
    if store.recovered:
        violations.append(f"I14 a second recovery did: {store.recovered}")
    if changes:
        violations.append(f"I14 a second recovery changed something: {changes}")
    with store:
        yield store


def young_objects_survive(store: Store) -> Iterator[str]:
    """I5: gc deletes nothing that is younger than its guard interval, named or not."""
    for disk in store.object_disks():
        before = _blobs(disk)
        report = collect(store, disk.name)
        if report.deleted or _blobs(disk) != before:
            yield f"I5 gc deleted {report.deleted} young objects of {disk.name}"


def old_orphans_go(store: Store, *, retained: Iterable[int] = ()) -> Iterator[str]:
    """I4, I5: gc of a later day deletes every orphan, and nothing that the table, or a retained revision, names."""
    for disk in store.object_disks():
        if not disk.revision:
            continue
        report = collect(store, disk.name)
        if report.refused or report.failed:
            yield f"I5 gc of {disk.name} refused: {report.refused} {report.failed}"
        named = {info.key for info in disk.walk() if info.key}
        for revision in retained:
            table = disk.table_at(revision)
            named |= {row.key for row in table.rows() if row.key}
            table.close()
        if orphans := _blobs(disk) - named:
            yield f"I5 {len(orphans)} orphans of {disk.name} outlive gc"
        yield from no_dangling_reference(store)
        yield from rebuild_equals_table(store)


def _blobs(disk: ObjectDisk) -> set[str]:
    return {info.key for info in disk.store.list() if parse_blob_key(info.key) is not None}


def _everything(store: Store) -> list[StoredPart]:
    return store.parts(include_outdated=True)


def _scratch() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
