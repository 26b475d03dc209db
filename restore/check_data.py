"""Reading the data of a disk: SHA-256 of every file, then its Parquet footer (I1, I15).

A share of the data is chosen by name: every path belongs to one of n shares for ever, so that runs that read a share
not read lately have read everything after n of them.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from disks.references import DETACHED_DIRECTORY
from disks.stores.base import ByteRange
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow
from restore.check_parts import directories, present_files, read_part
from restore.findings import FileTree, Findings, Problem, locate
from tiering.part import PART_FILE
from tiering.progress import Progress

CHUNK_BYTES = 8 * 1024 * 1024
"""Files are hashed in pieces of this size, so that memory stays bounded."""


class Expected(NamedTuple):
    """What reading a file must confirm."""

    path: str
    size_bytes: int
    sha256: str
    """Empty when nobody knows it."""
    rows: int | None
    """Of a Parquet file that `part.json` names."""


def share_of(path: str, shares: int) -> int:
    """The share a path belongs to, from 1 to `shares`."""
    return zlib.crc32(path.encode()) % shares + 1


def readable_files(tree: FileTree) -> Iterator[Expected]:
    """Every file worth reading: those of whole parts, and on object disks all others that have an object. Where no
    digest is known (a rebuilt disk with ClickHouse's log), reading shows at least that all bytes are there."""
    for directory in directories(tree.rows()):
        known: dict[str, int] = {}
        row = directory.files.get(PART_FILE)
        if directory.uuid is not None and directory.name is not None and row is not None:
            try:
                part = read_part(tree, row, directory.uuid, str(directory.name))
            except (Damaged, NotFound):
                continue
            for row, wanted in present_files(part, directory.files):
                known[wanted.name] = wanted.rows
                yield Expected(row.path, row.size_bytes, wanted.sha256, wanted.rows)
        for name, row in directory.files.items():
            place = locate(row.path)
            aside = place is not None and place.part == DETACHED_DIRECTORY
            if (row.sha256 or row.key is not None) and row.inline is None and name not in known and not aside:
                yield Expected(row.path, row.size_bytes, row.sha256, None)


def read_data(
    tree: FileTree, files: Iterable[Expected], findings: Findings, *, workers: int, progress: Progress
) -> tuple[int, int]:
    """Read the files whole, several at a time. Returns their number and bytes."""
    wanted = list(files)
    size_bytes = sum(expected.size_bytes for expected in wanted)
    with progress.task(f"reading {tree.disk}", items=len(wanted), size_bytes=size_bytes) as task:

        def check(expected: Expected) -> None:
            row = tree.find(expected.path)
            if row is not None:
                _check_file(tree, row, expected, findings)
            task.advance(items=1, size_bytes=expected.size_bytes)

        _several_at_a_time(check, wanted, workers)
    return len(wanted), size_bytes


def _several_at_a_time(work: Callable[[Expected], None], items: Iterable[Expected], workers: int) -> None:
    """Run it over the items with a bounded queue. The first error ends it."""
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="fsck") as pool:
        waiting: list[Future[None]] = []
        source = iter(items)
        try:
            while batch := list(islice(source, 4 * workers)):
                waiting += [pool.submit(work, item) for item in batch]
                while len(waiting) > 4 * workers:
                    waiting.pop(0).result()
            for future in waiting:
                future.result()
        finally:
            for future in waiting:
                future.cancel()


def _check_file(tree: FileTree, row: FileRow, expected: Expected, findings: Findings) -> None:
    what = _fault_in(tree, row, expected)
    if what is None:
        return
    place = locate(row.path)
    table, part = (place.uuid, place.part) if place else (None, None)
    findings.add(Problem("I1", what, tree.disk, table, part, row.path, row.key), unusable="altered")


def _fault_in(tree: FileTree, row: FileRow, expected: Expected) -> str | None:
    """What is wrong with the file's bytes; None when they are what was written."""
    state = hashlib.sha256()
    try:
        for start in range(0, row.size_bytes, CHUNK_BYTES):
            state.update(tree.content(row, ByteRange(start, min(start + CHUNK_BYTES, row.size_bytes))))
        if expected.sha256 and state.hexdigest() != expected.sha256:
            return "the bytes do not match their SHA-256"
        if expected.rows is None:
            return None
        rows = pq.ParquetFile(_Reader(tree, row)).metadata.num_rows
    except (Damaged, NotFound) as error:
        return error.message
    except (pa.ArrowException, OSError) as error:
        return f"not a readable Parquet file: {error}"
    if rows != expected.rows:
        return f"the Parquet footer says {rows} rows and {PART_FILE} says {expected.rows}"
    return None


class _Reader(io.RawIOBase):
    """A seekable file over ranged reads, for the Parquet footer."""

    def __init__(self, tree: FileTree, row: FileRow) -> None:
        self._tree, self._row = tree, row
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._row.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        end = self._row.size_bytes
        stop = end if size < 0 else min(self._position + size, end)
        if stop <= self._position:
            return b""
        data = self._tree.content(self._row, ByteRange(self._position, stop))
        self._position = stop
        return data
