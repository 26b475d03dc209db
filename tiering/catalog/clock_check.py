"""Another clock than this machine's, to notice when ours is wrong: rules that count days must not believe it then.

An object store says what time it is in the Date of every answer, and the kernel knows whether a time server keeps its
clock. Where neither does, the time this process has run tells of a clock that jumped meanwhile; a process that began
with a wrong one learns it from the journal, which notes what time it was when the clock was last confirmed. A machine
with a dead clock has no network time because it has no network: then nothing may be dropped by a date (`Clocks.doubt`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.stores.time_budget import time_budget
from oplog.errors import FrostlineError

_ASK_AGAIN_SECONDS = 60.0
_PATIENCE_SECONDS = 4.0
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, so that waking up is no jump."""


_AGREEING = timedelta(hours=1)
"""How far two clocks may be apart: rules count days."""
_UNSYNCHRONISED = 0x40  # STA_UNSYNC of <sys/timex.h>


def kernel_clock_is_kept() -> bool:
    """Whether a time server keeps the kernel's clock, by what the kernel knows of it (adjtimex(2))."""
    import ctypes

    class Timex(ctypes.Structure):
        """`struct timex` up to the field that is read, and room for the rest."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 512),
        )

    answer = Timex()
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.byref(answer))
    except (OSError, AttributeError):
        return False
    return state >= 0 and not answer.status & _UNSYNCHRONISED


class ClockSkew(msgspec.Struct, frozen=True):
    """What another clock says, and which one, for people."""

    time: datetime
    source: str


class Clocks(msgspec.Struct):
    """The other clocks of a store. One request a minute and bucket at most; a bucket that does not answer has none."""

    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _skews: dict[str, tuple[float, timedelta | None]] = {}
    _begin: tuple[datetime, float] | None = None
    _believed: tuple[datetime, float] | None = None

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

    def doubt(self, disks: Mapping[str, Disk], now: datetime, confirmed: datetime | None, trust: timedelta) -> str:
        """Why a date may not drop anything: `now` is not what another clock says, nor soon after the time that was
        confirmed last (`trust` at the most), nor that plus the time this process has run. Empty: it may."""
        ticks = time.clock_gettime(_STEADY)
        with self._lock:
            skews = [skew for name, disk in disks.items() if (skew := self._skew(name, disk)) is not None]
            agreed = any(abs(datetime.now(UTC) + skew - now) <= _AGREEING for skew in skews)
            if self._believed is not None:
                believed, then = self._believed
                agreed = agreed or abs(believed + timedelta(seconds=ticks - then) - now) <= _AGREEING
            agreed = agreed or (confirmed is not None and -_AGREEING <= now - confirmed <= trust)
            if agreed or kernel_clock_is_kept():
                self._believed = (now, ticks)
                return ""
        if confirmed is None:
            return "no other clock has ever confirmed this machine's, and none can be asked now"
        return (
            f"the clock shows {now:%Y-%m-%d %H:%MZ} and was last confirmed at {confirmed:%Y-%m-%d %H:%MZ};"
            " no other clock can be asked now"
        )

    def believe(self, now: datetime) -> None:
        """A person says that the clock is right: so it is for this process."""
        with self._lock:
            self._believed = (now, time.clock_gettime(_STEADY))

    def _by_time_passed(self, now: datetime) -> ClockSkew:
        ticks = time.clock_gettime(_STEADY)
        begin, begin_ticks = self._begin = self._begin or (now, ticks)
        passed = timedelta(seconds=ticks - begin_ticks)
        return ClockSkew(begin + passed, f"the time since this process began ({int(passed.total_seconds())} s)")

    def _skew(self, name: str, disk: Disk) -> timedelta | None:
        """How far the store's clock is ahead of ours; None when it cannot be known now."""
        logged = as_disk(disk, LoggedDisk)
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
