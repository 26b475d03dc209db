"""Rebuild an object disk from its bucket: the cache as the log has it now, or the tree as it was at an old revision.

Without `apply` nothing is written, neither here nor in the bucket. Going back never rewrites history: it is one new
commit on top of it, whose creates name the old blobs, so nothing is copied and going back is itself reversible.
"""

from __future__ import annotations

import secrets
import sqlite3
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from disks.file_table import TableReader
from disks.garbage import announced
from disks.history import Past, at_head, past_at, past_before
from disks.object_disk import ObjectDisk
from disks.object_transaction import ObjectTransaction
from disks.references import Inventory, inventory
from disks.stores.metered import MeteredStore
from oplog import pins
from oplog.errors import Conflict, Damaged, Locked, NotFound, Refused, UsageError
from oplog.replay import FileRow
from oplog.revision import OPERATIONS_PREFIX, SNAPSHOTS_PREFIX
from restore.plan import Difference, MissingObject, compare, in_scope, missing_objects, table_digest, with_reservations
from tiering import schema
from tiering.schema import TABLE_FILE

PIN_LIFETIME = timedelta(hours=24)
_COMMIT_ATTEMPTS = 5


@dataclass(slots=True)
class RestoreResult:
    """What a restore found, and what it changed or would change. Counts are of files within the scope."""

    disk: str
    revision: int
    """The revision the disk is compared with, or taken back to."""
    head: int
    """The newest revision in the bucket when it was listed."""
    files: int
    bytes: int
    difference: Difference
    missing_objects: list[MissingObject]
    digest: str
    """`table_digest` of the table at `revision` within the scope."""
    applied: bool = False
    commit: int | None = None
    """The revision of the restore's own commit; None when nothing had to change, or for the cache."""
    objects: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    moved_in: list[str] = field(default_factory=list)
    """Directories of parts that go although they lay on another disk at the time: now they lie on none."""
    notes: list[str] = field(default_factory=list)

    @property
    def created(self) -> int:
        return len(self.difference.created)

    @property
    def removed(self) -> int:
        return len(self.difference.removed)

    @property
    def unchanged(self) -> int:
        return self.difference.unchanged

    def document(self) -> dict[str, object]:
        """The JSON of the command line."""
        return {
            "disk": self.disk,
            "revision": self.revision,
            "files": self.files,
            "bytes": self.bytes,
            "created": self.created,
            "removed": self.removed,
            "unchanged": self.unchanged,
            "missing_objects": [
                {"object": lost.key, "path": lost.path, "bytes": lost.size_bytes, "found_bytes": lost.found_bytes}
                for lost in self.missing_objects
            ],
            "applied": self.applied,
            "commit": self.commit,
            "digest": self.digest,
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
            "moved_in": self.moved_in,
            "notes": self.notes,
        }


def restore(
    disk: ObjectDisk,
    *,
    revision: int | None = None,
    time: datetime | None = None,
    scope: Sequence[str] | None = None,
    apply: bool = False,
    actor: str = "",
    reason: str = "",
) -> RestoreResult:
    """Compare, and with `apply` restore. `scope` names directories (of tables); None is the whole disk.

    Neither revision nor time: the local cache against the bucket; `apply` replaces the whole cache, whatever the scope
    of the report. A revision or time: the tree as it was then; `apply` commits the difference within the scope, and
    raises `Refused` when a blob it needs is gone. Raises `NotFound` for a revision that is no longer kept, naming those
    that are; `Locked` while a collection is deleting what it needs. A killed restore is run again.
    """
    if revision is not None and time is not None:
        raise UsageError("a restore goes to a revision or to a time, not to both")
    started = clock.monotonic()
    before = _requests(disk)
    if revision is None and time is None:
        result = _rebuild_cache(disk, scope, apply)
    else:
        result = _go_back(disk, revision, time, scope, apply, actor, reason)
    result.requests = {verb: count - before.get(verb, 0) for verb, count in _requests(disk).items()}
    result.seconds = clock.monotonic() - started
    return result


def _requests(disk: ObjectDisk) -> dict[str, int]:
    return disk.store.counts() if isinstance(disk.store, MeteredStore) else {}


def _sizes(found: Inventory) -> dict[str, int]:
    return {blob.key: blob.size_bytes for blob in found.blobs}


# The cache


