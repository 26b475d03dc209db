"""Which commits touched which directory: an index of an object disk's log, kept beside its cached file table.

Commits are noted when they are made or read. Losing the file, or a note, costs the reading of log entries when
somebody asks for them (`disks.file_table.commits`), never an answer: what the index says is used to find entries, and
what an entry says is read from the bucket and checked against the digest noted here.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec

from disks.effects import make_directory, why_not_writable
from disks.host.database import check_openable, open_cache, remove_database, transaction
from oplog import paths
from oplog.earlier import COMMITS, MOST_TEXT_BYTES
from oplog.entry import Commit, Create, Remove, Rename, changed_paths, encode
from oplog.errors import FrostlineError
from oplog.log import Entry

logger = logging.getLogger(__name__)

SCHEMA = 2
_BUSY_SECONDS = 10
_CREATE = """
CREATE TABLE commits (revision INTEGER PRIMARY KEY, digest BLOB NOT NULL);
CREATE TABLE directories (id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL);
CREATE TABLE touched (
  directory INTEGER NOT NULL, whole INTEGER NOT NULL, revision INTEGER NOT NULL,
  PRIMARY KEY (directory, whole, revision)
) WITHOUT ROWID;
CREATE TABLE definitions (path TEXT NOT NULL, revision INTEGER NOT NULL, PRIMARY KEY (path, revision)) WITHOUT ROWID;
CREATE TABLE texts (revision INTEGER PRIMARY KEY, text BLOB NOT NULL);
CREATE TABLE state (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)
"""
_TROUBLE = (sqlite3.Error, OSError, FrostlineError)
_DEFINITION = "table.json"
"""Files of this name say what a directory is called: the commits that created them are noted apart."""


class Span(msgspec.Struct, frozen=True):
    """The noted revisions, `first` to `last`, without a gap. `previous` is the digest before the first."""

    first: int
    last: int
    previous: str
    digest: str


class CommitIndex:
    """The index of one disk, shared by threads and processes. What fails here is logged, and fails nothing else."""

    def __init__(self, path: Path, store: str) -> None:
        """`store`: name of the store; the notes of another one are thrown away. Opens nothing yet."""
        self.path = path
        self._store = store
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def note(self, entries: Sequence[Entry]) -> None:
        """Note entries that follow one another. Those that do not go on from the notes, or precede them, are left out:
        they are read again when somebody asks."""
        if not entries:
            return
        try:
            with self._writing() as connection:
                _keep_texts(connection, entries)
                _note(connection, entries)
        except _TROUBLE as error:
            logger.info("%s: commits up to %d are not noted: %s", self.path, entries[-1].commit.revision, error)
            self._forget_if_damaged(error)

    def span(self) -> Span | None:
        """Which revisions are noted; None for none. Damaged notes are thrown away."""
        try:
            with self._reading() as connection:
                return _span(connection)
        except _TROUBLE as error:
            logger.info("%s cannot be read: %s", self.path, error)
            self._forget_if_damaged(error)
            return None

    def touching(self, directory: str, *, since: int, until: int, limit: int | None = None) -> list[int]:
        """Noted revisions with since < revision <= until that changed something at or below the directory, or took it
        away with a directory above it; ascending, the newest `limit`. Cost: that of the answer."""
        found: set[int] = set()
        with self._reading() as connection:
            for path in (directory, *paths.ancestors(directory)):
                wholes = (0, 1) if path == directory else (1,)
                for whole in wholes:
                    rows = connection.execute(
                        "SELECT revision FROM touched WHERE directory = (SELECT id FROM directories WHERE path = ?) "
                        "AND whole = ? AND revision > ? AND revision <= ? ORDER BY revision DESC LIMIT ?",
                        (path, whole, since, until, -1 if limit is None else limit),
                    )
                    found.update(revision for (revision,) in rows)
        ordered = sorted(found)
        return ordered if limit is None else ordered[max(len(ordered) - limit, 0) :]

    def definitions(self, *, since: int) -> list[tuple[str, int]]:
        """Directory and revision of every `table.json` created after `since`, by revision."""
        with self._reading() as connection:
            return connection.execute(
                "SELECT path, revision FROM definitions WHERE revision > ? ORDER BY revision", (since,)
            ).fetchall()

    def directories(self, prefix: str) -> list[str]:
        """The directories whose path begins so, and that a noted commit touched."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT path FROM directories WHERE path >= ? AND path < ?", (prefix, f"{prefix}\U0010ffff")
            )
            return [path for (path,) in rows]

    def goes_back_whole(self) -> bool:
        """Whether all that is kept of the log was noted at some time; then it still is."""
        with self._reading() as connection:
            return _state(connection).get("whole") == "yes"

    def note_whole(self) -> None:
        """Everything that is kept is noted now. Where that cannot be written, it is looked for again."""
        try:
            with self._writing() as connection:
                _remember(connection, whole="yes")
        except _TROUBLE as error:
            logger.info("%s: not noted that it is whole: %s", self.path, error)

    def digests(self, revisions: Iterable[int]) -> dict[int, str]:
        """The digest of each noted revision among these."""
        found: dict[int, str] = {}
        with self._reading() as connection:
            for revision in revisions:
                row = connection.execute("SELECT digest FROM commits WHERE revision = ?", (revision,)).fetchone()
                if row:
                    found[revision] = row[0].hex()
        return found

    def texts(self) -> dict[int, bytes]:
        """The newest entries, those after the last one that brings others along: what the next of these brings. None
        where they are not at hand."""
        try:
            with self._reading() as connection:
                return dict(connection.execute("SELECT revision, text FROM texts"))
        except _TROUBLE as error:
            logger.info("%s cannot be read: %s", self.path, error)
            return {}

    def forget_before(self, revision: int) -> None:
        """Take out what was noted of the revisions below this one: their entries are gone."""
        try:
            with self._writing() as connection:
                span = _span(connection)
                if span is None or revision <= span.first:
                    return
                row = connection.execute("SELECT digest FROM commits WHERE revision = ?", (revision - 1,)).fetchone()
                for table in ("commits", "touched", "definitions"):
                    connection.execute(f"DELETE FROM {table} WHERE revision < ?", (revision,))
                connection.execute("DELETE FROM directories WHERE id NOT IN (SELECT directory FROM touched)")
                _remember(connection, previous=row[0].hex() if row else "")
        except _TROUBLE as error:
            logger.info("%s keeps notes of commits that are gone: %s", self.path, error)

    def _forget_if_damaged(self, error: Exception) -> None:
        """A busy file or a full disk is no reason to throw notes away."""
        busy = any(word in str(error) for word in ("locked", "busy", "full", "readonly"))
        if not isinstance(error, sqlite3.DatabaseError) or busy:
            return
        self.forget()

    def forget(self) -> None:
        """Throw all notes away. When the file cannot be removed, the notes are from now on those of this process."""
        with self._lock:
            self.close()
            try:
                remove_database(self.path)
            except _TROUBLE as error:
                logger.warning("%s cannot be removed: %s", self.path, error)
                self._connection = self._connect(":memory:")

    def close(self) -> None:
        """Close the file. It is opened again when it is needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._open()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._open()
            with transaction(connection, "sqlite.commit", self.path):
                yield connection

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                make_directory(self.path.parent)
                check_openable(self.path)
                self._connection = self._connect(str(self.path))
            except (sqlite3.OperationalError, OSError, FrostlineError) as error:
                # Read-only, full, in use: the notes are then those of this process, read from the log when asked for.
                logger.log(
                    logging.WARNING if why_not_writable(self.path.parent) is None else logging.INFO,
                    "%s cannot be used, so the log is read instead: %s",
                    *(self.path, error),
                )
                self._connection = self._connect(":memory:")
        return self._connection

    def _connect(self, name: str) -> sqlite3.Connection:
        return open_cache(name, busy_seconds=_BUSY_SECONDS, prepare=self._prepare)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables, and empty those of another layout or store."""
        (layout,) = connection.execute("PRAGMA user_version").fetchone()
        if layout == SCHEMA and _state(connection).get("store") == self._store:
            return
        with transaction(connection, "sqlite.commit", self.path):
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                connection.execute(f'DROP TABLE "{name}"')
            for statement in _CREATE.split(";"):
                connection.execute(statement)
            _remember(connection, store=self._store)
            connection.execute(f"PRAGMA user_version = {SCHEMA}")


