"""Serves the dashboard to browsers of this machine: a page of ours, and a websocket a viewer. It fetches nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any

from aiohttp import WSMsgType, web

from disks.workers.listener import Listener
from oplog.errors import UsageError
from tiering.config.escaping import visible
from tui.serving.gate import COOKIE, Gate, Pass
from tui.serving.viewer import Viewer

_FILES = {
    "": ("index.html", "text/html"),
    **{name: (name, "text/javascript") for name in ("xterm.js", "addon-fit.js", "page.js")},
    **{name: (name, "text/css") for name in ("xterm.css", "page.css")},
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VIEWERS = 16
_CONNECTIONS = 64
_MESSAGE_BYTES = 64 * 1024
"""More is nothing that somebody types or pastes at once."""
_HEARTBEAT_SECONDS = 15.0
"""A tab that does not answer for so long is gone."""
_WIDTHS, _HEIGHTS = (20, 1000), (5, 500)

log = logging.getLogger("frostline.dashboard")


class Server:
    """The dashboards that are looked at. `command` starts one."""

    def __init__(self, command: Sequence[str], tell: Callable[[str], None]) -> None:
        self._command, self._tell = command, tell
        self._gate = Gate(0)
        self._sockets: set[web.WebSocketResponse] = set()
        self._ending: set[asyncio.Task[str]] = set()

    async def run(self, port: int) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP; then let the viewers end. Raises `UsageError` for a port in use."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        listener = Listener("dashboard", _CONNECTIONS, log)
        app = web.Application(middlewares=[listener.middleware(), self._guard])
        app.router.add_get("/", self._enter, allow_head=False)
        app.router.add_get("/{path}/socket", self._look, allow_head=False)
        app.router.add_get("/{path}/{name:[a-z.-]*}", self._file, allow_head=False)
        runner = web.AppRunner(app, shutdown_timeout=1.0, **listener.runner_options)
        await runner.setup()
        try:
            self._gate = Gate(await listener.begin(runner, "127.0.0.1", port))
        except OSError as error:
            await listener.end()
            await runner.cleanup()
            raise UsageError(
                f"cannot serve on port {port}: {error.strerror}", hint="--serve 0 takes a free port"
            ) from error
        self._tell(self._gate.address)
        try:
            await stop.wait()
        finally:
            for number in _SIGNALS:  # a second one ends it at once, and with it the viewers
                loop.remove_signal_handler(number)
            for socket in list(self._sockets):
                await socket.close(code=1001, message=b"The server has ended.")
            await listener.end()
            await runner.cleanup()
            await asyncio.gather(*self._ending)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse what does not come from our own page or an address bar; say to browsers what ours may do."""
        objection = self._gate.objection(request.headers, needs_origin=request.path.endswith("/socket"))
        answer: web.StreamResponse
        if objection:
            answer = _refusal(objection)
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:  # no such page, or not asked for by GET
                answer = web.Response(status=error.status, text=error.reason)
        if not answer.prepared:
            answer.headers.update(_headers(request.headers.get("Host", "")))
        return answer

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """The address of the terminal becomes a cookie."""
        admitted = self._gate.admit(request.query.get("token", ""))
        if admitted is None:
            return _refusal("this address was used already; the terminal shows a new one")
        self._tell(f"for another browser: {self._gate.address}")
        answer = web.Response(status=303, headers={"Location": f"/{admitted.path}/"})
        answer.set_cookie(COOKIE, admitted.cookie, path=f"/{admitted.path}/", httponly=True, samesite="Strict")
        return answer

    def _admitted(self, request: web.Request) -> bool:
        held = Pass(request.match_info["path"], request.cookies.get(COOKIE, ""))
        return self._gate.knows(held.path, held.cookie)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        """The page, and what it is made of."""
        if not self._admitted(request):
            return _refusal("open the address shown in the terminal")
        name, kind = _FILES.get(request.match_info["name"], ("", ""))
        if not name:
            raise web.HTTPNotFound
        body = (resources.files("tui.serving") / "static" / name).read_bytes()
        return web.Response(body=body, content_type=kind, charset="utf-8")

    async def _look(self, request: web.Request) -> web.StreamResponse:
        """A viewer, as long as its tab is open."""
        if not self._admitted(request):
            return _refusal("open the address shown in the terminal")
        if len(self._sockets) >= _VIEWERS:
            return web.Response(status=503, text=f"{_VIEWERS} look already")
        socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_SECONDS, max_msg_size=_MESSAGE_BYTES)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            await self._show(socket, request)
        finally:
            self._sockets.discard(socket)
        return socket

    async def _show(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        width, height = (_number(request.query.get(name, "")) for name in ("width", "height"))
        viewer = await Viewer.start(self._command, _within(width, _WIDTHS), _within(height, _HEIGHTS))
        drawing = asyncio.create_task(_draw(viewer, socket))
        try:
            async for message in socket:
                if message.type != WSMsgType.TEXT or not await _obey(viewer, message.data):
                    await socket.close(code=1008, message=b"The page said what this server does not know.")
        finally:
            drawing.cancel()
            with suppress(asyncio.CancelledError):
                await drawing
            ending = asyncio.create_task(viewer.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


async def _draw(viewer: Viewer, socket: web.WebSocketResponse) -> None:
    """Send what is drawn until the dashboard ends; when it failed, why."""
    with suppress(ConnectionError):
        async for payload in viewer.drawn():
            await socket.send_bytes(payload)
        if told := await viewer.end():
            await socket.send_bytes("\r\n".join(map(visible, told.splitlines())).encode())
    await socket.close(message=b"The dashboard was left.")


async def _obey(viewer: Viewer, text: str) -> bool:
    """Hand on what the page says; False for what it cannot say."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return False
    match message:
        case ["keys", str(typed)]:
            await viewer.keys(typed)
        case ["resize", int(width), int(height)]:
            await viewer.tell(type="resize", width=_within(width, _WIDTHS), height=_within(height, _HEIGHTS))
        case ["focus" | "blur" as what]:
            await viewer.tell(type=what)
        case _:
            return False
    return True


def _refusal(why: str) -> web.Response:
    return web.Response(status=403, text=f"Refused: {why}.\n")


def _headers(host: str) -> dict[str, str]:
    """Nothing from elsewhere, in no frame, kept nowhere. xterm.js makes its own style sheet."""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:;"
        f" connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0


def _within(value: Any, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(int(value), bounds[1]))
