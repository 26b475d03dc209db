"""The contract of a disk: a tree of immutable files that changes only by atomic transactions.

Every disk and wrapper passes `tests/contract/test_disk*.py`; `disks/memory.py`, a dict, is its specification.
What some disks have besides (a log of commits, a path in the file system) is asked of the disk, never of its class: a
disk round another one answers for the one inside.
Paths are relative, `/`-separated, UTF-8, without empty, `.` or `..` segments or control characters (`check_path`).
A file never changes; a path may be removed and created again. Directories exist while a file is below them.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import msgspec

from disks.file_table.blob_sets import BlobMarks, BlobReference
from disks.file_table.commits import Commits
from disks.file_table.table import FileTable
from disks.file_table.views import StoredRow
from disks.stores.base import ByteRange, ObjectStore, S3Connection
from disks.stores.wrappers.named_log import log_of
from oplog.errors import FrostlineError, Refused, Transient, UsageError
from oplog.kinds import CommitKind
from oplog.log import Entry, OperationsLog
from oplog.paths import is_safe
from oplog.replay import FileRow
from oplog.stamps import CommitStamp, KeptStamp, SeenStates, WriterState

INLINE_LIMIT_BYTES = 64 * 1024
"""A metadata file up to this size rides inside its commit and needs no object: a `part.json` with the sparse index of a
hundred row groups fits, so that a moved part costs one PUT a data file and opening a store reads no object."""


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
    of a local disk without a quota is that of its file system; `Disk.stored_bytes` is the disk's own.
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

    def reserve(self, sizes: Mapping[str, int]) -> None:  # noqa: B027 - nothing where nobody shares objects
        """Announce the files that will be created, with their sizes in bytes: the parts of one directory together.
        Where other logs share the objects, this is one request before the first byte goes up; without it, each file
        announces itself."""

    def mark(self, references: Collection[BlobReference]) -> None:  # noqa: B027 - the same
        """Tell the other logs of the prefix now that this one uses these blob sets, before the caller looks at their
        objects. Raises `NotFound` when a set is gone."""

    def adopt(self, row: FileRow, *, copied: bool = False) -> None:
        """Stage a file whose object the disk's store holds already, or whose bytes ride in the row: nothing is copied.

        The caller has proved that the object is there, and keeps gc away from it (a pin) until the commit. `copied`:
        it was put there for this, and its blob set is a new one. Raises `Refused` for what the disk cannot take over,
        and on disks whose files are no objects.
        """
        raise Refused(f"{row.path} cannot be taken over: this disk has no log of objects", hint="create the file again")

    def uploaded(self, path: str, key: str, size_bytes: int, sha256: str, *, since: float | None = None) -> None:
        """Stage a file whose object another process has put in the disk's store since this transaction began, or since
        a time before it (seconds, as `time.time`), under a key of its own. The store is asked for it.

        Raises `Refused` when it is not there with this size, and on disks whose files are no objects.
        """
        raise Refused(f"{path} cannot be taken over: this disk has no log of objects", hint="create the file again")

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

    @property
    def logged(self) -> LoggedDisk | None:
        """This disk with its log of commits; None when it has none."""
        return None

    @property
    def clickhouse(self) -> ClickHouseLogDisk | None:
        """This disk with its log in ClickHouse's format; None when it has none."""
        return None

    @property
    def bucket(self) -> LoggedDisk | ClickHouseLogDisk | None:
        """This disk with the store that holds its files; None when they are no objects."""
        return self.logged or self.clickhouse

    @abstractmethod
    def usage(self) -> DiskUsage:
        """Space now, `keep_free_space_bytes` already taken off total and free."""

    def stored_bytes(self) -> int:
        """The sizes of the disk's own files."""
        return sum(info.size_bytes for info in self.walk())

    @abstractmethod
    def list(self, directory: str = "") -> list[str]:
        """Names directly below the directory, sorted; a directory's name ends with `/`. Empty when missing."""

    def directories(self, directory: str) -> builtins.list[str]:
        """Names of the directories directly below, in no order; it may be also of those that show nothing. Cheap for
        the directory of 1,000,000 parts."""
        return [name[:-1] for name in self.list(directory) if name.endswith("/")]

    def files_in(self, directory: str, begin: str = "") -> builtins.list[str]:
        """The names of the files right in a directory that begin so, sorted. Looks into none of its directories, of
        which there may be a million."""
        return [name for name in self.list(directory) if name.startswith(begin) and not name.endswith("/")]

    def list_each(self, directories: Sequence[str]) -> Iterator[builtins.list[str]]:
        """The same of each of the directories, in their order. Cheap for the directories of 10,000 parts."""
        return map(self.list, directories)

    @abstractmethod
    def walk(self, directory: str = "") -> Iterator[FileInfo]:
        """Every file below the directory, in path order. Local disks give no digest."""

    @abstractmethod
    def stat(self, path: str) -> FileInfo:
        """One file. Raises `NotFound`."""

    @abstractmethod
    def read(self, path: str, byte_range: ByteRange | None = None) -> bytes:
        """The file's bytes, verified against its SHA-256 where the disk keeps one and the whole file is read."""

    def reader(self, path: str) -> Callable[[ByteRange], bytes]:
        """Reads ranges of the file as it is now. While `read_lease` is held it does so also when the path is removed or
        names another file meanwhile. Raises `NotFound`."""
        self.stat(path)
        return partial(self.read, path)

    @abstractmethod
    def location(self, path: str) -> Location:
        """Where an engine can open the file's bytes by itself. Raises `NotFound`."""

    def local_path(self, path: str) -> Path | None:
        """Where the file or directory lies in this machine's file system; asks for nothing. None on disks elsewhere."""
        return None

    def hold(self, paths: Sequence[str], *, until: datetime, process: int) -> builtins.list[Path]:
        """Where other processes of this machine can read the files until then, or until the process ends, also when
        they are removed meanwhile. Raises `NotFound` for one that is gone already, `Refused` on disks elsewhere."""
        raise Refused(f"the files of disk {self.name} are in no directory", hint="read them through the disk")

    @abstractmethod
    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> Transaction:
        """Begin a transaction. `kind`, `reason`, `actor` go into the log. Raises `Refused` if read-only."""

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

    def look_over(
        self, directory: str, name: str, fingerprints: Mapping[str, Fingerprint], among: Collection[str] | None = None
    ) -> builtins.list[SmallFile]:
        """The same files, but reads only those whose fingerprint differs from that in `fingerprints`, by path. `among`:
        only those below these names of the directory, at the cost of these."""
        return [
            SmallFile(path, None, data, revision)
            for path, data, revision in self.small_files(directory, name)
            if among is None or path.split("/")[-2] in among
        ]

    def state_of(self, directory: str) -> Fingerprint | None:
        """Tells what `look_over` finds there now from what it found before: the same state, the same files, unless a
        hand reached into one of the directories below. None where nothing tells; then only looking does. Cheap for the
        directory of 1,000,000 parts. With `steady` held it is the state of what is looked at meanwhile."""
        return None

    def changed_between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        """Given two states of the directory, the first from a while ago: all names in it at which `look_over` may find
        something else since. None where that is not known. Costs what was committed lately."""
        return None

    @property
    def revision(self) -> int | None:
        """The last applied revision; None on disks that number none."""
        return None

    def refresh(self) -> None:  # noqa: B027 - most disks have nothing to do
        """Take in what other writers committed. Nothing on disks with one writer."""

    def ask_again(self) -> None:  # noqa: B027 - most disks are not asked over a network
        """The next `refresh` asks, though there was no answer a moment ago: for who knows that there is one now."""

    def refresh_when_due(self) -> bool:
        """As `refresh`, unless some process of this machine looked lately, as the disk's configuration says. Whether it
        looked: else what others committed since is not seen, and all that this machine did is."""
        self.refresh()
        return True

    def remember(self) -> None:  # noqa: B027 - most disks keep no memory apart from themselves
        """Show the present state also while the bucket cannot be reached: call it before removing what that state
        no longer needs. Raises `NoSpace` or `ReadOnly` where this machine cannot note it."""

    @property
    def unreachable(self) -> str:
        """Why the disk cannot be reached now; empty when it can. Its tree is then the one that was last known."""
        return ""

    @property
    def looked(self) -> float | None:
        """When, in seconds since 1970, what other writers had committed was surely seen last; None where there are
        none, and before the first look."""
        return None

    @property
    def broken(self) -> FrostlineError | None:
        """Why this is not the disk that its name stands for; None when it is. Such a disk shows no files."""
        return None

    def work_offline(self, error: Transient) -> None:
        """After a `refresh` that failed with this error: show the tree that was last known; what needs more raises
        `DiskUnreachable` at once, until a `refresh` succeeds. Raises the error when nothing is known for sure."""
        raise error

    def recover(self) -> builtins.list[str]:
        """Finish or undo what a crash left; returns one sentence a thing done. A second call returns nothing."""
        return []

    def inspect(self) -> tuple[builtins.list[FileInfo], builtins.list[str]]:
        """Every file, and the paths of what does not belong on a disk: links, devices, pipes. Never raises `Damaged`
        for them as `walk` does."""
        return builtins.list(self.walk()), []

    def leftovers(self) -> builtins.list[Leftover]:
        """What a crash left on this machine. Changes nothing."""
        return []

    def tidy(self) -> builtins.list[str]:
        """Remove what a crash left on this machine, and nothing else; one sentence a thing done."""
        return []

    def read_lease(self) -> AbstractContextManager[None]:
        """Hold while reading through `location()`: files removed meanwhile keep their bytes until it is released."""
        return _NO_LEASE

    def steady(self) -> AbstractContextManager[None]:
        """Hold for many small reads in this thread: the tree stays as it is, and each read costs less. Never across a
        commit on the same disk, which would wait for it."""
        return _NO_LEASE

    def identity(self) -> str | None:
        """The id that the disk's place shows, written by the first transaction there; None where there is none yet, and
        on disks that have none. Writes nothing."""
        return None

    def watch(self, disk_id: str | None, begin: Callable[[str], None]) -> None:  # noqa: B027 - nothing without an id
        """From now on a transaction raises unless the disk shows the id `disk_id`. A disk without an id gets one with
        its first transaction; `begin` gets the id once, before anything else is written."""

    def stamps(self) -> Sequence[KeptStamp]:
        """Those of the newest transactions here, the oldest first; none on disks that other machines write to as well,
        and where no version that makes them has written. Writes nothing."""
        return ()

    def stamp_commits(  # noqa: B027 - nothing without a way to carry it
        self, state: Callable[[], WriterState], committed: Callable[[CommitStamp], None]
    ) -> None:
        """From now on each transaction carries what `state` says right before it; `committed` gets its stamp when it
        is durable."""

    def seen(self) -> SeenStates:
        """How far those who wrote to the disk have seen journals and other disks, as far as it is known here."""
        return SeenStates()

    def restamp(self, above: int) -> CommitStamp | None:
        """Take the disk as it is for newer than all that anybody has seen of it: its only stamp, durably, has a number
        above this one and above its own. None where it has none, or is read-only."""
        return None

    def renew_identity(self) -> str:
        """Give a disk of which another machine has a copy another id, durably. Raises `Refused` where it has none that
        can be given."""
        raise Refused(f"disk {self.name} has no id of its own", hint="only a local disk is given another one")

    def close(self) -> None:  # noqa: B027 - most disks have nothing to do
        """Release handles. The disk cannot be used afterwards."""


