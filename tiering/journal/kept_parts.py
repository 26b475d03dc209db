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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from disks.base import Mark
from disks.effects import make_directory
from disks.host.database_copy import check_openable, for_reading
from disks.host.database_file import open_cache, remove_database
from disks.host.database_transaction import transaction
from disks.system_errors import of_sqlite, of_the_system
from oplog.documents import Document
from oplog.errors import Damaged, FrostlineError
from tiering.journal import kept_looks
from tiering.journal.kept_looks import FORGET_LOOK, INSERT_LOOK, SELECT_LOOK, FoundFiles, KeptLook, PartSums

logger = logging.getLogger(__name__)

SCHEMA = 8
_BUSY_SECONDS = 2
_KEPT_SECONDS = 24 * 3600
"""What a part said that is gone stays so long: somebody may have looked at the disk before, and ask for it now."""
_CREATE = (
    """
CREATE TABLE parts (
  disk TEXT NOT NULL, directory TEXT NOT NULL, path TEXT NOT NULL, mark BLOB NOT NULL, shape TEXT NOT NULL,
  revision INTEGER, facts BLOB NOT NULL, document INTEGER NOT NULL, crc32 INTEGER NOT NULL,
  PRIMARY KEY (disk, directory, path)) WITHOUT ROWID;
CREATE TABLE documents (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL, crc32 INTEGER NOT NULL, gone INTEGER);
CREATE INDEX gone_documents ON documents (gone) WHERE gone IS NOT NULL;
"""
    + kept_looks.CREATE
)
_COLUMNS = "path, mark, revision, facts, document, crc32"
_BETWEEN = "path >= ? AND path < ?"
_AT_ONCE = 500
UNSETTLED: Mark = ()
"""The mark of a file that had none yet: no file has this one, so that only a look that found the file uses the row."""
_T = TypeVar("_T")
_TROUBLE = (sqlite3.Error, OSError, FrostlineError)
_marks = msgspec.msgpack.Decoder(Mark)
looks_document = Document[dict[str, str]](
    "looks that a proof went by", dict[str, str], write=msgspec.json.Encoder(order="sorted").encode
)


class PartToKeep(msgspec.Struct, frozen=True):
    """What is to be kept of one `part.json`."""

    path: str
    mark: Mark
    revision: int | None
    facts: bytes
    data: bytes


class NewLook(msgspec.Struct, frozen=True):
    """What is to be kept of a look at all parts of a place."""

    state: Mark
    rules: str
    sums: PartSums
    digest: bytes = b""
    """The digest of all that was found (`FoundFiles`); not asked of a look after another."""


class PartsPlace(msgspec.Struct, frozen=True):
    """Where parts lie: a table's directory on a disk. `shape` says what their facts are made of: facts of another shape
    are none."""

    disk: str
    directory: str
    shape: str

    @property
    def columns(self) -> list[str]:
        """Those of which the facts have the ranges."""
        return [column for column in self.shape.split(",") if column]


KeptRow = tuple[str, Mark, int | None, bytes, int]
"""Path, mark, revision and facts of a part, and the number of its document."""


