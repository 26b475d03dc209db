"""Insert: Arrow batches in, sorted parts on the right disks out.

Rows are taken in blocks of `insert_block_rows` (less when rows are wide), each sorted by partition and key and written
as one part a partition. The parts of a block that go to one disk are one transaction: there a block is in or not.

An insert is idempotent: the digest of each part's rows is remembered in the part, and a block whose digest is known
among the partition's newest `deduplication_window` is skipped and counted. When an insert fails half way, the blocks
before stay; running it again skips them and goes on.

Block numbers are taken in input order before a block is written, under a claim (`insert-from-N`), and merges keep off
ranges that reach N: a merged part never covers a block that was still on its way. Before it commits, a block claims its
digests and looks once more: of two processes of this machine that insert the same at once, the second finds it there.
Two machines cannot know; `tiering.catalog.new_parts.repeated` finds what both inserted.

Which rows make a block follows from all rows of a stream. So what shall be known again by itself, such as a file beside
others, is a stream of its own.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from disks.base import Transaction
from disks.effects import op
from disks.workers.progress import Task
from oplog.errors import Conflict, Damaged, FrostlineError, NotFound
from oplog.kinds import Inserted
from tiering.catalog import blocks
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.freshness import Freshness
from tiering.catalog.new_parts import INSERT_CLAIM, check_plain, digests_claimed, first_block_on_its_way, stage_part
from tiering.config.units import counted
from tiering.insert.row_blocks import row_blocks, row_digest
from tiering.parquet.column_ranges import column_range, combine_ranges
from tiering.parquet.encodings import Encodings, choose_encodings
from tiering.parquet.part_files import write_part_files
from tiering.parquet.sorting import sorted_partitions
from tiering.table.part import DataFile, Part, PartName
from tiering.table.schema import TableDefinition
from tiering.table.transforms import Partition, partition_values_json


class OtherInserts:
    """Whether other inserts of this machine may have brought parts since: each reserves a block number in the journal,
    under a claim, before it writes. Made before the catalog is read."""

    def __init__(self, context: Context, definition: TableDefinition) -> None:
        self._journal, self._table = context.journal, definition.uuid
        # In this order: who reserves a number after the first question is counted; who did before it and is seen by
        # neither question has committed, so that the catalog, which is read next, shows it.
        self._begin = self._journal.next_block(self._table)
        self._under_way = first_block_on_its_way(self._journal.claimed(self._table)) is not None
        self._own = 0
        self._lock = threading.Lock()

    def reserve(self, context: Context, definition: TableDefinition, floor: int) -> int:
        """The next block number of this insert."""
        with self._lock:
            number = blocks.allocate(context, definition, floor)
            self._own += 1
            return number

    def is_possible(self) -> bool:
        """False when every number reserved since the beginning is this insert's own, and nobody was at it before."""
        with self._lock:
            return self._under_way or self._journal.next_block(self._table) != self._begin + self._own


_LOOKS = 5
_FIRST_GUESS = 0.5
"""Size on disk as a share of the size in memory, until the first part tells."""


class InsertResult(msgspec.Struct, frozen=True):
    """What an insert did. `duplicates` counts parts that were there already; their rows count as `duplicate_rows`."""

    table: str
    rows: int = 0
    parts: tuple[str, ...] = ()
    duplicates: int = 0
    bytes: int = 0
    duplicate_rows: int = 0


def insert(
    context: Context,
    definition: TableDefinition,
    streams: Iterable[Iterable[pa.RecordBatch]],
    how: How | None = None,
    *,
    again: bool = False,
) -> InsertResult:
    """Insert the batches of each stream; columns are matched by name (`columns.types.cast_batch`). `how` blocks
    get their numbers and go in: default, by this machine's journal. `again`: also what is there already.

    Raises `UsageError` for data that does not fit, `NoSpace` when no disk takes a part; the message says how many rows
    of earlier blocks went in. The catalog is refreshed before, not after; a bucket is asked only when that is due, or
    when another machine inserts into the table, too. Raises `NotFound` when the table is there no more.
    """
    company = make_ready(context, definition, how)
    with context.progress.task(f"inserting into {definition.full_name}") as task:
        run = (how or Inserting)(context, definition, task, company)
        run.again = again
        made = chain.from_iterable(row_blocks(batches, definition) for batches in streams)
        try:
            with ThreadPoolExecutor(_threads(), "insert") as pool, ThreadPoolExecutor(_threads(), "write") as writers:
                _feed(run, made, pool, writers)
        except FrostlineError as error:
            done = run.result()
            if done.parts:
                kept = f"{counted(done.rows, 'row')} in {counted(len(done.parts), 'part')} went in before"
                then = "brings them once more" if again else "skips them"
                error.message += f" ({kept}; running the insert again {then})"
                error.args = (error.message,)
            raise
        run.finish()
        return run.result()


