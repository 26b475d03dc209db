"""Bring the objects of files over from another store, under keys of this disk.

The keys are derived from a nonce that is kept in the local state before anything is copied. A restore that was killed
finds by one listing what it had copied, and copies nothing twice. Copies that no commit names are garbage for gc.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import remove_file, replace_file
from disks.stores.base import ObjectStore
from disks.workers.batches import cut
from disks.workers.object_copier import ObjectCopier, ObjectCopy, SourceDamaged, pieces
from disks.workers.parallel import in_parallel
from disks.workers.progress import Progress, Silent, Task
from disks.workers.runner import OpensStore, Remote, Runner
from oplog.documents import Document
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow
from oplog.revision import blob_prefix, derived_blob_key

RESUME_WITHIN = timedelta(hours=12)
"""Copies of an interrupted restore are used when they are younger: half of gc's usual guard interval."""
_STATE_NAME = "restore.json"
_LEAST_BATCH_BYTES = 32 * 1024 * 1024
_BATCH_BYTES = 256 * 1024 * 1024
_BATCH_OBJECTS = 500
_BYTES_EACH = 64 * 1024
_PIECES = 64
_THREADS_ELSEWHERE = 8


class SourceChanged(NotFound):
    """An object that the plan needs is gone from the source: its log has moved on."""


class CopyAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What an interrupted restore needs to go on."""

    source: str
    epoch: str
    """Names the restore in all of its commits."""
    nonce: str
    number: int
    """The revision that the copies are uploaded for."""
    started: datetime

    def key(self, blobs: Sequence[tuple[str, int]]) -> str:
        """Where the bytes of these objects go."""
        return derived_blob_key(self.number, "\n".join([self.nonce, self.source, *(key for key, _ in blobs)]).encode())


_document = Document("restore.json", CopyAttempt)


class CopiedObject(msgspec.Struct, frozen=True):
    """One object of the target."""

    key: str
    sha256: str


CopiedBlobs = dict[tuple[tuple[str, int], ...], CopiedObject]
"""By the objects in the source: where their bytes are now."""


def begin_copy_journal(disk: LoggedDisk, source: str, *, fresh: bool = False) -> tuple[CopyAttempt, bool]:
    """The attempt to go on with, and whether it had begun before. `fresh` takes new keys for it."""
    path = disk.state_path / _STATE_NAME
    now = datetime.now(UTC)
    before = _read(path)
    same = before is not None and before.source == source
    if before is not None and same and not fresh and now - before.started < RESUME_WITHIN:
        return before, True
    attempt = CopyAttempt(
        source=source,
        epoch=before.epoch if before is not None and same else secrets.token_hex(8),
        nonce=secrets.token_hex(16),
        number=disk.revision + 1,
        started=now,
    )
    replace_file(path, _document.encode(attempt))
    return attempt, False


def _read(path: Path) -> CopyAttempt | None:
    try:
        return _document.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None  # nothing is lost but the copies of an interrupted run


def end(disk: LoggedDisk) -> None:
    """Forget the attempt: its files are committed."""
    remove_file(disk.state_path / _STATE_NAME, missing_ok=True)


def digest_of(source: ObjectStore, row: FileRow) -> str:
    """SHA-256 (hex) of the file as it lies in the source, read piece by piece. Raises `SourceChanged`."""
    digest = hashlib.sha256()
    try:
        for data in pieces(source, row.blobs):
            digest.update(data)
    except NotFound as error:
        raise SourceChanged(f"{source.name}: an object of {row.path} is gone: {error.message}") from error
    return digest.hexdigest()


class RemoteCopying(msgspec.Struct, frozen=True):
    """Copies that others make: who runs them, and how they reach the two buckets."""

    runner: Runner
    target: OpensStore
    source: OpensStore

    @property
    def reading(self) -> Remote:
        """Work on the source alone."""
        return Remote(self.runner, self.source)


class BlobCopier:
    """Copies for one attempt. `bring` gives every row's object in the target."""

    def __init__(
        self,
        disk: LoggedDisk,
        source: ObjectStore,
        attempt: CopyAttempt,
        *,
        resumed: bool,
        workers: int,
        progress: Progress,
        elsewhere: RemoteCopying | None = None,
    ) -> None:
        self._store, self._attempt = disk.store, attempt
        self._workers, self._progress, self._elsewhere = workers, progress, elsewhere
        there = self._listed() if resumed else {}
        self._copying = Copying(disk.store, source, attempt, there, disk.state_path / "scratch")

    @property
    def inside_store(self) -> bool | None:
        """Whether the store makes the copies itself; None as long as nothing was copied."""
        return self._copying.copier.inside_store

    @property
    def done(self) -> int:
        """How many objects were copied; those that were there already are not."""
        return self._copying.done

    def bring(self, rows: Sequence[FileRow]) -> CopiedBlobs:
        """Copy what is not there yet; the result by the source's objects. Raises `SourceChanged`, `Damaged`."""
        wanted = list({row.blobs: row for row in rows}.values())
        size_bytes = sum(row.size_bytes for row in wanted)
        with self._progress.task("copying objects", items=len(wanted), size_bytes=size_bytes) as task:
            if self._elsewhere is None:
                copied = self._copying.bring(wanted, self._workers, task)
            else:
                copied = self._sent(self._elsewhere, wanted, task)
        if self.inside_store:
            self._check(wanted)
        return copied

    def _sent(self, elsewhere: RemoteCopying, files: Sequence[FileRow], task: Task) -> CopiedBlobs:
        def batch(rows: list[FileRow]) -> CopyBatch:
            keys = [self._attempt.key(row.blobs) for row in rows] if self._copying.there else []
            there = {key: self._copying.there[key] for key in keys if key in self._copying.there}
            return CopyBatch(elsewhere.target, elsewhere.source, self._attempt, there, rows)

        most = max(_LEAST_BATCH_BYTES, min(_BATCH_BYTES, sum(map(_work, files)) // _PIECES))
        batches = [batch(rows) for rows in cut(files, _work, most=most, most_items=_BATCH_OBJECTS)]
        copied: CopiedBlobs = {}
        copier = self._copying.copier

        def keep(index: int, result: BatchCopied) -> None:
            copied.update(result.copied)
            self._copying.done += result.done
            if result.inside_store is not None:
                copier.inside_store = result.inside_store and copier.inside_store is not False
            rows = batches[index].rows
            task.advance(items=len(rows), size_bytes=sum(row.size_bytes for row in rows))

        title = f"copying objects to {self._store.name}"
        elsewhere.runner.run(copy_batch, batches, title=title, on_done=keep)
        return copied

    def _check(self, rows: Sequence[FileRow]) -> None:
        """A store may answer 200 and copy nothing: the listing proves every copy."""
        there = self._listed()
        for row in rows:
            key = self._attempt.key(row.blobs)
            if there.get(key) != row.size_bytes:
                raise Damaged(
                    f"{self._store.name}{key}, the copy of {row.path}, has {there.get(key, 'no')} bytes instead "
                    f"of {row.size_bytes}",
                    hint="run the command again",
                )

    def _listed(self) -> dict[str, int]:
        prefix = blob_prefix(self._attempt.number)
        return {item.key: item.size_bytes for item in self._store.list(prefix)}


def _work(row: FileRow) -> int:
    return row.size_bytes + _BYTES_EACH


class CopyBatch(msgspec.Struct, frozen=True):
    """Objects to copy: a piece of work for another process. Done twice, it makes the same objects."""

    target: OpensStore
    source: OpensStore
    attempt: CopyAttempt
    there: Mapping[str, int]
    rows: Sequence[FileRow]


class BatchCopied(msgspec.Struct, frozen=True):
    """What became of a batch."""

    copied: CopiedBlobs
    done: int
    inside_store: bool | None


def copy_batch(batch: CopyBatch) -> BatchCopied:
    """Copy the objects of the batch. Raises `SourceChanged`, `Damaged`."""
    with tempfile.TemporaryDirectory(prefix="frostline-") as scratch:
        copying = Copying(batch.target.open(), batch.source.open(), batch.attempt, batch.there, Path(scratch))
        copied = copying.bring(batch.rows, _THREADS_ELSEWHERE, Silent())
    return BatchCopied(copied, copying.done, copying.copier.inside_store)


class Copying:
    """Copies objects to keys that the attempt gives them, from threads of this process."""

    def __init__(
        self,
        target: ObjectStore,
        source: ObjectStore,
        attempt: CopyAttempt,
        there: Mapping[str, int],
        scratch: Path,
    ) -> None:
        """`there`: the copies of an earlier run, with their sizes. `scratch` takes objects on their way through."""
        self._target, self._source, self._attempt = target, source, attempt
        self._lock = threading.Lock()
        self.copier = ObjectCopier(target, source, scratch)
        self.there = there
        self.done = 0

    def bring(self, rows: Sequence[FileRow], workers: int, task: Task) -> CopiedBlobs:
        """Copy what is not there yet. Raises the first error."""
        copied: CopiedBlobs = {}

        def copy(number: int) -> None:
            row = rows[number]
            result = self._bring(row)
            with self._lock:
                copied[row.blobs] = result
            task.advance(items=1, size_bytes=row.size_bytes)

        in_parallel(copy, len(rows), workers)
        return copied

    def _bring(self, row: FileRow) -> CopiedObject:
        key = self._attempt.key(row.blobs)
        if self.there.get(key) == row.size_bytes:
            if row.sha256:
                return CopiedObject(key, row.sha256)
            sha256 = self._target.head(key).metadata.get("sha256", "")
            if digest_of(self._source, row) == sha256:  # a source without digests may also write to its objects again
                return CopiedObject(key, sha256)
            key = self._attempt.key((*row.blobs, (sha256, 0)))
        wanted = ObjectCopy(row.blobs, key, row.sha256, {"path": quote(row.path, safe="/=+,@ ")})
        try:
            sha256 = self.copier.copy(wanted)
        except NotFound as error:
            raise SourceChanged(
                f"{self._source.name}: an object of {row.path} is gone: {error.message}", hint=error.hint
            ) from error
        except SourceDamaged as error:
            raise Damaged(
                f"{self._source.name}: {row.path} is damaged: {error.message}",
                hint="restore an older revision, or the tables that are whole (--table)",
            ) from error
        with self._lock:
            self.done += 1
        return CopiedObject(key, sha256)
