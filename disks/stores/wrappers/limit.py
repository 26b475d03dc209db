"""One limiter for all workers: bytes and requests per second, and a concurrency that gives way together on 503."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType

import msgspec
from msgspec.structs import replace

from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload, Upload
from disks.stores.payload import size_bytes
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import AlreadyExists, FrostlineError, NotFound, Throttled

_BURST_SECONDS = 0.25
"""How far a bucket may run ahead: short, so that the rate holds over any second."""


_ANSWERS = (AlreadyExists, NotFound, Throttled)
"""Errors of a call that did not fail for another reason than what was asked."""


class Answered(msgspec.Struct):
    """What became of calls of one kind. Those that throttle and those that fail otherwise took their time, too."""

    calls: int = 0
    seconds: float = 0.0
    failed: int = 0
    throttled: int = 0


class _Rate:
    """A token bucket that goes into debt: a large request passes at once, and those after it wait it out."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._free_at = now

    def wait_seconds(self, amount: float, now: float) -> float:
        wait = max(0.0, self._free_at - now)
        self._free_at = max(self._free_at, now - _BURST_SECONDS) + amount / self._per_second
        return wait


class Limiter:
    """Shared by every store and worker that must stay below the limits together. 0 or None means no limit.

    Concurrency starts at `max_concurrency`, halves when a store says `Throttled` (once for all requests that were
    already on their way) and grows by one after as many successes as it has slots. It never falls below one.
    """

    def __init__(
        self,
        bytes_per_second: float | None = None,
        requests_per_second: float | None = None,
        max_concurrency: int = 64,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._bytes = _Rate(bytes_per_second, clock()) if bytes_per_second else None
        self._requests = _Rate(requests_per_second, clock()) if requests_per_second else None
        self._max_concurrency = max(1, max_concurrency)
        self._allowed = float(self._max_concurrency)
        self._running = 0
        self._started = 0
        self._started_at_backoff = 0
        self._changed = threading.Condition()
        self._answered: dict[str, Answered] = {}

    def answered(self) -> dict[str, Answered]:
        """What became of the calls so far, by kind."""
        with self._changed:
            return {call: replace(found) for call, found in self._answered.items()}

    @property
    def concurrency(self) -> int:
        """How many requests may run at once now."""
        with self._changed:
            return int(self._allowed)

    @property
    def limits_bytes(self) -> bool:
        """Whether sizes matter; else a caller need not look for them."""
        return self._bytes is not None

    def slot(self, size_bytes: int = 0, *, call: str = "other") -> AbstractContextManager[None]:
        """Hold one request's place while it runs; waits until the limits allow it. `call`: what is counted."""
        return _Slot(self, call, size_bytes)

    def charge(self, received_bytes: int) -> None:
        """Account for bytes whose number was known only afterwards (a whole GET): later requests wait for them."""
        if self._bytes is not None and received_bytes:
            with self._changed:
                self._bytes.wait_seconds(received_bytes, self._clock())

    def pass_bytes(self, size_bytes: int) -> None:
        """Wait until so many bytes may go to or come from elsewhere than an object store."""
        if self._bytes is not None and size_bytes:
            with self._changed:
                wait = self._bytes.wait_seconds(size_bytes, self._clock())
            if wait > 0:
                self._sleep(wait)

    def _pace(self, size_bytes: int) -> None:
        if self._requests is None and self._bytes is None:
            return
        with self._changed:
            now = self._clock()
            wait = self._requests.wait_seconds(1, now) if self._requests is not None else 0.0
            if self._bytes is not None:
                wait = max(wait, self._bytes.wait_seconds(size_bytes, now))
        if wait > 0:
            self._sleep(wait)

    def _enter(self) -> int:
        """Wait for a place and take it; its ticket."""
        with self._changed:
            while self._running >= int(self._allowed):
                self._changed.wait()
            self._running += 1
            self._started += 1
            return self._started

    def _leave(self, ticket: int, error: BaseException | None, call: str, seconds: float | None) -> None:
        """Give the place back, and take from how the request ended how many may run at once. `seconds`: how long it
        took; None where it was not sent."""
        with self._changed:
            self._running -= 1
            if seconds is not None:
                found = self._answered.setdefault(call, Answered())
                found.calls += 1
                found.seconds += seconds
                found.failed += isinstance(error, FrostlineError) and not isinstance(error, _ANSWERS)
                found.throttled += isinstance(error, Throttled)
            if error is None:
                self._allowed = min(float(self._max_concurrency), self._allowed + 1 / self._allowed)
            elif isinstance(error, Throttled) and ticket > self._started_at_backoff:
                # One that was sent before the last reduction would say nothing about the new level.
                self._started_at_backoff = self._started
                self._allowed = max(1.0, self._allowed / 2)
            self._changed.notify(2)  # the place that is free, and the one that there may be more


class _Slot:
    """One request's place. A class because a generator costs three times as much, and requests are many."""

    __slots__ = ("_begun", "_call", "_limiter", "_size_bytes", "_ticket")

    def __init__(self, limiter: Limiter, call: str, size_bytes: int) -> None:
        self._limiter = limiter
        self._call = call
        self._size_bytes = size_bytes
        self._ticket = 0
        self._begun = 0.0

    def __enter__(self) -> None:
        self._ticket = self._limiter._enter()
        try:
            self._limiter._pace(self._size_bytes)
        except BaseException as error:
            self._limiter._leave(self._ticket, error, self._call, None)
            raise
        self._begun = self._limiter._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limiter._leave(self._ticket, error, self._call, self._limiter._clock() - self._begun)


class LimitedStore(WrappedStore):
    """Each call takes a slot of the limiter. Below the retry layer, so that every attempt counts."""

    def __init__(self, inner: ObjectStore, limiter: Limiter) -> None:
        super().__init__(inner)
        self._limiter = limiter

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        with self._limiter.slot(size_bytes(payload) if self._limiter.limits_bytes else 0, call="put"):
            self.inner.put(key, payload, sha256=sha256, metadata=metadata)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        with self._limiter.slot(len(payload), call="put"):
            self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        with self._limiter.slot(byte_range.size_bytes if byte_range else 0, call="get"):
            data = self.inner.get(key, byte_range)
        if byte_range is None:
            self._limiter.charge(len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        with self._limiter.slot(call="head"):
            return self.inner.head(key)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        with self._limiter.slot(call="get"):
            data, info = self.inner.get_with_info(key)
        self._limiter.charge(len(data))
        return data, info

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Fetching the first page holds a slot; a slot is never held while the caller works on what it got."""
        with self._limiter.slot(call="list"):
            items = self.inner.list(prefix, start_after=start_after)
            first = next(items, None)
        if first is not None:
            yield first
            yield from items

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        with self._limiter.slot(call="delete"):
            return self.inner.delete(keys)

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        with self._limiter.slot(call="copy"):
            self.inner.copy(source_key, target_key, source=source)

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        with self._limiter.slot(call="list"):
            return iter(tuple(self.inner.list_uploads(prefix)))

    def abort_upload(self, upload: Upload) -> None:
        with self._limiter.slot(call="delete"):
            self.inner.abort_upload(upload)
