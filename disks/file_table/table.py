"""The file table of an object disk: a SQLite cache of what the log says. Losing it costs a rebuild, never data.

The rows and the revision they stand for change in one SQLite transaction, so after a crash the table is that of some
revision of the log, and catching up is applying what follows.
"""

from __future__ import annotations

import heapq
import os
import sqlite3
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from disks.effects import make_directory, op
from oplog import paths
from oplog.entry import GENESIS_DIGEST
from oplog.errors import Conflict, Damaged, Locked, NoSpace
from oplog.replay import FileRow

SCHEMA = 3
_BUSY_SECONDS = 60
_INSERT = "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "path, size_bytes, sha256, key, inline, blob_set, revision, more, read_only"
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
"""
_MIGRATE = {
    1: "ALTER TABLE files ADD COLUMN more TEXT; ALTER TABLE files ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0",
    2: _DROPPED,
}
"""From an older layout to the next one. Layouts that are not named here are rebuilt from the bucket."""


class TableDamaged(Damaged):
    """The cache file cannot be used; the bucket has everything it held."""


class TableReader:
    """One consistent view of the table. Used from one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def head(self) -> tuple[int, str]:
        """The revision the rows stand for, and the digest of its log entry."""
        state = self.state()
        return int(state.get("revision", "0")), state.get("digest", GENESIS_DIGEST)

    def state(self) -> dict[str, str]:
        """Everything remembered beside the rows."""
        return dict(self._connection.execute("SELECT name, value FROM state"))

    def get(self, path: str) -> FileRow | None:
        """The file of this path."""
        found = self._connection.execute(f"SELECT {_COLUMNS} FROM files WHERE path = ?", (path,)).fetchone()
        return _row(found) if found else None

    def exists(self, path: str) -> bool:
        """Whether a file has this path or lies below it."""
        query = "SELECT 1 FROM files WHERE path = ? UNION ALL SELECT 1 FROM files WHERE path >= ? AND path < ? LIMIT 1"
        return self._connection.execute(query, (path, *paths.below(path))).fetchone() is not None

    def has_directory(self, path: str) -> bool:
        """Whether a file lies below the path."""
        query = "SELECT 1 FROM files WHERE path >= ? AND path < ? LIMIT 1"
        return self._connection.execute(query, paths.below(path)).fetchone() is not None

    def rows(self, directory: str = "") -> Iterator[FileRow]:
        """The files below the directory, in path order."""
        query = f"SELECT {_COLUMNS} FROM files WHERE path >= ? AND path < ? ORDER BY path"
        return map(_row, self._connection.execute(query, paths.below(directory)))

    def blobs(self) -> Iterator[tuple[str, int]]:
        """Every object that a file is made of, with its size in bytes; in no order, one of two files twice."""
        query = "SELECT key, size_bytes, more FROM files WHERE key IS NOT NULL"
        for key, size_bytes, more in self._connection.execute(query):
            if more is None:
                yield key, size_bytes
            else:
                rest = _more_decoder.decode(more)
                yield key, size_bytes - sum(size for _, size in rest)
                yield from rest

    def children(self, directory: str) -> list[str]:
        """Names directly below the directory, sorted; a directory's name ends with `/`. Jumps from child to child, so
        the cost is that of the children, not of everything below them."""
        start, stop = paths.below(directory)
        skip = len(start)
        query = "SELECT path FROM files WHERE path >= ? AND path < ? ORDER BY path LIMIT 1"
        names: list[str] = []
        while found := self._connection.execute(query, (start, stop)).fetchone():
            name, slash, _ = found[0][skip:].partition("/")
            names.append(name + slash)
            start = f"{found[0][:skip]}{name}0" if slash else f"{found[0]}\x00"
        return sorted(set(names))

    def named(self, directory: str, name: str) -> Iterator[FileRow]:
        """Every file called `name` exactly one directory below `directory`, in path order. One query."""
        start, stop = paths.below(directory)
        where = "document = 1 AND" if _is_document(name) else ""
        query = f"SELECT {_COLUMNS} FROM files WHERE {where} path >= ? AND path < ? ORDER BY path"
        for found in self._connection.execute(query, (start, stop)):
            segments = found[0][len(start) :].split("/")
            if len(segments) == 2 and segments[1] == name:
                yield _row(found)

    def documents(self, pattern: str) -> Iterator[FileRow]:
        """The `.json` files whose path matches the pattern (`*`, `?`), in path order."""
        query = f"SELECT {_COLUMNS} FROM files WHERE document = 1 AND path GLOB ? ORDER BY path"
        return map(_row, self._connection.execute(query, (pattern,)))

    def blobs_by_key(self) -> Iterator[tuple[str, int, str]]:
        """Every object that a file needs: key, size, and the file's path; in key order. Sorted on disk: a table of
        millions takes no memory."""
        whole = "SELECT key, size_bytes, path FROM files WHERE key IS NOT NULL AND more IS NULL ORDER BY key, path"
        parts = f"SELECT {_COLUMNS} FROM files WHERE more IS NOT NULL"
        several = sorted(
            (key, size_bytes, row.path)
            for row in map(_row, self._connection.execute(parts))
            for key, size_bytes in row.blobs
        )
        simple: Iterator[tuple[str, int, str]] = iter(self._connection.execute(whole))
        return heapq.merge(simple, several) if several else simple

    def dropped_since(self, seconds: float) -> Iterator[str]:
        """Blobs of files that were removed at this time (seconds since 1970) or later."""
        query = "SELECT key FROM dropped WHERE seconds >= ?"
        return (found[0] for found in self._connection.execute(query, (seconds,)))

    def count(self) -> int:
        """How many files."""
        return int(self._connection.execute("SELECT count(*) FROM files").fetchone()[0])

    def used_bytes(self) -> int:
        """The sum of the files' sizes; bytes shared by links count once for each path."""
        return int(self._connection.execute("SELECT coalesce(sum(size_bytes), 0) FROM files").fetchone()[0])


