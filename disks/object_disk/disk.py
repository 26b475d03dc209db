"""A disk in a bucket: store x log x file table. The bucket is the truth, the table is a cache.

A transaction uploads its blobs at once and becomes visible by one conditional PUT of its log entry. Opening costs no
request; the first use lists the log past the last applied revision and applies it, or rebuilds an empty table.
"""

from __future__ import annotations

import builtins
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from disks.base import DiskCapabilities, Leftover, Location, LoggedDisk, Transaction
from disks.file_table.commits import Commits
from disks.file_table.table import FileTable, TableWriter
from disks.host.locks import abandoned, sweep
from disks.identity import IdentityGuard, put_object, read_object
from disks.object_disk.cache import IDENTITY, TableCache
from disks.object_disk.lease import Lease
from disks.object_disk.table_disk import TableDisk
from disks.object_disk.transaction import ObjectTransaction, Target
from disks.stores.base import ByteRange, ObjectStore
from oplog import replay, snapshot
from oplog.entry import Commit, now
from oplog.errors import Conflict, DiskUnreachable, FrostlineError, Refused, Transient
from oplog.kinds import CommitKind
from oplog.log import Entry, OperationsLog, RevisionTaken
from oplog.replay import FileRow

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_COMMIT_ATTEMPTS = 100
_EARLY_SNAPSHOTS = (1, 10, 100)
"""Revisions that get a snapshot although the first regular one is far: the first entries hold the tables themselves,
and losing one of them must not make everything after it unreadable."""
_ASK_AGAIN_SECONDS = 15.0
"""How long an unreachable bucket is left in peace: a command waits for it once, not with every step."""


