"""Looks at a dashboard that is served: a real server, a client that says whatever a browser or an attacker would."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp

from tests.homes import Home

PATIENCE_SECONDS = 120.0
"""Only what hangs takes so long."""

_CONTROL = re.compile(rb"\x1b\[[0-9;?$<>=]*[a-zA-Z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[=>()][0-9A-B]?")


class Served:
    """`top --serve 0` in a process of its own."""

    def __init__(self, home: Home, *options: str) -> None:
        command = [sys.executable, "-m", "tiering.cli.main", "-c", str(home.configuration), "top", "--serve", "0"]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        self.address = self.next_address()
        self.origin = self.address.partition("/?")[0]
        self.port = int(self.origin.rpartition(":")[2])

    def next_address(self) -> str:
        """The one that it prints next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()[-1]

    def viewers(self) -> list[int]:
        """The processes that it started and that have not ended."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children if Path(f"/proc/{child}/exe").exists()]

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()


@dataclass(slots=True)
class Tab:
    """A page that is open: what was drawn so far, and the socket."""

    socket: aiohttp.ClientWebSocketResponse
    drawn: bytes = b""

    async def sees(self, text: str) -> None:
        """Until that was drawn. Escape sequences between its letters do not count."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while text.encode() not in _CONTROL.sub(b"", self.drawn):
                message = await self.socket.receive()
                assert message.type == aiohttp.WSMsgType.BINARY, (message, self.drawn[-2000:])
                self.drawn += message.data

    async def press(self, keys: str) -> None:
        """Type; what was drawn before is forgotten."""
        self.drawn = b""
        await self.socket.send_json(["keys", keys])

    async def ends(self) -> int | None:
        """Until the server closes; with which code."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.socket.closed:
                await self.socket.receive()
        return self.socket.close_code


@asynccontextmanager
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    """Keeps cookies as browsers do."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def enter(session: aiohttp.ClientSession, served: Served, address: str = "") -> str:
    """Open the address; the page's."""
    async with session.get(address or served.address) as answer:
        assert answer.status == 200, await answer.text()
        return str(answer.url)


@asynccontextmanager
async def tab(session: aiohttp.ClientSession, served: Served, page: str) -> AsyncIterator[Tab]:
    """Look at the dashboard as the page does."""
    headers = {"Origin": served.origin}
    async with session.ws_connect(f"{page}socket?width=120&height=30", headers=headers) as socket:
        yield Tab(socket)


async def until(holds: object) -> None:
    """Until the function says yes."""
    assert callable(holds)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.02)


def alive(process: int) -> bool:
    """Whether it runs; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def host(address: str) -> str:
    """Name and port."""
    return urlsplit(address).netloc


def kill(process: int) -> None:
    """As a crash does."""
    os.kill(process, signal.SIGKILL)
