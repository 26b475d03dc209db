"""Copies on this machine of small objects of a repository, so that a listing of many backups does not read all again.

<state>/backup/<repository>/copies.sqlite   headers, records and lists by key, each with its SHA-256

Keys are never used twice; a copy counts only while the listing shows its object with the size and time that it had, and
while its bytes have their digest. The file may be deleted at any time. Who proves something does not read copies.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from disks.effects import make_directory, remove_file
from disks.host.database import transaction
from disks.stores.base import ObjectInfo
from oplog.errors import FrostlineError

WORTH_KEEPING = 32
"""Copies are kept from this many newly read objects on: fewer are read again as fast."""
_BUSY_SECONDS = 1.0
_CREATE = """CREATE TABLE IF NOT EXISTS copies
(key TEXT PRIMARY KEY, size INTEGER, modified TEXT, sha256 BLOB, data BLOB) WITHOUT ROWID"""

logger = logging.getLogger(__name__)


class RepositoryCopies:
    """The copies of one repository. Without a path there are none."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    @contextmanager
    def of(self, prefix: str, keys: Collection[str]) -> Iterator[CopiesSeen]:
        """The copies of objects below a prefix. Keeps what is read meanwhile when that pays, and then deletes the
        copies of all objects but those of `keys`."""
        copies = self._load(prefix) if self._path is not None else {}
        copied = CopiesSeen(copies)
        yield copied
        if self._path is not None and len(copied.read) >= WORTH_KEEPING:
            self._keep({key for key in copies if key not in keys}, copied.read)

    def _load(self, prefix: str) -> dict[str, tuple[int, str, bytes]]:
        assert self._path is not None
        if not self._path.exists():
            return {}
        question = "SELECT key, size, modified, sha256, data FROM copies WHERE substr(key, 1, ?) = ?"
        try:
            with closing(self._connected()) as connection:
                rows = connection.execute(question, (len(prefix), prefix)).fetchall()
        except sqlite3.Error as error:
            self._give_up(error)
            return {}
        return {row[0]: (row[1], row[2], row[4]) for row in rows if hashlib.sha256(row[4]).digest() == row[3]}

    def _keep(self, gone: set[str], read: list[tuple[ObjectInfo, bytes]]) -> None:
        assert self._path is not None
        rows = [_row(item, data) for item, data in read]
        try:
            make_directory(self._path.parent)
            with (
                closing(self._connected()) as connection,
                transaction(connection, "sqlite.commit", self._path),
            ):
                connection.execute(_CREATE)
                connection.executemany("DELETE FROM copies WHERE key = ?", [(key,) for key in gone])
                connection.executemany("INSERT OR REPLACE INTO copies VALUES (?, ?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError, FrostlineError) as error:
            self._give_up(error)

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(str(self._path), timeout=_BUSY_SECONDS, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")  # what a power cut leaves is compared, or taken away
        return connection

    def _give_up(self, error: Exception) -> None:
        """A file that is none goes; one that is in use, or may not be written, stays."""
        logger.debug("copies of the repository's objects are not used: %s", error)
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            with suppress(OSError, FrostlineError):
                assert self._path is not None
                remove_file(self._path, missing_ok=True)


class CopiesSeen:
    """The copies that were there when somebody began to read. Thread-safe."""

    def __init__(self, copies: dict[str, tuple[int, str, bytes]]) -> None:
        self._copies = copies
        self._lock = threading.Lock()
        self.read: list[tuple[ObjectInfo, bytes]] = []
        """What there was no copy of."""

    def get(self, info: ObjectInfo, read: Callable[[], bytes]) -> bytes:
        """The copy, else what is read."""
        data = self.find(info)
        if data is None:
            data = read()
            self.add(info, data)
        return data

    def find(self, info: ObjectInfo) -> bytes | None:
        """The copy of the object that a listing shows."""
        size_bytes, modified, data = self._copies.get(info.key, (-1, "", b""))
        return data if (size_bytes, modified) == (info.size_bytes, info.modified.isoformat()) else None

    def add(self, info: ObjectInfo, data: bytes) -> None:
        """What was read, for the next time; other bytes than the listing showed are not."""
        if len(data) == info.size_bytes:
            with self._lock:
                self.read.append((info, data))


def _row(info: ObjectInfo, data: bytes) -> tuple[str, int, str, bytes, bytes]:
    return info.key, info.size_bytes, info.modified.isoformat(), hashlib.sha256(data).digest(), data