class ObjectDisk(TableDisk, LoggedDisk):
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
        self.cache = TableCache(name, self.log, state_path)
        self._offline: DiskUnreachable | None = None
        self._seen: str | None = None
        """The id that the bucket showed, until the table remembers it."""
        self._refreshed = -math.inf
        self._single_writer = single_writer
        self._lease = Lease(store, state_path / "lease.json", settle_seconds=lease_settle_seconds)
        self._identity = IdentityGuard(
            name, store.name, self._identity_before_commit, self._write_identity, cheap=False
        )

    @property
    def capabilities(self) -> DiskCapabilities:  # type: ignore[override]
        """Sends no request: `writers` is "one" from the first commit that needed the lease."""
        one = self._single_writer or self._lease.used
        return DiskCapabilities(remote=True, writers="one" if one else "many", shared=True)

    # Reading

    def _reading(self, read: Callable[[FileTable], _T]) -> _T:
        return self.cache.reading(read)

    def location(self, path: str) -> Location:
        self._check_reachable()
        return super().location(path)

    def _content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        if row.inline is None:
            self._check_reachable()
        return super()._content(row, byte_range)

    # The table

    @property
    def file_table(self) -> FileTable:
        """The table, opened and caught up with the bucket at first use."""
        return self.cache.table

    def refresh(self) -> None:
        if self._offline is not None and time.monotonic() - self._refreshed < _ASK_AGAIN_SECONDS:
            raise self._offline
        try:
            self.cache.refresh()
            self._offline = None
            if self._seen is not None and self.file_table.head()[0]:  # so that nobody has to ask again
                self.cache.remember_identity(self._seen)
                self._seen = None
        finally:
            self._refreshed = time.monotonic()

    @property
    def unreachable(self) -> str:
        return self._offline.message if self._offline is not None else ""

    def work_offline(self, error: Transient) -> None:
        if self._offline is None:
            if not self.cache.is_certain:
                raise DiskUnreachable(
                    f"disk {self.name} cannot be reached, and what it holds is not known here: {error.message}",
                    hint=error.hint or "try again when the bucket answers",
                ) from error
            self._offline = DiskUnreachable(
                f"disk {self.name} cannot be reached: {error.message}",
                hint="what lies on other disks can be used; try again when the bucket answers",
            )
        self.cache.hold_as_it_is()

    def _check_reachable(self) -> None:
        if self._offline is not None:
            raise self._offline

    def recover(self) -> builtins.list[str]:
        notes = self.cache.recover()
        swept = sweep(self._scratch)
        return notes + [f"removed the scratch directory {name} of a transaction that never ended" for name in swept]

    def leftovers(self) -> builtins.list[Leftover]:
        return [Leftover(path) for path in abandoned(self._scratch)]

    def tidy(self) -> builtins.list[str]:
        return [f"disk {self.name}: removed the scratch directory {name} of a crash" for name in sweep(self._scratch)]

    @property
    def _scratch(self) -> Path:
        return self.state_path / "scratch"

    def close(self) -> None:
        self.cache.close()
        self.store.close()

    def entries(self, since: int = 0, until: int | None = None, limit: int | None = None) -> Iterator[Entry]:
        self._check_reachable()
        return self.commits().between(since, until, limit)

    def commits(self, reading: Callable[[int], None] = lambda count: None) -> Commits:
        return Commits(self.log, self.cache.index, self.file_table.head, reading=reading)

    def table_at(self, revision: int, *, path: Path | None = None) -> FileTable:
        self._check_reachable()
        return self.cache.table_at(revision, path=path)

    def write_snapshot(self) -> int:
        self._check_reachable()
        with self.file_table.read() as view:
            revision, digest = view.head()
            if revision > 0:
                snapshot.write(self.store, revision, digest, view.rows())
        return revision

    def replace_cache(self, rows: Iterable[FileRow], revision: int, digest: str) -> None:
        self.cache.replace(rows, revision, digest)

    def forget_commits(self, before: int) -> None:
        self.cache.index.forget_before(before)

    def at(self, revision: int) -> DiskAsOf:
        return DiskAsOf(self, revision)

    # Writing

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        if self.read_only:
            raise Refused(f"disk {self.name} is read-only", hint="set read_only: false in its configuration")
        self._check_reachable()
        target = Target(self.store, self._scratch, lambda: self.revision, self._commit)
        return ObjectTransaction(target, kind, reason=reason, actor=actor)

    def _commit(self, draft: Commit) -> int:
        """Commit the draft at the next free revision. Raises `Conflict` when it does not fit the newest table."""
        with self.cache.lock:
            table = self.file_table
            for attempt in range(_COMMIT_ATTEMPTS):
                before = table.head()[0]
                try:
                    with table.write() as view:
                        entry = self._append(view, draft)
                except (RevisionTaken, Conflict) as error:
                    self.cache.catch_up(table)
                    if isinstance(error, Conflict) and table.head()[0] == before:
                        raise
                    time.sleep(secrets.randbelow(20) / 1000 * min(attempt, 10))
                    continue
                self.cache.index.note([entry])
                self._snapshot_when_due(entry.commit.revision)
                return entry.commit.revision
        raise Conflict(
            f"disk {self.name}: {_COMMIT_ATTEMPTS} other writers came first, one after the other",
            hint="run the command again; fewer writers at a time help",
        )

    def identity(self) -> str | None:
        """As promised; no request where the table of this bucket remembers it: its log proves that it is the same."""
        if (remembered := self.cache.remembered_identity()) is not None:
            return remembered
        self._seen = read_object(self.store)
        return self._seen

    def watch(self, known: str | None, begin: Callable[[str], None]) -> None:
        self._identity.watch(known, begin)

    def _identity_before_commit(self) -> str | None:
        """Where no id is known here, whoever puts one finds out whether there is one."""
        return self.identity() if self._identity.is_known else self.cache.remembered_identity()

    def _write_identity(self) -> str:
        if self._single_writer or not self.store.capabilities.conditional_put:  # the lease is held
            return read_object(self.store) or put_object(self.store)
        return put_object(self.store)

    def _append(self, view: TableWriter, draft: Commit) -> Entry:
        """In one SQLite transaction: check against the table, put the entry, take the change in. Dying after the put
        leaves the table behind the log, and catching up applies the entry."""
        revision, previous = view.head()
        commit = msgspec.structs.replace(draft, revision=revision + 1, previous=previous, time=now())
        replay.execute(view, commit)
        leased = self._single_writer or not self.store.capabilities.conditional_put
        if leased:
            self._lease.hold()
        view.remember(**{IDENTITY: self._identity.before_writing()})
        digest = self.log.append(commit)
        if leased and self.log.read(commit.revision).commit.writer != commit.writer:
            raise RevisionTaken(f"revision {commit.revision} of {self.store.name} was overwritten by another writer")
        view.set_head(commit.revision, digest)
        return Entry(commit, digest)

    def _snapshot_when_due(self, revision: int) -> None:
        every = self.snapshot_every_commits
        if not every or (revision % every and revision not in _EARLY_SNAPSHOTS):
            return
        try:
            self.write_snapshot()
        except (FrostlineError, OSError) as error:
            # The commit stands; the next snapshot covers it.
            logger.warning("disk %s: no snapshot at revision %d: %s", self.name, revision, error)


class DiskAsOf(ObjectDisk):
    """The disk right after `revision`: read-only, in memory, over the same objects.

    Objects named by a retained revision are there: gc keeps them as long as the revision can be restored.
    """

    def __init__(self, disk: ObjectDisk, revision: int) -> None:
        super().__init__(disk.name, disk.store, disk.state_path, read_only=True)
        self.cache.hold(disk.table_at(revision))

    def refresh(self) -> None:
        return  # the past does not change

    def recover(self) -> list[str]:
        return []

    def close(self) -> None:
        """Release the table; the store belongs to the disk of the present."""
        self.cache.close()
