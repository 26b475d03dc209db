"""Packs: small files side by side in one object, so that many of them cost few requests.

    the files' bytes, each as it is or compressed with zstd
    an index: zstd of a JSON array [sha256, offset, length, compressed, size] a file
    the length of the index in four bytes, little-endian, and `FLP1`

The lists of a backup say where each file lies, so the index is read only for a pack that no list names yet: what a
killed backup had sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from backup.format import encoding
from backup.format.names import Sha256, is_sha256
from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged

PACKED_FILE_BYTES = 1024 * 1024
"""Smaller files share packs; others are objects of their own."""
PACK_BYTES = 8 * 1024 * 1024
"""A pack ends when it has reached this size."""
TAIL_BYTES = 8
_MAGIC = b"FLP1"
_INDEX_LIMIT_BYTES = 64 * 1024 * 1024


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """One file of a pack."""

    sha256: Sha256
    offset: int
    length: int
    compressed: bool
    size_bytes: int


def _fault_in(entries: list[Packed]) -> str | None:
    for entry in entries:
        if min(entry.offset, entry.length, entry.size_bytes) < 0 or not is_sha256(entry.sha256):
            return "it names what cannot be in a pack"
    return None


_document = Document[list[Packed]]("index of a pack", list[Packed], fault=_fault_in)


def build(files: Iterable[bytes]) -> tuple[bytes, list[Packed]]:
    """The bytes of a pack, and where each file lies in it. A file is compressed where that makes it smaller."""
    pieces: list[bytes] = []
    entries: list[Packed] = []
    offset = 0
    compress = encoding.compressor().compress  # made once: that takes longer than compressing a small file
    for data in files:
        smaller = compress(data) if _may_shrink(data) else data
        kept = smaller if len(smaller) < len(data) else data
        entries.append(Packed(hashlib.sha256(data).hexdigest(), offset, len(kept), kept is not data, len(data)))
        pieces.append(kept)
        offset += len(kept)
    index = compress(_document.encode(entries))
    return b"".join([*pieces, index, len(index).to_bytes(4, "little"), _MAGIC]), entries


def index_length(tail: bytes, where: str) -> int:
    """How long the index before the last `TAIL_BYTES` bytes is. Raises `Damaged` for what is no pack."""
    if len(tail) != TAIL_BYTES or tail[4:] != _MAGIC:
        raise Damaged(f"{where} is no pack")
    return int.from_bytes(tail[:4], "little")


def read_index(index: bytes, pack_bytes: int, where: str) -> list[Packed]:
    """The files of a pack of so many bytes, from its index. Raises `Damaged`."""
    try:
        entries = _document.decode(encoding.decompressed(index, _INDEX_LIMIT_BYTES, where))
    except bounds.UNREADABLE as error:
        raise Damaged(f"{where}: its index cannot be read: {error}") from error
    for entry in entries:
        if entry.offset + entry.length > pack_bytes:
            raise Damaged(f"{where}: its index names what cannot be in it")
    return entries


def content(stored: bytes, *, compressed: bool, size_bytes: int, where: str) -> bytes:
    """A file from its stretch of a pack. The caller compares its digest. Raises `Damaged`."""
    data = encoding.decompressed(stored, size_bytes, where) if compressed else stored
    if len(data) != size_bytes:
        raise Damaged(f"{where} has {len(data)} bytes instead of {size_bytes}")
    return data


def group(sizes: Sequence[int]) -> list[range]:
    """Which files, in their order, share a pack."""
    groups: list[range] = []
    start = filled = 0
    for number, size_bytes in enumerate(sizes):
        filled += size_bytes
        if filled >= PACK_BYTES:
            groups.append(range(start, number + 1))
            start, filled = number + 1, 0
    if start < len(sizes):
        groups.append(range(start, len(sizes)))
    return groups


def _may_shrink(data: bytes) -> bool:
    """Parquet is compressed already; trying costs time."""
    return not data.startswith(b"PAR1")
