"""The past of an object disk, read from its log and snapshots: the file table as it was at a revision.

Reads only. What exists is taken from an `Inventory` (one listing), so that a caller knows what its answer rests on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from itertools import zip_longest

from disks.file_table.sorted_run import SortedRun
from disks.file_table.table import FileTable
from disks.file_table.views import StoredRow, TableWriter, stored_row
from disks.object_disk.references import FUTURE_TOLERANCE, Inventory, NamesBlobs
from disks.stores.base import ObjectInfo
from oplog import replay, snapshot
from oplog.entry import GENESIS_DIGEST, Commit, Create, Link, Remove, Rename
from oplog.errors import Damaged, NotFound
from oplog.kinds import Moved
from oplog.log import Entry, OperationsLog
from oplog.replay import FileRow
from oplog.table_digest import TableDigest, agrees

logger = logging.getLogger(__name__)


class TableAsOf:
    """A file table of its own that goes forward through the log, from a snapshot or from the empty disk.

    Every entry is read once, however often it stops on the way. The snapshot's rows stay as they come, in a sorted run;
    only what the entries change is taken out of it, into a table, until somebody asks for all of it as a `table`.
    """

    def __init__(self, log: OperationsLog, start: int = 0, *, until: int | None = None, moves: bool = True) -> None:
        """The table of snapshot `start`, or the empty one; it can go on to `until`. Without `moves`, `moved_in`
        stays empty. Raises `NotFound`, `Damaged`."""
        self.start = self.revision = start
        self._log, self._settled = log, 0
        """Up to this revision entries are not compared: a later one says that they are wrong about the table."""
        self.digest = GENESIS_DIGEST
        self._run: SortedRun | None = None
        """The snapshot's rows that no entry has changed; None when they are in `_changes`."""
        self.table_digest = TableDigest()
        """Of the files at this revision."""
        self.is_proved = start == 0
        """The log says what the table is, and it is that: all entries were applied, or one of them says it."""
        if start > 0:
            found = snapshot.read_confirmed(log, start)
            self._run = SortedRun(found.rows)
            self.digest, self.table_digest, self.is_proved = found.header.digest, found.digest, found.is_proved
        self._changes = FileTable(None)
        self.named: set[str] = set()
        """Blobs that the entries gone past since the last `clear()` of this set have created."""
        self.removed: set[str] | None = None
        """Once it is a set, the blobs of the files that the entries gone past remove. A link may still name them."""
        self.balance: dict[str, int] | None = None
        """Once it is a dict, by how many files more each blob is named than before. A row that an entry touches comes
        out of the snapshot's run and counts as new; what it names was named before."""
        self.on_commit: Callable[[Commit], None] = lambda commit: None
        """Gets every entry gone past."""
        self.moved_in: set[str] = set()
        """Paths that moves from other disks have created since the start."""
        self._entries = log.entries(after=start, until=until, previous=self.digest)
        self._held: Entry | None = None
        self._moves = moves

    def advance(self, until: int | None = None, *, before: Callable[[Commit], bool] | None = None) -> None:
        """Apply entries up to a revision, or up to the first that is not `before` any more, or all."""
        if until is not None and until <= self.revision:
            return
        with self._changes.write(removed=self.removed, balance=self.balance, digest=self.table_digest) as view:
            while (entry := self._next()) is not None:
                late = before is not None and not before(entry.commit)
                if late or (until is not None and entry.commit.revision > until):
                    self._held = entry
                    return
                if self._run is not None:
                    _lift(self._run, view, entry.commit)
                replay.apply(view, entry.commit)
                self.is_proved = self._agrees(entry) or self.is_proved
                self.revision, self.digest = entry.commit.revision, entry.digest
                self.named.update(named_blobs(entry.commit))
                self.on_commit(entry.commit)
                if self._moves and isinstance(entry.commit.kind, Moved):
                    self.moved_in.update(step.path for step in entry.commit.operations if isinstance(step, Create))

    @property
    def table(self) -> FileTable:
        """The table as it is now, for every question that a table answers; it goes on with `advance`."""
        if self._run is not None:
            with self._changes.write() as view:
                view.insert(self._run.rows())
            self._run.close()
            self._run = None
        return self._changes

    def rows(self) -> Iterator[FileRow]:
        """Every file in path order."""
        if self._run is None:
            yield from self._changes.rows()
            return
        changes = self._changes.rows()
        change = next(changes, None)
        for row in self._run.rows():
            while change is not None and change.path < row.path:
                yield change
                change = next(changes, None)
            yield row
        if change is not None:
            yield change
            yield from changes

    def __iter__(self) -> Iterator[FileRow]:
        """The same; each iteration reads again."""
        return self.rows()

    def stored(self) -> Iterator[StoredRow]:
        """The same, for `replace_cache`."""
        return map(stored_row, self.rows())

    def count(self) -> int:
        """How many files. Reads none of a snapshot."""
        with self._changes.read() as view:
            return view.count() + (len(self._run) if self._run is not None else 0)

    def holds(self, rows: Iterable[FileRow]) -> bool:
        """Whether these, in path order, are its files. Reads them to their end, where a snapshot proves to be whole."""
        same = True
        for row, mine in zip_longest(rows, self.rows()):
            same = same and row == mine
        return same

    def get(self, path: str) -> FileRow | None:
        """The file of this path."""
        return self._changes.get(path) or (self._run.get(path) if self._run is not None else None)

    def blobs(self) -> Iterator[tuple[str, int]]:
        """Every object that a file is made of, with its size in bytes; in no order, one of two files twice."""
        yield from self._changes.blobs()
        if self._run is not None:
            for row in self._run.rows():
                if row.key is not None:
                    yield from row.blobs

    def keys(self, among: Collection[str] | None = None) -> set[str]:
        """The blobs that the table names now; with `among` those of them that are among these."""
        return named_in(self, among)

    def close(self) -> None:
        """Let the table go."""
        self._changes.close()
        if self._run is not None:
            self._run.close()

    def _agrees(self, entry: Entry) -> bool:
        try:
            return entry.commit.revision >= self._settled and agrees(entry.commit, self.table_digest)
        except Damaged:
            settled = self._log.settled(entry.commit.revision, entry.digest)
            if settled is None:
                raise
            self._settled = settled
            return False

    def _next(self) -> Entry | None:
        if self._held is not None:
            entry, self._held = self._held, None
            return entry
        return next(self._entries, None)


