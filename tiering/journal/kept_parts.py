"""What the `part.json` of parts say, kept beside the journal: an insert, a pass or a command reads those that are new.

    <state>/catalog.db

A cache, and nothing that is believed: a row is used while the disk shows the file with the row's mark
(`disks.base.Mark`), so a crash, another process, a restore or a hand on the disk leave rows that nobody uses; and while
it has its checksum, since nothing else would notice a flipped bit. Losing the file costs the reading of each part once.
Not synced, and no verb fails because of it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from disks.base import Mark
from disks.effects import make_directory
from disks.host.database_copy import check_openable, for_reading
from disks.host.database_file import open_cache, remove_database
from disks.host.database_transaction import transaction
from oplog.errors import Damaged, FrostlineError

logger = logging.getLogger(__name__)

SCHEMA = 2
_BUSY_SECONDS = 2
_KEPT_SECONDS = 24 * 3600
"""What a part said that is gone stays so long: somebody may have looked at the disk before, and ask for it now."""
_CREATE = """
CREATE TABLE parts (
  disk TEXT NOT NULL, directory TEXT NOT NULL, path TEXT NOT NULL, mark BLOB NOT NULL, shape TEXT NOT NULL,
  facts BLOB NOT NULL, document INTEGER NOT NULL, crc32 INTEGER NOT NULL,
  PRIMARY KEY (disk, directory, path)) WITHOUT ROWID;
CREATE TABLE documents (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL, crc32 INTEGER NOT NULL, gone INTEGER);
CREATE INDEX gone_documents ON documents (gone) WHERE gone IS NOT NULL
"""
_TROUBLE = (sqlite3.Error, OSError, FrostlineError)
_marks = msgspec.msgpack.Decoder(Mark)


@dataclass(frozen=True, slots=True)
class NewPart:
    """What is to be kept of one `part.json`."""

    path: str
    mark: Mark
    facts: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where parts lie: a table's directory on a disk. `shape` says what their facts are made of: facts of another shape
    are none."""

    disk: str
    directory: str
    shape: str


KeptRow = tuple[str, Mark, bytes, int]
"""Path, mark and facts of a part, and the number of its document."""


