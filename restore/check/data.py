"""Reading the data of a disk: SHA-256 of every file, then its Parquet footer (I1, I15).

A share of the data is chosen by name: every path belongs to one of n shares for ever, so that runs that read a share
not read lately have read everything after n of them.
"""

from __future__ import annotations

import errno
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import msgspec

from disks.file_table.row_bytes import read_row
from disks.host.ranged_file import RangedFile
from disks.object_disk.references import DETACHED_DIRECTORY
from disks.stores.base import ByteRange
from disks.system_errors import of_the_system
from disks.workers.batches import cut
from disks.workers.progress import Progress
from disks.workers.runner import OpensStore, Remote, threads
from oplog.errors import Damaged, NotFound
from oplog.replay import FileRow
from restore.check.findings import FileTree, Findings, ListedTree, Problem
from restore.check.parts import directories, present_files, read_part
from tiering.config.units import counted
from tiering.table.part import PART_FILE
from tiering.table.paths import directory_of, locate

CHUNK_BYTES = 8 * 1024 * 1024
"""Files are hashed in pieces of this size, so that memory stays bounded."""
_HELD_BYTES = 4 * CHUNK_BYTES
"""A data file of no more is read once: what is compared is decoded as well."""
_NOT_READ = "cannot be read:"
_NO_TEXT = "there are bytes that are no UTF-8 text in column"

_BATCH_FILES = 4_000
_BYTES_EACH = 64 * 1024
"""What asking for a file costs, in bytes of reading: many small files are work, too."""


class WorkSplit(NamedTuple):
    """How the work is cut: into so many pieces, but none of less or more bytes than these."""

    pieces: int
    least_bytes: int
    most_bytes: int
    threads: int
    """How many files of a piece are read at a time."""


_HERE = WorkSplit(64, 1, 256 << 20, 1)
_ELSEWHERE = WorkSplit(256, 128 << 20, 1 << 30, 4)
"""A task costs as much as reading some megabytes, and a bucket answers late."""


class Expected(NamedTuple):
    """What reading a file must confirm."""

    row: FileRow
    sha256: str
    """Empty when nobody knows it."""
    rows: int | None
    """Of a Parquet file that `part.json` names."""


class Content(Protocol):
    """What gives the bytes of files."""

    def content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        """As `FileTree.content`."""


class StoredFiles(msgspec.Struct, frozen=True):
    """The files of a disk in a bucket, for a process that has nothing of the disk but their rows."""

    store: OpensStore
    disk: str

    def content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        return read_row(self.store.open(), row, byte_range, disk=self.disk)


class ReadBatch(msgspec.Struct, frozen=True):
    """Files to read whole: one piece of work, wherever it is done."""

    source: Content
    files: tuple[Expected, ...]
    threads: int = 1

    @property
    def size_bytes(self) -> int:
        return sum(expected.row.size_bytes for expected in self.files)


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
                yield Expected(row, wanted.sha256, wanted.rows)
        for name, row in directory.files.items():
            place = locate(row.path)
            aside = place is not None and place.part == DETACHED_DIRECTORY
            if (row.sha256 or row.key is not None) and row.inline is None and name not in known and not aside:
                yield Expected(row, row.sha256, None)


def read_data(
    tree: FileTree,
    files: Iterable[Expected],
    findings: Findings,
    *,
    workers: int,
    progress: Progress,
    remote: Remote | None = None,
) -> tuple[int, int]:
    """Read the files whole, several at a time: here, or elsewhere. Returns their number and bytes."""
    source: Content = tree if remote is None else StoredFiles(remote.store, tree.disk)
    runner = threads(workers) if remote is None else remote.runner
    batches = cut_batches(source, list(files), _HERE if remote is None else _ELSEWHERE)
    count = sum(len(batch.files) for batch in batches)
    size_bytes = sum(batch.size_bytes for batch in batches)
    with progress.task(f"reading {tree.disk}", items=count, size_bytes=size_bytes) as task:

        def note_faults(index: int, faults: list[tuple[int, str]]) -> None:
            batch = batches[index]
            for number, what in faults:
                row = batch.files[number].row
                place = locate(row.path)
                table, part = (place.uuid, place.part) if place else (None, None)
                if table is not None and part is not None and _was_taken_away(tree, table, part):
                    continue
                problem = Problem("I1", what, tree.disk, table, part, row.path, row.key)
                # Of a part that was written so, the other columns are good: no repair may set it aside.
                # What a failing device does not give may be whole: nor that.
                findings.add(problem, unusable=None if what.startswith((_NO_TEXT, _NOT_READ)) else "altered")
            task.advance(items=len(batch.files), size_bytes=batch.size_bytes)

        runner.run(read_batch, batches, title=f"reading the data of disk {tree.disk}", on_done=note_faults)
    return count, size_bytes


