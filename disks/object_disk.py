"""A disk in a bucket: store x log x file table. The bucket is the truth, the table is a cache.

A transaction uploads its blobs at once and becomes visible by one conditional PUT of its log entry. Opening costs no
request; the first use lists the log past the last applied revision and applies it, or rebuilds an empty table.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from disks.base import (
    INLINE_LIMIT_BYTES,
    Disk,
    DiskCapabilities,
    DiskUsage,
    FileInfo,
    Location,
    Transaction,
    check_path,
)
from disks.effects import make_directory, remove_file, rename
from disks.file_table import FileTable, TableDamaged, TableWriter
from disks.locks import OwnedDirectory, file_lock, sweep
from disks.stores.base import ByteRange, ObjectStore
from oplog import replay, snapshot
from oplog.entry import Commit, Create, Link, Operation, Remove, Rename, now
from oplog.errors import Conflict, Damaged, FrostlineError, NotFound, Refused
from oplog.log import Entry, OperationsLog, RevisionTaken
from oplog.replay import Difference, FileRow
from oplog.revision import blob_key

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RebuildPreview:
    """The cache of a disk beside its bucket."""

    disk: str
    revision: int
    """Of the bucket; `files` and `size_bytes` are the bucket's too."""
    files: int
    size_bytes: int
    local_revision: int
    problem: str
    """Why the cache cannot be used; empty when it can."""
    differences: list[Difference]
    """`before` is what the cache says, `after` what the bucket says."""


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
    ) -> None:
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

    @property
    def capabilities(self) -> DiskCapabilities:  # type: ignore[override]
        return DiskCapabilities(remote=True, writers="many")

    # Reading

    def usage(self) -> DiskUsage:
        with self.file_table.read() as view:
            used = view.used_bytes()
        if self.max_size_bytes is None:
            return DiskUsage(None, None, used)
        return DiskUsage(self.max_size_bytes, max(self.max_size_bytes - used, 0), used)

    def list(self, directory: str = "") -> builtins.list[str]:
        with self.file_table.read() as view:
            return view.children(directory)

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
        with self.file_table.read() as view:
            rows = builtins.list(view.named(directory, name))
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
        row = self.file_table.get(path)
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
        with table.read() as view:
            known = view.state().get("store")
        if known == self.store.name:
            return table
        with table.write() as view:
            if known is not None:
                self._notes.append(
                    f"disk {self.name}: the table was that of {known}; it is rebuilt from {self.store.name}"
                )
                view.clear()
            view.remember(store=self.store.name)
        return table

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
        if revision == 0:
            if self.log.first_revision() is None:
                return
            with table.write() as view:
                revision, digest = self._load_snapshot(view, until)
        else:
            self._check_same_log(revision)
        entries = self.log.entries(revision, until, previous=digest)
        while batch := builtins.list(islice(entries, _APPLY_BATCH)):
            with table.write() as view:
                _apply(view, batch)

    def _check_same_log(self, revision: int) -> None:
        """The bucket must hold the entry we applied last: else the table is that of another log."""
        if next(self.log.revisions(revision - 1), None) != revision:
            raise Damaged(
                f"disk {self.name} was at revision {revision}, which {self.store.name} does not hold",
                hint=f"was the bucket emptied or replaced? 'frostline restore {self.name}' compares, --apply rebuilds",
            )

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
                view.clear()
                self._notes.append(f"disk {self.name}: {error.message}; an older one is used")
                logger.warning(self._notes[-1])
                continue
            view.set_head(header.revision, header.digest)
            break
        return view.head()

    def rebuild(self) -> int:
        """Replace the cache by what the bucket says, in one SQLite transaction; returns the revision. A kill leaves the
        cache as it was; other processes see the table before or after."""
        with self._lock:
            table = self._open_table()
            with table.write() as view:
                view.clear()
                view.remember(store=self.store.name)
                if self.log.first_revision() is not None:
                    revision, digest = self._load_snapshot(view, None)
                    _apply(view, self.log.entries(revision, previous=digest))
                head, _ = view.head()
            self._caught_up = True
            return head

    def preview_rebuild(self) -> RebuildPreview:
        """What `rebuild` would change. Writes neither to the bucket nor to the cache."""
        with self._lock:
            make_directory(self.state_path)
            scratch = OwnedDirectory(self.state_path / "scratch")
            try:
                with contextlib.closing(FileTable(scratch.path / "files.db")) as truth:
                    self._catch_up(truth)
                    return self._compare(truth)
            finally:
                scratch.remove()

    def _compare(self, truth: FileTable) -> RebuildPreview:
        problem = "" if self.local_state_exists() else "there is no local table"
        local = FileTable(None)
        if not problem:
            try:
                local = FileTable(self.table_path)
            except TableDamaged as error:
                problem = error.message
        with contextlib.closing(local), truth.read() as view:
            known = view.head()[0], view.count(), view.used_bytes()
            differences = builtins.list(replay.diff(local, truth))
            return RebuildPreview(self.name, *known, local.head()[0], problem, differences)

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
                if self._table is not None:
                    self._table.close()
                    self._table = None
                self._set_aside(error.message)
                self._fill(self._open_table(), rows, revision, digest)
            self._caught_up = False

    def _fill(self, table: FileTable, rows: Collection[FileRow], revision: int, digest: str) -> None:
        with table.write() as view:
            view.clear()
            view.remember(store=self.store.name)
            view.insert(rows)
            view.set_head(revision, digest)

    # Writing

    def transaction(
        self, kind: str, *, reason: str = "", actor: str = "", details: dict[str, str] | None = None
    ) -> Transaction:
        if self.read_only:
            raise Refused(f"disk {self.name} is read-only", hint="set read_only: false in its configuration")
        return ObjectTransaction(self, kind, reason, actor, details or {})

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
        view.set_head(commit.revision, self.log.append(commit))
        return commit.revision

    def _snapshot_when_due(self, revision: int) -> None:
        if not self.snapshot_every_commits or revision % self.snapshot_every_commits:
            return
        try:
            self.write_snapshot()
        except (FrostlineError, OSError) as error:
            # The commit stands; the next snapshot covers it.
            logger.warning("disk %s: no snapshot at revision %d: %s", self.name, revision, error)


