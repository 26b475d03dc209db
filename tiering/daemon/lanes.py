"""What goes on side by side in the daemon's process, so that nothing small waits for something large.

A pass leaves the merges and moves above `daemon.large_bytes` to a lane of their own: a thread with a store of its own,
which is open while something large is due. All lanes keep to the same limits of bytes and requests, and promise the
same space to nobody twice. What is under way in a lane is claimed, so that no other lane takes it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from types import TracebackType
from typing import Self

import msgspec

from disks.workers.progress import Progress, Task
from oplog.errors import FrostlineError
from tiering.daemon.status import LaneStatus
from tiering.engine.maintenance import Sizes, TickReport, TickStep
from tiering.engine.store import Store

Open = Callable[[Progress], Store]
"""Opens the daemon's store once more, by the configuration that is in force."""
Spanned = Callable[[str, str], AbstractContextManager[object]]
"""What goes on in a lane, for as long as it does: the lane's name, and what it does."""

log = logging.getLogger("frostline.daemon")


def _unspanned(lane: str, doing: str) -> AbstractContextManager[object]:
    return nullcontext()


class Lanes:
    """The lanes of one daemon: what runs in each, and those for what is large. Thread-safe."""

    def __init__(
        self, open_store: Open, stop: threading.Event, clock: Callable[[], datetime], spanned: Spanned = _unspanned
    ) -> None:
        self._clock, self._spanned = clock, spanned
        self._shown: dict[str, LaneProgress] = {}
        self._done: queue.SimpleQueue[TickReport] = queue.SimpleQueue()
        self._large: dict[TickStep, _LargeLane] = {
            step: _LargeLane(step, open_store, self.progress(f"large {step}"), stop, self._done.put)
            for step in ("merges", "moves")
        }

    def progress(self, lane: str, inner: Progress | None = None) -> LaneProgress:
        """What tells the lane's work to `status`, and to `inner`."""
        self._shown[lane] = LaneProgress(lane, self._clock, inner, self._spanned)
        return self._shown[lane]

    def status(self) -> tuple[LaneStatus, ...]:
        """What runs now, in lanes that do something."""
        return tuple(found for shown in self._shown.values() if (found := shown.now()) is not None)

    def begin(self, steps: Iterable[TickStep], above: int) -> None:
        """Something larger than that is due of these steps."""
        for step in steps:
            self._large[step].want(Sizes(above=above))

    def ended(self) -> list[TickReport]:
        """What was done in the large lanes since the last call."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def end(self) -> None:
        """Wait until they have stopped, which each does at its next step."""
        for lane in self._large.values():
            lane.end()


class _LargeLane:
    """Large merges, or large moves, one pass after the other while there are any."""

    def __init__(
        self,
        step: TickStep,
        open_store: Open,
        progress: Progress,
        stop: threading.Event,
        tell: Callable[[TickReport], None],
    ) -> None:
        self._step, self._open, self._progress, self._stop, self._tell = step, open_store, progress, stop, tell
        self._lock = threading.Lock()
        self._new_sizes: Sizes | None = None
        self._thread: threading.Thread | None = None

    def want(self, sizes: Sizes) -> None:
        """Make a pass, or one more after the one under way."""
        with self._lock:
            self._new_sizes = sizes
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._work, name=f"large {self._step}", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Wait for its end; the caller has set `stop`."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while (sizes := self._next()) is not None:
            self._tell(self._pass(sizes))

    def _next(self) -> Sizes | None:
        with self._lock:
            sizes, self._new_sizes = self._new_sizes, None
            if sizes is None or self._stop.is_set():
                self._thread = None
                return None
            return sizes

    def _pass(self, sizes: Sizes) -> TickReport:
        try:
            with self._open(self._progress) as store:
                return store.tick(only=self._step, stop=self._stop, sizes=sizes)
        except (FrostlineError, OSError) as error:
            return TickReport(problems=[f"large {self._step}: {error}"])
        except Exception as error:
            log.exception("large %s failed", self._step)
            return TickReport(problems=[f"large {self._step}: {type(error).__name__}: {error}"])


class LaneProgress:
    """A progress that knows what goes on in one lane."""

    def __init__(
        self,
        lane: str,
        clock: Callable[[], datetime],
        inner: Progress | None = None,
        spanned: Spanned = _unspanned,
    ) -> None:
        self._lane, self._clock, self._inner, self._spanned = lane, clock, inner, spanned
        self._tasks: list[_LaneTask] = []
        self._lock = threading.Lock()

    def task(self, title: str, *, items: int | None = None, size_bytes: int | None = None) -> _LaneTask:
        """As `Progress`."""
        begins = LaneStatus(lane=self._lane, doing=title, since=self._clock(), items=items, bytes=size_bytes)
        inner = None if self._inner is None else self._inner.task(title, items=items, size_bytes=size_bytes)
        return _LaneTask(begins, inner, self._spanned(self._lane, title), self._tasks, self._lock)

    def now(self) -> LaneStatus | None:
        """What was begun first of what is under way; None when nothing is."""
        with self._lock:
            return self._tasks[0].status if self._tasks else None


class _LaneTask:
    """One piece of work of a lane."""

    def __init__(
        self,
        begins: LaneStatus,
        inner: AbstractContextManager[Task] | None,
        span: AbstractContextManager[object],
        tasks: list[_LaneTask],
        lock: threading.Lock,
    ) -> None:
        self.status = begins
        self._context, self._span = inner, span
        self._inner: Task | None = None
        self._tasks, self._lock = tasks, lock

    def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
        """As `Task`."""
        with self._lock:
            known = self.status
            done = {"items_done": known.items_done + items, "bytes_done": known.bytes_done + size_bytes}
            self.status = msgspec.structs.replace(known, **done)
        if self._inner is not None:
            self._inner.advance(items=items, size_bytes=size_bytes)

    def note(self, text: str) -> None:
        """As `Task`."""
        with self._lock:
            self.status = msgspec.structs.replace(self.status, note=text)
        if self._inner is not None:
            self._inner.note(text)

    def __enter__(self) -> Self:
        self._span.__enter__()
        if self._context is not None:
            self._inner = self._context.__enter__()
        with self._lock:
            self._tasks.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._tasks.remove(self)
        if self._context is not None:
            self._context.__exit__(kind, error, trace)
        self._span.__exit__(kind, error, trace)
