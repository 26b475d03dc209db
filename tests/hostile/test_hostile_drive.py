"""A daemon holds against floods, half requests and poison files (I24). `make soak-hostile` does it for ten minutes."""

from __future__ import annotations

import pytest

from tests.soak import hostile


@pytest.mark.slow
def test_a_daemon_holds_against_hostile_input() -> None:
    assert hostile.drive(20, seed=3)["bytes of log"] < hostile.MOST_LOG_BYTES
