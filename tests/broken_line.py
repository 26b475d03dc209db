"""The network between us and an S3 server, for tests that take it away and measurements that make it longer: a
forwarder on loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Line:
    """Forwards to a server. `cut` refuses connections and breaks those that exist; `mend` listens again."""

    def __init__(self, endpoint_url: str, *, delay_seconds: float = 0) -> None:
        """`delay_seconds`: so long each request is on its way."""
        self._delay_seconds = delay_seconds
        self.requests = 0
        """Those that were delayed."""
        self._asked: set[socket.socket] = set()
        """Connections to the server whose request is on its way, or is being answered."""
        parts = urlsplit(endpoint_url)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self.port = 0
        self.connections = 0
        """Connections that were asked for while the line was up."""
        self.mend()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def silence(self) -> None:
        """Connections are made, and nothing is ever answered."""
        self.cut()
        self._listener = socket.create_server(("127.0.0.1", self.port))

    def cut(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
            ends = list(self._open)
            self._open.clear()
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(self._server, timeout=60)
            except OSError:
                client.close()
                continue
            with self._lock:
                if self._listener is None:
                    client.close()
                    server.close()
                    return
                self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            is_request = source.getpeername() != self._server
            while data := source.recv(1 << 18):
                if self._delay_seconds:
                    self._delay(target if is_request else source, is_request=is_request)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with self._lock:
            self._open.discard(source)

    def _delay(self, server: socket.socket, *, is_request: bool) -> None:
        """Wait with the first bytes of a request; those after an answer are the next one's."""
        with self._lock:
            is_first = is_request and server not in self._asked
            self._asked = self._asked | {server} if is_request else self._asked - {server}
            self.requests += is_first
        if is_first:
            time.sleep(self._delay_seconds)


@contextmanager
def line_to(endpoint_url: str, *, delay_seconds: float = 0) -> Iterator[Line]:
    """A line that is up; cut at the end."""
    line = Line(endpoint_url, delay_seconds=delay_seconds)
    try:
        yield line
    finally:
        line.cut()