def _was_taken_away(tree: FileTree, uuid: str, part: str) -> bool:
    """Whether the part is on its disk no more, as after a merge or a move since the disk was looked through. Of a disk
    with a log, whose rows do not come from a look, what is not there is missing."""
    row = tree.find(f"{directory_of(uuid, part)}/{PART_FILE}") if isinstance(tree, ListedTree) else None
    if row is None:
        return False
    try:
        tree.content(row)
    except NotFound:
        return True
    except (Damaged, OSError):
        pass
    return False


def cut_batches(source: Content, files: Sequence[Expected], how: WorkSplit) -> list[ReadBatch]:
    """Batches of about the same work, the largest first."""
    work = sum(map(_work, files))
    most = max(how.least_bytes, min(how.most_bytes, work // how.pieces))
    pieces = cut(files, _work, most=most, most_items=_BATCH_FILES)
    batches = [ReadBatch(source, tuple(piece), how.threads) for piece in pieces]
    return sorted(batches, key=lambda batch: batch.size_bytes, reverse=True)


def _work(expected: Expected) -> int:
    return expected.row.size_bytes + _BYTES_EACH


def read_batch(batch: ReadBatch) -> list[tuple[int, str]]:
    """Read every file of the batch; what is wrong with which of them. Raises what says nothing about a file: a store
    that does not answer, or refuses us."""
    with ThreadPoolExecutor(batch.threads, thread_name_prefix="fsck") as pool:
        running = [pool.submit(_fault_in, batch.source, expected) for expected in batch.files]
        try:
            found = [future.result() for future in running]
        finally:
            for future in running:
                future.cancel()
    return [(number, what) for number, what in enumerate(found) if what is not None]


def _fault_in(source: Content, expected: Expected) -> str | None:
    """What is wrong with the file's bytes; None when they are what was written."""
    row, state, held = expected.row, hashlib.sha256(), bytearray()
    try:
        for start in range(0, row.size_bytes, CHUNK_BYTES):
            data = source.content(row, ByteRange(start, min(start + CHUNK_BYTES, row.size_bytes)))
            state.update(data)
            if expected.rows is not None and row.size_bytes <= _HELD_BYTES:
                held += data
        if expected.sha256 and state.hexdigest() != expected.sha256:
            return "the bytes do not match their SHA-256"
        file: RangedFile | io.BytesIO = io.BytesIO(held) if held else _WholeFile(source, row)
        rows, untold = _rows_and_texts(file) if expected.rows is not None else (None, "")
    except (Damaged, NotFound) as error:
        return error.message
    except OSError as error:
        if error.errno != errno.EIO and (refused := of_the_system(error, row.path)) is not None:
            raise refused from error
        return f"{_NOT_READ} {error}"
    if rows is not None and rows != expected.rows:
        return f"the Parquet footer says {counted(rows or 0, 'row')} and {PART_FILE} says {expected.rows}"
    return f"{_NO_TEXT} {untold}" if untold else None


_BATCH_ROWS = 16_384
"""Decoded at once: a row group may unpack to any size."""


def _rows_and_texts(file: RangedFile | io.BytesIO) -> tuple[int, str]:
    """How many rows the file has, and the first column with bytes that are no text, if any. Raises `Damaged`."""
    import pyarrow as pa  # here: a check that reads no data need not wait until it is loaded
    import pyarrow.parquet as pq

    from tiering.table.columns.sound_values import holds_text, is_sound, rows_without_text

    try:
        parquet = pq.ParquetFile(file)
        names = [field.name for field in parquet.schema_arrow if holds_text(field.type)]
        for group in range(parquet.num_row_groups if names else 0):
            for name in names:
                for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[name]):
                    # Several columns: a path may be the name of one, too.
                    if any(not is_sound(one) and rows_without_text(one) for one in batch.columns):
                        return parquet.metadata.num_rows, name
        return parquet.metadata.num_rows, ""
    except (pa.ArrowException, OSError, MemoryError) as error:
        if (refused := of_the_system(error)) is not None:
            raise refused from error
        raise Damaged(f"not a readable Parquet file: {error}") from error


class _WholeFile(RangedFile):
    """A file over ranged reads of a disk, for Parquet."""

    def __init__(self, source: Content, row: FileRow) -> None:
        super().__init__(row.size_bytes)
        self._source, self._row = source, row

    def _bytes(self, start: int, stop: int) -> bytes:
        return self._source.content(self._row, ByteRange(start, stop))
