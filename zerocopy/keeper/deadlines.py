"""How long one call to Keeper waits."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

LOOK_SECONDS = 0.2
"""How often a waiting call checks whether the process stops."""
_STOPPED_SECONDS = 0.5
"""How long a call waits then."""


_AGAIN_SECONDS = 1.0
"""How long a call waits when those before it had no answer. The client tries to connect as often, at least."""


def longest_seconds(timeout_seconds: float, silent_seconds: float) -> float:
    """How long a call waits that may take `timeout_seconds`. Where nobody was heard for as long, those before it have
    waited in vain, and the client goes on trying beside: what needs no Keeper does not wait for a call of each table.
    Pure."""
    return min(timeout_seconds, _AGAIN_SECONDS) if silent_seconds >= timeout_seconds else timeout_seconds


class Deadlines(msgspec.Struct):
    """How long one call waits: until its end, or a moment after the process begins to stop."""

    end: float
    stopped: Callable[[], bool]
    _is_told: bool = False

    @property
    def left_seconds(self) -> float:
        if not self._is_told and self.stopped():
            self.end, self._is_told = min(self.end, time.monotonic() + _STOPPED_SECONDS), True
        return max(self.end - time.monotonic(), 0)

    def until(self, wait: Callable[[float], bool]) -> bool:
        """Whether it came true in time; `wait` waits so many seconds for it."""
        while not wait(min(self.left_seconds, LOOK_SECONDS)):
            if self.left_seconds <= 0:
                return False
        return True
