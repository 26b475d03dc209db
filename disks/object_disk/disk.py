"""A disk in a bucket: store x log x file table. The bucket is the truth, the table is a cache.

A transaction uploads its blobs at once and becomes visible by one conditional PUT of its log entry. Opening costs no
request; the first use lists the log past the last applied revision and applies it, or rebuilds an empty table.
"""

from __future__ import annotations

import builtins
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from disks.base import DiskCapabilities, Fingerprint, Leftover, Location
from disks.contracts.bucket_disk import BucketTransaction, LoggedDisk
from disks.file_table.commits import Commits
from disks.file_table.gone_rows import names_changed
from disks.file_table.table import FileTable, TableDamaged
from disks.file_table.views import DIGEST, StoredRow, TableWriter
from disks.host.locks import abandoned, sweep
from disks.host.moment import Moment
from disks.identity import IdentityGuard, put_object, read_object
from disks.object_disk.cache import IDENTITY, TableCache
from disks.object_disk.commit_checks import CommitChecks
from disks.object_disk.following import (
    CONTRADICTED,
    UnprovedEntries,
    apply_entries,
    is_proved,
    newest_fence,
    note_fence,
    note_states,
    seen_states,
)
from disks.object_disk.lease import Lease
from disks.object_disk.sharing.marks import Marking
from disks.object_disk.sharing.prefix import identify, log_in
from disks.object_disk.sharing.writers import WriterClaim
from disks.object_disk.table_disk import TableDisk
from disks.object_disk.transaction import ObjectTransaction, Target
from disks.stores.base import ByteRange, ObjectStore
from disks.stores.checks import WrongAnswer
from disks.stores.time_budget import last_look
from disks.stores.wrappers.named_log import whole_prefix
from oplog import earlier, replay, snapshot
from oplog.entry import Commit, encode, now
from oplog.errors import Conflict, Damaged, DiskUnreachable, FrostlineError, NotFound, Refused, Transient
from oplog.kinds import CommitKind, Fenced, Repaired
from oplog.log import Entry
from oplog.log_end import RevisionTaken, StrayEntry
from oplog.replay import FileRow
from oplog.revision import commit_key
from oplog.stamps import CommitStamp, SeenStates, WriterState

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_COMMIT_ATTEMPTS = 100
_COMMIT_SECONDS = 60.0
"""Both must be over before a writer that always comes second gives up."""
_MOST_VAIN = 10
"""So often an entry may be in the way that no listing shows; the waits between take some seconds together."""
_EARLY_SNAPSHOTS = (1, 10, 100)
"""Revisions that get a snapshot although the first regular one is far: the first entries hold the tables themselves,
and losing one of them must not make everything after it unreadable."""
_OLD_HEAD_SHARE = 4
_YOUNG_HEAD_SECONDS = 60.0
"""A head that was seen longer ago than this share of the retention (and than a minute) is looked at again before a
commit: what follows it may be collected, and its entry would be a stray one."""
_ASK_AGAIN_SECONDS = 15.0
"""How long an unreachable bucket is left in peace: a command waits for it once, not with every step."""


