"""Runs pieces of work in processes of this machine: `disks.workers.runner.Runner`, for work that Python itself does,
such as taking listings apart, of which threads do one at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait

from disks.workers.python_gc import collect_seldom
from disks.workers.runner import PoolRunner, R, T
from oplog.errors import FrostlineError


class ProcessRunner(PoolRunner):
    """Runs the pieces in so many processes, which start now, while the pieces are cut, and end with this process.

    The program's main module must do nothing when it is imported: each process imports it.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin))
        for _ in range(workers):
            self._pool.submit(_nothing)

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        title: str,
        on_done: Callable[[int, R], None],
        stop: threading.Event | None = None,
    ) -> None:
        """As `Runner.run`. Raises `FrostlineError` when one of the processes is killed."""
        try:
            super().run(function, items, title=title, on_done=on_done, stop=stop)
        except BrokenExecutor as error:
            raise FrostlineError(
                f"{title}: a process that worked on it died; for lack of memory, perhaps", hint="run it again"
            ) from error


def _nothing() -> None:
    """The first piece of each process: what takes time is to start it."""


def _begin() -> None:
    """Ctrl-C is for the process that gives out the work; when that ends, however it does, so does this one."""
    collect_seldom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def end_with_parent() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
