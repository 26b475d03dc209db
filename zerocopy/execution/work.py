"""What is done with a replicated table as a whole: inserts, syncs, merges, drops and repairs of its replica here."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import Locked, Refused, Transient
from tiering.catalog.context import Context
from tiering.catalog.freshness import Freshness
from tiering.config.units import counted
from tiering.engine.replication import Quorum
from tiering.insert.insert import How
from tiering.merge.output import MergeResult
from tiering.merge.request import MergeRequest
from tiering.move.report import MoveReport
from tiering.policy.plan import Move
from tiering.table.part import Part
from tiering.table.schema import TableDefinition
from zerocopy.execution import (
    altering,
    attaching,
    cleaning,
    dropping,
    giving_up,
    merging,
    moving,
    perform,
    recovering,
    sharing_moves,
)
from zerocopy.execution.queue import FellBehind, missing
from zerocopy.execution.steps import Done
from zerocopy.rebuilding import rebuilding
from zerocopy.rebuilding.rebuilding import Rebuilt
from zerocopy.replica import heartbeat, history, identity, lifecycle, shared
from zerocopy.replica.entries import Entry
from zerocopy.replica.inserts import staged_parts
from zerocopy.replica.inserts.inserting import ReplicatedInserting
from zerocopy.replica.lifecycle import remove
from zerocopy.replica.replica import Replica

_LOOK_SECONDS = 0.05
_NAMES_SECONDS = 300.0
"""How often a pass looks which replicas there are, to know who is waited for when Keeper is lost."""


def inserting(context: Context, definition: TableDefinition, quorum: Quorum | None = None) -> How:
    """How blocks go into the table; with a quorum they are acknowledged when so many replicas have them. Raises
    `ReadOnly` with the reason where this machine may not insert, `Transient` when Keeper does not answer."""
    replica = Replica.open(context, definition)
    settle(replica)
    return partial(ReplicatedInserting, replica=replica, quorum=quorum)


def read_all(context: Context, definition: TableDefinition) -> None:
    """Return when every insert that was acknowledged with a quorum before now is here. Raises `ReadOnly` where this
    machine is no replica, `Transient` where one of them is not to be had now."""
    done = sync_patiently(context, definition)
    replica = Replica.open(context, context.catalog.table(definition.uuid))
    lacking = next(missing(replica), None)
    if lacking is not None:
        reasons = [one.reason for one in done.postponed if one.queued.node == lacking.node]
        raise Transient(
            f"{definition.full_name} lacks {lacking.entry.brings} here, which was inserted with a quorum: "
            + (reasons[0] if reasons else "it is being fetched"),
            hint="run the query without --sequential to read what is here, or run it on another replica",
        )


def settle(replica: Replica) -> list[str]:
    """Finish or undo what dead inserts left; the catalog then shows it."""
    settled = staged_parts.settle(replica)
    if settled:
        replica.context.catalog.refresh()
    return settled


def sync(
    context: Context,
    definition: TableDefinition,
    *,
    log: Sequence[str] | None = None,
    newest: bool = True,
) -> Done:
    """Take in what the other replicas did, and do what is agreed upon, as far as it can be done now; if it is to be the
    `newest`, also what was just answered to anybody. `log`: its nodes, as the thread that follows it read them."""
    replica = Replica.open(context, definition)
    if newest and log is None:
        replica.keeper.sync(replica.table.path)
    if log is None:
        replica.kept.is_lost = None
    settle(replica)
    heartbeat.announce(replica)
    recovering.compare(replica)
    try:
        cloned, aside = recovering.recover(replica) if recovering.is_lost(replica) else ("", [])
        done = perform.execute(replica, stopped=context.stop.is_set, log=log)
    except FellBehind:
        cloned, aside = recovering.recover(replica)
        done = perform.execute(replica, stopped=context.stop.is_set)
    done.cloned, done.set_aside = cloned, aside
    if shared.disk_of(context, definition) is None:
        context.catalog.refresh_later()
    else:
        shared.refresh(context, freshness=Freshness.EVERY_FILE if log is None else Freshness.CHANGES)
        done.freed = shared.free(replica)
    return done


def sync_patiently(context: Context, definition: TableDefinition) -> Done:
    """The same, when another process of this machine that is at the queue has ended: for as long as Keeper would be
    waited for. Raises `Locked` then."""
    end = time.monotonic() + context.config.keeper.request_timeout_seconds
    while True:
        try:
            return sync(context, definition)
        except Locked:
            if context.stop.wait(_LOOK_SECONDS) or time.monotonic() > end:
                raise


def move(context: Context, definition: TableDefinition, moves: Sequence[Move]) -> MoveReport:
    """Make the moves to what replicas share that may be made now: to the shared disk as the one replica that does so at
    a time, to a disk with a log of several so that the bytes go up once."""
    replica = Replica.open(context, definition)
    marked = [move for move in moves if has_several_logs(context.disk(move.target))]
    others = [move for move in moves if move not in marked]
    report = sharing_moves.execute(replica, marked)
    return report + moving.execute(replica, others) if others else report


def spread_identity(context: Context, definition: TableDefinition) -> None:
    """Note which replica this machine is on all of its disks, also on those that came since: others may go."""
    identity.spread(context, definition)


def has_several_logs(disk: Disk) -> bool:
    """Whether the disk's log is one of several, so that others may share its objects."""
    logged = as_disk(disk, LoggedDisk)
    return logged is not None and logged.log_name is not None


