"""Work whose every piece dies on its first attempt, as an executor that is killed in the middle of its work."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disks.workers.runner import Hook, Run


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


def dying(notes: Path, every: int = 1) -> Hook:
    """A hook of a runner whose pieces die once, `every` so many."""
    runs = itertools.count(1)

    @contextmanager
    def hook(run: Run) -> Iterator[Run]:
        of_run = notes / str(next(runs))
        of_run.mkdir(parents=True)
        for number in range(len(run.items)):
            if number % every:
                (of_run / str(number)).touch()
        yield run._replace(function=Dying(run.function, of_run), items=list(enumerate(run.items)))

    return hook
