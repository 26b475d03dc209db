"""What happens when a store opens: whatever a crash left is finished or undone, and a second run finds nothing to do.

The order matters: disks first (half-done transactions), then drops whose intent is written and drops of other machines,
then moves from the journal, then merges, then copies that a finished merge made superfluous, then missing copies of
`table.json` and of the marks of block ranges, then what restores brought that nobody went on with, then what drops had
kept long enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Protocol

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import Conflict, DiskUnreachable, FrostlineError, Locked, NoSpace, ReadOnly
from oplog.kinds import TableAltered
from tiering.catalog import blocks, reachability, retained_drops, tables
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.catalog.definitions import table_names
from tiering.catalog.freshness import Freshness
from tiering.catalog.retained_drops import RetainedDrop
from tiering.config.settings import Config
from tiering.journal.journal import Journal
from tiering.journal.records import TableDrop
from tiering.move import recovery as unfinished_moves
from tiering.plugins import Plug
from tiering.policy import placement
from tiering.table.schema import TableDefinition

logger = logging.getLogger(__name__)


class UnfinishedRestores(Protocol):
    """What restores from backups brought whose process ended, and nobody went on with."""

    def sweep(self, context: Context) -> list[str]:
        """Take away what nobody goes on with any more; a sentence each. What cannot go now stays for the next start."""

    def under_way(self, config: Config, now: datetime) -> dict[str, str]:
        """The tables whose restore the same command still ends, by uuid: what is there of them is no fault."""


unfinished_restores = Plug[UnfinishedRestores]("unfinished restores")


def recover(context: Context, freshness: Freshness = Freshness.EVERY_FILE) -> list[str]:
    """Finish or undo everything a crash left. Returns one sentence a thing done; an empty list the second time.

    Where there is something to do each file is looked at, and each bucket asked, whatever the `freshness`: what became
    of it, the bucket alone knows. What cannot be written, on a disk that is full or read-only, is left for
    later, with a warning in the log: what the disks show is right before and after each step, so that reading needs
    none of them.
    """
    done: list[str] = []
    with context.journal.file.rescue():
        for disk in context.disks.values():
            done += [f"disk {disk.name}: {sentence}" for sentence in _unless_full(disk.recover)]
        unseen = context.journal.unseen()
        if _is_something_left(context.journal):
            freshness = Freshness.EVERY_FILE
        context.catalog.refresh(freshness)
        if freshness is not Freshness.EVERY_FILE and _is_something_to_do(context):
            context.catalog.refresh()
        note_seen(context, unseen)
        for disk in context.disks.values():
            if as_disk(disk, LoggedDisk) is not None:  # what was found while its log was read
                done += [f"disk {disk.name}: {sentence}" for sentence in _unless_full(disk.recover)]
        reachability.compare(context)
        if context.identities is not None:
            for sentence in context.identities.mark_clones(context.actor):
                logger.warning("%s", sentence)
        for step in (
            *(_finish_drops, _follow_drops, unfinished_moves.recover),
            *(_settle_merges, _remove_outdated, _repair_definitions, _prove_ranges, unfinished_restores().sweep),
            let_drops_go,
        ):
            done += _unless_full(partial(step, context))
    if done:
        context.catalog.refresh()
    return done


def _is_something_left(journal: Journal) -> bool:
    return bool(journal.drops() or journal.work.orphaned_moves() or journal.work.orphaned_merges())


def _is_something_to_do(context: Context) -> bool:
    return bool(context.catalog.dropped()) or any(map(context.catalog.has_inactive, context.catalog.tables()))


def note_seen(context: Context, unseen: Mapping[str, int]) -> None:
    """After a look: what was put unseen into tables that are still there was put in before they go. `unseen`: what the
    journal said before the look."""
    if context.catalog.freshness > Freshness.LAST_ANSWER and unseen:
        gone = {table.definition.uuid for table in context.catalog.dropped()}
        _unless_full(partial(_forget_unseen, context, [number for uuid, number in unseen.items() if uuid not in gone]))


def _forget_unseen(context: Context, numbers: list[int]) -> list[str]:
    context.journal.seen(numbers)
    return []


def _unless_full(step: Callable[[], list[str]]) -> list[str]:
    try:
        return step()
    except (NoSpace, ReadOnly) as error:
        logger.warning("what a crash or a full disk left is finished later: %s", error.message)
        return []


def _finish_drops(context: Context) -> list[str]:
    done: list[str] = []
    for unfinished in context.journal.drops():
        decided = unfinished.drop
        if context.faults or any(disk.unreachable for disk in context.disks.values()):
            continue  # what is dropped stays hidden; it is taken away when all disks can be reached
        try:
            carried_out = tables.finish_drop(context, decided)
        except (FrostlineError, OSError) as error:  # what is dropped stays hidden; the rest of the store can be used
            logger.warning("the drop of %s is left for the next start: %s", decided.table, error)
            continue
        if isinstance(decided, TableDrop) and carried_out:
            context.journal.forget_table(decided.table_uuid)
        context.journal.finish_drop(unfinished.id)
        what = f"a {'drop table' if isinstance(decided, TableDrop) else 'drop parts'} of {decided.table}"
        done.append(f"finished {what}" if carried_out else f"gave up {what}: it was altered or brought back since")
    if done:
        context.catalog.refresh()
    return done


def _follow_drops(context: Context) -> list[str]:
    """Take from the disks of this machine the tables that somebody else dropped. What a way back took from a bucket
    stays here, hidden: who takes that back has its rows again. So does a table that rows went into since the last look:
    perhaps after the drop, and nobody has told who put them in."""
    done: list[str] = []
    unseen = context.journal.unseen()
    for gone in context.catalog.dropped():
        if gone.tombstone is None or gone.tombstone.by != "drop" or context.faults:
            continue
        if gone.definition.uuid in unseen:
            continue
        name = gone.definition.full_name
        who = f" by {gone.tombstone.actor}" if gone.tombstone.actor else ""
        try:
            tables.drop_what_is_left(context, gone, reason=f"table {name} was dropped{who}")
        except (Locked, DiskUnreachable):  # it stays hidden; the next start tries again
            continue
        except (FrostlineError, OSError) as error:
            logger.warning("what is left of the dropped table %s is left for the next start: %s", name, error)
            continue
        done.append(f"table {name} was dropped{who}: took it from {', '.join(gone.disks)}")
    return done


def _settle_merges(context: Context) -> list[str]:
    """Record how merges ended whose process is gone: a merge that committed is done, whatever it did not get to write
    down; any other changed nothing."""
    done: list[str] = []
    for record in context.journal.work.orphaned_merges():
        definitions = [table for table in context.catalog.tables() if table.uuid == record.table_uuid]
        if any(reachability.fault_of(context, table) is not None for table in definitions):
            continue  # whether its output is there, nobody knows
        parts = [stored.facts.name for table in definitions for stored in context.catalog.parts(table)]
        if record.output in parts:
            context.journal.work.set_merge(record.id, "done")
            continue
        context.journal.work.set_merge(record.id, "failed", error="its process ended")
        done.append(f"the merge of {record.table} into {record.output} ended with its process and changed nothing")
    return done


def _remove_outdated(context: Context) -> list[str]:
    done: list[str] = []
    for definition in reachability.whole_tables(context):
        if not context.catalog.has_inactive(definition):
            continue
        everything = context.catalog.parts(definition, include_outdated=True)
        outdated = [
            stored for stored in everything if stored.state == "outdated" and _can_be_changed(context.disk(stored.disk))
        ]
        if not outdated:
            continue
        replaced = [stored for stored in outdated if _is_replaced(context, stored, everything)]
        try:
            with context.journal.claim(definition.uuid, [stored.facts.name for stored in replaced], "recovery"):
                copying.remove_copies(context, replaced, reason="replaced by a merge")
        except Locked:  # a merge that is running in another process will do it
            continue
        done += [f"removed {old.part.name} of {definition.full_name} from {old.disk}: merged" for old in replaced]
    return done


def _is_replaced(context: Context, outdated: StoredPart, everything: list[StoredPart]) -> bool:
    """Proof before removal: an active part covers this one, was made from its rows, and is there byte for byte."""
    for stored in everything:
        if stored.state != "active" or not context.catalog.lineage.hides(stored, outdated):
            continue
        disk = context.disk(stored.disk)
        if disk.unreachable:
            return False
        try:
            _, wanted = copying.read_part(disk, stored.directory)
            return copying.is_complete(disk, stored.directory, wanted, proof=True)
        except FrostlineError:
            return False
    return False


def _can_be_changed(disk: Disk) -> bool:
    return not disk.read_only and not disk.unreachable


def begin_disks(context: Context) -> None:
    """Before something is written: disks that nobody has written to yet get the tables of their policies. A process
    that only reads begins no disk: its configured path may be a mistake."""
    context.journal.file.reserve.make(beside_bytes=context.config.limits.state_reserve_bytes)
    _unless_full(partial(_repair_definitions, context, begin=True))


def _is_fresh(context: Context, name: str) -> bool:
    return context.identities is not None and context.identities.is_fresh(name)


def _repair_definitions(context: Context, *, begin: bool = False, looked: bool = False) -> list[str]:
    done: list[str] = []
    for definition in reachability.whole_tables(context):
        if definition.policy not in context.config.policies:
            continue
        lacking = context.catalog.disks_lacking_definition(definition)
        lacking = [name for name in lacking if _can_be_changed(context.disk(name))]
        lacking = [name for name in lacking if begin or not _is_fresh(context, name)]
        is_last_answer = context.catalog.freshness is Freshness.LAST_ANSWER
        if lacking and not looked and is_last_answer:  # somebody may have dropped it since
            context.catalog.refresh()
            return _repair_definitions(context, begin=begin, looked=True)
        written = [name for name in lacking if _wrote_definition(context, definition, name)]
        if written:
            done.append(f"wrote table.json of {definition.full_name} to {', '.join(written)}")
    return done


def _prove_ranges(context: Context) -> list[str]:
    done: list[str] = []
    for definition in reachability.whole_tables(context):
        if definition.is_replicated or definition.policy not in context.config.policies:
            continue
        try:
            done += blocks.prove_own(context, definition)
        except FrostlineError as error:  # answers need no marks; the next start tries again
            logger.warning("the block ranges of %s are compared at the next start: %s", definition.full_name, error)
    return done


def _wrote_definition(context: Context, definition: TableDefinition, name: str) -> bool:
    """Write it to a disk that lacks it, with the table's name where that disk decides about names and nobody has it:
    the table may have come back on another one. False when another machine was first; the next start looks again."""
    disk = context.disk(name)
    reason = "this disk lacked the table's definition"
    name_on = disk if table_names.is_free(context, disk, definition) else None
    try:
        tables.write_definition(context, definition, kind=TableAltered(), reason=reason, disks=[name], name_on=name_on)
    except Conflict:
        disk.refresh()
        return False
    return True


def let_drops_go(context: Context) -> list[str]:
    """Remove what drops of replicated tables kept long enough; on a disk that has less room than a policy asks for, the
    oldest first, until it has that. One sentence a part."""
    replicated = [definition for definition in context.catalog.tables() if definition.is_replicated]
    if not replicated:
        return []
    seconds, now = context.config.replicas.keep_dropped_seconds, context.clock()

    def may_go(disk: Disk, kept: RetainedDrop) -> bool:
        return kept.is_over(seconds, now) or _is_crowded(context, disk)

    return retained_drops.let_go(context.disks.values(), replicated, may_go, context.actor)


def _is_crowded(context: Context, disk: Disk) -> bool:
    """Whether parts would move off the disk to make room."""
    state = context.reservations.states().get(disk.name)
    return any(
        placement.lacks_room(policy, state)
        for policy in context.config.policies.values()
        if any(disk.name in volume.disks for volume in placement.ordered_volumes(policy)[:-1])
    )