def tick(context: Context, definition: TableDefinition) -> list[str]:
    """One pass: sync, and agree upon merges. Sentences about what could not be done."""
    try:
        done = sync(context, definition, newest=False)
        paused = "merges" in context.journal.overrides.paused(definition.uuid)
        definition = context.catalog.table(definition.uuid)
        replica = Replica.open(context, definition)
        is_idle = not context.config.replicas.merges and bool(replica.others())
        if not paused and not is_idle and merging.assign(replica, MergeRequest()):
            done = sync(context, definition)
        replica = Replica.open(context, definition)
        if time.monotonic() - replica.kept.named > _NAMES_SECONDS:
            history.note_names(context, definition, [replica.name, *replica.others()])
            replica.kept.named = time.monotonic()
            identity.spread(context, definition)
        if replica.kept.log_length >= 2 * cleaning.KEEP_FEWEST:
            cleaning.clean(replica)
    except Locked:  # another process of this machine is at it
        return []
    if all(one.kind != "failed" for one in done.postponed):  # another replica does for all what the others wait for
        return []
    told = [one for one in done.postponed if one.kind != "left"]
    return [f"{definition.full_name}: {one.queued.entry.brings}: {one.reason}" for one in told]


def merge(context: Context, definition: TableDefinition, request: MergeRequest) -> list[MergeResult]:
    """Agree upon what is worth merging, and do it here; the other replicas follow. Results of what was done here."""
    sync_patiently(context, definition)
    definition = context.catalog.table(definition.uuid)
    replica = Replica.open(context, definition)
    results: list[MergeResult] = []
    while merging.assign(replica, request):
        done = sync_patiently(context, definition)
        results += done.merged
        if done.postponed or request.final or context.stop.is_set():
            break
    return results


def drop_partition(context: Context, definition: TableDefinition, partition: str, reason: str) -> None:
    """Agree upon the drop of all that is in the partition now, and do it here; the other replicas follow. Raises
    `Locked` where it is agreed upon and could not be done here yet: the next pass does it."""
    entry = dropping.assign(Replica.open(context, definition), partition, reason)
    _do(context, definition, entry, f"partition {partition} of {definition.full_name} is dropped")


def attach_partition(context: Context, definition: TableDefinition, partition: str) -> list[tuple[str, Part]]:
    """Take in again what this machine kept of a drop of the partition; the other replicas follow. Returns the parts,
    each after the disk that had kept it."""
    sync_patiently(context, definition)
    definition = context.catalog.table(definition.uuid)
    again = attaching.attach(context, definition, partition, inserting(context, definition))
    return [(found.disk, found.part) for found in again]


def _do(context: Context, definition: TableDefinition, entry: Entry, operation: str) -> None:
    """Do here what is agreed upon. Raises `Locked` where it has to wait."""
    why = ""
    try:
        done = sync_patiently(context, definition)
        why = next((postponed.reason for postponed in done.postponed if postponed.queued.entry == entry), "")
    except Locked as error:
        why = error.message
    if why:
        raise Locked(
            f"{operation}: the replicas agreed upon it, and this one does it later: {why}",
            hint="the next pass does it, or 'frostline replica sync'",
        )


