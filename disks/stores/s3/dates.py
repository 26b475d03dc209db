"""Times that answers name. All are in UTC, so that any two compare."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def date_of(header: str) -> datetime:
    """The time in a header. Raises `ValueError` for anything but a date."""
    try:
        return _in_utc(parsedate_to_datetime(header))
    except (TypeError, OverflowError) as error:  # a year or a zone that no date can have
        raise ValueError(f"{header[:60]!r} is no date") from error


def time_of(element: str) -> datetime:
    """The time in an element of a document. Raises `ValueError` for anything but a time."""
    try:
        return _in_utc(datetime.fromisoformat(element))
    except OverflowError as error:
        raise ValueError(f"{element[:60]!r} is no time") from error


def _in_utc(moment: datetime) -> datetime:
    """Without a zone it is UTC: HTTP and S3 know no other."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
