"""Sizes, durations, times and shares: what people write, and what they must not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oplog.errors import UsageError
from tiering.config.units import (
    format_duration,
    format_size,
    format_time,
    parse_duration,
    parse_percent,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GiB", 10 << 30),
        ("500M", 500 << 20),
        ("1.5GB", 1_500_000_000),
        ("17", 17),
        ("1 k", 1024),
        ("2tib", 2 << 40),
        ("100B", 100),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "abc", "1.5", "-1", "10 parsecs", "1e3", "GiB", "1,5G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 30 * 86400),
        ("12h", 43200),
        ("90s", 90),
        ("1w", 604800),
        ("1d12h", 129600),
        ("5 minutes", 300),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "30", "d", "30x", "-1d", "1d junk", "99999999999999y"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


def test_times_are_utc() -> None:
    expected = datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert parse_time("2026-01-31T12:00:00+02:00") == expected
    assert parse_time("2026-01-31 10:00:00") == expected
    assert parse_time("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert parse_time("2026-01-31T10:00:00Z").tzinfo == UTC
    assert format_time(expected) == "2026-01-31T10:00:00Z"
    for text in ("", "yesterday", "2026-13-01", "20260131T", "2026-01-31T25:00:00Z"):
        with pytest.raises(UsageError, match="not a time"):
            parse_time(text)


def test_shares() -> None:
    assert (parse_percent("5%"), parse_percent("0.05"), parse_percent("100 %")) == (0.05, 0.05, 1.0)
    for text in ("", "101%", "-1%", "2", "x%", "nan"):
        with pytest.raises(UsageError):
            parse_percent(text)


def test_what_is_shown_is_short_and_reads_back() -> None:
    assert [format_size(size) for size in (0, 1023, 1024, 1024**2 - 1, 5 << 30, -2048)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "5.0 GiB",
        "-2.0 KiB",
    ]
    assert format_duration(timedelta(days=30)) == "30d"
    assert format_duration(timedelta(hours=26, seconds=5)) == "1d 2h"
    assert format_duration(timedelta(milliseconds=250)) == "0.25s"
    for text in ("30d", "12h", "90s", "1w"):
        assert parse_duration(format_duration(parse_duration(text))) == parse_duration(text)
