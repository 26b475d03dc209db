"""The answers of an HTTP/1.1 server, read from a socket: their head, and a body of any of the three forms."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Mapping

import msgspec

from oplog.bounds import check_received

_RECEIVE_BYTES = 64 * 1024
_MOST_HEAD_BYTES = 256 * 1024
_MOST_AHEAD_BYTES = 64 * 1024 * 1024
"""So much memory is taken for a body before any of it has come: the length that a server announces proves nothing."""
_SLOWEST_BYTES_A_SECOND = 1024


class NotHttp(OSError):
    """The answer is not HTTP/1.x."""


class CutOff(OSError):
    """The body of an answer ended before its announced length."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """Names of headers are in lower case, values as Latin-1; those of one name are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Pace:
    """Bytes of one exchange over a socket, either way, and how slowly they may come.

    The socket's own time limit is that of a silence: a server that says one byte a minute would never reach it. So what
    takes more than twice that time must come at a kilobyte a second at the least, on the whole; else `TimeoutError`.
    """

    __slots__ = ("_deadline", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        patience_seconds = connection.gettimeout()
        self._deadline = None if patience_seconds is None else time.monotonic() + 2 * patience_seconds

    def receive(self) -> bytes:
        data = self.socket.recv(_RECEIVE_BYTES)
        self.moved(len(data))
        return data

    def receive_into(self, view: memoryview) -> int:
        count = self.socket.recv_into(view)
        self.moved(count)
        return count

    def moved(self, count_bytes: int) -> None:
        """So many bytes were sent or received."""
        if self._deadline is not None:
            self._deadline += count_bytes / _SLOWEST_BYTES_A_SECOND
            if time.monotonic() > self._deadline:
                raise TimeoutError(f"fewer than {_SLOWEST_BYTES_A_SECOND} bytes a second")


def read_answer(pace: Pace, method: str) -> tuple[HttpAnswer, bool]:
    """The answer to a request of this method, and whether the connection may carry another one."""
    rest = b""
    while True:
        head, rest = _read_head(pace, rest)
        version, status, headers = _parse_head(head)
        if status >= 200:  # else: 100 (continue), which we did not wait for
            break
    lasting = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if method in ("HEAD", "CONNECT") or status in (204, 304):
        return HttpAnswer(status, headers, b""), lasting and not rest
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body, rest = _read_chunks(pace, rest)
    elif (length := headers.get("content-length")) is not None:
        body, rest = _read_exactly(pace, rest, _number(length, 10))
    else:
        body, lasting = _read_to_end(pace, rest), False
        rest = b""
    return HttpAnswer(status, headers, body), lasting and not rest


def _read_head(pace: Pace, data: bytes) -> tuple[str, bytes]:
    """The lines of a head, and what came after it."""
    while (end := data.find(b"\r\n\r\n")) < 0:
        more = pace.receive()
        if not more:
            raise ConnectionResetError("the server closed the connection without an answer")
        data += more
        if len(data) > _MOST_HEAD_BYTES:
            raise NotHttp("the answer has no end of its headers")
    return data[:end].decode("latin-1"), data[end + 4 :]


def _parse_head(head: str) -> tuple[str, int, dict[str, str]]:
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise NotHttp(f"the answer is not HTTP: {first[:40]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise NotHttp(f"the answer has a header without a name: {line[:40]!r}")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return version, int(rest[:3]), headers


def _read_exactly(pace: Pace, data: bytes, size_bytes: int) -> tuple[bytes, bytes]:
    """So many bytes, which begin with these, and what came after them."""
    check_received(size_bytes)
    if len(data) >= size_bytes:
        return (data, b"") if len(data) == size_bytes else (data[:size_bytes], data[size_bytes:])
    # Written behind its end, a BytesIO grows at once, and gives its bytes away without a copy: a second 8 MiB of fresh
    # memory would cost more than all the rest.
    whole, filled = io.BytesIO(data), len(data)
    while filled < size_bytes:
        room = min(size_bytes, filled + _MOST_AHEAD_BYTES)
        whole.seek(room - 1)
        whole.write(b"\0")
        with whole.getbuffer() as view:
            while filled < room:
                count = pace.receive_into(view[filled:])
                if not count:
                    raise CutOff(f"{filled} of {size_bytes} bytes arrived")
                filled += count
    return whole.getvalue(), b""


def _read_chunks(pace: Pace, data: bytes) -> tuple[bytes, bytes]:
    """A body in chunks, and what came after it."""
    chunks: list[bytes] = []
    received = 0
    while True:
        line, data = _read_line(pace, data)
        size_bytes = _number(line.partition(b";")[0].decode("latin-1"), 16)
        if not size_bytes:
            break
        received += size_bytes
        check_received(received)
        chunk, data = _read_exactly(pace, data, size_bytes + 2)
        chunks.append(chunk[:-2])
    while line:  # trailers, then an empty line
        line, data = _read_line(pace, data)
    return b"".join(chunks), data


def _read_line(pace: Pace, data: bytes) -> tuple[bytes, bytes]:
    while (end := data.find(b"\r\n")) < 0:
        more = pace.receive()
        if not more:
            raise CutOff("the body ended within its chunks")
        data += more
        if len(data) > _MOST_HEAD_BYTES:
            raise NotHttp("a chunk has no size")
    return data[:end], data[end + 2 :]


def _read_to_end(pace: Pace, data: bytes) -> bytes:
    pieces, received = [data], len(data)
    while pieces[-1] or len(pieces) == 1:
        pieces.append(pace.receive())
        received += len(pieces[-1])
        check_received(received)
    return b"".join(pieces)


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise NotHttp(f"the answer has an impossible length: {text[:40]!r}")
    return number
