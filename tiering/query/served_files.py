"""Files of a query for the engine's own S3 client, from a server on loopback.

The engine takes no object store of ours, checks no checksums and has a client of its own. So that its reads of cold
parts go through our stores (limits, retries, certificates, answers that are the whole object) and every byte is
compared with what was written, it is told of one bucket, whose name nobody else on this machine can guess. What it asks
for is read by whole sections (`tiering.parquet.checked_file`); a read that fails is remembered, and the engine is told
no more than that.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from datafusion.object_store import AmazonS3

from tiering.parquet.checked_file import CheckedFile

_HOST = "127.0.0.1"
_MOST_LINE_BYTES = 16 * 1024
_RANGE = re.compile(rb"bytes=(\d+)-(\d*)\Z")
_FORBIDDEN, _UNREADABLE, _NO_RANGE = b"403 Forbidden", b"400 Bad Request", b"416 Range Not Satisfiable"
_DATE = b"last-modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
"""The engine wants one; a file of a part never changes."""
_environment_lock = threading.Lock()


class ServedFiles:
    """A server for one query. Files are added before the engine asks for them; `close` ends it."""

    def __init__(self) -> None:
        self.bucket = secrets.token_hex(16)
        self._files: dict[bytes, CheckedFile] = {}
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = False
        self.failure: Exception | None = None
        """Why a read failed; the first one, if several did."""
        self._listener = socket.create_server((_HOST, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="served-files", daemon=True).start()

    def add(self, file: CheckedFile) -> str:
        """The key under which the engine finds the file from now on."""
        key = f"part-{len(self._files)}.parquet"
        self._files[f"/{self.bucket}/{key}".encode()] = file
        return key

    def engine_store(self) -> AmazonS3:
        """The server, as the engine registers a store."""
        with _environment():
            return AmazonS3(
                bucket_name=self.bucket,
                region="us-east-1",
                access_key_id=self.bucket,
                secret_access_key=self.bucket,
                endpoint=f"http://{_HOST}:{self.port}",
                allow_http=True,
            )

    def close(self) -> None:
        """End the server and all its connections."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        try:
            # A thread that waits in accept() is woken by a connection everywhere, by a close not.
            socket.create_connection((_HOST, self.port), timeout=1).close()
        except OSError:
            pass
        self._listener.close()
        for connection in connections:
            _shut(connection)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._connections.add(connection)
            threading.Thread(target=self._converse, args=(connection,), name="served-file", daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        """Answer the requests of a connection, one after the other, until it ends."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection.makefile("rb") as requests:
                while (request := _next_request(requests)) is not None:
                    self._answer(connection, *request)
        except (OSError, ValueError):
            return  # the engine went away: it has what it wanted
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, method: bytes, path: bytes, wanted: bytes | None) -> None:
        file = self._files.get(path)
        if file is None or method not in (b"GET", b"HEAD"):
            connection.sendall(_head(_FORBIDDEN, 0))
            return
        size = file.size()
        if method == b"HEAD":
            connection.sendall(_head(b"200 OK", size, _DATE))
            return
        start, stop = _bounds(wanted, size)
        if not start < stop:
            connection.sendall(_head(_NO_RANGE, 0))
            return
        pieces = self._pieces(file, start, stop)
        if pieces is None:
            connection.sendall(_head(_UNREADABLE, 0))
            return
        status = b"200 OK" if wanted is None else b"206 Partial Content"
        place = b"" if wanted is None else f"content-range: bytes {start}-{stop - 1}/{size}\r\n".encode()
        connection.sendall(_head(status, stop - start, _DATE + place))
        for piece in pieces:
            connection.sendall(piece)

    def _pieces(self, file: CheckedFile, start: int, stop: int) -> Sequence[memoryview] | None:
        try:
            return file.pieces(start, stop)
        except Exception as error:  # noqa: BLE001 - whatever it is, the query ends with it
            with self._lock:
                self.failure = self.failure or error
            return None


def _next_request(requests: BinaryIO) -> tuple[bytes, bytes, bytes | None] | None:
    """Method, path and the range that is asked for; None when there are no more requests."""
    words = requests.readline(_MOST_LINE_BYTES).split()
    if len(words) != 3:
        return None
    wanted = None
    while (line := requests.readline(_MOST_LINE_BYTES)) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"range":
            wanted = value.strip()
    return words[0], words[1], wanted


def _bounds(wanted: bytes | None, size: int) -> tuple[int, int]:
    if wanted is None:
        return 0, size
    match = _RANGE.match(wanted)
    if match is None:
        return 0, 0
    return int(match[1]), min(int(match[2]) + 1, size) if match[2] else size


def _head(status: bytes, size_bytes: int, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + more + f"content-length: {size_bytes}\r\n\r\n".encode()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@contextmanager
def _environment() -> Iterator[None]:
    """The engine's client takes its proxy, its endpoint and how a bucket is addressed from the environment, when it is
    made: for a server on loopback none of that is meant."""
    wanted = {"NO_PROXY": _HOST, "no_proxy": _HOST, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}
    unwanted = ("AWS_ENDPOINT_URL_S3", "AWS_S3_EXPRESS")
    with _environment_lock:
        before = {name: os.environ.get(name) for name in (*wanted, *unwanted)}
        for name in unwanted:
            os.environ.pop(name, None)
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
