"""The bytes of a file table's row: inline, in one object, or (on disks that ClickHouse wrote) in several."""

from __future__ import annotations

import hashlib

from disks.stores.base import ByteRange, ObjectStore
from oplog import bounds
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow

_DOCUMENT = ".json"


def read_row(store: ObjectStore, row: FileRow, byte_range: ByteRange | None = None, *, disk: str) -> bytes:
    """The file's bytes, or those of the range; a whole file is checked against its SHA-256 where that is known.

    Raises `Damaged`, which names the file and the object: an object is gone or has another size, the range reaches past
    the end, the bytes are not those that were written, or a document is larger than any.
    """
    if byte_range is None and row.path.endswith(_DOCUMENT) and row.size_bytes > bounds.LARGEST_DOCUMENT_BYTES:
        raise Damaged(
            f"{disk}:{row.path} has {row.size_bytes} bytes, more than any valid one", hint="run 'frostline fsck'"
        )
    if byte_range is not None and not 0 <= byte_range.start <= byte_range.stop <= row.size_bytes:
        raise Damaged(
            f"{disk}:{row.path} ends at {row.size_bytes} bytes; {byte_range} is outside",
            hint="the file is shorter than its reader expects; run 'frostline fsck'",
        )
    if row.inline is not None:
        data = row.inline if byte_range is None else row.inline[byte_range.start : byte_range.stop]
    elif row.key is None:
        raise Damaged(f"{disk}:{row.path} has neither an object nor inline bytes", hint="run 'frostline fsck'")
    else:
        data = b"".join(
            _object(store, row, key, part, size, disk) for key, part, size in _pieces(row, row.key, byte_range)
        )
    if byte_range is None:
        _check_whole(row, data, disk)
    return data


def _pieces(row: FileRow, first: str, byte_range: ByteRange | None) -> list[tuple[str, ByteRange | None, int]]:
    """Which object gives which of its bytes (None: all of them), and how many; in the order of the file. Of a document
    no more is asked for than it has: the object may be of any size."""
    if not row.more:
        if byte_range is None and row.path.endswith(_DOCUMENT):
            byte_range = ByteRange(0, row.size_bytes)
        size = row.size_bytes if byte_range is None else byte_range.size_bytes
        return [(first, byte_range, size)] if size else []
    wanted = byte_range or ByteRange(0, row.size_bytes)
    pieces: list[tuple[str, ByteRange | None, int]] = []
    begin = 0
    for key, size in row.blobs:
        start, stop = max(wanted.start - begin, 0), min(wanted.stop - begin, size)
        if start < stop:
            pieces.append((key, None if stop - start == size else ByteRange(start, stop), stop - start))
        begin += size
    return pieces


def _object(
    store: ObjectStore, row: FileRow, key: str, byte_range: ByteRange | None, size_bytes: int, disk: str
) -> bytes:
    try:
        data = store.get(key, byte_range)
    except NotFound as error:
        raise Damaged(
            f"{disk}:{row.path}: its object {key} is gone from {store.name}",
            hint="run 'frostline fsck'; restore the object from a backup",
        ) from error
    if len(data) != size_bytes and not row.sha256:  # else the digest says so, of the whole file
        raise Damaged(
            f"{disk}:{row.path}: its object {key} gave {len(data)} bytes instead of {size_bytes}",
            hint="run 'frostline fsck'; restore the object from a backup",
        )
    return data


def _check_whole(row: FileRow, data: bytes, disk: str) -> None:
    if row.sha256 and hashlib.sha256(data).hexdigest() != row.sha256:
        raise Damaged(
            f"{disk}:{row.path} (object {row.key}) does not match its SHA-256",
            hint="run 'frostline fsck --read-data'; restore the object from a backup",
        )
    if len(data) != row.size_bytes:
        raise Damaged(
            f"{disk}:{row.path} has {len(data)} bytes and the file table says {row.size_bytes}",
            hint="run 'frostline fsck --read-data'",
        )
