"""The one retry layer: exponential backoff with full jitter, for `Transient` and `Throttled` and for nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload, StoreCapabilities, Upload
from disks.stores.payload import Truncated
from disks.stores.wrapped import WrappedStore
from oplog.errors import AlreadyExists, Damaged, FrostlineError, OutcomeUnknown, Transient

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often and how long to try: at most `attempts` tries that begin within `total_seconds`."""

    attempts: int = 6
    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    total_seconds: float = 120.0

    def pause_seconds(self, failures: int, chance: float) -> float:
        """Full jitter: anything between nothing and the doubled bound, so that workers do not come back together."""
        return chance * min(self.longest_seconds, self.first_seconds * 2.0 ** (failures - 1))


class RetryingStore(WrappedStore):
    """Repeats a call that failed for a temporary reason; the last error is raised unchanged.

    A conditional put whose answer is lost (`OutcomeUnknown`) goes to the caller; so does `AlreadyExists` after a failed
    attempt, for what exists may be our own. A body that stays truncated is `Damaged`. Clock, pause and chance can be
    replaced in tests.
    """

    def __init__(
        self,
        inner: ObjectStore,
        backoff: Backoff | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(inner)
        self._backoff = backoff or Backoff()
        self._sleep, self._clock, self._chance = sleep, clock, chance

    def _repeat(self, call: Callable[[], _Answer]) -> _Answer:
        deadline = self._clock() + self._backoff.total_seconds
        failures = 0
        while True:
            try:
                return call()
            except Transient:
                failures += 1
                pause = self._backoff.pause_seconds(failures, self._chance())
                if failures >= self._backoff.attempts or self._clock() + pause > deadline:
                    raise
                self._sleep(pause)

    @property
    def capabilities(self) -> StoreCapabilities:
        return self._repeat(lambda: self.inner.capabilities)

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self._repeat(lambda: self.inner.put(key, payload, sha256=sha256, metadata=metadata))

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None:
        attempts = 0

        def attempt() -> None:
            nonlocal attempts
            attempts += 1
            self.inner.put_if_absent(key, payload, sha256=sha256, metadata=metadata)

        try:
            self._repeat(attempt)
        except AlreadyExists as error:
            if attempts == 1:
                raise
            raise OutcomeUnknown(f"{error.message}, after an attempt of ours that failed: it may be our own") from error

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        try:
            return self._repeat(lambda: self.inner.get(key, byte_range))
        except Truncated as error:
            raise Damaged(error.message, hint="the store keeps sending a shorter body than it announces") from error

    def head(self, key: str) -> ObjectInfo:
        return self._repeat(lambda: self.inner.head(key))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """A listing that breaks goes on after the last key it gave; each key it gives counts as a success."""
        while (begun := self._repeat_first(prefix, start_after)) is not None:
            info: ObjectInfo | None
            info, rest = begun
            try:
                while info is not None:
                    yield info
                    start_after = info.key
                    info = next(rest, None)
            except Transient:
                continue
            return

    def _repeat_first(self, prefix: str, start_after: str) -> tuple[ObjectInfo, Iterator[ObjectInfo]] | None:
        def begin() -> tuple[ObjectInfo, Iterator[ObjectInfo]] | None:
            items = self.inner.list(prefix, start_after=start_after)
            info = next(items, None)
            return None if info is None else (info, items)

        return self._repeat(begin)

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        """Only the keys whose own answer was temporary are sent again."""
        wanted = tuple(keys)
        answers: dict[str, FrostlineError | None] = {}

        def attempt() -> None:
            left = [key for key in wanted if key not in answers or isinstance(answers[key], Transient)]
            answers.update(self.inner.delete(left))
            for answer in answers.values():
                if isinstance(answer, Transient):
                    raise answer

        try:
            self._repeat(attempt)
        except Transient as error:
            for key in wanted:
                answers.setdefault(key, error)
        return answers

    def copy(self, source_key: str, target_key: str, *, source: ObjectStore | None = None) -> None:
        self._repeat(lambda: self.inner.copy(source_key, target_key, source=source))

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        return iter(self._repeat(lambda: tuple(self.inner.list_uploads(prefix))))

    def abort_upload(self, upload: Upload) -> None:
        self._repeat(lambda: self.inner.abort_upload(upload))
