"""Sizes, durations, times and shares as people write them, and back.

Parsers raise `UsageError` that shows the text and how to write it. Times are UTC; a time without a zone is UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from oplog.errors import UsageError

_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([kmgtp]?)(i?b?)\Z", re.IGNORECASE)
_DURATION_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_SCALES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SECONDS = {
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "seconds": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
    "d": 86400,
    "day": 86400,
    "days": 86400,
    "w": 604800,
    "week": 604800,
    "weeks": 604800,
    "mo": 30 * 86400,
    "month": 30 * 86400,
    "months": 30 * 86400,
    "y": 365 * 86400,
    "year": 365 * 86400,
    "years": 365 * 86400,
}
_FORMAT_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def parse_size(text: str) -> int:
    """Bytes of `10GiB`, `500M`, `1.5GB` or a whole number. `K` and `KiB` are 1024 bytes, `KB` is 1000."""
    match = _SIZE.match(text.strip())
    if not match or ("." in match[1] and not match[2]):
        raise UsageError(f"not a size: {text!r}", hint="write sizes as 10GiB, 500M, 1.5GB or a number of bytes")
    number, scale, suffix = match.groups()
    base = 1000 if suffix.lower() == "b" else 1024
    factor: int = int(base ** _SCALES[scale.lower()])
    return round(float(number) * factor) if "." in number else int(number) * factor


def parse_duration(text: str) -> timedelta:
    """The duration of `30d`, `12h`, `90s`, `1w`, `1d12h`; a month is 30 days, a year 365. A bare number is refused."""
    stripped = text.strip()
    pieces = _DURATION_PIECE.findall(stripped)
    known = all(unit.lower() in _SECONDS for _, unit in pieces)
    if not pieces or not known or _DURATION_PIECE.sub("", stripped):
        unit = f"; {stripped}s is so many seconds" if stripped.isdecimal() else ""
        raise UsageError(f"not a duration: {text!r}", hint=f"write durations as 30d, 12h, 90s, 1w or 1d12h{unit}")
    try:
        return timedelta(seconds=sum(float(number) * _SECONDS[unit.lower()] for number, unit in pieces))
    except OverflowError as error:
        raise UsageError(
            f"the duration is too long: {text!r}", hint="the longest is about 2.7 million years"
        ) from error


def parse_time(text: str) -> datetime:
    """The UTC time of RFC 3339 (`2026-01-31T12:00:00Z`), of the same without a zone, or of a date (its midnight)."""
    stripped = text.strip()
    try:
        if len(stripped) == 10:
            return datetime.combine(date.fromisoformat(stripped), datetime.min.time(), tzinfo=UTC)
        moment = datetime.fromisoformat(stripped)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"not a time: {text!r}", hint="write times as 2026-01-31T12:00:00Z or 2026-01-31 (UTC)"
        ) from error


def parse_percent(text: str) -> float:
    """The share, 0 to 1, of `5%` or of `0.05`."""
    stripped = text.strip()
    try:
        share = float(stripped[:-1]) / 100 if stripped.endswith("%") else float(stripped)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"not a share: {text!r}", hint="write shares as 5% or 0.05, between 0 and 1")
    return share


def format_size(size_bytes: float) -> str:
    """`1.5 GiB`; whole bytes below 1 KiB."""
    amount, unit = abs(float(size_bytes)), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < (1024 if unit == "B" else 1023.95):
            break
        amount, unit = amount / 1024, larger
    sign = "-" if size_bytes < 0 else ""
    return f"{sign}{int(amount)} B" if unit == "B" else f"{sign}{amount:.1f} {unit}"


def format_duration(duration: timedelta) -> str:
    """`1d 2h`, the two largest units; `0.25s` below a second. Exact forms such as `30d` stay as written."""
    seconds = duration.total_seconds()
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 1:
        return f"{sign}{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    pieces = []
    for unit, length in _FORMAT_UNITS:
        count, whole = divmod(whole, length)
        if count:
            pieces.append(f"{count}{unit}")
    return sign + " ".join(pieces[:2])


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC: `2026-01-31T12:00:00Z`, with microseconds only when there are any."""
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return utc.replace(tzinfo=None).isoformat() + "Z"


def counted(number: int, noun: str, several: str = "") -> str:
    """`1 part`, `2 parts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {several or noun + 's'}"
