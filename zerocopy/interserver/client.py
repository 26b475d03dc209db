"""Taking a part from another replica. What it sends is hostile until the digest in Keeper vouches for it.

The `part.json` must have the digest that Keeper knows; each file the size and SHA-256 that the `part.json` says. A peer
that sends more is cut off at that size, one that is silent or drips after half a minute, and a broken transfer goes on
where it broke. Connections are kept: many small parts cost no handshakes.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp

from disks.stores.wrappers.limit import Limiter
from oplog import bounds
from oplog.errors import AccessDenied, Damaged, FrostlineError, NotFound, Transient
from tiering.catalog.lineage import content_digest
from tiering.table import part as parts_format
from tiering.table.part import DataFile, Part
from tiering.table.schema import TableDefinition
from zerocopy.interserver import offer, signing
from zerocopy.interserver.offer import DIGEST_HEADER, OfferedPart, Offers
from zerocopy.interserver.receiving import PeerPace, Receiving, TooSlow, keep

_TRIES = 5
_MOST_TRIES = 100
_FILES_AT_ONCE = 4
_PIECE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20
_SILENCE_SECONDS = 30.0
_SHOWN_BYTES = 200
_WORD_SECONDS = 5.0
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]{2,60}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}\Z")
_Answer = TypeVar("_Answer")


class Peers:
    """The way to other replicas: one HTTP session for all that is asked of them. Thread-safe; a context manager."""

    def __init__(self, secret: str, secured: ssl.SSLContext | None = None) -> None:
        """`secured`: what shows who this replica is, where they speak TLS."""
        self._secret = secret
        self._secured = secured
        self._scheme = "http" if secured is None else "https"
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._kept: aiohttp.ClientSession | None = None

    def fetch(
        self,
        address: str,
        definition: TableDefinition,
        name: str,
        digest: str,
        directory_for: Callable[[Part], Path],
        limiter: Limiter,
    ) -> tuple[Part, Path]:
        """The part and the directory with its files. `directory_for` chooses the directory once `part.json` was
        compared; `limiter` bounds the transfer rate.

        Raises `NotFound` when the peer has no such part, `Damaged` when it sends something else, `Transient` when it
        does not answer.
        """
        peer = _Peer(address, self._secret, definition, name, self._scheme, digest)
        part, files = self._answer(lambda session: peer.description(session, digest))
        target = directory_for(part)
        if files is None:
            self._answer(lambda session: peer.files(session, part, target, limiter))
        else:
            peer.keep(part, files, target, limiter)
        return part, target

    def ask(
        self, address: str, definition: TableDefinition, digests: Mapping[str, str], stores: Collection[str]
    ) -> dict[str, tuple[Part, OfferedPart] | FrostlineError] | None:
        """What the peer says of the parts' objects in the stores, of each part by its name, where it has the one with
        this digest; else what a fetch of it would raise. None with a peer of a version that does not say. Raises as
        `fetch`."""
        return self._answer(
            lambda session: _ask(session, address, self._secret, definition, digests, stores, self._scheme)
        )

    def replica_at(self, address: str, definition: TableDefinition) -> str:
        """Which replica of the table the process there is, by its own word; empty where nobody says in time that he is
        one."""
        try:
            peer = _Peer(address, self._secret, definition, "", self._scheme)
            return self._answer(lambda session: asyncio.wait_for(peer.replica(session), _WORD_SECONDS))
        except (FrostlineError, TimeoutError):
            return ""

    def close(self) -> None:
        """Hang up."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if self._kept is not None:
            asyncio.run_coroutine_threadsafe(self._kept.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._loop = self._thread = self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, ask: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, _Answer]]) -> _Answer:
        """What comes of it. Who is interrupted while waiting leaves nothing behind that goes on."""
        loop, over, tasks = self._started(), threading.Event(), list[asyncio.Task[_Answer]]()

        def begin() -> None:
            tasks.append(loop.create_task(self._asked(ask)))
            tasks[0].add_done_callback(lambda _: over.set())

        loop.call_soon_threadsafe(begin)
        try:
            over.wait()
        except BaseException:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            over.wait()
            raise
        return tasks[0].result()

    async def _asked(self, ask: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, _Answer]]) -> _Answer:
        if self._kept is None:
            self._kept = _session(self._secured)
        return await ask(self._kept)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(loop,), name="peers", daemon=True)
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _ask(
    session: aiohttp.ClientSession,
    address: str,
    secret: str,
    definition: TableDefinition,
    digests: Mapping[str, str],
    stores: Collection[str],
    scheme: str,
) -> dict[str, tuple[Part, OfferedPart] | FrostlineError] | None:
    found: dict[str, tuple[Part, OfferedPart] | FrostlineError] = {}
    while rest := [name for name in digests if name not in found]:
        for names in offer.questions(rest):
            peers = {name: _Peer(address, secret, definition, name, scheme) for name in names}
            answers = await peers[names[0]].offers(session, names, stores)
            if answers is None:
                return None
            for name in set(names).intersection(answers.missing):
                found[name] = peers[name].has_none()
            for name, answer in answers.parts.items():
                if name in peers:
                    found[name] = peers[name].told(answer, digests[name])
            if found.keys().isdisjoint(names):
                raise peers[names[0]].lies("an answer that says nothing of what was asked")
    return found


