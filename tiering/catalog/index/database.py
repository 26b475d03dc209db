"""The SQLite file of the index of parts, or one in memory where nothing may be kept.

    <state>/catalog.db       a cache: losing it costs one scan of each table

Not synced: after a power cut its pages may be of different moments. Rows and sums prove themselves (`rows`); what does
not, the indexes of times, is made again at the first opening after each start of the machine.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from disks.effects import make_directory
from disks.host.database import check_openable, open_cache, remove_database, transaction
from disks.host.processes import boot_id
from oplog.errors import FrostlineError

logger = logging.getLogger(__name__)

SCHEMA = 9
_BUSY_SECONDS = 2
_PAUSE_SECONDS = 60.0
"""After so long a file that could not be used is tried again; after twice as long the next time."""
_LONGEST_PAUSE_SECONDS = 3600.0
_TROUBLE = (sqlite3.Error, OSError, FrostlineError, msgspec.MsgspecError, ValueError)
_CREATE = """
CREATE TABLE disk_tables (
  id INTEGER PRIMARY KEY AUTOINCREMENT, disk TEXT NOT NULL, directory TEXT NOT NULL, data BLOB NOT NULL,
  crc32 INTEGER NOT NULL, UNIQUE (disk, directory));
CREATE TABLE sums (
  disk_table INTEGER NOT NULL, partition TEXT NOT NULL, data BLOB NOT NULL, crc32 INTEGER NOT NULL,
  PRIMARY KEY (disk_table, partition)) WITHOUT ROWID;
CREATE TABLE parts (
  disk_table INTEGER NOT NULL, name TEXT NOT NULL, columns INTEGER NOT NULL, rules INTEGER NOT NULL, revision INTEGER,
  rows INTEGER NOT NULL, size_bytes INTEGER NOT NULL, created INTEGER NOT NULL, due INTEGER, told_first INTEGER,
  told_last INTEGER, replaces INTEGER NOT NULL, data_crc32 INTEGER NOT NULL, facts BLOB NOT NULL,
  fingerprint BLOB NOT NULL, document INTEGER NOT NULL, state INTEGER NOT NULL, crc32 INTEGER NOT NULL,
  PRIMARY KEY (disk_table, name)) WITHOUT ROWID;
CREATE INDEX parts_created ON parts (disk_table, created);
CREATE INDEX parts_due ON parts (disk_table, due) WHERE due IS NOT NULL;
CREATE INDEX parts_told_first ON parts (disk_table, told_first) WHERE told_first IS NOT NULL;
CREATE INDEX parts_told_last ON parts (disk_table, told_last) WHERE told_last > told_first;
CREATE TABLE documents (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL, gone INTEGER);
CREATE INDEX gone_documents ON documents (gone) WHERE gone IS NOT NULL;
CREATE TABLE boot (id TEXT NOT NULL)
"""


class OvertakenError(Exception):
    """The index is another one by now: another process or thread has changed it, or it was damaged and thrown away.
    Never leaves the catalog, which compares with the disks once more."""


class Database:
    """The connection, shared by threads; other processes have their own. Made at the first use."""

    def __init__(self, path: Path | None) -> None:
        """`path`: None for one in memory."""
        self.path = path
        self.lock = threading.RLock()
        self._file = path
        self._retry_at = math.inf
        self._pause_seconds = _PAUSE_SECONDS
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """All that is read within is of one moment. Trouble within raises `OvertakenError`, as in `writing`: then there
        is another index, an empty one."""
        with self.lock, self._going_on():
            connection = self._open()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that excludes other writers from its beginning on. Committed unless the block raises."""
        with self.lock, self._going_on():
            connection = self._open()
            effect = (
                transaction(connection, "sqlite.commit", self.path) if self.path is not None else _alone(connection)
            )
            with effect:
                yield connection

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """After trouble: an empty file in place of a damaged one. A file that is busy, or that cannot be opened or
        written, stays unchanged, and this process goes on in memory; it tries the file again later."""
        try:
            yield
        except _TROUBLE as error:
            logger.info("%s cannot be used: %s", self.path, error)
            if self.path is None or not (_is_damage(error) and self.throw_away()):
                self.close()
                self._retry_at = time.monotonic() + self._pause_seconds
                self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
                self.path = None
            raise OvertakenError(str(error)) from error

    def throw_away(self) -> bool:
        """Remove the file: each part is read again. Whether it could be removed."""
        with self.lock:
            self.close()
            try:
                if self.path is not None:
                    remove_database(self.path)
            except _TROUBLE as trouble:
                logger.info("%s cannot be removed: %s", self.path, trouble)
                return False
            return True

    def close(self) -> None:
        """Close the file. It is opened again when it is needed."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if time.monotonic() >= self._retry_at:
            self.close()
            self.path, self._retry_at = self._file, math.inf
        if self._connection is None:
            if self.path is not None:
                make_directory(self.path.parent)
                check_openable(self.path)
            self._connection = open_cache(self.path or ":memory:", busy_seconds=_BUSY_SECONDS, prepare=self._prepare)
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables, in place of those of another layout."""
        connection.execute("PRAGMA synchronous = OFF")
        boot = boot_id() or ""
        if _is_ready(connection, boot):
            return
        if self.path is None:
            _make(connection, boot)
            return
        with transaction(connection, "sqlite.commit", self.path):
            if not _is_ready(connection, boot):
                _make(connection, boot)


@contextmanager
def _alone(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction in memory, which is no side effect."""
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _is_ready(connection: sqlite3.Connection, boot: str) -> bool:
    if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
        return False
    return bool(connection.execute("SELECT id FROM boot").fetchone() == (boot,))


def _make(connection: sqlite3.Connection, boot: str) -> None:
    if connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,):
        connection.execute("REINDEX")
        connection.execute("DELETE FROM boot")
    else:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        for (table,) in connection.execute(query).fetchall():
            connection.execute(f"DROP TABLE {table}")
        for statement in _CREATE.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.execute("INSERT INTO boot VALUES (?)", (boot,))


def _is_damage(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        # cut off: SQLite takes a file, or its log, that ends before its end for trouble with the device
        cut_off = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHORT_READ
        return "no such" in str(error) or cut_off
    return isinstance(error, sqlite3.DatabaseError | msgspec.MsgspecError | ValueError)
