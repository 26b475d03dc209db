"""One dashboard that somebody looks at in a browser: a process of its own, for viewers share only the store."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio import IncompleteReadError
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

DRIVER = "tui.serving.driver:BrowserDriver"
"""Named by $TEXTUAL_DRIVER in a viewer's process: that is how `top --serve` knows that it is one."""

_BEGIN = b"__GANGLION__\n"
"""What textual's driver says before its first packet."""
_ERROR_BYTES = 16 * 1024


class Viewer:
    """A running dashboard. Its starter has to await `end`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._keys, self._drawn = process, process.stdin, process.stdout
        self._errors = asyncio.create_task(_tail(process.stderr))

    @classmethod
    async def start(cls, command: Sequence[str], width: int, height: int) -> Viewer:
        """Start one. It gets no key from the terminal of the server: Ctrl-C there is the server's."""
        environment = {
            **os.environ,
            "TEXTUAL_DRIVER": DRIVER,
            "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "COLUMNS": str(width),
            "ROWS": str(height),
        }
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
        )
        return cls(process)

    async def drawn(self) -> AsyncIterator[bytes]:
        """What it draws, for a terminal, until it ends."""
        with suppress(IncompleteReadError, ConnectionError):
            while await self._drawn.readline() not in (_BEGIN, b""):
                pass
            while True:
                kind = await self._drawn.readexactly(1)
                payload = await self._drawn.readexactly(int.from_bytes(await self._drawn.readexactly(4), "big"))
                if kind == b"D":
                    yield payload
                elif kind == b"M" and json.loads(payload).get("type") == "exit":
                    return

    async def keys(self, text: str) -> None:
        """What was typed or clicked."""
        await self._send(b"D", text.encode(errors="replace"))

    async def tell(self, **changes: str | int) -> None:
        """Another size, the focus."""
        await self._send(b"M", json.dumps(changes).encode())

    async def _send(self, kind: bytes, payload: bytes) -> None:
        with suppress(ConnectionError, RuntimeError):  # it has just ended: `drawn` says so
            self._keys.write(kind + len(payload).to_bytes(4, "big") + payload)
            await self._keys.drain()

    async def end(self) -> str:
        """Let it end, between two steps of what it does; what it said on stderr when it failed."""
        with suppress(ConnectionError, RuntimeError):
            self._keys.close()
        while await self._drawn.read(64 * 1024):
            pass
        failed = await self._process.wait()
        told = (await asyncio.shield(self._errors)).decode(errors="replace")
        return told if failed else ""


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while more := await stream.read(64 * 1024):
        kept = (kept + more)[-_ERROR_BYTES:]
    return kept
