"""A bucket whose objects get older."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from disks.stores.base import ObjectInfo, ObjectStore, Payload
from disks.stores.wrappers.wrapped import WrappedStore

START = datetime(2026, 1, 1, tzinfo=UTC)


class Ageing(WrappedStore):
    """Dates objects by a clock that a test moves."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.now = START
        self.times: dict[str, datetime] = {}

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self.times[key] = self.now
        self.inner.put(key, payload, sha256=sha256, metadata=metadata)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)
        self.times[key] = self.now

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in self.inner.list(prefix, start_after=start_after):
            yield replace(info, modified=self.times[info.key])
