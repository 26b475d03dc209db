"""A runner whose every piece dies on its first attempt, as an executor that is killed in the middle of its work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from disks.workers.runner import Runner

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Dying:
    """The work of a piece, done whole and then lost, once; a directory remembers that."""

    function: Callable[[Any], Any]
    notes: Path

    def __call__(self, item: tuple[int, Any]) -> Any:
        number, inner = item
        result = self.function(inner)
        note = self.notes / str(number)
        if not note.exists():
            note.touch()
            os._exit(9)
        return result


class DyingRunner:
    """Runs pieces as another runner does, each of which dies once, `every` so many."""

    def __init__(self, runner: Runner, notes: Path, every: int = 1) -> None:
        self._runner, self._notes, self._every = runner, notes, every
        self._runs = 0

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        title: str,
        on_done: Callable[[int, R], None],
        stop: threading.Event | None = None,
    ) -> None:
        self._runs += 1
        notes = self._notes / str(self._runs)
        notes.mkdir(parents=True)
        for number in range(len(items)):
            if number % self._every:
                (notes / str(number)).touch()
        self._runner.run(Dying(function, notes), list(enumerate(items)), title=title, on_done=on_done, stop=stop)
