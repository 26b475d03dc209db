"""What nobody works on is not read again, and not drawn again: a screen goes by change, not by the clock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.homes import Home
from tests.tui.pilot import Driver, drive
from tiering.catalog import stored
from tiering.engine.store import Store
from tui.widgets.grid import Grid
from tui.widgets.plain import Plain

_BEFORE, _DUE = datetime(2099, 3, 1, tzinfo=UTC), datetime(2099, 3, 13, tzinfo=UTC)
"""Around the time from which `STAYS` is due."""


class _Hour:
    """The clock of the store, and that by which a screen is read."""

    def __init__(self) -> None:
        self.now = _BEFORE
        self.seconds = 1e6

    def passes(self, seconds: float) -> None:
        self.seconds += seconds
        self.now += timedelta(seconds=seconds)


def _counted(monkeypatch: pytest.MonkeyPatch, counts: Counter[str], place: Any, name: str) -> None:
    genuine: Callable[..., Any] = getattr(place, name)

    def counting(*arguments: Any, **options: Any) -> Any:
        counts[name] += 1
        return genuine(*arguments, **options)

    monkeypatch.setattr(place, name, counting)


async def _look(driver: Driver, hour: _Hour, seconds: float) -> None:
    """What the timers do after that time."""
    hour.passes(seconds)
    driver.app._look()
    driver.app._look_at_others()
    await driver.settle()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a part's facts were decoded, a plan was made, a row or a text was drawn."""
    counts = Counter[str]()
    for place, name in (stored, "decoded_facts"), (Store, "plan"), (Grid, "render_line"), (Plain, "say"):
        _counted(monkeypatch, counts, place, name)
    return counts


@pytest.mark.in_turn
def test_what_is_idle_is_neither_read_nor_drawn(
    home: Home, monkeypatch: pytest.MonkeyPatch, counts: Counter[str]
) -> None:
    monkeypatch.setattr("disks.local.disk.SETTLED_NS", 0)  # though files were copied here just now
    monkeypatch.setattr("disks.local.disk.UNCHANGED_NS", 0)
    monkeypatch.setattr("tui.facts.overview.disk_text", lambda disk: disk.name)  # others write on this disk, too
    hour = _Hour()

    async def story(driver: Driver) -> None:
        driver.app.refresh_interval.clock = lambda: hour.seconds
        for key in "1", "2", "4", "5", "7":
            await driver.press(key)
            await _look(driver, hour, 0)
            assert counts["decoded_facts"] or key not in "15", "otherwise nothing is counted"
            counts.clear()
            for _ in range(4):
                await _look(driver, hour, 45)
            assert not counts, key

    drive(home, story, clock=lambda: hour.now)


def test_ages_go_on_without_reading_the_parts(home: Home, counts: Counter[str]) -> None:
    hour = _Hour()

    async def story(driver: Driver) -> None:
        driver.app.refresh_interval.clock = lambda: hour.seconds
        await driver.press("3")
        await driver.sees("19d")  # of what stays
        counts.clear()
        hour.now += timedelta(days=1)
        await _look(driver, hour, 70)
        await driver.sees("20d")
        assert counts.keys() == {"render_line", "decoded_facts"}  # of the rows that are drawn

    drive(home, story, clock=lambda: hour.now)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("key", "way"), [("1", "ssd > s3"), ("3", " now "), ("5", "ssd +s3 ")], ids=["overview", "parts", "policy"]
)
def test_what_is_due_is_shown_when_its_time_has_come(home: Home, key: str, way: str) -> None:
    hour = _Hour()

    def due(driver: Driver) -> int:
        return len(re.findall(way, driver.text))

    async def story(driver: Driver) -> None:
        driver.app.refresh_interval.clock = lambda: hour.seconds
        await driver.press(key)
        await driver.until(lambda: due(driver) == 1)
        hour.now = _DUE
        await _look(driver, hour, 70)
        await driver.until(lambda: due(driver) == 2)

    drive(home, story, clock=lambda: hour.now)
