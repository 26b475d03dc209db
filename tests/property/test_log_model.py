"""Every interleaving of two writers and a collector on one log (I2, I3, I4, I6), and that each rule is needed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.property.log_model import Rules, explore, start, start_behind, start_counted


def test_no_interleaving_breaks_a_promise() -> None:
    states, found = explore(Rules())
    assert found is None, "\n".join(found.steps)
    assert states > 10_000


@pytest.mark.in_turn
def test_no_interleaving_of_two_who_stood_still_breaks_a_promise() -> None:
    states, found = explore(Rules(), start_behind())
    assert found is None, "\n".join(found.steps)
    assert states > 1_000


def test_no_interleaving_with_a_collected_entry_breaks_a_promise() -> None:
    """The entry of one of the writers was collected."""
    states, found = explore(Rules(), start_counted())
    assert found is None, "\n".join(found.steps)
    assert states > 1_000


@pytest.mark.in_turn
@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_without_a_rule_there_is_a_violation(rule: str) -> None:
    rules = replace(Rules(), **{rule: False})
    assert any(explore(rules, first)[1] for first in (start(), start_behind(), start_counted()))
