"""The file table of an object disk: a SQLite cache of what the log says. Losing it costs a rebuild, never data.

The rows and the revision they stand for change in one SQLite transaction, so after a crash the table is that of some
revision of the log, and catching up is applying what follows.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from disks.effects import make_directory, remove_file, why_not_writable
from disks.file_table import gone_rows
from disks.file_table.views import StoredRow, TableReader, TableWriter
from disks.host.database import check_openable, in_memory, transaction
from disks.system_errors import of_sqlite
from oplog.errors import Damaged, FrostlineError, Locked, NoSpace, ReadOnly
from oplog.replay import FileRow
from oplog.table_digest import TableDigest

SCHEMA = 4
_BUSY_SECONDS = 60
_INDEX = "CREATE INDEX documents ON files (path) WHERE document = 1;"
_DROPPED = "CREATE TABLE dropped (key TEXT PRIMARY KEY NOT NULL, seconds REAL NOT NULL);"
"""When a file of this blob was removed, where the log does not tell (format 1)."""
_CREATE = f"""
CREATE TABLE files (
  path TEXT PRIMARY KEY NOT NULL,
  size_bytes INTEGER NOT NULL,
  sha256 BLOB NOT NULL,
  key TEXT,
  blob_set TEXT,
  revision INTEGER NOT NULL,
  document INTEGER NOT NULL,
  inline BLOB,
  more TEXT,
  read_only INTEGER NOT NULL DEFAULT 0
);
{_INDEX}
CREATE TABLE state (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL);
{_DROPPED}
{gone_rows.LAYOUT}
"""
_OWN = _CREATE.replace(_INDEX, "").replace(gone_rows.LAYOUT, "")
"""That of a table of its own, which is read once or twice, from end to end: the index would cost more than it saves."""
_MIGRATE = {
    1: "ALTER TABLE files ADD COLUMN more TEXT; ALTER TABLE files ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0",
    2: _DROPPED,
    3: gone_rows.LAYOUT,
}
"""From an older layout to the next one. Layouts that are not named here are rebuilt from the bucket."""


class TableDamaged(Damaged):
    """The cache file cannot be used; the bucket has everything it held."""


_in_use: Counter[str] = Counter()
"""How many tables this process has open on a file. One that is open is never opened besides SQLite: closing that second
descriptor would drop the process's POSIX locks, and another process would take the table for unused."""
_opening = threading.RLock()


