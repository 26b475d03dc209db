"""Column data of files that the engine does not open by itself, read before it asks.

What a statement reads of such a file is known before the engine opens it: its columns by the plan, where their chunks
lie by `part.json`, and which row groups cannot match by the footer. So these bytes are asked for side by side, in the
order in which the engine scans the files, neighbours in one request, up to a window beyond the place where the engine
is. Nothing depends on it: what the engine wants otherwise, it reads by itself.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import msgspec

from tiering.parquet.checked_file import CheckedFile, HeldSections
from tiering.parquet.sections import Section
from tiering.query.sql.file_places import FilePlace, leaves_read
from tiering.query.sql.plan import Access
from tiering.table.pruning import Predicate, columns_of, rows_may_match
from tiering.table.schema import TableDefinition

WINDOW_BYTES = 48 * 1024 * 1024
"""So much of all scans together is read before it is asked for."""
LEAST_WINDOW_BYTES = 8 * 1024 * 1024
"""Of one scan."""
_FIRST_BYTES = 8 * 1024 * 1024
"""So much of one of several scans that the engine has not begun: it may never come to it."""
_REQUEST_BYTES = 4 * 1024 * 1024
_HOLE_BYTES = 256 * 1024
"""Bytes that nobody wants, between two that are wanted, which cost less than another request."""
_THREADS = 12


class _Piece(msgspec.Struct, frozen=True):
    file: CheckedFile
    start: int
    stop: int
    offset: int
    """Bytes of the scan before it."""


class ScannedFiles:
    """The files of one table, in the order in which the engine reads them. Once it was given to `ReadAhead`, only that
    may call it."""

    def __init__(self, definition: TableDefinition, access: Access, window_bytes: int = WINDOW_BYTES) -> None:
        self.definition = definition
        self.access = access
        self.held = HeldSections(2 * window_bytes)
        """For the files that are added."""
        self._window_bytes = window_bytes
        self._files: list[tuple[CheckedFile, Mapping[int, FilePlace]]] = []
        self._pieces: list[_Piece] = []
        self._starts: dict[CheckedFile, tuple[int, list[int]]] = {}
        self._next = 0
        self._reached = 0
        self._begun = False

    def add(self, file: CheckedFile, places: Mapping[int, FilePlace]) -> None:
        """One more file; `places` says where it has which column id."""
        self._files.append((file, places))

    @property
    def is_filtered(self) -> bool:
        """Whether the footers are needed to tell what will be read."""
        return bool(columns_of(self.access.predicate))

    def prepare(self) -> None:
        """Find what the engine will read. Of a scan that is filtered, the footers must have been read."""
        size_bytes = 0
        for file, places in self._files:
            groups = None
            if self.is_filtered and file.tail_bytes:
                tail = b"".join(file.pieces(file.size() - file.tail_bytes, file.size()))
                groups = footer_groups(tail, self.access.predicate, self.definition, places)
            leaves = leaves_read(self.definition, self.access, places)
            first = len(self._pieces)
            for start, stop in joined_ranges(chosen_sections(file.sections, leaves, groups)):
                self._pieces.append(_Piece(file, start, stop, size_bytes))
                size_bytes += stop - start
            self._starts[file] = first, [piece.start for piece in self._pieces[first:]]

    def take(self) -> _Piece | None:
        """What should be read now, if anything."""
        if self._next == len(self._pieces):
            return None
        piece = self._pieces[self._next]
        window_bytes = self._window_bytes if self._begun or self._window_bytes == WINDOW_BYTES else _FIRST_BYTES
        if piece.offset > self._reached and piece.offset + piece.stop - piece.start > self._reached + window_bytes:
            return None
        self._next += 1
        return piece

    def reach(self, file: CheckedFile, start: int) -> bool:
        """The engine is about to read there. Whether it is one of ours."""
        if file not in self._starts:
            return False
        first, starts = self._starts[file]
        number = bisect_right(starts, start) - 1
        if number < 0 or start >= self._pieces[first + number].stop:
            return True
        place = self._pieces[first + number].offset
        again = place + 2 * self._window_bytes < self._reached
        if again or place > self._reached:
            self._reached = place
        # What it skipped is not wanted; what it reads a second time may not be held any more.
        self._next = first + number if again else max(self._next, first + number)
        self._begun = True
        return True


class ReadAhead:
    """Of one query. `close` ends it; it begins with `start`."""

    def __init__(self) -> None:
        self._scans: list[ScannedFiles] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []

    def start(self, scan: ScannedFiles) -> None:
        """Read this one, too, from now on."""
        scan.prepare()
        with self._changed:
            self._scans.append(scan)
            self._changed.notify_all()
        while len(self._threads) < _THREADS:
            self._threads.append(threading.Thread(target=self._work, name="read-ahead", daemon=True))
            self._threads[-1].start()

    def reach(self, file: CheckedFile, start: int) -> None:
        """The engine is about to read there."""
        with self._changed:
            if any(scan.reach(file, start) for scan in self._scans):
                self._changed.notify_all()

    def close(self) -> None:
        """Ask for nothing more, and wait for what was asked for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (piece := self._take()) is not None:
            try:
                piece.file.pieces(piece.start, piece.stop)
            except Exception:  # noqa: BLE001 - the engine will see it, should it ask for this
                with self._changed:
                    self._closed = True

    def _take(self) -> _Piece | None:
        with self._changed:
            while not self._closed:
                for scan in self._scans:
                    if (piece := scan.take()) is not None:
                        return piece
                self._changed.wait()
        return None


def chosen_sections(
    sections: Sequence[Section], leaves: Collection[int], groups: Collection[int] | None
) -> list[Section]:
    """The chunks of these leaves, in these row groups, or in all."""
    return [section for section in sections if section.column in leaves and (groups is None or section.group in groups)]


def joined_ranges(sections: Sequence[Section]) -> list[tuple[int, int]]:
    """Where the sections lie, neighbours together as far as one request goes."""
    joined: list[tuple[int, int]] = []
    for section in sections:
        start, stop = joined[-1] if joined else (0, -_HOLE_BYTES - 1)
        if section.start <= stop + _HOLE_BYTES and section.stop - start <= _REQUEST_BYTES:
            joined[-1] = (start, section.stop)
        else:
            joined.append((section.start, section.stop))
    return joined


def footer_groups(
    tail: bytes, predicate: Predicate, definition: TableDefinition, places: Mapping[int, FilePlace]
) -> Collection[int] | None:
    """The row groups that can hold a row for which the predicate is true, by the footer with which the `tail` ends;
    None for all. `places` says where the file has a column id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tiering.parquet.column_ranges import leaf_keys, stated_ranges

    with suppress(pa.ArrowException):  # the engine will say what is wrong with it
        metadata = pq.read_metadata(pa.BufferReader(tail))
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        keys = leaf_keys(metadata.schema, {number: place.leaves for number, place in places.items()}, definition)
        return {
            number
            for number, group in enumerate(groups)
            if rows_may_match(predicate, group.num_rows, stated_ranges(group, keys), definition)
        }
    return None
