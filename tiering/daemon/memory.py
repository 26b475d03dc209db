"""What work leaves in memory goes back to the system now and then: a process that lives for months must not grow with
what it did. Arrow's buffers that only a circle of objects holds wait for a full collection, which Python makes the
later the more it knows; and the allocator keeps what was freed."""

from __future__ import annotations

import ctypes
import gc
import logging
import time
from collections.abc import Callable

_EVERY_SECONDS = 60.0

log = logging.getLogger("frostline.daemon")


def give_back() -> None:
    """Collect what nobody can reach, and return what is free. Takes about a tenth of a second."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        log.debug("this system's allocator is not asked to return what is free")


class MemoryKeeping:
    """Gives back at most once a minute. For one thread."""

    def __init__(self, give: Callable[[], None] = give_back, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds, and never goes back."""
        self._give, self._clock = give, clock
        self._worked = False
        self._given = clock()

    def worked(self) -> None:
        """Something was done that may have left something."""
        self._worked = True

    def look(self) -> None:
        """Give back where something was done, and the last time is a minute ago. A daemon at rest does nothing."""
        now = self._clock()
        if self._worked and now - self._given >= _EVERY_SECONDS:
            self._worked, self._given = False, now
            self._give()
