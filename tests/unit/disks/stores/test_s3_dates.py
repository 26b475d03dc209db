"""Times that answers of a server name: they compare with any other, or are none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from disks.stores.s3.dates import date_of, time_of

HERE = datetime(2026, 11, 21, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    "header",
    [
        "Sat, 21 Nov 2026 03:00:00 GMT",
        "Sat, 21 Nov 2026 03:00:00 -0000",
        "Sat, 21 Nov 2026 03:00:00",
        "Sat, 21 Nov 2026 04:00:00 +0100",
    ],
)
def test_each_spelling_of_a_date_is_the_same_time(header: str) -> None:
    assert date_of(header) - HERE == HERE - HERE


@pytest.mark.parametrize("element", ["2026-11-21T03:00:00Z", "2026-11-21T03:00:00", "2026-11-21T04:00:00.000+01:00"])
def test_each_spelling_of_a_time_is_the_same(element: str) -> None:
    assert time_of(element) - HERE == HERE - HERE


@pytest.mark.parametrize(
    "header",
    [
        "",
        "soon",
        "Sat, 99 Nov 2026 03:00:00 GMT",
        "Sat, 21 Nov 99999999999999999999 03:00:00 GMT",
        "Sat, 21 Nov 2026 03:00:00 +99999999999999999999",
    ],
)
def test_what_is_no_date_is_refused(header: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        date_of(header)


@pytest.mark.parametrize("element", ["", "now", "2026-13-01", "0001-01-01T00:00:00+23:59"])
def test_what_is_no_time_is_refused(element: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        time_of(element)
