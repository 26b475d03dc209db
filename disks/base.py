"""The contract of a disk: a tree of immutable files that changes only by atomic transactions.

Every disk and wrapper passes `tests/contract/test_disk.py`; a dict is its executable specification (`disks/memory.py`).
Paths are relative, `/`-separated, UTF-8, without empty, `.` or `..` segments or control characters (`check_path`).
A file never changes; a path may be removed and created anew. Directories exist while a file is below them.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from disks.stores.base import ByteRange, S3Connection
from oplog.errors import Transient, UsageError
from oplog.paths import is_safe

INLINE_LIMIT_BYTES = 64 * 1024
"""A metadata file up to this size rides inside its commit and needs no object: a `part.json` with the sparse index of a
hundred row groups fits, so that a moved part costs one PUT a data file and opening a store reads no object."""


RESERVED_DIRECTORY = ".frostline"
"""Where a local disk keeps its own files; no path may begin with it on any disk."""


@dataclass(frozen=True, slots=True)
class DiskCapabilities:
    """What callers may count on."""

    remote: bool
    """Reads cost requests; parts here are cold."""
    writers: Literal["one", "many"]
    """Whether several processes on several machines may write at once."""
    dense_revisions: bool = True
    """Where commits are numbered: 1, 2, 3, … Else only ever higher."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Space in bytes. `total_bytes` and `free_bytes` are None where there is no limit (an object store). `used_bytes`
    of a local disk without a quota is that of its file system, whoever uses it; `Disk.stored_bytes` is the disk's own.
    """

    total_bytes: int | None
    free_bytes: int | None
    used_bytes: int


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file. `key`, `blob_set` and `revision` are None on disks without blobs."""

    path: str
    size_bytes: int
    sha256: str | None = None
    """Hex digest; None on disks that keep none."""
    key: str | None = None
    """The blob; None for inline files and local ones."""
    blob_set: str | None = None
    revision: int | None = None
    """The commit that created this path."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where an engine that opens files itself (DataFusion, pyarrow) finds a file's bytes."""

    url: str
    """`s3://bucket/key` or `file:///path`, not percent-encoded."""
    s3: S3Connection | None = None