class BucketDisk(Disk):
    """A disk whose files are objects of a store, named by a file table on this machine."""

    store: ObjectStore
    state_path: Path
    """What this machine keeps of the disk."""
    retention_seconds: int
    """Objects of removed files stay so long."""

    @property
    @abstractmethod
    def file_table(self) -> FileTable:
        """The table, opened at first use and ready to be read."""

    @property
    @abstractmethod
    def table_path(self) -> Path:
        """The file of the table, whether it exists or not."""

    @property
    @abstractmethod
    def revision(self) -> int: ...

    @abstractmethod
    def local_state_exists(self) -> bool:
        """Whether this machine has a file table of the disk. Opens nothing."""


class LoggedDisk(BucketDisk):
    """A disk with a log of commits in its store, which is the truth; the file table is a cache of it."""

    log: OperationsLog
    marks: BlobMarks | None = None
    """Where other logs share the objects: what tells them that this one uses some. None: the logs alone do."""

    @property
    def logged(self) -> LoggedDisk:
        return self

    @property
    def log_name(self) -> str | None:
        """The name of the log among those of its prefix; None where the prefix has no other. Where it has, the objects
        are not this disk's alone."""
        return log_of(self.store)

    def revision_at_hand(self) -> int:
        """The newest revision that this process knows of, without a request; 0 where it knows of none yet."""
        return 0

    @abstractmethod
    def at(self, revision: int, *, briefly: bool = False) -> Disk:
        """The disk as it was right after `revision`, read-only. The caller closes it; the store stays open. `briefly`:
        soon; then it costs what has changed since, where that is known.

        Raises `NotFound` when the revision does not exist or is no longer kept.
        """

    @abstractmethod
    def entries(self, since: int = 0, until: int | None = None, limit: int | None = None) -> Iterator[Entry]:
        """Log entries with since < revision <= until, oldest first. With `limit`, the newest so many of them. Those
        that are no longer kept are left out."""

    @abstractmethod
    def commits(self, reading: Callable[[int], None] = lambda count: None) -> Commits:
        """The commits as a user asks for them. `reading` gets the number of entries an answer had to read first."""

    @abstractmethod
    def table_at(self, revision: int, *, path: Path | None = None) -> FileTable:
        """The file table as it was right after `revision`, in memory or at `path`; the caller closes it.

        Raises `NotFound` when the revision does not exist or is no longer kept.
        """

    def claim(self) -> None:
        """Where the log is one of several: have it, and the id of its prefix, before the first commit."""

    @abstractmethod
    def write_snapshot(self) -> int:
        """Write a snapshot of the table as it is; returns its revision. Nothing for an empty log."""

    @abstractmethod
    def replace_cache(
        self, rows: Callable[[], Iterable[StoredRow]], revision: int, digest: str, *, table_digest: str, proved: bool
    ) -> None:
        """Replace the cached table, whatever it holds, with this one: all or nothing. The next use catches up from
        there. The rows come in path order, from another table, whose digest is `table_digest`; iterated again when the
        table has to be made again."""

    @abstractmethod
    def fence(self, announcement: str) -> int:
        """Commit that a collection deletes what it has announced under this key; the revision. Who commits later looks
        at its objects again."""

    @abstractmethod
    def settle(self, *, actor: str = "", dry_run: bool = False) -> int | None:
        """Where an entry says of the file table what the entries up to it contradict, wherever one begins to read:
        commit that what they do counts, and what the table is. The revision of that entry; None where there is none."""

    @abstractmethod
    def forget_commits(self, before: int) -> None:
        """Drop what this machine noted of commits below the revision: their entries were collected."""


