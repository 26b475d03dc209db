"""What the daemon's jobs are called, and how the times at which they run are written. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING

import msgspec

from oplog.errors import UsageError
from tiering.plugins import PLUGINS

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

JOB_NAMES = tuple(name for names in PLUGINS["jobs"].modules.values() for name in names)

CRON_FIELDS = ("minute", "hour", "day", "month", "day_of_week")
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WORDS = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}
_STEP = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\d{1,4}))?\Z", re.ASCII)
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)\Z", re.ASCII)
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Cron(msgspec.Struct, frozen=True):
    """A cron line: the numbers of each field. Sunday is 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    each_hour: bool
    """It runs in every hour, or every few of them: also in the one that the end of daylight saving repeats."""


class Window(msgspec.Struct, frozen=True):
    """From when to when, on the clock of a wall; over midnight where the end comes first. The end is outside."""

    begin: time
    end: time

    def holds(self, moment: time) -> bool:
        """Whether it is open then."""
        if self.begin < self.end:
            return self.begin <= moment < self.end
        return moment >= self.begin or moment < self.end

    def opens(self, moment: datetime, zone: tzinfo) -> datetime:
        """The moment, or when the window next opens."""
        local = moment.astimezone(zone)
        if self.holds(local.time()):
            return moment
        for days in range(3):
            # An hour that the clocks leave out begins as the one after it; of one that they repeat the first counts.
            opening = datetime.combine(local.date() + timedelta(days), self.begin, tzinfo=zone).astimezone(UTC)
            if opening >= moment:
                return opening
        raise AssertionError("a window opens every day")


def parse_cron(text: str) -> Cron:
    """`minute hour day month weekday`, as cron reads it, or `@daily` and the like. Raises `UsageError`."""
    fields = _WORDS.get(text.strip(), text).split()
    if len(fields) != len(CRON_FIELDS):
        raise UsageError(
            f"not a cron line: {text!r}", hint="five fields: minute hour day month weekday, such as '30 3 * * *'"
        )
    numbers = [_field(field, index, text) for index, field in enumerate(fields)]
    minutes, hours, days, months, weekdays = numbers
    if len(days) < 31 and len(weekdays) < 7:
        raise UsageError(
            f"{text!r} restricts both the day of the month and the day of the week",
            hint="cron would run it on either; write '*' for one of them",
        )
    if min(days) > max(_MONTH_DAYS[month - 1] for month in months):
        raise UsageError(f"{text!r} names a day that does not exist")
    return Cron(minutes, hours, days, months, weekdays, each_hour=fields[1].startswith("*"))


def _field(text: str, index: int, whole: str) -> frozenset[int]:
    name, (least, most) = CRON_FIELDS[index], _RANGES[index]
    found: set[int] = set()
    for item in text.lower().split(","):
        match = _STEP.match(item)
        step = int(match["step"] or 1) if match else 0
        if match is None or step == 0:
            raise UsageError(f"{whole!r}: {item!r} is no {name}", hint="a number, '*', '1-5', '*/10' or '1,15'")
        if match["first"] == "*":
            first, last = least, most - (index == 4)
            if match["last"]:
                raise UsageError(f"{whole!r}: {item!r} is no {name}", hint="'*' has no end of its own")
        else:
            first = _number(match["first"], index, whole)
            last = _number(match["last"], index, whole) if match["last"] else most if match["step"] else first
            if index == 4 and match["last"] and last == 0:
                last = 7  # fri-sun
        if not least <= first <= last <= most:
            raise UsageError(f"{whole!r}: {item!r} is no {name}", hint=f"from {least} to {most}")
        found |= set(range(first, last + 1, step))
    return frozenset(number % 7 for number in found) if index == 4 else frozenset(found)


def _number(text: str, index: int, whole: str) -> int:
    if text.isdigit():
        return int(text)
    names = _MONTHS if index == 3 else _DAYS if index == 4 else ()
    if text not in names:
        raise UsageError(
            f"{whole!r}: {text!r} is no {CRON_FIELDS[index]}", hint="'30 3 * * *' is each day at half past 3"
        )
    return names.index(text) + (index == 3)


def parse_window(text: str) -> Window:
    """`22:00-06:00`. Raises `UsageError`."""
    match = _WINDOW.match(text.strip())
    if match is None:
        raise UsageError(f"not a window: {text!r}", hint="such as 22:00-06:00; 24:00 is written 00:00")
    begin, end = time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))
    if begin == end:
        raise UsageError(f"the window {text!r} is never open", hint="leave it out for all day")
    return Window(begin, end)


def parse_zone(text: str) -> ZoneInfo:
    """The zone of that name in this machine's database. Raises `UsageError`."""
    from zoneinfo import ZoneInfo  # most configurations name none

    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError) as error:  # what it raises for a bad name depends on the name
        raise UsageError(f"no such time zone: {text!r}", hint="such as UTC or Europe/Berlin") from error