def _rebuild_cache(disk: ObjectDisk, scope: Sequence[str] | None, apply: bool) -> RestoreResult:
    found = inventory(disk.store.list())
    cache = read_cache(disk)
    notes = [cache.problem] if cache.problem else [] if cache.exists else [f"disk {disk.name} has no local state"]
    if found.head == 0:
        disk.log.check_schema()
        if apply and cache.rows:
            raise Refused(
                f"{disk.store.name} holds no log entry, while the cache of disk {disk.name} knows {len(cache.rows)} "
                "files",
                hint=f"check the url of the disk; if the bucket was emptied on purpose, delete {disk.table_path}",
            )
    past = past_at(disk.log, found, found.head, until=found.head)
    try:
        truth = past.rows()
        result = _result(disk, found, past, truth, cache.rows, scope, notes)
        if apply:
            disk.replace_cache(truth.values(), past.revision, past.digest)
            result.applied = True
        return result
    finally:
        past.close()


@dataclass(slots=True)
class Cache:
    """The cached file table as it lies there."""

    exists: bool = False
    revision: int = 0
    digest: str = ""
    rows: dict[str, FileRow] = field(default_factory=dict)
    problem: str | None = None
    """Why it cannot be used; `rows` is empty then."""
    differs: bool = False
    """Set by whoever compared it with the log."""


