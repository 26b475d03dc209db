"""Rebuild an object disk from its bucket: the cache as the log has it now, or the tree as it was at an old revision.

Without `apply` nothing is written, neither here nor in the bucket. Going back never rewrites history: it is one new
commit on top of it, whose creates name the old blobs, so nothing is copied and going back is itself reversible.
"""

from __future__ import annotations

import secrets
import time as clock
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from disks.base import LoggedDisk
from disks.file_table.table import FileTable, TableReader
from disks.garbage.collect import announced
from disks.object_disk.history import TableAsOf, at_head, past_at, past_before
from disks.object_disk.references import INTENTS_PREFIX, Inventory, inventory, is_set_aside
from disks.stores.base import ObjectStore
from disks.stores.wrappers.metered import MeteredStore
from disks.workers.progress import SILENT, Progress, Task
from oplog.errors import Conflict, Damaged, Locked, NotFound, Refused, UsageError
from oplog.kinds import Restored
from oplog.replay import FileRow
from oplog.revision import BLOBS_PREFIX, OPERATIONS_PREFIX, SNAPSHOTS_PREFIX, parse_blob_key
from restore.rebuild.cache import UNREADABLE, Cache, opened_cache, unreadable
from restore.rebuild.held_revision import pinned
from restore.rebuild.plan import (
    TableDifference,
    Tally,
    compare,
    in_scope,
    kept_reservations,
    leaves_frozen,
    lost_objects,
)
from restore.rebuild.request import RestoreRequest
from restore.rebuild.result import RestoreResult
from restore.rebuild.scope import scope_of
from tiering.table import schema
from tiering.table.schema import TABLE_FILE

_COMMIT_ATTEMPTS = 5


def restore(disk: LoggedDisk, request: RestoreRequest, *, progress: Progress = SILENT) -> RestoreResult:
    """Compare, and with `request.apply` restore.

    Neither revision nor time: the local cache against the bucket; `apply` replaces the whole cache, whatever the
    report is about. A revision or time: the tree as it was then; `apply` commits the difference within what is asked
    for, and raises `Refused` when a blob it needs is gone. Raises `NotFound` for a revision that is no longer kept,
    naming those that are; `Locked` while a collection is deleting what it needs. A killed restore is run again.
    """
    request = located(disk, request)
    started = clock.monotonic()
    before = requests_so_far(disk.store)
    newest = request.revision is None and request.time is None
    result = _rebuild_cache(disk, request, progress) if newest else _go_back(disk, request)
    result.requests = {verb: count - before.get(verb, 0) for verb, count in requests_so_far(disk.store).items()}
    result.seconds = clock.monotonic() - started
    return result


def located(disk: LoggedDisk, request: RestoreRequest) -> RestoreRequest:
    """The same request with the paths of its tables and partitions, by the names they had then: a dropped table is
    found in the past. Raises `NotFound` for what there was not."""
    if not request.tables and not request.partitions:
        return request
    wanted = revision_of(disk, request.revision, request.time)
    where = f"on disk {disk.name} at revision {wanted}"
    with closing(disk.table_at(wanted)) as then, closing(disk.table_at(disk.log.head(wanted))) as newest:
        found = scope_of(request.tables, request.partitions, then, newest, where)
    return replace(request, tables=(), partitions=(), paths=(*found, *request.paths))


def requests_so_far(store: ObjectStore) -> dict[str, int]:
    """By verb; nothing for a store that counts none."""
    return store.counts() if isinstance(store, MeteredStore) else {}


# The cache


def _rebuild_cache(disk: LoggedDisk, request: RestoreRequest, progress: Progress) -> RestoreResult:
    scope = request.scope
    found = log_inventory(disk.store)
    with progress.task(f"reading the log of {disk.name}"):
        past = past_at(disk.log, found, found.head, until=found.head)
    with closing(past):
        with past.table.read() as truth:
            files = truth.count()
            with progress.task(f"comparing {disk.name} with its bucket", items=files) as task:
                cache, cached_files, difference, tally = _against_cache(disk, truth, scope, task)
            notes = (
                [cache.problem] if cache.problem else [] if cache.exists else [f"disk {disk.name} has no local state"]
            )
            if found.head == 0:
                disk.log.check_schema()
                if request.apply and cached_files:
                    raise Refused(
                        f"{disk.store.name} holds no log entry, while the cache of disk {disk.name} knows "
                        f"{cached_files} files",
                        hint="check the url of the disk; if the bucket was emptied on purpose, delete "
                        f"{disk.table_path}",
                    )
            result = _result(disk, found, truth, scope, difference, tally, notes)
        result.revision = past.revision
        if request.apply:
            with progress.task(f"writing the file table of {disk.name}", items=files) as task:
                disk.replace_cache(Watched(past.table, task), past.revision, past.digest)
            result.applied = True
        return result


