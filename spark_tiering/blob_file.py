"""A data file in a bucket as what pyarrow reads, with few requests: whole, or a row group's columns at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from disks.host.ranged_file import RangedFile
from disks.stores.base import ByteRange, ObjectStore
from oplog.errors import Damaged

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
        raise Damaged(f"{label} is not what was written", hint="run 'frostline fsck'; no partial result is given")
    return pa.BufferReader(data)


class BlobFile(RangedFile):
    """Reads of a blob, from ranges that were fetched before; anything else is a request of its own."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._store, self._key = store, key
        self._held: list[tuple[int, memoryview]] = []
        self._tail = max(0, size_bytes - TAIL_BYTES)
        self._tail_bytes: memoryview | None = None

    def fetch(self, ranges: Iterable[ByteRange]) -> list[tuple[int, memoryview]]:
        """The bytes of the ranges, neighbours together, as (start, bytes): for `hold`."""
        return [
            (wanted.start, memoryview(self._store.get(self._key, wanted))) for wanted in coalesced(ranges, HOLE_BYTES)
        ]

    def hold(self, fetched: Sequence[tuple[int, memoryview]]) -> None:
        """Read from these bytes from now on, and forget those before."""
        self._held = list(fetched)

    def _bytes(self, start: int, stop: int) -> memoryview | bytes:
        for first, data in self._held:
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        if start >= self._tail:
            if self._tail_bytes is None:
                self._tail_bytes = memoryview(self._store.get(self._key, ByteRange(self._tail, self._size)))
            return self._tail_bytes[start - self._tail : stop - self._tail]
        return self._store.get(self._key, ByteRange(start, stop))


def coalesced(ranges: Iterable[ByteRange], hole_bytes: int) -> list[ByteRange]:
    """The ranges in order, those with no more than so many bytes between them as one."""
    joined: list[ByteRange] = []
    for wanted in sorted(ranges, key=lambda item: item.start):
        if joined and wanted.start <= joined[-1].stop + hole_bytes:
            joined[-1] = ByteRange(joined[-1].start, max(joined[-1].stop, wanted.stop))
        else:
            joined.append(wanted)
    return joined


def column_ranges(metadata: pq.FileMetaData, row_group: int, columns: set[str]) -> list[ByteRange]:
    """Where the columns' data of a row group lies in the file."""
    group = metadata.row_group(row_group)
    found = []
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema.split(".")[0] in columns:
            offsets = [column.data_page_offset, column.dictionary_page_offset]
            start = min(offset for offset in offsets if offset)
            found.append(ByteRange(start, start + column.total_compressed_size))
    return found
