"""Rebuild an object disk from its bucket: the cache as the log has it now, or the tree as it was at an old revision.

Without `apply` nothing is written, neither here nor in the bucket. Going back never rewrites history: it is one new
commit on top of it, whose creates name the old blobs, so nothing is copied and going back is itself reversible.
"""

from __future__ import annotations

import secrets
import sqlite3
import time as clock
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blobs_by_key import BlobsByKey
from disks.file_table.row_bytes import read_row
from disks.file_table.table import FileTable
from disks.file_table.views import TableReader
from disks.garbage.listing import compare_blobs
from disks.host.database import for_reading
from disks.object_disk.blobs import BlobListing
from disks.object_disk.history import TableAsOf, at_head, contradicted_by, past_at
from disks.object_disk.references import Inventory, inventory
from disks.stores.base import ObjectStore
from disks.stores.wrappers.metered import MeteredStore
from disks.workers.counting import RequestCount, add_requests
from disks.workers.progress import SILENT, Progress, Task, watched
from disks.workers.runner import Remote
from oplog.errors import Conflict, Damaged, NotFound, Refused
from oplog.kinds import Restored
from oplog.replay import FileRow
from oplog.revision import OPERATIONS_PREFIX, SNAPSHOTS_PREFIX, snapshot_key
from restore.rebuild.allowed import (
    OF_ANOTHER_TIME,
    check_arrivals,
    check_names,
    check_objects,
    check_replicas,
    check_revision,
    check_writable,
    objection_of,
)
from restore.rebuild.definitions import SettledDefinition, settle
from restore.rebuild.duplicates import Elsewhere, Look, nothing_known
from restore.rebuild.given_since import keep_reservations, level_marks, note_levels
from restore.rebuild.held_revision import pinned
from restore.rebuild.moments import past_at_time
from restore.rebuild.naming import in_words, table_name, table_names
from restore.rebuild.part_admission import Arrivals, sort_arrivals
from restore.rebuild.plan import (
    MissingObject,
    TableDifference,
    Tally,
    by_path,
    compare,
    in_scope,
    leaves_frozen,
    lost_objects,
    with_paths,
)
from restore.rebuild.request import RebuildRequest
from restore.rebuild.result import RebuildResult
from restore.rebuild.scope import scope_of
from tiering.config.units import counted
from tiering.table import part as parts_format
from tiering.table.part import Part
from tiering.table.paths import directory_of

_COMMIT_ATTEMPTS = 20


def restore(
    disk: LoggedDisk,
    request: RebuildRequest,
    *,
    progress: Progress = SILENT,
    look: Look = nothing_known,
    remote: Remote | None = None,
) -> RebuildResult:
    """Compare, and with `request.apply` restore. `look`: what the other disks hold, asked before each decision. With
    `remote` others list the bucket; the result is the same, and the requests are those of all.

    Neither revision nor time: the local cache against the bucket; `apply` replaces the whole cache, whatever the
    report is about. A revision or time: the tree as it was then; `apply` commits the difference within what is asked
    for, and raises `Refused` when a blob it needs is gone. Raises `NotFound` for a revision that is no longer kept,
    naming those that are; `Locked` while a collection is deleting what it needs. A killed restore is run again.
    """
    request = located(disk, request)
    started = clock.monotonic()
    before = requests_so_far(disk.store)
    counting = RequestCount(remote.store) if remote is not None else None
    if remote is not None and counting is not None:
        remote = Remote(remote.runner.hooked(counting), remote.store)
    newest = request.revision is None and request.time is None
    result = _rebuild_cache(disk, request, progress, remote) if newest else _go_back(disk, request, look, remote)
    result.requests = {verb: count - before.get(verb, 0) for verb, count in requests_so_far(disk.store).items()}
    add_requests(result.requests, counting.requests if counting is not None else {})
    result.seconds = clock.monotonic() - started
    return result


def located(disk: LoggedDisk, request: RebuildRequest) -> RebuildRequest:
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


