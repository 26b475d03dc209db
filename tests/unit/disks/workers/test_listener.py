"""A listener stays open whatever connects to it (I24): floods, half requests, bytes that are no request."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
from aiohttp import web

from disks.workers.listener import Listener, OncePerMinute

CONNECTIONS = 8
KEPT = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
GET = KEPT[:-2] + b"Connection: close\r\n\r\n"
MALFORMED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
    "a deep body": b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 40000\r\n\r\n" + b"[" * 40_000,
    "bytes in a header": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: \xff\xfe\xc3\r\n\r\n",
    "bytes in the path": b"GET /\xff%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a header of 1 MiB": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(5000)) + b"\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length that is none": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    "a chunk that is none": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "half a head": b"GET / HTTP/1.1\r\nHos",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a handler that fails": b"GET /fails HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
}


class Served:
    """A server with one page, in a thread of its own."""

    def __init__(self, head_seconds: float = 1.0, ask: Callable[[], object] = lambda: None) -> None:
        self._head_seconds, self._ask = head_seconds, ask
        self._loop = asyncio.new_event_loop()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Served:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        async def page(request: web.Request) -> web.Response:
            if request.path == "/fails":
                raise RuntimeError("unforeseen")
            await asyncio.to_thread(self._ask)
            return web.Response(text="page")

        async def begin() -> None:
            listener = Listener("test", CONNECTIONS, logging.getLogger("test"), head_seconds=self._head_seconds)
            app = web.Application(middlewares=[listener.middleware()])
            app.router.add_get("/", page)
            app.router.add_get("/fails", page)
            self.runner = web.AppRunner(app, shutdown_timeout=0.1, **listener.runner_options)
            await self.runner.setup()
            self.listener, self.port = listener, await listener.begin(self.runner, "127.0.0.1", 0)

        async def end() -> None:
            await self.listener.end()
            await self.runner.cleanup()

        self._loop.set_default_executor(ThreadPoolExecutor(CONNECTIONS))
        self._loop.run_until_complete(begin())
        self._begun.set()
        self._loop.run_forever()
        self._loop.run_until_complete(end())
        self._loop.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def asked(self, request: bytes) -> bytes:
        """All that is answered until the server closes."""
        with self.connect() as connection:
            try:
                connection.sendall(request)
                return b"".join(iter(lambda: connection.recv(65536), b""))
            except ConnectionError:
                return b""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as server:
        yield server


def is_whole(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"page")


def test_idle_connections_make_room(served: Served) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(served.connect()) for _ in range(5 * CONNECTIONS)]
        assert is_whole(served.asked(GET))
        assert len(served.runner.server.connections if served.runner.server else ()) <= CONNECTIONS
        del idle


@pytest.mark.in_turn
@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost", KEPT + b"GET /"], ids=["none", "half", "the second"])
def test_a_head_has_its_time(served: Served, head: bytes) -> None:
    """Without a limit of the listener this test never ends."""
    assert served.asked(head) in (b"",) or is_whole(served.asked(head))


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED)
def test_no_malformed_request_leaves_a_traceback(
    served: Served, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    served.listener._log.filters[:] = [OncePerMinute()]
    for _ in range(3):
        served.asked(request_bytes) if request_bytes[-3:] != b"Hos" else None
    served.asked(request_bytes)
    assert is_whole(served.asked(GET))
    assert "Traceback" not in caplog.text
    assert len(caplog.records) <= 2


def test_a_request_under_way_is_not_cut(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by its age nor by others that need room; those are refused."""
    arrived, goes_on = threading.Semaphore(0), threading.Event()

    def ask() -> None:
        arrived.release()
        goes_on.wait(60)

    with Served(ask=ask) as server, ExitStack() as stack:
        under_way = [stack.enter_context(server.connect()) for _ in range(CONNECTIONS)]
        for connection in under_way:
            connection.sendall(GET)
        assert all(arrived.acquire(timeout=60) for _ in under_way)
        assert server.asked(GET) == b""
        assert "refused a connection" in caplog.text
        goes_on.set()
        for connection in under_way:
            assert is_whole(b"".join(iter(partial(connection.recv, 65536), b"")))


def test_one_line_a_minute_for_what_repeats(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = logging.getLogger("test.lines")
    log.filters[:] = [OncePerMinute(lambda: now[0])]
    for _ in range(1000):
        log.warning("no connection can be accepted: %s", "too many open files")
    assert len(caplog.messages) == 1
    now[0] = 61.0
    try:
        raise ValueError("bad\nsecond line")
    except ValueError:
        log.exception("no connection can be accepted: %s", "too many open files")
    assert caplog.messages[1].endswith("(and 999 more within a minute): ValueError: bad")
    assert "Traceback" not in caplog.text
