"""Three machines under one scheduler, by fixed seeds; `make simulate` tries others. I1 to I8, I17, L1 to L7."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import turns
from tests.crash import mutants

pytestmark = pytest.mark.timeout(900)

_REPOSITORY = Path(__file__).parents[2]
_SEEDS = {"log": 60, "lease": 300, "tables": 60}
"""Of which a world takes seven, one and two of ten."""
_SEEDS_FOR_A_MISTAKE = 10_000


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which goes by the simulated clock and has an order of sets that is always the same."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("world", _SEEDS)
def test_no_seed_fails(world: str) -> None:
    most = _SEEDS_FOR_A_MISTAKE if mutants.active() else _SEEDS[world]
    turn = turns.current()
    first = most * (turn.number - 1) // turn.of
    more = ("--no-shrinking",) if mutants.active() else ()
    done = simulate("--seeds", f"{first}:{most * turn.number // turn.of}", "--world", world, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ seeds in .* nothing found", done.stdout)


@pytest.mark.in_turn
def test_a_seed_says_the_same_again() -> None:
    """What happened is counted, down to the requests that failed."""
    one, two = (simulate("--seeds", "30:45", "--world", "log").stdout.splitlines()[1:] for _ in range(2))
    assert one == two
    assert "put done" in one[0]
