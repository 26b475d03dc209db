"""The one retry layer: exponential backoff with full jitter, for `Transient` and `Throttled`; expired credentials are
renewed once. Nothing else is tried again."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TypeVar

import msgspec

from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload, StoreCapabilities, Upload
from disks.stores.bucket_settings import BucketSettings, OldVersion
from disks.stores.checks import Truncated, Unreachable, Untrusted
from disks.stores.time_budget import time_budget_seconds
from disks.stores.wrappers.wrapped import WrappedStore
from oplog.errors import AlreadyExists, CredentialsExpired, Damaged, FrostlineError, OutcomeUnknown, Transient

_Answer = TypeVar("_Answer")


_log = logging.getLogger(__name__)
_READ_BYTES = 16 * 1024 * 1024
_NOTE_AFTER_SECONDS = 5.0
_NOTE_EVERY_SECONDS = 30.0
_TRUNCATED_ATTEMPTS = 6
"""A body that is cut short again and again is damage, not bad luck; each try may be a large download."""


class Backoff(msgspec.Struct, frozen=True):
    """How often and how long to try: at most `attempts` tries, which begin within `total_seconds` after the first
    failure. A server that takes no connection is given a quarter of that time."""

    attempts: int = 100
    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    most_asked_seconds: float = 30.0
    """The longest pause that a server's `Retry-After` may ask for; after a longer one it is tried at this time."""
    total_seconds: float = 60.0

    def pause_seconds(self, failures: int, chance: float) -> float:
        """Full jitter: anything between nothing and the doubled bound, so that workers do not come back together."""
        return chance * min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))

    def pause_after(self, error: Transient, failures: int, chance: float) -> float:
        """As `pause_seconds`, after the pause that the server asked for."""
        return min(error.retry_after_seconds, self.most_asked_seconds) + self.pause_seconds(failures, chance)

    def budget_seconds(self, error: Transient) -> float:
        """How long to go on after a failure of this kind."""
        usual = self.total_seconds / 4 if isinstance(error, Unreachable) else self.total_seconds
        return min(usual, time_budget_seconds())

    def most_attempts(self, error: Transient) -> int:
        """How many tries a failure of this kind is worth."""
        if isinstance(error, Untrusted):
            return 1
        return min(self.attempts, _TRUNCATED_ATTEMPTS) if isinstance(error, Truncated) else self.attempts


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
        self._next_note = 0.0

    def _repeat(self, call: Callable[[], _Answer]) -> _Answer:
        failures, renewed = 0, False
        first_failure = self._clock()
        while True:
            try:
                return call()
            except CredentialsExpired:
                if renewed or not self.inner.renew_credentials():
                    raise
                renewed = True
            except Transient as error:
                failures += 1
                first_failure = self._clock() if failures == 1 else first_failure
                pause = self._backoff.pause_after(error, failures, self._chance())
                left = first_failure + self._backoff.budget_seconds(error) - self._clock()
                if failures >= self._backoff.most_attempts(error) or pause > left:
                    raise
                self._note(error, self._clock() - first_failure, left)
                self._sleep(pause)

    def _note(self, error: Transient, waited_seconds: float, left_seconds: float) -> None:
        """Say that it waits, once it has waited long; one of many workers speaks for all."""
        now = self._clock()
        if waited_seconds >= _NOTE_AFTER_SECONDS and now >= self._next_note:
            self._next_note = now + _NOTE_EVERY_SECONDS
            _log.warning("%s; tried for %.0f s, giving up in %.0f s", error.message, waited_seconds, left_seconds)

    @property
    def capabilities(self) -> StoreCapabilities:
        return self._repeat(lambda: self.inner.capabilities)

    def put(self, key: str, payload: Payload, *, sha256: bytes, metadata: Mapping[str, str] | None = None) -> None:
        attempts = 0

        def attempt() -> None:
            nonlocal attempts
            attempts += 1
            self.inner.put(key, payload, sha256=sha256, metadata=metadata)

        try:
            self._repeat(attempt)
        except AlreadyExists:
            # A store that refuses every overwrite: an attempt of ours whose answer was lost may have taken effect.
            if attempts == 1 or not self._holds(key, sha256):
                raise

    def _holds(self, key: str, sha256: bytes) -> bool:
        size_bytes, digest = self.head(key).size_bytes, hashlib.sha256()
        for start in range(0, size_bytes, _READ_BYTES):
            digest.update(self.get(key, ByteRange(start, min(start + _READ_BYTES, size_bytes))))
        return digest.digest() == sha256

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
        return self._whole(lambda: self.inner.get(key, byte_range))

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._whole(lambda: self.inner.get_with_info(key))

    def _whole(self, read: Callable[[], _Answer]) -> _Answer:
        try:
            return self._repeat(read)
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

    def clock_skew(self) -> timedelta | None:
        return self._repeat(self.inner.clock_skew)

    def bucket_settings(self) -> BucketSettings | None:
        return self._repeat(self.inner.bucket_settings)

    def old_versions(self, prefix: str = "") -> Iterator[OldVersion]:
        return iter(self._repeat(lambda: tuple(self.inner.old_versions(prefix))))
