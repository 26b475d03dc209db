"""Visits every state that a model of several parties can reach, in the order of a shortest way there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Found:
    """A violation and how it came about."""

    what: str
    steps: tuple[str, ...] = field(repr=False)


def explore(
    first: State, steps: Callable[[State], Iterable[tuple[str, State]]], violation: Callable[[State], str | None]
) -> tuple[int, Found | None]:
    """How many states there are, and the first violation on a shortest way; all states are visited without one."""
    came: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        now = waiting.popleft()
        if (what := violation(now)) is not None:
            return len(came), Found(what, _way(came, now))
        for said, following in steps(now):
            if following not in came:
                came[following] = (now, said)
                waiting.append(following)
    return len(came), None


def _way(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    said = []
    while (before := came[state]) is not None:
        state, word = before
        said.append(word)
    return tuple(reversed(said))
