"""What one transaction sees of a file table, and may change: rows by path, directory, name and object. The file itself,
its layout and its locks are `disks/file_table/table.py`."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from oplog import paths
from oplog.documents import Document
from oplog.entry import GENESIS_DIGEST
from oplog.errors import Conflict
from oplog.replay import FileRow
from oplog.table_digest import TableDigest

DIGEST = "table_digest"
"""Remembered beside the rows: the revision, and the digest of the table then. Who does not know of it leaves another
revision there."""
_INSERT = "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
STORED = "path, size_bytes, sha256, key, blob_set, revision, document, inline, more, read_only"
"""Every column in the order of the layout: what is read so can be inserted so."""
COLUMNS = "path, size_bytes, sha256, key, inline, blob_set, revision, more, read_only"


SINCE = "gone_since"
"""Remembered beside the rows: the revision from which on all rows that left the table are kept (`gone_rows`)."""
MOST_GONE = 65_536
"""So many rows that left are kept; then those that left first are forgotten."""
_LOOKED_AT_EVERY = 16
_NOTE_GONE = f"""INSERT OR REPLACE INTO gone SELECT {STORED}, head + 1 FROM files,
  (SELECT CAST(value AS INTEGER) AS head FROM state WHERE name = 'revision') WHERE revision <= head AND """


StoredRow = tuple[object, ...]
"""A row as it lies in the table, for another table."""


class TableReader:
    """One consistent view of the table. Used from one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def connection(self) -> sqlite3.Connection:
        """For questions of others about the same view."""
        return self._connection

    def head(self) -> tuple[int, str]:
        """The revision the rows stand for, and the digest of its log entry."""
        state = self.state()
        return int(state.get("revision", "0")), state.get("digest", GENESIS_DIGEST)

    def state(self) -> dict[str, str]:
        """Everything remembered beside the rows."""
        return dict(self._connection.execute("SELECT name, value FROM state"))

    def get(self, path: str) -> FileRow | None:
        """The file of this path."""
        found = self._connection.execute(f"SELECT {COLUMNS} FROM files WHERE path = ?", (path,)).fetchone()
        return row_of(found) if found else None

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
        query = f"SELECT {COLUMNS} FROM files WHERE path >= ? AND path < ? ORDER BY path"
        return map(row_of, self._connection.execute(query, paths.below(directory)))

    def stored(self) -> Iterator[StoredRow]:
        """All files in path order, for `insert_stored`."""
        return iter(self._connection.execute(f"SELECT {STORED} FROM files ORDER BY path"))

    def blobs(self) -> Iterator[tuple[str, int]]:
        """Every object that a file is made of, with its size in bytes; in no order, one of two files twice."""
        query = "SELECT key, size_bytes, more FROM files WHERE key IS NOT NULL"
        for key, size_bytes, more in self._connection.execute(query):
            if more is None:
                yield key, size_bytes
            else:
                rest = _more.decode(more)
                yield key, size_bytes - sum(size for _, size in rest)
                yield from rest

    def naming(self, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Path and object of the files whose first object is one of these, in no order. One pass, in SQLite."""
        asked = msgspec.json.encode(list(keys)).decode()
        query = "SELECT path, key FROM files WHERE key IN (SELECT value FROM json_each(?))"
        return iter(self._connection.execute(query, (asked,)))

    def children(self, directory: str, begin: str = "") -> list[str]:
        """Names directly below the directory that begin so, sorted; a directory's name ends with `/`. Jumps from child
        to child, so the cost is that of these, not of everything below them."""
        start, stop = paths.below(directory)
        skip = len(start)
        if begin:
            start, stop = f"{start}{begin}", f"{start}{begin}\U0010ffff"
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
        query = f"""SELECT {COLUMNS} FROM files
            WHERE {where} path >= ? AND path < ? AND substr(path, ?) = ? ORDER BY path"""
        for found in self._connection.execute(query, (start, stop, -len(called), called)):
            if found[0][len(start) :].partition("/")[2] == name:
                yield row_of(found)

    def versions(
        self, directory: str, name: str, among: Collection[str] | None = None
    ) -> Iterator[tuple[str, int, str]]:
        """Of the same files path, revision and SHA-256 (empty where none is known). Reads none of their bytes. `among`:
        only those below these names, at the cost of these."""
        start, stop = paths.below(directory)
        skip = len(start)
        if among is not None:
            one = "SELECT path, revision, sha256 FROM files WHERE path = ?"
            for below in sorted(set(among), key=lambda below: f"{below}/"):
                for path, revision, sha256 in self._connection.execute(one, (f"{start}{below}/{name}",)):
                    yield path, revision, sha256.hex()
            return
        where = "document = 1 AND" if _is_document(name) else ""
        query = f"SELECT path, revision, sha256 FROM files WHERE {where} path >= ? AND path < ? ORDER BY path"
        for path, revision, sha256 in self._connection.execute(query, (start, stop)):
            _, _, file = path[skip:].partition("/")
            if file == name:
                yield path, revision, sha256.hex()

    def has_named(self, names: Collection[str]) -> bool:
        """Whether any file, in whatever directory, is called one of these."""
        query = "SELECT EXISTS (SELECT 1 FROM files WHERE substr(path, ?) = ?)"
        return any(self._connection.execute(query, (-len(name) - 1, f"/{name}")).fetchone()[0] for name in names)

    def documents(self, pattern: str) -> Iterator[FileRow]:
        """The `.json` files whose path matches the pattern (`*`, `?`), in path order."""
        query = f"SELECT {COLUMNS} FROM files WHERE document = 1 AND path GLOB ? ORDER BY path"
        return map(row_of, self._connection.execute(query, (pattern,)))

    def blobs_by_key(self) -> Iterator[tuple[str, int, str]]:
        """Every object that a file needs: key, size, and the file's path; in key order. Sorted on disk: a table of
        millions takes no memory."""
        whole = "SELECT key, size_bytes, path FROM files WHERE key IS NOT NULL AND more IS NULL ORDER BY key, path"
        parts = f"SELECT {COLUMNS} FROM files WHERE more IS NOT NULL"
        several = sorted(
            (key, size_bytes, row.path)
            for row in map(row_of, self._connection.execute(parts))
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
        keeps_gone: bool = False,
    ) -> None:
        """`removed` takes the objects of the files that are removed; `balance` by how many files more (or fewer, below
        zero) each object has come to be named, zeros left out; `digest` the files that come and go. `keeps_gone`: what
        leaves is kept."""
        super().__init__(connection)
        self._keeps_gone = keeps_gone
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
        if self._keeps_gone:
            self._connection.execute("INSERT OR IGNORE INTO state VALUES (?, ?)", (SINCE, str(revision)))
            if revision % _LOOKED_AT_EVERY == 0:
                self._forget_gone()

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
            self._connection.executemany(_INSERT, map(stored_row, self._counted(rows) if counts else rows))
        except sqlite3.IntegrityError as error:
            raise Conflict("a file of this path exists already") from error

    def insert_stored(self, rows: Iterable[StoredRow], table_digest: str) -> None:
        """Make the rows of another table those of this one, which is empty. `table_digest` is theirs: who read them
        from the bucket has it, and nothing is decoded to find it out again."""
        self._connection.executemany(_INSERT, rows)
        self.digest = TableDigest(table_digest)

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
        self._note_gone((source, start, stop))
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
            going = self._connection.execute(f"SELECT {COLUMNS} FROM files WHERE {where}", below)
            for row in map(row_of, going):
                if self.digest is not None:
                    self.digest.remove(row)
                for key, _ in row.blobs:
                    if self._removed is not None:
                        self._removed.add(key)
                    self._count(key, -1)
        self._note_gone(below)
        return self._connection.execute(f"DELETE FROM files WHERE {where}", below).rowcount

    def clear(self) -> None:
        """Forget all rows and the revision."""
        self._connection.execute("DELETE FROM files")
        self._connection.execute("DELETE FROM state")
        if self._keeps_gone:
            self._connection.execute("DELETE FROM gone")
        if self.digest is not None:
            self.digest = TableDigest()

    def _note_gone(self, at_or_below: tuple[str, str, str]) -> None:
        """The rows there leave with the revision after the head. What came with it as well was there at none."""
        if self._keeps_gone:
            self._connection.execute(f"{_NOTE_GONE} (path = ? OR (path >= ? AND path < ?))", at_or_below)

    def _forget_gone(self) -> None:
        """Keep no more rows than may be: the past before those that are left is not led back to."""
        query = "SELECT until FROM gone ORDER BY until DESC LIMIT 1 OFFSET ?"
        found = self._connection.execute(query, (MOST_GONE,)).fetchone()
        if found is not None:
            self._connection.execute("DELETE FROM gone WHERE until <= ?", found)
            self.remember(**{SINCE: str(found[0])})

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


_more = Document[tuple[tuple[str, int], ...]]("objects of a file", tuple[tuple[str, int], ...])


def row_of(values: Any) -> FileRow:
    path, size_bytes, sha256, key, inline, blob_set, revision, more, read_only = values
    blobs = () if more is None else _more.decode(more)
    return FileRow(path, size_bytes, sha256.hex(), key, inline, blob_set, revision, blobs, bool(read_only))


def stored_row(row: FileRow) -> StoredRow:
    """The row as `insert_stored` takes it."""
    digest = bytes.fromhex(row.sha256)
    document = int(_is_document(row.path))
    more = _more.encode(row.more).decode() if row.more else None
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