def _rebuild_cache(
    disk: LoggedDisk, request: RebuildRequest, progress: Progress, remote: Remote | None
) -> RebuildResult:
    scope = request.scope
    found = log_inventory(disk.store)
    with progress.task(f"reading the log of {disk.name}"):
        past, doubts = _newest(disk, found)
    with closing(past), closing(BlobsByKey()) as blobs:
        files = past.count()
        with progress.task(f"comparing {disk.name} with its bucket", items=files) as task:
            cache, cached_files, difference, tally = _against_cache(disk, past, blobs, scope, task)
        notes = (
            [cache.problem] if cache.problem else [] if cache.exists else [f"disk {disk.name} has no local state"]
        ) + doubts
        if found.head == 0:
            disk.log.check_schema()
            if request.apply and cached_files:
                raise Refused(
                    f"{disk.store.name} holds no log entry, while the cache of disk {disk.name} knows "
                    f"{counted(cached_files, 'file')}",
                    hint=f"check the url of the disk; if the bucket was emptied on purpose, delete {disk.table_path}",
                )
        objects, lost = _lost(disk, blobs, past, scope, remote)
        names = table_names((one.path for one in lost), past)
        result = _result(disk, found, objects, lost, names, difference, tally, notes)
        result.revision = past.revision
        if request.apply:
            with progress.task(f"writing the file table of {disk.name}", items=files) as task:
                disk.replace_cache(
                    lambda: watched(past.stored(), task),
                    past.revision,
                    past.digest,
                    table_digest=past.table_digest.hex,
                    proved=past.is_proved,
                )
            result.applied = True
        return result


def _newest(disk: LoggedDisk, inventory: Inventory) -> tuple[TableAsOf, list[str]]:
    """The newest table, and what is to be said of the snapshot that it did not begin with, or ought not to have."""
    past = past_at(disk.log, inventory, inventory.head, until=inventory.head)
    older = contradicted_by(disk.log, inventory, past)
    if older is None:
        return past, []
    older.close()
    key = f"{disk.store.name}{snapshot_key(past.start)}"
    try:
        whole = past_at(disk.log, inventory, past.revision, until=inventory.head, before=1)
    except (NotFound, Damaged):
        return past, [f"{key} contradicts the snapshot before it, and no entry shows which of them is right"]
    past.close()
    return whole, [f"{key} contradicts the log; an older one is used"]


def _against_cache(
    disk: LoggedDisk, truth: TableAsOf, blobs: BlobsByKey, scope: Sequence[str] | None, task: Task
) -> tuple[Cache, int, TableDifference, Tally]:
    """The cache, how many files it knows, how the truth differs from it, and what the truth holds. `blobs` is
    then what it names within the scope."""
    within = partial(in_scope, scope=scope)
    tally = Tally(scope)
    try:
        with opened_cache(disk) as (cache, view):
            rows = tally.counting(by_path(blobs.noting(watched(truth.rows(), task), within)))
            files = view.count() if view is not None else 0
            current = by_path(view.rows()) if view is not None else iter(())
            return cache, files, compare(current, rows, scope, paths=False), tally
    except UNREADABLE as error:
        cache, tally = unreadable(disk, error), Tally(scope)
        rows = tally.counting(by_path(blobs.noting(truth.rows(), within)))
        nothing: Iterator[tuple[str, FileRow]] = iter(())
        return cache, 0, compare(nothing, rows, scope, paths=False), tally


def log_inventory(store: ObjectStore) -> Inventory:
    """The log's own objects: two listings, however many blobs there are."""
    return inventory([*store.list(OPERATIONS_PREFIX), *store.list(SNAPSHOTS_PREFIX)])


def _lost(
    disk: LoggedDisk,
    blobs: Iterable[tuple[str, int]],
    rows: Iterable[FileRow],
    scope: Sequence[str] | None,
    remote: Remote | None,
) -> tuple[int, list[MissingObject]]:
    """How many objects the bucket has, and which of these blobs, in key order, it lacks or has with another size, for
    each of the rows that needs them."""
    if remote is not None:
        objects, found = compare_blobs(remote, blobs, title=f"listing disk {disk.name}")
        return objects, with_paths(found, rows, scope)
    listing = BlobListing(disk.store)
    listed = iter(listing)
    lost = list(lost_objects(((key, size_bytes, "") for key, size_bytes in blobs), listed))
    for _ in listed:  # the rest counts too
        pass
    return listing.objects, with_paths({one.key: one.found_bytes for one in lost}, rows, scope)


def _result(
    disk: LoggedDisk,
    inventory: Inventory,
    objects: int,
    lost: list[MissingObject],
    names: dict[str, str],
    difference: TableDifference,
    tally: Tally,
    notes: list[str],
) -> RebuildResult:
    return RebuildResult(
        disk=disk.name,
        revision=0,
        head=inventory.head,
        files=tally.files,
        bytes=tally.bytes,
        difference=difference,
        missing_objects=sorted(lost, key=lambda entry: entry.path),
        names=names,
        digest=tally.digest,
        objects=objects,
        notes=notes,
    )


# An old revision


