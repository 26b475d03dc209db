"""Replicated tables: what the engine asks of the package that works on them, which stands above this one, and what it
does itself for a store that may have some. A store without them loads nothing of that package.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.blob_sets import BlobMarks
from disks.kinds import as_disk
from disks.object_disk.sharing.marks import LateMarks
from oplog.errors import FrostlineError, Refused, UsageError
from tiering.catalog import reachability
from tiering.catalog.context import Closeable, Context, Synced
from tiering.catalog.freshness import Freshness
from tiering.config.settings import Config
from tiering.engine import recovery
from tiering.plugins import Plug
from tiering.table.part import Part
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:  # inserts, merges and collections have modules of their own to load
    from disks.garbage.reference_sources import References
    from tiering.insert.insert import How
    from tiering.merge.output import MergeResult
    from tiering.merge.request import MergeRequest
    from tiering.move.report import MoveReport
    from tiering.policy.plan import Move, TtlDelete


class Quorum(msgspec.Struct, frozen=True):
    """How many replicas must have an insert before it is acknowledged, and how long they have for it."""

    replicas: int | None = None
    """None: the majority."""
    seconds: float = 60.0

    @classmethod
    def parse(cls, text: str, seconds: float = 60.0) -> Quorum:
        """`2`, or `auto` for the majority. Raises `UsageError`."""
        if text in ("auto", "majority"):
            return cls(None, seconds)
        if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1000):
            raise UsageError(f"not a number of replicas: {text!r}", hint="write --quorum 2, or --quorum auto")
        return cls(int(text), seconds)


class Made(msgspec.Struct, frozen=True):
    """A replica that was created."""

    definition: TableDefinition
    replica: str
    first: bool
    """Whether it is the table's first."""


class Conversion(msgspec.Struct, frozen=True):
    """What a conversion did, or would do."""

    definition: TableDefinition
    replica: str
    """Which this machine is, or was."""
    keeper_path: str
    parts: int
    """That kept their names and bytes."""
    finished: bool = False
    """It was begun before."""


class OpenMarks(Closeable, Protocol):
    """The marks of replicas in Keeper, by one session; `close` ends a session that is not the store's."""

    def of(self, logged: LoggedDisk) -> BlobMarks:
        """Those of the disk's log."""


