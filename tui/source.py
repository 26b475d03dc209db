"""The store behind the screens: opened and read in one thread of its own, never in the event loop.

What takes long runs in threads beside it, each with a store of its own, so that a move keeps no screen from being read.
All are daemon threads: a bucket that does not answer keeps nobody from leaving.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:  # the engine is imported by the thread that opens the store: the screen is painted before
    from disks.workers.progress import Progress
    from tiering.engine.store import Store

T = TypeVar("T")


_PATIENCE_SECONDS = 4.0
_READERS_WRITE = ("-shm", "journal.lock")
"""Ends of names in the state directory: who only reads writes there, too."""


class Opener(Protocol):
    """Opens the store of this run."""

    def __call__(self, progress: Progress | None = None) -> Store:
        """A store; the caller closes it."""


class _Asked(msgspec.Struct):
    function: Callable[[Store], Any]
    answer: Callable[[Any, BaseException | None], None]
    given_up: Callable[[], bool]
    """Whether nobody waits for the answer any more."""


class Step(msgspec.Struct):
    """A task of an action: how much of it is done. Only its own thread writes it, or several add under its lock."""

    title: str
    total: int | None
    by_bytes: bool
    done: int = 0
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _begun: list[Step] = msgspec.field(default_factory=list)

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        """So much more."""
        with self._lock:
            self.done += size_bytes if self.by_bytes else items

    def note(self, text: str) -> None:
        """Nothing: the screens say which part it is."""

    def __enter__(self) -> Step:
        self._begun.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._begun.remove(self)


class Work(msgspec.Struct):
    """An action that runs, and the progress that it reports. Setting `stop` ends it between two of its steps."""

    title: str
    stop: threading.Event = msgspec.field(default_factory=threading.Event)
    ended: threading.Event = msgspec.field(default_factory=threading.Event)
    _begun: list[Step] = msgspec.field(default_factory=list)

    def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None) -> Step:
        """A task of it begins."""
        total = items if size_bytes is None else size_bytes
        return Step(title, total, by_bytes=size_bytes is not None, _begun=self._begun)

    @property
    def share(self) -> float | None:
        """How much of what it does now is done; None where nobody knows."""
        known = [step.done / step.total for step in list(self._begun) if step.total]
        return min(known[0], 1.0) if known else None


class Source:
    """Reads one store for all screens, one question after the other."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._questions: SimpleQueue[_Asked | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.running: list[Work] = []
        """Actions whose end is not reported yet."""
        self._begun: list[Work] = []
        self._idle: Store | None = None
        """The store of the action before, open for the next one: its dry run has just read what it needs."""
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Stop what runs between two steps, and close the stores when nobody uses them any more."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, None, True
        if idle is not None:
            idle.close()
        for work in self.running:
            work.stop.set()
        self._questions.put(None)

    def wait(self) -> None:
        """Until everything that runs has ended."""
        for work in list(self._begun):
            work.ended.wait()

    async def read(self, function: Callable[[Store], T]) -> T:
        """The function's answer about the store. Raises what it raises, and what opening the store raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="dashboard: store", daemon=True)
            self._thread.start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._questions.put(_Asked(function, _answering(answer), answer.done))
        return await answer

    async def act(self, title: str, function: Callable[[Store], T]) -> T:
        """Run what may change the store, or takes long, beside the reading. Raises what it raises."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        reply, work = _answering(answer), Work(title)

        def run() -> None:
            try:
                with ExitStack() as opened:
                    store = self._store_for(work, opened)
                    done = function(store)
                    opened.pop_all()  # after a failure the store is opened again
                    self._keep(store)
            except BaseException as error:  # noqa: BLE001  it is raised where somebody waits for it
                reply(None, error)
            else:
                reply(done, None)
            finally:
                work.ended.set()
                self._begun.remove(work)

        self._begun.append(work)
        self.running.append(work)
        threading.Thread(target=run, name=f"dashboard: {title}", daemon=True).start()
        try:
            return await answer
        finally:
            self.running.remove(work)

    def _store_for(self, work: Work, opened: ExitStack) -> Store:
        """That of an action that has ended, looked at again, or one that is opened."""
        with self._lock:
            kept, self._idle = self._idle, None
        store = opened.enter_context(self._open(work) if kept is None else kept)
        store.context.stop, store.context.progress = work.stop, work
        if kept is not None:
            store.refresh()
        return store

    def _keep(self, store: Store) -> None:
        """For the next action; one is enough."""
        with self._lock:
            kept = self._idle is None and not self._closed
            if kept:
                self._idle = store
        if not kept:
            store.close()

    def _serve(self) -> None:
        store: Store | None = None
        try:
            while (asked := self._questions.get()) is not None:
                if asked.given_up():  # the cursor has gone on: what was asked of each row that it passed is not read
                    continue
                try:
                    with _patience():
                        if store is None:  # tried again with each question: a journal may be busy for a moment
                            store = self._open()
                        done = asked.function(store)
                except BaseException as error:  # noqa: BLE001  it is raised where somebody waits for it
                    asked.answer(None, error)
                else:
                    asked.answer(done, None)
        finally:
            if store is not None:
                store.close()


def _patience() -> AbstractContextManager[None]:
    """A screen shows what was seen last, and says why, rather than wait for a bucket as long as a command would."""
    from disks.stores.time_budget import time_budget

    return time_budget(_PATIENCE_SECONDS)


def _answering(answer: asyncio.Future[Any]) -> Callable[[Any, BaseException | None], None]:
    loop = asyncio.get_running_loop()

    def settle(value: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def reply(value: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    return reply


def fingerprint(state_directory: Path) -> tuple[object, ...]:
    """Differs when work on this machine was begun, went on, or ended. A few system calls."""
    found: list[tuple[str, int, int]] = []
    with suppress(OSError), os.scandir(state_directory) as entries:
        for entry in entries:
            if entry.name.endswith(_READERS_WRITE):
                continue
            with suppress(OSError):
                status = entry.stat()
                found.append((entry.name, status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))


def state_of_disks(store: Store) -> tuple[object, ...]:
    """Differs when others committed something, or a disk came or went, as far as the last refresh knows."""
    return tuple(
        (name, None if disk.broken else disk.revision, disk.broken is None, disk.unreachable)
        for name, disk in store.context.disks.items()
    )
