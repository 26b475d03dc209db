"""Runs pieces of work in processes of this machine: `disks.workers.runner.Runner`, for work that Python itself does,
such as taking listings apart, of which threads do one at a time."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait

from disks.workers.python_gc import collect_seldom
from disks.workers.runner import Runner


def processes(workers: int) -> Runner:
    """Runs the pieces in so many processes, which start now, while the pieces are cut, and end with this process.

    The program's main module must do nothing when it is imported: each process imports it.
    """
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin)
    for _ in range(workers):
        pool.submit(_nothing)
    return Runner(pool)


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
