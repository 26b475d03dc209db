"""A moment, and how long ago it was, on a machine that may sleep and whose clock may be set."""

from __future__ import annotations

import time

import msgspec


class Moment(msgspec.Struct, frozen=True, order=True):
    """A time on both clocks: the wall clock sees a machine that slept, the steady one a clock that was set back."""

    wall: float = msgspec.field(default_factory=lambda: time.time())
    """Seconds since 1970."""
    steady: float = msgspec.field(default_factory=lambda: time.monotonic())

    @property
    def age_seconds(self) -> float:
        """How long ago it was: the longer of the two answers."""
        return max(time.time() - self.wall, time.monotonic() - self.steady)
