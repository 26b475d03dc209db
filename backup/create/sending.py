"""Sends what is new: small files in packs, others as objects of their own, each hashed as it goes.

What is sent must have the SHA-256 that `part.json` says, else the backup fails and names the part. Objects of a bucket
are copied inside the store where both are one; what a store copied by itself, the listing before the header proves.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backup.create.instant import BlobSource, SourceFile
from backup.create.known import Place, StoredBlob, StoredInPack
from backup.format import names, packs
from backup.storage import Storage
from disks.stores.base import ObjectStore
from disks.workers.object_copier import ObjectCopier, ObjectCopy
from disks.workers.parallel import in_parallel
from disks.workers.progress import Progress, Task
from oplog.errors import Damaged, NotFound
from tiering.catalog.catalog import StoredPart
from tiering.table.part import PART_FILE


class NewFile(msgspec.Struct, frozen=True):
    """A file that the repository lacks."""

    stored: StoredPart | None
    """None: a file that ClickHouse wrote."""
    file: SourceFile
    data: bytes | None = None
    """The bytes of a small file that is in hand."""
    label: str = ""
    """Of a file that ClickHouse wrote: where it is."""

    @property
    def where(self) -> str:
        if self.stored is None:
            return self.label
        return f"{self.stored.disk}:{self.stored.path(self.file.name)}"

    @property
    def content(self) -> tuple[str, int]:
        return self.file.sha256, self.file.size_bytes


class Sent(msgspec.Struct):
    """What was sent, and where each file is now."""

    places: dict[tuple[str, int], Place] = msgspec.field(default_factory=dict)
    new_bytes: int = 0
    copied_server_side: int = 0
    """Bytes that the store copied by itself."""


class Sender:
    """Sends the new files of one backup."""

    def __init__(self, storage: Storage, buckets: dict[str, ObjectStore], scratch: Path) -> None:
        """`buckets`: the stores of disks that files are copied from. `scratch` takes objects on their way through."""
        self._storage, self._store = storage, storage.store
        self._buckets = buckets
        self._scratch = scratch
        self._lock = threading.Lock()
        self._copiers: dict[str, ObjectCopier] = {}
        """By the disk that they copy from."""
        self.sent = Sent()

    def send(self, files: Sequence[NewFile], workers: int, progress: Progress) -> Sent:
        """Send them all. Raises the first error: `Damaged` names a part whose bytes are not what it says."""
        wanted = list({new.content: new for new in files}.values())
        small = [new for new in wanted if _is_packed(new)]
        large = [new for new in wanted if not _is_packed(new)]
        groups = packs.group([new.file.size_bytes for new in small])
        size_bytes = sum(new.file.size_bytes for new in wanted)
        with progress.task("sending to the repository", items=len(wanted), size_bytes=size_bytes) as task:

            def work(number: int) -> None:
                if number < len(large):
                    self._send_blob(large[number], task)
                else:
                    members = groups[number - len(large)]
                    self._send_pack([small[member] for member in members], task)

            in_parallel(work, len(large) + len(groups), workers)
        return self.sent

    def _send_pack(self, members: Sequence[NewFile], task: Task) -> None:
        data, entries = packs.build([self._small(new) for new in members])
        ref = self._storage.put_content(names.PACKS_PREFIX, data)
        with self._lock:
            self.sent.new_bytes += len(data)
            for new, entry in zip(members, entries, strict=True):
                self.sent.places[new.content] = StoredInPack(ref, entry.offset, entry.length, entry.compressed)
        task.advance(items=len(members), size_bytes=sum(new.file.size_bytes for new in members))

    def _small(self, new: NewFile) -> bytes:
        data = new.data if new.data is not None else _read(new)
        if len(data) != new.file.size_bytes or hashlib.sha256(data).hexdigest() != new.file.sha256:
            raise _damaged(new)
        return data

    def _send_blob(self, new: NewFile, task: Task) -> None:
        nonce = names.fresh_nonce()
        key = names.content_key(names.BLOBS_PREFIX, new.file.sha256, nonce)
        copied = False
        if new.data is not None:  # a part.json of many columns
            self._put(new, key, new.data)
        elif isinstance(new.file.source, BlobSource):
            copied = self._copied(new, new.file.source, key)
        else:
            assert isinstance(new.file.source, Path)
            _check_regular(new, new.file.source)
            self._put(new, key, new.file.source)
        with self._lock:
            self.sent.places[new.content] = StoredBlob(nonce)
            self.sent.new_bytes += new.file.size_bytes
            self.sent.copied_server_side += new.file.size_bytes if copied else 0
        task.advance(items=1, size_bytes=new.file.size_bytes)

    def _put(self, new: NewFile, key: str, payload: bytes | Path) -> None:
        try:
            self._store.put(key, payload, sha256=bytes.fromhex(new.file.sha256))
        except Damaged as error:  # the store names its key; what is wrong is the source
            raise _damaged(new) from error

    def _copied(self, new: NewFile, source: BlobSource, key: str) -> bool:
        """Copy the object; whether the store did it itself. A directory is copied by us in any case, so it is hashed on
        the way."""
        with self._lock:
            copier = self._copiers.get(source.disk)
            if copier is None:
                bucket = self._buckets[source.disk]
                one_store = self._store.s3_connection is not None and bucket.s3_connection is not None
                inside_store = None if one_store else False
                copier = ObjectCopier(self._store, bucket, self._scratch, inside_store=inside_store)
                self._copiers[source.disk] = copier
        try:
            copier.copy(ObjectCopy(((source.key, new.file.size_bytes),), key, new.file.sha256))
        except NotFound as error:
            raise _gone(new) from error
        except Damaged as error:
            raise _damaged(new) from error
        return copier.inside_store is True


def _is_packed(new: NewFile) -> bool:
    """Objects of a bucket stay objects: the store copies them without sending us a byte."""
    return new.file.size_bytes < packs.PACKED_FILE_BYTES and not isinstance(new.file.source, BlobSource)


def _read(new: NewFile) -> bytes:
    assert isinstance(new.file.source, Path)
    _check_regular(new, new.file.source)
    with new.file.source.open("rb") as file:
        return file.read(packs.PACKED_FILE_BYTES + 1)


def _check_regular(new: NewFile, path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError as error:
        raise NotFound(
            f"{new.where}: the second name that the backup reads it by is gone: {path}",
            hint="did a clock jump by weeks? run it again: what is there is not sent twice",
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{new.where} is not a regular file", hint="move it away and restore the part from a backup")
    if found.st_size != new.file.size_bytes:
        raise _damaged(new)


def _damaged(new: NewFile) -> Damaged:
    if new.stored is None:
        return Damaged(f"{new.label} changed while it was sent; the backup was not made", hint="run it again")
    table = new.stored.definition.full_name
    what = "its size or SHA-256 is not" if new.file.name != PART_FILE else "it is not"
    return Damaged(
        f"part {new.stored.facts.name} of {table} is damaged: {new.where}: {what} what part.json says; "
        "the backup was not made",
        hint="run 'frostline fsck --read-data'; restore the part from an earlier backup",
    )


def _gone(new: NewFile) -> NotFound:
    return NotFound(
        f"{new.where}: its object is gone from the bucket", hint="run 'frostline fsck'; if it is clean, run it again"
    )