def read_cache(disk: ObjectDisk) -> Cache:
    """The cached file table, read without touching it."""
    if not disk.local_state_exists():
        return Cache()
    try:
        with closing(sqlite3.connect(f"file:{quote(str(disk.table_path))}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            view = TableReader(connection)
            store = view.state().get("store", disk.store.name)
            if store != disk.store.name:
                return Cache(True, problem=f"the local file table is that of {store}, not of {disk.store.name}")
            revision, digest = view.head()
            return Cache(True, revision, digest, {row.path: row for row in view.rows()})
    except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
        return Cache(True, problem=f"the local file table {disk.table_path} cannot be read: {error}")


def _result(
    disk: ObjectDisk,
    found: Inventory,
    past: Past,
    wanted: Mapping[str, FileRow],
    current: Mapping[str, FileRow],
    scope: Sequence[str] | None,
    notes: list[str],
) -> RestoreResult:
    files = [row for path, row in wanted.items() if in_scope(path, scope)]
    return RestoreResult(
        disk=disk.name,
        revision=past.revision,
        head=found.head,
        files=len(files),
        bytes=sum(row.size_bytes for row in files),
        difference=compare(current, wanted, scope),
        missing_objects=list(missing_objects(wanted, _sizes(found), scope)),
        digest=table_digest(wanted, scope),
        objects=len(found.blobs),
        notes=notes,
    )


# An old revision


def _go_back(
    disk: ObjectDisk,
    revision: int | None,
    time: datetime | None,
    scope: Sequence[str] | None,
    apply: bool,
    actor: str,
    reason: str,
) -> RestoreResult:
    if apply and disk.read_only:
        raise Refused(f"disk {disk.name} is read-only", hint="a preview, without --apply, is allowed")
    past = _at_time(disk, time) if time is not None else None
    target = past.revision if past is not None else revision or 0
    if not apply:
        found = inventory(disk.store.list())
        return _compared(disk, found, past, target, scope)[0]
    if target > disk.revision:
        raise NotFound(f"disk {disk.name} has no revision {target}", hint=f"the newest is {disk.revision}")
    with pinned(disk, target, actor, reason):
        # The listing comes after the pin: what it shows stays, unless a collection had announced it already.
        found = inventory(disk.store.list())
        result, wanted = _compared(disk, found, past, target, scope)
        _check_restorable(disk, found, result, wanted, scope)
        _check_names(disk, result, wanted)
        result.commit = _commit(disk, wanted, result, scope, actor, reason)
        result.applied = True
    return result


def _at_time(disk: ObjectDisk, moment: datetime) -> Past:
    """The table at a time, found from the log's own objects alone."""
    if moment.tzinfo is None:
        raise UsageError(f"the time {moment.isoformat()} has no time zone", hint="write it like 2026-01-31T12:00:00Z")
    listing = [*disk.store.list(OPERATIONS_PREFIX), *disk.store.list(SNAPSHOTS_PREFIX)]
    return past_before(disk.log, inventory(listing), moment)


def _compared(
    disk: ObjectDisk, found: Inventory, past: Past | None, target: int, scope: Sequence[str] | None
) -> tuple[RestoreResult, dict[str, FileRow]]:
    """The wanted table, and how the newest differs from it. Closes the past."""
    with closing(past or past_at(disk.log, found, target)) as then:
        wanted = then.rows()
        then.moved_in.clear()
        with closing(at_head(disk.log, found, then)) as newest:
            current = newest.rows()
            wanted = with_reservations(wanted, current)
            result = _result(disk, found, newest, wanted, current, scope, [])
            _note_moves(disk, result, newest.moved_in)
    result.revision = target
    return result, wanted


def _note_moves(disk: ObjectDisk, result: RestoreResult, moved_in: set[str]) -> None:
    """A part that was on another disk at the time, and has come here since, is on no disk once it goes from here."""
    parts = {path.rpartition("/")[0] for path in result.difference.removed if path in moved_in}
    if parts:
        result.moved_in = sorted(parts)
        result.notes.append(
            f"parts that came to disk {disk.name} from other disks since then: {len(parts)}, such as "
            f"{result.moved_in[0]}. Going back takes their only copies out of their tables; revision "
            f"{result.head} still has them until the retention is over"
        )


def _check_names(disk: ObjectDisk, result: RestoreResult, wanted: Mapping[str, FileRow]) -> None:
    """A table that comes back must not bear the name of one that stays: nobody could tell them apart."""
    back = {_table_name(wanted[path]): path for path in result.difference.created if _is_table(path)}
    gone = set(result.difference.removed)
    for row in disk.file_table.rows() if back else ():
        if not _is_table(row.path) or row.path in gone or row.path in result.difference.created:
            continue
        if (name := _table_name(row)) in back and back[name] != row.path:
            raise Refused(
                f"revision {result.revision} of disk {disk.name} brings back a table {name}, and another one has that "
                "name now",
                hint="drop the new one first, or name the tables to restore with --table",
            )


def _is_table(path: str) -> bool:
    return path.endswith(f"/{TABLE_FILE}")


def _table_name(row: FileRow) -> str:
    try:
        return schema.decode(row.inline or b"", path=row.path).full_name
    except Damaged:
        return row.path


def _check_restorable(
    disk: ObjectDisk,
    found: Inventory,
    result: RestoreResult,
    wanted: Mapping[str, FileRow],
    scope: Sequence[str] | None,
) -> None:
    if result.missing_objects:
        lost = result.missing_objects[0]
        raise Refused(
            f"revision {result.revision} of disk {disk.name} needs {len(result.missing_objects)} objects that are "
            f"gone, such as {lost.key} ({lost.path})",
            hint="the preview lists them; choose another revision, or the tables that are whole",
        )
    if found.intents:
        needed = {row.key for path, row in wanted.items() if in_scope(path, scope)}
        if not needed.isdisjoint(announced(disk, now=datetime.now(UTC))):
            raise Locked(
                f"a collection is deleting objects that revision {result.revision} of disk {disk.name} needs",
                hint="wait until it has ended and look at the preview again; an abandoned one counts for an hour",
            )


@contextmanager
def pinned(disk: ObjectDisk, revision: int, actor: str, reason: str) -> Iterator[None]:
    """Keep gc away from the revision. A pin left by a crash runs out by itself."""
    if revision == 0:
        yield  # the empty disk needs nothing
        return
    name = f"restore-{secrets.token_hex(8)}"
    until = datetime.now(UTC) + PIN_LIFETIME
    pins.create(disk.store, name, revision, holder=actor or "restore", until=until, reason=reason)
    try:
        yield
    finally:
        pins.release(disk.store, name)


def _commit(
    disk: ObjectDisk,
    wanted: Mapping[str, FileRow],
    result: RestoreResult,
    scope: Sequence[str] | None,
    actor: str,
    reason: str,
) -> int | None:
    """Commit the difference to the newest table; again with a new difference when another writer came between."""
    details = {"revision": str(result.revision)}
    if scope is not None:
        details["scope"] = " ".join(scope)
    for _ in range(_COMMIT_ATTEMPTS):
        disk.refresh()
        current = {row.path: row for row in disk.file_table.rows()}
        result.difference = compare(current, wanted, scope)
        if result.difference.empty:
            return None
        with disk.transaction("restore", reason=reason, actor=actor, details=details) as transaction:
            assert isinstance(transaction, ObjectTransaction)
            for path in result.difference.removed:
                transaction.remove(path)
            for path in result.difference.created:
                transaction.adopt(wanted[path])
            try:
                return transaction.commit()
            except Conflict:
                continue
    raise Conflict(
        f"disk {disk.name} changed {_COMMIT_ATTEMPTS} times while it was restored",
        hint="stop the writers, then try again",
    )
