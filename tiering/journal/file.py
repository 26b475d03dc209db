"""The file below the journal: its tables, opened once a process, read and written in transactions, errors in our words,
and what happens to one that is damaged."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from disks import effects
from disks.host.database import check_openable, in_memory, transaction
from disks.host.locks import Owners, hold_lock
from disks.host.processes import is_alive, process_start
from disks.host.reserve import Reserve
from disks.system_errors import of_sqlite
from oplog.errors import Damaged, FrostlineError, Locked, NoSpace, ReadOnly, UsageError

live: weakref.WeakValueDictionary[str, JournalFile] = weakref.WeakValueDictionary()
"""The open journals of this process: a claim of our own process whose journal is not among them is stale."""

_JOURNAL, _GENERATION = "journal", "generation"

SCHEMA_VERSION = 1
_BUSY_SECONDS = 30.0
_QUICK_CHECK_LIMIT_BYTES = 16 * 1024 * 1024

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE moves (
  id INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, table_uuid TEXT NOT NULL, part TEXT NOT NULL,
  source TEXT NOT NULL, target TEXT NOT NULL, bytes INTEGER NOT NULL, reason_kind TEXT NOT NULL,
  reason_detail TEXT NOT NULL, actor TEXT NOT NULL, keep_source INTEGER NOT NULL, state TEXT NOT NULL,
  attempts INTEGER NOT NULL, error TEXT NOT NULL DEFAULT '', seconds REAL NOT NULL DEFAULT 0,
  requests INTEGER NOT NULL DEFAULT 0, revision INTEGER, cancel_requested INTEGER NOT NULL DEFAULT 0,
  pid INTEGER NOT NULL, start TEXT NOT NULL, instance TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL);
CREATE INDEX moves_by_state ON moves (state, id);
CREATE INDEX moves_by_part ON moves (table_uuid, part, target, id);
CREATE TABLE merges (
  id INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, table_uuid TEXT NOT NULL, partition TEXT NOT NULL,
  inputs TEXT NOT NULL, output TEXT NOT NULL, reason TEXT NOT NULL, actor TEXT NOT NULL, state TEXT NOT NULL,
  rows_in INTEGER NOT NULL DEFAULT 0, rows_out INTEGER NOT NULL DEFAULT 0, bytes_in INTEGER NOT NULL DEFAULT 0,
  bytes_out INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '',
  pid INTEGER NOT NULL, start TEXT NOT NULL, instance TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL);
CREATE INDEX merges_by_state ON merges (state, id);
CREATE TABLE blocks (table_uuid TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE block_ranges (
  table_uuid TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (table_uuid, number)) WITHOUT ROWID;
CREATE TABLE claims (
  table_uuid TEXT NOT NULL, part TEXT NOT NULL, owner_kind TEXT NOT NULL, pid INTEGER NOT NULL, start TEXT NOT NULL,
  instance TEXT NOT NULL, token TEXT NOT NULL, created TEXT NOT NULL, PRIMARY KEY (table_uuid, part)) WITHOUT ROWID;
CREATE TABLE pauses (
  table_uuid TEXT NOT NULL, kind TEXT NOT NULL, created TEXT NOT NULL, actor TEXT NOT NULL,
  PRIMARY KEY (table_uuid, kind)) WITHOUT ROWID;
CREATE TABLE pins (
  table_uuid TEXT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL, volume TEXT, created TEXT NOT NULL,
  actor TEXT NOT NULL, PRIMARY KEY (table_uuid, scope, name)) WITHOUT ROWID;
CREATE TABLE intents (
  id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, payload TEXT NOT NULL, created TEXT NOT NULL);
"""