class Transaction(ABC):
    """Changes collected and committed at once, or not at all. Used as a context manager; leaving it uncommitted
    abandons it: staged bytes are removed (local) or left to the garbage collector (object disk).

    `create` may be called from several threads; the other methods from one. Order matters: operations apply in the
    order they were added, and `commit` checks the preconditions against the disk as it is at that moment.
    """

    @abstractmethod
    def create(
        self, path: str, data: bytes | Path, *, sha256: str | None = None, blob_set: str | None = None
    ) -> FileInfo:
        """Stage a new file; its bytes are durable when this returns, visible only after `commit`.

        A `Path` is read once: hashed while it is copied or uploaded. With `sha256` (hex) given, other bytes raise
        `Damaged`. The path must not exist at commit (unless removed earlier in this transaction): `Conflict`.
        """

    @abstractmethod
    def scratch(self) -> Path:
        """A directory of this transaction for files that are still being written. `create` with a file below it takes
        the file over without copying; the caller does not touch it afterwards. Removed with the transaction.
        """

    @abstractmethod
    def link(self, source: str, target: str) -> None:
        """A second path for the source's bytes; an object lives while any path names it."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file, or a directory with everything below it. The target must not exist."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything below it. It must exist at commit: else `Conflict`."""

    @abstractmethod
    def require(self, *, present: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> None:
        """Preconditions: files or directories that must, or must not, exist at commit. Else `Conflict`."""

    @abstractmethod
    def commit(self) -> int | None:
        """Make everything visible atomically and durably. Returns the new revision on disks that number them.

        Raises `Conflict` when a precondition fails (nothing changed). An empty transaction commits nothing.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Forget the changes. Nothing after a commit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()


class Disk(ABC):
    """A tree of immutable files. Methods are thread-safe; transactions of one disk commit one after the other."""

    name: str
    kind: str
    read_only: bool
    capabilities: DiskCapabilities

    @abstractmethod
    def usage(self) -> DiskUsage:
        """Space now, `keep_free_space_bytes` already taken off total and free."""

    def stored_bytes(self) -> int:
        """The sizes of the disk's own files. A local disk looks at each of them."""
        return sum(info.size_bytes for info in self.walk())

    @abstractmethod
    def list(self, directory: str = "") -> list[str]:
        """Names directly below the directory, sorted; a directory's name ends with `/`. Empty when missing."""

    @abstractmethod
    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        """Every file below the directory, in path order. Local disks give no digest."""

    @abstractmethod
    def stat(self, path: str) -> FileInfo:
        """One file. Raises `NotFound`."""

    @abstractmethod
    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        """The file's bytes, verified against its SHA-256 where the disk keeps one and the whole file is read."""

    @abstractmethod
    def location(self, path: str) -> Location:
        """Where an engine can open the file's bytes by itself. Raises `NotFound`."""

    @abstractmethod
    def transaction(
        self, kind: str, *, reason: str = "", actor: str = "", details: dict[str, str] | None = None
    ) -> Transaction:
        """Begin a transaction. `kind`, `reason`, `actor`, `details` go into the log. Raises `Refused` if read-only."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory of this path exists."""
        directory, _, name = path.rpartition("/")
        return bool(self.list(path)) or name in self.list(directory)

    def existing(self, paths: Iterable[str]) -> set[str]:
        """Those of the paths that exist."""
        return {path for path in paths if self.exists(path)}

    def small_files(self, directory: str, name: str) -> Iterator[tuple[str, bytes, int | None]]:
        """Path, bytes and revision of every file called `name` exactly one directory below `directory`, in path order:
        the `part.json` of a table's parts. Cheap for 10,000 of them on every disk."""
        prefix = f"{directory}/" if directory else ""
        for child in self.list(directory):
            path = f"{prefix}{child}{name}"
            if child.endswith("/") and name in self.list(f"{prefix}{child[:-1]}"):
                yield path, self.read(path), self.stat(path).revision

    @property
    def revision(self) -> int | None:
        """The last applied revision; None on disks that number none."""
        return None

    def refresh(self) -> None:  # noqa: B027 - most disks have nothing to do
        """Take in what other writers committed. Nothing on disks with one writer."""

    @property
    def unreachable(self) -> str:
        """Why the disk cannot be reached now; empty when it can. Its tree is then the one that was last known."""
        return ""

    def work_offline(self, error: Transient) -> None:
        """After a `refresh` that failed with this error: show the tree that was last known; what needs more raises
        `DiskUnreachable` at once, until a `refresh` succeeds. Raises the error when nothing is known for sure."""
        raise error

    def recover(self) -> builtins.list[str]:
        """Finish or undo what a crash left; returns one sentence a thing done. A second call returns nothing."""
        return []

    def read_lease(self) -> AbstractContextManager[None]:
        """Hold while reading through `location()`: files removed meanwhile keep their bytes until it is released."""
        return _NO_LEASE

    def steady(self) -> AbstractContextManager[None]:
        """Hold for many small reads in this thread: the tree stays as it is, and each read costs less. Never across a
        commit on the same disk, which would wait for it."""
        return _NO_LEASE

    def close(self) -> None:  # noqa: B027 - most disks have nothing to do
        """Release handles. The disk cannot be used afterwards."""


class _NoLease(AbstractContextManager[None]):
    def __exit__(self, *exc: object) -> None:
        return None


_NO_LEASE = _NoLease()


def check_path(path: str, *, what: str = "path") -> str:
    """Return the path if it is safe on every disk; else raise `UsageError` that shows it.

    Paths read from a bucket are hostile: `..`, absolute, empty, control characters and over-long names are refused.
    """
    bad = not is_safe(path) or path == RESERVED_DIRECTORY or path.startswith(f"{RESERVED_DIRECTORY}/")
    if bad:
        raise UsageError(
            f"unsafe {what}: {path!r}", hint="a relative path without '..', empty segments or control characters"
        )
    return path
