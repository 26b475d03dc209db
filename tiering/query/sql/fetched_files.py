"""Files of buckets of which all that a statement reads is fetched before it runs: the engine opens them as local ones.

What that is, the plan and `part.json` say without a look at the bucket: the columns, the row groups that can match, and
where their chunks lie. These ranges are asked for side by side, neighbours in one request, compared with what was
written, and put at their places in a file that has holes elsewhere. Row groups that were not fetched are taken out of
its footer, so the engine does not know of them; and a column chunk that is a hole begins with a byte at which every
reader of Parquet stops.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from disks.effects import op, remove_file
from disks.workers.parallel import in_parallel
from tiering.parquet.checked_file import CheckedFile
from tiering.parquet.footers import with_groups
from tiering.parquet.sections import MAGIC
from tiering.query.selection import SelectedFile
from tiering.query.sql.read_ahead import chosen_sections, joined_ranges

MOST_BYTES = 512 * 1024 * 1024
"""So much is fetched for one statement; what is beyond it is read while it runs."""
_FREE_SHARE = 0.25
"""Of what is free where the files are made."""
_THREADS = 12
_numbers = itertools.count()
"""Of all files that were ever fetched: an engine keeps the footers of files by their names, for later queries, too."""


class ColdRead(msgspec.Struct, frozen=True):
    """What a statement reads of a file of a bucket."""

    selected: SelectedFile
    file: CheckedFile
    ranges: Sequence[tuple[int, int]]
    column_bytes: int
    groups: Collection[int] | None
    """The row groups that can match, by their places; None for all."""

    @property
    def size_bytes(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


class FetchedFiles:
    """Those of one statement. `close` removes them."""

    def __init__(self, directory: Path) -> None:
        """In `directory` the engine may open every file."""
        self._directory = directory
        self._paths: dict[int, Path] = {}
        """By the `id` of the selected file."""
        self._lock = threading.Lock()
        self.bytes_read = 0
        """Of columns, so far. From any thread."""

    @property
    def room_bytes(self) -> int:
        """So much may be fetched now."""
        return min(MOST_BYTES, int(shutil.disk_usage(self._directory).free * _FREE_SHARE))

    def fetch(self, reads: Sequence[ColdRead]) -> None:
        """Have all of these. The selected files must stay as long as this. Raises what reading raises."""
        descriptors: dict[int, int] = {}
        try:
            for read in reads:
                path = self._directory / f"fetched-{next(_numbers)}.parquet"
                self._paths[id(read.selected)] = path
                descriptors[id(read)] = _make(path, read.selected.file.size_bytes)
            pieces = [(read, start, stop) for read in reads for start, stop in read.ranges]
            left = Counter(id(read) for read, _, _ in pieces)

            def fetch(number: int) -> None:
                read, start, stop = pieces[number]
                _write(descriptors[id(read)], start, read.file.pieces(start, stop), self.path(read.selected))
                with self._lock:
                    self.bytes_read += stop - start
                    left[id(read)] -= 1
                    is_whole = not left[id(read)]
                if is_whole and read.groups is not None:
                    try:
                        _leave_out(descriptors[id(read)], read, self.path(read.selected))
                    except ValueError:  # it is served, and the engine says what is wrong with it
                        self._give_up(read)

            in_parallel(fetch, len(pieces), _THREADS)
            self.bytes_read = sum(read.column_bytes for read in reads)
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)

    def _give_up(self, read: ColdRead) -> None:
        remove_file(self._paths.pop(id(read.selected)), missing_ok=True)

    def path(self, file: SelectedFile) -> Path | None:
        """Where the engine finds what was fetched; None for a file that was not."""
        return self._paths.get(id(file))

    def close(self) -> None:
        """Remove the files."""
        for path in self._paths.values():
            with suppress(OSError):
                remove_file(path, missing_ok=True)
        self._paths.clear()


def cold_read(
    selected: SelectedFile, file: CheckedFile, leaves: Collection[int], groups: Collection[int] | None
) -> ColdRead | None:
    """What is read of a file: these leaves of these row groups, or of all, and the footer. None where `part.json` does
    not say where they lie."""
    if not file.sections:
        return None
    chosen = chosen_sections(file.sections, leaves, groups)
    column_bytes = sum(section.stop - section.start for section in chosen)
    ranges = joined_ranges((*chosen, file.sections[-1]))
    if groups is not None and len(groups) == len(selected.file.row_groups):
        groups = None
    return ColdRead(selected, file, ranges, column_bytes, groups)


def _make(path: Path, size_bytes: int) -> int:
    """A file of holes, but for what every Parquet file begins with."""
    with op("fs.create", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, size_bytes)
    os.pwrite(descriptor, MAGIC, 0)
    return descriptor


def _write(descriptor: int, start: int, pieces: Sequence[memoryview], path: Path | None) -> None:
    with op("fs.write", path):
        for piece in pieces:
            while piece:
                written = os.pwrite(descriptor, piece, start)
                start, piece = start + written, piece[written:]


def _leave_out(descriptor: int, read: ColdRead, path: Path | None) -> None:
    """Take the row groups that were not fetched out of the footer."""
    start = read.file.sections[-1].start
    tail = os.pread(descriptor, read.selected.file.size_bytes - start, start)
    assert read.groups is not None
    shorter = with_groups(tail, [group.rows for group in read.selected.file.row_groups], read.groups)
    os.ftruncate(descriptor, start)
    _write(descriptor, start, [memoryview(shorter)], path)
