"""The local cache of an object disk's file table: opened, brought up to the log, and replaced when it is damaged.

Losing the file costs a rebuild from the bucket, never data; so a faulty file is set aside and
read again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

from disks.effects import make_directory
from disks.file_table.commit_index import CommitIndex
from disks.file_table.table import FileTable, TableDamaged
from disks.file_table.views import DIGEST, StoredRow, TableWriter
from disks.host.database import set_database_aside
from disks.host.locks import file_lock
from disks.host.moment import Moment
from disks.identity import not_there, read_object
from disks.object_disk.following import (
    CONTRADICTED,
    UNPROVED,
    Contradiction,
    apply_entries,
    is_proved,
    remember_seen,
    seen_states,
)
from disks.object_disk.last_look import LastLook
from disks.object_disk.turns import Turns
from oplog import snapshot
from oplog.errors import Conflict, Damaged, NoSpace, NotFound, ReadOnly, UsageError
from oplog.log import Entry, OperationsLog
from oplog.revision import commit_key, snapshot_key
from oplog.stamps import SeenStates

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

    def __init__(self, disk_name: str, log: OperationsLog, state_path: Path, *, notes_looks: bool = False) -> None:
        """`notes_looks`: somebody wants to know when the bucket was last looked at (`looked_within`)."""
        self.lock = threading.RLock()
        self.path = state_path / "files.db"
        self._notes_looks = notes_looks
        self._disk_name = disk_name
        self._log = log
        self._store = log.store
        self._open_lock = state_path / "open.lock"
        self._table: FileTable | None = None
        self._holds = False
        """The table is one that was given: no other takes its place."""
        self._caught_up = False
        self._notes: list[str] = []
        self._told = False
        """Whether `recover` has said that the log contradicts itself."""
        self.end_seen = Moment(-math.inf, -math.inf)
        """When the bucket was last seen to end where the table did."""

    @cached_property
    def index(self) -> CommitIndex:
        """Which commits touched which directories."""
        return CommitIndex(self.path.with_name("commits.db"), self._store.name)

    @cached_property
    def turns(self) -> Turns:
        """Those of this one and of the others that commit to the log."""
        return Turns()

    @cached_property
    def last_look(self) -> LastLook:
        """When this machine last looked at the bucket."""
        return LastLook(self.path.parent)

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
            if self._holds or not self.path.exists():
                return None
            try:
                table = FileTable(self.path)
            except TableDamaged:
                return None
            try:
                return self._identity_in(table)
            finally:
                table.close()

    def revision_at_hand(self) -> int:
        """The revision of the table that `table` last gave; 0 before it gave one. Takes no lock."""
        table = self._table
        return table.head()[0] if table is not None and self._caught_up else 0

    def remember_identity(self, identity: str) -> None:
        """The table is that of the disk with this id."""
        with self.lock, self._open().write(forgettable=True) as view:
            view.remember(**{IDENTITY: identity})

    def remember(self) -> None:
        """What `table` shows is in the file, durably, from now on. Raises `NoSpace` or `ReadOnly` where the file cannot
        be written."""
        with self.lock:
            table = self.table
            if table.is_copy:
                table.attach()
                self._catch_up(table)

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
                self._look(self._open())
            except TableDamaged as error:  # damage inside the file shows only when it is used
                self._set_damaged_aside(error)
                self._look(self._open())
            self._caught_up = True

    def _look(self, table: FileTable) -> None:
        """Catch up, and note when."""
        if not self._notes_looks or table.is_copy:
            self.catch_up(table)
            return
        table.unless_written(self.last_look.begin)
        try:
            self.catch_up(table)
            self.last_look.end(table.head()[0])
        finally:
            self.last_look.abandon()

    def looked_within(self, seconds: float) -> bool:
        """Whether any process of this machine has looked at the bucket so lately, and the table has what it saw: then
        `table` answers without asking the bucket."""
        with self.lock:
            if not self._notes_looks:
                return False
            try:
                table = self._open()
                with table.read() as view:
                    state = view.state()
            except TableDamaged:
                return False
            if table.is_copy or _WHOLE not in state or CONTRADICTED in state:
                return False
            if self.last_look.age_seconds(state) >= seconds:
                return False
            self._caught_up = True
            return True

    def recover(self) -> list[str]:
        """Open the table; what had to be done for it since the last call, one sentence each."""
        with self.lock:
            with self._open().read() as view:
                contradicted = view.state().get(CONTRADICTED)
            if contradicted and not self._told:
                self._told = True
                self._notes.append(
                    f"the log contradicts itself after revision {contradicted}: nothing is collected; 'frostline fsck "
                    f"{self._disk_name}' says more"
                )
            notes, self._notes = self._notes, []
        return notes

    def contradicted(self) -> int | None:
        """The first entry that is wrong about the table wherever one begins; None when there is no such, or when two
        snapshots contradict each other and no entry tells which is right."""
        with self.lock:
            try:
                if self._table is None and self.path.exists():
                    FileTable(self.path).close()  # of a file that is damaged this says nothing, and leaves it there
                with self.table.read() as view:
                    state = view.state()
            except (Damaged, NotFound):
                return None
        return int(state[CONTRADICTED]) + 1 if CONTRADICTED in state and UNPROVED not in state else None

    def hold(self, table: FileTable) -> None:
        """Use this table as it is, instead of the one that follows the log, until `close`: that there is one of now is
        nothing to who asks for this one. One that was held before is closed."""
        with self.lock:
            before, was_closed = self._table, self._holds and self._table is None
            if was_closed:
                before = table
            else:
                self._table, self._holds, self._caught_up = table, True, True
        if before is not None:
            before.close()
        if was_closed:
            raise self._was_closed()

    def replace(
        self, rows: Callable[[], Iterable[StoredRow]], revision: int, digest: str, *, table_digest: str, proved: bool
    ) -> None:
        """Replace the cached table with this one: in one SQLite transaction, so all or nothing. The
        next use catches up from there. The rows come in path order, and are iterated again when the table has to be
        made again; `table_digest` is theirs."""

        def fill(table: FileTable) -> None:
            with table.write() as view:
                self._clear(view)
                view.insert_stored(rows(), table_digest)
                view.set_head(revision, digest)
                if not proved:
                    view.remember(**{UNPROVED: str(revision)})

        with self.lock:
            try:
                fill(self._open())
            except TableDamaged as error:
                self._set_damaged_aside(error)
                fill(self._open())
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

    def past_table(self, revision: int) -> FileTable | None:
        """The same for a short reading, by way of the table of now: costs what has changed since. None where this does
        not lead to what the log says of that revision, or the log says nothing of it."""
        table = self.table
        with table.read() as view:
            state = view.state()
        if not 0 < revision <= int(state.get("revision", "0")) or not is_proved(state):
            return None
        try:
            entry = self._log.read(revision)
            if not entry.commit.table_digest or revision < self._log.floor():
                return None
            return table.as_of(revision, entry.digest, entry.commit.table_digest)
        except (Damaged, NotFound):
            return None

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
            if "index" in vars(self):
                self.index.close()
            if self._table is not None:
                self._table.close()
                self._table = None

    # Opening and replacing

    def _was_closed(self) -> UsageError:
        return UsageError(
            f"this view of disk {self._disk_name} was closed", hint="ask for the revision again; nothing was read"
        )

    def _open(self) -> FileTable:
        with self.lock:
            if self._table is None:
                if self._holds:  # the file is that of the present: another answer than the one that was asked for
                    raise self._was_closed()
                self._table = self._open_locked()
            return self._table

    def _open_locked(self) -> FileTable:
        try:
            make_directory(self.path.parent)
        except (NoSpace, ReadOnly):  # the table is then a copy of nothing, which is nobody else's
            return self._open_or_replace()
        with file_lock(self._open_lock):
            return self._open_or_replace()

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
        with table.write(forgettable=True) as view:
            if known is not None:
                self._notes.append(f"the table was that of {known}; it is rebuilt from {self._store.name}")
            self._clear(view)

    def _set_damaged_aside(self, error: TableDamaged) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None
        with file_lock(self._open_lock):
            self._set_aside(error.message)

    def _set_aside(self, why: str) -> None:
        aside = set_database_aside(self.path)
        self.note(f"{why}; set aside as {aside.name} and rebuilt from {self._store.name}")

    def _clear(self, view: TableWriter) -> None:
        """Empty it. What its log has told of other disks stays, for that holds whatever becomes of the rows."""
        seen = seen_states(view) if view.state().get("store") == self._store.name else SeenStates()
        view.clear()
        view.remember(store=self._store.name)
        if seen != SeenStates():
            remember_seen(view, seen)

    def note(self, message: str) -> None:
        """Tell it: in the log of this process, and to who calls `recover` next."""
        self._notes.append(message)
        logger.warning("disk %s: %s", self._disk_name, message)

    # Catching up

    def catch_up(self, table: FileTable, *, until: int | None = None, read: Sequence[Entry] = ()) -> None:
        """Apply what the log holds past the table's revision; from the newest snapshot when the table is empty. Where
        the file cannot be written the table goes on as a copy: reading needs no more. Entries that were `read` already
        are not read again."""
        try:
            self._catch_up(table, until=until, read=read)
        except (NoSpace, ReadOnly) as error:
            if table.is_copy:
                raise
            table.detach(error)
            self._catch_up(table, until=until)

    def _catch_up(self, table: FileTable, *, until: int | None = None, read: Sequence[Entry] = ()) -> None:
        revision, digest = table.head()
        following = self._log.revisions(revision - 1) if revision else None
        begins_anew = following is None or next(following, None) != revision
        if not begins_anew:
            try:
                known = {entry.commit.revision: entry for entry in read}
                entries = self._log.entries(
                    revision, until, previous=digest, listed=following, read=known, by_copy=True
                )
                self._take_in(table, entries)
            except NotFound:
                if until is not None:
                    raise
                revision, begins_anew = table.head()[0], True  # below the floor: it counts no more, though it is there
        if begins_anew and self._can_begin_anew(revision):
            self._begin_anew(table, revision, until)
        self._remember_whole(table, until)
        if until is None:
            self.end_seen = Moment()

    def _begin_anew(
        self, table: FileTable, at_head: int, until: int | None, *, below: int | None = None, passed: int = -1
    ) -> None:
        """Read the table from the newest snapshot (`below` a revision), and the entries after it. `passed`: the one
        that did not reach them before."""
        with table.write(forgettable=True) as view:
            if view.head()[0] == at_head > 0 or below is not None:
                self._clear(view)
            revision, digest = self._load_snapshot(view, until, below)
            start = view.state().get(UNPROVED)
        try:
            self._take_in(table, self._log.entries(revision, until, previous=digest, by_copy=True))
        except Contradiction as error:
            if start is not None:
                self.note(f"{error.message}; an older snapshot is used")
                self._begin_anew(table, 0, until, below=int(start))
                return
            head, digest = table.head()
            if self._log.settled(head + 1, self._log.read(head + 1).digest) is None:
                self.note(f"{error.message}; no older one helps. {error.hint}")
            with table.write(forgettable=True) as view:
                view.remember(**{CONTRADICTED: str(head)})
            try:
                self._take_in(table, self._log.entries(head, until, previous=digest))
            except Damaged:  # the entry was altered, and may be brought back
                with table.write(forgettable=True) as view:
                    view.forget(CONTRADICTED)
                raise
        except NotFound as error:
            if until is not None:
                raise
            if revision != passed and revision + 1 < self._log.floor():  # collected since the snapshots were listed
                self._begin_anew(table, table.head()[0], None, passed=revision)
                return
            raise Damaged(  # not a question of retention
                f"log entry {self._store.name}{commit_key(revision + 1)} is missing (revision {revision + 1}), and no "
                "snapshot replaces it",
                hint=f"run 'frostline fsck {self._disk_name}'; bring the objects back from a backup of the bucket",
            ) from error
        if start is not None and until is None:
            self._compare_with_older(table, int(start))

    def _compare_with_older(self, table: FileTable, start: int) -> None:
        """Where no entry told what the files of snapshot `start` are, the next older one tells, by way of the entries
        between. Where it gives other files the whole log is believed; of two snapshots nobody knows which is right."""
        with table.read() as view:
            state = view.state()
        if UNPROVED not in state or self._gives_the_same(state, below=start) is not False:
            return
        key = f"{self._store.name}{snapshot_key(start)}"
        if self._gives_the_same(state, below=1) is not None:
            self.note(f"{key} contradicts the log; an older one is used")
            self._begin_anew(table, 0, None, below=1)
            return
        self.note(f"{key} contradicts the snapshot before it, and no entry shows which of them is right")
        with table.write(forgettable=True) as view:
            view.remember(**{CONTRADICTED: state["revision"]})

    def _gives_the_same(self, state: Mapping[str, str], *, below: int) -> bool | None:
        """Whether the log gives the table with these facts also from a start below a revision; None when there is none
        that can be read."""
        older = FileTable(None)
        try:
            self._begin_anew(older, 0, int(state["revision"]), below=below)
            with older.read() as view:
                found = view.state()
        except (NotFound, Damaged):
            return None
        finally:
            older.close()
        return found.get(DIGEST) == state.get(DIGEST) if found.get("revision") == state["revision"] else None

    def _take_in(self, table: FileTable, entries: Iterator[Entry]) -> None:
        while batch := list(islice(entries, _APPLY_BATCH)):
            with table.write(forgettable=True) as view:
                apply_entries(view, batch)
            if table is self._table:
                self.note_entries(batch)

    def note_entries(self, entries: Sequence[Entry]) -> None:
        """What the table has just taken in."""
        self.index.note(entries)
        self.turns.note(entry.commit for entry in entries)

    def _remember_whole(self, table: FileTable, until: int | None) -> None:
        with table.read() as view:
            known, revision = _WHOLE in view.state(), view.head()[0]
        if until is not None or known:
            return
        with table.write(forgettable=True) as view:
            if view.head()[0] >= revision:  # else another process has just begun to refill it
                view.remember(**{_WHOLE: "yes"})

    def _can_begin_anew(self, revision: int) -> bool:
        """Whether there is a log to read a table from. One that was at `revision`, which the bucket does not hold, may
        start over when gc took that entry and a later snapshot stands in for it; else it is that of another log."""
        if revision == 0:
            return self._log.first_revision() is not None
        self._check_identity()
        if self._log.first_revision() is not None and max(snapshot.revisions(self._store), default=0) > revision:
            return True
        raise Damaged(
            f"disk {self._disk_name} was at revision {revision}, which {self._store.name} does not hold",
            hint="the bucket was emptied or set back, or what is known of it below state_path is damaged: "
            f"'frostline restore {self._disk_name}' compares, --apply rebuilds",
        )

    def _check_identity(self) -> None:
        """The log has gone on without the entry that is known here, or is another one: the id tells. Where there is no
        id and no log either, the bucket is not there (an empty mount point): that is an outage."""
        known = self.remembered_identity()
        if known is None:
            return
        found = read_object(self._store)
        if found not in (None, known) or (found is None and self._log.first_revision() is None):
            raise not_there(self._disk_name, self._store.name, known, found)

    def _load_snapshot(self, view: TableWriter, until: int | None, below: int | None) -> tuple[int, str]:
        """Fill an empty table from the newest readable snapshot; the head it then has."""
        found = [] if view.head()[0] else snapshot.revisions(self._store)
        for revision in reversed([one for one in found if until is None or one <= until]):
            if below is not None and revision >= below:
                continue
            try:
                start = snapshot.read_confirmed(self._log, revision)
                view.digest = start.digest
                view.bring(start.rows)
            except (Damaged, Conflict, NotFound) as error:
                if isinstance(error, TableDamaged):
                    raise
                self._clear(view)
                self.note(f"{error.message}; an older one is used")
                continue
            view.set_head(revision, start.header.digest)
            view.remember(fence=str(revision))  # one of the entries before it may have been
            if not start.is_proved:
                view.remember(**{UNPROVED: str(revision)})
            break
        return view.head()
