"""What a screen costs to read says how often it is read."""

from __future__ import annotations

from tui.rhythm import Rhythm


def test_what_costs_much_is_read_seldom() -> None:
    now = [100.0]
    rhythm = Rhythm(lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    assert rhythm.needs_look()
    rhythm.has_read("first", 0.5, looked_for=rhythm.wanted)
    assert (rhythm.needs_look(), rhythm.may_read(), rhythm.may_look()) == (False, False, True)
    later(3)
    assert (rhythm.needs_look(), rhythm.may_read()) == (True, False)
    later(2)
    assert rhythm.may_read()
    assert not rhythm.has_looked("first", 0.1, aged=None)
    assert not rhythm.may_look()
    later(20)
    assert rhythm.may_look()
    assert rhythm.has_looked("second", 0.1, aged=None)
    rhythm.has_read("second", 0.5, looked_for=None)
    later(99)
    assert not rhythm.may_have_aged()
    later(2)
    assert rhythm.may_have_aged()
    assert rhythm.has_looked("second", 0.0, aged=True)
    assert not rhythm.has_looked("second", 0.0, aged=False)
    assert not rhythm.may_have_aged()
    later(500)
    assert rhythm.has_looked("second", 0.0, aged=False)
    rhythm.wanted += 1
    assert rhythm.needs_look()


def test_who_asks_is_answered_by_a_look_that_began_later() -> None:
    rhythm = Rhythm(lambda: 100.0)
    rhythm.wanted, rhythm.is_urgent = 2, True
    rhythm.has_read("first", 0.5, looked_for=1)
    assert rhythm.is_urgent
    rhythm.has_read("first", 0.5, looked_for=2)
    assert not rhythm.is_urgent