class TableWriter(TableReader):
    """The view of a transaction that may change the table."""

    def __init__(self, connection: sqlite3.Connection, *, removed: set[str] | None = None) -> None:
        """`removed` takes the objects of the files that are removed."""
        super().__init__(connection)
        self._removed = removed

    def set_head(self, revision: int, digest: str) -> None:
        """Say which revision the rows now stand for."""
        self.remember(revision=str(revision), digest=digest)

    def remember(self, **values: str) -> None:
        """Keep small facts beside the rows."""
        self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", values.items())

    def forget(self, *names: str) -> None:
        """Keep these facts no longer."""
        self._connection.executemany("DELETE FROM state WHERE name = ?", [(name,) for name in names])

    def drop(self, keys: Iterable[str], seconds: float) -> None:
        """Remember that files of these blobs are removed now."""
        rows = ((key, seconds) for key in keys)
        self._connection.executemany("INSERT OR REPLACE INTO dropped VALUES (?, ?)", rows)

    def forget_dropped(self, before: float) -> None:
        """Keep no longer what was removed before this time."""
        self._connection.execute("DELETE FROM dropped WHERE seconds < ?", (before,))

    def insert(self, rows: Iterable[FileRow]) -> None:
        """Add files. Raises `Conflict` when a path is taken."""
        try:
            self._connection.executemany(_INSERT, map(_values, rows))
        except sqlite3.IntegrityError as error:
            raise Conflict("a file of this path exists already") from error

    def rename(self, source: str, target: str, revision: int) -> int:
        """Move a file, or all files below a directory; how many."""
        start, stop = paths.below(source)
        update = "UPDATE files SET path = ? || substr(path, ?), revision = ?, document = {} WHERE {}"
        try:
            one = self._connection.execute(
                update.format(int(_is_document(target)), "path = ?"), (target, len(source) + 1, revision, source)
            )
            if one.rowcount:
                return one.rowcount
            many = self._connection.execute(
                update.format("document", "path >= ? AND path < ?"), (target, len(source) + 1, revision, start, stop)
            )
        except sqlite3.IntegrityError as error:
            raise Conflict(f"{target} exists already") from error
        return many.rowcount

    def remove(self, path: str) -> int:
        """Take a file, or all files below a directory, out of the table; how many."""
        where, below = "path = ? OR (path >= ? AND path < ?)", (path, *paths.below(path))
        if self._removed is not None:
            going = self._connection.execute(f"SELECT {_COLUMNS} FROM files WHERE {where}", below)
            self._removed.update(key for row in map(_row, going) for key, _ in row.blobs)
        return self._connection.execute(f"DELETE FROM files WHERE {where}", below).rowcount

    def clear(self) -> None:
        """Forget all rows and the revision."""
        self._connection.execute("DELETE FROM files")
        self._connection.execute("DELETE FROM state")


