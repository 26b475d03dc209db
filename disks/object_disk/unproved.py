"""Entries that a writer read one by one right behind its table: cheaper than a listing, and no proof that the log holds
them. They are taken in together with the writer's own, once a listing has shown that the log ends there."""

from __future__ import annotations

from collections.abc import Sequence

from oplog.entry import Commit
from oplog.kinds import Fenced
from oplog.log import Entry

_MOST_ENTRIES = 16


class UnprovedEntries:
    """Entries that follow a head, each built on the one before it."""

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
        if (entry.commit.revision - 1, entry.commit.previous) != last or len(self.entries) == _MOST_ENTRIES:
            return False
        self.entries.append(entry)
        return True
