"""A program in a terminal of 120x40 that nobody sees: what it draws is read at once, and it is timed when."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import resource
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path
from types import TracebackType

_CONTROL = re.compile(rb"\x1b\[[0-9;?$<>=:]*[a-zA-Z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[=>()][0-9A-B]?")
_PATIENCE_SECONDS = 120.0


class PseudoTerminal:
    """The program, and the terminal that is its controlling one. Ended with the context."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self._master, line = pty.openpty()
        fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._drawn = b""
        self._more = threading.Condition()
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=line,
            stdout=line,
            stderr=line,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment},
        )
        os.close(line)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            with self._more:
                self._drawn += data
                self._more.notify()

    def sees(self, text: str) -> float:
        """Seconds since the program was started, or the last key was pressed, until that was drawn."""
        wanted, give_up = text.encode(), time.perf_counter() + _PATIENCE_SECONDS
        with self._more:
            while wanted not in _CONTROL.sub(b"", self._drawn):
                self._more.wait(1.0)
                if time.perf_counter() > give_up:
                    raise TimeoutError(f"{text!r} was not drawn; the last: {self._drawn[-2000:]!r}")
            return time.perf_counter() - self._began

    def press(self, key: str, text: str) -> float:
        """Seconds until the key has that effect."""
        with self._more:
            self._drawn = b""
        self._began = time.perf_counter()
        os.write(self._master, key.encode())
        return self.sees(text)

    def cpu_seconds(self) -> float:
        """What it took of processors so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Its memory now."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)
