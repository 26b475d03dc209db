"""Every order of three replicas that share objects by marks, with links, crashes, an audit and a Keeper that loses all
it knows: what is said to be there stays (I3, I4, P1 to P7, P11), and each clause is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from tests.property.marks_model import STARTS, Rules, State, explore


@pytest.mark.parametrize("first", STARTS, ids=lambda start: start.__name__)
def test_no_order_loses_what_somebody_has(first: Callable[[], State]) -> None:
    states, found = explore(Rules(), first())
    assert found is None, f"{found.what}:\n" + "\n".join(found.steps)
    assert states > 50


@pytest.mark.in_turn
@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_without_a_clause_something_is_lost(rule: str) -> None:
    rules = replace(Rules(), **{rule: False})
    assert any(explore(rules, first())[1] for first in STARTS)