def make_ready(context: Context, definition: TableDefinition, how: object) -> OtherInserts:
    """Look at the catalog, as far as an insert has to, and note who else inserts. Raises `NotFound` when the table is
    there no more."""
    company = OtherInserts(context, definition)
    context.catalog.refresh(Freshness.LAST_ANSWER)
    is_shared = how is not None or blocks.is_shared(context, definition)
    if is_shared and context.catalog.freshness is Freshness.LAST_ANSWER:
        context.catalog.refresh()
    if all(table.uuid != definition.uuid for table in context.catalog.tables()):
        raise NotFound(
            f"No such table: {definition.full_name}", hint="it was dropped; 'frostline table list' shows those"
        )
    if context.catalog.freshness is Freshness.LAST_ANSWER:
        context.journal.note_unseen(definition.uuid)
    return company


def _threads() -> int:
    return max(2, min(os.cpu_count() or 2, 8))


def _feed(
    run: Inserting, blocks: Iterator[pa.Table], block_pool: ThreadPoolExecutor, writers: ThreadPoolExecutor
) -> None:
    """Keep as many blocks in work as there are threads, not more: memory stays bounded. A doubtful one has the table
    for itself: those before it are in then, and none after it is. Of the first blocks these come before all others."""
    waiting: deque[Future[None]] = deque()
    is_doubtful = run.doubts()

    def settle(fewer_than: int) -> None:
        while len(waiting) >= fewer_than:
            waiting.popleft().result()

    def begin(table: pa.Table) -> None:
        claimed = ExitStack()
        number = run.take_number(claimed)
        waiting.append(block_pool.submit(run.write_block, table, number, claimed, writers))

    try:
        if is_doubtful is not None:
            first = [(table, is_doubtful(table)) for table in islice(blocks, _threads())]
            for table in (table for table, is_alone in first if is_alone):
                begin(table)
                settle(1)
            blocks = chain((table for table, is_alone in first if not is_alone), blocks)
            run.rows_before = sum(table.num_rows for table, is_alone in first if is_alone)
            del first
        for table in blocks:
            is_alone = is_doubtful is not None and is_doubtful(table)
            settle(1 if is_alone else _threads())
            begin(table)
            if is_alone:
                settle(1)
            run.rows_before += table.num_rows
        settle(1)
    finally:
        # After a failure: blocks already in work finish, so that nothing runs on behind the caller's back.
        for future in waiting:
            future.exception()


