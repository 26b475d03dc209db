"""Every interleaving of backups that are made, a prune and collections (I4, I12), and that each rule is needed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.property.prune_model import Rules, explore, start


@pytest.mark.in_turn
def test_no_interleaving_loses_what_a_backup_names() -> None:
    states, found = explore(Rules(), start())
    assert found is None, "\n".join(found)
    assert states > 1_000


@pytest.mark.in_turn
@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_without_a_rule_there_is_a_violation(rule: str) -> None:
    _, found = explore(replace(Rules(), **{rule: False}), start())
    assert found is not None
