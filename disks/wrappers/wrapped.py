"""A disk round another disk. Each wrapper overrides what it changes; everything else goes straight through.

What a disk has besides its files (`Disk.logged`, `Disk.clickhouse`) is asked of the inner disk, and handed out with
the wrapper's own methods in front: what a wrapper changes holds for `undo` and `gc` as it does for a query.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Self

from disks.base import (
    BucketDisk,
    ClickHouseLogDisk,
    Disk,
    DiskCapabilities,
    DiskUsage,
    FileInfo,
    Fingerprint,
    Leftover,
    Location,
    LoggedDisk,
    SmallFile,
    Transaction,
)
from disks.file_table.commits import Commits
from disks.file_table.table import FileTable
from disks.file_table.views import StoredRow
from disks.stores.base import ByteRange
from oplog.errors import FrostlineError, Transient
from oplog.kinds import CommitKind
from oplog.log import Entry
from oplog.replay import FileRow
from oplog.stamps import CommitStamp, KeptStamp, SeenStates, WriterState


class WrappedDisk(Disk):
    """Passes every call to `inner`: the base of the wrappers, and itself a disk that keeps the contract."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.name = inner.name
        self.kind = inner.kind

    @property
    def read_only(self) -> bool:  # type: ignore[override]
        return self.inner.read_only

    def around(self, inner: Disk) -> Self:
        """The same wrapper round another disk, such as a past state of this one."""
        return type(self)(inner)

    @property
    def capabilities(self) -> DiskCapabilities:  # type: ignore[override]
        return self.inner.capabilities

    @cached_property
    def logged(self) -> LoggedDisk | None:
        inner = self.inner.logged
        return _WrappedLoggedDisk(self, inner) if inner is not None else None

    @cached_property
    def clickhouse(self) -> ClickHouseLogDisk | None:
        inner = self.inner.clickhouse
        return _WrappedClickHouseDisk(self, inner) if inner is not None else None

    # Reading

    def usage(self) -> DiskUsage:
        return self.inner.usage()

    def stored_bytes(self) -> int:
        return self.inner.stored_bytes()

    def list(self, directory: str = "") -> builtins.list[str]:
        return self.inner.list(directory)

    def directories(self, directory: str) -> builtins.list[str]:
        return self.inner.directories(directory)

    def files_in(self, directory: str, begin: str = "") -> builtins.list[str]:
        return self.inner.files_in(directory, begin)

    def list_each(self, directories: Sequence[str]) -> Iterator[builtins.list[str]]:
        return self.inner.list_each(directories)

    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        return self.inner.walk(directory)

    def stat(self, path: str) -> FileInfo:
        return self.inner.stat(path)

    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        return self.inner.read(path, byte_range)

    def reader(self, path: str) -> Callable[[ByteRange], bytes]:
        return self.inner.reader(path)

    def location(self, path: str) -> Location:
        return self.inner.location(path)

    def local_path(self, path: str) -> Path | None:
        return self.inner.local_path(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def existing(self, paths: Iterable[str]) -> set[str]:
        return self.inner.existing(paths)

    def small_files(self, directory: str, name: str) -> Iterator[tuple[str, bytes, int | None]]:
        return self.inner.small_files(directory, name)

    def look_over(
        self, directory: str, name: str, fingerprints: Mapping[str, Fingerprint], among: Collection[str] | None = None
    ) -> builtins.list[SmallFile]:
        return self.inner.look_over(directory, name, fingerprints, among)

    def state_of(self, directory: str) -> Fingerprint | None:
        return self.inner.state_of(directory)

    def changed_between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        return self.inner.changed_between(directory, before, after)

    def read_lease(self) -> AbstractContextManager[None]:
        return self.inner.read_lease()

    def hold(self, paths: Sequence[str], *, until: datetime, process: int) -> builtins.list[Path]:
        return self.inner.hold(paths, until=until, process=process)

    def steady(self) -> AbstractContextManager[None]:
        return self.inner.steady()

    # Writing, and what keeps a disk in order

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        return self.inner.transaction(kind, reason=reason, actor=actor)

    @property
    def revision(self) -> int | None:
        return self.inner.revision

    def refresh(self) -> None:
        self.inner.refresh()

    def ask_again(self) -> None:
        self.inner.ask_again()

    def refresh_when_due(self) -> bool:
        return self.inner.refresh_when_due()

    def remember(self) -> None:
        self.inner.remember()

    @property
    def unreachable(self) -> str:
        return self.inner.unreachable

    @property
    def looked(self) -> float | None:
        return self.inner.looked

    @property
    def broken(self) -> FrostlineError | None:
        return self.inner.broken

    def work_offline(self, error: Transient) -> None:
        self.inner.work_offline(error)

    def recover(self) -> builtins.list[str]:
        return self.inner.recover()

    def inspect(self) -> tuple[builtins.list[FileInfo], builtins.list[str]]:
        return self.inner.inspect()

    def leftovers(self) -> builtins.list[Leftover]:
        return self.inner.leftovers()

    def tidy(self) -> builtins.list[str]:
        return self.inner.tidy()

    def identity(self) -> str | None:
        return self.inner.identity()

    def renew_identity(self) -> str:
        return self.inner.renew_identity()

    def watch(self, disk_id: str | None, begin: Callable[[str], None]) -> None:
        self.inner.watch(disk_id, begin)

    def stamps(self) -> Sequence[KeptStamp]:
        return self.inner.stamps()

    def stamp_commits(self, state: Callable[[], WriterState], committed: Callable[[CommitStamp], None]) -> None:
        self.inner.stamp_commits(state, committed)

    def seen(self) -> SeenStates:
        return self.inner.seen()

    def restamp(self, above: int) -> CommitStamp | None:
        return self.inner.restamp(above)

    def close(self) -> None:
        self.inner.close()


class _WrappedBucketDisk(WrappedDisk, BucketDisk):
    """The files of the wrapper, and what `bucket` has besides: store and file table."""

    def __init__(self, outer: WrappedDisk, bucket: BucketDisk) -> None:
        super().__init__(outer)
        self._outer = outer
        self._bucket = bucket
        self.store = bucket.store
        self.state_path = bucket.state_path
        self.retention_seconds = bucket.retention_seconds

    @property
    def revision(self) -> int:
        return self._bucket.revision

    @property
    def file_table(self) -> FileTable:
        return self._bucket.file_table

    @property
    def table_path(self) -> Path:
        return self._bucket.table_path

    def local_state_exists(self) -> bool:
        return self._bucket.local_state_exists()


class _WrappedLoggedDisk(_WrappedBucketDisk, LoggedDisk):
    def __init__(self, outer: WrappedDisk, inner: LoggedDisk) -> None:
        super().__init__(outer, inner)
        self.log = inner.log
        self.marks = inner.marks
        self._log = inner

    @property
    def logged(self) -> LoggedDisk:
        return self

    def revision_at_hand(self) -> int:
        return self._log.revision_at_hand()

    def at(self, revision: int, *, briefly: bool = False) -> Disk:
        return self._outer.around(self._log.at(revision, briefly=briefly))

    def entries(self, since: int = 0, until: int | None = None, limit: int | None = None) -> Iterator[Entry]:
        return self._log.entries(since, until, limit)

    def commits(self, reading: Callable[[int], None] = lambda count: None) -> Commits:
        return self._log.commits(reading)

    def table_at(self, revision: int, *, path: Path | None = None) -> FileTable:
        return self._log.table_at(revision, path=path)

    def claim(self) -> None:
        self._log.claim()

    def write_snapshot(self) -> int:
        return self._log.write_snapshot()

    def replace_cache(
        self, rows: Callable[[], Iterable[StoredRow]], revision: int, digest: str, *, table_digest: str, proved: bool
    ) -> None:
        self._log.replace_cache(rows, revision, digest, table_digest=table_digest, proved=proved)

    def fence(self, announcement: str) -> int:
        return self._log.fence(announcement)

    def settle(self, *, actor: str = "", dry_run: bool = False) -> int | None:
        return self._log.settle(actor=actor, dry_run=dry_run)

    def forget_commits(self, before: int) -> None:
        self._log.forget_commits(before)


class _WrappedClickHouseDisk(_WrappedBucketDisk, ClickHouseLogDisk):
    def __init__(self, outer: WrappedDisk, inner: ClickHouseLogDisk) -> None:
        super().__init__(outer, inner)
        self._log = inner

    @property
    def clickhouse(self) -> ClickHouseLogDisk:
        return self

    def check_schema(self) -> bool:
        return self._log.check_schema()

    def known_rows(self) -> dict[str, FileRow] | None:
        return self._log.known_rows()

    def finish(self) -> None:
        self._log.finish()

    def replace_rows(
        self, rows: Collection[FileRow], highest: int, *, unknown: str = "", set_aside_damaged: bool = False
    ) -> None:
        self._log.replace_rows(rows, highest, unknown=unknown, set_aside_damaged=set_aside_damaged)

    def kept_keys(self) -> Iterator[str]:
        return self._log.kept_keys()

    def alone(self) -> AbstractContextManager[None]:
        return self._log.alone()

    def numbers_of_others(self) -> tuple[int, int] | None:
        return self._log.numbers_of_others()
