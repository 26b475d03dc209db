"""Every store as one that can only be written once: what `make test-worm` runs the suite on. Guards P56.

With `FROSTLINE_TEST_WORM` set, the three stores at the bottom (memory, directory, S3) refuse what write-once storage
refuses, below every wrapper: putting or copying onto a key that exists, and deleting an object before its retention of
`KEEP` is over. A collection is run by tests with a clock of its own (days later); the retention goes by that clock, so
what a collection may delete at its time, it can. What a test does to a store itself stands for the world outside
(damage, another tool) and is not refused. Child processes that import `tests` are write-once too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import wraps
from typing import Any

from backup import repository
from backup.retention import collect as repository_garbage
from disks.garbage import clickhouse as clickhouse_garbage
from disks.garbage import collect as garbage
from disks.stores.base import ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.s3.store import S3Store
from oplog.errors import AlreadyExists, FrostlineError, NotFound, Retained

VARIABLE = "FROSTLINE_TEST_WORM"
KEEP = timedelta(minutes=50)
"""Shorter than the floor of gc's guard interval, so a collection never meets a lock unless a test wants it to."""

ACTIVE = bool(os.environ.get(VARIABLE))
refused: list[str] = []
"""What was refused in this process, so that a test can prove that the switch works."""
_ahead = threading.local()


def install() -> None:
    """Replace put, copy and delete of the stores; once a process."""
    for kind in (MemoryStore, DirectoryStore, S3Store):
        kind.put = _write_once(kind.put, key_at=0)  # type: ignore[method-assign]
        kind.copy = _write_once(kind.copy, key_at=1)  # type: ignore[method-assign]
        kind.delete = _kept(kind.delete)  # type: ignore[method-assign]
    garbage._Collection.run = _at_its_time(garbage._Collection.run, lambda self: self._now)  # type: ignore[method-assign]
    clickhouse = _at_its_time(clickhouse_garbage.collect_clickhouse, lambda disk, rules, now, report: now)
    for module in (clickhouse_garbage, garbage):
        if hasattr(module, "collect_clickhouse"):
            module.collect_clickhouse = clickhouse
    repository_garbage._Collection.run = _at_its_time(  # type: ignore[method-assign]
        repository_garbage._Collection.run, lambda self: self._now
    )
    repository.prune = _at_its_time(
        repository.prune, lambda storage, request, release, now=None: now or datetime.now(UTC)
    )


def _write_once(original: Callable[..., None], *, key_at: int) -> Callable[..., None]:
    @wraps(original)
    def write(self: ObjectStore, *arguments: Any, **options: Any) -> None:
        key = arguments[key_at]
        if not _by_a_test() and _modified(self, key) is not None:
            refused.append(key)
            raise AlreadyExists(f"{self.name}{key} exists already, and this store overwrites nothing")
        original(self, *arguments, **options)

    return write


def _kept(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def delete(self: ObjectStore, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        wanted = tuple(keys)
        if _by_a_test():
            return original(self, wanted)  # type: ignore[no-any-return]
        kept = {key: error for key in wanted if (error := _retention(self, key)) is not None}
        refused.extend(kept)
        answers: dict[str, FrostlineError | None] = original(self, [key for key in wanted if key not in kept])
        return answers | kept

    return delete


def _by_a_test() -> bool:
    """Whether the call comes straight from a test, through nothing but stores."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__", "").startswith("disks.stores.") and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith("tests")


def _retention(store: ObjectStore, key: str) -> Retained | None:
    modified = _modified(store, key)
    until = modified + KEEP if modified is not None else None
    if until is None or until <= (getattr(_ahead, "now", None) or datetime.now(UTC)):
        return None
    return Retained(f"{store.name}{key} is kept until {until:%H:%M:%S}Z", until=until)


def _modified(store: ObjectStore, key: str) -> datetime | None:
    """By a look past the meters: what a test counts is what the product sends."""
    try:
        if isinstance(store, S3Store):
            return parsedate_to_datetime(store.session.requests.head(key)["last-modified"])
        return type(store).head(store, key).modified
    except (NotFound, ValueError):
        return None


def _at_its_time(original: Callable[..., Any], time_of: Callable[..., datetime]) -> Callable[..., Any]:
    @wraps(original)
    def run(*arguments: Any, **options: Any) -> Any:
        before = getattr(_ahead, "now", None)
        _ahead.now = time_of(*arguments)
        try:
            return original(*arguments, **options)
        finally:
            _ahead.now = before

    return run
