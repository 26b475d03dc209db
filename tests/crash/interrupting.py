"""A race: what one process does is interrupted by what another does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import FrostlineError


class Interrupted(WrappedStore):
    """Lets `intruder` in once, before the `at`-th request, or before the next at which this machine's other processes
    need not wait: a commit holds the file table over its requests."""

    def __init__(self, inner: ObjectStore, at: int, intruder: Callable[[], None], waiting: Callable[[], bool]) -> None:
        super().__init__(inner)
        self.requests = 0
        self._at = at
        self._intruder: Callable[[], None] | None = intruder
        self._waiting = waiting

    def _request(self) -> None:
        self.requests += 1
        if self.requests >= self._at and self._intruder is not None and not self._waiting():
            intruder, self._intruder = self._intruder, None
            intruder()

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self._request()
        super().put(key, payload, sha256=sha256, metadata=metadata)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self._request()
        super().put_if_absent(key, payload, sha256=sha256, metadata=metadata)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self._request()
        return super().get(key, byte_range)

    def head(self, key: str) -> ObjectInfo:
        self._request()
        return super().head(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._request()
        return super().list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        self._request()
        return super().delete(keys)


def interrupt(
    disk: ObjectDisk, at: int, intruder: Callable[[], None], waiting: Callable[[], bool] = lambda: False
) -> Interrupted:
    """Put the wrapper round what the disk and its log use."""
    store = Interrupted(disk.store, at, intruder, waiting)
    disk.store = store
    disk.log.store = store
    return store
