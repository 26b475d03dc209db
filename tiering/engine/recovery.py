"""What happens when a store opens: whatever a crash left is finished or undone, and a second run finds nothing to do.

The order matters: disks first (half-done transactions), then drops whose intent is written, then moves from the
journal, then merges, then copies that a finished merge made superfluous, then missing copies of `table.json`.
"""

from __future__ import annotations

import logging

from disks.base import Disk
from oplog.errors import FrostlineError, Locked
from oplog.kinds import TableAltered
from tiering.catalog import copying, reachability, tables
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.journal.records import TableDrop
from tiering.move import mover

logger = logging.getLogger(__name__)


def recover(context: Context) -> list[str]:
    """Finish or undo everything a crash left. Returns one sentence a thing done; an empty list the second time."""
    done: list[str] = []
    for disk in context.disks.values():
        done += [f"disk {disk.name}: {sentence}" for sentence in disk.recover()]
    context.catalog.refresh()
    reachability.compare(context)
    done += _finish_drops(context)
    done += mover.recover(context)
    done += _settle_merges(context)
    done += _remove_outdated(context)
    done += _repair_definitions(context)
    if done:
        context.catalog.refresh()
    return done


def _finish_drops(context: Context) -> list[str]:
    done: list[str] = []
    for unfinished in context.journal.drops():
        decided = unfinished.drop
        if context.faults or any(disk.unreachable for disk in context.disks.values()):
            continue  # what is dropped stays hidden; it is taken away when all disks can be reached
        try:
            tables.finish_drop(context, decided)
        except (FrostlineError, OSError) as error:  # what is dropped stays hidden; the rest of the store can be used
            logger.warning("the drop of %s is left for the next start: %s", decided.table, error)
            continue
        if isinstance(decided, TableDrop):
            context.journal.forget_table(decided.table_uuid)
        context.journal.finish_drop(unfinished.id)
        done.append(f"finished a {'drop table' if isinstance(decided, TableDrop) else 'drop parts'} of {decided.table}")
    if done:
        context.catalog.refresh()
    return done


def _settle_merges(context: Context) -> list[str]:
    """Record how merges ended whose process is gone: a merge that committed is done, whatever it did not get to write
    down; any other changed nothing."""
    done: list[str] = []
    for record in context.journal.work.orphaned_merges():
        definitions = [table for table in context.catalog.tables() if table.uuid == record.table_uuid]
        if any(reachability.fault_of(context, table) is not None for table in definitions):
            continue  # whether its output is there, nobody knows
        parts = [stored.part.name for table in definitions for stored in context.catalog.parts(table)]
        if record.output in parts:
            context.journal.work.set_merge(record.id, "done")
            continue
        context.journal.work.set_merge(record.id, "failed", error="its process ended")
        done.append(f"the merge of {record.table} into {record.output} ended with its process and changed nothing")
    return done


def _remove_outdated(context: Context) -> list[str]:
    done: list[str] = []
    for definition in reachability.whole_tables(context):
        everything = context.catalog.parts(definition, include_outdated=True)
        outdated = [
            stored for stored in everything if stored.state == "outdated" and _can_be_changed(context.disk(stored.disk))
        ]
        if not outdated:
            continue
        replaced = [stored for stored in outdated if _is_replaced(context, stored, everything)]
        try:
            with context.journal.claim(definition.uuid, [stored.part.name for stored in replaced], "recovery"):
                tables.remove_copies(context, replaced, reason="replaced by a merge")
        except Locked:  # a merge that is running in another process will do it
            continue
        done += [f"removed {old.part.name} of {definition.full_name} from {old.disk}: merged" for old in replaced]
    return done


def _is_replaced(context: Context, outdated: StoredPart, everything: list[StoredPart]) -> bool:
    """Proof before removal: an active part covers this one, was made from its rows, and is there byte for byte."""
    for stored in everything:
        covered = stored.name.covers(outdated.name) or outdated.part.name in stored.part.replaces
        if stored.state != "active" or not covered:
            continue
        if not stored.part.may_hold(outdated.part, window=outdated.definition.settings.deduplication_window):
            logger.warning(
                "%s of %s on %s is kept: %s covers it by name and was not made from it",
                *(outdated.part.name, outdated.definition.full_name, outdated.disk, stored.part.name),
            )
            return False
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
    """Before something is written: disks that nobody has written to yet get the tables of their policies. Whoever only
    reads begins no disk: its place may be a mistake."""
    _repair_definitions(context, begin=True)


def _is_fresh(context: Context, name: str) -> bool:
    return context.identities is not None and context.identities.is_fresh(name)


def _repair_definitions(context: Context, *, begin: bool = False) -> list[str]:
    done: list[str] = []
    for definition in reachability.whole_tables(context):
        if definition.policy not in context.config.policies:
            continue
        lacking = context.catalog.disks_lacking_definition(definition)
        lacking = [name for name in lacking if _can_be_changed(context.disk(name))]
        lacking = [name for name in lacking if begin or not _is_fresh(context, name)]
        if lacking:
            reason = "this disk lacked the table's definition"
            tables.write_definition(context, definition, kind=TableAltered(), reason=reason, disks=lacking)
            done.append(f"wrote table.json of {definition.full_name} to {', '.join(lacking)}")
    return done
