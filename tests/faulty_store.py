"""A store that fails on purpose: what tests put below the retry layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import FrostlineError, Throttled

When = Literal["before", "after"]
Change = Callable[[bytes], bytes]


@dataclass(slots=True)
class Fault:
    """Hits calls of `verb` ("put", "put_if_absent", "get", … or "*") whose key starts with `key`, after `skip` of them.

    "before": the call has no effect. "after": it has, but the answer is `error`. `change` alters the bytes of a get,
    and those a put sends. `times` None means for ever.
    """

    verb: str
    error: FrostlineError | None = None
    when: When = "before"
    key: str = ""
    skip: int = 0
    times: int | None = 1
    change: Change | None = None

    def _hits(self, verb: str, key: str) -> bool:
        if self.verb not in ("*", verb) or not key.startswith(self.key):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


def truncated(data: bytes) -> bytes:
    """Half of the body, as from a connection that broke silently."""
    return data[: len(data) // 2]


def bit_flipped(data: bytes) -> bytes:
    """One bit is wrong in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data


def storm(times: int | None = 5, verb: str = "*") -> Fault:
    """503 SlowDown for the next calls."""
    return Fault(verb, Throttled("the store asks for fewer requests (503 SlowDown)"), times=times)


def lost_answer(error: FrostlineError, verb: str = "put_if_absent", key: str = "") -> Fault:
    """The request takes effect, the answer never arrives."""
    return Fault(verb, error, when="after", key=key)


def change_payload(payload: Payload, change: Change) -> Payload:
    """The payload as it was, unless the change makes other bytes of it."""
    if isinstance(payload, Path) and not payload.exists():
        return payload
    data = payload.read_bytes() if isinstance(payload, Path) else bytes(payload)
    changed = change(data)
    return payload if changed == data else changed


class FaultyStore(WrappedStore):
    """Applies the faults in `faults` to the calls that pass; without any it is the inner store."""

    def __init__(self, inner: ObjectStore, faults: Iterable[Fault] = ()) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        self.injected = 0
        self._lock = threading.Lock()

    @contextmanager
    def _faults(self, verb: str, key: str) -> Iterator[Change]:
        with self._lock:
            hit = [fault for fault in self.faults if fault._hits(verb, key)]
            self.injected += len(hit)
        for fault in hit:
            if fault.error is not None and fault.when == "before":
                raise fault.error

        def change(data: bytes) -> bytes:
            for fault in hit:
                data = fault.change(data) if fault.change else data
            return data

        yield change
        for fault in hit:
            if fault.error is not None and fault.when == "after":
                raise fault.error

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        with self._faults("put", key) as change:
            self.inner.put(key, change_payload(payload, change), sha256=sha256, metadata=metadata)

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        with self._faults("put_if_absent", key) as change:
            self.inner.put_if_absent(key, change(payload), sha256=sha256, metadata=metadata)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        with self._faults("get", key) as change:
            return change(self.inner.get(key, byte_range))

    def head(self, key: str) -> ObjectInfo:
        with self._faults("head", key):
            return self.inner.head(key)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """One request: faults of "get" hit it."""
        with self._faults("get", key) as change:
            data, info = self.inner.get_with_info(key)
            return change(data), info

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """A fault with `skip` n strikes before the n-th object of a listing as well as on its first request."""
        with self._faults("list", prefix):
            items = self.inner.list(prefix, start_after=start_after)
        for info in items:
            with self._faults("list_item", info.key):
                yield info

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        """A fault of "delete" hits the request; one of "delete_key" is the answer for that key, which stays."""
        wanted = tuple(keys)
        refused: dict[str, FrostlineError | None] = {}
        for key in wanted:
            try:
                with self._faults("delete_key", key):
                    pass
            except FrostlineError as error:
                refused[key] = error
        with self._faults("delete", wanted[0] if wanted else ""):
            return self.inner.delete(key for key in wanted if key not in refused) | refused

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        with self._faults("copy", source_key):
            self.inner.copy(source_key, target_key, source=source)