def _session(secured: ssl.SSLContext | None) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS)
    connector = aiohttp.TCPConnector(ssl=secured) if secured is not None else None
    return aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, read_bufsize=_BUFFER_BYTES
    )


class _Peer:
    """One part on another replica."""

    def __init__(
        self, address: str, secret: str, definition: TableDefinition, name: str, scheme: str, digest: str = ""
    ) -> None:
        """`digest`: what Keeper says of the part."""
        if not _ADDRESS.match(address):
            raise Damaged(
                f"{address[:60]!r} is no address of a replica",
                hint="was its node `host` in Keeper changed from outside?",
            )
        self._address = address
        self._scheme = scheme
        self._secret = secret
        self._digest = digest
        self._definition = definition
        self._name = name
        self._path = f"/v1/{definition.uuid}/{name}"

    async def description(self, session: aiohttp.ClientSession, digest: str) -> tuple[Part, bytes | None]:
        """The part, as Keeper knows it; and its files, one after the other, if they are small."""
        data, said = await self._document(session, self._path, more={offer.WHOLE_HEADER: str(offer.WHOLE_BYTES)})
        length = said.get(offer.WHOLE_HEADER)
        if length is None:
            return self._described(data, digest), None
        if not (length.isascii() and length.isdecimal() and len(length) < 12):
            raise self.lies("a part.json of no length")
        return self._described(data[: int(length)], digest), data[int(length) :]

    def keep(self, part: Part, data: bytes, target: Path, limiter: Limiter) -> None:
        """Write the files that came with the `part.json`."""
        if len(data) != sum(file.size_bytes for file in part.files):
            raise self.lies(f"{len(data)} bytes of all files")
        begin = 0
        for file in part.files:
            end = begin + file.size_bytes
            if keep(target / file.name, data[begin:end], limiter) != file.sha256:
                raise self.lies(f"other bytes than those of {file.name}")
            begin = end

    async def replica(self, session: aiohttp.ClientSession) -> str:
        """Which replica of the table the peer is."""
        data, _ = await self._document(session, self._path.rstrip("/"), missing=b"")
        return data.decode(errors="replace")

    async def offers(
        self, session: aiohttp.ClientSession, names: Sequence[str], stores: Collection[str]
    ) -> Offers | None:
        """What the peer says of this part and others; None where it knows no such question."""
        path = f"/v2/{self._definition.uuid}?parts={','.join(names)}&stores={','.join(sorted(stores))}"
        data, said = await self._document(session, path, missing=b"")
        if not data and offer.PROTOCOL_HEADER in said:
            raise self.has_none()
        return offer.decode(data, path=f"{self._address}{path.partition('?')[0]}") if data else None

    def told(self, answer: OfferedPart, digest: str) -> tuple[Part, OfferedPart] | FrostlineError:
        """What is said of the part; what is wrong with it, where it is not the one that Keeper knows."""
        try:
            return self._described(bytes(answer.part), digest), answer
        except FrostlineError as error:
            return error

    async def _document(
        self,
        session: aiohttp.ClientSession,
        path: str,
        *,
        missing: bytes | None = None,
        more: Mapping[str, str] | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """What it answers, and its headers; `missing` where there is nothing. `more`: headers of the question."""
        data, pace = bytearray(), PeerPace()
        try:
            async with session.get(self._url(path), headers=self._headers(path, more or {})) as answer:
                if answer.status == 404 and missing is not None:
                    return missing, answer.headers
                await self._check(answer, 200)
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    data += piece
                    pace.came(len(piece))
                    if len(data) > bounds.LARGEST_DOCUMENT_BYTES + offer.WHOLE_BYTES:
                        raise self.lies("a part.json without end")
        except (aiohttp.ClientError, OSError, TooSlow) as error:
            raise self._silent(error) from error
        return bytes(data), answer.headers

    def _described(self, data: bytes, digest: str) -> Part:
        part = parts_format.decode(data, path=f"{self._address}{self._path}")
        if part.table != self._definition.uuid or part.name != self._name or content_digest(part) != digest:
            raise self.lies("another part.json than in Keeper")
        return part

    async def files(self, session: aiohttp.ClientSession, part: Part, target: Path, limiter: Limiter) -> None:
        """Write all of them, several side by side."""
        free = asyncio.Semaphore(_FILES_AT_ONCE)

        async def one(file: DataFile) -> None:
            async with free:
                await self.file(session, file, target / file.name, limiter)

        tasks = [asyncio.create_task(one(file)) for file in part.files]
        try:
            await asyncio.gather(*tasks)
        finally:  # nothing is being written when the caller takes the directory away
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def file(self, session: aiohttp.ClientSession, file: DataFile, target: Path, limiter: Limiter) -> None:
        """Write the file; begun again where it broke off."""
        tries = 0
        async with Receiving(target, file.size_bytes, limiter) as received:
            while (size := received.size_bytes) < file.size_bytes or (not file.size_bytes and not tries):
                tries += 1
                path = f"{self._path}/{file.name}"
                headers = self._headers(path, {"Range": f"bytes={size}-"} if size else {})
                try:
                    async with session.get(self._url(path), headers=headers) as answer:
                        await self._check(answer, 206 if size else 200)
                        if not await received.take(answer.content.iter_any(), file.size_bytes):
                            raise self.lies(f"more than the {file.size_bytes} bytes of {file.name}")
                except (aiohttp.ClientError, OSError, TooSlow) as error:
                    came = received.size_bytes > size
                    if not _is_broken(error) or tries >= _MOST_TRIES or (tries >= _TRIES and not came):
                        raise self._silent(error) from error
                    continue
                if received.size_bytes == size and file.size_bytes:
                    raise self.lies(f"{size} of the {file.size_bytes} bytes of {file.name}")
            digest = await received.finish()
        if digest != file.sha256:
            raise self.lies(f"other bytes than those of {file.name}")

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self._address}{path}"

    def _headers(self, path: str, more: Mapping[str, str]) -> dict[str, str]:
        """Those of one request, which is signed with them."""
        asked = signing.AskedRequest(
            method="GET",
            address=self._address,
            path=path,
            byte_range=more.get("Range", ""),
            digest=self._digest,
            whole=more.get(offer.WHOLE_HEADER, ""),
        )
        signature = signing.sign(self._secret, asked, now=time.time())
        named = {DIGEST_HEADER: self._digest} if self._digest else {}
        return {"Authorization": signature, "Accept-Encoding": "identity", **named, **more}

    async def _check(self, answer: aiohttp.ClientResponse, expected_status: int) -> None:
        match answer.status:
            case status if status == expected_status:
                return
            case 404:
                raise self.has_none()
            case 401:
                why = (await answer.content.read(_SHOWN_BYTES)).decode(errors="replace")
                raise AccessDenied(
                    f"{self._address} does not know this replica: {why}",
                    hint="all replicas need the same interserver.secret and version, and clocks within five minutes; "
                    "interserver.advertise must be the address that others reach that machine by",
                )
            case status:
                raise Transient(f"{self._address} answered {status} for part {self._name}", hint="see its daemon's log")

    def has_none(self) -> NotFound:
        """The peer does not have the part."""
        return NotFound(f"{self._address} has no part {self._name}", hint="another replica may have it")

    def lies(self, content: str) -> FrostlineError:
        """The peer sent what it must not."""
        return Damaged(
            f"{self._address} sent {content} for part {self._name} of {self._definition.full_name}; nothing was kept",
            hint="run 'frostline fsck --read-data' there; the part is taken from another replica where there is one",
        )

    def _silent(self, error: BaseException) -> FrostlineError:
        reason = str(error) or type(error).__name__
        if isinstance(error, TooSlow):
            reason = f"it sends too slowly: {reason}"
        return Transient(
            f"part {self._name} could not be fetched from {self._address}: {reason}",
            hint="is the daemon running there, and its port open to this machine?",
        )


def _is_broken(error: BaseException) -> bool:
    """Whether the connection broke, so that another one may do better: a peer that is silent or drips is left."""
    return not isinstance(error, (TimeoutError, TooSlow))
