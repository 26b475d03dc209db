"""The commits of an object disk, as a user asks for them: the newest, or those that touched a directory.

No question reads the whole log. The newest entries are fetched by their numbers; which ones touched a directory is
known from the index beside the cached file table. What the index lacks, after the local state was lost, is read from
the log once. Entries that gc has removed are left out; a missing or altered one raises.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from disks.file_table.commit_index import CommitIndex, Span
from oplog.errors import Damaged, Locked, NotFound
from oplog.log import Entry, OperationsLog

_T = TypeVar("_T")

_BATCH = 1000
_MOST_AT_ONCE = 10_000
"""Entries held in memory while the index is completed backwards."""
_FIRST_LOOK_BACK = 1000
"""How many entries an empty index is begun with; more are read when they are asked for."""


class Commits:
    """Answers from one disk's log and index, all of them as the log was at the first question."""

    def __init__(
        self,
        log: OperationsLog,
        index: CommitIndex,
        head: Callable[[], tuple[int, str]],
        *,
        reading: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`head`: revision and digest of the newest commit known here. `reading` gets the number of entries read to
        complete the index."""
        self._log = log
        self._index = index
        self._head = head
        self._reading = reading
        self._kept_now: tuple[int, int] | None = None

    @property
    def oldest(self) -> int:
        """The oldest revision whose entry is kept."""
        return self._kept()[1]

    def between(self, since: int = 0, until: int | None = None, limit: int | None = None) -> Iterator[Entry]:
        """Entries with since < revision <= until that are kept, ascending; the newest `limit` of them."""
        head, first = self._kept()
        last = head if until is None else min(until, head)
        since = max(since, first - 1, last - limit if limit is not None else 0)
        if since >= last:
            return iter(())
        return self._checked(list(range(since + 1, last + 1)))

    def touching(
        self, directory: str, since: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        """The same, of those that changed something at or below the directory, or took it away as a whole."""
        head, first = self._kept()
        last = head if until is None else min(until, head)
        since = max(since, first - 1)
        span = self._complete(head)
        while True:
            found = self._ask(lambda: self._index.touching(directory, since=since, until=last, limit=limit))
            if span is None or span.first <= since + 1 or (limit is not None and len(found) >= limit):
                return self._checked(found)
            span = self._look_back(span, since)

    def last_touching(self, directories: Iterable[str], since: int, until: int) -> dict[str, Entry]:
        """For each directory the newest kept entry with since < revision <= until that touched it, if there is one."""
        since = self._complete_from(since)
        newest: dict[str, int] = {}
        for directory in directories:
            found = self._index.touching(directory, since=since, until=until, limit=1)
            if found:
                newest[directory] = found[0]
        entries = self.read(newest.values())
        return {directory: entries[revision] for directory, revision in newest.items()}

    def read(self, revisions: Iterable[int]) -> dict[int, Entry]:
        """The entries of these revisions; those that are no longer kept are left out."""
        head, first = self._kept()
        wanted = sorted({revision for revision in revisions if first <= revision <= head})
        return {item.commit.revision: item for item in self._checked(wanted)}

    def definitions(self) -> list[tuple[str, int]]:
        """Directory and revision of every `table.json` that a kept commit created, ascending by revision."""
        since = self._complete_from(0)
        return self._ask(lambda: self._index.definitions(since=since))

    def directories(self, prefix: str) -> list[str]:
        """The directories whose path begins so, and that a kept commit touched. Asks the store for nothing once the
        notes go back as far as the log does."""
        span, known = self._index.span(), self._head()[0]
        if not known:
            return []
        if span is None or span.last < known or not self._ask(self._index.goes_back_whole):
            self._complete_from(0)
            self._index.note_whole()
        return self._ask(lambda: self._index.directories(prefix))

    def _checked(self, revisions: list[int]) -> Iterator[Entry]:
        """The entries, each against its noted digest; the newest one against that of the file table."""
        digests = self._ask(lambda: self._index.digests(revisions)) if len(revisions) <= _BATCH else {}
        revision, digest = self._head()
        try:
            yield from self._log.at(revisions, digests={**digests, revision: digest})
        except NotFound as error:
            raise Damaged(
                f"an entry of the log of {self._log.store.name} is missing: {error.message}",
                hint="if gc is running, run the command again; else 'frostline fsck' shows what the gap hides",
            ) from error

    def _kept(self) -> tuple[int, int]:
        """The newest revision and the oldest whose entry is kept, looked up once; (0, 1) for an empty log."""
        if self._kept_now is None:
            first = self._log.first_kept()
            known = self._head()[0]
            self._kept_now = (self._log.head(max(known, first - 1)), first) if first is not None else (0, 1)
        return self._kept_now

    def _complete_from(self, since: int) -> int:
        """Note everything after `since` that is kept and not noted yet; the revision from which on all of it is."""
        head, first = self._kept()
        since = max(since, first - 1)
        span = self._complete(head)
        while span is not None and span.first > since + 1:
            span = self._look_back(span, since)
        return since

    def _complete(self, head: int) -> Span | None:
        """Note what was committed since the last note; what is noted then. None for an empty log."""
        span = self._index.span()
        if span is not None and (span.last < self._kept()[1] - 1 or not self._is_of_this_log(span, head)):
            self._index.forget()
            span = None
        since = span.last if span is not None else max(self._kept()[1] - 1, head - _FIRST_LOOK_BACK)
        entries = self._log.entries(since, head, previous=span.digest if span is not None else None)
        while since < head and (batch := list(islice(entries, _BATCH))):
            self._index.note(batch)
            self._reading(len(batch))
        span = self._index.span()
        if head and (span is None or span.last < head):
            raise self._busy()
        return span

    def _is_of_this_log(self, span: Span, head: int) -> bool:
        """Whether the notes go with the log as it is: it may have been replaced, or put back to an older copy."""
        known, digest = self._head()
        if span.last == known:
            return span.digest == digest
        return span.last <= head and self._log.confirms(span.last, span.digest)

    def _look_back(self, span: Span, since: int) -> Span:
        """Note entries before the first noted one: as many again, so that a long way takes few turns."""
        length = min(max(_FIRST_LOOK_BACK, span.last - span.first + 1), _MOST_AT_ONCE)
        floor = max(since, span.first - 1 - length)
        entries = list(self._log.entries(floor, span.first - 1))
        if entries[-1].digest != span.previous:
            raise Damaged(
                f"the chain of log entries of {self._log.store.name} breaks before revision {span.first}",
                hint="run 'frostline fsck' on the disk",
            )
        self._index.note(entries)
        self._reading(len(entries))
        noted = self._index.span()
        if noted is None or noted.first >= span.first:
            raise self._busy()
        return noted

    def _busy(self) -> Locked:
        return Locked(f"{self._index.path} cannot be written: another process uses it", hint="run the command again")

    def _ask(self, question: Callable[[], _T]) -> _T:
        try:
            return question()
        except sqlite3.DatabaseError:
            self._index.forget()
            self._complete(self._kept()[0])
            return question()
