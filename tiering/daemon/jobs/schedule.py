"""When a job is due. Pure: the time is an argument.

All is reckoned from the beginning of the last run, which is on record: what was due while nobody ran it is due now,
once, however often it was due; and what ran is not due again before its next time, also after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING

from tiering.config.jobs import Cron, Window, parse_cron, parse_window, parse_zone
from tiering.config.settings import JobConfig

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Schedule:
    """One job's times: an interval or a cron line, in a window, with a delay by chance. Without either it never runs by
    itself."""

    every: timedelta | None = None
    cron: Cron | None = None
    window: Window | None = None
    zone: tzinfo = UTC
    jitter: timedelta = timedelta(0)
    text: str = "off"
    """For people."""

    @property
    def is_on(self) -> bool:
        """Whether it runs by itself."""
        return self.every is not None or self.cron is not None

    def next_run(self, begun: datetime | None, since: datetime, now: datetime, *, first_wait: timedelta) -> datetime:
        """When it is due; that may be in the past. `begun`: the beginning of its last run; `since`: when this schedule
        came into force, from which a job that has not run counts, by an interval `first_wait`.

        What lies in the future shows that the clock was set back: it is as if that had been now.
        """
        since = min(since, now)
        last = since if begun is None else min(begun, now)
        if self.cron is not None:
            due = self._by_cron(max(last, since))
        else:
            assert self.every is not None, "only a job that is on is ever due"
            due = last + (first_wait if begun is None else self.every)
        return due if self.window is None else self.into_window(max(due, now))

    def delayed(self, due: datetime, share: Callable[[], float]) -> datetime:
        """The same a little later, by chance (0 to 1), but never for that out of its window."""
        later = due + self.jitter * share() if self.jitter else due
        return later if self.into_window(later) == later else due

    def into_window(self, moment: datetime) -> datetime:
        """The moment, or when the window next opens."""
        return moment if self.window is None else self.window.opens(moment, self.zone)

    def _by_cron(self, after: datetime) -> datetime:
        """The first time after it. A time of day that the clocks repeat comes once, unless it is one of every hour; one
        that they leave out comes as much later."""
        assert self.cron is not None
        while True:
            found: datetime | None = self._trigger.get_next_fire_time(None, after + _MOMENT)
            assert found is not None, "the job recurs"
            after = found.astimezone(UTC)
            if not (found.astimezone(self.zone).fold and not self.cron.each_hour):
                return after

    @cached_property
    def _trigger(self) -> CronTrigger:
        from apscheduler.triggers.cron import CronTrigger

        assert self.cron is not None
        weekdays = ",".join(_WEEKDAYS[number] for number in sorted(self.cron.weekdays))  # its own 0 is Monday
        return CronTrigger(
            minute=_numbers(self.cron.minutes),
            hour=_numbers(self.cron.hours),
            day=_numbers(self.cron.days),
            month=_numbers(self.cron.months),
            day_of_week=weekdays,
            timezone=self.zone,
        )


def schedule_of(given: JobConfig, default_seconds: float | None) -> Schedule:
    """As the configuration, which has been checked, says; `default_seconds`: the job's interval where it says none."""
    every = given.every_seconds if given.every_seconds or given.cron else default_seconds
    wanted = given.enabled if given.enabled is not None else bool(every or given.cron)
    if not wanted or not (every or given.cron):
        return Schedule()
    what = f"cron {given.cron}" if given.cron else f"every {_duration(every or 0)}"
    where = f" {given.timezone}" if given.timezone != "UTC" and (given.cron or given.window) else ""
    return Schedule(
        every=None if given.cron else timedelta(seconds=every or 0),
        cron=parse_cron(given.cron) if given.cron else None,
        window=parse_window(given.window) if given.window else None,
        zone=parse_zone(given.timezone),
        jitter=timedelta(seconds=given.jitter_seconds),
        text=f"{what}{f', {given.window}' if given.window else ''}{where}",
    )


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _numbers(values: frozenset[int]) -> str:
    return ",".join(map(str, sorted(values)))
