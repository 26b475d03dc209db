"""Replicated tables, which a package above this one works on: named here, and loaded with the first of them.

A store without replicated tables loads nothing of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from disks.base import Disk, LoggedDisk
from disks.file_table.blob_sets import BlobMarks
from disks.object_disk.sharing.marks import LateMarks
from oplog.errors import FrostlineError, Refused, UsageError
from tiering.catalog import reachability
from tiering.catalog.context import Context, Synced
from tiering.config.settings import Config
from tiering.engine import recovery
from tiering.move import mover
from tiering.move.report import FailedMove, MoveReport
from tiering.policy.plan import Move, TtlDelete
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:  # collections are rare
    from disks.garbage.reference_sources import References

MODULE = "zerocopy.execution.work"


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


def work() -> Any:
    """The module that creates, fills, merges and leaves replicated tables."""
    return import_module(MODULE)


def to_replicated(
    context: Context, definition: TableDefinition, keeper_path: str | None, replica: str | None, *, dry_run: bool
) -> Any:
    """Make a plain table a replicated one whose first replica is this machine; what was done, or would be."""
    found = import_module("zerocopy.conversion.to_replicated")
    return found.convert(context, definition, keeper_path, replica, dry_run=dry_run)


def to_plain(
    context: Context, definition: TableDefinition, keeper_path: str | None, replica: str | None, *, dry_run: bool
) -> Any:
    """Make the last replica of a table a plain table; what was done, or would be."""
    found = import_module("zerocopy.conversion.to_plain")
    return found.convert(context, definition, keeper_path, replica, dry_run=dry_run)


def inserting(context: Context, definition: TableDefinition, quorum: Quorum | None) -> Any:
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
    logged = disk.logged
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


def serve(context: Context, beside: Callable[[], object], pass_due: Callable[[], object]) -> str:
    """Give parts to the other replicas until the store is closed, and take in at once what they do, in another thread
    with the store that `beside` opens; returns the address, empty without Keeper. `pass_due` is called when one of them
    is gone that left undone what a pass takes over."""
    if not context.config.keeper.hosts:
        return ""
    return str(import_module("zerocopy.execution.following").serve(context, beside, pass_due))


def references(context: Context, disk: Disk) -> References | None:
    """What replicas hold, beside their logs, of the objects of a disk that has one of several logs; None where that
    cannot be: without Keeper, and on a disk that has its prefix for itself."""
    logged = disk.logged
    if logged is None or logged.log_name is None or not context.config.keeper.hosts:
        return None
    found: References | None = work().references(context, logged)
    return found


def put_marks(disks: Iterable[Disk], config: Config, context: Context | None = None) -> Callable[[], None]:
    """From now on commits on disks whose objects several logs share are told to the replicas that share them, where
    Keeper is configured. Nothing is opened before the first of them: the session is that of the `context`, else one
    that the returned function ends."""
    sessions: list[Any] = []

    def session() -> Any:
        if context is not None:
            return work().connections(context).keeper
        if not sessions:
            sessions.append(work().open_keeper(config.keeper))
        return sessions[0]

    def marks_of(logged: LoggedDisk) -> BlobMarks:
        found: BlobMarks = work().marks_of(session(), logged)
        return found

    for disk in disks if config.keeper.hosts else ():
        logged = disk.logged
        if logged is not None and logged.log_name is not None and disk.broken is None:
            logged.marks = LateMarks(partial(marks_of, logged))

    def end() -> None:
        for opened in sessions:
            opened.close()

    return end


def refuse(definition: TableDefinition, what: str, instead: str) -> None:
    """Raise `Refused` where something would go behind the backs of a table's replicas."""
    if definition.is_replicated:
        raise Refused(
            f"{what} {definition.full_name} is not possible here: its other replicas would not know",
            hint=instead,
        )


def refuse_return(definition: TableDefinition, what: str, instead: str) -> None:
    """Raise `Refused` where a definition of before would make a table a replica again, at a place in Keeper that others
    may have by now."""
    if definition.is_replicated:
        raise Refused(
            f"{what} {definition.full_name} would bring back its definition as a replicated table "
            f"({definition.keeper} in Keeper), and only 'table alter' may make it one",
            hint=f"{instead}; to replicate it: frostline table alter {definition.full_name} --replicated",
        )