class FileTable:
    """The cache file, shared by threads and processes: many readers and one writer at a time (SQLite's WAL).

    With `path` None the table is this process's own, in memory and what does not fit in a temporary file: a table of an
    old revision, say. Where the file cannot be written, its directory being full or read-only, the table is a copy in
    memory (`is_copy`): it can be read, and told what may be forgotten.
    """

    def __init__(self, path: Path | None, *, opened: sqlite3.Connection | None = None) -> None:
        """`opened`: what it reads, instead of a table of its own."""
        self.path = path
        self._write_lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._steady = threading.local()
        self._closed = False
        self._attached = False
        """Whether the file is open in this table, and counted in `_in_use`."""
        self._detached: FrostlineError | None = None
        """Why the table is a copy."""
        if opened is not None:
            self._writer = opened
            return
        if path is None:
            self._writer = self._open()
            self._prepare(self._writer)
            return
        try:
            self.attach()
        except (NoSpace, ReadOnly) as error:
            self.detach(error)

    @property
    def is_copy(self) -> bool:
        """Whether what is read, and written, is a copy in memory."""
        return self._detached is not None

    def attach(self) -> None:
        """Use the file from now on; what was only written to a copy is forgotten. Raises `NoSpace` or `ReadOnly` where
        the file still cannot be written."""
        if self.path is None or self._attached:
            return
        with _opening, self._write_lock:
            make_directory(self.path.parent)
            if not _in_use[str(self.path)]:
                _check_file(self.path)
            check_openable(self.path)
            fresh = not self.path.exists()
            try:
                opened = self._open()
                try:
                    with self._translated():
                        self._prepare(opened)
                except BaseException:
                    opened.close()
                    raise
            except (NoSpace, ReadOnly):
                if fresh:  # SQLite leaves an empty file, which would pass for a damaged one
                    remove_file(self.path, missing_ok=True)
                raise
            _in_use[str(self.path)] += 1
            self._writer, self._attached, self._detached = opened, True, None

    def detach(self, error: FrostlineError) -> None:
        """Use a copy in memory because of the error, until `attach`. Raises it for a table without a file."""
        if self.path is None:
            raise error
        with _opening, self._write_lock:
            if not _in_use[str(self.path)]:
                _check_file(self.path)
            with self._translated():
                copy = in_memory(self.path)
                self._prepare(copy)
            self._let_go()
            self._writer, self._detached = copy, error

    @contextmanager
    def read(self) -> Iterator[TableReader]:
        """A consistent view, for as long as the block lasts; while this thread has the table `steady`, the same one."""
        if (held := self._held_view()) is not None:
            with self._translated():
                yield held
            return
        if not self._attached:
            with self._write_lock, self._translated():
                yield TableReader(self._writer)
            return
        connection = self._borrow()
        try:
            with self._translated():
                connection.execute("BEGIN")
                try:
                    yield TableReader(connection)
                finally:
                    connection.execute("ROLLBACK")
        finally:
            self._give_back(connection)

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Whatever this thread reads until the block ends is of one moment. What it writes meanwhile it does not see.
        Nothing where the table is in memory: only this process changes that."""
        if not self._attached or self._held_view() is not None:
            yield
            return
        with self.read() as view:
            self._steady.view = view
            try:
                yield
            finally:
                self._steady.view = None

    def _held_view(self) -> TableReader | None:
        view: TableReader | None = getattr(self._steady, "view", None)
        return view

    @contextmanager
    def write(
        self,
        *,
        removed: set[str] | None = None,
        balance: dict[str, int] | None = None,
        digest: TableDigest | None = None,
        forgettable: bool = False,
    ) -> Iterator[TableWriter]:
        """One SQLite transaction, committed when the block ends and rolled back when it raises. Excludes the writers of
        other processes. `removed`, `balance` and `digest` are as for `TableWriter`. Raises `Locked` when another
        process holds the table for a minute; `NoSpace` or `ReadOnly` where the table is a copy, unless what is written
        is `forgettable`: the next process finds it out again."""
        with self._write_lock, self._translated():
            if self.is_copy and not forgettable:
                self.attach()
            with transaction(self._writer, "sqlite.commit", self.path):
                keeps_gone = self.path is not None
                yield TableWriter(self._writer, removed=removed, balance=balance, digest=digest, keeps_gone=keeps_gone)

    def unless_written(self, work: Callable[[], Mapping[str, str]]) -> None:
        """Do `work` while nobody writes, here or in another process, and remember what it returns: what may be lost by
        a power cut, and is not waited for. Nothing, at once, where somebody writes."""
        if self._detached is not None or not self._write_lock.acquire(blocking=False):
            return
        try:
            self._writer.execute("PRAGMA busy_timeout = 0")
            self._writer.execute("PRAGMA synchronous = NORMAL")
            with transaction(self._writer, "sqlite.commit", self.path):
                TableWriter(self._writer).remember(**work())
        except (sqlite3.Error, NoSpace, ReadOnly):
            return
        finally:
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA synchronous = FULL")
                self._writer.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
            self._write_lock.release()

    def as_of(self, revision: int, entry_digest: str, table_digest: str) -> FileTable | None:
        """The table as it was at a revision, for reading: by the file, and what has left it since. None where this does
        not lead back to rows of this digest. Until it is closed, the file keeps all that is written to it beside its
        pages: for short questions."""
        if not self._attached:
            return None
        opened = self._open()
        try:
            with self._translated():
                opened.execute("BEGIN")
                if gone_rows.digest_at(TableReader(opened), revision) == table_digest:
                    gone_rows.show_past(opened, revision, entry_digest, table_digest)
                    return FileTable(None, opened=opened)
        except BaseException:
            opened.close()
            raise
        opened.close()
        return None

    def copy(self) -> FileTable:
        """A table of its own with the same rows and head. Only of a table without a path."""
        assert self.path is None
        other = FileTable(None)
        with self._write_lock:
            self._writer.backup(other._writer)
        return other

    def get(self, path: str) -> FileRow | None:
        with self.read() as view:
            return view.get(path)

    def exists(self, path: str) -> bool:
        with self.read() as view:
            return view.exists(path)

    def rows(self, directory: str = "") -> Iterator[FileRow]:
        with self.read() as view:
            yield from view.rows(directory)

    def stored(self) -> Iterator[StoredRow]:
        with self.read() as view:
            yield from view.stored()

    def has_named(self, names: Collection[str]) -> bool:
        with self.read() as view:
            return view.has_named(names)

    def blobs(self) -> Iterator[tuple[str, int]]:
        with self.read() as view:
            yield from view.blobs()

    def __iter__(self) -> Iterator[FileRow]:
        """Every file in path order; each iteration reads them again."""
        return self.rows()

    def insert(self, rows: Sequence[FileRow]) -> None:
        with self.write() as view:
            view.insert(rows)

    def rename(self, source: str, target: str, revision: int) -> int:
        with self.write() as view:
            return view.rename(source, target, revision)

    def remove(self, path: str) -> int:
        with self.write() as view:
            return view.remove(path)

    def head(self) -> tuple[int, str]:
        with self.read() as view:
            return view.head()

    def close(self) -> None:
        """Close every idle connection. The file stays."""
        with _opening, self._write_lock:
            self._closed = True
            self._let_go()
            self._writer.close()

    def _let_go(self) -> None:
        """Close the file, if it is open."""
        if not self._attached:
            return
        _in_use[str(self.path)] -= 1
        self._attached = False
        with self._idle_lock:
            for connection in (*self._idle, self._writer):
                connection.close()
            self._idle.clear()

    def _open(self) -> sqlite3.Connection:
        name = "" if self.path is None else str(self.path)  # "": SQLite's own temporary file, gone when it is closed
        with self._translated():
            connection = sqlite3.connect(
                name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=self.path is None
            )
            try:
                if self.path is not None:
                    connection.execute("PRAGMA journal_mode = WAL")
                    # FULL: a part that has left the SSD must not be missing here after a power cut, when the bucket
                    # that would tell cannot be reached.
                    connection.execute("PRAGMA synchronous = FULL")
                else:
                    connection.execute("PRAGMA page_size = 16384")  # rows with inline files are large
                    connection.execute("PRAGMA journal_mode = MEMORY")
                connection.execute(f"PRAGMA cache_size = {-16_000 if self.path is not None else -64_000}")
            except BaseException:
                connection.close()  # now: closed later, it would remove the -wal of the file that takes its place
                raise
        return connection

    def _prepare(self, opened: sqlite3.Connection) -> None:
        version = opened.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA:
            opened.execute("SELECT count(*) FROM state").fetchone()
            return
        with transaction(opened, "sqlite.commit", self.path):
            version = opened.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not opened.execute("SELECT 1 FROM sqlite_master").fetchone():
                _lay_out(opened, _CREATE if self.path is not None else _OWN, SCHEMA)
                version = SCHEMA
            while version in _MIGRATE:
                _lay_out(opened, _MIGRATE[version], version + 1)
                version += 1
            if version != SCHEMA:
                raise TableDamaged(
                    f"{self.path} has schema {version}, this version uses {SCHEMA}",
                    hint="it is rebuilt from the bucket",
                )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if any(word in str(error) for word in ("locked", "busy", "locking protocol")):
                raise Locked(
                    f"{self.path} is in use by another process", hint="try again when it has finished"
                ) from error
            if "full" in str(error):  # nothing is wrong with the file: rebuilding it would need even more space
                where = self.path or "a temporary table"
                hint = "free space on the disk that holds it" if self.path else "free space, or set SQLITE_TMPDIR"
                raise NoSpace(f"no space left for {where}", hint=hint) from error
            if self.path is not None and (why := why_not_writable(self.path.parent)) is not None:
                raise why from error
            if (why := of_sqlite(error, self.path or "a temporary table")) is not None:
                raise why from error
            raise TableDamaged(f"{self.path} cannot be used: {error}", hint="it is rebuilt from the bucket") from error
        except sqlite3.DatabaseError as error:
            raise TableDamaged(f"{self.path} cannot be used: {error}", hint="it is rebuilt from the bucket") from error

    def _borrow(self) -> sqlite3.Connection:
        with self._idle_lock:
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._idle_lock:
            if not self._closed and len(self._idle) < 8:
                self._idle.append(connection)
                return
        connection.close()


def _lay_out(opened: sqlite3.Connection, statements: str, version: int) -> None:
    for statement in statements.split(";"):
        opened.execute(statement)
    opened.execute(f"PRAGMA user_version = {version}")


def _check_file(path: Path) -> None:
    """Raise `TableDamaged` for a file that a crash left empty or short: SQLite takes an empty one for new."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise TableDamaged(f"{path} is not a database ({size} bytes)", hint="it is rebuilt from the bucket")
    (page_size,) = struct.unpack(">H", header[16:18])
    (pages,) = struct.unpack(">I", header[28:32])
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        return  # a checkpoint may be under way, or is finished by SQLite itself
    if size < pages * (page_size if page_size > 1 else 65536):
        raise TableDamaged(f"{path} is cut off at {size} bytes", hint="it is rebuilt from the bucket")
