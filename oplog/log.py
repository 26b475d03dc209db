"""The log of commits in a bucket: dense revisions, a chain of digests, one conditional PUT a commit.

The bucket arbitrates between writers: the entry of revision n+1 is put only if it is absent. `append` never decides
what a lost race means; it raises `RevisionTaken`, and the disk applies what it missed and checks its preconditions
again.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from oplog import entry
from oplog.entry import GENESIS_DIGEST, Commit
from oplog.errors import AlreadyExists, Damaged, FrostlineError, NotFound, OutcomeUnknown, UsageError
from oplog.revision import (
    OPERATIONS_PREFIX,
    SCHEMA_VERSION_KEY,
    SNAPSHOTS_PREFIX,
    commit_key,
    parse_commit_key,
    parse_snapshot_key,
)

logger = logging.getLogger(__name__)

SCHEMA_VERSION = b"2"
_FETCH_THREADS = 16
_LOST_ANSWER_ATTEMPTS = 5
_FIRST_PAGE = 1000
_BRING_BACK = (
    "bring the object back from a copy or the bucket's versioning; "
    "'frostline fsck' shows what else is wrong, 'frostline restore' which revisions can be restored"
)


class ListedEntry(Protocol):
    """What the log reads off a listing."""

    @property
    def key(self) -> str: ...


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


class UnknownLogFormat(UsageError):
    """The prefix holds a log that this version does not read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit as read from the bucket, and the digest of its bytes, which the next one holds."""

    commit: Commit
    digest: str


class OperationsLog:
    """The entries below `operations/` of one prefix. Stateless: every call asks the bucket."""

    def __init__(self, store: LogStore) -> None:
        self.store = store

    def revisions(self, after: int = 0) -> Iterator[int]:
        """The revisions above `after`, ascending and dense from the first one listed. Raises `Damaged` at a gap."""
        last: int | None = None
        for revision in self._listed(after):
            if last is not None and revision != last + 1:
                raise self._missing(last + 1)
            last = revision
            yield revision

    def _listed(self, after: int = 0) -> Iterator[int]:
        start_after = commit_key(after) if after > 0 else ""
        for item in self.store.list(OPERATIONS_PREFIX, start_after=start_after):
            revision = parse_commit_key(item.key)
            if revision is None:
                self.check_schema()
                raise Damaged(
                    f"{self.store.name}{item.key} is not a log entry", hint="move the object away if you put it there"
                )
            yield revision

    def _missing(self, revision: int) -> Damaged:
        return Damaged(
            f"log entry {self.store.name}{commit_key(revision)} is missing (revision {revision})", hint=_BRING_BACK
        )

    def first_kept(self) -> int | None:
        """The oldest entry that can be read with all that follow; None for an empty log. One or two requests.

        Single older entries, which an interrupted collection has left, do not count: a later snapshot proves that they
        were not needed. Without one they are the sign of a gap: `Damaged`. Looks at the oldest thousand.
        """
        first = last = gap = None
        for revision in islice(self._listed(), _FIRST_PAGE):
            if last is None or revision != last + 1:
                first, gap = revision, last
            last = revision
        if first is None:
            return self.first_revision()
        if gap is not None:
            snapshots = (parse_snapshot_key(item.key) for item in self.store.list(SNAPSHOTS_PREFIX))
            if not any(revision is not None and revision >= first - 1 for revision in snapshots):
                raise self._missing(gap + 1)
            logger.warning(
                "%s: entries before revision %d are passed over: that of revision %d is missing, and a later snapshot "
                "stands in for it",
                *(self.store.name, first, gap + 1),
            )
        return first

    def first_revision(self) -> int | None:
        """The oldest entry kept; None for an empty log. One or two requests. Refuses logs of another format."""
        for revision in self.revisions():
            return revision
        if self.check_schema() and next(iter(self.store.list(SNAPSHOTS_PREFIX)), None) is not None:
            raise Damaged(
                f"{self.store.name} holds snapshots but no log entry",
                hint="the objects below operations/ were deleted; restore them from a backup of the bucket",
            )
        return None

    def head(self, after: int = 0) -> int:
        """The newest revision, at least `after`; found by listing what follows it."""
        last = after
        for last in self.revisions(after):  # noqa: B007 - the last one counts
            pass
        return last

    def read(self, revision: int) -> Entry:
        """One entry. Raises `NotFound`, or `Damaged` when its content is not that of this revision."""
        key = commit_key(revision)
        data = self.store.get(key)
        commit = entry.decode(data, name=f"{self.store.name}{key}")
        if commit.revision != revision:
            raise Damaged(
                f"log entry {self.store.name}{key} says it is revision {commit.revision}, not {revision}: "
                "one entry was copied over another",
                hint=_BRING_BACK,
            )
        return Entry(commit, entry.digest(data))

    def confirms(self, revision: int, digest: str) -> bool:
        """Whether the bucket agrees that this is the digest of this entry: the one after it tells, else the entry
        itself. True when both are gone: then nothing can be compared. One or two requests."""
        for other in (revision + 1, revision):
            try:
                found = self.read(other)
            except (NotFound, Damaged):
                continue
            return digest == (found.digest if other == revision else found.commit.previous)
        return True

    def at(self, revisions: Sequence[int], *, digests: Mapping[int, str]) -> Iterator[Entry]:
        """These entries, in the order asked for, fetched in parallel. `digests`: those that are known of them.

        Each is checked against its digest, or what the one before it (if asked for just before) demands. Raises
        `NotFound` for one that is no longer kept, and `Damaged` naming the one that was altered.
        """
        before: Entry | None = None
        for item in self._fetch(iter(revisions), self.read):
            revision = item.commit.revision
            if item.digest != digests.get(revision, item.digest):
                raise self._altered(revision)
            if before is not None and before.commit.revision == revision - 1 and before.digest != item.commit.previous:
                raise self._broken(item, intact=revision in digests)
            before = item
            yield item

    def entries(
        self,
        after: int = 0,
        until: int | None = None,
        *,
        previous: str | None = None,
        listed: Iterator[int] | None = None,
    ) -> Iterator[Entry]:
        """The entries (after, until], fetched in parallel, each checked against the digest of the one before it.

        `previous` is the digest of entry `after`; without it the chain is checked from the first entry read. `listed`:
        what `revisions()` has left after entry `after`; saves a listing. Raises `Damaged` naming the entry that is
        missing, torn or altered, and `NotFound` when they are no longer kept.
        """
        expected = previous if previous is not None else (GENESIS_DIGEST if after == 0 else None)
        position = after
        revisions = self._until(self.revisions(after) if listed is None else listed, until)
        for item in self._fetch(revisions, self._read_listed):
            commit = item.commit
            if commit.revision != position + 1:
                raise NotFound(
                    f"{self.store.name}: revision {position + 1} is not kept any more; {commit.revision} is the first",
                    hint="choose a later revision",
                )
            if expected is not None and commit.previous != expected:
                raise self._broken(item, known=commit.revision == after + 1)
            expected, position = item.digest, commit.revision
            yield item

    def append(self, commit: Commit) -> str:
        """Put the entry if its revision is free; returns its digest. Raises `RevisionTaken`, or `OutcomeUnknown`.

        A lost answer is settled by putting the same bytes again and, when the key is taken, by comparing the writer: a
        request that arrives late finds the key taken, so it can never commit twice.
        """
        if commit.revision == 1:
            self._claim_prefix()
        key, data = commit_key(commit.revision), entry.encode(commit)
        checksum = hashlib.sha256(data).digest()
        for attempt in range(_LOST_ANSWER_ATTEMPTS):
            try:
                self.store.put_if_absent(key, data, sha256=checksum)
            except AlreadyExists as error:
                if self.read(commit.revision).commit.writer == commit.writer:
                    break
                raise RevisionTaken(f"revision {commit.revision} of {self.store.name} was committed first") from error
            except OutcomeUnknown:
                if attempt + 1 == _LOST_ANSWER_ATTEMPTS:
                    raise
                time.sleep(0.05 * 2**attempt)
            else:
                break
        return checksum.hex()

    def check_schema(self) -> bool:
        """Whether the prefix says it is ours; False when it says nothing. Raises `UnknownLogFormat`."""
        try:
            version = self.store.get(SCHEMA_VERSION_KEY).strip()
        except NotFound:
            return False
        if version == SCHEMA_VERSION:
            return True
        if version == b"1":
            raise UnknownLogFormat(
                f"{self.store.name} holds a log of format 1 (ClickHouse's), which this version cannot use as a disk",
                hint="choose another prefix for this disk; nothing was written here",
            )
        raise UnknownLogFormat(
            f"{self.store.name}{SCHEMA_VERSION_KEY} says {version[:20]!r}; this version reads log format 2",
            hint="upgrade frostline, or choose another prefix",
        )

    def _claim_prefix(self) -> None:
        try:
            self.store.put_if_absent(SCHEMA_VERSION_KEY, SCHEMA_VERSION, sha256=hashlib.sha256(SCHEMA_VERSION).digest())
        except (AlreadyExists, OutcomeUnknown):
            self.check_schema()

    @staticmethod
    def _until(revisions: Iterator[int], until: int | None) -> Iterator[int]:
        for revision in revisions:
            if until is not None and revision > until:
                return
            yield revision
            if revision == until:
                return  # what follows is not asked for, and may be gone

    def _broken(self, item: Entry, *, known: bool = False, intact: bool = False) -> Damaged:
        """What is wrong when an entry does not name the digest of the one before it. `known`: that digest was not read
        from the bucket just now. `intact`: the entry itself is proved; else the one after it tells, if there is one."""
        revision = item.commit.revision
        if revision == 1:
            return self._altered(1)
        try:
            if known:
                if self.read(revision - 1).digest != item.commit.previous:
                    return self._altered(revision)
                return Damaged(
                    f"{self.store.name} holds another log than the one known here: its entry {revision - 1} differs",
                    hint="was the bucket replaced, or put back to an older copy? 'frostline restore' shows the "
                    "difference, with --apply it takes the bucket's log for the truth",
                )
            if intact or self.read(revision + 1).commit.previous == item.digest:
                return self._altered(revision - 1)
            return self._altered(revision)
        except FrostlineError:
            return Damaged(
                f"the chain of log entries of {self.store.name} breaks at revision {revision}: "
                f"{commit_key(revision - 1)} or {commit_key(revision)} was altered",
                hint=_BRING_BACK,
            )

    def _altered(self, revision: int) -> Damaged:
        return Damaged(
            f"log entry {self.store.name}{commit_key(revision)} (revision {revision}) was altered: it is not what the "
            "entries around it say was written",
            hint=_BRING_BACK,
        )

    def _fetch(self, revisions: Iterator[int], read: Callable[[int], Entry]) -> Iterator[Entry]:
        first = list(islice(revisions, 2))
        if len(first) < 2:
            for revision in first:
                yield read(revision)
            return
        with ThreadPoolExecutor(_FETCH_THREADS, thread_name_prefix="log") as pool:
            waiting: deque[Future[Entry]] = deque(pool.submit(read, revision) for revision in first)
            try:
                for revision in revisions:
                    waiting.append(pool.submit(read, revision))
                    if len(waiting) >= 4 * _FETCH_THREADS:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _read_listed(self, revision: int) -> Entry:
        try:
            return self.read(revision)
        except NotFound as error:
            raise Damaged(
                f"log entry {self.store.name}{commit_key(revision)} was listed but cannot be read",
                hint="run the command again; if it persists, run 'frostline fsck' on the disk",
            ) from error