def touched(commit: Commit) -> set[tuple[str, bool]]:
    """The directories a commit changed something in, at any depth, and (True) the paths it removed or renamed."""
    found: set[tuple[str, bool]] = set()
    directories: set[str] = set()
    for operation in commit.operations:
        whole = isinstance(operation, Remove | Rename)
        for path in changed_paths(operation):
            above = path.rpartition("/")[0]
            while above and above not in directories:  # else those above it were found with it
                directories.add(above)
                above = above.rpartition("/")[0]
            if whole:
                found.add((path, True))
    found.update((directory, False) for directory in directories)
    return found


def _keep_texts(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    last = entries[-1].commit.revision
    after = last - last % COMMITS
    connection.execute("DELETE FROM texts WHERE revision <= ?", (after,))
    texts = ((one.commit.revision, encode(one.commit)) for one in entries[-COMMITS:] if one.commit.revision > after)
    small = (pair for pair in texts if len(pair[1]) <= MOST_TEXT_BYTES)
    connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?)", small)


def _note(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    span = _span(connection)
    if span is not None:
        entries = _new(entries, span)
        if not entries:
            return
        if entries[0].commit.revision == span.last + 1 and entries[0].commit.previous != span.digest:
            _clear(connection)  # the notes are those of a log that was replaced
            span = None
    if any(two.commit.revision != one.commit.revision + 1 for one, two in pairwise(entries)):
        raise AssertionError("entries to note follow one another")
    connection.executemany(
        "INSERT INTO commits VALUES (?, ?)", ((item.commit.revision, bytes.fromhex(item.digest)) for item in entries)
    )
    for item in entries:
        revision = item.commit.revision
        pairs = touched(item.commit)
        connection.executemany("INSERT OR IGNORE INTO directories (path) VALUES (?)", {(path,) for path, _ in pairs})
        connection.executemany(
            "INSERT INTO touched SELECT id, ?, ? FROM directories WHERE path = ?",
            ((whole, revision, path) for path, whole in pairs),
        )
        connection.executemany(
            "INSERT OR IGNORE INTO definitions VALUES (?, ?)",
            (
                (directory, revision)
                for operation in item.commit.operations
                if isinstance(operation, Create)
                for directory, _, name in (operation.path.rpartition("/"),)
                if name == _DEFINITION
            ),
        )
    if span is None or entries[0].commit.revision < span.first:
        _remember(connection, previous=entries[0].commit.previous)


def _new(entries: Sequence[Entry], span: Span) -> Sequence[Entry]:
    """The entries that go on from the notes, or end where they begin; none when there is a gap between."""
    later = [item for item in entries if item.commit.revision > span.last]
    if later:
        return later if later[0].commit.revision == span.last + 1 else ()
    earlier = [item for item in entries if item.commit.revision < span.first]
    fits = earlier and earlier[-1].commit.revision == span.first - 1 and earlier[-1].digest == span.previous
    return earlier if fits else ()


def _span(connection: sqlite3.Connection) -> Span | None:
    # Two questions: SQLite answers each from an end of the tree, and both together by reading all of it.
    first, last = connection.execute(
        "SELECT (SELECT min(revision) FROM commits), (SELECT max(revision) FROM commits)"
    ).fetchone()
    if first is None:
        return None
    (digest,) = connection.execute("SELECT digest FROM commits WHERE revision = ?", (last,)).fetchone()
    return Span(first, last, _state(connection).get("previous", ""), digest.hex())


def _clear(connection: sqlite3.Connection) -> None:
    for table in ("commits", "directories", "touched", "definitions"):
        connection.execute(f"DELETE FROM {table}")
    _remember(connection, whole="no")


def _state(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM state"))


def _remember(connection: sqlite3.Connection, **values: str) -> None:
    connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", values.items())
