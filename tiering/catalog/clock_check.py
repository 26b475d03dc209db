"""Another clock than this machine's, to notice when ours is wrong: rules that count days must not believe it then.

An object store says what time it is in the Date of every answer. Where no store does, the time this process has run
tells at least of a clock that jumped meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from disks.base import Disk
from disks.stores.time_budget import time_budget
from oplog.errors import FrostlineError

_ASK_AGAIN_SECONDS = 60.0
_PATIENCE_SECONDS = 4.0
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, so that waking up is no jump."""


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """What another clock says, and which one, for people."""

    time: datetime
    source: str


class Clocks:
    """The other clocks of a store. One request a minute and bucket at most; a bucket that does not answer has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skews: dict[str, tuple[float, timedelta | None]] = {}
        self._begin: tuple[datetime, float] | None = None

    def other(self, disks: Mapping[str, Disk], now: datetime, *, steady: bool = True) -> ClockSkew | None:
        """Of all other clocks the one that is farthest from `now`, which is what this machine's clock says. `steady`:
        also by how long the process runs since the first question."""
        with self._lock:
            found = [
                ClockSkew(datetime.now(UTC) + skew, f"the object store of disk {name}")
                for name, disk in disks.items()
                if (skew := self._skew(name, disk)) is not None
            ]
            if steady:
                found.append(self._by_time_passed(now))
        return max(found, key=lambda other: abs(other.time - now), default=None)

    def _by_time_passed(self, now: datetime) -> ClockSkew:
        ticks = time.clock_gettime(_STEADY)
        begin, begin_ticks = self._begin = self._begin or (now, ticks)
        passed = timedelta(seconds=ticks - begin_ticks)
        return ClockSkew(begin + passed, f"the time since this process began ({int(passed.total_seconds())} s)")

    def _skew(self, name: str, disk: Disk) -> timedelta | None:
        """How far the store's clock is ahead of ours; None when it cannot be known now."""
        logged = disk.logged
        if logged is None or disk.unreachable:
            return None
        asked, skew = self._skews.get(name, (-_ASK_AGAIN_SECONDS, None))
        if time.monotonic() - asked >= _ASK_AGAIN_SECONDS:
            try:
                with time_budget(_PATIENCE_SECONDS):
                    skew = logged.store.clock_skew()
            except FrostlineError:
                skew = None
            self._skews[name] = (time.monotonic(), skew)
        return skew
