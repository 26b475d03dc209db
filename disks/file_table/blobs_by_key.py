"""The objects that rows name, in the order of their keys: what a listing is compared with, where the rows themselves
are in no table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from oplog.errors import NoSpace
from oplog.replay import FileRow

_BLOBS_AT_ONCE = 2000


class BlobsByKey:
    """Objects with their sizes, noted while rows go by and sorted on disk: millions take no memory.

    Used from one thread at a time. Every call raises `NoSpace` when the disk of temporary files is full.
    """

    def __init__(self) -> None:
        # "": SQLite's own temporary file, gone when it is closed. Nobody reads it after an error.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE blobs (key TEXT NOT NULL, size_bytes INTEGER NOT NULL)")
        self._database.execute("BEGIN")

    def noting(self, rows: Iterable[FileRow], within: Callable[[str], bool]) -> Iterator[FileRow]:
        """The same rows; what those name whose path is `within` is noted, all of it once the rows have ended. What
        was noted before is forgotten."""
        with _translated():
            self._database.execute("DELETE FROM blobs")
        some: list[tuple[str, int]] = []
        for row in rows:
            if row.key is not None and within(row.path):
                some += row.blobs
                if len(some) >= _BLOBS_AT_ONCE:
                    self._note(some)
                    some = []
            yield row
        self._note(some)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Key and size in bytes, in key order; one of two files twice."""
        with _translated():
            yield from self._database.execute("SELECT key, size_bytes FROM blobs ORDER BY key, size_bytes")

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def _note(self, blobs: list[tuple[str, int]]) -> None:
        with _translated():
            self._database.executemany("INSERT INTO blobs VALUES (?, ?)", blobs)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" not in str(error):
            raise
        hint = "free space, or set SQLITE_TMPDIR to a directory that has some"
        raise NoSpace("no space left for a temporary table", hint=hint) from error
