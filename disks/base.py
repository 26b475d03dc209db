"""The contract of a disk: a tree of immutable files that changes only by atomic transactions.

Every disk and wrapper passes `tests/contract/test_disk*.py`; `disks/memory.py`, a dict, is its specification.
What only some disks have is a class of its own in `disks/contracts/`, and `disks.kinds.as_disk` asks for it, also
through wrappers: a log or objects in a bucket, a directory of this machine, an id.
Paths are relative, `/`-separated, UTF-8, without empty, `.` or `..` segments or control characters (`check_path`).
A file never changes; a path may be removed and created again. Directories exist while a file is below them.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import msgspec

from disks.stores.base import ByteRange, S3Connection
from oplog.errors import FrostlineError, UsageError
from oplog.kinds import CommitKind
from oplog.paths import is_safe

INLINE_LIMIT_BYTES = 64 * 1024
"""A metadata file up to this size rides inside its commit and needs no object: a `part.json` with the sparse index of a
hundred row groups fits, so that a moved part costs one PUT a data file and opening a store reads no object."""


_LISTED_AT_ONCE = 200
"""Directories, while a commit waits."""

RESERVED_DIRECTORY = ".frostline"
"""Where a local disk keeps its own files; no path may begin with it on any disk."""


class DiskCapabilities(msgspec.Struct, frozen=True):
    """What callers may count on."""

    remote: bool
    """Reads cost requests; parts here are cold."""
    writers: Literal["one", "many"]
    """Whether several processes on several machines may write at once."""
    shared: bool = False
    """Several machines may have this disk at once: what is on it is not of this machine alone."""
    dense_revisions: bool = True
    """Where commits are numbered: 1, 2, 3, … Else only ever higher."""


class DiskUsage(msgspec.Struct, frozen=True):
    """Space in bytes. `total_bytes` and `free_bytes` are None where there is no limit (an object store). `used_bytes`
    of a local disk without a quota is that of its file system; `DirectoryDisk.stored_bytes` is its own. A disk that
    packs files may use fewer bytes than they have.
    """

    total_bytes: int | None
    free_bytes: int | None
    used_bytes: int


class FileInfo(msgspec.Struct, frozen=True):
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


class Location(msgspec.Struct, frozen=True):
    """Where an engine that opens files itself (DuckDB, pyarrow) finds a file's bytes."""

    url: str
    """`s3://bucket/key` or `file:///path`, not percent-encoded."""
    s3: S3Connection | None = None


class Leftover(msgspec.Struct, frozen=True):
    """What a crash left on this machine: `recover` removes it."""

    path: Path
    message: str = "leftover of a transaction that never ended: recovery removes it"


Fingerprint = tuple[int | str, ...]
"""Identifies one version of a file or directory: the same fingerprint, the same bytes."""


