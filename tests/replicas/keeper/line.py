"""The network between us and a ZooKeeper: a line that is cut, goes silent, or loses an answer after the request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from tests.broken_line import Line


class KeeperLine(Line):
    """A line that also loses answers: the server gets the request, and the connection breaks with what it says."""

    def __init__(self, endpoint_url: str) -> None:
        self._to_lose = 0
        self._is_mute = threading.Event()
        self._counting = threading.Lock()
        self.lost = 0
        """Answers that were lost."""
        super().__init__(endpoint_url)

    @classmethod
    @contextmanager
    def to(cls, port: int) -> Iterator[Self]:
        """A line to the server on this port; cut at the end."""
        made = cls(f"http://127.0.0.1:{port}")
        try:
            yield made
        finally:
            made.cut()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def lose_answers(self, count: int = 1) -> None:
        """What the server says next so many times is not heard."""
        with self._counting:
            self._to_lose = count

    def mute(self) -> None:
        """From now on nothing that the server says is heard; the connections stay."""
        self._is_mute.set()

    def mend(self) -> None:
        self._is_mute.clear()
        super().mend()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            says = source.getpeername() == self._server
            while data := source.recv(1 << 16):
                if says and self._loses():
                    for end in (source, target):
                        with suppress(OSError):
                            end.shutdown(socket.SHUT_RDWR)
                    return
                if not (says and self._is_mute.is_set()):
                    target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with self._lock:
            self._open.discard(source)

    def _loses(self) -> bool:
        with self._counting:
            if self._to_lose <= 0:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True
