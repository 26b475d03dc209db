"""Files of buckets of which all that a statement reads is fetched before it runs: the engine opens them as local ones.

What that is, the plan and `part.json` say without a look at the bucket: the columns, the row groups that can match, and
where their chunks lie. These ranges are asked for side by side, neighbours in one request, compared with what was
written, and put at their places in a file that has holes elsewhere. Row groups that were not fetched are taken out of
its footer, so the engine does not know of them; and a column chunk that is a hole begins with a byte at which every
reader of Parquet stops.

Where `part.json` says nothing of the row groups by the columns of the filter, the footer is fetched first, with the
first ranges of the other files, if that may save more than it costs. A file whose sections `part.json` does not state
is fetched as a whole.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from disks.effects import op, remove_file
from disks.workers.parallel import in_parallel
from tiering.parquet.footers import with_groups
from tiering.parquet.sections import MAGIC
from tiering.query.selection import SelectedFile
from tiering.query.sql.cold_reads import ColdRead, tail_of, told

MOST_BYTES = 512 * 1024 * 1024
"""So much is fetched for one statement; what is beyond it is read while it runs."""
_FREE_SHARE = 0.25
"""Of what is free where the files are made."""
_THREADS = 12
_numbers = itertools.count()
"""Of all files that were ever fetched: an engine keeps the footers of files by their names, for later queries, too."""


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
        """By the `id` of the selected file."""
        try:
            for read in reads:
                path = self._directory / f"fetched-{next(_numbers)}.parquet"
                self._paths[id(read.selected)] = path
                descriptors[id(read.selected)] = _make(path, read.selected.file.size_bytes)
            unclear = [read for read in reads if read.footer_says is not None]
            clear = [read for read in reads if read.footer_says is None]
            clearer = self._fetch_pieces(unclear, clear, descriptors)
            self._fetch_pieces((), clearer, descriptors)
            self.bytes_read = sum(read.column_bytes for read in [*clear, *clearer])
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)

    def _fetch_pieces(
        self, unclear: Sequence[ColdRead], clear: Sequence[ColdRead], descriptors: dict[int, int]
    ) -> list[ColdRead]:
        """Fetch the footers of those that are unclear, and all of the others. What is left to read of the former."""
        pieces = [(read, *tail_of(read)) for read in unclear]
        pieces += [(read, start, stop) for read in clear for start, stop in read.ranges]
        left = Counter(id(read) for read, _, _ in pieces)
        clearer: dict[int, ColdRead] = {}

        def fetch(number: int) -> None:
            read, start, stop = pieces[number]
            descriptor, path = descriptors[id(read.selected)], self.path(read.selected)

            def put(offset: int, data: Sequence[memoryview]) -> None:
                _write(descriptor, offset, data, path)

            if not read.file.sections:
                read.file.read_whole(lambda place, data: put(place, [data]))
            else:
                found = read.file.pieces(start, stop)
                put(start, found)
                if number < len(unclear):
                    clearer[number] = told(read, b"".join(found))
                    return
            with self._lock:
                self.bytes_read += stop - start
                left[id(read)] -= 1
                is_whole = not left[id(read)]
            if is_whole:
                self._end(read, descriptor)

        in_parallel(fetch, len(pieces), _THREADS)
        for read in clearer.values():
            if not read.ranges:  # no row group can match
                self._end(read, descriptors[id(read.selected)])
        return [clearer[number] for number in sorted(clearer)]

    def _end(self, read: ColdRead, descriptor: int) -> None:
        """All of it was fetched."""
        if read.groups is not None:
            try:
                _leave_out(descriptor, read, self.path(read.selected))
            except ValueError:  # it is served, and the engine says what is wrong with it
                self._give_up(read)

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
    start, stop = tail_of(read)
    tail = os.pread(descriptor, stop - start, start)
    assert read.groups is not None
    shorter = with_groups(tail, [group.rows for group in read.selected.file.row_groups], read.groups)
    os.ftruncate(descriptor, start)
    _write(descriptor, start, [memoryview(shorter)], path)
