"""What a disk in a bucket adds to the contract: a store of objects, a file table on this machine, and a log.

`disks.kinds.as_disk(disk, LoggedDisk)` asks for it, also through wrappers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from disks.base import Disk, Transaction
from disks.contracts.identified_disk import IdentifiedDisk
from disks.file_table.blob_sets import BlobMarks, BlobReference
from disks.file_table.commits import Commits
from disks.file_table.table import FileTable
from disks.file_table.views import StoredRow
from disks.stores.base import ObjectStore
from disks.stores.wrappers.named_log import log_of
from oplog.errors import Transient
from oplog.kinds import CommitKind
from oplog.log import Entry, OperationsLog
from oplog.replay import FileRow


class BucketTransaction(Transaction):
    """A transaction whose files become objects."""

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """Announce the files that will be created, with their sizes in bytes: the parts of one directory together.
        Where other logs share the objects, this is one request before the first byte goes up; without it, each file
        announces itself."""

    def mark(self, references: Collection[BlobReference]) -> None:
        """Tell the other logs of the prefix now that this one uses these blob sets, before the caller looks at their
        objects. Raises `NotFound` when a set is gone."""

    @abstractmethod
    def adopt(self, row: FileRow, *, copied: bool = False) -> None:
        """Stage a file whose object the disk's store holds already, or whose bytes ride in the row: nothing is copied.

        The caller has proved that the object is there, and keeps gc away from it (a pin) until the commit. `copied`:
        it was put there for this, and its blob set is a new one. Raises `Refused` for what the disk cannot take over.
        """

    @abstractmethod
    def uploaded(self, path: str, key: str, size_bytes: int, sha256: str, *, since: float | None = None) -> None:
        """Stage a file whose object another process has put in the disk's store since this transaction began, or since
        a time before it (seconds, as `time.time`), under a key of its own. The store is asked for it.

        Raises `Refused` when it is not there with this size.
        """


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
    def revision(self) -> int: ...  # type: ignore[override]

    @abstractmethod
    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> BucketTransaction: ...

    @abstractmethod
    def local_state_exists(self) -> bool:
        """Whether this machine has a file table of the disk. Opens nothing."""


class LoggedDisk(BucketDisk, IdentifiedDisk):
    """A disk with a log of commits in its store, which is the truth; the file table is a cache of it."""

    log: OperationsLog
    marks: BlobMarks | None = None
    """Where other logs share the objects: what tells them that this one uses some. None: the logs alone do."""

    @property
    def log_name(self) -> str | None:
        """The name of the log among those of its prefix; None where the prefix has no other. Where it has, the objects
        are not this disk's alone."""
        return log_of(self.store)

    def revision_at_hand(self) -> int:
        """The newest revision that this process knows of, without a request; 0 where it knows of none yet."""
        return 0

    @property
    @abstractmethod
    def looked(self) -> float | None:
        """The time, in seconds since 1970, up to which all commits of other writers are surely known; None before the
        first refresh."""

    @abstractmethod
    def refresh_when_due(self) -> bool:
        """As `refresh`, unless some process of this machine asked the bucket lately, as the disk's configuration says.
        Whether it did ask: else what others committed since is not seen, and all that this machine did is."""

    @abstractmethod
    def ask_again(self) -> None:
        """The next `refresh` asks the bucket, even if it did not answer a moment ago."""

    @abstractmethod
    def work_offline(self, error: Transient) -> None:
        """After a `refresh` that failed with this error: show the last tree this machine has seen; what needs more
        raises `DiskUnreachable` at once, until a `refresh` succeeds. Raises an error when no tree is known for sure."""

    @abstractmethod
    def remember(self) -> None:
        """Show the present state also while the bucket cannot be reached: call it before removing what that state
        no longer needs. Raises `NoSpace` or `ReadOnly` where this machine cannot note it."""

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
