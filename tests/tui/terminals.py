"""The dashboard in a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType

from tests.homes import Home

PATIENCE_SECONDS = 120.0
_CONTROL = re.compile(rb"\x1b\[[0-9;?$<>=]*[a-zA-Z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[=>()][0-9A-B]?")

_PATIENT = """
from tiering.cli.main import main
from tui import terminal

terminal._GRACE_SECONDS = 600.0
main()
"""
"""A dashboard that does not end by force where a busy machine gives it no turn for seconds."""


class Terminal:
    """`top` in a terminal of 100x30 that is its controlling one, as over SSH, or not, as below some supervisors."""

    def __init__(self, home: Home, *, controls: bool = True, patient: bool = False, **environment: str) -> None:
        self._master, line = pty.openpty()
        fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.drawn = b""
        program = ["-c", _PATIENT] if patient else ["-m", "tiering.cli.main"]
        self.process = subprocess.Popen(
            [sys.executable, *program, "-c", str(home.configuration), "top"],
            stdin=line,
            stdout=line,
            stderr=line,
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controls else None,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        os.close(line)

    def sees(self, text: str) -> None:
        """Until that was drawn since the last key."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while text.encode() not in _CONTROL.sub(b"", self.drawn):
            assert time.monotonic() < give_up, self.drawn[-3000:]
            if select.select([self._master], [], [], 1.0)[0]:
                self.drawn += os.read(self._master, 65536)

    def drain(self) -> None:
        """Read what was drawn."""
        while select.select([self._master], [], [], 0)[0]:
            self.drawn += os.read(self._master, 65536)

    def press(self, keys: str) -> None:
        """Type."""
        self.drawn = b""
        os.write(self._master, keys.encode())

    def stuff(self, keys: str) -> None:
        """Type until what it draws, and nobody reads, has no room any more, and some more: it keeps a few screens."""
        waiting, more = -1, 60
        while more:
            os.write(self._master, keys.encode())
            time.sleep(0.05)
            before, waiting = waiting, struct.unpack("i", fcntl.ioctl(self._master, termios.FIONREAD, b"\0" * 4))[0]
            more -= waiting == before

    def resize(self, width: int, height: int) -> None:
        """As its window does; the process is told by SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def lose(self) -> None:
        """The other end goes away."""
        os.close(self._master)
        self._master = -1

    def ends(self) -> int:
        """How it ended."""
        while self._master >= 0 and self.process.poll() is None:  # else it would wait for us to read
            try:
                if select.select([self._master], [], [], 0.2)[0]:
                    self.drawn += os.read(self._master, 65536)
            except OSError:
                break
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._master >= 0:
            os.close(self._master)
        self.process.kill()
        self.process.wait()
