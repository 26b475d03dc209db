"""Where a signal may end what the main thread does: not while it hands work to threads. And when it ends the process.

Python's pools, queues and threads keep locks in code that is itself Python. An exception that a signal raises within
those few instructions leaves the lock held, and its next user waits for ever. It is raised a moment later there.

The exception alone does not end a verb in time. Native code returns to Python when it is done, a pool waits for what
its threads have begun, and what is raised within a finalizer is lost. `end_in_time` ends the process then; a clean-up
that is owed has longer.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import CodeType, FrameType
from weakref import WeakKeyDictionary

from disks.host.clean_up import is_clean_up_owed
from tiering.cli.frame.exit_codes import INTERRUPTED, TERMINATED

Handler = Callable[[int, FrameType | None], None]

STOPPED = {
    TERMINATED: "frostline: stopped by SIGTERM; the next command continues the work",
    INTERRUPTED: "\nfrostline: interrupted; the next command continues the work",
}
_CODES: dict[int, int] = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED}
_MOST_SECONDS = 0.5
"""From the signal to the end of the process. What is cut off is mended by the next command, as after a kill."""
_MOST_CLEAN_UP_SECONDS = 30.0
"""The same while a clean-up is owed. It ends soon after the last one."""
_LOOK_SECONDS = 0.05
_ends_within: WeakKeyDictionary[Handler, float] = WeakKeyDictionary()
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

    ends_within(handle, _MOST_SECONDS)
    return handle


def ends_within(handler: Handler, seconds: float) -> None:
    """So long a process may take to end after a signal that this handler answers."""
    _ends_within[handler] = seconds


def end_in_time() -> None:
    """From now on Ctrl-C and SIGTERM end this process soon, whatever its main thread does. Not where a handler answers
    that no limit was set for, as in the dashboard. For the entry point of a process."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written to at once, also within native code
    except ValueError:  # not the main thread
        os.close(reader)
        os.close(writer)
        return
    threading.Thread(target=_end_after_signal, args=(reader,), name="end in time", daemon=True).start()


def _end_after_signal(reader: int) -> None:
    while arrived := os.read(reader, 1):
        code = _CODES.get(arrived[0])
        handler = signal.getsignal(arrived[0]) if code is not None else None
        seconds = _ends_within.get(handler) if callable(handler) else None
        if code is not None and seconds is not None:
            begun = time.monotonic()
            end = begun + seconds
            while True:
                if is_clean_up_owed():
                    end = min(max(end, time.monotonic() + _MOST_SECONDS), begun + _MOST_CLEAN_UP_SECONDS)
                if time.monotonic() >= end:
                    break
                time.sleep(_LOOK_SECONDS)
            with suppress(OSError):  # past Python's streams, whose locks may be held
                os.write(2, f"{STOPPED[code]}\n".encode())
            os._exit(code)


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
