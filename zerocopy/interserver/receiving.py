"""The files of a part as they come: hashed and written by threads, while the network goes on.

Of a file at most one batch is being written while the next one comes; then the peer waits. How much comes in a while
is looked at as well: a peer that drips keeps nobody for hours.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from disks.effects import op, write_unsynced_file
from disks.local.copied import UncachedFile
from disks.stores.wrappers.limit import Limiter
from oplog.errors import FrostlineError

BATCH_BYTES = 4 << 20
_WINDOW_SECONDS = 30.0
SLOWEST_BYTES = 64 << 10
"""A second: of less than so much, over `_WINDOW_SECONDS`, another replica is asked."""
_clock = time.monotonic


class TooSlow(Exception):
    """Less comes than anybody would wait for."""


class PeerPace:
    """How fast a peer sends, breaks included; not how fast it is written here."""

    def __init__(self) -> None:
        self._begun = _clock()
        self._bytes = 0

    def came(self, size_bytes: int) -> None:
        """So much came. Raises `TooSlow`."""
        self._bytes += size_bytes
        seconds = _clock() - self._begun
        if seconds < _WINDOW_SECONDS:
            return
        if self._bytes < seconds * SLOWEST_BYTES:
            raise TooSlow(f"{self._bytes:,} bytes in {seconds:.0f} seconds")
        self._begun, self._bytes = _clock(), 0

    def waited(self, seconds: float) -> None:
        """So long the peer was kept waiting."""
        self._begun += seconds


class Receiving:
    """One file, from its beginning. An async context manager: leaving it, nothing is being written any more."""

    def __init__(self, target: Path, size_bytes: int, limiter: Limiter) -> None:
        self._target = target
        self._limiter = limiter
        self._hashed = hashlib.sha256()
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        self._pace = PeerPace()
        self.size_bytes = 0
        """What came so far."""
        with op("fs.create", target):
            self._file = UncachedFile(target, size_bytes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._file.close()

    async def take(self, pieces: AsyncIterator[bytes], most_bytes: int) -> bool:
        """Take what comes; False when it is more than `most_bytes` in all. Raises `TooSlow`, or as writing does."""
        async for piece in pieces:
            self.size_bytes += len(piece)
            if self.size_bytes > most_bytes:
                return False
            self._batch.append(piece)
            self._batch_bytes += len(piece)
            self._pace.came(len(piece))
            if self._batch_bytes >= BATCH_BYTES:
                begun = _clock()
                await self._flush()
                self._pace.waited(_clock() - begun)
        return True

    async def finish(self) -> str:
        """Write what is left; the SHA-256 of all."""
        await self._flush()
        await self._written()
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._end)
        await self._written()
        return self._hashed.hexdigest()

    async def _flush(self) -> None:
        """Begin to write what came, when what came before is written."""
        await self._written()
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, batch)

    async def _written(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                self._writing = writing
                raise

    def _write(self, batch: list[bytes]) -> None:
        for piece in batch:
            self._hashed.update(piece)
        with _telling(self._target), op("fs.write", self._target):
            for piece in batch:
                self._file.write(piece)
        self._limiter.pass_bytes(sum(map(len, batch)))

    def _end(self) -> None:
        with _telling(self._target), op("fs.write", self._target):
            self._file.flush()


def keep(target: Path, data: bytes, limiter: Limiter) -> str:
    """Write a file that came whole; its SHA-256. Raises as writing does."""
    with _telling(target):
        os.close(write_unsynced_file(target, data))
    limiter.pass_bytes(len(data))
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _telling(target: Path) -> Iterator[None]:
    """An error of this disk is none of the peer's."""
    try:
        yield
    except OSError as error:
        raise FrostlineError(
            f"{target} cannot be written: {error}", hint="check the disk and the kernel log (dmesg)"
        ) from error
