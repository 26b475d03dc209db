"""Which crash points, costly tests and random examples a run tries: all, or the share whose turn it is.

    python -m tests.turns        print the turn of this commit, `7/10` for instance

`make check` takes that share of the crash points, and twice as much of tests and examples, so that all of them come
round as commits follow one another; `make nightly`, `make mutants` and a plain pytest take everything. A failure is
repeated with the turn that its run printed: FROSTLINE_TURN=7/10 .venv/bin/pytest ….
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # who asks for the turn of a commit needs it not
    from hypothesis import settings

ENVIRONMENT = "FROSTLINE_TURN"
TURNS = 10
"""Of crash points: they are what takes longest."""
TEST_TURNS = 5
"""Of costly tests and of random examples."""
FEWEST_EXAMPLES = 10

_Point = TypeVar("_Point")


@dataclass(frozen=True, slots=True)
class Turn:
    """The `number`-th (from 1) of `of` shares. The shares are disjoint, and together they are everything."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(f"turn {self.number}/{self.of}: the first number goes from 1 to the second")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def takes(self, operation: str, nth: int, *, one_in: int | None = None) -> bool:
        """Whether this share has the `nth` point: every `of`-th, beginning elsewhere in each operation. With `one_in` a
        point is in several shares: in at least one of that many consecutive ones."""
        turns_away = (nth + zlib.crc32(operation.encode()) - (self.number - 1)) % self.of
        return turns_away % (one_in or self.of) == 0

    def of_tests(self) -> Turn:
        """The share of costly tests and of examples that belongs to this one."""
        return Turn((self.number - 1) % TEST_TURNS + 1, TEST_TURNS) if self.of == TURNS else self


EVERYTHING = Turn(1, 1)


def current() -> Turn:
    """The turn that the environment names; everything without one. What is no turn is refused: it would hide tests."""
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return EVERYTHING
    if not (match := re.fullmatch(r"(\d+)/(\d+)", text)):
        raise ValueError(f"{ENVIRONMENT} is {text!r}: give a turn such as 2/5, or nothing for everything")
    return Turn(int(match[1]), int(match[2]))


def due(
    operation: str, points: Iterable[_Point], turn: Turn | None = None, *, one_in: int | None = None
) -> list[_Point]:
    """The points of this operation whose turn it is."""
    turn = turn or current()
    return [point for nth, point in enumerate(points) if turn.takes(operation, nth, one_in=one_in)]


def left_out(names: Iterable[str], *, one_in: int | None = None) -> set[str]:
    """The tests of these whose turn it is not. With `one_in` each has a turn in that many consecutive pushes."""
    every = sorted(names)
    return set(every) - set(due("tests", every, current().of_tests(), one_in=one_in))


def examples(most: int) -> int:
    """How many random examples a property is tried with: `most`, or a share of them."""
    return max(most // current().of_tests().of, min(most, FEWEST_EXAMPLES))


def histories(most: int, steps: int) -> settings:
    """How a state machine is tried: by `most` histories, or a share of them, of so many steps, which take their
    time: of a share there is no lower bound but one."""
    from hypothesis import HealthCheck, settings

    return settings(
        max_examples=max(most // current().of_tests().of, 1),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def of_commit(repository: Path) -> Turn:
    """The turn of the checked out commit; without git that of the day. Hashes are as good as random, also in a
    checkout that has one commit only."""
    done = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    number = int(done.stdout, 16) if done.returncode == 0 else int(time.time() // 86_400)
    return Turn(number % TURNS + 1, TURNS)


if __name__ == "__main__":
    print(of_commit(Path(__file__).resolve().parent.parent))
