"""What the product takes from outside, in one process and by one seed: time, random names, threads.

`simulated()` puts it in the place of the real ones, for as long as this process lives within it. Threads of a pool
run where they are submitted, so that nothing happens but what the scheduler lets happen.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import inspect
import pkgutil
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec

from disks.stores.wrappers.retry import RetryingStore

PACKAGES = ("oplog", "disks", "tiering", "restore")
_LOADED = (
    *("disks.file_table", "disks.garbage", "disks.host", "disks.local", "disks.object_disk", "disks.workers"),
    *("tiering.catalog", "tiering.engine", "tiering.insert", "tiering.journal", "tiering.merge", "tiering.merge.cold"),
    *("tiering.move", "tiering.parquet", "tiering.query", "restore.check", "restore.history", "restore.rebuild"),
)
"""Many modules are imported when they are needed, and that would be after the clock was put in."""
BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
_REAL_POOL = concurrent.futures.ThreadPoolExecutor


class Clock:
    """The store's clock, and how far that of the machine which runs now is ahead of it."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.ahead = 0.0

    def steady(self) -> float:
        """Goes on whatever the wall clocks say, and a little with every question."""
        self.passed += 0.0001
        return 1000.0 + self.passed

    def wall(self) -> datetime:
        return BEGAN + timedelta(seconds=self.steady() - 1000.0 + self.ahead)

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


clock = Clock()
chance = random.Random(0)


def begin(seed: str) -> None:
    """A world of its own: its time begins, and its names are given."""
    clock.passed = clock.ahead = 0.0
    chance.seed(seed)


class _Datetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


class SimulatedDatetime(datetime, metaclass=_Datetime):
    """`datetime` by the simulated clock."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return clock.wall().astimezone(tz)


class InlinePool(Executor):
    """A pool whose work is done when it is submitted, one piece after the other."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        return

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        return iter([fn(*arguments) for arguments in zip(*iterables, strict=False)])


class _Renewer(threading.Thread):
    """A thread that would only act after minutes of real time."""

    def start(self) -> None:
        return

    def join(self, timeout: float | None = None) -> None:
        return


class _Threading:
    """`threading` for a module whose thread waits for time to pass."""

    Event = threading.Event
    Thread = _Renewer


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Everything of the product that the worlds use goes by the clock and the names of this module."""
    for package in map(importlib.import_module, _LOADED):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    with contextlib.ExitStack() as undo:

        def put(holder: object, name: str, value: object) -> None:
            undo.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)

        for module in [found for name, found in sorted(sys.modules.items()) if name.split(".")[0] in PACKAGES]:
            if getattr(module, "ThreadPoolExecutor", None) is _REAL_POOL:
                put(module, "ThreadPoolExecutor", InlinePool)
            if getattr(module, "datetime", None) is datetime and "datetime.now(" in inspect.getsource(module):
                _know_types(module)
                put(module, "datetime", SimulatedDatetime)
        put(sys.modules["restore.rebuild.held_revision"], "threading", _Threading)
        put(time, "time", lambda: clock.wall().timestamp())
        put(time, "monotonic", clock.steady)
        put(time, "clock_gettime", lambda which: clock.steady())
        put(time, "sleep", clock.sleep)
        put(secrets, "token_hex", lambda count=16: chance.randbytes(count).hex())
        put(secrets, "token_bytes", lambda count=32: chance.randbytes(count))
        put(uuid, "uuid4", lambda: uuid.UUID(bytes=chance.randbytes(16), version=4))
        pauses = {"sleep": clock.sleep, "clock": clock.steady, "chance": chance.random}
        put(RetryingStore.__init__, "__kwdefaults__", pauses)
        yield


def _know_types(module: object) -> None:
    """msgspec asks for the types of a struct when it is first read, and would then find ours."""
    for found in list(vars(module).values()):
        if isinstance(found, type) and issubclass(found, msgspec.Struct) and found is not msgspec.Struct:
            with contextlib.suppress(TypeError):  # none that is read
                msgspec.json.Decoder(found)