_in_use: Counter[str] = Counter()
"""How many tables this process has open on a file. One that is open is never opened besides SQLite: closing that second
descriptor would drop the process's POSIX locks, and another process would take the table for unused."""
_opening = threading.RLock()


class FileTable:
    """The cache file, shared by threads and processes: many readers and one writer at a time (SQLite's WAL).

    With `path` None the table is this process's own, in memory and what does not fit in a temporary file: a table of an
    old revision, say.
    """

    def __init__(self, path: Path | None, *, durable: bool = False) -> None:
        """`durable`: a commit outlives a power cut; a cache has no need of that."""
        self.path = path
        self._synchronous = "FULL" if durable else "NORMAL"
        self._write_lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._closed = False
        if path is None:
            self._writer = self._open()
            self._prepare()
            return
        make_directory(path.parent)
        with _opening:
            if not _in_use[str(path)]:
                _check_file(path)
            self._writer = self._open()
            with self._translated():
                self._prepare()
            _in_use[str(path)] += 1

    @contextmanager
    def read(self) -> Iterator[TableReader]:
        """A consistent view, for as long as the block lasts."""
        if self.path is None:
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
    def write(self, *, removed: set[str] | None = None) -> Iterator[TableWriter]:
        """One SQLite transaction, committed when the block ends and rolled back when it raises. Excludes the writers of
        other processes. `removed` takes the objects of the files that are removed. Raises `Locked` when another process
        holds the table for a minute."""
        with self._write_lock, self._translated():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield TableWriter(self._writer, removed=removed)
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            try:
                with op("sqlite.commit", self.path):
                    self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

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

    def blobs(self) -> Iterator[tuple[str, int]]:
        with self.read() as view:
            yield from view.blobs()

    def __iter__(self) -> Iterator[FileRow]:
        """Every file in path order, anew each time."""
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
        with _opening, self._write_lock, self._idle_lock:
            if not self._closed and self.path is not None:
                _in_use[str(self.path)] -= 1
            self._closed = True
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

    def _prepare(self) -> None:
        version = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA:
            self._writer.execute("SELECT count(*) FROM state").fetchone()
            return
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            version = self._writer.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not self._writer.execute("SELECT 1 FROM sqlite_master").fetchone():
                # A table of its own is read once or twice, from end to end: the index would cost more than it saves.
                self._lay_out(_CREATE if self.path is not None else _CREATE.replace(_INDEX, ""), SCHEMA)
                version = SCHEMA
            while version in _MIGRATE:
                self._lay_out(_MIGRATE[version], version + 1)
                version += 1
            if version != SCHEMA:
                raise TableDamaged(
                    f"{self.path} has schema {version}, this version uses {SCHEMA}",
                    hint="it is rebuilt from the bucket",
                )
            with op("sqlite.commit", self.path):
                self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._writer.close()
            raise

    def _lay_out(self, statements: str, version: int) -> None:
        for statement in statements.split(";"):
            self._writer.execute(statement)
        self._writer.execute(f"PRAGMA user_version = {version}")

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


def read_only_uri(path: Path) -> str:
    """How SQLite opens the file (`uri=True`) without ever making or changing it."""
    return f"{path.absolute().as_uri()}?mode=ro"


_more_decoder = msgspec.json.Decoder(tuple[tuple[str, int], ...])


def _row(found: Any) -> FileRow:
    path, size_bytes, sha256, key, inline, blob_set, revision, more, read_only = found
    blobs = () if more is None else _more_decoder.decode(more)
    return FileRow(path, size_bytes, sha256.hex(), key, inline, blob_set, revision, blobs, bool(read_only))


def _values(row: FileRow) -> tuple[object, ...]:
    digest = bytes.fromhex(row.sha256)
    document = int(_is_document(row.path))
    more = msgspec.json.encode(row.more).decode() if row.more else None
    read_only = int(row.read_only)
    return (
        row.path,
        row.size_bytes,
        digest,
        row.key,
        row.blob_set,
        row.revision,
        document,
        row.inline,
        more,
        read_only,
    )


def _is_document(path: str) -> bool:
    return path.endswith(".json")


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
