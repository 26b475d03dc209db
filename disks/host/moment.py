"""A moment, and how long ago it was, on a machine that may sleep and whose clock may be set."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A time on both clocks: the wall clock sees a machine that slept, the steady one a clock that was set back."""

    wall: float = field(default_factory=lambda: time.time())
    """Seconds since 1970."""
    steady: float = field(default_factory=lambda: time.monotonic())

    @property
    def age_seconds(self) -> float:
        """How long ago it was: the longer of the two answers."""
        return max(time.time() - self.wall, time.monotonic() - self.steady)
