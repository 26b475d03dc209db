"""Where a restore from another bucket takes its files: our own log, or the disk of a ClickHouse server. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime

import msgspec

from disks.file_table.table import FileTable
from disks.object_disk.history import TableAsOf, available, past_at
from disks.object_disk.references import Inventory
from disks.object_disk.sharing.prefix import log_in
from disks.stores.base import ObjectStore
from disks.workers.parallel import HERE, Askers
from oplog.clickhouse.replay import LogProblem
from oplog.errors import Damaged, NotFound, UsageError
from oplog.log import OperationsLog
from oplog.mark import SCHEMA_VERSION, SHARED_SCHEMA_VERSION, read_mark
from oplog.revision import BLOBS_PREFIX, OPERATIONS_PREFIX, SCHEMA_VERSION_KEY, parse_commit_key
from restore.clickhouse.bucket import read_bucket
from restore.clickhouse.tree import rows_of
from restore.rebuild.moments import nothing_yet, past_at_time
from restore.rebuild.rebuild import log_inventory


class SourceTree(msgspec.Struct, frozen=True):
    """The files of another bucket at a revision, and the store that holds their objects."""

    store: ObjectStore
    table: FileTable
    """Digests are unknown (empty) where the bucket does not hold them; such files may lie in several objects."""
    revision: int
    head: int
    """The highest revision of that bucket."""
    blobs_prefix: str
    """Every object of a file has a key that begins so."""
    findings: list[LogProblem] = msgspec.field(default_factory=list)
    """What is wrong with the bucket of a ClickHouse server."""


@contextmanager
def read_source(
    store: ObjectStore,
    *,
    revision: int | None = None,
    time: datetime | None = None,
    askers: Askers = HERE,
) -> Iterator[SourceTree]:
    """The tree at the revision or the time, by default the newest one. With `askers.remote` others ask the objects of a
    ClickHouse server for their paths. Raises `NotFound`, `Damaged`, `UsageError`."""
    if has_our_log(store):
        with _from_log(store, revision, time) as tree:
            yield tree
        return
    if time is not None:
        raise UsageError(
            f"{store.name} is the disk of a ClickHouse server: its log has no times",
            hint="name a revision; 'frostline clickhouse inspect' shows them",
        )
    found = read_bucket(store, revision=revision, askers=askers)
    with closing(FileTable(None)) as table:
        table.insert(list(rows_of(found.files.values())))
        yield SourceTree(store, table, found.revision, found.head, "", found.findings)


def has_our_log(store: ObjectStore) -> bool:
    """Whether a disk of ours with its own log (format 2) wrote the bucket."""
    try:
        return read_mark(store, SCHEMA_VERSION_KEY).strip() in (SCHEMA_VERSION, SHARED_SCHEMA_VERSION)
    except NotFound:
        first = next(iter(store.list(OPERATIONS_PREFIX)), None)
        return first is not None and parse_commit_key(first.key) is not None


@contextmanager
def _from_log(store: ObjectStore, revision: int | None, time: datetime | None) -> Iterator[SourceTree]:
    log_in(store).check_schema()
    found = log_inventory(store)
    while True:
        try:
            past = _past(log_in(store), found, revision, time)
            break
        except (Damaged, NotFound):
            # Nothing pins the source: its gc may have taken what was listed. Then the listing has changed.
            earlier, found = found, log_inventory(store)
            if (set(earlier.commits), set(earlier.snapshots)) == (set(found.commits), set(found.snapshots)):
                raise
    with closing(past):
        yield SourceTree(store, past.table, past.revision, found.head, BLOBS_PREFIX)


def _past(log: OperationsLog, inventory: Inventory, revision: int | None, time: datetime | None) -> TableAsOf:
    if inventory.head == 0:
        raise NotFound(f"{log.store.name} holds no log entry", hint=available(inventory))
    if time is not None:
        past = past_at_time(log, inventory, time)
        if past.revision == 0:
            past.close()
            raise nothing_yet(log, inventory, time, log.store.name)
        return past
    return past_at(log, inventory, inventory.head if revision is None else revision)