def _go_back(disk: LoggedDisk, request: RebuildRequest, look: Look, remote: Remote | None) -> RebuildResult:
    if request.apply:
        check_writable(disk)
    past = _at_time(disk, request.time) if request.time is not None else None
    target = past.revision if past is not None else request.revision or 0
    if not request.apply:
        with _tables(disk, past, target, request, look) as tables:
            result = _compared(disk, tables, target, request.scope, remote)
            result.objection = objection_of(
                partial(check_writable, disk), partial(_check_allowed, disk, request, result, tables)
            )
            return result
    if target > disk.revision:
        raise NotFound(f"disk {disk.name} has no revision {target}", hint=f"the newest is {disk.revision}")
    # The listings come after the pin: what they show stays, unless a collection had announced it already.
    with (
        pinned(disk, target, request.actor, request.reason) as held,
        _tables(disk, past, target, request, look) as tables,
    ):
        result = _compared(disk, tables, target, request.scope, remote)
        _check_allowed(disk, request, result, tables)
        if held is not None:
            held.check()
        result.commit = _commit(disk, tables, result, request, look)
        result.applied = True
        return result


def _check_allowed(disk: LoggedDisk, request: RebuildRequest, result: RebuildResult, tables: _ThenAndNow) -> None:
    """Raise `Refused` or `Locked` where the restore may not be done as things are."""
    check_revision(disk, tables.inventory, request, result)
    check_replicas(disk, result, tables.settled, tables.target, tables.newest, instead=OF_ANOTHER_TIME)
    check_arrivals(result)
    check_objects(disk, result, tables.target, request.scope)
    check_names(disk, result, tables.target, tables.elsewhere, hidden=tables.settled.hidden)


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
    return past_at_time(disk.log, log_inventory(disk.store), moment)


class _ThenAndNow(msgspec.Struct, frozen=True):
    """A disk then and now, as its log has it."""

    inventory: Inventory
    target: FileTable
    newest: FileTable
    moved_in: Collection[str]
    settled: SettledDefinition
    levels: Sequence[FileRow]
    elsewhere: Elsewhere


@contextmanager
def _tables(
    disk: LoggedDisk, past: TableAsOf | None, target: int, request: RebuildRequest, look: Look
) -> Iterator[_ThenAndNow]:
    """The wanted table and the newest, and what is elsewhere. Closes the past."""
    with ExitStack() as stack:
        if past is not None:
            stack.enter_context(closing(past))
        found = log_inventory(disk.store)
        then = past or stack.enter_context(closing(past_at(disk.log, found, target)))
        wanted = stack.enter_context(closing(then.table.copy()))
        then.moved_in.clear()
        merged: dict[str, int] = {}
        then.on_commit = lambda commit: note_levels(commit, merged)
        newest = stack.enter_context(closing(at_head(disk.log, found, then)))
        keep_reservations(wanted, newest.table)
        levels = level_marks(wanted, merged)
        elsewhere = look()
        hiding = partial(elsewhere.hiding, disk.name)
        settled = settle(wanted, newest.table, request.scope, actor=request.actor, given=levels, hiding=hiding)
        yield _ThenAndNow(found, wanted, newest.table, newest.moved_in, settled, levels, elsewhere)


def _compared(
    disk: LoggedDisk, tables: _ThenAndNow, target: int, scope: Sequence[str] | None, remote: Remote | None
) -> RebuildResult:
    """How the newest table differs from the wanted one."""
    tally, elsewhere = Tally(scope), tables.elsewhere
    wanted_rows = tables.settled.over(tally.counting(by_path(tables.target)))
    inside = tables.settled.scope(scope)
    difference = compare(by_path(tables.newest), wanted_rows, inside, goes=leaves_frozen(scope))
    arrivals = arriving(disk, disk.store, difference, scope, elsewhere, tables.target, tables.newest)
    with tables.target.read() as wanted:
        blobs = ((key, size_bytes) for key, size_bytes, path in wanted.blobs_by_key() if in_scope(path, scope))
        objects, lost = _lost(disk, blobs, wanted.rows(), scope, remote)
        names = table_names((one.path for one in lost), wanted)
        result = _result(disk, tables.inventory, objects, lost, names, difference, tally, [])
    result.revision = target
    result.take(arrivals, elsewhere)
    _note_moves(disk, result, tables)
    result.notes += tables.settled.notes()
    return result


