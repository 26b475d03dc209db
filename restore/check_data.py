"""Reading the data of parts whole: SHA-256 of every file, then its Parquet footer (I1, I15)."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from disks.stores.base import ByteRange
from oplog.errors import Damaged, NotFound
from restore.check_parts import Survey
from restore.findings import FileTree, Findings, Problem, locate
from tiering.part import PART_FILE, DataFile

CHUNK_BYTES = 8 * 1024 * 1024
"""Files are hashed in pieces of this size, so that memory stays bounded."""


def read_data(
    tree: FileTree,
    expected: Mapping[str, DataFile],
    found: Survey,
    findings: Findings,
    *,
    share: float | None = None,
    workers: int = 8,
    seed: int | None = None,
) -> int:
    """Read data files whole: SHA-256, then the Parquet footer. `share` reads some, drawn anew each time.

    Returns the bytes read.
    """
    paths = sorted(expected)
    if share is not None and paths:
        count = max(1, round(len(paths) * share))
        paths = sorted(random.Random(seed).sample(paths, min(count, len(paths))))
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="fsck") as pool:
        for path, what in pool.map(lambda path: (path, _fault_in(tree, path, expected[path])), paths):
            place = locate(path)
            if what is not None and place is not None:
                key = tree.files[path].key
                table = found.table_name(place.uuid)
                findings.add(Problem("I1", what, tree.disk, table=table, part=place.part, path=path, object=key))
    return sum(expected[path].size_bytes for path in paths)


def _fault_in(tree: FileTree, path: str, wanted: DataFile) -> str | None:
    """What is wrong with the file's bytes; None when they are what was written."""
    state = hashlib.sha256()
    try:
        for start in range(0, wanted.size_bytes, CHUNK_BYTES):
            state.update(tree.read(path, ByteRange(start, min(start + CHUNK_BYTES, wanted.size_bytes))))
        if state.hexdigest() != wanted.sha256:
            return "the bytes do not match their SHA-256"
        rows = pq.ParquetFile(_Reader(tree, path, wanted.size_bytes)).metadata.num_rows
    except (Damaged, NotFound) as error:
        return error.message
    except (pa.ArrowException, OSError) as error:
        return f"not a readable Parquet file: {error}"
    if rows != wanted.rows:
        return f"the Parquet footer says {rows} rows and {PART_FILE} says {wanted.rows}"
    return None


class _Reader(io.RawIOBase):
    """A seekable file over ranged reads, for the Parquet footer."""

    def __init__(self, tree: FileTree, path: str, size_bytes: int) -> None:
        self._tree, self._path, self._size_bytes = tree, path, size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        stop = self._size_bytes if size < 0 else min(self._position + size, self._size_bytes)
        if stop <= self._position:
            return b""
        data = self._tree.read(self._path, ByteRange(self._position, stop))
        self._position = stop
        return data
