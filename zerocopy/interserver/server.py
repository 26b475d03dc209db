"""`PartServer`: gives the parts of replicated tables to any peer that has the secret.

    GET /v1/<uuid>/<part>          the `part.json`, and its files behind it for who wants them and where they are small
    GET /v1/<uuid>/<part>/<file>   a file that it names, or a range of it
    GET /v2/<uuid>?parts=&stores=  of many parts both what the first gives and which objects of those stores it is
                                   (`offer`)

What is in its place in the table is given; what is still arriving only to who names the digest that Keeper says of it
(`Frostline-Digest`), for there it is said when the part counts. A path is never made of what was asked for, but of a
part's name that was parsed and a file's name that the `part.json` has.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.kinds import as_disk
from disks.object_disk.sharing.prefix import store_identity
from disks.stores.base import ByteRange
from disks.workers.listener import Listener
from oplog.errors import FrostlineError, NotFound
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.catalog.lineage import content_digest
from tiering.table import part as parts_format
from tiering.table.part import Part, PartName
from tiering.table.schema import TableDefinition
from zerocopy.interserver import offer, signing, tls

_ARRIVING_SECONDS = 2.0
_PAUSE_SECONDS = 0.005

logger = logging.getLogger(__name__)

_ARRIVING_BYTES = 16 << 20
"""Of a larger part that is arriving the files are given from its place in the table, as fast as that goes."""

_SPEAKS = {offer.PROTOCOL_HEADER: str(offer.PROTOCOL)}
_PIECE_BYTES = 4 << 20
_TOO_EARLY = 425
"""What HTTP says of a request that may be a repeat: who sent it signs another one."""


class _Place(NamedTuple):
    """A disk that has a part."""

    definition: TableDefinition
    disk: Disk
    directory: str
    description: bytes
    """Its `part.json`."""
    is_arriving: bool = False


class PartServer:
    """A server in a thread of its own. Closed with its store."""

    def __init__(
        self,
        context: Context,
        secret: str,
        is_arriving: Callable[[TableDefinition, str], bool] = lambda *_: False,
        arrives_at: Callable[[TableDefinition, str], str] = lambda table, part: table.part_directory(part),
        replica_of: Callable[[TableDefinition], str] = lambda _: "",
    ) -> None:
        """Listens when this returns. `is_arriving` says of a part whether it may take its place in the table at once:
        a peer that hears of it is sometimes faster; `arrives_at` is its directory until then. `replica_of`: which
        replica of the table this machine is. Raises `FrostlineError` where it cannot."""
        self._context = context
        self._is_arriving = is_arriving
        self._arrives_at = arrives_at
        self._replica_of = replica_of
        self._signatures = signing.SignatureCheck(secret, began=time.time())
        self._tls = tls.for_server(context.config.interserver)
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._begun = threading.Event()
        self._error: OSError | None = None
        self._identities: dict[str, str] = {}
        """By disk: which store it is."""
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
        if self._listener is not None:
            self._loop.run_until_complete(self._listener.end())
        if self._runner is not None:
            self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        settings = self._context.config.interserver
        listener = Listener("interserver", settings.connections, logger)
        application = web.Application(middlewares=[listener.middleware(), self._known_only], client_max_size=1024)
        application.add_routes(
            [
                web.get("/v1/{uuid}", self._who),
                web.get("/v1/{uuid}/{part}", self._part),
                web.get("/v1/{uuid}/{part}/{file}", self._file),
                web.get("/v2/{uuid}", self._offers),
            ]
        )
        self._runner = web.AppRunner(application, shutdown_timeout=1.0, **listener.runner_options)
        await self._runner.setup()
        self._listener = listener
        self.port = await listener.begin(self._runner, settings.host, settings.port, self._tls)

    @web.middleware
    async def _known_only(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        header = request.headers.get("Authorization", "")
        asked = signing.AskedRequest(
            method=request.method,
            address=self.address,
            path=request.raw_path,
            byte_range=request.headers.get("Range", ""),
            digest=request.headers.get(offer.DIGEST_HEADER, ""),
            whole=request.headers.get(offer.WHOLE_HEADER, ""),
        )
        if (refusal := self._signatures.refusal(header, asked, now=time.time())) is not None:
            logger.warning("a request of %s is not answered: %s", request.remote, refusal.why)
            return web.Response(status=_TOO_EARLY if refusal.is_repeat else 401, text=refusal.why, headers=_SPEAKS)
        try:
            return await handler(request)
        except NotFound as error:
            return web.Response(status=404, text=error.message, headers=_SPEAKS)
        except FrostlineError as error:
            logger.warning("a part could not be given to another replica: %s", error.message)
            return web.Response(status=409, text=error.message, headers=_SPEAKS)

    async def _who(self, request: web.Request) -> web.StreamResponse:
        """Which replica of the table this machine is."""
        definition = await asyncio.to_thread(self._table, request.match_info["uuid"])
        return web.Response(text=await asyncio.to_thread(self._replica_of, definition), headers=_SPEAKS)

    async def _part(self, request: web.Request) -> web.StreamResponse:
        end = time.monotonic() + _ARRIVING_SECONDS
        while True:
            try:
                first, *_ = await asyncio.to_thread(self._find, request)
                break
            except NotFound:
                if time.monotonic() > end or not await asyncio.to_thread(self._comes, request.match_info):
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
        most = request.headers.get(offer.WHOLE_HEADER, "")
        if most.isascii() and most.isdecimal() and (files := await asyncio.to_thread(self._small_files, first, most)):
            headers = {offer.WHOLE_HEADER: str(len(first.description))}
            return web.Response(body=first.description + files, headers=headers)
        return web.Response(body=first.description, content_type="application/json")

    def _small_files(self, location: _Place, most: str) -> bytes:
        """Those of the part, one after the other; nothing where they are more, or have just moved on."""
        part = parts_format.decode(location.description, path=location.directory)
        size_bytes = sum(file.size_bytes for file in part.files)
        if size_bytes > min(int(most[:12]), offer.WHOLE_BYTES):
            return b""
        files = [_read_if_there(location.disk, f"{location.directory}/{file.name}") for file in part.files]
        if [file and len(file) for file in files] != [file.size_bytes for file in part.files]:
            return b""
        if self._context.limiter is not None:
            self._context.limiter.pass_bytes(size_bytes)
        return b"".join(filter(None, files))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        first, *_ = await asyncio.to_thread(self._find, request)
        part = parts_format.decode(first.description, path=first.directory)
        wanted = next((file for file in part.files if file.name == request.match_info["file"]), None)
        if wanted is None:
            raise NotFound(f"part {part.name} has no file of this name")
        path = f"{first.directory}/{wanted.name}"
        if first.is_arriving:
            data = await asyncio.to_thread(_read_if_there, first.disk, path)
            if data is not None:
                return await _in_pieces(request, partial(self._paced, data), wanted.size_bytes)
            first, *_ = await asyncio.to_thread(self._places, first.definition, part.name)  # where it has come by now
            path = f"{first.directory}/{wanted.name}"
        directory, limiter = as_disk(first.disk, DirectoryDisk), self._context.limiter
        if directory is not None and not (limiter is not None and limiter.limits_bytes):
            return web.FileResponse(directory.local_path(path))
        read = first.disk.reader(path)

        def paced(piece: ByteRange) -> bytes:
            if limiter is not None:
                limiter.pass_bytes(piece.size_bytes)
            return read(piece)

        return await _in_pieces(request, paced, wanted.size_bytes)

    def _paced(self, data: bytes, piece: ByteRange) -> bytes:
        if self._context.limiter is not None:
            self._context.limiter.pass_bytes(piece.size_bytes)
        return data[piece.start : piece.stop]

    async def _offers(self, request: web.Request) -> web.StreamResponse:
        wanted, stores = (request.query.get(what, "").split(",") for what in ("parts", "stores"))
        body = await asyncio.to_thread(self._answers, request.match_info["uuid"], wanted, stores)
        return web.Response(body=body, headers=_SPEAKS)

    def _answers(self, uuid: str, names: Sequence[str], stores: Collection[str]) -> bytes:
        """What is said of the parts, until it is enough for one answer."""
        definition = self._table(uuid)
        said: dict[str, offer.OfferedPart] = {}
        missing: list[str] = []
        size_bytes = 0
        for name in dict.fromkeys(names):
            try:
                said[name] = self._answer(self._places(definition, name), stores)
            except FrostlineError as error:  # of what else it is than missing a fetch of it hears
                if not isinstance(error, NotFound):
                    logger.warning("part %s could not be offered to another replica: %s", name, error.message)
                missing.append(name)
                continue
            size_bytes += len(bytes(said[name].part))
            if size_bytes > offer.ANSWER_BYTES:
                break
        return offer.encode(offer.Offers(parts=said, missing=tuple(missing)))

    def _answer(self, locations: Sequence[_Place], stores: Collection[str]) -> offer.OfferedPart:
        """Of the places of a part, the one that lies in one of the stores."""
        why = offer.ON_OWN_DISK
        for location in locations:
            logged = as_disk(location.disk, LoggedDisk)
            if logged is None or logged.log_name is None:
                continue
            store = self._identity(logged)
            if store not in stores:
                why = f"it is in {logged.store.name}, which is another store"
                continue
            infos = {info.path.rpartition("/")[2]: info for info in logged.walk(location.directory)}
            made = offer.offered(infos, store=store, log=logged.log_name, directory=location.directory)
            if isinstance(made, offer.Offer):
                return offer.OfferedPart(part=msgspec.Raw(location.description), offer=made)
            why = made
        return offer.OfferedPart(part=msgspec.Raw(locations[0].description), why=why)

    def _identity(self, disk: LoggedDisk) -> str:
        """Asked for once: it does not change."""
        if disk.name not in self._identities:
            self._identities[disk.name] = store_identity(disk) or ""
        return self._identities[disk.name]

    def _find(self, request: web.Request) -> list[_Place]:
        """Where the part lies: on this machine's own disks first. Raises `NotFound`."""
        definition, name = self._table(request.match_info["uuid"]), request.match_info["part"]
        try:
            return self._places(definition, name)
        except NotFound:
            digest = request.headers.get(offer.DIGEST_HEADER)
            if digest is not None and (place := self._arriving(definition, name, digest)) is not None:
                return [place]
            return self._places(definition, name)  # it may have taken its place meanwhile

    def _arriving(self, definition: TableDefinition, name: str, digest: str) -> _Place | None:
        """Where the part is arriving that has the digest which Keeper says. Raises `NotFound` for what is no name."""
        name = _parsed(name)
        if not self._is_arriving(definition, name):
            return None
        directory = self._arrives_at(definition, name)
        for place, part in self._copies(definition, directory):
            if part.size_bytes <= _ARRIVING_BYTES and content_digest(part) == digest:
                return place._replace(is_arriving=True)
        return None

    def _places(self, definition: TableDefinition, name: str) -> list[_Place]:
        name = _parsed(name)
        directory = definition.part_directory(name)
        locations = [location for location, _ in self._copies(definition, directory)]
        if not locations:
            raise NotFound(f"there is no part {name} here")
        return sorted(locations, key=lambda location: as_disk(location.disk, DirectoryDisk) is None)

    def _copies(self, definition: TableDefinition, directory: str) -> Iterator[tuple[_Place, Part]]:
        """Of a part in the directory, on this machine's own disks."""
        for disk in map(self._context.disk, self._context.catalog.policy_disks(definition)):
            if disk.capabilities.shared:
                continue
            try:
                part, data = copying.read_part(disk, directory)
            except NotFound:
                continue
            yield _Place(definition, disk, directory, data), part

    def _comes(self, asked: Any) -> bool:
        """Whether the part that is asked for is arriving, or came just now."""
        definition, name = self._table(str(asked["uuid"])), str(PartName.parse(str(asked["part"])))
        disks = map(self._context.disk, self._context.catalog.policy_disks(definition))
        place = definition.part_directory(name)
        return self._is_arriving(definition, name) or any(
            disk.exists(place) for disk in disks if not disk.capabilities.shared
        )

    def _table(self, uuid: str) -> TableDefinition:
        for definition in self._context.catalog.tables():
            if definition.uuid == uuid and definition.is_replicated:
                return definition
        raise NotFound("there is no such replicated table here")


