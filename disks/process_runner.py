"""Runs pieces of work in processes of this machine: `disks.runner.Runner`, for work that Python itself does, such as
taking listings apart, of which threads do one at a time."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait

from disks.runner import PoolRunner


class ProcessRunner(PoolRunner):
    """Runs the pieces in so many processes, which start with the first pieces and end with this process.

    The program's main module must do nothing when it is imported: each process imports it.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin))


def _begin() -> None:
    """Ctrl-C is for the process that gives out the work; when that ends, however it does, so does this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def end_with_parent() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
