"""A transaction of an object disk: blobs go up at once, the changes become visible by one log entry."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from disks.base import INLINE_LIMIT_BYTES, FileInfo, check_path
from disks.contracts.bucket_disk import BucketTransaction
from disks.file_table.blob_sets import BlobMarks, BlobReference
from disks.host.locks import OwnedDirectory
from disks.host.moment import Moment
from disks.object_disk.blobs import put_blob
from disks.object_disk.commit_checks import CommitChecks
from disks.object_disk.sharing.marks import Marking, directory_of
from disks.stores.base import ObjectStore
from oplog.entry import Commit, Create, Link, Operation, Remove, Rename, now
from oplog.errors import Conflict, Damaged, Refused
from oplog.kinds import CommitKind
from oplog.replay import FileRow

_REVISION_SECONDS = 0.5
"""How old the revision may be that a blob's key names: to read it for each of thousands of small files costs more than
it tells, and the network delays an upload as long."""
_HEAD_THREADS = 16


class Target(msgspec.Struct, frozen=True):
    """What a transaction needs of its disk."""

    store: ObjectStore
    scratch_directory: Path
    revision: Callable[[], int]
    commit: Callable[[Commit, CommitChecks], int]
    shares: bool = False
    """Other logs may name the disk's blobs."""
    marks: BlobMarks | None = None
    """Where they learn that this one does."""