class JournalFile:
    """The open file. `notices` says in sentences what opening it had to repair.

    Where it cannot be written, its directory being full or read-only, what is read is a copy in memory, and each write
    tries again: what makes room (`rescue`) gives up the reserve for it.
    """

    def __init__(self, state_directory: Path, *, reserve_bytes: int = 0) -> None:
        self.path = state_directory / "journal.db"
        self.reserve = Reserve(state_directory, reserve_bytes)
        self._rescues = 0
        self._gave_up = False
        self._lock = threading.RLock()
        self._instance = uuid.uuid4().hex
        self.owner = (os.getpid(), process_start(os.getpid()), self._instance)
        """Whose what this process writes is: what `is_held` asks for."""
        self._owners = Owners(self.path.with_name("owners.lock"), self._instance)
        self.notices: list[str] = []
        self._attached = False
        try:
            self._attach()
        except (NoSpace, ReadOnly):
            self._connection = open_copy(self.path)
        live[self._instance] = self

    def _attach(self) -> None:
        lock = self.path.with_name("journal.lock")
        with hold_lock(lock, resource="the journal", hint="try again", wait=True):
            self._owners.begin()
            self._connection, notices = open_file(self.path)
        self.notices += notices
        self._attached = True

    @contextmanager
    def rescue(self) -> Iterator[None]:
        """Work that makes room: it may use up the reserve, which is made again afterwards if there is room."""
        with self._lock:
            self._rescues += 1
        try:
            yield
        finally:
            with self._lock:
                self._rescues -= 1
                if self._gave_up and not self._rescues:
                    self.reserve.make()

    def make_room(self) -> None:
        """Within `rescue`, before something is written below the state directory: see to it that there is room."""
        with self._lock:
            if self._rescues:
                self._gave_up = self.reserve.make_room() or self._gave_up

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it."""
        return self._instance in live

    def close(self) -> None:
        """Release the file. Claims that were not released are stale from here on."""
        live.pop(self._instance, None)
        self._owners.end()
        with self._lock:
            self._connection.close()
            if self._gave_up:
                self.reserve.make()  # what SQLite kept beside the file is free again

    def is_held(self, row: sqlite3.Row) -> bool:
        """Whether the owner of what the row says lives: an open journal of this process, or of another one.

        Its lock tells, also from another container. A process that is seen to live holds, too, what its journals did
        not give back.
        """
        if row["instance"] in live or self._owners.lives(row["instance"]):
            return True
        return not self._is_own(row) and is_alive(row["pid"], row["start"])

    def _is_own(self, row: sqlite3.Row) -> bool:
        return bool(row["pid"] == os.getpid() and row["start"] == process_start(os.getpid()))

    def read(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        """All rows of a query."""
        with self._lock, _translated(self.path):
            return self._connection.execute(sql, arguments).fetchall()

    def has_table(self, name: str) -> bool:
        """Whether the journal has this table: those that came later are made when something is first noted in them."""
        return bool(self.read("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))

    def generation(self) -> tuple[str, int]:
        """The id of the journal, and how far it is: a number that goes up, in the same transaction, with whatever the
        journal must not forget. "" and 0 before the first."""
        rows = self.read("SELECT key, value FROM meta WHERE key IN (?, ?)", (_JOURNAL, _GENERATION))
        found = {row["key"]: row["value"] for row in rows}
        return found.get(_JOURNAL, ""), int(found.get(_GENERATION, "0"))

    @contextmanager
    def write(self, operation: str, *details: object, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, durable when this returns; rolled back on any error.

        `durable=False` spares the fsync, for what means nothing after a power cut: then no owner of a claim lives.
        """
        with self._lock, _translated(self.path):
            self.make_room()
            if not self._attached:
                self._attach()
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with transaction(self._connection, "journal.commit", operation, *details):
                yield self._connection


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise Locked(
                f"the journal {path} is busy: {text}", hint="another process writes to it; try again"
            ) from error
        if "full" in text:
            raise NoSpace(
                f"no space left for the journal {path}", hint="free space below the state directory"
            ) from error
        raise (
            effects.why_not_writable(path.parent)
            or of_sqlite(error, path)
            or FrostlineError(f"the journal {path} failed: {text}", hint="check the disk that holds the state")
        ) from error
    except sqlite3.DatabaseError as error:
        raise Damaged(
            f"the journal {path} is damaged: {error}", hint="run the command again: it begins a new one"
        ) from error


def advance_generation(connection: sqlite3.Connection, above: int = 0) -> None:
    """Within a transaction of the journal: the next generation, above this one. A journal without an id gets one."""
    connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (_JOURNAL, secrets.token_hex(8)))
    connection.execute(
        "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET"
        " value = max(CAST(value AS INTEGER), CAST(?2 AS INTEGER) - 1) + 1",
        (_GENERATION, str(above + 1)),
    )


