"""Copies the bytes of a file from one store to a key of another: inside the store where both are one, else streamed.

Who calls says where they go and finds out what is there already; a store may answer 200 and copy nothing, so who calls
also looks, by one listing at the end, whether each copy is there with its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from disks.effects import op
from disks.host.locks import OwnedDirectory
from disks.stores.base import ByteRange, ObjectStore
from oplog.errors import AccessDenied, AlreadyExists, Damaged, Refused

_IN_MEMORY_BYTES = 16 * 1024 * 1024

Blobs = tuple[tuple[str, int], ...]
"""The objects of a file with their sizes in bytes, in the order of the file."""


class ObjectCopy(msgspec.Struct, frozen=True):
    """One object to make."""

    blobs: Blobs
    """What it is made of, in the source."""
    key: str
    """Where it goes."""
    sha256: str = ""
    """Hex digest of the file; empty when nobody knows it."""
    metadata: Mapping[str, str] | None = None
    """Kept, with the digest, beside an object that comes through here. One that the store copies keeps what its source
    has. None: nothing is."""

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return sum(size_bytes for _, size_bytes in self.blobs)


class SourceDamaged(Damaged):
    """What was read from the source is not what it should be."""


class ObjectCopier:
    """Copies from one store to another. Used from several threads."""

    def __init__(
        self, target: ObjectStore, source: ObjectStore, scratch: Path, *, inside_store: bool | None = None
    ) -> None:
        """`scratch` takes large objects on their way through. `inside_store` False: all come through, hashed."""
        self._target, self._source, self._scratch = target, source, scratch
        self.inside_store = inside_store
        """Whether the store makes the copies itself; None as long as nothing was copied."""

    def copy(self, object_copy: ObjectCopy) -> str:
        """Make the object; its SHA-256 (hex). An object that an earlier try has made stays. Raises `NotFound` when one
        is gone from the source, and `SourceDamaged` when its bytes are not those of the digest."""
        if (
            object_copy.sha256
            and len(object_copy.blobs) == 1
            and self.inside_store is not False
            and self._inside(object_copy)
        ):
            return object_copy.sha256
        return self._stream(object_copy)

    def _inside(self, object_copy: ObjectCopy) -> bool:
        """Whether the store made the copy itself. One that cannot, or may not, is not asked again."""
        try:
            self._target.copy(object_copy.blobs[0][0], object_copy.key, source=self._source)
        except AlreadyExists:  # made by an earlier try of this work: the key is nobody else's
            pass
        except (Refused, AccessDenied):
            if self.inside_store:
                raise
            self.inside_store = False
            return False
        self.inside_store = True
        return True

    def _stream(self, object_copy: ObjectCopy) -> str:
        self.inside_store = False if self.inside_store is None else self.inside_store
        if object_copy.size_bytes <= _IN_MEMORY_BYTES:
            data = b"".join(self._whole(key, size_bytes) for key, size_bytes in object_copy.blobs)
            return self._put(object_copy, data, hashlib.sha256(data).digest())
        directory = OwnedDirectory(self._scratch)
        try:
            path = directory.path / "object"
            return self._put(object_copy, path, self._download(object_copy, path))
        finally:
            directory.remove()

    def _whole(self, key: str, size_bytes: int) -> bytes:
        data = self._source.get(key)
        if len(data) != size_bytes:
            raise SourceDamaged(f"object {key} has {len(data)} bytes instead of {size_bytes}")
        return data

    def _download(self, object_copy: ObjectCopy, path: Path) -> bytes:
        digest = hashlib.sha256()
        with op("fs.write", path), path.open("xb") as file:
            for data in pieces(self._source, object_copy.blobs):
                digest.update(data)
                file.write(data)
        return digest.digest()

    def _put(self, object_copy: ObjectCopy, payload: bytes | Path, digest: bytes) -> str:
        sha256 = digest.hex()
        if object_copy.sha256 and sha256 != object_copy.sha256:
            raise SourceDamaged(f"its bytes have SHA-256 {sha256} instead of {object_copy.sha256}")
        metadata = None if object_copy.metadata is None else {**object_copy.metadata, "sha256": sha256}
        try:
            self._target.put(object_copy.key, payload, sha256=digest, metadata=metadata)
        except AlreadyExists:
            if metadata is None or self._target.head(object_copy.key).metadata.get("sha256") != sha256:
                raise
        return sha256


def pieces(source: ObjectStore, blobs: Blobs) -> Iterator[bytes]:
    """The bytes of these objects, one after the other, a few MiB at a time."""
    for key, size_bytes in blobs:
        for start in range(0, size_bytes, _IN_MEMORY_BYTES):
            yield source.get(key, ByteRange(start, min(start + _IN_MEMORY_BYTES, size_bytes)))
