"""Whether the log ends with an entry that was just put: what several machines on one log rely on (docs/design.md, L1 to
L4), and what the log asks of an object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from oplog.entry import Commit
from oplog.errors import FrostlineError, NotFound, OutcomeUnknown
from oplog.revision import SNAPSHOTS_PREFIX, commit_key, parse_commit_key, parse_floor_key


class Entry(msgspec.Struct, frozen=True):
    """A commit as read from the bucket, and the digest of its bytes, which the next one holds."""

    commit: Commit
    digest: str


class ListedEntry(Protocol):
    """What the log reads off a listing."""

    @property
    def key(self) -> str: ...
    @property
    def modified(self) -> datetime: ...

    @property
    def size_bytes(self) -> int: ...


class LogStore(Protocol):
    """The part of an object store that the log uses."""

    name: str

    def put_if_absent(
        self, key: str, payload: bytes, *, sha256: bytes, metadata: Mapping[str, str] | None = None
    ) -> None: ...

    def get(self, key: str) -> bytes: ...

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ListedEntry]: ...


class RevisionTaken(FrostlineError):
    """Another writer committed this revision first."""

    kind = "revision_taken"

    def __init__(self, message: str, *, winner: Entry | None = None) -> None:
        super().__init__(message)
        self.winner = winner
        """The entry that lies there, where it was read: nothing proves that it is one of the log's."""


class StrayEntry(RevisionTaken):
    """The entry was put below the end of the log, where an older one had been collected: it counts for nobody."""


def newest_floor(store: LogStore) -> ListedEntry | None:
    """What says which entries were collected; None when none ever were. One listing."""
    floors = (info for info in store.list(SNAPSHOTS_PREFIX) if parse_floor_key(info.key) is not None)
    return max(floors, key=lambda info: info.key, default=None)


def check_end(
    store: LogStore,
    revision: int,
    digest: str,
    listed: Iterator[ListedEntry],
    read: Callable[[Sequence[int]], Iterator[Entry]],
) -> None:
    """The entry just put is the last, or all that follow it were built on it. Raises `StrayEntry`, or `OutcomeUnknown`.

    `listed` begins with that entry; `read` reads those after it, which is asked only where others write too. The
    newest entry is never collected, so the last one of a listing is it (L2), and so are those that lead to it (L3). Who
    builds on an entry need not have seen the log end with it, so one that follows proves nothing by itself. A next
    entry that was built on another one does: this one is stray. Where the chain breaks later, it is a stray one only if
    it is younger than the floor above it, which is put before the first entry goes; else it may have counted. Nor does
    anything prove it where another's entry lies in its place by now: this one may have counted, and was collected.
    """
    own = next(listed, None)
    if own is not None and parse_commit_key(own.key) == revision:
        following, is_stray = [parse_commit_key(item.key) for item in listed], False
        if following == list(range(revision + 1, revision + 1 + len(following))):
            expected = digest
            try:
                for entry in read([one for one in following if one is not None]):
                    if entry.commit.previous != expected:
                        break
                    expected = entry.digest
                else:
                    return
            except NotFound:
                raise _unknown(store, revision) from None  # collected since it was listed
            is_stray = expected == digest
        if (is_stray or _is_late(store, revision, own)) and _lies_there(revision, digest, read):
            raise StrayEntry(
                f"revision {revision} of {store.name} had been collected: this machine was behind the log, and its "
                "entry is ignored"
            )
    raise _unknown(store, revision)


def _is_late(store: LogStore, revision: int, listed: ListedEntry) -> bool:
    """Whether the entry was put after the floor that covers it."""
    floor = newest_floor(store)
    return floor is not None and (parse_floor_key(floor.key) or 0) > revision and listed.modified > floor.modified


def _lies_there(revision: int, digest: str, read: Callable[[Sequence[int]], Iterator[Entry]]) -> bool:
    try:
        return [entry.digest for entry in read([revision])] == [digest]
    except NotFound:
        return False


def _unknown(store: LogStore, revision: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"log entry {store.name}{commit_key(revision)} was written and others have been collected since: it is "
        "unknown whether it counts",
        hint="check the current state before running the command again: this machine was suspended for longer than the "
        "retention, or the store's listings lag behind",
    )
