"""A cached table takes in the entries of its log, and remembers beside its rows what they say of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from disks.file_table.table import TableDamaged
from disks.file_table.views import TableReader, TableWriter
from oplog import replay
from oplog.documents import Document
from oplog.entry import Commit
from oplog.errors import Damaged
from oplog.kinds import Fenced, Repaired
from oplog.log import Entry
from oplog.stamps import SeenStates, WriterState
from oplog.table_digest import agrees

UNPROVED = "unproved"
"""Remembered beside rows of a snapshot that no entry tells the files of, until one does: its revision."""
CONTRADICTED = "contradicted"
"""Remembered beside rows that an entry contradicts, wherever one begins: the revision before it."""
SEEN = "seen"
"""Remembered beside the rows: how far writers have seen disks and journals."""
_document = Document("states that were seen", SeenStates)


class Contradiction(TableDamaged):
    """The rows are not what an entry says: those of an earlier run, or of a snapshot that nothing proves."""


def is_proved(remembered: Mapping[str, str]) -> bool:
    """Whether the log proves what the table with these facts beside it is: then a commit says it of the next one."""
    return UNPROVED not in remembered and CONTRADICTED not in remembered


def apply_entries(view: TableWriter, entries: Iterable[Entry]) -> None:
    """Apply entries that follow one another; those another process has applied meanwhile are passed over.
    Raises `Contradiction` for one that says that the table after it is another one."""
    applied, _ = view.head()
    contradicted = CONTRADICTED in view.count_digest()
    assert view.digest is not None
    states: list[WriterState] = []
    for entry in entries:
        if entry.commit.revision > applied:
            replay.apply(view, entry.commit)
            if contradicted and settles(entry.commit, view):
                view.forget(CONTRADICTED)
                contradicted = False
            try:
                if not contradicted and agrees(entry.commit, view.digest):
                    view.forget(UNPROVED)
            except Damaged as error:
                raise Contradiction(error.message, hint=error.hint) from error
            view.set_head(entry.commit.revision, entry.digest)
            note_fence(view, entry.commit)
            states.append(entry.commit.state)
    note_states(view, states)


def settles(commit: Commit, view: TableWriter) -> bool:
    """Whether the commit says that earlier ones are wrong about the table, and what it is."""
    is_about = isinstance(commit.kind, Repaired) and commit.kind.contradicted is not None
    return is_about and view.digest is not None and commit.table_digest == view.digest.hex


def note_fence(view: TableWriter, commit: Commit) -> None:
    """Remember the newest fence beside the rows."""
    if isinstance(commit.kind, Fenced):
        view.remember(fence=str(commit.revision))


def note_states(view: TableWriter, states: Iterable[WriterState]) -> None:
    """Remember beside the rows how far these writers have seen disks and journals."""
    before = seen = seen_states(view)
    for state in states:
        seen = seen.beside(state)
    if seen != before:
        remember_seen(view, seen)


def remember_seen(view: TableWriter, seen: SeenStates) -> None:
    """Remember this beside the rows."""
    view.remember(**{SEEN: _document.encode(seen).decode()})


def seen_states(view: TableReader) -> SeenStates:
    """How far the entries that the table stands for have seen disks and journals, as far as that is known."""
    text = view.state().get(SEEN)
    try:
        return _document.decode(text) if text else SeenStates()
    except msgspec.DecodeError:
        return SeenStates()


def newest_fence(view: TableReader) -> int:
    """The newest fence of the entries that the table stands for, or a later revision where that is not known."""
    return int(view.state().get("fence", view.head()[0]))


_MOST_UNPROVED = 16


class UnprovedEntries:
    """Entries that a writer read one by one right behind its table, each built on the one before it: cheaper than a
    listing, and no proof that the log holds them. They are taken in together with the writer's own, once a listing has
    shown that the log ends there."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    @property
    def commits(self) -> Sequence[Commit]:
        return [entry.commit for entry in self.entries]

    @property
    def newest_fence(self) -> int:
        """Its revision; 0 without one."""
        return max((one.revision for one in self.commits if isinstance(one.kind, Fenced)), default=0)

    def head_after(self, head: tuple[int, str]) -> tuple[int, str]:
        """Revision and digest of the last entry. Those that do not begin right behind the head are forgotten."""
        if self.entries and (self.entries[0].commit.revision - 1, self.entries[0].commit.previous) != head:
            self.entries.clear()
        return (self.entries[-1].commit.revision, self.entries[-1].digest) if self.entries else head

    def take(self, entry: Entry, head: tuple[int, str]) -> bool:
        """Add it. False where it is not built on what is here, or there are too many: then a listing has to tell."""
        last = self.head_after(head)
        if (entry.commit.revision - 1, entry.commit.previous) != last or len(self.entries) == _MOST_UNPROVED:
            return False
        self.entries.append(entry)
        return True
