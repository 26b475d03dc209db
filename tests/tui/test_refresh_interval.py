"""What a screen costs to read says how often it is read."""

from __future__ import annotations

from tui.refresh_interval import RefreshInterval


def test_what_costs_much_is_read_seldom() -> None:
    now = [100.0]
    interval = RefreshInterval(lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    assert interval.needs_look()
    interval.has_read("first", 0.5, looked_for=interval.requested)
    assert (interval.needs_look(), interval.may_read(), interval.may_look()) == (
        False,
        False,
        True,
    )
    later(3)
    assert (interval.needs_look(), interval.may_read()) == (True, False)
    later(2)
    assert interval.may_read()
    assert not interval.has_looked("first", 0.1, aged=None)
    assert not interval.may_look()
    later(20)
    assert interval.may_look()
    assert interval.has_looked("second", 0.1, aged=None)
    interval.has_read("second", 0.5, looked_for=None)
    later(99)
    assert not interval.may_have_aged()
    later(2)
    assert interval.may_have_aged()
    assert interval.has_looked("second", 0.0, aged=True)
    assert not interval.has_looked("second", 0.0, aged=False)
    assert not interval.may_have_aged()
    later(500)
    assert interval.has_looked("second", 0.0, aged=False)
    interval.requested += 1
    assert interval.needs_look()


def test_who_asks_is_answered_by_a_look_that_began_later() -> None:
    interval = RefreshInterval(lambda: 100.0)
    interval.requested, interval.is_urgent = 2, True
    interval.has_read("first", 0.5, looked_for=1)
    assert interval.is_urgent
    interval.has_read("first", 0.5, looked_for=2)
    assert not interval.is_urgent
