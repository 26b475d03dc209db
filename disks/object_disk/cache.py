"""The local cache of an object disk's file table: opened, brought up to the log, and replaced when it is damaged.

Losing the file costs a rebuild from the bucket, never data; so whatever is wrong with it, it is set aside and
read anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from disks.effects import make_directory, remove_file, rename
from disks.file_table.commit_index import CommitIndex
from disks.file_table.table import FileTable, TableDamaged, TableWriter
from disks.host.locks import file_lock
from disks.identity import not_there, read_object
from oplog import replay, snapshot
from oplog.errors import Conflict, Damaged, NotFound
from oplog.log import Entry, OperationsLog
from oplog.replay import FileRow
from oplog.revision import commit_key

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_APPLY_BATCH = 500
IDENTITY = "disk"
"""The id of the disk, remembered beside the rows by every commit."""
_WHOLE = "whole"
"""Remembered beside the rows once they were those of the newest revision: from then on they only ever get newer."""


class TableCache:
    """One file table and the log it follows. Threads share it; `lock` is held while it changes.

    Opening sends no request; the first use of `table` lists the log past the last applied revision and applies it, or
    reads an empty table from the newest snapshot and the commits after it.
    """

    def __init__(self, disk_name: str, log: OperationsLog, state_path: Path) -> None:
        self.lock = threading.RLock()
        self.path = state_path / "files.db"
        self.index = CommitIndex(state_path / "commits.db", log.store.name)
        self._disk_name = disk_name
        self._log = log
        self._store = log.store
        self._open_lock = state_path / "open.lock"
        self._table: FileTable | None = None
        self._caught_up = False
        self._notes: list[str] = []

    @property
    def is_certain(self) -> bool:
        """Whether the table holds all that this machine ever committed or saw. False for one that is being filled: of
        that, nobody knows how much is missing. Sends no request."""
        with self.lock, self._open().read() as view:
            return _WHOLE in view.state()

    def remembered_identity(self) -> str | None:
        """The id of the disk that the table is of, when it is that of this store and not empty. Changes nothing."""
        with self.lock:
            if self._table is not None:
                return self._identity_in(self._table)
            if not self.path.exists():
                return None
            try:
                table = FileTable(self.path)
            except TableDamaged:
                return None
            try:
                return self._identity_in(table)
            finally:
                table.close()

    def remember_identity(self, identity: str) -> None:
        """The table is that of the disk with this id."""
        with self.lock, self._open().write() as view:
            view.remember(**{IDENTITY: identity})

    def _identity_in(self, table: FileTable) -> str | None:
        with table.read() as view:
            state = view.state()
        ours = state.get("store") == self._store.name and state.get("revision", "0") != "0"
        return state.get(IDENTITY) if ours else None

    def hold_as_it_is(self) -> None:
        """Let `table` answer from what is known, without asking the bucket, until `refresh` succeeds."""
        with self.lock:
            self._open()
            self._caught_up = True

    @property
    def table(self) -> FileTable:
        """The table, opened and caught up with the bucket at first use."""
        if self._table is not None and self._caught_up:
            return self._table
        with self.lock:
            table = self._open()
            if not self._caught_up:
                self.catch_up(table)
                self._caught_up = True
            return table

    def reading(self, read: Callable[[FileTable], _T]) -> _T:
        """What `read` finds in the table; a table that turns out to be damaged is rebuilt first."""
        table = self.table
        try:
            return read(table)
        except TableDamaged as error:
            with self.lock:
                if self._table is table:  # else another thread has replaced it already
                    self._set_damaged_aside(error)
                    self._caught_up = False
            return read(self.table)

    def refresh(self) -> None:
        """Take in what other writers committed."""
        with self.lock:
            try:
                self.catch_up(self._open())
            except TableDamaged as error:  # damage inside the file shows only when it is used
                self._set_damaged_aside(error)
                self.catch_up(self._open())
            self._caught_up = True

    def recover(self) -> list[str]:
        """Open the table; what had to be done for it since the last call, one sentence each."""
        with self.lock:
            self._open()
            notes, self._notes = self._notes, []
        return notes

    def hold(self, table: FileTable) -> None:
        """Use this table as it is, instead of the one that follows the log."""
        with self.lock:
            self._table, self._caught_up = table, True

    def replace(self, rows: Iterable[FileRow], revision: int, digest: str) -> None:
        """Replace the cached table, whatever it holds, with this one: in one SQLite transaction, so all or nothing. The
        next use catches up from there. The rows come in path order, and are asked for anew when the table has to be
        made anew."""
        with self.lock:
            try:
                self._fill(self._open(), rows, revision, digest)
            except TableDamaged as error:
                self._set_damaged_aside(error)
                self._fill(self._open(), rows, revision, digest)
            self._caught_up = False

    def table_at(self, revision: int, *, path: Path | None = None) -> FileTable:
        """The file table as it was right after `revision`, in memory or at `path`; the caller closes it.

        Raises `NotFound` when the revision does not exist or is no longer kept.
        """
        table = FileTable(path)
        try:
            if revision > 0:
                self._catch_up_to(table, revision)
            if table.head()[0] != revision:
                raise self._not_there(revision)
        except BaseException:
            table.close()
            raise
        return table

    def _catch_up_to(self, table: FileTable, revision: int) -> None:
        try:
            self.catch_up(table, until=revision)
        except Damaged as error:
            if (self._log.first_kept() or 0) <= revision:
                raise
            raise NotFound(  # what is wrong lies among the leftovers of a collection
                f"revision {revision} of disk {self._disk_name} is no longer kept: {error.message}", hint=error.hint
            ) from error

    def _not_there(self, revision: int) -> NotFound:
        newest = self._log.head(self._log.first_kept() or 0)
        if revision > newest:
            why = f"disk {self._disk_name} has no revision {revision}; the newest is {newest}"
        else:
            why = f"revision {revision} of disk {self._disk_name} is no longer kept"
        return NotFound(why, hint="'frostline log' lists the revisions")

    def close(self) -> None:
        """Close the table. The file stays."""
        with self.lock:
            self.index.close()
            if self._table is not None:
                self._table.close()
                self._table = None

    # Opening and replacing

    def _open(self) -> FileTable:
        with self.lock:
            if self._table is None:
                make_directory(self.path.parent)
                with file_lock(self._open_lock):
                    self._table = self._open_or_replace()
            return self._table

    def _open_or_replace(self) -> FileTable:
        try:
            table = FileTable(self.path)
        except TableDamaged as error:
            self._set_aside(error.message)
            table = FileTable(self.path)
        try:
            self._belong_to_store(table)
        except BaseException:
            table.close()
            raise
        return table

    def _belong_to_store(self, table: FileTable) -> None:
        """Empty a table that describes another store."""
        with table.read() as view:
            known = view.state().get("store")
        if known == self._store.name:
            return
        with table.write() as view:
            if known is not None:
                self._notes.append(
                    f"disk {self._disk_name}: the table was that of {known}; it is rebuilt from {self._store.name}"
                )
            self._clear(view)

    def _set_damaged_aside(self, error: TableDamaged) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None
        with file_lock(self._open_lock):
            self._set_aside(error.message)

    def _set_aside(self, why: str) -> None:
        aside = self.path.with_name("files.db.damaged")
        for suffix in ("-wal", "-shm"):
            remove_file(self.path.with_name(f"files.db{suffix}"), missing_ok=True)
        rename(self.path, aside)
        self._note(f"{why}; set aside as {aside.name} and rebuilt from {self._store.name}")

    def _fill(self, table: FileTable, rows: Iterable[FileRow], revision: int, digest: str) -> None:
        with table.write() as view:
            self._clear(view)
            view.insert(rows)
            view.set_head(revision, digest)

    def _clear(self, view: TableWriter) -> None:
        view.clear()
        view.remember(store=self._store.name)

    def _note(self, what: str) -> None:
        self._notes.append(f"disk {self._disk_name}: {what}")
        logger.warning(self._notes[-1])

    # Catching up

    def catch_up(self, table: FileTable, *, until: int | None = None) -> None:
        """Apply what the log holds past the table's revision; from the newest snapshot when the table is empty."""
        revision, digest = table.head()
        following = self._log.revisions(revision - 1) if revision else None
        if following is None or next(following, None) != revision:
            following = None
            if not self._can_begin_anew(revision):
                self._remember_whole(table, until)
                return
            with table.write() as view:
                if view.head()[0] == revision > 0:
                    self._clear(view)
                revision, digest = self._load_snapshot(view, until)
        entries = self._log.entries(revision, until, previous=digest, listed=following)
        if until is None:
            entries = self._unbroken(entries, revision + 1)
        while batch := list(islice(entries, _APPLY_BATCH)):
            with table.write() as view:
                _apply(view, batch)
            if table is self._table:
                self.index.note(batch)
        self._remember_whole(table, until)

    def _remember_whole(self, table: FileTable, until: int | None) -> None:
        with table.read() as view:
            known, revision = _WHOLE in view.state(), view.head()[0]
        if until is not None or known:
            return
        with table.write() as view:
            if view.head()[0] >= revision:  # else another process has just begun to fill it anew
                view.remember(**{_WHOLE: "yes"})

    def _unbroken(self, entries: Iterator[Entry], first: int) -> Iterator[Entry]:
        """The entries up to the newest: that the first of them are gone is damage, not a question of retention."""
        try:
            yield from entries
        except NotFound as error:
            raise Damaged(
                f"log entry {self._store.name}{commit_key(first)} is missing (revision {first}), and no snapshot "
                "stands in for it",
                hint=f"run 'frostline fsck {self._disk_name}'; bring the objects back from a backup of the bucket",
            ) from error

    def _can_begin_anew(self, revision: int) -> bool:
        """Whether there is a log to read a table from. One that was at `revision`, which the bucket does not hold, may
        begin anew when gc took that entry and a later snapshot stands in for it; else it is that of another log."""
        if revision == 0:
            return self._log.first_revision() is not None
        self._check_identity()
        if self._log.first_revision() is not None and max(snapshot.revisions(self._store), default=0) > revision:
            return True
        raise Damaged(
            f"disk {self._disk_name} was at revision {revision}, which {self._store.name} does not hold",
            hint="was the bucket emptied or replaced? "
            f"'frostline restore {self._disk_name}' compares, --apply rebuilds",
        )

    def _check_identity(self) -> None:
        """The log has gone on without the entry that is known here, or is another one: the id tells."""
        known = self.remembered_identity()
        found = read_object(self._store) if known is not None else None
        if known is not None and found not in (None, known):
            raise not_there(self._disk_name, self._store.name, known, found)

    def _load_snapshot(self, view: TableWriter, until: int | None) -> tuple[int, str]:
        """Fill an empty table from the newest readable snapshot; the head it then has."""
        found = [] if view.head()[0] else snapshot.revisions(self._store)
        for revision in reversed([one for one in found if until is None or one <= until]):
            try:
                header, rows = snapshot.read_confirmed(self._log, revision)
                view.insert(rows)
            except (Damaged, Conflict, NotFound) as error:
                if isinstance(error, TableDamaged):
                    raise
                self._clear(view)
                self._note(f"{error.message}; an older one is used")
                continue
            view.set_head(header.revision, header.digest)
            break
        return view.head()


def _apply(view: TableWriter, entries: Iterable[Entry]) -> None:
    """Apply entries that follow one another; those another process has applied meanwhile are passed over."""
    applied, _ = view.head()
    for entry in entries:
        if entry.commit.revision > applied:
            replay.apply(view, entry.commit)
            view.set_head(entry.commit.revision, entry.digest)