def _against_cache(
    disk: LoggedDisk, truth: TableReader, scope: Sequence[str] | None, task: Task
) -> tuple[Cache, int, TableDifference, Tally]:
    """The cache, how many files it knows, how the truth differs from it, and what the truth holds."""
    tally = Tally(scope)
    try:
        with opened_cache(disk) as (cache, view):
            rows = tally.counting(by_path(Watched(truth.rows(), task)))
            files = view.count() if view is not None else 0
            current = by_path(view.rows()) if view is not None else iter(())
            return cache, files, compare(current, rows, scope, paths=False), tally
    except UNREADABLE as error:
        cache, tally = unreadable(disk, error), Tally(scope)
        nothing: Iterator[tuple[str, FileRow]] = iter(())
        return cache, 0, compare(nothing, tally.counting(by_path(truth.rows())), scope, paths=False), tally


class Watched:
    """Rows that tell a task how many of them have gone by."""

    _STEP = 1000

    def __init__(self, rows: Iterable[FileRow], task: Task) -> None:
        self._rows, self._task = rows, task

    def __iter__(self) -> Iterator[FileRow]:
        number = 0
        for number, row in enumerate(self._rows, 1):
            if number % self._STEP == 0:
                self._task.advance(items=self._STEP)
            yield row
        self._task.advance(items=number % self._STEP)


def by_path(rows: Iterable[FileRow]) -> Iterator[tuple[str, FileRow]]:
    """Rows of a table as the pure functions take them."""
    return ((row.path, row) for row in rows)


def log_inventory(store: ObjectStore) -> Inventory:
    """The log's own objects: two listings, however many blobs there are."""
    return inventory([*store.list(OPERATIONS_PREFIX), *store.list(SNAPSHOTS_PREFIX)])


class _BlobListing:
    """The blobs of a bucket (key, size) in key order, counted while they go by."""

    def __init__(self, store: ObjectStore) -> None:
        self.objects = 0
        self._store = store

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for item in self._store.list(BLOBS_PREFIX):
            if parse_blob_key(item.key) is not None:
                self.objects += 1
                yield item.key, item.size_bytes


def _result(
    disk: LoggedDisk,
    found: Inventory,
    wanted: TableReader,
    scope: Sequence[str] | None,
    difference: TableDifference,
    tally: Tally,
    notes: list[str],
) -> RestoreResult:
    listing = _BlobListing(disk.store)
    listed = iter(listing)
    lost = list(lost_objects((blob for blob in wanted.blobs_by_key() if in_scope(blob[2], scope)), listed))
    for _ in listed:  # the rest counts too
        pass
    return RestoreResult(
        disk=disk.name,
        revision=0,
        head=found.head,
        files=tally.files,
        bytes=tally.bytes,
        difference=difference,
        missing_objects=sorted(lost, key=lambda entry: entry.path),
        digest=tally.digest,
        objects=listing.objects,
        notes=notes,
    )


# An old revision


def _go_back(disk: LoggedDisk, request: RestoreRequest) -> RestoreResult:
    if request.apply and disk.read_only:
        raise Refused(f"disk {disk.name} is read-only", hint="a preview, without --apply, is allowed")
    past = _at_time(disk, request.time) if request.time is not None else None
    target = past.revision if past is not None else request.revision or 0
    scope = request.scope
    if not request.apply:
        with _tables(disk, past, target) as tables:
            return _compared(disk, tables, target, scope)
    if target > disk.revision:
        raise NotFound(f"disk {disk.name} has no revision {target}", hint=f"the newest is {disk.revision}")
    # The listings come after the pin: what they show stays, unless a collection had announced it already.
    with pinned(disk, target, request.actor, request.reason) as held, _tables(disk, past, target) as tables:
        result = _compared(disk, tables, target, scope)
        _check_restorable(disk, result, tables.wanted, scope)
        check_names(disk, result, tables.wanted)
        if held is not None:
            held.check()
        result.commit = _commit(disk, tables.wanted, result, request)
        result.applied = True
    return result


def revision_of(disk: LoggedDisk, revision: int | None, time: datetime | None) -> int:
    """The revision that these mean: the one named, that of the time, or the newest. Reads the log and no listing of
    blobs."""
    if revision is not None:
        return revision
    if time is None:
        return disk.log.head()
    with closing(_at_time(disk, time)) as past:
        return past.revision


def _at_time(disk: LoggedDisk, moment: datetime) -> TableAsOf:
    """The table at a time, found from the log's own objects alone."""
    if moment.tzinfo is None:
        raise UsageError(f"the time {moment.isoformat()} has no time zone", hint="write it like 2026-01-31T12:00:00Z")
    return past_before(disk.log, log_inventory(disk.store), moment)


@dataclass(frozen=True, slots=True)
class _ThenAndNow:
    """A disk then and now, as its log has it."""

    found: Inventory
    wanted: FileTable
    newest: FileTable
    moved_in: Collection[str]