class OpenStore(Protocol):
    """As much of an open store as it takes to follow other replicas."""

    @property
    def context(self) -> Context:
        """Its parts."""

    def refresh(self, freshness: Freshness) -> None:
        """Read the catalog again."""

    def definitions(self) -> list[TableDefinition]:
        """All tables by name."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Replication(Protocol):
    """The package that works on replicated tables. Each method takes a table that is replicated, unless it says
    otherwise; each may raise `Transient` where Keeper does not answer, and `ReadOnly` on a machine that is no replica
    of the table."""

    def create(
        self,
        context: Context,
        table: str,
        requested: TableDefinition | None,
        policy: str,
        keeper_path: str | None,
        replica: str | None,
        *,
        if_not_exists: bool,
    ) -> Made:
        """Create the table's first replica, or another one; `requested` may be None for that. Raises `Refused` for
        another structure than the table has, `AlreadyExists` for a replica that exists unless `if_not_exists`."""

    def is_announced(self, context: Context, definition: TableDefinition, *, within_seconds: float) -> bool:
        """Whether a daemon has told the other replicas, or does so by then, that this one is there."""

    def drop(self, context: Context, definition: TableDefinition) -> None:
        """Take this machine's replica away, and its parts off its disks; the last one takes the table with it. Raises
        `Refused` while it has parts that no other one has."""

    def to_replicated(
        self,
        context: Context,
        definition: TableDefinition,
        keeper_path: str | None,
        replica: str | None,
        *,
        dry_run: bool,
    ) -> Conversion:
        """Make a plain table a replicated one whose first replica is this machine; what was done, or would be."""

    def to_plain(
        self,
        context: Context,
        definition: TableDefinition,
        keeper_path: str | None,
        replica: str | None,
        *,
        dry_run: bool,
    ) -> Conversion:
        """Make the last replica of a table a plain table; what was done, or would be."""

    def alter(self, context: Context, old: TableDefinition, new: TableDefinition, reason: str) -> TableDefinition:
        """Agree upon another definition, and write it down here; the other replicas follow. Returns it. Raises
        `Locked` where it is agreed upon and could not be done here yet: the next pass does it."""

    def inserting(self, context: Context, definition: TableDefinition, quorum: Quorum | None) -> How:
        """How blocks go into the table; with a quorum they are acknowledged when so many replicas have them."""

    def read_all(self, context: Context, definition: TableDefinition) -> None:
        """Return when every insert that was acknowledged with a quorum before now is here. Raises `Transient` where one
        of them is not to be had now."""

    def drop_partition(self, context: Context, definition: TableDefinition, partition: str, reason: str) -> None:
        """Agree upon the drop of all that is in the partition now, and do it here; the other replicas follow. Raises
        `Locked` as `alter` does."""

    def attach_partition(self, context: Context, definition: TableDefinition, partition: str) -> list[tuple[str, Part]]:
        """Take in again what this machine kept of a drop of the partition; the other replicas follow. Returns the
        parts, each after the disk that had kept it."""

    def delete_due(self, context: Context, definition: TableDefinition, to_delete: Mapping[str, str]) -> list[str]:
        """Agree that these parts go, by name and reason, and drop them here; the other replicas follow. Returns those
        of which it was agreed upon."""

    def merge(self, context: Context, definition: TableDefinition, request: MergeRequest) -> list[MergeResult]:
        """Agree upon what is worth merging, or what the request says, and do it here; the other replicas follow.
        Results of what was done here."""

    def move(self, context: Context, definition: TableDefinition, moves: Sequence[Move]) -> MoveReport:
        """Make the moves to what replicas share that may be made now: one replica at a time makes them. Never raises
        for a single part."""

    def spread_identity(self, context: Context, definition: TableDefinition) -> None:
        """Note which replica this machine is on all of its disks, also on those that came since: others may go."""

    def tick(self, context: Context, definition: TableDefinition) -> list[str]:
        """One pass: take in what the other replicas did, do what is agreed upon, and agree upon merges. Sentences about
        what could not be done."""

    def serve(self, context: Context, beside: Callable[[], OpenStore] | None, pass_due: Callable[[], object]) -> str:
        """Give parts to the other replicas until the store is closed; returns the address. With a way to open the store
        once more, for another thread, also take in at once what they do. `pass_due` is called when one of them is gone
        that left undone what a pass takes over."""

    def references(self, context: Context, disk: LoggedDisk) -> References | None:
        """What replicas hold, beside their logs, of the objects of a disk that has one of several logs; None where
        nobody has written to its prefix yet."""

    def open_marks(self, config: Config, context: Context | None) -> OpenMarks:
        """The marks of replicas, by the session of the `context`, else by one of their own."""


work = Plug[Replication]("replication")
"""Loads the package when it is first asked for something."""


def inserting(context: Context, definition: TableDefinition, quorum: Quorum | None) -> How | None:
    """How blocks go into the table; None where that is this machine's own affair."""
    if definition.is_replicated:
        return work().inserting(context, definition, quorum)
    if quorum is not None:
        raise UsageError(f"{definition.full_name} has no replicas", hint="insert without --quorum")
    return None


def tick(context: Context) -> list[str]:
    """What one pass does for replicated tables: take in what the other replicas did, do what is agreed upon, and agree
    upon merges. Sentences about what could not be done."""
    problems: list[str] = []
    for definition in reachability.whole_tables(context):
        if definition.is_replicated and not context.stop.is_set():
            try:
                waiting = work().tick(context, definition)
                context.synced[definition.uuid] = Synced(context.clock(), len(waiting))
                problems += waiting
            except FrostlineError as error:
                problems.append(f"replica of {definition.full_name}: {error.message}")
    recovery.let_drops_go(context)
    return problems


