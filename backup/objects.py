"""Objects of a repository as a listing shows them, and how one is read and put: bounded, and never over another."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from backup.format import encoding, names
from backup.format.names import Ref
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore
from oplog.errors import AlreadyExists, Damaged, OutcomeUnknown


class StoredObject(msgspec.Struct, frozen=True):
    """An object that a listing showed."""

    size_bytes: int
    modified: datetime


class Holdings(msgspec.Struct):
    """What a listing of the repository showed, by key."""

    objects: dict[str, StoredObject] = msgspec.field(default_factory=dict)
    damaged: set[str] = msgspec.field(default_factory=set)
    """What a verification found changed; left out of the objects."""
    to_delete: set[str] = msgspec.field(default_factory=set)
    """What a collection is about to delete; left out where it was asked for."""

    def has(self, prefix: str, ref: Ref) -> bool:
        """Whether the object is there with its size."""
        found = self.objects.get(names.content_key(prefix, ref.sha256, ref.nonce))
        return found is not None and found.size_bytes == ref.size_bytes

    def size_of(self, key: str) -> int | None:
        found = self.objects.get(key)
        return None if found is None else found.size_bytes


def document(store: ObjectStore, info: ObjectInfo) -> bytes:
    """The bytes of a header, mark or record. Raises `Damaged` for one that nobody would write, before it is read."""
    if info.size_bytes > encoding.HEADER_LIMIT_BYTES:
        raise Damaged(f"{store.name}{info.key} has {info.size_bytes} bytes", hint=encoding.VERIFY)
    return store.get(info.key)


def read_twice(store: ObjectStore, key: str, size_bytes: int, sha256: str) -> bytes:
    """The first bytes of the object; when they have another digest, those of a second try: a bit may flip on the way.
    The caller compares it."""
    data = store.get(key, ByteRange(0, size_bytes))
    return data if hashlib.sha256(data).hexdigest() == sha256 else store.get(key, ByteRange(0, size_bytes))


def put_once(store: ObjectStore, key: str, data: bytes) -> None:
    """Put the object unless there is one. A lost answer is resolved by looking; other bytes are `AlreadyExists`."""
    try:
        store.put_if_absent(key, data, sha256=hashlib.sha256(data).digest())
    except (AlreadyExists, OutcomeUnknown):
        if store.get(key) != data:
            raise