class KeptParts:
    """The file, shared by threads and processes. Made when there is something to keep; what fails is logged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def load(self, place: Place) -> list[KeptRow]:
        """What is kept of the parts there."""
        query = "SELECT path, mark, facts, document, crc32 FROM parts WHERE disk = ? AND directory = ? AND shape = ?"
        try:
            with self._lock:
                if self._connection is None and not self.path.exists():
                    return []
                rows = self._open().execute(query, (place.disk, place.directory, place.shape)).fetchall()
            if any(_row_crc32(path, mark, facts, document) != crc32 for path, mark, facts, document, crc32 in rows):
                raise sqlite3.DatabaseError("what is kept of a part does not have its checksum")
            return [(path, _marks.decode(mark), facts, document) for path, mark, facts, document, _ in rows]
        except (*_TROUBLE, msgspec.MsgspecError) as error:
            self._give_up("read", error)
            return []

    def documents(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """The bytes of each `part.json` by its number, at most some hundreds at a time; without those that are kept no
        more."""
        query = f"SELECT id, data, crc32 FROM documents WHERE id IN ({','.join('?' * len(numbers))})"
        try:
            with self._lock:
                rows = self._open().execute(query, numbers).fetchall()
            if any(zlib.crc32(data) != crc32 for _, data, crc32 in rows):
                raise sqlite3.DatabaseError("what a part says does not have its checksum")
            return {number: data for number, data, _ in rows}
        except _TROUBLE as error:
            self._give_up("read", error)
            return {}

    def note(self, place: Place, new: Sequence[NewPart], gone: Iterable[tuple[str, Mark]]) -> dict[str, int]:
        """Keep these, and no longer those that are gone; path -> number of its document. Empty where it cannot be."""
        numbers: dict[str, int] = {}
        now = int(time.time())
        where = (place.disk, place.directory)
        try:
            with self._writing() as connection:
                for path, mark in gone:
                    row = (*where, path, msgspec.msgpack.encode(mark))
                    _forget(connection, "path = ? AND mark = ?", row, now)
                for part in new:
                    _forget(connection, "path = ?", (*where, part.path), now)
                    numbers[part.path] = _insert(connection, place, part)
                connection.execute("DELETE FROM documents WHERE gone < ?", (now - _KEPT_SECONDS,))
        except _TROUBLE as error:
            self._give_up("written", error)
            return {}
        return numbers

    def close(self) -> None:
        """Close the file. It is opened again when it is needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _give_up(self, what: str, error: Exception) -> None:
        """A damaged file is thrown away; one that is busy, or cannot be opened or written now, is not."""
        logger.info("%s cannot be %s: %s", self.path, what, error)
        if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
            return
        if isinstance(error, sqlite3.DatabaseError | msgspec.MsgspecError):
            self.throw_away()

    def throw_away(self) -> None:
        """Keep nothing: each part is read again."""
        with self._lock:
            self.close()
            try:
                remove_database(self.path)
            except _TROUBLE as trouble:
                logger.info("%s cannot be removed: %s", self.path, trouble)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._open()
            with transaction(connection, "sqlite.commit", self.path):
                yield connection

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            make_directory(self.path.parent)
            check_openable(self.path)
            self._connection = open_cache(self.path, busy_seconds=_BUSY_SECONDS, prepare=self._prepare)
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables, in place of those of another layout."""
        if connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,):
            return
        with transaction(connection, "sqlite.commit", self.path):
            if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
                for table in ("parts", "documents"):
                    connection.execute(f"DROP TABLE IF EXISTS {table}")
                for statement in _CREATE.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA}")


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is kept of one part."""

    place: Place
    path: str
    mark: Mark
    facts: bytes
    data: bytes


def everything(path: Path) -> Iterator[Kept]:
    """What the file keeps that has its checksum, which is what would be used. Changes nothing, and holds one part at a
    time. Raises `Damaged` for a file that cannot be read."""
    query = """SELECT disk, directory, shape, path, mark, facts, document, parts.crc32, data, documents.crc32
        FROM parts JOIN documents ON documents.id = document"""
    try:
        if not path.exists():
            return
        with closing(for_reading(path)) as connection:
            if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
                return
            for disk, directory, shape, file, mark, facts, number, row_crc32, data, crc32 in connection.execute(query):
                if _row_crc32(file, mark, facts, number) == row_crc32 and zlib.crc32(data) == crc32:
                    yield Kept(Place(disk, directory, shape), file, _marks.decode(mark), facts, data)
    except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
        raise Damaged(
            f"{path.name} cannot be read: {error}", hint="'frostline fsck --repair' throws it away"
        ) from error


def _forget(connection: sqlite3.Connection, where: str, values: tuple[object, ...], now: int) -> None:
    selected = f"disk = ? AND directory = ? AND {where}"
    chosen = f"SELECT document FROM parts WHERE {selected}"
    connection.execute(f"UPDATE documents SET gone = ? WHERE id IN ({chosen})", (now, *values))
    connection.execute(f"DELETE FROM parts WHERE {selected}", values)


def _insert(connection: sqlite3.Connection, place: Place, part: NewPart) -> int:
    values = (part.data, zlib.crc32(part.data))
    number = connection.execute("INSERT INTO documents (data, crc32) VALUES (?, ?)", values).lastrowid
    assert number is not None
    mark = msgspec.msgpack.encode(part.mark)
    crc32 = _row_crc32(part.path, mark, part.facts, number)
    row = (place.disk, place.directory, part.path, mark, place.shape, part.facts, number, crc32)
    connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    return number


def _row_crc32(path: str, mark: bytes, facts: bytes, document: int) -> int:
    return zlib.crc32(b"%s %d " % (path.encode(), document) + mark + facts)
