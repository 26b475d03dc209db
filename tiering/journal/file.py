"""The journal's file: its tables, how it is opened, and what happens to one that is damaged."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from disks import effects
from disks.host.database import check_openable, in_memory
from disks.system_errors import of_sqlite
from oplog.errors import Damaged, FrostlineError, UsageError

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
