"""A disk in a bucket: store x log x file table. The bucket is the truth, the table is a cache.

A transaction uploads its blobs at once and becomes visible by one conditional PUT of its log entry. Opening costs no
request; the first use lists the log past the last applied revision and applies it, or rebuilds an empty table.
"""

from __future__ import annotations

import builtins
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from disks.base import (
    Disk,
    DiskCapabilities,
    DiskUsage,
    FileInfo,
    Location,
    Transaction,
)
from disks.effects import make_directory, remove_file, rename
from disks.file_table import FileTable, TableDamaged, TableWriter
from disks.lease import Lease
from disks.locks import file_lock, sweep
from disks.object_transaction import ObjectTransaction, Target
from disks.stores.base import ByteRange, ObjectStore
from oplog import replay, snapshot
from oplog.entry import Commit, now
from oplog.errors import Conflict, Damaged, FrostlineError, NotFound, Refused
from oplog.log import Entry, OperationsLog, RevisionTaken
from oplog.replay import FileRow

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


_COMMIT_ATTEMPTS = 100
_APPLY_BATCH = 500
_READ_THREADS = 16


class ObjectDisk(Disk):
    """A disk whose files are immutable objects of one prefix. Several processes and machines may write at once."""

    kind = "object_disk"

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        state_path: Path,
        *,
        snapshot_every_commits: int = 1000,
        retention_seconds: int = 24 * 3600,
        read_only: bool = False,
        max_size_bytes: int | None = None,
        single_writer: bool = False,
        lease_settle_seconds: float = 2.0,
    ) -> None:
        """`single_writer` takes the lease also where the store has conditional writes."""
        self.name = name
        self.store = store
        self.log = OperationsLog(store)
        self.state_path = state_path
        self.snapshot_every_commits = snapshot_every_commits
        self.retention_seconds = retention_seconds
        self.read_only = read_only
        self.max_size_bytes = max_size_bytes
        self._table: FileTable | None = None
        self._caught_up = False
        self._lock = threading.RLock()
        self._notes: list[str] = []
        self._single_writer = single_writer
        self._lease = Lease(store, state_path / "lease.json", settle_seconds=lease_settle_seconds)

    @property
    def capabilities(self) -> DiskCapabilities:  # type: ignore[override]
        """Sends no request: `writers` is "one" from the first commit that needed the lease."""
        one = self._single_writer or self._lease.used
        return DiskCapabilities(remote=True, writers="one" if one else "many")

    # Reading

    def usage(self) -> DiskUsage:
        with self.file_table.read() as view:
            used = view.used_bytes()
        if self.max_size_bytes is None:
            return DiskUsage(None, None, used)
        return DiskUsage(self.max_size_bytes, max(self.max_size_bytes - used, 0), used)

    def list(self, directory: str = "") -> builtins.list[str]:
        def children(table: FileTable) -> builtins.list[str]:
            with table.read() as view:
                return view.children(directory)

        return self._reading(children)

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        return map(_info, self.file_table.rows(directory))

    def stat(self, path: str) -> FileInfo:
        return _info(self._row(path))

    def exists(self, path: str) -> bool:
        with self.file_table.read() as view:
            return view.get(path) is not None or view.has_directory(path)

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        return self._content(self._row(path), byte_range)

    def small_files(self, directory: str, name: str) -> Iterator[tuple[str, bytes, int | None]]:
        def named(table: FileTable) -> builtins.list[FileRow]:
            with table.read() as view:
                return builtins.list(view.named(directory, name))

        rows = self._reading(named)
        uploaded = {row.path: row for row in rows if row.inline is None}
        fetched: dict[str, bytes] = {}
        if uploaded:
            with ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read") as pool:
                fetched = dict(zip(uploaded, pool.map(self._content, uploaded.values()), strict=True))
        for row in rows:
            yield row.path, fetched[row.path] if row.inline is None else row.inline, row.revision

    def location(self, path: str) -> Location:
        row = self._row(path)
        if row.key is None:
            raise NotFound(f"{self.name}:{path} rides inside the log and has no object of its own", hint="use read()")
        return Location(self.store.url(row.key), self.store.s3_connection)

    def _row(self, path: str) -> FileRow:
        row = self._reading(lambda table: table.get(path))
        if row is None:
            raise NotFound(f"no file {path} on disk {self.name}")
        return row

    def _content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        if byte_range is not None and not 0 <= byte_range.start <= byte_range.stop <= row.size_bytes:
            raise Damaged(
                f"{self.name}:{row.path} ends at {row.size_bytes} bytes; {byte_range} is outside",
                hint="the file is shorter than its reader expects; run 'frostline fsck'",
            )
        if row.inline is not None:
            data = row.inline if byte_range is None else row.inline[byte_range.start : byte_range.stop]
        elif row.key is None:
            raise Damaged(f"{self.name}:{row.path} has neither an object nor inline bytes", hint="run 'frostline fsck'")
        else:
            data = self._object(row, row.key, byte_range)
        if byte_range is None and hashlib.sha256(data).hexdigest() != row.sha256:
            raise Damaged(
                f"{self.name}:{row.path} (object {row.key}) does not match its SHA-256",
                hint="run 'frostline fsck --read-data'; restore the object from a backup",
            )
        return data

    def _object(self, row: FileRow, key: str, byte_range: ByteRange | None) -> bytes:
        if row.size_bytes == 0 or (byte_range is not None and byte_range.size_bytes == 0):
            return b""
        try:
            return self.store.get(key, byte_range)
        except NotFound as error:
            raise Damaged(
                f"{self.name}:{row.path}: its object {key} is gone from {self.store.name}",
                hint="run 'frostline fsck'; restore the object from a backup",
            ) from error

    # The table

    @property
    def file_table(self) -> FileTable:
        """The table, opened and caught up with the bucket at first use."""
        if self._table is not None and self._caught_up:
            return self._table
        with self._lock:
            table = self._open_table()
            if not self._caught_up:
                self._catch_up(table)
                self._caught_up = True
            return table

    def _reading(self, read: Callable[[FileTable], _T]) -> _T:
        """What `read` finds in the table; a table that turns out to be damaged is rebuilt first."""
        table = self.file_table
        try:
            return read(table)
        except TableDamaged as error:
            with self._lock:
                if self._table is table:  # else another thread has replaced it already
                    self._replace_damaged(error)
                    self._caught_up = False
            return read(self.file_table)

    @property
    def revision(self) -> int:
        return self.file_table.head()[0]

    @property
    def table_path(self) -> Path:
        return self.state_path / "files.db"

    def local_state_exists(self) -> bool:
        """Whether there is a cache of the file table on this machine."""
        return self.table_path.exists()

    def refresh(self) -> None:
        with self._lock:
            try:
                self._catch_up(self._open_table())
            except TableDamaged as error:  # damage inside the file shows only when it is used
                self._replace_damaged(error)
                self._catch_up(self._open_table())
            self._caught_up = True

    def recover(self) -> builtins.list[str]:
        with self._lock:
            self._open_table()
            notes, self._notes = self._notes, []
        swept = sweep(self.state_path / "scratch")
        return notes + [f"removed the scratch directory {name} of a transaction that never ended" for name in swept]

    def close(self) -> None:
        with self._lock:
            if self._table is not None:
                self._table.close()
                self._table = None
        self.store.close()

    def _open_table(self) -> FileTable:
        with self._lock:
            if self._table is None:
                make_directory(self.state_path)
                with file_lock(self.state_path / "open.lock"):
                    self._table = self._open_or_replace()
            return self._table

    def _open_or_replace(self) -> FileTable:
        try:
            table = FileTable(self.table_path)
        except TableDamaged as error:
            self._set_aside(error.message)
            table = FileTable(self.table_path)
        try:
            self._belong_to_store(table)
        except BaseException:
            table.close()
            raise
        return table

    def _belong_to_store(self, table: FileTable) -> None:
        """Empty a table that describes another store."""
        with table.read() as view:
            known = view.state().get("store")
        if known == self.store.name:
            return
        with table.write() as view:
            if known is not None:
                self._notes.append(
                    f"disk {self.name}: the table was that of {known}; it is rebuilt from {self.store.name}"
                )
            self._clear(view)

    def _replace_damaged(self, error: TableDamaged) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None
        with file_lock(self.state_path / "open.lock"):
            self._set_aside(error.message)

    def _set_aside(self, why: str) -> None:
        aside = self.table_path.with_name("files.db.damaged")
        for suffix in ("-wal", "-shm"):
            remove_file(self.table_path.with_name(f"files.db{suffix}"), missing_ok=True)
        rename(self.table_path, aside)
        self._notes.append(f"disk {self.name}: {why}; set aside as {aside.name} and rebuilt from {self.store.name}")
        logger.warning(self._notes[-1])

    def _catch_up(self, table: FileTable, *, until: int | None = None) -> None:
        """Apply what the log holds past the table's revision; from the newest snapshot when the table is empty."""
        revision, digest = table.head()
        following = self.log.revisions(revision - 1) if revision else None
        if following is None or next(following, None) != revision:
            following = None
            if not self._can_begin_anew(revision):
                return
            with table.write() as view:
                if view.head()[0] == revision > 0:
                    self._clear(view)
                revision, digest = self._load_snapshot(view, until)
        entries = self.log.entries(revision, until, previous=digest, listed=following)
        if until is None:
            entries = self._unbroken(entries)
        while batch := builtins.list(islice(entries, _APPLY_BATCH)):
            with table.write() as view:
                _apply(view, batch)

    def _unbroken(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """The entries up to the newest: that the first of them are gone is damage, not a question of retention."""
        try:
            yield from entries
        except NotFound as error:
            raise Damaged(
                f"the log of {self.store.name} lacks its first entries, and no snapshot stands in for them: "
                f"{error.message}",
                hint=f"run 'frostline fsck {self.name}'; bring the objects back from a backup of the bucket",
            ) from error

    def _can_begin_anew(self, revision: int) -> bool:
        """Whether there is a log to read a table from. One that was at `revision`, which the bucket does not hold, may
        begin anew when gc took that entry and a later snapshot stands in for it; else it is that of another log."""
        if revision == 0:
            return self.log.first_revision() is not None
        if self.log.first_revision() is not None and max(snapshot.revisions(self.store), default=0) > revision:
            return True
        raise Damaged(
            f"disk {self.name} was at revision {revision}, which {self.store.name} does not hold",
            hint=f"was the bucket emptied or replaced? 'frostline restore {self.name}' compares, --apply rebuilds",
        )

    def _clear(self, view: TableWriter) -> None:
        view.clear()
        view.remember(store=self.store.name)

    def _load_snapshot(self, view: TableWriter, until: int | None) -> tuple[int, str]:
        """Fill an empty table from the newest readable snapshot; the head it then has."""
        found = [] if view.head()[0] else snapshot.revisions(self.store)
        for revision in reversed([one for one in found if until is None or one <= until]):
            try:
                header, rows = snapshot.read(self.store, revision)
                view.insert(rows)
            except (Damaged, Conflict, NotFound) as error:
                if isinstance(error, TableDamaged):
                    raise
                self._clear(view)
                self._notes.append(f"disk {self.name}: {error.message}; an older one is used")
                logger.warning(self._notes[-1])
                continue
            view.set_head(header.revision, header.digest)
            break
        return view.head()

    def entries(self, since: int = 0, until: int | None = None, limit: int | None = None) -> Iterator[Entry]:
        """Log entries with since < revision <= until, oldest first. With `limit`, the newest so many of them. Those
        that are no longer kept are left out."""
        revisions = builtins.list(self.log.revisions(since))
        wanted = [revision for revision in revisions if until is None or revision <= until]
        if limit is not None:
            wanted = wanted[len(wanted) - min(limit, len(wanted)) :]
        return self.log.entries(wanted[0] - 1, wanted[-1]) if wanted else iter(())

    def table_at(self, revision: int, *, path: Path | None = None) -> FileTable:
        """The file table as it was right after `revision`, in memory or at `path`; the caller closes it.

        Raises `NotFound` when the revision does not exist or is no longer kept.
        """
        table = FileTable(path)
        try:
            if revision > 0:
                self._catch_up(table, until=revision)
            if table.head()[0] != revision:
                raise NotFound(
                    f"disk {self.name} has no revision {revision}; the newest is {self.log.head()}",
                    hint="'frostline log' lists the revisions",
                )
        except BaseException:
            table.close()
            raise
        return table

    def write_snapshot(self) -> int:
        """Write a snapshot of the table as it is; returns its revision. Nothing for an empty log."""
        with self.file_table.read() as view:
            revision, digest = view.head()
            if revision > 0:
                snapshot.write(self.store, revision, digest, view.rows())
        return revision

    def replace_cache(self, rows: Collection[FileRow], revision: int, digest: str) -> None:
        """Replace the cached table, whatever it holds, with this one: in one SQLite transaction, so all or nothing. The
        next use catches up from there."""
        with self._lock:
            try:
                self._fill(self._open_table(), rows, revision, digest)
            except TableDamaged as error:
                self._replace_damaged(error)
                self._fill(self._open_table(), rows, revision, digest)
            self._caught_up = False

    def _fill(self, table: FileTable, rows: Collection[FileRow], revision: int, digest: str) -> None:
        with table.write() as view:
            self._clear(view)
            view.insert(rows)
            view.set_head(revision, digest)

    # Writing

    def transaction(
        self, kind: str, *, reason: str = "", actor: str = "", details: dict[str, str] | None = None
    ) -> Transaction:
        if self.read_only:
            raise Refused(f"disk {self.name} is read-only", hint="set read_only: false in its configuration")
        target = Target(self.store, self.state_path / "scratch", lambda: self.revision, self._commit)
        return ObjectTransaction(target, kind, reason=reason, actor=actor, details=details or {})

    def _commit(self, draft: Commit) -> int:
        """Commit the draft at the next free revision. Raises `Conflict` when it does not fit the newest table."""
        with self._lock:
            table = self.file_table
            for attempt in range(_COMMIT_ATTEMPTS):
                before = table.head()[0]
                try:
                    with table.write() as view:
                        revision = self._append(view, draft)
                except (RevisionTaken, Conflict) as error:
                    self._catch_up(table)
                    if isinstance(error, Conflict) and table.head()[0] == before:
                        raise
                    time.sleep(secrets.randbelow(20) / 1000 * min(attempt, 10))
                    continue
                self._snapshot_when_due(revision)
                return revision
        raise Conflict(
            f"disk {self.name}: {_COMMIT_ATTEMPTS} other writers came first, one after the other",
            hint="run the command again; fewer writers at a time help",
        )

    def _append(self, view: TableWriter, draft: Commit) -> int:
        """In one SQLite transaction: check against the table, put the entry, take the change in. Dying after the put
        leaves the table behind the log, and catching up applies the entry."""
        revision, previous = view.head()
        commit = Commit(
            revision=revision + 1,
            previous=previous,
            writer=draft.writer,
            time=now(),
            kind=draft.kind,
            actor=draft.actor,
            reason=draft.reason,
            details=draft.details,
            present=draft.present,
            absent=draft.absent,
            operations=draft.operations,
        )
        replay.execute(view, commit)
        leased = self._single_writer or not self.store.capabilities.conditional_put
        if leased:
            self._lease.hold()
        digest = self.log.append(commit)
        if leased and self.log.read(commit.revision).commit.writer != commit.writer:
            raise RevisionTaken(f"revision {commit.revision} of {self.store.name} was overwritten by another writer")
        view.set_head(commit.revision, digest)
        return commit.revision

    def _snapshot_when_due(self, revision: int) -> None:
        if not self.snapshot_every_commits or revision % self.snapshot_every_commits:
            return
        try:
            self.write_snapshot()
        except (FrostlineError, OSError) as error:
            # The commit stands; the next snapshot covers it.
            logger.warning("disk %s: no snapshot at revision %d: %s", self.name, revision, error)


def _apply(view: TableWriter, entries: Iterable[Entry]) -> None:
    """Apply entries that follow one another; those another process has applied meanwhile are passed over."""
    applied, _ = view.head()
    for entry in entries:
        if entry.commit.revision > applied:
            replay.apply(view, entry.commit)
            view.set_head(entry.commit.revision, entry.digest)


def _info(row: FileRow) -> FileInfo:
    return FileInfo(row.path, row.size_bytes, row.sha256, row.key, row.blob_set, row.revision)
