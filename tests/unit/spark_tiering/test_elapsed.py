"""Time by the clock, however many pieces of work go on side by side."""

from __future__ import annotations

import pytest

from spark_tiering.running.spark_runner import Elapsed


def test_what_goes_on_side_by_side_counts_once() -> None:
    now = 100.0
    elapsed = Elapsed(lambda: now)
    assert elapsed.seconds == 0
    with elapsed.running():
        now = 102.0
        with elapsed.running():
            now = 105.0
            assert elapsed.seconds == 5
        now = 106.0
    now = 200.0  # nothing is under way
    assert elapsed.seconds == 6
    with pytest.raises(ValueError, match="wrong"), elapsed.running():
        now = 203.0
        raise ValueError("wrong")
    assert elapsed.seconds == 9
