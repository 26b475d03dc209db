"""A bounded HTTP listener: so many connections, so long for a request's head, one log line a minute for what repeats.

aiohttp accepts without a limit and waits for a first request for ever: a thousand connections that say nothing take all
descriptors of the process. Here connections that wait for a request make room for new ones, the oldest first, and each
is closed after `HEAD_SECONDS`. Errors of clients and of the system are one line, without a traceback.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

HEAD_SECONDS = 10.0
"""How long a connection may be open without the whole head of a request: at its start, and between two requests."""
_LINE_SECONDS = 60.0
_GRACE_SECONDS = 0.5
"""A connection that is open for less keeps its place."""
_PAUSE_SECONDS = 1.0
"""After no connection could be accepted."""
_BACKLOG = 128


class OncePerMinute(logging.Filter):
    """Lets one line of a kind through each minute, says how many it held back, and drops tracebacks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """A kind is all lines of one format string."""
        now, kind = self._clock(), str(record.msg)
        said, held = self._said.get(kind, (-_LINE_SECONDS, 0))
        if now - said < _LINE_SECONDS:
            self._said[kind] = (said, held + 1)
            return False
        self._said[kind] = (now, 0)
        if held:
            record.msg = f"{record.msg} (and {held} more within a minute)"
        if record.exc_info:
            error = record.exc_info[1]
            record.msg = f"{record.msg}: %s"
            record.args = (*_arguments(record.args), f"{type(error).__name__}: {error}".splitlines()[0])
            record.exc_info = None
        return True


def _arguments(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,) if given else ()


class Listener:
    """The connections of one server. Every method runs in the thread of the event loop."""

    def __init__(self, name: str, connections: int, log: logging.Logger, *, head_seconds: float = HEAD_SECONDS) -> None:
        """`name`: what the log calls it."""
        self._name, self._connections, self._head_seconds = name, connections, head_seconds
        self._log = log.getChild("http")
        self._log.filters[:] = [OncePerMinute()]
        self._waiting: dict[object, tuple[float, Callable[[], bool]]] = {}
        """Connections without a request, the oldest first: since when, and what closes each and says whether it was
        open."""
        self._timers: dict[object, asyncio.TimerHandle] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._sockets: list[socket.socket] = []
        self._opening: dict[asyncio.Task[None], asyncio.BaseProtocol | None] = {}
        """Connections that are being made, a handshake of TLS among them, and what will answer each."""
        self._answering: set[object] = set()
        """Connections with a request under way."""

    @property
    def runner_options(self) -> dict[str, Any]:
        """For `web.AppRunner`: its own log goes through this one's, and its keep-alive ends before ours."""
        return {"access_log": None, "logger": self._log, "keepalive_timeout": self._head_seconds}

    def middleware(self) -> Any:
        """The outermost middleware of the application: a request whose head has arrived has all the time it needs. What
        a handler did not foresee is an answer of 500 and one line."""
        from aiohttp import web

        @web.middleware
        async def answer(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            key = request.protocol
            self._has_head(key)
            self._answering.add(key)
            try:
                return await handler(request)
            except (web.HTTPException, ConnectionError, asyncio.CancelledError):
                raise
            except Exception:  # noqa: BLE001  whatever it is, the server goes on
                self._log.warning("%s: a request was not answered", self._name, exc_info=True)
                return web.Response(status=500, text="the server failed at this request\n")
            finally:
                self._answering.discard(key)
                self._waits(key, request.transport)

        return answer

    async def begin(
        self, runner: web.AppRunner, host: str, port: int, ssl_context: ssl.SSLContext | None = None
    ) -> int:
        """Listen; returns the port. The runner is set up. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failed)
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            listening = socket.socket(family, kind, protocol)
            self._sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == 0 and len(self._sockets) > 1:
                address = (address[0], self._sockets[0].getsockname()[1], *address[2:])
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
        for listening in self._sockets:
            self._accepting.append(loop.create_task(self._accept(listening, runner, ssl_context)))
        return int(self._sockets[0].getsockname()[1])

    async def end(self) -> None:
        """Accept no more. What is open is the runner's."""
        for task in (*self._accepting, *self._opening):
            task.cancel()
        await asyncio.gather(*self._accepting, *self._opening, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        for timer in self._timers.values():
            timer.cancel()

    async def _accept(self, listening: socket.socket, runner: web.AppRunner, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                self._log.warning("%s: no connection can be accepted: %s", self._name, error.strerror or error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            assert runner.server is not None
            await asyncio.sleep(0)  # what arrived on others is read first: they may have a request by now
            if self._in_use(runner.server) >= self._connections and not await self._make_room():
                self._log.warning("%s: refused a connection: %s are in use", self._name, self._connections)
                connection.close()
                continue
            task = loop.create_task(self._connect(connection, runner, tls))
            self._opening[task] = None
            self._waiting[task] = (loop.time(), task.cancel)
            task.add_done_callback(self._opened)

    def _in_use(self, server: web.Server) -> int:
        """How many connections there are, each counted once while it passes from one to the other."""
        there = server.connections
        made = set(there)
        return len(there) + sum(protocol not in made for protocol in self._opening.values())

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.pop(task, None)
        self._waiting.pop(task, None)

    async def _connect(self, connection: socket.socket, runner: web.AppRunner, tls: ssl.SSLContext | None) -> None:
        loop, server = asyncio.get_running_loop(), runner.server
        seconds = self._head_seconds if tls is not None else None

        def answering() -> asyncio.BaseProtocol:
            assert server is not None
            protocol = server()
            if (task := asyncio.current_task()) is not None:
                self._opening[task] = protocol
            return protocol

        try:
            transport, protocol = await loop.connect_accepted_socket(
                answering, connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except (TimeoutError, OSError, ssl.SSLError) as error:
            connection.close()
            self._log.info("%s: a connection failed before its first request: %s", self._name, error)
        except BaseException:
            connection.close()
            raise
        else:
            if protocol not in self._answering:
                self._waits(protocol, transport)

    async def _make_room(self) -> bool:
        """Close the connection that has waited for longest; False when none waits. One that is just open has a moment
        first, else a flood would close those that are about to ask."""
        while self._waiting:
            key = next(iter(self._waiting))
            since, close = self._waiting[key]
            grace = min(_GRACE_SECONDS, self._head_seconds) - (asyncio.get_running_loop().time() - since)
            if grace > 0:
                await asyncio.sleep(grace)
                if next(iter(self._waiting), None) is not key:
                    continue
            self._has_head(key)
            if close():
                return True
        return False

    def _waits(self, key: object, transport: asyncio.BaseTransport | None) -> None:
        if transport is None or transport.is_closing():
            return
        self._has_head(key)

        def close() -> bool:
            if transport.is_closing():
                return False
            transport.abort()  # type: ignore[attr-defined]
            return True

        self._waiting[key] = (asyncio.get_running_loop().time(), close)
        self._timers[key] = asyncio.get_running_loop().call_later(self._head_seconds, self._too_late, key)

    def _has_head(self, key: object) -> None:
        self._waiting.pop(key, None)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _too_late(self, key: object) -> None:
        self._timers.pop(key, None)
        if (waiting := self._waiting.pop(key, None)) is not None:
            waiting[1]()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio has nobody to tell: a client that went away within a handshake, for one."""
        error = context.get("exception")
        self._log.warning("%s: %s", self._name, f"{context.get('message')}: {error}" if error else context["message"])