def _parsed(name: str) -> str:
    try:
        return str(PartName.parse(name))
    except FrostlineError:
        raise NotFound("that is no part's name") from None


def _read_if_there(disk: Disk, path: str) -> bytes | None:
    try:
        return disk.read(path)
    except NotFound:
        return None


async def _in_pieces(request: web.Request, read: Callable[[ByteRange], bytes], size_bytes: int) -> web.StreamResponse:
    """A file, or what follows the beginning that the other one has. Where the disk does not give it, the other one
    hears of it: at once by the answer, later by the end of the connection."""
    try:
        begin = request.http_range.start or 0
    except ValueError:
        begin = -1
    if not 0 <= begin <= size_bytes:
        return web.Response(status=416)
    starts = range(begin, size_bytes, _PIECE_BYTES)
    pieces = [ByteRange(start, min(start + _PIECE_BYTES, size_bytes)) for start in starts]
    first = await asyncio.to_thread(read, pieces[0]) if pieces else b""
    response = web.StreamResponse(status=206 if "Range" in request.headers else 200)
    response.content_length = size_bytes - begin
    await response.prepare(request)
    await response.write(first)
    try:
        for piece in pieces[1:]:
            await response.write(await asyncio.to_thread(read, piece))
    except FrostlineError:
        if request.transport is not None:
            request.transport.abort()
        raise
    await response.write_eof()
    return response