class ObjectTransaction(Transaction):
    """Changes of an object disk. Blobs of an abandoned transaction stay until gc: nothing names them."""

    def __init__(self, disk: ObjectDisk, kind: str, reason: str, actor: str, details: dict[str, str]) -> None:
        self._disk = disk
        self._kind = kind
        self._reason = reason
        self._actor = actor
        self._details = details
        self._operations: list[Operation] = []
        self._present: list[str] = []
        self._absent: list[str] = []
        self._scratch: OwnedDirectory | None = None
        self._lock = threading.Lock()
        self._finished = False

    def create(
        self, path: str, data: bytes | Path, *, sha256: str | None = None, blob_set: str | None = None
    ) -> FileInfo:
        check_path(path)
        self._check_open()
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        if isinstance(data, Path) and size <= INLINE_LIMIT_BYTES and path.endswith(".json"):
            data = data.read_bytes()
            size = len(data)
        if sha256 is None or isinstance(data, bytes):
            actual = _digest(data)
            if sha256 is not None and actual != sha256.lower():
                raise Damaged(
                    f"{path}: the bytes have SHA-256 {actual}, expected {sha256}", hint="the source is damaged"
                )
            sha256 = actual
        inline = data if isinstance(data, bytes) and size <= INLINE_LIMIT_BYTES and path.endswith(".json") else None
        key = None if inline is not None else self._upload(path, data, sha256)
        with self._lock:
            self._operations.append(Create(path, size, sha256, key, inline, blob_set))
        return FileInfo(path, size, sha256, key, blob_set)

    def adopt(self, row: FileRow) -> None:
        """Stage a file whose blob the bucket holds already, or whose bytes ride in the row: nothing is uploaded.

        The caller has proved that the blob is there, and keeps gc away from it (a pin) until the commit.
        """
        self._add(Create(check_path(row.path), row.size_bytes, row.sha256, row.key, row.inline, row.blob_set))

    def _upload(self, path: str, data: bytes | Path, sha256: str) -> str:
        key = blob_key(self._disk.revision + 1)
        self._disk.store.put(key, data, sha256=bytes.fromhex(sha256), metadata={"path": quote(path, safe="/=+,@ ")})
        return key

    def scratch(self) -> Path:
        with self._lock:
            if self._scratch is None:
                self._scratch = OwnedDirectory(self._disk.state_path / "scratch")
            return self._scratch.path

    def link(self, source: str, target: str) -> None:
        self._add(Link(check_path(source), check_path(target)))

    def rename(self, source: str, target: str) -> None:
        self._add(Rename(check_path(source), check_path(target)))

    def remove(self, path: str) -> None:
        self._add(Remove(check_path(path)))

    def require(self, *, present: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> None:
        self._check_open()
        self._present.extend(map(check_path, present))
        self._absent.extend(map(check_path, absent))

    def commit(self) -> int | None:
        self._check_open()
        if not self._operations:
            self.abandon()
            return None
        draft = Commit(
            revision=0,
            previous="",
            writer=secrets.token_hex(16),
            time=now(),
            kind=self._kind,
            actor=self._actor,
            reason=self._reason,
            details=self._details,
            present=tuple(self._present),
            absent=tuple(self._absent),
            operations=tuple(self._operations),
        )
        revision = self._disk._commit(draft)
        self.abandon()
        return revision

    def abandon(self) -> None:
        self._finished = True
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _add(self, operation: Operation) -> None:
        self._check_open()
        if isinstance(operation, Rename) and f"{operation.target}/".startswith(f"{operation.source}/"):
            raise Conflict(f"{operation.source} cannot become {operation.target}, which lies within it")
        with self._lock:
            self._operations.append(operation)

    def _check_open(self) -> None:
        if self._finished:
            raise Refused("this transaction has ended", hint="begin a new one")


def _apply(view: TableWriter, entries: Iterable[Entry]) -> None:
    """Apply entries that follow one another; those another process has applied meanwhile are passed over."""
    applied, _ = view.head()
    for entry in entries:
        if entry.commit.revision > applied:
            replay.apply(view, entry.commit)
            view.set_head(entry.commit.revision, entry.digest)


def _info(row: FileRow) -> FileInfo:
    return FileInfo(row.path, row.size_bytes, row.sha256, row.key, row.blob_set, row.revision)


def _digest(data: bytes | Path) -> str:
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with data.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