class SmallFile(NamedTuple):
    """One file as `Disk.look_over` finds it."""

    path: str
    fingerprint: Fingerprint | None
    """None where nothing tells it for certain from others that the path named, or may name."""
    data: bytes | None
    """None where the fingerprint is the known one."""
    revision: int | None


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
        """Stage a new file: durable, and visible, when `commit` has returned.

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

    def made_from(self, revision: int | None, within: Sequence[str] | None = None) -> None:  # noqa: B027
        """What is staged follows from the disk as it was at this revision: `commit` raises `Conflict` when another
        commit has touched it since, or one of the directories and files `within`. Nothing where revisions are not
        counted: there the caller keeps others away."""

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
    revision: int | None = None
    """The last applied revision; None on disks that number none."""
    unreachable: str = ""
    """Why the disk cannot be reached now; empty when it can. Its tree is then the last one this machine has seen."""
    broken: FrostlineError | None = None
    """Why this is not the disk that its name stands for; None when it is. Such a disk shows no files."""

    @abstractmethod
    def usage(self) -> DiskUsage:
        """Space now, `keep_free_space_bytes` already taken off total and free."""

    @abstractmethod
    def list(self, directory: str = "") -> list[str]:
        """Names directly below the directory, sorted; a directory's name ends with `/`. Empty when missing."""

    def directories(self, directory: str) -> builtins.list[str]:
        """Names of the directories directly below, in no order; also of those without files. Cheap for the directory of
        1,000,000 parts."""
        return [name[:-1] for name in self.list(directory) if name.endswith("/")]

    def files_in(self, directory: str, begin: str = "") -> builtins.list[str]:
        """The names of the files directly in a directory that begin so, sorted. Looks into none of its directories, of
        which there may be a million."""
        return [name for name in self.list(directory) if name.startswith(begin) and not name.endswith("/")]

    @abstractmethod
    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        """Every file below the directory, in path order. Local disks give no digest."""

    @abstractmethod
    def stat(self, path: str) -> FileInfo:
        """One file. Raises `NotFound`."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory of this path exists."""
        directory, _, name = path.rpartition("/")
        return bool(self.list(path)) or name in self.list(directory)

    @abstractmethod
    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        """The file's bytes, verified against its SHA-256 where the disk keeps one and the whole file is read."""

    def reader(self, path: str) -> Callable[[ByteRange], bytes]:
        """Reads ranges of the file as it is now. While `read_lease` is held it does so also when the path is removed or
        names another file meanwhile. Raises `NotFound`."""
        self.stat(path)
        return partial(self.read, path)

    @abstractmethod
    def location(self, path: str) -> Location | None:
        """Where an engine can open the file's bytes by itself; None where none can: it reads them by `reader`. Raises
        `NotFound` when the file is missing, and only then."""

    @abstractmethod
    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        """Begin a transaction. `kind`, `reason`, `actor` go into the log. Raises `Refused` if read-only."""

    def look_over(
        self, directory: str, name: str, fingerprints: Mapping[str, Fingerprint], among: Collection[str] | None = None
    ) -> builtins.list[SmallFile]:
        """Every file called `name` exactly one directory below `directory`, in path order: the `part.json` of a table's
        parts. Reads only those whose fingerprint differs from that in `fingerprints`, by path. `among`: only those
        below these names of the directory, at the cost of these. Cheap for 10,000 of them on every disk."""
        files: builtins.list[SmallFile] = []
        for child in self.directories(directory):
            path = f"{directory}/{child}/{name}" if directory else f"{child}/{name}"
            if (among is None or child in among) and name in self.files_in(path[: -len(name) - 1]):
                files.append(SmallFile(path, None, self.read(path), self.stat(path).revision))
        return sorted(files)

    def state_of(self, directory: str) -> Fingerprint | None:
        """Identifies what `look_over` finds there now: the same state, the same files, unless somebody changed one of
        the directories below from outside. None where nothing identifies it; then only `look_over` tells. Cheap for the
        directory of 1,000,000 parts. Within `steady` it is the state of what is read meanwhile."""
        return None

    def changed_between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        """All names in the directory at which `look_over` may find something else in the second state than in the
        first. None where that is not known. Costs what was committed lately."""
        return None

    def read_lease(self) -> AbstractContextManager[None]:
        """Hold while reading through `location()`: files removed meanwhile keep their bytes until it is released."""
        return nullcontext()

    def steady(self) -> AbstractContextManager[None]:
        """Hold for many small reads in this thread: the tree does not change, and each read costs less. Never across a
        commit on the same disk, which would wait for it."""
        return nullcontext()

    def refresh(self) -> None:  # noqa: B027 - most disks have nothing to do
        """Take in what other writers committed. Nothing on disks with one writer."""

    def recover(self, *, only_here: bool = False) -> builtins.list[str]:
        """Finish or undo what a crash left; one sentence for each thing done, without the name of the disk, which the
        caller puts before it. A second call returns nothing.
        `only_here`: only remove what it left on this machine."""
        return []

    def leftovers(self) -> builtins.list[Leftover]:
        """What a crash left on this machine. Changes nothing."""
        return []

    def close(self) -> None:  # noqa: B027 - most disks have nothing to do
        """Release handles. The disk cannot be used afterwards."""


def existing(disk: Disk, paths: Iterable[str]) -> set[str]:
    """Those of the paths that exist."""
    with disk.steady():
        return {path for path in paths if disk.exists(path)}


def list_each(disk: Disk, directories: Sequence[str]) -> Iterator[list[str]]:
    """The names directly below each of the directories, in their order. Cheap for the directories of 10,000 parts."""
    for start in range(0, len(directories), _LISTED_AT_ONCE):
        with disk.steady():
            listed = [disk.list(directory) for directory in directories[start : start + _LISTED_AT_ONCE]]
        yield from listed


def read_each(disk: Disk, directory: str, name: str) -> dict[str, bytes]:
    """The bytes of every file called `name` exactly one directory below `directory`, by path and in path order."""
    return {file.path: file.data for file in disk.look_over(directory, name, {}) if file.data is not None}


def check_path(path: str) -> str:
    """Return the path if it is safe on every disk; else raise `UsageError` that shows it.

    Paths read from a bucket are hostile: `..`, absolute, empty, control characters and over-long names are refused.
    """
    bad = not is_safe(path) or path == RESERVED_DIRECTORY or path.startswith(f"{RESERVED_DIRECTORY}/")
    if bad:
        raise UsageError(
            f"unsafe path: {path!r}", hint="a relative path without '..', empty segments or control characters"
        )
    return path
