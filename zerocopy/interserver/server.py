"""`PartServer`: gives the parts of replicated tables to whoever knows the secret.

    GET /v1/<uuid>/<part>          the `part.json`
    GET /v1/<uuid>/<part>/<file>   a file that it names, or a range of it

Only what is in its place in the table is given, so nothing that is still arriving; a path is never made of what was
asked for, but of a part's name that was parsed and a file's name that the `part.json` has.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from oplog.errors import FrostlineError, NotFound
from tiering.catalog import copying
from tiering.catalog.context import Context
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition
from zerocopy.interserver import signing

logger = logging.getLogger(__name__)


class PartServer:
    """A server in a thread of its own. Closed with its store."""

    def __init__(self, context: Context, secret: str) -> None:
        """Listens when this returns. Raises `FrostlineError` where it cannot."""
        self._context = context
        self._secret = secret
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._begun = threading.Event()
        self._error: OSError | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="interserver", daemon=True)
        self._thread.start()
        self._begun.wait()
        if (error := self._failure()) is not None:
            settings = context.config.interserver
            raise FrostlineError(
                f"parts cannot be given to other replicas on {settings.host}:{settings.port}: {error}",
                hint="is the port in use? see interserver.port of the configuration",
            )

    @property
    def address(self) -> str:
        """Where others reach it: `host:port`."""
        settings = self._context.config.interserver
        host = settings.advertise or settings.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def _failure(self) -> OSError | None:
        return self._error

    def close(self) -> None:
        """Stop; requests under way are broken off."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start())
        except OSError as error:
            self._error = error
            self._begun.set()
        else:
            self._begun.set()
            self._loop.run_forever()
        if self._runner is not None:
            self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        application = web.Application(middlewares=[self._known_only], client_max_size=1024)
        application.add_routes(
            [web.get("/v1/{uuid}/{part}", self._part), web.get("/v1/{uuid}/{part}/{file}", self._file)]
        )
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        settings = self._context.config.interserver
        site = web.TCPSite(self._runner, settings.host, settings.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    @web.middleware
    async def _known_only(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        header = request.headers.get("Authorization", "")
        if not signing.is_signed(header, self._secret, request.method, request.raw_path, now=time.time()):
            return web.Response(status=401, text="not signed by a replica of these tables, or by another clock")
        try:
            return await handler(request)
        except NotFound as error:
            return web.Response(status=404, text=error.message)
        except FrostlineError as error:
            logger.warning("a part could not be given to another replica: %s", error.message)
            return web.Response(status=409, text=error.message)

    async def _part(self, request: web.Request) -> web.StreamResponse:
        _, data = await asyncio.to_thread(self._find, request.match_info)
        return web.Response(body=data, content_type="application/json")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        directory, data = await asyncio.to_thread(self._find, request.match_info)
        from tiering.table import part as parts_format

        part = parts_format.decode(data, path=str(directory))
        wanted = next((file.name for file in part.files if file.name == request.match_info["file"]), None)
        if wanted is None:
            raise NotFound(f"part {part.name} has no file of this name")
        return web.FileResponse(directory / wanted)

    def _find(self, asked: Any) -> tuple[Path, bytes]:
        """Where the part lies, and its `part.json`. Raises `NotFound`."""
        definition = self._table(str(asked["uuid"]))
        try:
            name = str(PartName.parse(str(asked["part"])))
        except FrostlineError:
            raise NotFound("that is no part's name") from None
        directory = definition.part_directory(name)
        for disk_name in self._context.catalog.policy_disks(definition):
            disk = self._context.disk(disk_name)
            place = disk.local_path(directory)
            if place is None:
                continue
            try:
                _, data = copying.read_part(disk, directory)
            except NotFound:
                continue
            return place, data
        raise NotFound(f"there is no part {name} here")

    def _table(self, uuid: str) -> TableDefinition:
        for definition in self._context.catalog.tables():
            if definition.uuid == uuid and definition.is_replicated:
                return definition
        raise NotFound("there is no such replicated table here")
