"""A runner that shows how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from disks.workers.progress import Progress
from disks.workers.runner import Runner

T = TypeVar("T")
R = TypeVar("R")


class ShownRunner:
    """Runs pieces as another runner does, with a task of the progress for each run."""

    def __init__(self, runner: Runner, progress: Progress) -> None:
        self._runner, self._progress = runner, progress

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        title: str,
        on_done: Callable[[int, R], None],
        stop: threading.Event | None = None,
    ) -> None:
        """As `Runner.run`."""
        with self._progress.task(title, items=len(items)) as task:

            def done(index: int, result: R) -> None:
                on_done(index, result)
                task.advance(items=1)

            self._runner.run(function, items, title=title, on_done=done, stop=stop)
