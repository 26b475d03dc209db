"""A data file in a bucket as what pyarrow reads, with few requests: whole, or a row group's columns at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from disks.host.ranged_file import RangedFile
from disks.stores.base import ByteRange, ObjectStore
from oplog.errors import Damaged
from tiering.parquet.checked_file import CheckedFile, HeldSections
from tiering.table.part import DataFile

DAMAGE_HINT = "run 'frostline fsck --read-data'; no partial result is given"
WHOLE_BYTES = 32 * 1024 * 1024
"""Files up to this size of which most is wanted come in one request."""
TAIL_BYTES = 64 * 1024
"""What is asked for first of a file that is read in pieces: the footer of a few hundred row groups."""
HOLE_BYTES = 256 * 1024
"""Bytes that nobody wants, between two that are wanted, which cost less than another request."""


def whole_file(store: ObjectStore, key: str, sha256: str, label: str) -> pa.BufferReader:
    """The file in memory. Raises `Damaged` when its bytes are not those that were written."""
    data = store.get(key)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Damaged(f"{label} is not what was written", hint=DAMAGE_HINT)
    return pa.BufferReader(data)


class BlobFile(RangedFile):
    """Reads of a blob, from ranges that were fetched before; anything else is a request of its own. What is read was
    compared with what was written; `Damaged` where it differs."""

    def __init__(self, store: ObjectStore, key: str, file: DataFile, label: str) -> None:
        super().__init__(file.size_bytes)
        # What is held is held here: nothing is asked for twice.
        self._checked = CheckedFile(
            file, partial(store.get, key), label=label, hint=DAMAGE_HINT, held=HeldSections(limit_bytes=0)
        )
        self._held: list[tuple[int, memoryview]] = []
        self._tail = max(0, file.size_bytes - (self._checked.tail_bytes or TAIL_BYTES))
        self._tail_bytes: memoryview | None = None

    def metadata(self) -> pq.FileMetaData | None:
        """The footer, where it is known how much follows the column chunks: Arrow by itself would ask for more."""
        if self._checked.tail_bytes is None:
            return None
        return pq.read_metadata(pa.BufferReader(self._bytes(self._tail, self._size)))

    def fetch(self, ranges: Iterable[ByteRange]) -> list[tuple[int, memoryview]]:
        """The bytes of the ranges, neighbours together, as (start, bytes): for `hold`."""
        return [(wanted.start, self._get(wanted.start, wanted.stop)) for wanted in coalesced(ranges, HOLE_BYTES)]

    def hold(self, fetched: Sequence[tuple[int, memoryview]]) -> None:
        """Read from these bytes from now on, and forget those before."""
        self._held = list(fetched)

    def _bytes(self, start: int, stop: int) -> memoryview | bytes:
        for first, data in self._held:
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        if start >= self._tail:
            if self._tail_bytes is None:
                self._tail_bytes = self._get(self._tail, self._size)
            return self._tail_bytes[start - self._tail : stop - self._tail]
        return self._get(start, stop)

    def _get(self, start: int, stop: int) -> memoryview:
        pieces = self._checked.pieces(start, stop)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def coalesced(ranges: Iterable[ByteRange], hole_bytes: int) -> list[ByteRange]:
    """The ranges in order, those with no more than so many bytes between them as one."""
    joined: list[ByteRange] = []
    for byte_range in sorted(ranges, key=lambda byte_range: byte_range.start):
        if joined and byte_range.start <= joined[-1].stop + hole_bytes:
            joined[-1] = ByteRange(joined[-1].start, max(joined[-1].stop, byte_range.stop))
        else:
            joined.append(byte_range)
    return joined


def column_ranges(metadata: pq.FileMetaData, row_group: int, columns: set[int]) -> list[ByteRange]:
    """Where the data of these leaves of a row group lies in the file."""
    group = metadata.row_group(row_group)
    found = []
    for number in range(group.num_columns):
        column = group.column(number)
        if number in columns:
            offsets = [column.data_page_offset, column.dictionary_page_offset]
            start = min(offset for offset in offsets if offset)
            found.append(ByteRange(start, start + column.total_compressed_size))
    return found