def _lift(run: SortedRun, view: TableWriter, commit: Commit) -> None:
    """Bring the rows that the commit is about from the run into the table: then it is applied to all there is."""
    lifted: list[FileRow] = []
    for operation in commit.operations:
        match operation:
            case Create(path=path):
                lifted += run.take_file(path)
            case Remove(path=path):
                lifted += run.take(path)
            case Link(source=source, target=target) | Rename(source=source, target=target):
                lifted += run.take(source)
                lifted += run.take(target)
    if lifted:
        view.bring(lifted)


def past_at(
    log: OperationsLog,
    inventory: Inventory,
    revision: int,
    *,
    until: int | None = None,
    strict: bool = False,
    moves: bool = True,
    before: int | None = None,
) -> TableAsOf:
    """The table at the revision, from the newest readable snapshot at or below it and the commits after that.

    It can be advanced to `until` (None: the head). A damaged snapshot is passed over for an older one, but raises if
    `strict`. `moves` is as for `TableAsOf`. With `before` it begins below that revision. Raises `NotFound` when the
    revision is above the head or is not kept any more.
    """
    if not 0 <= revision <= inventory.head:
        raise NotFound(f"{log.store.name} has no revision {revision}", hint=available(inventory))
    log.listed(inventory.commits)
    reach = _reach(inventory, revision)
    starts = [start for start in sorted(inventory.snapshots, reverse=True) if reach <= start <= revision]
    if before is not None:
        starts = [start for start in starts if start < before]
    problem: Damaged | None = None
    for start in [*starts, *([0] if reach == 0 else [])]:
        try:
            past = TableAsOf(log, start, until=until, moves=moves)
        except Damaged as error:
            if strict:
                raise
            logger.warning("%s; an older one is used", error.message)
            problem = error
            continue
        past.advance(revision)
        return past
    if problem is not None:
        raise problem
    if before is None and max(inventory.snapshots, default=0) < reach:
        raise Damaged(
            f"revision {revision} of {log.store.name} cannot be rebuilt: the entry of revision {reach} is missing",
            hint=available(inventory),
        )
    raise NotFound(f"revision {revision} of {log.store.name} is no longer kept", hint=available(inventory))


