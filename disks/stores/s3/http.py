"""HTTP/1.1 to one server over kept connections: as much of it as S3 needs, and no more.

Why not urllib3, which boto3 brings: it adds 0.4 ms of CPU to a small put, and a third to a move of 2,000 small parts
(`benchmarks/bench_http.py`, docs/decisions/0002-signed-puts.md). It parses the few headers of an answer as a mail.

Nothing is retried, redirected or decompressed. A connection is kept after an answer that was read to its end, and is
used again only if the server has neither closed it nor sent anything since.
"""

from __future__ import annotations

import base64
import select
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from disks.stores.s3.http_answers import HttpAnswer, Pace, read_answer
from oplog.errors import UsageError

if TYPE_CHECKING:
    import ssl

_PIECE_BYTES = 256 * 1024
"""How much is sent at once: a socket's time limit holds for one piece, so a slow line may take as long as it needs."""
_MOST_IDLE = 64
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_ALWAYS = "user-agent: frostline\r\naccept-encoding: identity\r\n"


class NotConnected(OSError):
    """No connection could be made: the request was not sent. The cause says why."""


class Connections:
    """Connections to the server of a URL; each carries one request at a time. Thread-safe."""

    def __init__(self, url: str, *, ca_bundle: str | None = None, proxy_url: str | None = None) -> None:
        """`ca_bundle`: the authorities to trust instead of the system's, for https. `proxy_url` may hold a name and a
        password."""
        server = urlsplit(url)
        self._secure = server.scheme == "https"
        self._host, self._port = server.hostname or "", _port(server, 443 if self._secure else 80)
        self._ca_bundle = ca_bundle
        self._proxy = _Proxy(proxy_url) if proxy_url else None
        # What a proxy forwards names the server in each request; through a tunnel nobody but the server reads it.
        forwarded = self._proxy is not None and not self._secure
        self._before_target = f"{server.scheme}://{server.netloc}" if forwarded else ""
        self._last_lines = _ALWAYS + (self._proxy.credentials if self._proxy is not None and forwarded else "") + "\r\n"
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: memoryview | None = None,
        *,
        connect_seconds: float,
        silence_seconds: float,
    ) -> HttpAnswer:
        """Send the request and read the whole answer, whatever its status.

        Raises `NotConnected` when nothing was sent, `CutOff` for half a body, and other kinds of `OSError` (among them
        `TimeoutError` after so many seconds without a byte either way, or when bytes come by drops) when it is not
        known what the server did.
        """
        head = self._head(method, target, headers)
        connection = self._idle_connection() or self._connect(connect_seconds)
        try:
            connection.set_patience(silence_seconds)
            pace = Pace(connection.socket)
            problem = connection.send(head, body, pace)
            try:
                answer, may_be_kept = read_answer(pace, method)
            except OSError as error:
                if problem is not None:
                    raise problem from error
                raise
        except BaseException:
            connection.close()
            raise
        if may_be_kept and problem is None and not self._closed and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close what is idle now, and what is under way when its answer has come."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _head(self, method: str, target: str, headers: Mapping[str, str]) -> bytes:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        text = "\r\n".join((f"{method} {self._before_target}{target} HTTP/1.1", *lines, self._last_lines))
        try:
            head = text.encode("latin-1")
        except UnicodeEncodeError:
            head = b""
        if head.count(b"\n") != 1 + len(headers) + self._last_lines.count("\n"):
            raise UsageError(
                "a header of a request would hold a line break or a letter that no header can hold",
                hint="look for one at the end of the access key, the secret, the token or the region",
            )
        return head

    def _idle_connection(self) -> _Connection | None:
        """The one used last, so that those that are too many grow old and are closed by the server."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if not connection.is_readable():
                    return connection
                connection.close()
        return None

    def _connect(self, seconds: float) -> _Connection:
        made: socket.socket | None = None
        try:
            place = (self._proxy.host, self._proxy.port) if self._proxy is not None else (self._host, self._port)
            made = socket.create_connection(place, timeout=seconds)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure:
                if self._proxy is not None:
                    self._proxy.tunnel(made, f"{self._host}:{self._port}")
                made = self._security.wrap_socket(made, server_hostname=self._host)
            return _Connection(made, seconds, secure=self._secure)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that can be no host's
            if made is not None:
                made.close()
            raise NotConnected(str(error)) from error

    @cached_property
    def _security(self) -> ssl.SSLContext:
        import ssl  # not needed for a server in the same rack, and 10 ms to import

        return ssl.create_default_context(cafile=self._ca_bundle)


class _Proxy:
    """An HTTP proxy: it forwards requests of http, and makes a tunnel for https."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http":
            raise UsageError(f"a proxy has to be reached by http, not by {parts.scheme}", hint="HTTPS_PROXY=http://…")
        self.host, self.port = parts.hostname or "", _port(parts, 80)
        self.credentials = ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.credentials = f"proxy-authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"

    def tunnel(self, connection: socket.socket, address: str) -> None:
        """Have everything that follows forwarded unchanged to the address."""
        connection.sendall(f"CONNECT {address} HTTP/1.1\r\nhost: {address}\r\n{self.credentials}\r\n".encode())
        answer, _ = read_answer(Pace(connection), "CONNECT")
        if not 200 <= answer.status < 300:
            raise ConnectionRefusedError(f"the proxy {self.host} answered {answer.status} for {address}")


def _port(parts: SplitResult, usual: int) -> int:
    try:
        return parts.port or usual
    except ValueError as error:
        raise UsageError(f"no port of this kind: {parts.netloc.rpartition('@')[2]}", hint="1 to 65535") from error


class _Connection:
    """A socket between two requests or in the middle of one."""

    __slots__ = ("_patience_seconds", "_secure", "_watch", "socket")

    def __init__(self, made: socket.socket, patience_seconds: float, *, secure: bool) -> None:
        self.socket = made
        self._patience_seconds = patience_seconds
        self._secure = secure
        self._watch = select.poll()
        self._watch.register(made, select.POLLIN)

    def close(self) -> None:
        self.socket.close()

    def is_readable(self) -> bool:
        """Between requests: closed by the server, or no longer in step with it."""
        return bool(self._watch.poll(0))

    def set_patience(self, seconds: float) -> None:
        if seconds != self._patience_seconds:  # else it would be a system call for nothing
            self.socket.settimeout(seconds)
            self._patience_seconds = seconds

    def send(self, head: bytes, body: memoryview | None, pace: Pace) -> OSError | None:
        """Send a request; the error if the server has closed meanwhile, as one that refuses a body does: its answer
        may be waiting nevertheless."""
        try:
            if body is None or self._secure:
                self.socket.sendall(head)
            else:
                sent = self.socket.sendmsg((head, body[:_PIECE_BYTES])) - len(head)
                if sent < 0:
                    self.socket.sendall(head[sent:])
                pace.moved(max(sent, 0))
                body = body[max(sent, 0) :]
            while body:
                sent = self.socket.send(body[:_PIECE_BYTES])
                pace.moved(sent)
                body = body[sent:]
        except (BrokenPipeError, ConnectionResetError) as error:
            return error
        if _QUICK_ACK is not None:
            # Acknowledge the answer's first packet without the usual delay. A server that sends head and body apart
            # (Ceph) waits for that before the second: 44 ms for a listing of 2 ms.
            self.socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        return None