def arriving(
    disk: LoggedDisk,
    store: ObjectStore,
    difference: TableDifference,
    scope: Sequence[str] | None,
    elsewhere: Elsewhere,
    target: FileTable,
    newest: FileTable,
) -> Arrivals:
    """Which parts of the difference come. The bytes of the target's files are in `store`."""

    def read(path: str) -> Part | None:
        row = target.get(path)
        try:
            return parts_format.decode(read_row(store, row, disk=disk.name), path=path) if row is not None else None
        except (Damaged, NotFound):
            return None  # of a part that cannot be read nobody can say whose rows it has

    def name(uuid: str) -> str:
        return table_name(uuid, target, newest)

    return sort_arrivals(disk.name, difference, scope, elsewhere, read=read, name=name)


def _note_moves(disk: LoggedDisk, result: RebuildResult, tables: _ThenAndNow) -> None:
    """A part that was on another disk at the time, and has come here since, is on no disk once it goes from here."""
    parts = {path.rpartition("/")[0] for path in result.difference.removed if path in tables.moved_in}
    if parts:
        result.moved_in = sorted(parts)
        first = in_words(result.moved_in[0], table_names(result.moved_in[:1], tables.newest))
        copies = {
            directory_of(uuid, present.part.name)
            for uuid, found in tables.elsewhere.parts.items()
            for present in found
            if present.disk != disk.name
        }
        kept = len(parts & copies)
        takes = "takes their only copies out of their tables"
        if kept:
            takes = (
                f"takes them off {disk.name}; other disks have copies of {kept} of them: those on local disks go as "
                "well, those in other buckets stay"
            )
        result.notes.append(
            f"parts that came to disk {disk.name} from other disks since then: {len(parts)}, such as "
            f"{first}. Going back {takes}; revision "
            f"{result.head} still has them until the retention is over"
        )


def _commit(
    disk: LoggedDisk, tables: _ThenAndNow, result: RebuildResult, request: RebuildRequest, look: Look
) -> int | None:
    """Commit the difference to the newest table; again with a new difference when another writer came between."""
    wanted = tables.target
    kind = Restored(
        revision=result.revision,
        epoch=secrets.token_hex(8),
        scope=" ".join(request.scope) if request.scope is not None else None,
    )
    for _ in range(_COMMIT_ATTEMPTS):
        disk.refresh()
        revision = disk.revision
        elsewhere = look()
        hiding = partial(elsewhere.hiding, disk.name)
        settled = settle(
            wanted, disk.file_table, request.scope, actor=request.actor, given=tables.levels, hiding=hiding
        )
        scope, rows = settled.scope(request.scope), settled.over(by_path(wanted))
        difference = compare(by_path(disk.file_table), rows, scope, goes=leaves_frozen(request.scope))
        result.take(
            arriving(disk, disk.store, difference, request.scope, elsewhere, wanted, disk.file_table), elsewhere
        )
        check_arrivals(result)
        if result.difference.empty:
            return None
        check_replicas(disk, result, settled, wanted, disk.file_table, instead=OF_ANOTHER_TIME)
        with disk.transaction(kind, reason=request.reason, actor=request.actor) as transaction:
            transaction.made_from(revision, scope)
            for path in result.difference.removed:
                transaction.remove(path)
            for path in result.difference.created:
                if (row := settled.get(wanted, path)) is not None:
                    transaction.adopt(row)
            try:
                return transaction.commit()
            except Conflict:
                continue
    raise Conflict(
        f"disk {disk.name} changed {_COMMIT_ATTEMPTS} times while it was restored",
        hint="stop the writers, then try again",
    )


UNREADABLE = (sqlite3.Error, ValueError, TypeError, AttributeError, msgspec.MsgspecError)
"""What reading a damaged file may raise, at any row."""


class Cache(msgspec.Struct):
    """What is known of the cached table."""

    exists: bool = False
    revision: int = 0
    digest: str = ""
    problem: str | None = None
    """Why it cannot be used."""


@contextmanager
def opened_cache(disk: LoggedDisk) -> Iterator[tuple[Cache, TableReader | None]]:
    """The table and a view of its rows; None when there is none that can be used.

    Damage may show at any row: it raises one of `UNREADABLE`, and `unreadable()` says it in a sentence.
    """
    if not disk.local_state_exists():
        yield Cache(), None
        return
    with closing(for_reading(disk.table_path)) as connection:
        connection.execute("BEGIN")
        view = TableReader(connection)
        store = view.state().get("store", disk.store.name)
        if store != disk.store.name:
            yield Cache(True, problem=f"the local file table is that of {store}, not of {disk.store.name}"), None
            return
        revision, digest = view.head()
        yield Cache(True, revision, digest), view


def unreadable(disk: LoggedDisk, error: BaseException) -> Cache:
    """A table that turned out to be damaged."""
    return Cache(True, problem=f"the local file table {disk.table_path} cannot be read: {error}")
