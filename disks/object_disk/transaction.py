"""A transaction of an object disk: blobs go up at once, the changes become visible by one log entry."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from disks.base import INLINE_LIMIT_BYTES, FileInfo, Transaction, check_path
from disks.host.locks import OwnedDirectory
from disks.host.moment import Moment
from disks.object_disk.basis import Basis
from disks.object_disk.blobs import put_blob
from disks.stores.base import ObjectStore
from oplog.entry import Commit, Create, Link, Operation, Remove, Rename, now
from oplog.errors import Conflict, Damaged, Refused
from oplog.kinds import CommitKind
from oplog.replay import FileRow

_REVISION_SECONDS = 0.5
"""How old the revision may be that a blob's key names: to read it for each of thousands of small files costs more than
it tells, and the network delays an upload as long."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a transaction needs of its disk."""

    store: ObjectStore
    scratch_directory: Path
    revision: Callable[[], int]
    commit: Callable[[Commit, Basis], int]
    shares: bool = False
    """Other logs may name the disk's blobs."""


class ObjectTransaction(Transaction):
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

    def create(
        self, path: str, data: bytes | Path, *, sha256: str | None = None, blob_set: str | None = None
    ) -> FileInfo:
        check_path(path)
        self._check_open()
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        if isinstance(data, Path) and size <= self.inline_limit_bytes and path.endswith(".json"):
            data = data.read_bytes()
            size = len(data)
        if sha256 is None or isinstance(data, bytes):
            actual = _digest(data)
            if sha256 is not None and actual != sha256.lower():
                raise Damaged(
                    f"{path}: the bytes have SHA-256 {actual}, expected {sha256}", hint="the source is damaged"
                )
            sha256 = actual
        small = size <= self.inline_limit_bytes and path.endswith(".json")
        inline = data if isinstance(data, bytes) and small else None
        key = None if inline is not None else self._upload(path, data, sha256)
        if key is not None and blob_set is None:
            blob_set = self._blob_set(path)
        with self._lock:
            self._operations.append(Create(path, size, sha256, key, inline, blob_set))
        return FileInfo(path, size, sha256, key, blob_set)

    def adopt(self, row: FileRow) -> None:
        """Stage a file whose blob the bucket holds already, or whose bytes ride in the row: nothing is uploaded.

        The caller has proved that the blob is there, and keeps gc away from it (a pin) until the commit. Raises
        `Refused` for a file in several objects, which the log has no words for.
        """
        if row.more:
            raise Refused(f"{row.path} lies in {1 + len(row.more)} objects", hint="upload it anew, as one object")
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
        self._basis().check_blob(operation)
        self._add(operation)

    def _blob_set(self, path: str) -> str | None:
        """The set of what this transaction uploads for the path's directory, which is a part; None where nobody shares.
        Its name is used once."""
        if not self._target.shares:
            return None
        with self._lock:
            return self._blob_sets.setdefault(path.rpartition("/")[0], secrets.token_hex(16))

    def _upload(self, path: str, data: bytes | Path, sha256: str) -> str:
        with self._lock:
            self._first_upload = self._first_upload or Moment()
        return self._put(path, data, sha256)

    def _put(self, path: str, data: bytes | Path, sha256: str) -> str:
        with self._lock:
            steady = time.monotonic()
            if steady - self._revision_read >= _REVISION_SECONDS:
                self._revision, self._revision_read = self._target.revision(), steady
            revision = self._revision
        return put_blob(self._target.store, path, data, sha256, revision=revision)

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
        revision = self._target.commit(draft, self._basis())
        self.abandon()
        return revision

    def abandon(self) -> None:
        self._finished = True
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _basis(self) -> Basis:
        blobs = [one for one in self._operations if isinstance(one, Create) and one.key is not None]
        made_from, within = self._made_from
        return Basis(self._target.store, self._kind.word, blobs, self._first_upload, self._began_at, made_from, within)

    def _add(self, operation: Operation) -> None:
        self._check_open()
        if isinstance(operation, Rename) and f"{operation.target}/".startswith(f"{operation.source}/"):
            raise Conflict(f"{operation.source} cannot become {operation.target}, which lies within it")
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