def moved(context: Context, moves: Sequence[Move]) -> MoveReport:
    """Carry out moves. Of a replicated table's, those that another machine will see are made by one replica at a time.
    Never raises for a single part."""
    from tiering.move import mover
    from tiering.move.report import FailedMove, MoveReport

    tables = {table.uuid: table for table in context.catalog.tables() if table.is_replicated}
    here, shared = [], defaultdict(list)
    for move in moves:
        disks = [context.disks[name] for name in (move.source, move.target) if name in context.disks]
        marked = move.target in context.disks and _is_marked(context.disks[move.target])
        if move.table_uuid in tables and (marked or any(disk.capabilities.shared for disk in disks)):
            shared[move.table_uuid].append(move)
        else:
            here.append(move)
    report = mover.execute(context, here)
    for uuid, group in shared.items():
        try:
            report += work().move(context, tables[uuid], group)
        except FrostlineError as error:
            report += MoveReport(failed=tuple(FailedMove.of(move, error) for move in group))
    return report


def before_a_disk_goes(context: Context, definition: TableDefinition) -> None:
    """What lies beside the parts of a replicated table goes to its other disks as well: which replica this machine
    is."""
    if definition.is_replicated:
        work().spread_identity(context, definition)


def _is_marked(disk: Disk) -> bool:
    """Whether replicas share its objects by marks."""
    logged = as_disk(disk, LoggedDisk)
    return logged is not None and logged.marks is not None


def deleted(context: Context, uuid: str, deletes: Sequence[TtlDelete], problems: list[str]) -> list[TtlDelete]:
    """Have the replicas of a table agree that these parts go, and drop them here; returns those of which they did."""
    definition = context.catalog.table(uuid)
    try:
        gone = work().delete_due(context, definition, {delete.part: delete.reason.detail for delete in deletes})
    except FrostlineError as error:
        problems.append(f"parts of {definition.full_name} were not deleted: {error.message}")
        return []
    return [delete for delete in deletes if delete.part in gone]


def serve(context: Context, beside: Callable[[], OpenStore], pass_due: Callable[[], object]) -> str:
    """As `Replication.serve`, where Keeper is configured; else empty."""
    return work().serve(context, beside, pass_due) if context.config.keeper.hosts else ""


def references(context: Context, disk: Disk) -> References | None:
    """What replicas hold, beside their logs, of the objects of a disk that has one of several logs; None where that
    cannot be: without Keeper, and on a disk that has its prefix for itself."""
    logged = as_disk(disk, LoggedDisk)
    if logged is None or logged.log_name is None or not context.config.keeper.hosts:
        return None
    return work().references(context, logged)


def put_marks(disks: Iterable[Disk], config: Config, context: Context | None = None) -> Callable[[], None]:
    """From now on commits on disks whose objects several logs share are announced to the replicas that share them,
    where Keeper is configured. Nothing is opened before the first of them: the session is that of the `context`, else
    one that the returned function ends."""
    opened: list[OpenMarks] = []

    def marks_of(logged: LoggedDisk) -> BlobMarks:
        if not opened:
            opened.append(work().open_marks(config, context))
        return opened[0].of(logged)

    for disk in disks if config.keeper.hosts else ():
        logged = as_disk(disk, LoggedDisk)
        if logged is not None and logged.log_name is not None and disk.broken is None:
            logged.marks = LateMarks(partial(marks_of, logged))

    def end() -> None:
        for marks in opened:
            marks.close()

    return end


def refuse(definition: TableDefinition, operation: str, instead: str) -> None:
    """Raise `Refused` where something would go behind the backs of a table's replicas."""
    if definition.is_replicated:
        raise Refused(
            f"{operation} {definition.full_name} is not possible here: its other replicas would not know",
            hint=instead,
        )


def refuse_return(definition: TableDefinition, operation: str, instead: str) -> None:
    """Raise `Refused` where a definition of before would make a table a replica again, at a place in Keeper that others
    may have by now."""
    if definition.is_replicated:
        raise Refused(
            f"{operation} {definition.full_name} would bring back its definition as a replicated table "
            f"({definition.keeper} in Keeper), and only 'table alter' may make it one",
            hint=f"{instead}; to replicate it: frostline table alter {definition.full_name} --replicated",
        )
