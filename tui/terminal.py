"""The terminal that the dashboard is drawn in: one that goes away ends it, and nothing keeps a signal from ending it.

textual writes from a thread, which dies with the terminal; then its queue fills, and what draws waits for ever.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from tui.app import Dashboard
    from tui.source import Source

_GRACE_SECONDS = 5.0
"""How long a dashboard may take for its screen when it has to end; running work is waited for in any case."""


class TerminalDriver(LinuxDriver):
    """textual's own, which survives that its terminal is gone, and that others had it meanwhile."""

    def __init__(self, *arguments: Any, **how: Any) -> None:
        super().__init__(*arguments, **how)
        self._file: Any = _Lasting(self._file)

    def _sigtstp_application(self, *_: Any) -> None:
        if not self._soon(super()._sigtstp_application):
            os.kill(os.getpid(), signal.SIGSTOP)

    def _sigcont_application(self, *_: Any) -> None:
        self._soon(self._take_again)

    def _soon(self, act: Callable[[], None]) -> bool:
        """Have the dashboard do it between two of its steps, while there is one: what a signal interrupts may hold the
        lock of what is to be written, and a lost terminal brings SIGCONT with SIGHUP."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(act)
            return True
        return False

    def _take_again(self) -> None:
        """Take the terminal again. Who was stopped by a SIGSTOP could not give it back before: else it would have two
        threads that read keys."""
        if self._auto_restart:
            if not self._must_signal_resume:
                self.suspend_application_mode()
                self._must_signal_resume = True
            self.resume_application_mode()

    def _run_input_thread(self) -> None:
        with suppress(OSError):  # EIO: `ended_by` has seen it, too
            self.run_input_thread()


class _Lasting:
    """A stream to a terminal; what is written when that has gone goes nowhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


def ended_by(board: Dashboard, source: Source) -> Callable[[], None]:
    """Let SIGTERM, SIGHUP and the loss of the terminal end the dashboard, as `q` does without a question: what runs
    stops between two of its steps. Where its screen cannot even be put back, because nobody reads it, it ends by force
    after that. Returns what to call when the dashboard has ended by itself."""
    ended = threading.Event()
    told, tell = os.pipe()  # a handler takes no locks: what the signal interrupts may hold them
    os.set_blocking(tell, False)

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(tell, bytes([number]))

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)

    def watch() -> None:
        """A terminal that is not the controlling one sends no SIGHUP when it goes."""
        poll = select.poll()
        poll.register(told, select.POLLIN)
        poll.register(sys.__stdin__, 0)  # type: ignore[arg-type]
        found = dict(poll.poll())
        if not ended.is_set():
            _exit_between_steps(board)
            _insist(ended, source, os.read(told, 1)[0] if told in found else signal.SIGHUP)

    threading.Thread(target=watch, name="dashboard: end", daemon=True).start()
    return ended.set


def _exit_between_steps(board: Dashboard) -> None:
    """Have the dashboard exit by its own thread: what puts a screen up does not come upon the end halfway."""
    loop = board._loop
    if loop is None:  # it has not begun
        board.exit()
        return
    with suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(board.exit)


def _insist(ended: threading.Event, source: Source, number: int) -> None:
    if not ended.wait(_GRACE_SECONDS):
        source.close()
        source.wait()
        os._exit(128 + number)
