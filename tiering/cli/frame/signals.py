"""Where a signal may end what the main thread does: not while it hands work to threads.

Python's pools, queues and threads keep locks in code that is itself Python. An exception that a signal raises within
those few instructions leaves the lock held, and its next user waits for ever. It is raised a moment later there.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FrameType

Handler = Callable[[int, FrameType | None], None]

_LATER_SECONDS = 0.005
_MOST_DELAYS = 60
"""What is not left by then is a wait, and no bookkeeping: it is ended all the same."""
_HANDS_OVER = {ThreadPoolExecutor.submit.__code__, threading.Thread.start.__code__}
"""Unsafe with all that they call, and so is `submit` of a pool of processes."""
_PROCESSES = "concurrent.futures.process"
_WAITS = {threading.Condition.wait.__code__}
"""Safe as the innermost call: it has given its lock back, and takes it again after any exception."""
_BOOKKEEPING = {
    "threading",
    "queue",
    "concurrent.futures._base",
    "concurrent.futures.thread",
    _PROCESSES,
}


def raising(ended_by: Callable[[], BaseException], later: Callable[[Handler], None] | None = None) -> Handler:
    """A handler that raises what it is given where that leaves no lock held, and else has `later` call it again."""
    delays = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal delays
        if delays < _MOST_DELAYS and keeps_lock(frame):
            delays += 1
            (later or _alarm)(handle)
            return
        delays = 0
        raise ended_by()

    return handle


def keeps_lock(frame: FrameType | None) -> bool:
    """Whether an exception raised in this frame might leave a lock of Python's library held."""
    if frame is None:
        return False
    if frame.f_code not in _WAITS and frame.f_globals.get("__name__") in _BOOKKEEPING:
        return True
    # Most commands have no processes, whose modules take long to import: they are in no frame then.
    processes = sys.modules.get(_PROCESSES)
    unsafe = {*_HANDS_OVER, processes.ProcessPoolExecutor.submit.__code__} if processes else _HANDS_OVER
    return any(code in unsafe for code in _calls(frame))


def _calls(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _alarm(handle: Handler) -> None:
    """Have the handler called again soon. No thread: starting one is among what must not be interrupted."""
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, _LATER_SECONDS)
