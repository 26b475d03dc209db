"""What the server of parts does when the bucket fails it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from disks.stores.base import ByteRange
from oplog.errors import Damaged
from zerocopy.interserver import server


def test_a_bucket_that_fails_in_the_middle_ends_the_connection() -> None:
    """Whoever reads is not to wait for bytes that never come."""

    def read(piece: ByteRange) -> bytes:
        if piece.start:
            raise Damaged("the object is gone")
        return bytes(piece.stop - piece.start)

    async def give(request: web.Request) -> web.StreamResponse:
        try:
            return await server._in_pieces(request, read, 3 * server._PIECE_BYTES)
        except Damaged:
            return web.Response(status=409)

    async def fetched() -> bytes:
        application = web.Application()
        application.router.add_get("/", give)
        async with (
            TestServer(application) as peer,
            aiohttp.ClientSession() as session,
            session.get(peer.make_url("/")) as answer,
        ):
            return await answer.read()

    with pytest.raises(aiohttp.ClientError):
        asyncio.run(fetched())
