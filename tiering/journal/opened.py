"""The file below the journal: opened once a process, read and written in transactions, errors in our words."""

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
from disks.host.database import transaction
from disks.host.owners import Owners
from disks.host.processes import is_alive, process_start
from disks.host.reserve import Reserve
from disks.system_errors import of_sqlite
from oplog.errors import Damaged, FrostlineError, Locked, NoSpace, ReadOnly
from tiering.journal import file as journal_file
from tiering.journal.locks import hold_lock

live: weakref.WeakValueDictionary[str, JournalFile] = weakref.WeakValueDictionary()
"""The open journals of this process: a claim of our own process whose journal is not among them is stale."""

_JOURNAL, _GENERATION = "journal", "generation"


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
            self._connection = journal_file.open_copy(self.path)
        live[self._instance] = self

    def _attach(self) -> None:
        lock = self.path.with_name("journal.lock")
        with hold_lock(lock, resource="the journal", hint="try again", wait=True):
            self._owners.begin()
            self._connection, notices = journal_file.open_file(self.path)
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
