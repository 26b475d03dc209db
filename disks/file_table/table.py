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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from disks.effects import make_directory, remove_file, why_not_writable
from disks.host.database_copy import check_openable, in_memory
from disks.host.database_transaction import transaction
from oplog import paths
from oplog.entry import GENESIS_DIGEST
from oplog.errors import Conflict, Damaged, FrostlineError, Locked, NoSpace, ReadOnly
from oplog.replay import FileRow
from oplog.table_digest import TableDigest

SCHEMA = 3
_BUSY_SECONDS = 60
DIGEST = "table_digest"
"""Remembered beside the rows: the revision, and the digest of the table then. Who does not know of it leaves another
revision there."""
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

    def naming(self, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Path and object of the files whose first object is one of these, in no order. One pass, in SQLite."""
        asked = msgspec.json.encode(list(keys)).decode()
        query = "SELECT path, key FROM files WHERE key IN (SELECT value FROM json_each(?))"
        return iter(self._connection.execute(query, (asked,)))

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
        called = f"/{name}"  # compared by SQLite: of a table with many parts all but one `.json` are `part.json`
        query = f"""SELECT {_COLUMNS} FROM files
            WHERE {where} path >= ? AND path < ? AND substr(path, ?) = ? ORDER BY path"""
        for found in self._connection.execute(query, (start, stop, -len(called), called)):
            if found[0][len(start) :].partition("/")[2] == name:
                yield _row(found)

    def versions(self, directory: str, name: str) -> Iterator[tuple[str, int, str]]:
        """Of the same files path, revision and SHA-256 (empty where none is known). Reads none of their bytes."""
        start, stop = paths.below(directory)
        where = "document = 1 AND" if _is_document(name) else ""
        query = f"SELECT path, revision, sha256 FROM files WHERE {where} path >= ? AND path < ? ORDER BY path"
        skip = len(start)
        for path, revision, sha256 in self._connection.execute(query, (start, stop)):
            if path[skip:].partition("/")[2] == name:
                yield path, revision, sha256.hex()

    def has_named(self, names: Collection[str]) -> bool:
        """Whether any file, in whatever directory, is called one of these."""
        query = "SELECT EXISTS (SELECT 1 FROM files WHERE substr(path, ?) = ?)"
        return any(self._connection.execute(query, (-len(name) - 1, f"/{name}")).fetchone()[0] for name in names)

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

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        removed: set[str] | None = None,
        balance: dict[str, int] | None = None,
        digest: TableDigest | None = None,
    ) -> None:
        """`removed` takes the objects of the files that are removed; `balance` by how many files more (or fewer, below
        zero) each object has come to be named, zeros left out; `digest` the files that come and go."""
        super().__init__(connection)
        self._removed, self._balance, self.digest = removed, balance, digest

    def count_digest(self) -> dict[str, str]:
        """From now on `digest` is that of all rows, and `set_head` remembers it beside them; returns what is remembered
        now. A table whose rows an older version wrote is read from end to end, once."""
        state = self.state()
        revision, _, text = state.get(DIGEST, "").partition(" ")
        self.digest = TableDigest(text)
        if revision != state.get("revision", ""):
            self.digest = TableDigest()
            for row in self.rows():
                self.digest.add(row)
        return state

    def set_head(self, revision: int, digest: str) -> None:
        """Say which revision the rows now stand for."""
        self.remember(revision=str(revision), digest=digest)
        if self.digest is not None:
            self.remember(**{DIGEST: f"{revision} {self.digest.hex}"})

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
            counts = self._balance is not None or self.digest is not None
            self._connection.executemany(_INSERT, map(_values, self._counted(rows) if counts else rows))
        except sqlite3.IntegrityError as error:
            raise Conflict("a file of this path exists already") from error

    def bring(self, rows: Iterable[FileRow]) -> None:
        """The same, of rows that `digest` has."""
        digest, self.digest = self.digest, None
        self.insert(rows)
        self.digest = digest

    def rename(self, source: str, target: str, revision: int) -> int:
        """Move a file, or all files below a directory; how many."""
        if self.digest is not None:
            self._count_rename(self.digest, source, target, revision)
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
        if self._removed is not None or self._balance is not None or self.digest is not None:
            going = self._connection.execute(f"SELECT {_COLUMNS} FROM files WHERE {where}", below)
            for row in map(_row, going):
                if self.digest is not None:
                    self.digest.remove(row)
                for key, _ in row.blobs:
                    if self._removed is not None:
                        self._removed.add(key)
                    self._count(key, -1)
        return self._connection.execute(f"DELETE FROM files WHERE {where}", below).rowcount

    def clear(self) -> None:
        """Forget all rows and the revision."""
        self._connection.execute("DELETE FROM files")
        self._connection.execute("DELETE FROM state")
        if self.digest is not None:
            self.digest = TableDigest()

    def _count_rename(self, digest: TableDigest, source: str, target: str, revision: int) -> None:
        file = self.get(source)
        for row in [file] if file is not None else self.rows(source):
            digest.remove(row)
            digest.add(row.at(target + row.path[len(source) :], revision))

    def _counted(self, rows: Iterable[FileRow]) -> Iterator[FileRow]:
        for row in rows:
            if self.digest is not None:
                self.digest.add(row)
            for key, _ in row.blobs:
                self._count(key, 1)
            yield row

    def _count(self, key: str, by: int) -> None:
        if self._balance is None:
            return
        if count := self._balance.get(key, 0) + by:
            self._balance[key] = count
        else:
            del self._balance[key]


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

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._write_lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._closed = False
        self._attached = False
        """Whether the file is open in this table, and counted in `_in_use`."""
        self._detached: FrostlineError | None = None
        """Why the table is a copy."""
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
        """A consistent view, for as long as the block lasts."""
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
                yield TableWriter(self._writer, removed=removed, balance=balance, digest=digest)

    def unless_written(self, work: Callable[[], None]) -> None:
        """Do `work` while nobody writes, here or in another process. Nothing, at once, where somebody does."""
        if self._detached is not None or not self._write_lock.acquire(blocking=False):
            return
        try:
            self._writer.execute("PRAGMA busy_timeout = 0")
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                work()
            finally:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            return
        finally:
            with suppress(sqlite3.Error):
                self._writer.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
            self._write_lock.release()

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

    def has_named(self, names: Collection[str]) -> bool:
        with self.read() as view:
            return view.has_named(names)

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
                # A table of its own is read once or twice, from end to end: the index would cost more than it saves.
                _lay_out(opened, _CREATE if self.path is not None else _CREATE.replace(_INDEX, ""), SCHEMA)
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