class ObjectTransaction(BucketTransaction):
    """Changes of an object disk. Blobs of an abandoned transaction stay until gc: nothing names them."""

    inline_limit_bytes = INLINE_LIMIT_BYTES

    def __init__(self, target: Target, kind: CommitKind, *, reason: str, actor: str) -> None:
        self._target = target
        self._kind = kind
        self._reason = reason
        self._actor = actor
        self._operations: list[Operation] = []
        self._present: list[str] = []
        self._absent: list[str] = []
        self._scratch: OwnedDirectory | None = None
        self._lock = threading.Lock()
        self._finished = False
        self._revision, self._revision_read = 0, -math.inf
        self._began = Moment()
        self._began_at = target.revision()
        self._first_upload: Moment | None = None
        self._made_from: tuple[int | None, Sequence[str] | None] = (None, None)
        self._blob_sets: dict[str, str] = {}
        """Directory -> the set that what is uploaded for it belongs to."""
        self._marking = Marking(target.marks) if target.marks is not None else None
        self._unproved: list[Create] = []
        """What others uploaded, to be looked at when it is marked."""

    def reserve(self, sizes: Mapping[str, int]) -> None:
        self._check_open()
        if self._marking is not None:
            paths = [check_path(path) for path, size in sizes.items() if not self._rides_along(path, size)]
            self._marking.reserve(paths, self._newest())

    def mark(self, references: Collection[BlobReference]) -> None:
        self._check_open()
        if self._marking is not None:
            self._marking.mark(references)

    def create(
        self, path: str, data: bytes | Path, *, sha256: str | None = None, blob_set: str | None = None
    ) -> FileInfo:
        check_path(path)
        self._check_open()
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        if isinstance(data, Path) and self._rides_along(path, size):
            data = data.read_bytes()
            size = len(data)
        if sha256 is None or isinstance(data, bytes):
            actual = _digest(data)
            if sha256 is not None and actual != sha256.lower():
                raise Damaged(
                    f"{path}: the bytes have SHA-256 {actual}, expected {sha256}", hint="the source is damaged"
                )
            sha256 = actual
        inline = data if isinstance(data, bytes) and self._rides_along(path, size) else None
        key = None
        if inline is None:
            key, own_set = self._upload(path, data, sha256)
            blob_set = blob_set or own_set
        with self._lock:
            self._operations.append(Create(path, size, sha256, key, inline, blob_set))
        return FileInfo(path, size, sha256, key, blob_set)

    def adopt(self, row: FileRow, *, copied: bool = False) -> None:
        """Stage a file whose blob the bucket holds already, or whose bytes ride in the row: nothing is uploaded.

        The caller has proved that the blob is there, and keeps gc away from it (a pin) until the commit. Raises
        `Refused` for a file in several objects, which the log has no words for.
        """
        if copied and self._marking is not None and row.key is not None and row.blob_set is not None:
            self._marking.arrived(row.path, row.key, row.blob_set)
        if row.more:
            raise Refused(f"{row.path} is in {1 + len(row.more)} objects", hint="upload it again, as one object")
        self._add(Create(check_path(row.path), row.size_bytes, row.sha256, row.key, row.inline, row.blob_set))

    def uploaded(self, path: str, key: str, size_bytes: int, sha256: str, *, since: float | None = None) -> None:
        """Stage a file whose blob another process has put in the bucket since this transaction began, or since a time
        before it (seconds, as `time.time`), under a key of its own. The bucket is asked for it. Raises `Refused` when
        it is not there with this size.
        """
        began = self._began
        if since is not None:
            began = Moment(since, began.steady - max(0.0, began.wall - since))
        with self._lock:
            self._first_upload = min(self._first_upload or began, began)
            if since is not None:
                self._began_at = 0  # nobody knows what the newest revision was then
        operation = Create(check_path(path), size_bytes, sha256, key, None, self._blob_set(path))
        if self._marking is not None and operation.blob_set is not None:
            self._marking.arrived(path, key, operation.blob_set)
            self._unproved.append(operation)
        else:
            self._basis().check_blob(operation)
        self._add(operation)

    def _blob_set(self, path: str) -> str | None:
        """The set of what this transaction uploads for the path's directory, which is a part; None where nobody shares.
        Its name is used once."""
        if not self._target.shares:
            return None
        with self._lock:
            return self._blob_sets.setdefault(directory_of(path), secrets.token_hex(16))

    def _upload(self, path: str, data: bytes | Path, sha256: str) -> tuple[str, str | None]:
        """The key of the object, and its set."""
        with self._lock:
            self._first_upload = self._first_upload or Moment()
        if self._marking is None:
            return self._put(path, data, sha256), self._blob_set(path)
        revision = self._newest()
        with self._lock:
            key, blob_set = self._marking.take(path, revision)
        return self._put(path, data, sha256, key), blob_set

    def _put(self, path: str, data: bytes | Path, sha256: str, key: str | None = None) -> str:
        revision = 0 if key is not None else self._newest()
        return put_blob(self._target.store, path, data, sha256, revision=revision, key=key)

    def _newest(self) -> int:
        with self._lock:
            steady = time.monotonic()
            if steady - self._revision_read >= _REVISION_SECONDS:
                self._revision, self._revision_read = self._target.revision(), steady
            return self._revision

    def _rides_along(self, path: str, size_bytes: int) -> bool:
        """Whether the file is no object: its bytes are in the commit."""
        return size_bytes <= self.inline_limit_bytes and path.endswith(".json")

    def scratch(self) -> Path:
        with self._lock:
            if self._scratch is None:
                self._scratch = OwnedDirectory(self._target.scratch_directory)
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

    def made_from(self, revision: int | None, within: Sequence[str] | None = None) -> None:
        self._check_open()
        self._made_from = (revision, within)

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
            present=tuple(self._present),
            absent=tuple(self._absent),
            operations=tuple(self._operations),
        )
        try:
            basis = self._basis()
            if self._marking is not None:
                self._marking.begin()
                with ThreadPoolExecutor(_HEAD_THREADS, thread_name_prefix="head") as pool:
                    list(pool.map(basis.check_blob, self._unproved))
            revision = self._target.commit(draft, basis)
        except (Conflict, Refused):  # nothing was committed
            raise
        except BaseException:
            if self._marking is not None:
                self._marking.leave()
            raise
        if self._marking is not None:
            self._marking.end()
        self.abandon()
        return revision

    def abandon(self) -> None:
        self._finished = True
        if self._marking is not None:
            self._marking.abandon()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _basis(self) -> CommitChecks:
        blobs = [one for one in self._operations if isinstance(one, Create) and one.key is not None]
        made_from, within = self._made_from
        basis = CommitChecks(
            self._target.store, self._kind.word, blobs, self._first_upload, self._began_at, made_from, within
        )
        basis.marking = self._marking
        return basis

    def _add(self, operation: Operation) -> None:
        self._check_open()
        if isinstance(operation, Rename) and f"{operation.target}/".startswith(f"{operation.source}/"):
            raise Conflict(f"{operation.source} cannot become {operation.target}, which is within it")
        with self._lock:
            self._operations.append(operation)

    def _check_open(self) -> None:
        if self._finished:
            raise Refused("this transaction has ended", hint="begin a new one")


def _digest(data: bytes | Path) -> str:
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with data.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
