"""Answers `/metrics`, `/health` and `/ready` on 127.0.0.1, in a thread of its own, beside the daemon's work.

An answer takes no lock that a move needs and looks at no disk: it shows what was seen after the last pass, and what
this process has counted since. Who asks under another name than this machine's own is refused: a page in a browser
could otherwise have its own name point here and read what tables there are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from disks.workers.listener import Listener
from oplog.errors import UsageError
from tiering.facts.metrics import exposition
from tiering.facts.metrics.family import Family
from tiering.facts.metrics.health import Health

if TYPE_CHECKING:
    from aiohttp import web

HOST = "127.0.0.1"
_CONNECTIONS = 64

log = logging.getLogger("frostline.daemon")
_OWN_NAMES = frozenset({"127.0.0.1", "localhost"})
_TEXT = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class MetricsServer:
    """Serves from `begin` to `end`. `families` and `health` are called by its thread, one at a time."""

    def __init__(self, families: Callable[[], Sequence[Family]], health: Callable[[], Health]) -> None:
        self._families, self._health = families, health
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self.address = ""

    def begin(self, port: int) -> None:
        """Serve from now on; 0 takes any port that is free. Raises `UsageError` for one that is not, and where
        something has to be installed."""
        exposition.check_installed()
        try:
            import aiohttp.web  # noqa: F401 - whether it is there is all that matters here
        except ImportError as error:
            raise UsageError(
                "serving metrics needs aiohttp, which is not installed", hint=exposition.INSTALL
            ) from error
        begun = threading.Event()
        failed: list[OSError] = []
        self._thread = threading.Thread(target=self._serve, args=(port, begun, failed), name="metrics", daemon=True)
        self._thread.start()
        begun.wait()
        if failed:
            self._thread.join()
            self._thread = None
            raise UsageError(
                f"metrics cannot be served on {HOST}:{port}: {failed[0].strerror or failed[0]}",
                hint="set metrics.port to another one; 0 picks a free port",
            ) from failed[0]

    def end(self) -> None:
        """Stop. Nothing when it does not serve."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def _serve(self, port: int, begun: threading.Event, failed: list[OSError]) -> None:
        try:
            asyncio.run(self._run(port, begun))
        except OSError as error:
            failed.append(error)
        finally:
            begun.set()

    async def _run(self, port: int, begun: threading.Event) -> None:
        from aiohttp import web

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = Listener("metrics", _CONNECTIONS, log)
        app = web.Application(middlewares=[listener.middleware()])
        for path, answer in (("/metrics", self._metrics), ("/health", self._alive), ("/ready", self._ready)):
            app.router.add_get(path, self._guarded(answer))
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0, **listener.runner_options)
        await runner.setup()
        try:
            self.address = f"http://{HOST}:{await listener.begin(runner, HOST, port)}"
            begun.set()
            await self._stop.wait()
        finally:
            await listener.end()
            await runner.cleanup()

    def _guarded(self, answer: Callable[[], web.Response]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        from aiohttp import web

        async def handle(request: web.Request) -> web.StreamResponse:
            name = request.host.rpartition(":")[0] or request.host
            if name not in _OWN_NAMES:
                return web.Response(status=403, text=f"ask for {HOST}: only local programs may ask\n")
            return answer()

        return handle

    def _metrics(self) -> web.Response:
        from aiohttp import web

        return web.Response(body=exposition.text(self._families()), headers=_TEXT)

    def _alive(self) -> web.Response:
        return _judged(self._health(), ready=False)

    def _ready(self) -> web.Response:
        return _judged(self._health(), ready=True)


def _judged(health: Health, *, ready: bool) -> web.Response:
    from aiohttp import web

    problems = health.not_ready if ready else health.not_alive
    body = {"ok": not problems, "problems": list(problems)}
    return web.Response(status=503 if problems else 200, text=json.dumps(body) + "\n", content_type="application/json")
