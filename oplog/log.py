"""The log of commits in a bucket: dense revisions, a chain of digests, one conditional PUT a commit.

The bucket arbitrates between writers: the entry of revision n+1 is put only if it is absent. `append` never decides
what a lost race means; it raises `RevisionTaken`, and the disk applies what it missed and checks its preconditions
again.

That n+1 was absent proves nothing where old entries are collected: it may have been there. So nothing counts before a
listing has shown that the log ends with it (docs/design.md, L1 to L4). A collection keeps the newest entry, and says
which is the first it keeps before it deletes one: what lies below that floor is no entry of the log.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, pairwise
from types import MappingProxyType

from oplog import bounds, earlier, entry
from oplog.entry import GENESIS_DIGEST, Commit
from oplog.errors import (
    AlreadyExists,
    Damaged,
    FrostlineError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Transient,
    UsageError,
)
from oplog.kinds import Repaired
from oplog.log_end import Entry as Entry
from oplog.log_end import ListedEntry, LogStore, RevisionTaken, check_end, newest_floor
from oplog.mark import FormatMark
from oplog.mark import UnknownLogFormat as UnknownLogFormat
from oplog.revision import (
    OPERATIONS_PREFIX,
    SNAPSHOTS_PREFIX,
    commit_key,
    parse_commit_key,
    parse_floor_key,
    parse_snapshot_key,
)

logger = logging.getLogger(__name__)

_FETCH_THREADS = 16
_LOST_ANSWER_ATTEMPTS = 5
_FIRST_PAGE = 1000
_BRING_BACK = (
    "bring the object back from a copy or the bucket's versioning; "
    "'frostline fsck' shows what else is wrong, 'frostline restore' which revisions can be restored"
)


class OperationsLog:
    """The entries below `operations/` of one prefix. Stateless: every call asks the bucket."""

    def __init__(self, store: LogStore, *, prefix: LogStore | None = None) -> None:
        """`prefix`: where the log is one of several, all that lies below the prefix that they share."""
        self.store = store
        self.prefix = prefix
        self.format = entry.FORMAT if prefix is None else entry.NAMED_LOG_FORMAT
        """Of the entries that are added."""
        self._mark = FormatMark(store, prefix)
        self._sized = range(0)
        """Entries whose size a listing showed."""
        self._known = range(0)
        """Those that are there, as the caller knows."""

    def revisions(self, after: int = 0, until: int | None = None) -> Iterator[int]:
        """The revisions (after, until], ascending and dense; what lies before a gap below the floor is left out. Listed
        whole before the first is given, so that nothing is taken in that turns out to be none of the log's. Raises
        `Damaged` at any other gap."""
        found = list(self._until(self._listed(after), until))
        gap = _gap_in(found)
        if gap is not None and gap < (floor := self.floor()):
            logger.warning(
                "%s: entries before revision %d are skipped: that of revision %d was collected",
                *(self.store.name, floor, gap),
            )
            found = [revision for revision in found if revision >= floor]
            if not found or found[0] > floor > after:
                raise self._missing(floor)
            gap = _gap_in(found)
        for revision in found:
            if gap is not None and revision > gap:
                raise self._missing(gap)
            yield revision

    def floor(self) -> int:
        """The oldest revision whose entry the collections kept, as they said before they deleted; 0 when none did. One
        listing."""
        newest = newest_floor(self.store)
        return parse_floor_key(newest.key) or 0 if newest is not None else 0

    def _listed(self, after: int = 0) -> Iterator[int]:
        return (revision for revision, _ in self._items(after))

    def _items(self, after: int) -> Iterator[tuple[int, ListedEntry]]:
        start_after = commit_key(after) if after > 0 else ""
        for number, item in enumerate(self.store.list(OPERATIONS_PREFIX, start_after=start_after)):
            if number == 0:  # once: where the mark is gone, it would be asked for again at every entry
                self.check_schema()
            revision = parse_commit_key(item.key)
            if revision is None:
                raise Damaged(
                    f"{self.store.name}{item.key} is not a log entry", hint="move the object away if you put it there"
                )
            self._check_size(revision, item)
            self._sized = range(self._sized.start if revision == self._sized.stop else revision, revision + 1)
            yield revision, item

    def _check_size(self, revision: int, listed: ListedEntry) -> None:
        if listed.size_bytes > bounds.LARGEST_ENTRY_BYTES:
            raise Damaged(
                f"log entry {self.store.name}{listed.key} (revision {revision}) has {listed.size_bytes} bytes, more "
                "than any real one",
                hint=_BRING_BACK,
            )

    def listed(self, commits: Mapping[int, ListedEntry]) -> None:
        """Take the newest entries, as somebody else has listed them: they need not be listed again to be read up to
        there. Raises `Damaged` for one that is larger than any real one."""
        last = first = max(commits, default=0)
        while first in commits:
            self._check_size(first, commits[first])
            first -= 1
        if last:
            self.check_schema()
        self._sized = self._known = range(first + 1, last + 1)

    def _collected(self, revision: int, first: int) -> NotFound:
        return NotFound(
            f"{self.store.name}: revision {revision} is not kept any more; {first} is the first",
            hint="choose a later revision",
        )

    def _missing(self, revision: int) -> Damaged:
        return Damaged(
            f"log entry {self.store.name}{commit_key(revision)} is missing (revision {revision})", hint=_BRING_BACK
        )

    def first_kept(self) -> int | None:
        """The oldest entry that can be read with all that follow; None for an empty log. Two requests.

        Objects below the floor are not part of the log (L4). Single older entries, which an
        interrupted collection has left, do not count: a later snapshot proves that they were not needed. Without one
        they are the sign of a gap: `Damaged`. Looks at the oldest thousand.
        """
        first = last = gap = None
        for revision in islice(self._listed(), _FIRST_PAGE):
            if last is None or revision != last + 1:
                first, gap = revision, last
            last = revision
        if first is None:
            return self.first_revision()
        keys = [item.key for item in self.store.list(SNAPSHOTS_PREFIX)]
        if gap is not None:
            snapshots = map(parse_snapshot_key, keys)
            if not any(revision is not None and revision >= first - 1 for revision in snapshots):
                raise self._missing(gap + 1)
            logger.warning(
                "%s: entries before revision %d are skipped: that of revision %d is missing, and a later snapshot "
                "replaces it",
                *(self.store.name, first, gap + 1),
            )
        return max(first, *(parse_floor_key(key) or 0 for key in keys), 0)

    def first_revision(self) -> int | None:
        """The oldest entry kept; None for an empty log. One to four requests. Refuses logs of another format; raises
        `Transient` where a listing is empty and the log is not."""
        if (first := next(self._listed(), None)) is not None:
            return first
        if not self.check_schema():
            return None
        has_snapshots = next(iter(self.store.list(SNAPSHOTS_PREFIX)), None) is not None
        if has_snapshots or self._has_first_entry():
            # A first writer may have been here since that listing: entries come before the snapshots of them.
            if (first := next(self._listed(), None)) is not None:
                return first
            if not has_snapshots:
                raise Transient(
                    f"log entry {self.store.name}{commit_key(1)} is there, and a listing of the log is empty",
                    hint="listings of this store cannot be relied on now: run the command again",
                )
            raise Damaged(
                f"{self.store.name} holds snapshots but no log entry",
                hint="the objects below operations/ were deleted; restore them from a backup of the bucket",
            )
        return None

    def _has_first_entry(self) -> bool:
        try:
            self.peek(1)
        except NotFound:
            return False
        except (Damaged, UsageError):
            return True
        return True

    def head(self, after: int = 0) -> int:
        """The newest revision, at least `after`; found by listing what follows it."""
        last = after
        for last in self.revisions(after):  # noqa: B007 - the last one counts
            pass
        return last

    def read(self, revision: int) -> Entry:
        """One entry. Raises `NotFound`, or `Damaged` when its content is not that of this revision."""
        if revision not in self._sized:
            next(self._listed(revision - 1), None)  # it asks for the size
        return self._read(revision)

    def peek(self, revision: int) -> Entry:
        """What lies in the place of the entry: one request, which shows nothing of the log around it. So it may be
        none of the log's (docs/design.md, L3). Raises as `read` does."""
        with bounds.at_most(bounds.LARGEST_ENTRY_BYTES, f"{self.store.name}{commit_key(revision)}"):
            return self._read(revision)

    def _read(self, revision: int) -> Entry:
        key = commit_key(revision)
        commit, data = self._decoded(key)
        if commit.revision != revision:
            raise Damaged(
                f"log entry {self.store.name}{key} says it is revision {commit.revision}, not {revision}: "
                "one entry was copied over another",
                hint=_BRING_BACK,
            )
        return Entry(commit, entry.digest(data))

    def _decoded(self, key: str) -> tuple[Commit, bytes]:
        """No entry after the newest tells its digest. So what cannot be right is asked for again: a bit that flipped on
        the way must not be taken for what is in the bucket. What comes twice is there, and others say what is wrong."""
        name, data = f"{self.store.name}{key}", self.store.get(key)
        try:
            commit = entry.decode(data, name=name)
            if entry.is_consistent(commit):
                return commit, data
        except (Damaged, UsageError):
            pass
        second = self.store.get(key)
        commit = entry.decode(second, name=name)
        if second != data and not entry.is_consistent(commit):
            raise Transient(
                f"log entry {name} came differently each time",
                hint="something alters answers on their way; run the command again",
            )
        return commit, second

    def confirms(self, revision: int, digest: str) -> bool:
        """Whether the bucket agrees that this is the digest of this entry: the one after it tells, else the entry
        itself. When both are gone nothing can be compared: True where later ones are left, for then a collection took
        them, and False past the end of the log."""
        for other in (revision + 1, revision):
            try:
                found = self.read(other)
            except (NotFound, Damaged):
                continue
            return digest == (found.digest if other == revision else found.commit.previous)
        return next(self._listed(revision), None) is not None

    def table_digest(self, revision: int, digest: str) -> str | None:
        """What the entry of this digest says of the file table after it: empty when it says nothing, or is gone. None
        when the bucket does not agree that this is the digest of that entry. One request, more where that is in doubt.
        """
        try:
            found = self.read(revision)
            if found.digest == digest:
                return found.commit.table_digest
        except (NotFound, Damaged):
            pass
        return "" if self.confirms(revision, digest) else None

    def settled(self, revision: int, digest: str) -> int | None:
        """The revision of the later commit that says that the entry of this digest, and those up to itself, are wrong
        about the table; None when there is none. Reads up to it."""
        for later in self.entries(after=revision, previous=digest):
            kind = later.commit.kind
            if isinstance(kind, Repaired) and kind.contradicted is not None and kind.contradicted <= revision:
                return later.commit.revision
        return None

    def at(self, revisions: Sequence[int], *, digests: Mapping[int, str]) -> Iterator[Entry]:
        """These entries, in the order asked for, fetched in parallel. `digests`: those that are known of them.

        Each is checked against its digest, or what the one before it (if asked for just before) demands. Raises
        `NotFound` for one that is no longer kept, and `Damaged` naming the one that was altered.
        """
        before: Entry | None = None
        if revisions and revisions[-1] - revisions[0] < _FIRST_PAGE:
            for _ in self._until(self._listed(revisions[0] - 1), revisions[-1]):
                pass  # one request asks for all sizes
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
        read: Mapping[int, Entry] = MappingProxyType({}),
        by_copy: bool = False,
    ) -> Iterator[Entry]:
        """The entries (after, until], fetched in parallel, each checked against the digest of the one before it.
        `by_copy`: those that a later one brings along need not be fetched.

        `previous` is the digest of entry `after`; without it the chain is checked from the first entry read. `listed`:
        what `revisions()` has left after entry `after`; saves a listing. `read`: entries as they were peeked at, which
        are checked like the others. Raises `Damaged` naming the entry that is missing, torn or altered, and `NotFound`
        when they are no longer kept.
        """
        expected = previous if previous is not None else (GENESIS_DIGEST if after == 0 else None)
        position = after
        if listed is None and until is not None and after + 1 in self._known and until in self._known:
            listed = iter(range(after + 1, until + 1))
        revisions = self.revisions(after, until) if listed is None else self._until(listed, until)

        def fetch(these: Iterator[int]) -> Iterator[Entry]:
            return self._fetch(these, lambda revision: read.get(revision) or self._read_listed(revision))

        found = earlier.by_copy(revisions, fetch, name=self.store.name) if by_copy else fetch(revisions)
        for item in found:
            commit = item.commit
            if commit.revision != position + 1:
                raise self._collected(position + 1, commit.revision)
            if expected is not None and commit.previous != expected:
                if commit.revision <= self.floor():
                    raise self._collected(commit.revision, self.floor())
                raise self._broken(item, remembered=commit.revision == after + 1)
            expected, position = item.digest, commit.revision
            yield item

    def append(self, commit: Commit) -> str:
        """Put the entry if its revision is free; returns its digest once the log is proved to end with it. Raises
        `RevisionTaken`, `StrayEntry` where the log ends elsewhere, or `OutcomeUnknown`.

        A lost answer is settled by putting the same bytes again and, when the key is taken, by comparing the writer: a
        request that arrives late finds the key taken, so it can never commit twice.
        """
        if commit.revision == 1:
            self.claim_prefix()
        key, data = commit_key(commit.revision), entry.encode(commit)
        if len(data) > bounds.LARGEST_ENTRY_BYTES:
            raise Refused(
                f"a commit of {len(data)} bytes is larger than any reader takes", hint="do it in several steps"
            )
        checksum = hashlib.sha256(data).digest()
        for attempt in range(_LOST_ANSWER_ATTEMPTS):
            try:
                self.store.put_if_absent(key, data, sha256=checksum)
            except AlreadyExists as error:
                winner = self.peek(commit.revision)
                if winner.commit.writer == commit.writer:
                    if winner.digest != checksum.hex():
                        raise Damaged(
                            f"log entry {self.store.name}{key} was altered on its way to the store",
                            hint="check the network and proxies in between, then run 'frostline fsck'. No command "
                            "reported success for this entry: while it is the newest one, you may delete it",
                        ) from error
                    break
                why = f"revision {commit.revision} of {self.store.name} was committed first"
                raise RevisionTaken(why, winner=winner) from error
            except OutcomeUnknown:
                if attempt + 1 == _LOST_ANSWER_ATTEMPTS:
                    raise
                time.sleep(0.05 * 2**attempt)
            else:
                break
        listed = (item for _, item in self._items(commit.revision - 1))
        check_end(self.store, commit.revision, checksum.hex(), listed, lambda them: self._fetch(iter(them), self.read))
        return checksum.hex()

    def check_schema(self) -> bool:
        """Whether the prefix says it is ours; False when it says nothing. Raises `UnknownLogFormat`: what is there
        may mean something else, so nothing of it is used; `Transient` when it says something else each time."""
        return self._mark.check()

    def claim_prefix(self) -> None:
        """Say whose the prefix is. Raises `UnknownLogFormat` where it is not ours."""
        self._mark.claim()

    @staticmethod
    def _until(revisions: Iterator[int], until: int | None) -> Iterator[int]:
        for revision in revisions:
            if until is not None and revision > until:
                return
            yield revision
            if revision == until:
                return  # what follows is not asked for, and may be gone

    def _broken(self, entry: Entry, *, remembered: bool = False, intact: bool = False) -> Damaged:
        """What is wrong when an entry does not name the digest of the one before it. `remembered`: that digest was not
        read from the bucket just now. `intact`: the entry itself is proved; else the next entry, if any, proves it."""
        revision = entry.commit.revision
        if revision == 1:
            return self._altered(1)
        try:
            if remembered:
                if self.read(revision - 1).digest != entry.commit.previous:
                    return self._altered(revision)
                return Damaged(
                    f"{self.store.name} holds another log than the one known here: its entry {revision - 1} differs",
                    hint="was the bucket replaced, or put back to an older copy? 'frostline restore' shows the "
                    "difference, with --apply it accepts what the bucket's log says",
                )
            if intact or self.read(revision + 1).commit.previous == entry.digest:
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
            if revision < (floor := self.floor()):  # put before the first of them goes: collected since the listing
                raise self._collected(revision, floor) from error
            raise Damaged(
                f"log entry {self.store.name}{commit_key(revision)} was listed but cannot be read",
                hint="run the command again; if it persists, run 'frostline fsck' on the disk",
            ) from error


def _gap_in(revisions: Sequence[int]) -> int | None:
    """The first revision that is missing among these, which ascend; None when they are dense."""
    return next((last + 1 for last, following in pairwise(revisions) if following != last + 1), None)