class ClickHouseLogDisk(BucketDisk):
    """A disk with ClickHouse's log: the file table on this machine is the truth, the log restores it after a loss."""

    @property
    def clickhouse(self) -> ClickHouseLogDisk:
        return self

    @abstractmethod
    def check_schema(self) -> bool:
        """Whether the bucket says that it has this log. Raises `UnknownLogFormat` when it says otherwise."""

    @abstractmethod
    def known_rows(self) -> dict[str, FileRow] | None:
        """The files as the table has them, without a request; None when there is no usable table."""

    @abstractmethod
    def finish(self) -> None:
        """Do what a stopped transaction of this machine had begun. Nothing without a usable table."""

    @abstractmethod
    def replace_rows(
        self, rows: Collection[FileRow], highest: int, *, unknown: str = "", set_aside_damaged: bool = False
    ) -> None:
        """Make these the files of the disk, all at once.

        `highest` is the highest number in the bucket: the next ones lie above it, and above every one given so far.
        `unknown` says why there may be files that these rows leave out: gc keeps everything then.
        """

    @abstractmethod
    def kept_keys(self) -> Iterator[str]:
        """Every blob that must stay: those of the files, those below `shadow/` among them, and those of files that were
        removed within the retention. What is in neither is proved by nothing else: no log names blobs here."""

    @abstractmethod
    def alone(self) -> AbstractContextManager[None]:
        """Nobody else commits while it is held, here or on another machine; what was stopped is finished first."""

    @abstractmethod
    def numbers_of_others(self) -> tuple[int, int] | None:
        """The highest number in the bucket and the highest that this machine gave, when the former is above that."""


def with_commits(disk: Disk) -> LoggedDisk:
    """The disk with its log of commits. Raises `UsageError` that says what it has instead."""
    if (logged := disk.logged) is not None:
        return logged
    if disk.clickhouse is not None:
        raise UsageError(
            f"disk {disk.name} has ClickHouse's log, which records files and renames, not commits",
            hint="'frostline clickhouse inspect' shows what is in it, 'frostline restore' rebuilds from it",
        )
    raise UsageError(f"disk {disk.name} is {disk.kind}: it has no operations log", hint="name an object disk")


class _NoLease(AbstractContextManager[None]):
    def __exit__(self, *exc: object) -> None:
        return None


_NO_LEASE = _NoLease()


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
