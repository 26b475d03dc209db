"""How long something was at work, by the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Elapsed:
    """The time in which at least one of several pieces of work was under way: what goes on side by side counts once.
    Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._under_way, self._since, self._before = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Up to now."""
        with self._lock:
            return self._before + (self._clock() - self._since if self._under_way else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A piece of work, however it ends."""
        with self._lock:
            if not self._under_way:
                self._since = self._clock()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                if not self._under_way:
                    self._before += self._clock() - self._since
