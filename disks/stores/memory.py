"""A store in a dict: the executable specification of the contract, and the fastest store for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from disks.effects import op
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload, StoreCapabilities, check_key
from disks.stores.checks import check_digest_length, check_metadata, check_range, check_sha256
from disks.stores.payload import opened
from disks.stores.wrappers.wrapped import unwrapped
from oplog.bounds import check_received
from oplog.errors import AlreadyExists, FrostlineError, NotFound, Refused, Retained


class MemoryStore(ObjectStore):
    """Objects in a dict. `keep_for` makes it behave like Object Lock: no overwrite, no delete before that age."""

    def __init__(self, name: str = "memory", *, keep_for: timedelta | None = None) -> None:
        self.name = f"memory://{name}/"
        self._keep_for = keep_for
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(conditional_put=True, checks_sha256=True)

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        with opened(payload) as view:
            self._write(key, bytes(view), sha256, metadata, overwrite=self._keep_for is None)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self._write(key, bytes(payload), sha256, metadata, overwrite=False)

    def _write(
        self, key: str, data: bytes, sha256: bytes, metadata: Mapping[str, str] | None, *, overwrite: bool
    ) -> None:
        check_key(key)
        check_digest_length(sha256)
        checked = check_metadata(metadata)
        check_sha256(self.name, key, memoryview(data), sha256)
        with op("store.put", key), self._lock:
            if not overwrite and key in self._objects:
                raise AlreadyExists(f"{self.name}{key} exists already")
            self._objects[key] = (data, ObjectInfo(key, len(data), datetime.now(UTC), checked))

    def _find(self, key: str) -> tuple[bytes, ObjectInfo]:
        check_key(key)
        with self._lock:
            if key not in self._objects:
                raise NotFound(f"no object {self.name}{key}")
            return self._objects[key]

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        data, _ = self._find(key)
        if byte_range is None:
            check_received(len(data))
            return data
        check_range(self.name, key, byte_range, len(data))
        return data[byte_range.start : byte_range.stop]

    def head(self, key: str) -> ObjectInfo:
        return self._find(key)[1]

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            found = [info for key, (_, info) in self._objects.items() if key.startswith(prefix)]
        found.sort(key=lambda info: info.key.encode())
        for info in found:
            if info.key.encode() > start_after.encode():
                yield ObjectInfo(info.key, info.size_bytes, info.modified)

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        return {key: self._delete_one(check_key(key)) for key in keys}

    def _delete_one(self, key: str) -> FrostlineError | None:
        with op("store.delete", key), self._lock:
            if key not in self._objects:
                return None
            age = datetime.now(UTC) - self._objects[key][1].modified
            if self._keep_for is not None and age < self._keep_for:
                until = self._objects[key][1].modified + self._keep_for
                return Retained(
                    f"{self.name}{key} is kept until {until:%Y-%m-%d %H:%M}Z",
                    until=until,
                    hint="delete it when that is over",
                )
            del self._objects[key]
        return None

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        origin = unwrapped(source) if source is not None else self
        if not isinstance(origin, MemoryStore):
            raise Refused(
                f"cannot copy from {origin.name} to {self.name} inside one store", hint="copy through this machine"
            )
        check_key(target_key)
        data, info = origin._find(source_key)
        with op("store.copy", source_key, target_key), self._lock:
            if self._keep_for is not None and target_key in self._objects:
                raise AlreadyExists(f"{self.name}{target_key} exists already")
            self._objects[target_key] = (data, ObjectInfo(target_key, len(data), datetime.now(UTC), info.metadata))

    def url(self, key: str) -> str:
        return f"{self.name}{check_key(key)}"