class NewPart(msgspec.Struct):
    """A part that is written but not yet anywhere."""

    partition: Partition
    rows: int
    files: tuple[DataFile, ...]
    directory: Path
    disk: str
    digest: str
    """Of its rows."""
    of: Part | None = None
    """The part that a drop took away and that comes back with it."""

    @property
    def former_digest(self) -> str:
        """By which versions before 0.2 knew it: of its files."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(slots=True)
class Inserting:
    """One insert in progress; its methods run on several threads. What a table that is owned by others than this
    machine alone does differently: `begin`, `doubts`, `take_number`, `put_in` and `finish`."""

    context: Context
    definition: TableDefinition
    task: Task
    company: OtherInserts
    again: bool = field(default=False, init=False)
    """No block is one that was there before."""
    rows_before: int = field(default=0, init=False)
    """When a doubtful block goes in: the rows of all before it, which are in. 0 where that is not known."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, set[str]] = field(init=False)
    _seen: dict[str, set[str]] = field(init=False)
    """Partition -> its parts whose digests are among the known."""
    _next_block: int = field(init=False)
    _asked: set[str] = field(default_factory=set)
    _done: InsertResult = field(init=False)
    _ratio: float = _FIRST_GUESS

    def __post_init__(self) -> None:
        self._known = {}
        self._seen = {}
        self._next_block = 0
        self._done = InsertResult(self.definition.full_name)
        self.begin()

    def begin(self) -> None:
        """Find out what is there, before the first block."""
        self._known = known_digests(self.context, self.definition)
        self._next_block = blocks.first_free(self.context, self.definition)

    def doubts(self) -> Callable[[pa.Table], bool] | None:
        """What tells of a block whether it may be refused for what its rows are; None where none is."""
        return None

    def finish(self) -> None:
        """Return when what went in may be acknowledged."""

    def result(self) -> InsertResult:
        """What is done so far; parts in the order of their blocks, whichever thread was first."""
        with self._lock:
            done = self._done
            parts = sorted(done.parts, key=lambda name: (PartName.parse(name).min_block, name))
            return replace(done, parts=tuple(parts))

    def take_number(self, claimed: ExitStack) -> int:
        """The next block number; `claimed` holds what keeps merges away from it until the block is in."""
        name = f"{INSERT_CLAIM}{self._next_block}-{uuid.uuid4().hex[:12]}"
        claimed.enter_context(self.context.journal.claim(self.definition.uuid, [name], "insert"))
        number = self.company.reserve(self.context, self.definition, self._next_block)
        self._next_block = number + 1
        return number

    def write_block(self, table: pa.Table, number: int, claimed: ExitStack, writers: ThreadPoolExecutor) -> None:
        """Sort, split, write and commit one block; gives its claim and its reserved space back."""
        with claimed, ExitStack() as stack:
            # One choice for the block: cheaper than one a part, and the same for the same rows.
            encodings = choose_encodings(table, self.definition)
            pieces = sorted_partitions(table, self.definition)
            del table
            transactions: dict[str, Transaction] = {}
            futures: list[Future[NewPart]] = []
            try:
                for order, (partition, rows) in enumerate(pieces):
                    disk = stack.enter_context(self._reserved(rows, number))
                    if disk not in transactions:
                        transactions[disk] = stack.enter_context(self.begin_on(disk))
                    directory = transactions[disk].scratch() / f"{number}-{order}"
                    futures.append(writers.submit(self._write_part, partition, rows, directory, disk, encodings))
            except BaseException:
                wait(futures)  # what they write into is removed now
                raise
            del pieces
            self.put_in(_all_results(futures), transactions, number)

    def put_in(self, written: list[NewPart], transactions: dict[str, Transaction], number: int) -> None:
        """Commit what of a block is new."""
        with self._alone_with(written):
            by_disk: dict[str, list[NewPart]] = defaultdict(list)
            for new in written:
                if self._is_new(new):
                    by_disk[new.disk].append(new)
            for disk, news in by_disk.items():
                self._commit(transactions[disk], news, number)

    @contextmanager
    def _alone_with(self, written: list[NewPart]) -> Iterator[None]:
        """While it lasts nobody else on this machine commits parts of the same rows; what others committed before is
        known. Waits for who is doing so now."""
        if not self.definition.settings.deduplication_window:
            yield
            return
        blocks = [(new.partition.id, (new.digest,)) for new in written]
        with digests_claimed(self.context, self.definition, blocks):
            if self._ask_buckets({new.disk for new in written}) or self.company.is_possible():
                self._learn({new.partition.id for new in written})
            yield

    def _ask_buckets(self, disks: set[str]) -> bool:
        """Before something goes to a bucket that was not asked: what a process that died put there may be the same."""
        with self._lock:
            if self.context.catalog.freshness > Freshness.LAST_ANSWER:
                return False
            for disk in map(self.context.disk, disks - self._asked):
                disk.refresh()
            self._asked |= disks
            return any(self.context.disk(disk).capabilities.shared for disk in disks)

    def _learn(self, partitions: set[str]) -> None:
        """Remember the digests of parts that other processes brought to these partitions since this insert began."""
        with self._lock:
            for partition in partitions:
                self._known_of(partition)
        for _ in range(_LOOKS):
            self.context.catalog.refresh(Freshness.CHANGES, disks=())
            learned = [self._learn_of(partition) for partition in partitions]
            if all(learned):
                break

    def _known_of(self, partition: str) -> set[str]:
        """The digests that are known of the partition. Which parts were seen is asked first: of one that comes between,
        the digests are learned twice, and never not at all."""
        if partition not in self._seen:
            self._seen[partition] = {stored.facts.name for stored in self._parts_of(partition)}
        return self._known[partition]

    def _learn_of(self, partition: str) -> bool:
        """False when a part went away before it was read: what it became may not have been found."""
        complete = True
        for stored in self._parts_of(partition):
            with self._lock:
                if stored.facts.name in self._seen[partition]:
                    continue
            try:
                digests = stored.part.digests
            except NotFound:
                complete = False
                continue
            except Damaged:  # the catalog reports it
                continue
            with self._lock:
                self._seen[partition].add(stored.facts.name)
                self._known[partition].update(digests)
        return complete

    def _parts_of(self, partition: str) -> list[StoredPart]:
        return self.context.catalog.partition(self.definition, partition, include_outdated=True)

    def begin_on(self, disk: str) -> Transaction:
        """What brings parts of a block to the disk."""
        reason = f"insert into {self.definition.full_name}"
        return self.context.disk(disk).transaction(Inserted(), reason=reason, actor=self.context.actor)

    def _reserved(self, rows: pa.Table, number: int) -> AbstractContextManager[str]:
        """A context that gives the disk for the rows and keeps the space promised."""
        estimate = max(int(rows.nbytes * self._ratio), 1)
        context = self.context
        return context.reservations.for_insert(
            self.definition,
            estimate,
            _outline(self.definition, rows, estimate, context),
            context.clock(),
            first_turn=number,
        )

    def _write_part(
        self, partition: Partition, rows: pa.Table, directory: Path, disk: str, encodings: Encodings
    ) -> NewPart:
        with op("fs.mkdir", directory):
            directory.mkdir(parents=True)
        files = write_part_files([rows], self.definition, directory, encodings=encodings)
        digest = uuid.uuid4().hex * 2 if self.again else row_digest(rows, self.definition)
        new = NewPart(partition, rows.num_rows, files, directory, disk, digest)
        self._ratio = max(1.2 * new.size_bytes / max(rows.nbytes, 1), 0.01)
        return new

    def _is_new(self, new: NewPart) -> bool:
        """Whether no remembered block of the partition has the same rows; remembers it if so."""
        with self._lock:
            known = self._known_of(new.partition.id)
            if self.again or known.isdisjoint((new.digest, new.former_digest)):
                known.add(new.digest)
                return True
        self.count_duplicate(new)
        return False

    def _commit(self, transaction: Transaction, news: list[NewPart], number: int) -> None:
        names = [str(PartName(new.partition.id, number, number, 0)) for new in news]
        for name, new in zip(names, news, strict=True):
            stage_part(transaction, self.definition, self.described(name, new), new.directory)
        try:
            transaction.commit()
        except Conflict:
            check_plain(self.context.disk(news[0].disk), self.definition)
            raise
        self.count_in(names, news)

    def count_duplicate(self, new: NewPart) -> None:
        """Note for the result that the block was there already."""
        with self._lock:
            self._done = replace(
                self._done,
                duplicates=self._done.duplicates + 1,
                duplicate_rows=self._done.duplicate_rows + new.rows,
            )

    def count_in(self, names: list[str], news: list[NewPart]) -> None:
        """Note for the result that these parts are in."""
        with self._lock:
            for name, new in zip(names, news, strict=True):
                self._seen.setdefault(new.partition.id, set()).add(name)
        size_bytes = sum(new.size_bytes for new in news)
        rows = sum(new.rows for new in news)
        self.task.advance(size_bytes=size_bytes, items=rows)
        with self._lock:
            self._done = replace(
                self._done,
                rows=self._done.rows + rows,
                parts=(*self._done.parts, *names),
                bytes=self._done.bytes + size_bytes,
            )

    def described(self, name: str, new: NewPart) -> Part:
        before = new.of
        return Part(
            table=self.definition.uuid,
            name=name,
            rows=new.rows,
            size_bytes=new.size_bytes,
            created=self.context.clock(),
            partition_values=partition_values_json(new.partition.values),
            schema_version=self.definition.schema_version,
            files=new.files,
            columns=combine_ranges(new.files, self.definition),
            digests=(new.digest, *(before.digests if before is not None else ())),
            replaces=(before.name, *before.sources, *before.replaces) if before is not None else (),
        )


