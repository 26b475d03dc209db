"""Counts requests and bytes: what a bill is made of."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload
from disks.stores.payload import size_bytes
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import FrostlineError

Verb = Literal["LIST", "GET", "HEAD", "PUT", "COPY", "DELETE"]
_VERBS: tuple[Verb, ...] = ("LIST", "GET", "HEAD", "PUT", "COPY", "DELETE")
PAGE_KEYS = 1000
"""Keys in one page of a listing, and in one batch delete."""


class Meter:
    """Thread-safe sums. A store that sends HTTP requests itself counts each of them here, retries included."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.bytes_sent = 0
        self.bytes_received = 0

    def add(self, verb: Verb, requests: int = 1, *, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self._counts[verb] += requests
            self.bytes_sent += sent
            self.bytes_received += received

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {verb: self._counts[verb] for verb in _VERBS}


class MeteredStore(WrappedStore):
    """Requests so far by verb, and bytes both ways.

    Below an S3 store `meter` is the store's own and holds every HTTP request (probes, retries and the requests of a
    multipart upload, which count as PUT). Other stores send none; for them a call counts as the requests S3 would need.
    """

    def __init__(self, inner: ObjectStore, *, meter: Meter | None = None) -> None:
        super().__init__(inner)
        self._meter = meter or Meter()
        self._counts_calls = meter is None

    def counts(self) -> dict[str, int]:
        """Requests since the store was opened, by verb: LIST GET HEAD PUT COPY DELETE."""
        return self._meter.counts()

    @property
    def bytes_sent(self) -> int:
        return self._meter.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._meter.bytes_received

    def _add(self, verb: Verb, requests: int = 1, *, sent: int = 0, received: int = 0) -> None:
        if self._counts_calls:
            self._meter.add(verb, requests, sent=sent, received=received)

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        if self._counts_calls:
            self._add("PUT", sent=size_bytes(payload))
        self.inner.put(key, payload, sha256=sha256, metadata=metadata)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        self._add("PUT", sent=len(payload))
        self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self._add("GET")
        data = self.inner.get(key, byte_range)
        self._add("GET", 0, received=len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        self._add("HEAD")
        return self.inner.head(key)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        self._add("GET")
        data, info = self.inner.get_with_info(key)
        self._add("GET", 0, received=len(data))
        return data, info

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._add("LIST")
        for number, info in enumerate(self.inner.list(prefix, start_after=start_after)):
            if number and number % PAGE_KEYS == 0:
                self._add("LIST")
            yield info

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        wanted = tuple(keys)
        self._add("DELETE", -(-len(wanted) // PAGE_KEYS))
        return self.inner.delete(wanted)

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        self._add("COPY")
        self.inner.copy(source_key, target_key, source=source)
