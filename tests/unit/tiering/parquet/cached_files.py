"""Data files in a bucket, as far as the read cache sees them: some bytes, their sections, and what was asked for."""

from __future__ import annotations

import hashlib
import io
import random
import zlib
from pathlib import Path

from disks.stores.base import ByteRange
from tiering.parquet.checked_file import CheckedFile
from tiering.parquet.read_cache import AGAIN, ONCE, ReadCache
from tiering.parquet.sections import MAGIC, chunk_sums
from tiering.table.part import DataFile, RowGroup

CHUNK_BYTES = 64 * 1024


class Remote:
    """A file of some column chunks."""

    def __init__(self, name: str, chunks: int = 4) -> None:
        body = random.Random(name).randbytes(chunks * CHUNK_BYTES)
        tail = b"footer of " + name.encode()
        self.data = MAGIC + body + tail
        self.starts = [len(MAGIC) + number * CHUNK_BYTES for number in range(chunks)]
        sums = chunk_sums(io.BytesIO(self.data), self.starts, [CHUNK_BYTES] * chunks)
        self.file = DataFile(
            name,
            chunks,
            len(self.data),
            hashlib.sha256(self.data).hexdigest(),
            (RowGroup(chunks, len(MAGIC), len(body), chunk_sums=sums),),
            tail_crc32=zlib.crc32(tail),
        )
        self.asked: list[ByteRange] = []
        """Since `read` began."""

    def opened(self, cache: ReadCache | None, *, for_good: bool = False) -> CheckedFile:
        cached = cache.file("s3", self.file.name, self.file.sha256, for_good=for_good) if cache else None
        return CheckedFile(self.file, self._fetch, label="the file", hint="", cached=cached)

    def read(self, cache: ReadCache | None, start: int = 0, stop: int | None = None) -> bytes:
        """As a query of its own."""
        self.asked = []
        end = len(self.data) if stop is None else stop
        return b"".join(self.opened(cache).pieces(start, end))

    def chunk(self, number: int) -> tuple[int, int]:
        return self.starts[number], self.starts[number] + CHUNK_BYTES

    def _fetch(self, wanted: ByteRange) -> bytes:
        self.asked.append(wanted)
        return self.data[wanted.start : wanted.stop]


def kept_files(directory: Path) -> list[Path]:
    return sorted(path for folder in (ONCE, AGAIN) for path in (directory / folder).glob("*"))


def used_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in kept_files(directory))
