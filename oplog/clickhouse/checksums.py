"""ClickHouse's `checksums.txt`: the files of a MergeTree part with their sizes, as its writer knew them.

    checksums format version: 4\\n
    compressed block: 16 bytes hash, 1 byte method, 4 bytes size with these 9, 4 bytes uncompressed size, payload
      (LEB128 count, then a file each: name, size, 16 bytes hash, 1 byte compressed?, then uncompressed size and hash)

Facts: ClickHouse's MergeTreeDataPartChecksums and CompressedReadBuffer; versions 2 to 4 are in use, 4 since 2016.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from oplog.errors import Damaged

FILE_NAME = "checksums.txt"
_HEADER = b"checksums format version: 4\n"
_BLOCK_HEADER = 25
_MOST_BYTES = 64 * 1024 * 1024
_METHODS: Mapping[int, str | None] = {0x02: None, 0x82: "lz4_raw", 0x90: "zstd"}

SIZES_BYTES = range(len(_HEADER) + _BLOCK_HEADER, 16 * 1024)
"""Sizes of the file that are usual: some 30 bytes a file of the part."""


def are_checksums(data: bytes) -> bool:
    """Whether the bytes begin as the file does."""
    return data.startswith(_HEADER)


class Checksum(NamedTuple):
    """What the list says of one file."""

    size_bytes: int
    digest: bytes
    """See `oplog.clickhouse.cityhash`."""


def parse(data: bytes, *, name: str) -> dict[str, int]:
    """File name -> size in bytes. Raises `Damaged` naming the file for anything that is not version 4."""
    return {file: checksum.size_bytes for file, checksum in parse_checksums(data, name=name).items()}


def parse_checksums(data: bytes, *, name: str) -> dict[str, Checksum]:
    """File name -> size and digest of its bytes. Raises as `parse` does."""
    if not are_checksums(data):
        raise Damaged(f"{name} is no list of checksums of version 4: {data[:40]!r}")
    try:
        return _files(_BinaryReader(_decompressed(data[len(_HEADER) :])))
    except (OSError, ValueError, struct.error, IndexError, KeyError) as error:
        raise Damaged(f"{name} cannot be read: {error or type(error).__name__}") from error


def _decompressed(data: bytes) -> bytes:
    blocks = []
    total = 0
    while data:
        method, size, plain_size = struct.unpack("<BII", data[16:_BLOCK_HEADER])
        end = 16 + size
        total += plain_size
        if end > len(data) or size < 9 or total > _MOST_BYTES:
            raise ValueError("a compressed block has an impossible size")
        payload = data[_BLOCK_HEADER:end]
        codec = _METHODS[method]
        block = payload if codec is None else _expanded(payload, plain_size, codec)
        if len(block) != plain_size:
            raise ValueError("a compressed block is shorter than it says")
        blocks.append(block)
        data = data[end:]
    return b"".join(blocks)


def _expanded(payload: bytes, size_bytes: int, codec: str) -> bytes:
    import pyarrow as pa  # here: checking a disk without such files need not wait for this import

    try:
        expanded: bytes = pa.decompress(payload, size_bytes, codec, asbytes=True)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    return expanded


class _BinaryReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError("it ends early")
        self._at += size
        return taken


def _files(reader: _BinaryReader) -> dict[str, Checksum]:
    files: dict[str, Checksum] = {}
    for _ in range(reader.number()):
        file = reader.take(reader.number()).decode()
        size_bytes = reader.number()
        files[file] = Checksum(size_bytes, reader.take(16))
        if reader.take(1) != b"\0":
            reader.number()
            reader.take(16)
    return files
