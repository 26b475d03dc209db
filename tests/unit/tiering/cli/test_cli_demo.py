"""The demo's own parts: it must notice every difference, and its dates must work in any year."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oplog.errors import Damaged, FrostlineError
from tiering.cli.demo import guided_demo
from tiering.cli.demo.guided_demo import FLIGHTS, WEATHER, Story, cold_date, rule_years

FACTS: dict[str, Any] = {
    "flights": FLIGHTS,
    "weather": WEATHER,
    "delays by carrier": [["UA", 58665, 3.6]],
    "SHA-256 of all flights": "ab" * 32,
}


@pytest.mark.parametrize("name", list(FACTS))
def test_any_difference_stops_the_demo(name: str, tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.compare(FACTS, dict(FACTS), "at all")
    with pytest.raises(Damaged, match=name):
        story.compare(FACTS, {**FACTS, name: "other"}, "at all")
    missing = {key: value for key, value in FACTS.items() if key != name}
    with pytest.raises(Damaged, match=name):
        story.compare(FACTS, missing, "at all")


def test_too_few_rows_stop_the_demo_even_when_nothing_changed(tmp_path: Path) -> None:
    short = {**FACTS, "flights": FLIGHTS - 1}
    with pytest.raises(Damaged, match="336,776"):
        Story(tmp_path).compare(short, short, "at all")


def test_a_command_that_fails_stops_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FrostlineError, match=r"exit code 10: frostline parts db\.nope"):
        Story(tmp_path).run("parts", "db.nope")


@pytest.mark.parametrize(
    "today", [date(2026, 11, 21), date(2027, 1, 27), date(2027, 2, 1), date(2031, 6, 30), date(2040, 2, 29)]
)
def test_the_rule_is_not_due_today_but_is_on_the_plan_s_day(today: date) -> None:
    """It is due for six months then."""
    age = timedelta(days=365 * rule_years(today))
    months = [date(2013, month, 1) for month in range(2, 13)] + [date(2014, 1, 1)]
    due = [end + age for end in months]
    assert due[0] > today
    assert sum(moment <= cold_date(today) for moment in due) == guided_demo.COLD_MONTHS
    assert cold_date(today) - today < timedelta(days=365 + 31 * 6 + 1)


def test_the_last_row_of_a_month_is_an_hour_before_the_next() -> None:
    """What the dates above rest on: parts are due by their newest row, at most a day before the month's end."""
    assert datetime(2013, 6, 30, 23) + timedelta(hours=1) == datetime(2013, 7, 1)
