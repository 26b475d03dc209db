"""A few random histories of two machines (`make histories` tries many): a copy that a move kept, or a row of a lost
machine, is never merged away and never comes back. Guards I1, I2, I13 and I17."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from tests.histories.__main__ import STEPS, tried

SEEDS = (5005, 6019, 6050)
"""Histories that found something once."""


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_that_found_something_is_right_now(seed: int) -> None:
    assert tried(seed, STEPS, frozenset(), Counter()) is None


def test_the_history_of_today_is_right() -> None:
    """Another one each day; its finding names the seed, which repeats it."""
    seed = int(datetime.now(UTC).strftime("%y%j"))
    assert tried(seed, STEPS // 2, frozenset(), Counter()) is None
