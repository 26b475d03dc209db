"""The cached file table of an object disk as it lies there, looked at without touching it (I7)."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.table import SCHEMA, FileTable
from disks.file_table.views import TableReader
from disks.host.database import for_reading
from disks.object_disk.history import TableAsOf


class CachedTable:
    """One consistent view of the cache, for as long as it is open. `problem` says why it cannot be used."""

    def __init__(self, disk: LoggedDisk) -> None:
        self.exists = disk.local_state_exists()
        self.revision = 0
        self.digest = ""
        self.problem: str | None = None
        self.older_layout = False
        """Of an older version: it is changed, or rebuilt, when the disk is used."""
        self.table: TableReader | None = None
        self._connection: sqlite3.Connection | None = None
        self._path = disk.table_path
        if self.exists:
            try:
                self._open(disk.store.name)
            except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
                self._damaged(error)

    @property
    def comparable(self) -> bool:
        """Whether there is something to compare with the log."""
        return self.table is not None and not self.older_layout

    def count(self) -> int:
        """How many files it has; 0 when it cannot be read."""
        try:
            return self.table.count() if self.table is not None else 0
        except sqlite3.Error as error:
            self._damaged(error)
            return 0

    def _open(self, store: str) -> None:
        self._connection = for_reading(self._path)
        self._connection.execute("BEGIN")
        view = TableReader(self._connection)
        known = view.state().get("store", store)
        if known != store:
            self.problem = f"the local file table is that of {known}, not of {store}"
            return
        self.older_layout = self._connection.execute("PRAGMA user_version").fetchone()[0] < SCHEMA
        self.revision, self.digest = view.head()
        self.table = view

    def compare(self, past: TableAsOf) -> None:
        """`problem` says so when the cache is not what the log says at its revision, where `past` stands now."""
        assert self.table is not None
        try:
            same = self.digest == past.digest and past.holds(self.table.rows())
        except (sqlite3.Error, ValueError, TypeError) as error:
            self._damaged(error)
            return
        if not same:
            self.problem = f"the local file table is not what the log says at revision {self.revision}"

    def rows_or_nothing(self) -> TableReader | FileTable:
        """What is left to look at when the log cannot be replayed; `problem` says why it is nothing."""
        if self._connection is None or not self.comparable:
            return FileTable(None)
        try:
            ((said,),) = self._connection.execute("PRAGMA quick_check(1)")
        except sqlite3.Error as error:
            said = str(error)
        if said != "ok":
            self._damaged(sqlite3.DatabaseError(said))
        return self.table or FileTable(None)

    def close(self) -> None:
        """Release the file."""
        if self._connection is not None:
            with closing(self._connection):
                self._connection = None
                self.table = None

    def _damaged(self, error: Exception) -> None:
        self.problem = f"the local file table {self._path} cannot be read: {error}"
        self.close()