class ObjectDisk(TableDisk, LoggedDisk):
    """A disk whose files are immutable objects of one prefix. Several processes and machines may write at once."""

    kind = "object_disk"

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        state_path: Path,
        *,
        snapshot_every_commits: int = 1000,
        retention_seconds: int = 24 * 3600,
        read_only: bool = False,
        max_size_bytes: int | None = None,
        single_writer: bool = False,
        lease_settle_seconds: float = 2.0,
        look_seconds: float = 0.0,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        """`single_writer` takes the lease also where the store has conditional writes. `look_seconds`: how old a look
        at the bucket may be for `refresh_when_due`. `check_place` is called before the first object of a new disk, and
        raises where none may be put."""
        self.name = name
        self.store = store
        self.log = log_in(store)
        self.state_path = state_path
        self.snapshot_every_commits = snapshot_every_commits
        self.retention_seconds = retention_seconds
        self.read_only = read_only
        self.max_size_bytes = max_size_bytes
        self.look_seconds = look_seconds
        self.cache = TableCache(name, self.log, state_path, notes_looks=look_seconds > 0)
        self._offline: DiskUnreachable | None = None
        self._seen: str | None = None
        """The id that the bucket showed, until the table remembers it."""
        self._refreshed = -math.inf
        self._looked: float | None = None
        self._single_writer = single_writer
        self._check_place = check_place
        self._writer_state: Callable[[], WriterState] = WriterState
        self._lease_file = state_path / "lease.json"
        self._lease_settle_seconds = lease_settle_seconds
        self._shares = self.log_name is not None
        self._writer = WriterClaim(store, name, state_path, retention_seconds) if self._shares else None
        self._identity = IdentityGuard(
            name, store.name, self._identity_before_commit, self._write_identity, cheap=False
        )

    @property
    def capabilities(self) -> DiskCapabilities:  # type: ignore[override]
        """Sends no request: `writers` is "one" from the first commit that needed the lease."""
        one = self._single_writer or self._lease_file.exists()
        return DiskCapabilities(remote=True, writers="one" if one else "many", shared=not self._shares)

    @cached_property
    def _lease(self) -> Lease:
        return Lease(self.store, self._lease_file, settle_seconds=self._lease_settle_seconds)

    # Reading

    def _reading(self, read: Callable[[FileTable], _T]) -> _T:
        return self.cache.reading(read)

    def state_of(self, directory: str) -> Fingerprint | None:
        """As promised: by the revision of the table and the digest of its rows, where that is kept."""

        def state(table: FileTable) -> dict[str, str]:
            with table.read() as view:
                return view.state()

        remembered = self._reading(state)
        revision = remembered.get("revision", "0")
        digest = remembered.get(DIGEST, "")
        return (revision, digest) if digest.startswith(f"{revision} ") else None

    def changed_between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        """As promised: by the rows that came, and those that left and are kept."""
        heads = [(str(mark[0]), str(mark[1])) for mark in (before, after) if len(mark) == 2]
        if len(heads) != 2:
            return None

        def changed(table: FileTable) -> set[str] | None:
            with table.read() as view:
                return names_changed(view, directory, *heads)

        return self._reading(changed)

    def location(self, path: str) -> Location | None:
        self._check_reachable()
        return super().location(path)

    def _content(self, row: FileRow, byte_range: ByteRange | None = None) -> bytes:
        if row.inline is None:
            self._check_reachable()
        return super()._content(row, byte_range)

    # The table

    @property
    def file_table(self) -> FileTable:
        """The table, opened and caught up with the bucket at first use."""
        return self.cache.table

    def refresh(self) -> None:
        if self._offline is not None and time.monotonic() - self._refreshed < _ASK_AGAIN_SECONDS:
            raise self._offline.afresh()
        begun = time.time()
        try:
            self.cache.refresh()
            self._offline, self._looked = None, begun
            if self._seen is not None and self.file_table.head()[0]:  # so that nobody has to ask again
                self.cache.remember_identity(self._seen)
                self._seen = None
        finally:
            self._refreshed = time.monotonic()

    def ask_again(self) -> None:
        self._refreshed = -math.inf

    def refresh_when_due(self) -> bool:
        if self._offline is None and self.cache.looked_within(self.look_seconds):
            self._looked = max(self._looked or 0.0, time.time() - self.look_seconds)  # another process may have
            return False
        self.refresh()
        return True

    @property
    def looked(self) -> float | None:
        return self._looked

    @property
    def unreachable(self) -> str:  # type: ignore[override]
        return self._offline.message if self._offline is not None else ""

    def remember(self) -> None:
        self.cache.remember()

    def work_offline(self, error: Transient) -> None:
        if self._offline is None:
            if not self.cache.is_certain:
                raise DiskUnreachable(
                    f"disk {self.name} cannot be reached, and what it holds is not known here: {error.message}",
                    hint=error.hint or "try again when the bucket answers",
                ) from error
            self._offline = DiskUnreachable(
                f"disk {self.name} cannot be reached: {error.message}",
                hint="other disks still work; try again when the bucket answers",
            )
        self.cache.hold_as_it_is()

    def _check_reachable(self) -> None:
        if self._offline is not None:
            raise self._offline.afresh()

    def recover(self, *, only_here: bool = False) -> builtins.list[str]:
        if only_here:
            return [f"removed the scratch directory {name} of a crash" for name in sweep(self._scratch)]
        notes = self.cache.recover()
        swept = sweep(self._scratch)
        return notes + [f"removed the scratch directory {name} of a transaction that never ended" for name in swept]

    def leftovers(self) -> builtins.list[Leftover]:
        return [Leftover(path) for path in abandoned(self._scratch)]

    @property
    def _scratch(self) -> Path:
        return self.state_path / "scratch"

    def close(self) -> None:
        self.cache.close()
        self.store.close()

    def entries(self, since: int = 0, until: int | None = None, limit: int | None = None) -> Iterator[Entry]:
        self._check_reachable()
        return self.commits().between(since, until, limit)

    def commits(self, reading: Callable[[int], None] = lambda count: None) -> Commits:
        return Commits(self.log, self.cache.index, self.file_table.head, reading=reading)

    def table_at(self, revision: int, *, path: Path | None = None) -> FileTable:
        self._check_reachable()
        return self.cache.table_at(revision, path=path)

    def write_snapshot(self) -> int:
        self._check_reachable()
        with self.file_table.read() as view:
            revision, digest = view.head()
            if revision > 0:
                snapshot.write(self.store, revision, digest, view.rows())
        return revision

    def replace_cache(
        self, rows: Callable[[], Iterable[StoredRow]], revision: int, digest: str, *, table_digest: str, proved: bool
    ) -> None:
        self.cache.replace(rows, revision, digest, table_digest=table_digest, proved=proved)

    def forget_commits(self, before: int) -> None:
        self.cache.index.forget_before(before)

    def at(self, revision: int, *, briefly: bool = False) -> DiskAsOf:
        self._check_reachable()
        return DiskAsOf(self, revision, briefly=briefly)

    # Writing

    def transaction(self, kind: CommitKind, *, reason: str = "", actor: str = "") -> BucketTransaction:
        if self.read_only:
            raise Refused(f"disk {self.name} is read-only", hint="set read_only: false in its configuration")
        self._check_reachable()
        self._check_first_write()
        marks = self.marks if self._shares else None
        target = Target(self.store, self._scratch, lambda: self.revision, self._commit, self._shares, marks)
        return ObjectTransaction(target, kind, reason=reason, actor=actor)

    def _check_first_write(self) -> None:
        if self.revision == 0:
            self._check_place()

    def _commit(self, draft: Commit, basis: CommitChecks) -> int:
        """Commit the draft at the next free revision. Raises `Conflict` when it does not fit the newest table, and what
        `CommitChecks.check` raises."""
        draft = msgspec.structs.replace(draft, state=self._writer_state())  # asks other disks: with no lock held
        with self.cache.lock:
            self.cache.remember()
            table = self.file_table
            if self.cache.end_seen.age_seconds > max(self.retention_seconds / _OLD_HEAD_SHARE, _YOUNG_HEAD_SECONDS):
                self.cache.catch_up(table)
            self._begin_log(table, basis)
            began, unproved, vain = Moment(), UnprovedEntries(), 0
            for lost in count():
                if lost >= _COMMIT_ATTEMPTS and began.age_seconds >= _COMMIT_SECONDS:
                    raise Conflict(
                        f"disk {self.name}: {lost} other writers came first, one after the other",
                        hint="run the command again; fewer writers at a time help",
                    )
                self.cache.turns.pause(vain)
                self._wait_for_turn(table, unproved)
                before = self._check_basis(table, basis, unproved)
                try:
                    with table.write() as view:
                        if view.head() != before:
                            continue  # another process of this machine committed: look again
                        entry = self._append(view, draft, unproved, basis.marking)
                except (RevisionTaken, Conflict) as error:
                    if isinstance(error, StrayEntry):
                        self.cache.note(f"{error.message}; it was committed again")
                    elif isinstance(error, RevisionTaken) and self._take(table, unproved, error.winner):
                        continue  # at once: who waits is behind again, and the others win without end
                    told = not unproved.entries
                    self._prove(table, unproved, getattr(error, "winner", None))
                    moved = table.head() != before
                    if isinstance(error, Conflict) and told and not moved:
                        raise
                    vain = 0 if moved else vain + 1
                    if vain == _MOST_VAIN:
                        raise WrongAnswer(
                            f"disk {self.name}: log entry {before[0] + 1} of {self.store.name} is there, and its "
                            "listings do not show it",
                            hint="run the command again; 'frostline doctor' tests the store",
                        ) from error
                    continue
                self.cache.note_entries([*unproved.entries, entry])
                self.cache.end_seen = Moment()
                self._snapshot_when_due(entry.commit.revision)
                return entry.commit.revision
        raise AssertionError("unreachable")

    def _begin_log(self, table: FileTable, basis: CommitChecks) -> None:
        """Of a log that is one of several: make sure that this machine writes it. Before its first commit looks at its
        blobs, collections can see the log (docs/design.md, L8)."""
        if self._writer is None:
            return
        if table.head()[0] == 0:
            self.claim()
            basis.looked_at = -1
        self._writer.check()

    def claim(self) -> None:
        if self._writer is None:
            return
        self._check_first_write()
        with self.cache.lock, self.file_table.write():  # one process after the other: they share the lease
            self.log.check_schema()
            if self._takes_lease:
                self._lease.hold()
            self._identity.before_writing()
            self.log.claim_prefix()
            identify(whole_prefix(self.store), marks=self.marks is not None)

    @property
    def _takes_lease(self) -> bool:
        return self._single_writer or not self.store.capabilities.conditional_put

    def _wait_for_turn(self, table: FileTable, unproved: UnprovedEntries) -> None:
        """Let those go first whose turn it is, and read what they commit."""

        def look() -> None:
            try:
                found = self.log.peek(unproved.head_after(table.head())[0] + 1)
            except NotFound:
                return
            if not self._take(table, unproved, found):
                self._prove(table, unproved, found)

        self.cache.turns.wait(look)

    def _prove(self, table: FileTable, unproved: UnprovedEntries, last: Entry | None) -> None:
        """List what the log holds, and take it in; nothing of what was read is read again."""
        entries, unproved.entries = unproved.entries, []
        self.cache.catch_up(table, read=entries if last is None else [*entries, last])

    def _take(self, table: FileTable, unproved: UnprovedEntries, entry: Entry | None) -> bool:
        """Build on what was found in the place of the next entry. False where it does not fit what is known."""
        if entry is None or not unproved.take(entry, table.head()):
            return False
        self.cache.turns.note([entry.commit])
        return True

    def _check_basis(self, table: FileTable, basis: CommitChecks, unproved: UnprovedEntries) -> tuple[int, str]:
        """Check it against the table as it is and what follows; the table's head."""
        with table.read() as view:
            before, fence = view.head(), max(newest_fence(view), unproved.newest_fence)
        known = before[0]

        def between(after: int) -> Iterator[Commit]:
            if after < known:
                yield from (entry.commit for entry in self.log.entries(after, known))
            yield from (commit for commit in unproved.commits if commit.revision > after)

        basis.check(unproved.head_after(before)[0], fence, between, proved=known)
        return before

    def fence(self, announcement: str) -> int:
        return self._commit_word(
            Fenced(announcement=announcement), "fence", "a collection deletes what it has announced"
        )

    def settle(self, *, actor: str = "", dry_run: bool = False) -> int | None:
        revision = self.cache.contradicted()
        if revision is not None and not dry_run:
            reason = f"fsck: entry {revision} is wrong about the file table; the log is right"
            self._commit_word(Repaired(contradicted=revision), "repair", reason, actor)
        return revision

    def _commit_word(self, kind: CommitKind, word: str, reason: str, actor: str = "") -> int:
        """Commit what changes no file; the revision."""
        self._check_first_write()
        draft = Commit(revision=0, previous="", writer="", time=now(), kind=kind, reason=reason, actor=actor)
        return self._commit(draft, CommitChecks(self.store, word, (), None, 0))

    def identity(self) -> str | None:
        """As promised; no request where the table of this bucket remembers it: its log proves that it is the same."""
        if (remembered := self.cache.remembered_identity()) is not None:
            return remembered
        self._seen = read_object(self.store)
        return self._seen

    def watch(self, disk_id: str | None, begin: Callable[[str], None]) -> None:
        self._identity.watch(disk_id, begin)

    def stamp_commits(self, state: Callable[[], WriterState], committed: Callable[[CommitStamp], None]) -> None:
        self._writer_state = state

    def revision_at_hand(self) -> int:
        return self.cache.revision_at_hand()

    def seen(self) -> SeenStates:
        def read(table: FileTable) -> SeenStates:
            with table.read() as view:
                return seen_states(view)

        return self._reading(read)

    def _identity_before_commit(self) -> str | None:
        """Where no id is known here, the process that puts one finds out whether there is one."""
        return self.identity() if self._identity.is_known else self.cache.remembered_identity()

    def _write_identity(self) -> str:
        if self._takes_lease:  # it is held
            return read_object(self.store) or put_object(self.store)
        return put_object(self.store)

    def _append(
        self, view: TableWriter, draft: Commit, unproved: UnprovedEntries, marking: Marking | None = None
    ) -> Entry:
        """In one SQLite transaction: take in what others were read to have committed, check against the table, put the
        entry, take the change in. That the log ends with it proves the others'. Dying after the put leaves the table
        behind the log, and catching up applies the entries."""
        if unproved.entries:
            try:
                apply_entries(view, unproved.entries)
            except Damaged as error:
                raise RevisionTaken(error.message) from error  # a listing has to tell what the log holds
        revision, previous = view.head()
        writer = self.cache.turns.sign()  # of this attempt: another one's entry is not this one's
        commit = msgspec.structs.replace(
            draft, revision=revision + 1, previous=previous, writer=writer, time=now(), format=self.log.format
        )
        known = view.count_digest()
        if marking is not None:
            marking.look(view, commit.operations)
        replay.execute(view, commit)
        if marking is not None:
            marking.hold(view, commit.operations)
        settling = isinstance(commit.kind, Repaired) and commit.kind.contradicted is not None
        if view.digest is not None and (settling or is_proved(known)):
            commit = msgspec.structs.replace(commit, table_digest=view.digest.hex)
        if earlier.brings(commit.revision):
            commit = self._bringing_earlier(commit, unproved)
        leased = self._takes_lease
        if leased:
            self._lease.hold()
            self._check_last(revision, previous)
        view.remember(**{IDENTITY: self._identity.before_writing()})
        began = Moment()
        self.cache.last_look.void()
        with last_look(self._lease.check) if leased else nullcontext():
            digest = self.log.append(commit)
        self.cache.turns.took(began.age_seconds)
        if leased:
            if self.log.read(commit.revision).commit.writer != commit.writer:
                raise RevisionTaken(
                    f"revision {commit.revision} of {self.store.name} was overwritten by another writer"
                )
            self._lease.check_held(self.store.head(commit_key(commit.revision)))
        view.set_head(commit.revision, digest)
        if "fence" not in view.state():
            view.remember(fence=str(revision))  # what was named so far was looked at
        note_fence(view, commit)
        note_states(view, [commit.state])
        if settling:
            view.forget(CONTRADICTED)
        return Entry(commit, digest)

    def _bringing_earlier(self, commit: Commit, unproved: UnprovedEntries) -> Commit:
        """The commit with the texts of those before it that are at hand. Nothing is read for it."""
        texts = {entry.revision: encode(entry) for entry in unproved.commits}
        texts = self.cache.index.texts() | texts
        wanted = range(commit.revision - earlier.COMMITS + 1, commit.revision)
        if any(revision not in texts for revision in wanted):
            return commit
        brings = msgspec.structs.replace(commit, earlier=earlier.pack([texts[revision] for revision in wanted]))
        return brings if earlier.unpack(brings, name=self.store.name) else commit

    def _check_last(self, revision: int, digest: str) -> None:
        """Nobody wrote over the entry that the next one is built on. Raises `Damaged`."""
        try:
            same = revision == 0 or self.log.read(revision).digest == digest
        except NotFound:
            same = True  # collected
        if not same:
            raise Damaged(
                f"log entry {self.store.name}{commit_key(revision)} (revision {revision}) is not the one that was "
                "written: another machine, which had stood still for longer than its lease, wrote over it",
                hint=f"nothing was committed; 'frostline fsck {self.name}' and 'frostline restore {self.name}' show "
                "the difference, restore --apply accepts what the bucket's log says",
            )

    def _snapshot_when_due(self, revision: int) -> None:
        every = self.snapshot_every_commits
        if not every or (revision % every and revision not in _EARLY_SNAPSHOTS):
            return
        try:
            self.write_snapshot()
        except (FrostlineError, OSError) as error:
            # The commit stands; the next snapshot covers it.
            logger.warning("disk %s: no snapshot at revision %d: %s", self.name, revision, error)


class DiskAsOf(ObjectDisk):
    """The disk right after `revision`: read-only, in memory, over the same objects.

    Objects named by a retained revision are there: gc keeps them as long as the revision can be restored.
    """

    def __init__(self, disk: ObjectDisk, revision: int, *, briefly: bool = False) -> None:
        super().__init__(disk.name, disk.store, disk.state_path, read_only=True)
        self._replayed = partial(disk.table_at, revision)
        past = disk.cache.past_table(revision) if briefly else None
        self.cache.hold(past or self._replayed())

    def _reading(self, read: Callable[[FileTable], _T]) -> _T:
        """A past that goes back from the table of now is damaged where this is: the log still has it."""
        try:
            return read(self.file_table)
        except TableDamaged:
            self.cache.hold(self._replayed())
            return read(self.file_table)

    def refresh(self) -> None:
        return  # the past does not change

    def recover(self, *, only_here: bool = False) -> list[str]:
        return []

    def close(self) -> None:
        """Release the table; the store belongs to the disk of the present."""
        self.cache.close()
