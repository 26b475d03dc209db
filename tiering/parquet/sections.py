"""What of a data file is compared with what was written, piece by piece: its column chunks, and what follows them.

Page checksums of Parquet cover the pages and nothing else, and no query engine looks at them. So `part.json` keeps the
CRC32 of every column chunk in blocks, page headers included, and of the tail: page index and footer. Together with the
four bytes that every Parquet file begins with, these sections are the whole file, so a reader of any range of it can
tell that the bytes are those that were written. A file whose `part.json` states no sections is read once as a whole and
compared with its SHA-256; what its blocks are is known from then on.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from tiering.table.part import DataFile, RowGroup

MAGIC = b"PAR1"
"""What a Parquet file begins with."""
_NUMBER = struct.Struct("<I")
BLOCK_BYTES = 256 * 1024
"""Longer chunks are cut into blocks of this size, so that a few of a chunk's pages can be had without the others: about
what costs as much to read as another request. Part of the format of `part.json`."""


class Section(NamedTuple):
    """The bytes [start, stop) of a file and their CRC32."""

    start: int
    stop: int
    crc32: int
    group: int | None = None
    """The row group whose chunk this is, by its place in the file; None for what is no chunk."""
    column: int | None = None
    """The column whose chunk this is, likewise."""


def stated_sections(file: DataFile) -> tuple[Section, ...]:
    """The sections of the whole file, in order; none when `part.json` does not state them, or not without gaps."""
    found = [Section(0, len(MAGIC), zlib.crc32(MAGIC))]
    for number, group in enumerate(file.row_groups):
        if group.offset_bytes != found[-1].stop:
            return ()
        found.extend(_chunks(group, number))
        if found[-1].stop != group.offset_bytes + group.size_bytes:
            return ()
    if file.tail_crc32 is None or found[-1].stop >= file.size_bytes:
        return ()
    return (*found, Section(found[-1].stop, file.size_bytes, file.tail_crc32))


def bytes_of_columns(file: DataFile, columns: Collection[int]) -> int:
    """How long the chunks of these columns are, by their places, as far as `part.json` states them."""
    total = 0
    for group in file.row_groups:
        sizes = _sizes(group.chunk_sums)
        total += sum(sizes[column] for column in set(columns) if column < len(sizes))
    return total


def bytes_beside_columns(file: DataFile) -> int:
    """How long the rest is: what the file begins with, page index and footer."""
    return file.size_bytes - sum(group.size_bytes for group in file.row_groups)


def _chunks(group: RowGroup, number: int) -> Iterator[Section]:
    """The sections of the row group's chunks; they end early where `chunk_sums` do."""
    start = group.offset_bytes
    for column, (size, sums) in enumerate(_stated(group.chunk_sums)):
        stop = start + size
        for crc32 in sums:
            end = min(start + BLOCK_BYTES, stop)
            yield Section(start, end, crc32, number, column)
            start = end


@lru_cache(maxsize=1024)
def _sizes(chunk_sums: bytes) -> tuple[int, ...]:
    """The sizes that `_stated` gives."""
    return tuple(size for size, _ in _stated(chunk_sums))


def _stated(chunk_sums: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Of each column's chunk its size, and the CRC32 of its blocks, as `RowGroup.chunk_sums` holds them."""
    numbers = struct.unpack_from(f"<{len(chunk_sums) // _NUMBER.size}I", chunk_sums)
    place = 0
    while place < len(numbers):
        end = place + 1 + -(-numbers[place] // BLOCK_BYTES)
        yield numbers[place], numbers[place + 1 : end]
        place = end


def chunk_sums(file: BinaryIO, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
    """What `RowGroup.chunk_sums` holds for chunks that lie there in the file. Nothing for chunks that do not follow one
    another, or of 4 GiB: such a file is compared as a whole."""
    in_order = all(start + size == then for start, size, then in zip(starts, sizes, starts[1:], strict=False))
    if not in_order or max(sizes, default=0) >= 1 << 32:
        return b""
    numbers: list[int] = []
    for start, size in zip(starts, sizes, strict=True):
        stop = start + size
        blocks = (crc32_of(file, place, min(BLOCK_BYTES, stop - place)) for place in range(start, stop, BLOCK_BYTES))
        numbers += [size, *blocks]
    return b"".join(map(_NUMBER.pack, numbers))


def crc32_of(file: BinaryIO, start: int, size_bytes: int) -> int:
    """The CRC32 of the bytes there."""
    file.seek(start)
    found = 0
    while size_bytes > 0 and (piece := file.read(min(size_bytes, BLOCK_BYTES))):
        found = zlib.crc32(piece, found)
        size_bytes -= len(piece)
    return found


def blocks(data: memoryview, start: int) -> Iterator[Section]:
    """Sections of equal size for bytes that lie at `start` in a file."""
    for place in range(0, len(data), BLOCK_BYTES):
        block = data[place : place + BLOCK_BYTES]
        yield Section(start + place, start + place + len(block), zlib.crc32(block))