@contextmanager
def _tables(disk: LoggedDisk, past: TableAsOf | None, target: int) -> Iterator[_ThenAndNow]:
    """The wanted table and the newest. Closes the past."""
    with ExitStack() as stack:
        if past is not None:
            stack.enter_context(closing(past))
        found = log_inventory(disk.store)
        then = past or stack.enter_context(closing(past_at(disk.log, found, target)))
        wanted = stack.enter_context(closing(then.table.copy()))
        then.moved_in.clear()
        newest = stack.enter_context(closing(at_head(disk.log, found, then)))
        keep_reservations(wanted, newest.table)
        yield _ThenAndNow(found, wanted, newest.table, newest.moved_in)


def keep_reservations(wanted: FileTable, newest: FileTable) -> None:
    """Put the ranges of block numbers that are taken now into the wanted table."""
    with newest.read() as now, wanted.write() as view:
        taken = now.documents("*/blocks-*.json")
        for path, row in kept_reservations(by_path(taken), lambda table: view.get(table) is not None):
            view.remove(path)
            view.insert([row])


def _compared(disk: LoggedDisk, tables: _ThenAndNow, target: int, scope: Sequence[str] | None) -> RestoreResult:
    """How the newest table differs from the wanted one."""
    tally = Tally(scope)
    wanted_rows = tally.counting(by_path(tables.wanted))
    difference = compare(by_path(tables.newest), wanted_rows, scope, goes=leaves_frozen(scope))
    with tables.wanted.read() as wanted:
        result = _result(disk, tables.found, wanted, scope, difference, tally, [])
    result.revision = target
    _note_moves(disk, result, tables.moved_in)
    return result


def _note_moves(disk: LoggedDisk, result: RestoreResult, moved_in: Collection[str]) -> None:
    """A part that was on another disk at the time, and has come here since, is on no disk once it goes from here."""
    parts = {path.rpartition("/")[0] for path in result.difference.removed if path in moved_in}
    if parts:
        result.moved_in = sorted(parts)
        result.notes.append(
            f"parts that came to disk {disk.name} from other disks since then: {len(parts)}, such as "
            f"{result.moved_in[0]}. Going back takes their only copies out of their tables; revision "
            f"{result.head} still has them until the retention is over"
        )


def check_names(disk: LoggedDisk, result: RestoreResult, wanted: FileTable) -> None:
    """A table that comes back must not bear the name of one that stays: nobody could tell them apart."""
    back: dict[str, str] = {}
    for path in filter(_is_table, result.difference.created):
        if (row := wanted.get(path)) is not None:
            back[_table_name(row)] = path
    if not back:
        return
    gone = set(result.difference.removed) | set(result.difference.created)
    with disk.file_table.read() as view:
        for row in view.documents(f"*/{TABLE_FILE}"):
            if row.path not in gone and back.get(_table_name(row), row.path) != row.path:
                raise Refused(
                    f"revision {result.revision} of disk {disk.name} brings back a table {_table_name(row)}, and "
                    "another one has that name now",
                    hint="drop the new one first, or name the tables to restore with --table",
                )


def _is_table(path: str) -> bool:
    return path.endswith(f"/{TABLE_FILE}")


def _table_name(row: FileRow) -> str:
    try:
        return schema.decode(row.inline or b"", path=row.path).full_name
    except Damaged:
        return row.path


def _check_restorable(disk: LoggedDisk, result: RestoreResult, wanted: FileTable, scope: Sequence[str] | None) -> None:
    missing = [lost for lost in result.missing_objects if not is_set_aside(lost.path)]
    if missing:
        raise Refused(
            f"revision {result.revision} of disk {disk.name} needs {len(missing)} objects that are "
            f"gone, such as {missing[0].key} ({missing[0].path})",
            hint="the preview lists them; choose another revision, or the tables that are whole",
        )
    if next(iter(disk.store.list(INTENTS_PREFIX)), None) is None:
        return
    going = announced(disk, now=datetime.now(UTC))
    with wanted.read() as view:
        needed = any(key in going and in_scope(path, scope) for key, _, path in view.blobs_by_key())
    if needed:
        raise Locked(
            f"a collection is deleting objects that revision {result.revision} of disk {disk.name} needs",
            hint="wait until it has ended and look at the preview again; an abandoned one counts for an hour",
        )


def _commit(disk: LoggedDisk, wanted: FileTable, result: RestoreResult, request: RestoreRequest) -> int | None:
    """Commit the difference to the newest table; again with a new difference when another writer came between."""
    scope = request.scope
    kind = Restored(
        revision=result.revision, epoch=secrets.token_hex(8), scope=" ".join(scope) if scope is not None else None
    )
    for _ in range(_COMMIT_ATTEMPTS):
        disk.refresh()
        result.difference = compare(by_path(disk.file_table), by_path(wanted), scope, goes=leaves_frozen(scope))
        if result.difference.empty:
            return None
        with disk.transaction(kind, reason=request.reason, actor=request.actor) as transaction:
            for path in result.difference.removed:
                transaction.remove(path)
            for path in result.difference.created:
                if (row := wanted.get(path)) is not None:
                    transaction.adopt(row)
            try:
                return transaction.commit()
            except Conflict:
                continue
    raise Conflict(
        f"disk {disk.name} changed {_COMMIT_ATTEMPTS} times while it was restored",
        hint="stop the writers, then try again",
    )
