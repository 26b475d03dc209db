"""Reads files of a backup: from blobs, packs, and the buckets that it pins. Every byte is compared with its digest,
here or by the transaction that takes it."""

from __future__ import annotations

import hashlib
import stat
import threading
from collections import OrderedDict
from pathlib import Path

from backup.completeness import object_key
from backup.format import names, packs
from backup.format.header import BackupHeader, PinnedDisk
from backup.format.lists import FileEntry, FileList, InBlob, InBucket, InPack
from backup.format.names import Ref
from backup.objects import read_twice
from backup.storage import Storage
from backup.verify.buckets import PinnedBuckets
from disks.effects import op
from disks.stores.base import ByteRange, ObjectStore
from oplog.errors import Damaged, NotFound

_PIECE_BYTES = 16 * 1024 * 1024
_KEPT_PACKS = 8


class BackupReader:
    """Reads files of backups of one repository. Thread-safe; keeps the last few packs."""

    def __init__(self, storage: Storage, buckets: PinnedBuckets) -> None:
        self._storage = storage
        self._buckets = buckets
        self._packs: OrderedDict[Ref, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def bucket_of(self, header: BackupHeader, file: FileEntry) -> ObjectStore | None:
        """The bucket that a file stayed in; None for one in the repository. Raises `NotFound`."""
        if not isinstance(file.at, InBucket):
            return None
        return self._buckets.opened(_pinned(header, file.at))

    def is_kept(self, header: BackupHeader, file: FileEntry) -> bool:
        """Whether the object of a file that stayed in its bucket is there, and kept by the backup's pin."""
        at = file.at
        return isinstance(at, InBucket) and self._buckets.keeps(_pinned(header, at), at.key, file.size_bytes)

    def read(self, header: BackupHeader, partition: FileList, file: FileEntry) -> bytes:
        """The whole file. Raises `Damaged` when its bytes are not what was written."""
        if isinstance(file.at, InPack):
            data = self._from_pack(partition, file, file.at)
        else:
            store, key = self._object(header, partition, file)
            data = read_twice(store, key, file.size_bytes, file.sha256)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise damaged(self._storage, partition, file)
        return data

    def path_of(self, file: FileEntry) -> Path | None:
        """Where the file lies in a repository that is a directory of this machine. Raises `NotFound` or `Damaged` for
        what cannot be it."""
        if not isinstance(file.at, InBlob):
            return None
        url = self._storage.store.url(names.content_key(names.BLOBS_PREFIX, file.sha256, file.at.nonce))
        if not url.startswith("file://"):
            return None
        path = Path(url.removeprefix("file://"))
        try:
            found = path.lstat()
        except FileNotFoundError as error:
            raise NotFound(
                f"{path}, which holds {file.name}, is gone from the repository",
                hint="'frostline backup verify --all' names what else is, and which backups are whole",
            ) from error
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.size_bytes:
            raise _changed(str(path), file)
        return path

    def download(self, header: BackupHeader, partition: FileList, file: FileEntry, path: Path) -> None:
        """Write a large file to a path; the caller compares the digest."""
        store, key = self._object(header, partition, file)
        with op("fs.write", path), path.open("xb") as output:
            for start in range(0, file.size_bytes, _PIECE_BYTES):
                output.write(store.get(key, ByteRange(start, min(start + _PIECE_BYTES, file.size_bytes))))

    def _object(self, header: BackupHeader, partition: FileList, file: FileEntry) -> tuple[ObjectStore, str]:
        return self.bucket_of(header, file) or self._storage.store, object_key(partition, file)

    def _from_pack(self, partition: FileList, file: FileEntry, at: InPack) -> bytes:
        ref = partition.packs[at.pack]
        data = self._pack(ref)
        stored = data[at.offset : at.offset + at.length]
        where = f"{self._storage.name}{object_key(partition, file)}"
        return packs.content(stored, compressed=at.compressed, size_bytes=file.size_bytes, where=where)

    def _pack(self, ref: Ref) -> bytes:
        with self._lock:
            if (known := self._packs.get(ref)) is not None:
                self._packs.move_to_end(ref)
                return known
        data = self._storage.get_content(names.PACKS_PREFIX, ref)
        with self._lock:
            self._packs[ref] = data
            while len(self._packs) > _KEPT_PACKS:
                self._packs.popitem(last=False)
        return data


def _pinned(header: BackupHeader, at: InBucket) -> PinnedDisk:
    pinned = next((pinned for pinned in header.pinned if pinned.disk == at.disk), None)
    if pinned is None:
        raise NotFound(f"backup {header.name} names no bucket of disk {at.disk}", hint="verify it; use another one")
    return pinned


def damaged(storage: Storage, partition: FileList, file: FileEntry) -> Damaged:
    """The error of a file whose bytes are not what was written."""
    return _changed(f"{storage.name}{object_key(partition, file)}", file)


def _changed(where: str, file: FileEntry) -> Damaged:
    return Damaged(
        f"{where}, which holds {file.name}, is not what was written",
        hint="'frostline backup verify --all --read-data' names what else is, and which backups are whole",
    )
