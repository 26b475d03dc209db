"""How often a store is read for a screen: at once when somebody asks, else as its cost allows. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

DISKS_SECONDS = 2.0
"""Disks are looked at again at most so often while work goes on: a bucket is asked by a request that costs."""
OTHERS_SECONDS = 15.0
"""What other machines committed is looked for so often, and less often where looking costs much."""
_AGE_SECONDS = 60.0
"""Ages, and what is due, change with the clock alone: whether they did is asked so often, or less often."""
_WHOLE_SECONDS = 600.0
"""Everything is read again after this time: it shows changes that no other check can notice."""
_BUSY_SHARE, _IDLE_SHARE = 0.1, 0.005
"""Of a core that reading takes at most while work goes on, and while nothing does."""


class RefreshInterval(msgspec.Struct):
    """What was read when, and what it cost: from that, what may be read now."""

    clock: Callable[[], float] = time.monotonic
    requested: int = 1
    """How often somebody wanted a look at the disks; `_looked`: which of these the last one was for."""
    is_urgent: bool = False
    """Whether a disk is to be asked, too, that did not answer a moment ago: somebody wants to know it now."""
    _looked: int = 0
    _looked_at: float = 0.0
    _state: object = None
    """Of the disks that the screen shows."""
    _read_after: float = 0.0
    _look_after: float = 0.0
    _age_after: float = 0.0
    _whole_after: float = 0.0

    def needs_look(self) -> bool:
        """Whether the disks are to be looked at before they are read."""
        return self.requested != self._looked or self.clock() - self._looked_at >= DISKS_SECONDS

    def may_read(self) -> bool:
        """Whether all may be read because something went on."""
        return self.clock() >= self._read_after

    def may_look(self) -> bool:
        """Whether what others did may be looked for."""
        return self.clock() >= self._look_after

    def may_have_aged(self) -> bool:
        """Whether what the clock alone changes may be asked for."""
        return self.clock() >= self._age_after

    def has_read(self, state: object, cost_seconds: float, *, looked_for: int | None) -> None:
        """All was read. `looked_for`: which wish the disks were looked at for, None when they were not."""
        now = self.clock()
        if looked_for is not None:
            self._looked, self._looked_at = looked_for, now
            self.is_urgent = self.is_urgent and looked_for != self.requested
        self._state = state
        self._read_after = now + cost_seconds * (1 / _BUSY_SHARE - 1)
        self._age_after = now + max(_AGE_SECONDS, cost_seconds / _IDLE_SHARE)
        self._whole_after = now + max(_WHOLE_SECONDS, cost_seconds / _IDLE_SHARE)

    def has_looked(self, state: object, cost_seconds: float, *, aged: bool | None) -> bool:
        """The disks were looked at; whether all is to be read, because they have changed or time has gone by.
        `aged`: whether the clock alone has changed what is shown; None when it was not asked."""
        now = self.clock()
        self._looked_at = now
        self._look_after = now + cost_seconds / _IDLE_SHARE
        if aged is False:
            self._age_after = now + _AGE_SECONDS
        return state != self._state or bool(aged) or now >= self._whole_after