How = Callable[[Context, TableDefinition, Task, OtherInserts], Inserting]
"""How the blocks of an insert go into a table."""


def known_digests(context: Context, definition: TableDefinition) -> dict[str, set[str]]:
    """The remembered digests of each partition, the newest `deduplication_window` of them."""
    return _Remembered(context, definition)


class _Remembered(dict[str, set[str]]):
    """By partition; the parts of one are read when it is asked for, which of most is never."""

    def __init__(self, context: Context, definition: TableDefinition) -> None:
        super().__init__()
        self._context = context
        self._definition = definition

    def __missing__(self, partition: str) -> set[str]:
        window = self._definition.settings.deduplication_window
        parts = self._context.catalog.partition(self._definition, partition) if window else ()
        digests = [digest for stored in parts for digest in stored.part.digests]
        known = self[partition] = set(digests[-window:])
        return known


def _outline(definition: TableDefinition, rows: pa.Table, size_bytes: int, context: Context) -> Part | None:
    """As much of the coming part as decides which TTL rules are due; None for a table without rules."""
    if not definition.ttl:
        return None
    columns = {
        str(definition.column(name).id): column_range(rows.column(name)) for name in {r.column for r in definition.ttl}
    }
    return Part(
        table=definition.uuid,
        name=str(PartName("new", 0, 0, 0)),
        rows=rows.num_rows,
        size_bytes=size_bytes,
        created=context.clock(),
        columns=columns,
    )


def _all_results(futures: list[Future[NewPart]]) -> list[NewPart]:
    """Every result; the first error only after all of them ended, since they write into one scratch directory."""
    for future in futures:
        future.exception()
    return [future.result() for future in futures]