def renew_id(connection: sqlite3.Connection) -> None:
    """Within a transaction of the journal: another id."""
    connection.execute("DELETE FROM meta WHERE key = ?", (_JOURNAL,))
    advance_generation(connection)


def now_text() -> str:
    """Now, as the journal writes times."""
    return datetime.now(UTC).isoformat()


def time_of(text: str) -> datetime:
    """A time that the journal wrote."""
    return datetime.fromisoformat(text)


def open_file(path: Path) -> tuple[sqlite3.Connection, list[str]]:
    """The journal's connection, and in sentences what had to be repaired. The caller holds the journal's lock.

    A damaged or empty file is set aside and a new one begun. Raises `UsageError` for one of a newer version, `NoSpace`
    or `ReadOnly` where its directory is full or read-only.
    """
    check_openable(path)
    notices: list[str] = []
    if path.exists():
        try:
            return _connect(path), notices
        except (sqlite3.DatabaseError, Damaged) as error:
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                if (why := effects.why_not_writable(path.parent) or of_sqlite(error, path)) is not None:
                    raise why from error
                raise FrostlineError(
                    f"the journal {path} cannot be opened: {error}", hint="check its directory and permissions"
                ) from error
            notices.append(_set_aside(path, str(error)))
    try:
        _create(path)
        return _connect(path), notices
    except sqlite3.OperationalError as error:
        raise (effects.why_not_writable(path.parent) or of_sqlite(error, path) or error) from error


def open_copy(path: Path) -> sqlite3.Connection:
    """The journal as it is, for reading: a copy in memory, an empty one where there is none. Writes nothing."""
    try:
        connection = in_memory(path)
        if path.exists():
            _check(path, connection)
        else:
            connection.executescript(_SCHEMA)
    except (sqlite3.DatabaseError, Damaged) as error:
        if isinstance(error, sqlite3.Error) and (why := of_sqlite(error, path)) is not None:
            raise why from error
        raise Damaged(
            f"the journal {path} is damaged: {error}", hint="make its directory writable: a new one is then begun"
        ) from error
    connection.row_factory = sqlite3.Row
    return connection


def _create(path: Path) -> None:
    """Make the file under another name first, so that an empty journal is never one of ours."""
    effects.make_directory(path.parent, mode=effects.PRIVATE)
    fresh = path.with_name("journal.db.new")
    for leftover in (fresh, Path(f"{fresh}-journal")):
        effects.remove_file(leftover, missing_ok=True)
    with effects.op("journal.create", fresh):
        connection = sqlite3.connect(fresh, isolation_level=None)
        connection.executescript(
            f"PRAGMA synchronous=FULL; BEGIN; {_SCHEMA}INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}'); COMMIT;"
        )
        connection.close()
    effects.fsync_file(fresh)
    effects.rename(fresh, path)
    effects.fsync_directory(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    if path.stat().st_size == 0:
        raise Damaged("the file is empty")
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        _check(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(path: Path, connection: sqlite3.Connection) -> None:
    if path.stat().st_size <= _QUICK_CHECK_LIMIT_BYTES:
        answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if answer != "ok":
            raise Damaged(answer)
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    except sqlite3.OperationalError as error:
        if of_sqlite(error, path) is not None:
            raise
        raise Damaged(str(error)) from error
    if row is None:
        raise Damaged("it has no schema version")
    if int(row[0]) > SCHEMA_VERSION:
        raise UsageError(
            f"the journal {path} has schema {row[0]}; this version knows {SCHEMA_VERSION}",
            hint="upgrade frostline",
        )


def _set_aside(path: Path, reason: str) -> str:
    """Rename the file, never delete it; returns what to tell the user."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    aside = path.with_name(f"journal.db.damaged-{stamp}")
    for suffix in ("-wal", "-shm", ""):
        part = Path(f"{path}{suffix}")
        if part.exists():
            effects.rename(part, Path(f"{aside}{suffix}"))
    effects.fsync_directory(path.parent)
    return (
        f"the journal was damaged ({reason}) and was set aside as {aside.name}; a new one was begun: "
        "history, pins and pauses are empty, no data is affected"
    )