def alter(context: Context, old: TableDefinition, new: TableDefinition, reason: str) -> TableDefinition:
    """Agree upon another definition, and write it down here; the other replicas follow. Returns it. Raises `Locked`
    where it is agreed upon and could not be done here yet: the next pass does it."""
    entry = altering.assign(Replica.open(context, old), old, new, reason)
    _do(context, old, entry, f"table {old.full_name} is altered")
    return context.catalog.table(old.uuid)


def delete_due(context: Context, definition: TableDefinition, to_delete: Mapping[str, str]) -> list[str]:
    """Agree that these parts go, by name and reason, and drop them here; the other replicas follow. Returns those of
    which it was agreed upon."""
    gone = dropping.assign_due(Replica.open(context, definition), to_delete)
    if gone:
        with suppress(Locked):  # another process of this machine is at the queue: it, or the next pass, does it
            sync_patiently(context, definition)
    return gone


def is_announced(context: Context, definition: TableDefinition, *, within_seconds: float) -> bool:
    """Whether a daemon has told the other replicas, or does so by then, that this one is there."""
    return heartbeat.is_announced(Replica.open(context, definition), within_seconds=within_seconds)


def check_dead(context: Context, definition: TableDefinition, name: str) -> None:
    """Raise what `drop_dead` raises before it looks at parts."""
    lifecycle.check_dead(Replica.open(context, definition), name)


def drop_dead(context: Context, definition: TableDefinition, name: str, *, give_up: bool = False) -> list[str]:
    """Take the nodes of a replica away whose machine is gone for good. Parts that it alone had are given up; returns
    them. Raises `Refused` for one that is active, for this machine's own, and for one that has such parts, unless
    `give_up` says that they are lost."""
    own = Replica.open(context, definition)
    lifecycle.check_dead(own, name)
    own.keeper.sync(own.table.path)
    gone = giving_up.lost(own, without=name)
    if gone and not give_up:
        raise Refused(
            f"{counted(len(gone), 'part')} {'is' if len(gone) == 1 else 'are'} on replica {name} alone, "
            f"the first is {gone[0]}",
            hint="start its daemon, and the others fetch them; if its disks are lost: --give-up-parts, "
            "then insert those rows again",
        )
    if gone:
        giving_up.assign(own, gone, f"lost with replica {name}", without=name)
    remove(own.keeper, own.table, name)
    if gone:
        with suppress(Locked):
            sync_patiently(context, definition)
    return list(map(str, gone))


class ReplicaRestored(msgspec.Struct, frozen=True):
    """What a restore did."""

    done: Done
    gone: list[str]
    """The parts that no replica has."""
    rebuilt: Rebuilt | None = None
    """What was put back into Keeper, where it had lost it."""


def restore(
    context: Context,
    definition: TableDefinition,
    *,
    give_up: bool = False,
    without: Collection[str] = (),
    from_parts: bool = False,
) -> ReplicaRestored:
    """Make this replica what Keeper and the others say: fetch what is lacking or another one here, set aside what
    nobody knows. While there are parts that no replica has nothing is changed, unless they are given up.

    Where Keeper has lost the table, say there what is here; the table is whole when all replicas but `without` have
    done so. `from_parts`: where it was set back to an older state, too."""
    rebuilt = rebuilding.rebuild(context, definition, without=without, from_parts=from_parts)
    if rebuilt is not None:
        return ReplicaRestored(Done() if rebuilt.waits_for else sync_patiently(context, definition), [], rebuilt)
    Replica.open(context, definition).kept.is_compared = True  # all of it is compared below
    done = sync_patiently(context, definition)
    own = Replica.open(context, context.catalog.table(definition.uuid))
    here = {stored.name for stored in context.catalog.parts(own.definition, include_outdated=True)}
    alone = giving_up.lost(own, without=own.name)
    gone = [name for name in alone if name not in here and not any(one.covers(name) for one in here)]
    if gone and not give_up:
        return ReplicaRestored(done, list(map(str, gone)))
    if gone:
        giving_up.assign(own, gone, "no replica has it", without=own.name)
    if own.others():
        own.keeper.set(own.own.is_lost, b"1")
    return ReplicaRestored(sync_patiently(context, definition), list(map(str, gone)))