def contradicted_by(
    log: OperationsLog, inventory: Inventory, past: TableAsOf, *, strict: bool = False
) -> TableAsOf | None:
    """What the next older start gives at the revision of `past`, where that is another table; the caller closes it.
    Reads only where no entry tells what the table is, as those of older versions. None also when no older start is
    left. Raises as `past_at` does, with its `strict`."""
    if past.is_proved:
        return None
    try:
        older = past_at(
            log, inventory, past.revision, until=past.revision, strict=strict, moves=False, before=past.start
        )
    except NotFound:
        return None
    if older.table_digest.hex != past.table_digest.hex:
        return older
    older.close()
    return None


def at_head(log: OperationsLog, inventory: Inventory, past: TableAsOf) -> TableAsOf:
    """The newest table: `past` gone forward where the log allows it, else a new one. The caller closes both."""
    if _reach(inventory, inventory.head) <= past.revision:
        past.advance()
        return past
    newest = past_at(log, inventory, inventory.head)
    newest.advance()
    return newest


def _reach(inventory: Inventory, revision: int) -> int:
    """The lowest revision from which the commits up to `revision` are all there."""
    while revision in inventory.commits:
        revision -= 1
    return revision


def restorable(inventory: Inventory) -> list[tuple[int, int]]:
    """The ranges of revisions (first, last) that log and snapshots still give, ascending."""
    ranges: list[tuple[int, int]] = []
    for start in sorted({*inventory.snapshots, *([0] if 1 in inventory.commits else [])}):
        last = start
        while last + 1 in inventory.commits:
            last += 1
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((start, last))
    return ranges


def available(inventory: Inventory) -> str:
    """A sentence that names the revisions that can be restored."""
    ranges = restorable(inventory)
    if not ranges:
        empty = not inventory.commits and not inventory.snapshots
        return f"no revision can be restored: {'the log is empty' if empty else 'its first entries are missing'}"
    names = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    return f"revisions that can be restored: {', '.join(names)}"


def past_before(log: OperationsLog, inventory: Inventory, moment: datetime) -> TableAsOf:
    """The table as it was at the moment: before the first commit that is later (`committed_at`).

    Starts from the newest snapshot whose commit the store dates before the moment, so that the reading is short.
    Raises `NotFound` when the log begins later.
    """
    ranges = restorable(inventory)
    if not ranges:
        raise NotFound(f"{log.store.name} has no commit", hint=available(inventory))
    first, _ = ranges[-1]
    dated = [
        start
        for start, entry in inventory.snapshots.items()
        if start >= first and _dated(inventory, start, entry) + FUTURE_TOLERANCE <= moment
    ]
    start = max(dated, default=first)
    past = past_at(log, inventory, start)
    dates = _Dates(inventory, _dated(inventory, start, inventory.snapshots[start]) if start in dated else None)
    past.advance(before=lambda commit: dates.of(commit) <= moment)
    if start > 0 and past.revision == start and not dated:
        past.close()
        raise NotFound(f"{log.store.name}: the log begins after {moment.isoformat()}", hint=available(inventory))
    return past


def committed_at(inventory: Inventory, commit: Commit) -> datetime:
    """When the commit was made, as its writer says, unless its clock was ahead of the store's: then as that says."""
    entry = inventory.commits.get(commit.revision)
    if entry is not None and commit.time > entry.modified + FUTURE_TOLERANCE:
        return entry.modified
    return commit.time


class _Dates:
    """The times of commits that come in order, which only go up: one that goes back was made by a clock that was
    behind, and counts as of when the store took it in. (Of a copy of a bucket the store's dates are all late.)"""

    def __init__(self, inventory: Inventory, last: datetime | None) -> None:
        self._inventory, self._last = inventory, last

    def of(self, commit: Commit) -> datetime:
        """When the commit was made, as far as that can be told."""
        time = committed_at(self._inventory, commit)
        entry, last = self._inventory.commits.get(commit.revision), self._last
        if entry is not None and last is not None and time < last - FUTURE_TOLERANCE:
            time = entry.modified
        self._last = max(time, last or time)
        return self._last


def _dated(inventory: Inventory, revision: int, snapshot_object: ObjectInfo) -> datetime:
    """When the store took the commit in; the snapshot's own, later time once the commit has been collected."""
    commit = inventory.commits.get(revision)
    return commit.modified if commit is not None else snapshot_object.modified


def named_in(table: NamesBlobs, among: Collection[str] | None = None) -> set[str]:
    """The blobs that a table names, or those of them that are among these."""
    return {key for key, _ in table.blobs() if among is None or key in among}


def named_blobs(commit: Commit) -> set[str]:
    """The blobs that a commit names."""
    return {operation.key for operation in commit.operations if isinstance(operation, Create) and operation.key}