class KeptParts:
    """The file, shared by threads and processes. Made when there is something to keep; what fails is logged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def load(self, location: PartsPlace) -> list[KeptRow]:
        """What is kept of the parts there."""
        query = f"SELECT {_COLUMNS} FROM parts WHERE disk = ? AND directory = ? AND shape = ?"
        return self._asked(partial(_rows, query, (location.disk, location.directory, location.shape))) or []

    def look(self, location: PartsPlace) -> KeptLook | None:
        """The last look at all parts there, where one is kept."""

        def asked(connection: sqlite3.Connection) -> KeptLook | None:
            row = connection.execute(SELECT_LOOK, (location.disk, location.directory, location.shape)).fetchone()
            return kept_looks.decoded(row) if row is not None else None

        return self._asked(asked)

    def between(self, location: PartsPlace, low: str, high: str) -> list[KeptRow]:
        """What is kept of the parts whose paths are from `low` on and below `high`."""
        query = f"SELECT {_COLUMNS} FROM parts WHERE disk = ? AND directory = ? AND shape = ? AND {_BETWEEN}"
        values = (location.disk, location.directory, location.shape, low, high)
        return self._asked(partial(_rows, query, values)) or []

    def parts_of(
        self, location: PartsPlace, look: int, partition: str | None = None, to: str | None = None
    ) -> list[KeptRow] | None:
        """The parts that this look found there, or those of one partition, or of all from that one `to` another. None
        where another look has taken its place."""
        low = f"{location.directory}/" if partition is None else f"{location.directory}/{partition}_"
        high = low if to is None else f"{location.directory}/{to}_"
        return self._found_by(location, look, [(_BETWEEN, (low, f"{high}\U0010ffff"))])

    def parts_at(self, location: PartsPlace, look: int, files: Sequence[str]) -> list[KeptRow] | None:
        """Those of these paths that this look found."""
        pieces = [files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE)]
        return self._found_by(location, look, [(f"path IN ({','.join('?' * len(piece))})", piece) for piece in pieces])

    def _found_by(
        self, location: PartsPlace, look: int, conditions: Sequence[tuple[str, Sequence[str]]]
    ) -> list[KeptRow] | None:
        def asked(connection: sqlite3.Connection) -> list[KeptRow] | None:
            connection.execute("BEGIN")
            try:
                if not _is_kept(connection, look):
                    return None
                query = f"SELECT {_COLUMNS} FROM parts WHERE disk = ? AND directory = ? AND shape = ? AND "
                where = (location.disk, location.directory, location.shape)
                return [
                    row
                    for condition, values in conditions
                    for row in _rows(query + condition, (*where, *values), connection)
                ]
            finally:
                connection.execute("COMMIT")

        return self._asked(asked)

    def is_settled(self, directory: str, looks: str) -> bool:
        """Whether every part of the table that these looks found answers queries: these, or these among others, for
        parts can only be hidden by others."""

        def asked(connection: sqlite3.Connection) -> bool:
            found = connection.execute("SELECT looks, crc32 FROM settled WHERE directory = ?", (directory,)).fetchone()
            if found is None or found[1] != zlib.crc32(f"{directory} {found[0]}".encode()):
                return False
            known = looks_document.decode(found[0])
            return bool(found[0] == looks or looks_document.decode(looks).items() <= known.items())

        return self._asked(asked) or False

    def settle(self, directory: str, looks: str) -> None:
        """Keep that it is so."""
        try:
            with self._writing() as connection:
                row = (directory, looks, zlib.crc32(f"{directory} {looks}".encode()))
                connection.execute("INSERT OR REPLACE INTO settled VALUES (?, ?, ?)", row)
        except _TROUBLE as error:
            self._give_up("written", error)

    def _asked(self, read: Callable[[sqlite3.Connection], _T | None]) -> _T | None:
        """What `read` finds; None where there is no file, or none that can be read."""
        try:
            with self._lock:
                if self._connection is None and not self.path.exists():
                    return None
                return read(self._open())
        except (*_TROUBLE, msgspec.MsgspecError, ValueError) as error:
            self._give_up("read", error)
            return None

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

    def note(
        self,
        location: PartsPlace,
        new: Sequence[PartToKeep],
        gone: Iterable[tuple[str, Mark]],
        look: NewLook | None = None,
        *,
        after: int | None = None,
    ) -> tuple[dict[str, int], int | None]:
        """Keep these, and no longer those that are gone; and the look that found all that is kept of the place then, or
        that found these changes `after` another one. Path -> number of its document, and that of the look. Nothing
        where it cannot be, or the look before is not the last any more."""
        numbers: dict[str, int] = {}
        number: int | None = None
        now = int(time.time())
        where = (location.disk, location.directory)
        try:
            with self._writing() as connection:
                if after is not None and not _is_kept(connection, after):
                    return {}, None
                for path, mark in gone:
                    row = (*where, path, msgspec.msgpack.encode(mark))
                    _forget(connection, "path = ? AND mark = ?", row, now)
                for part in new:
                    _forget(connection, "path = ?", (*where, part.path), now)
                    numbers[part.path] = _insert(connection, location, part)
                connection.execute(FORGET_LOOK, where)
                if look is not None and (after is not None or _found_in(connection, location) == look.digest):
                    columns = kept_looks.encoded(look.state, look.rules, look.sums)
                    number = connection.execute(INSERT_LOOK, (*where, location.shape, *columns)).lastrowid
                connection.execute("DELETE FROM documents WHERE gone < ?", (now - _KEPT_SECONDS,))
        except _TROUBLE as error:
            self._give_up("written", error)
            return {}, None
        return numbers, number

    def close(self) -> None:
        """Close the file. It is opened again when it is needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _give_up(self, action: str, error: Exception) -> None:
        """A damaged file is thrown away; one that is busy, or cannot be opened or written now, is not."""
        logger.info("%s cannot be %s: %s", self.path, action, error)
        if isinstance(error, sqlite3.OperationalError) and not ("no such" in str(error) or _is_cut_off(error)):
            return
        if isinstance(error, sqlite3.DatabaseError | msgspec.MsgspecError | ValueError):
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
                for table in ("parts", "documents", "looks", "settled"):
                    connection.execute(f"DROP TABLE IF EXISTS {table}")
                for statement in _CREATE.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _is_cut_off(error: sqlite3.Error) -> bool:
    """Whether the file, or its log, ends before its end: SQLite takes that for trouble with the device, and goes on
    doing so as long as any process has it open."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHORT_READ


class Kept(msgspec.Struct, frozen=True):
    """All that is kept of one part."""

    location: PartsPlace
    path: str
    mark: Mark
    facts: bytes
    data: bytes


def everything(path: Path) -> Iterator[Kept]:
    """What the file keeps that has its checksum, which is what would be used. Changes nothing, and holds one part at a
    time. Raises `Damaged` for a file that cannot be read."""
    query = """SELECT disk, directory, shape, path, mark, revision, facts, document, parts.crc32, data, documents.crc32
        FROM parts JOIN documents ON documents.id = document"""
    try:
        if not path.exists():
            return
        with closing(for_reading(path)) as connection:
            if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
                return
            for disk, directory, shape, *row, row_crc32, data, crc32 in connection.execute(query):
                file, mark, _, facts, _ = row
                if _row_crc32(*row) == row_crc32 and zlib.crc32(data) == crc32:
                    yield Kept(PartsPlace(disk, directory, shape), file, _marks.decode(mark), facts, data)
    except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
        raise _refused(error, path) or Damaged(
            f"{path.name} cannot be read: {error}", hint="'frostline fsck --repair' throws it away"
        ) from error


def looks(path: Path) -> list[tuple[PartsPlace, KeptLook, dict[str, tuple[Mark, bytes]]]]:
    """The looks that the file keeps, each with mark and facts of its parts by path. Changes nothing. Raises `Damaged`
    for a file that cannot be read."""
    try:
        if not path.exists():
            return []
        with closing(for_reading(path)) as connection:
            if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
                return []
            connection.execute("BEGIN")
            found = connection.execute("SELECT disk, directory, shape FROM looks").fetchall()
            return [_whole_look(connection, PartsPlace(*where)) for where in found]
    except (sqlite3.Error, OSError, msgspec.MsgspecError, ValueError) as error:
        raise _refused(error, path) or Damaged(
            f"{path.name} cannot be read: {error}", hint="'frostline fsck --repair' throws it away"
        ) from error


def _refused(error: Exception, path: Path) -> FrostlineError | None:
    """Our error where the system refused, which says nothing about the file."""
    return of_sqlite(error, path) if isinstance(error, sqlite3.Error) else of_the_system(error, path)


def _whole_look(
    connection: sqlite3.Connection, location: PartsPlace
) -> tuple[PartsPlace, KeptLook, dict[str, tuple[Mark, bytes]]]:
    where = (location.disk, location.directory, location.shape)
    look = kept_looks.decoded(connection.execute(SELECT_LOOK, where).fetchone())
    rows = _rows(f"SELECT {_COLUMNS} FROM parts WHERE disk = ? AND directory = ? AND shape = ?", where, connection)
    return location, look, {path: (mark, facts) for path, mark, _, facts, _ in rows}


def _is_kept(connection: sqlite3.Connection, look: int) -> bool:
    return connection.execute("SELECT 1 FROM looks WHERE id = ?", (look,)).fetchone() is not None


def _forget(connection: sqlite3.Connection, where: str, values: tuple[object, ...], now: int) -> None:
    selected = f"disk = ? AND directory = ? AND {where}"
    chosen = connection.execute(f"SELECT document FROM parts WHERE {selected}", values).fetchall()
    if chosen:  # of many new parts none was there
        connection.executemany("UPDATE documents SET gone = ? WHERE id = ?", [(now, number) for (number,) in chosen])
        connection.execute(f"DELETE FROM parts WHERE {selected}", values)


def _insert(connection: sqlite3.Connection, location: PartsPlace, part: PartToKeep) -> int:
    document = (part.data, zlib.crc32(part.data))
    number = connection.execute("INSERT INTO documents (data, crc32) VALUES (?, ?)", document).lastrowid
    assert number is not None
    row = (part.path, msgspec.msgpack.encode(part.mark), part.revision, part.facts, number)
    path, mark, revision, facts, _ = row
    values = (location.disk, location.directory, path, mark, location.shape, revision, facts, number, _row_crc32(*row))
    connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    return number


def _rows(query: str, values: tuple[object, ...], connection: sqlite3.Connection) -> list[KeptRow]:
    rows = connection.execute(query, values).fetchall()
    if any(_row_crc32(*row) != crc32 for *row, crc32 in rows):
        raise sqlite3.DatabaseError("what is kept of a part does not have its checksum")
    return [(path, _marks.decode(mark), revision, facts, number) for path, mark, revision, facts, number, _ in rows]


def _found_in(connection: sqlite3.Connection, location: PartsPlace) -> bytes:
    query = "SELECT path, mark FROM parts WHERE disk = ? AND directory = ? AND shape = ? ORDER BY path"
    files = FoundFiles()
    for path, mark in connection.execute(query, (location.disk, location.directory, location.shape)):
        files.add(path, mark)
    return files.digest


def _row_crc32(path: str, mark: bytes, revision: int | None, facts: bytes, document: int) -> int:
    return zlib.crc32(b"%s %d %d " % (path.encode(), document, revision or 0) + mark + facts)
