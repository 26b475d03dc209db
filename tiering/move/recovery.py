"""What a crash left of moves: those with a commit on the target are finished, the others abandoned.

With the journal lost, the target's commit says where its copy came from. A copy is removed only when the other one was
just checked; when nobody can say which is which, both stay.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from functools import partial

from disks.base import Disk
from oplog.errors import Conflict, FrostlineError, Locked, NoSpace, NotFound, ReadOnly
from oplog.kinds import Moved
from tiering.catalog import reachability
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.catalog.freshness import Freshness
from tiering.journal.records import MoveRecord
from tiering.move.report import FailedMove, MovedPart
from tiering.policy.plan import Move
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition

logger = logging.getLogger(__name__)


def recover(context: Context) -> list[str]:
    """Finish or abandon unfinished moves of processes that are gone. Returns one sentence a thing done.

    Moves whose disks cannot be read now are left for the next time, with a warning in the log.
    """
    done = context.journal.take_notices()
    _list_copies(context)
    whole = {definition.uuid for definition in reachability.whole_tables(context)}
    broken = {definition.uuid for definition in context.catalog.tables()} - whole
    for record in context.journal.work.orphaned_moves():
        if record.table_uuid in broken or any(
            context.disk(name).unreachable for name in (record.source, record.target) if name in context.disks
        ):
            continue  # whether the target has the part, only the target knows
        done += _guarded(context, record.table_uuid, record.part, partial(_settle, context, record))
    if done:
        context.catalog.refresh(disks=())
    done += _settle_duplicates(context)
    if tidied := _tidy_copies(context):
        context.catalog.refresh(disks=())
    return done + tidied


def finish_earlier(context: Context, moves: Sequence[Move]) -> tuple[list[Move], list[MovedPart | FailedMove]]:
    """Of the moves, those that have to be made; and how it went with the others, whose parts an earlier move brought to
    the target and could not take off the source: that is tried again, under the record that is there."""
    earlier: dict[tuple[str, str, str, str], list[MoveRecord]] = defaultdict(list)
    for record in context.journal.work.moves(active=True):
        if record.state == "committed":
            earlier[record.table_uuid, record.part, record.source, record.target].append(record)
    to_do: list[Move] = []
    ended: list[MovedPart | FailedMove] = []
    for move in moves:
        records = earlier.get((move.table_uuid, move.part, move.source, move.target), [])
        if not records:
            to_do.append(move)
            continue
        try:
            with context.journal.claim(move.table_uuid, [move.part], "move"):
                settled = [sentence for record in records for sentence in _settle(context, record)]
        except Locked:  # the record is that of a living process, at work just now
            settled = []
        except (FrostlineError, OSError) as error:
            ended.append(FailedMove.of(move, error, text=still_on(move.source, error)))
            continue
        if settled and not _is_on(context, move):
            ended.append(MovedPart.of(move, records[0].seconds, records[0].requests))
        else:
            to_do.append(move)
    return to_do, ended


def still_on(source: str, error: Exception) -> str:
    """What to say of a part that could not be taken off its source."""
    return f"copied, but still on {source} as well: {error}; the next start removes it"


def _is_on(context: Context, move: Move) -> bool:
    tables = (table for table in context.catalog.tables() if table.uuid == move.table_uuid)
    return any(context.disk(move.source).list(table.part_directory(move.part)) for table in tables)


def _settle(context: Context, record: MoveRecord) -> list[str]:
    record = context.journal.work.move(record.id)
    if record.state not in ("planned", "copying", "committed"):
        return []
    what = f"the move of {record.part} of {record.table} from {record.source} to {record.target}"
    definition = next((table for table in context.catalog.tables() if table.uuid == record.table_uuid), None)
    directory = definition.part_directory(record.part) if definition is not None else ""
    if definition is None or not _on_target(context, record, directory):
        if definition is not None:  # it may have been there, and gone again
            context.journal.source_copies.add([(record.table_uuid, record.part)])
        if record.state == "committed":  # dropped or moved on since; the copy on the target is not ours to miss
            return _close(context, record, f"closed {what}: the part is not on {record.target} any more")
        context.journal.work.set_move(record.id, "abandoned", error="interrupted before its commit")
        return [f"abandoned {what}: it was interrupted before its commit"]
    if record.state != "committed":
        context.journal.work.set_move(record.id, "committed")
    if record.keep_source or not _remove(context, context.disk(record.source), directory, record.target):
        context.journal.source_copies.add([(record.table_uuid, record.part)])  # kept, or somebody else took it off
    return _close(context, record, f"finished {what}")


def _close(context: Context, record: MoveRecord, sentence: str) -> list[str]:
    context.journal.work.set_move(record.id, "done")
    return [sentence]


def _on_target(context: Context, record: MoveRecord, directory: str) -> bool:
    """Whether the target holds the whole part. What is there must be what the source has, if it still has it."""
    target, source = context.disk(record.target), context.disk(record.source)
    try:
        _, wanted = copying.read_part(source, directory)
    except NotFound:
        try:
            _, wanted = copying.read_part(target, directory)
        except NotFound:
            return False
    try:
        return copying.is_complete(target, directory, wanted, proof=True)
    except Conflict:
        return False


def _settle_duplicates(context: Context) -> list[str]:
    done: list[str] = []
    for definition in reachability.whole_tables(context):
        if not context.catalog.has_inactive(definition):
            continue
        copies: dict[str, list[StoredPart]] = defaultdict(list)
        stored_parts = context.catalog.parts(definition, include_outdated=True)
        doubled = {stored.facts.name for stored in stored_parts if stored.state == "duplicate"}
        for stored in stored_parts:
            if stored.facts.name in doubled:
                copies[stored.facts.name].append(stored)
        for name, group in copies.items():
            if any(context.disk(copy.disk).unreachable for copy in group):
                continue
            if _kept_by_wish(context, definition, name):
                continue
            done += _guarded(
                context,
                definition.uuid,
                name,
                partial(_settle_copies, context, definition, group),
            )
    return done


def _settle_copies(context: Context, definition: TableDefinition, copies: list[StoredPart]) -> list[str]:
    done = []
    for copy in copies:
        if definition.is_replicated and context.disk(copy.disk).capabilities.shared:
            continue  # any replica may have moved it: what this one may take off its disks, its Keeper says, too
        origin = copying.moved_from(context.disk(copy.disk), copy)
        for other in copies:
            if origin is None or other.disk != origin[0] or other.disk == copy.disk or origin[1]:
                continue
            target = context.disk(copy.disk)
            _, wanted = copying.read_part(context.disk(other.disk), other.directory)
            if not copying.is_complete(target, copy.directory, wanted, proof=True):
                continue
            _remove(context, context.disk(other.disk), other.directory, copy.disk)
            done.append(
                f"removed {copy.part.name} of {definition.full_name} from {other.disk}: "
                f"the commit on {copy.disk} says that it moved there"
            )
    return done


def _kept_by_wish(context: Context, definition: TableDefinition, part: str) -> bool:
    """Whether the journal knows that somebody asked for the source to stay."""
    records = context.journal.work.moves(table_uuid=definition.uuid, part=part, limit=1)
    return bool(records) and records[0].keep_source


def _remove(context: Context, disk: Disk, directory: str, target: str) -> bool:
    """Take the part off the disk; whether it was there."""
    if not disk.list(directory):
        return False
    with disk.transaction(Moved(moved_to=target), reason=f"moved to {target}", actor=context.actor) as transaction:
        transaction.remove(directory)
        transaction.commit()
    return True


def _list_copies(context: Context) -> None:
    """With a journal that is new, or of an older version: list the parts here that a bucket has had, by its log. Only
    after a look at every bucket: who goes by an earlier one, as an insert does, sends no request for this either."""
    journal = context.journal.source_copies
    if context.catalog.freshness is Freshness.LAST_ANSWER or journal.are_listed():
        return
    if context.faults or any(disk.unreachable for disk in context.disks.values()):
        return
    local = {name for name in context.disks if context.catalog.copies.is_local(name)}
    tables = [
        table
        for table in context.catalog.tables()
        if context.catalog.copies.follows(table) and _has_parts_on(context, table, local)
    ]
    if not tables:
        return
    listed = copying.had_by_buckets(context.catalog, context.disks, tables)
    try:
        journal.add(listed, all_listed=True)
    except (NoSpace, ReadOnly) as error:
        logger.warning("copies of parts in buckets are listed later: %s", error.message)
    if listed:
        context.catalog.refresh(disks=())


def _has_parts_on(context: Context, definition: TableDefinition, disks: Container[str]) -> bool:
    sums = context.catalog.sums(definition)
    if sums is None:
        return any(stored.disk in disks for stored in context.catalog.parts(definition, include_outdated=True))
    return any(whole.parts for disk, whole in sums.items() if disk in disks)


def _tidy_copies(context: Context) -> list[str]:
    """Take copies off this machine's disks whose originals a commit took off the bucket for good, and forget what is no
    copy any more."""
    done: list[str] = []
    for definition in reachability.whole_tables(context):
        listed = context.catalog.copies.parts(definition)
        if not listed or any(disk.unreachable for disk in context.disks.values()):
            continue
        copies = context.catalog.copies
        found = [one for one in context.catalog.parts(definition, include_outdated=True) if one.label in listed]
        local = {stored.label: stored for stored in found if copies.is_local(stored.disk)}
        for part in sorted(listed - local.keys()):
            done += _guarded(context, definition.uuid, part, partial(_forget_copy, context, definition, part))
        for part in sorted(local.keys() - {stored.label for stored in found if not copies.is_local(stored.disk)}):
            if copies.state(definition, part).is_settled:
                done += _guarded(context, definition.uuid, part, partial(_tidy_copy, context, definition, part))
    return done


def _forget_copy(context: Context, definition: TableDefinition, part: str) -> list[str]:
    directory, copies = definition.part_directory(part), context.catalog.copies
    if not any(disk.exists(directory) for name, disk in context.disks.items() if copies.is_local(name)):
        context.journal.source_copies.forget([(definition.uuid, part)])
    return []


def _tidy_copy(context: Context, definition: TableDefinition, part: str) -> list[str]:
    """Of a part that disks of this machine have and no bucket. Asks the buckets once more, under the claim of it."""
    context.catalog.refresh()
    stored_parts = context.catalog.partition(definition, PartName.parse(part).partition, include_outdated=True)
    found = [stored for stored in stored_parts if stored.label == part]
    state = context.catalog.copies.state(definition, part)
    if not state.is_settled or not all(context.catalog.copies.is_local(stored.disk) for stored in found):
        return []
    done: list[str] = []
    if state.kind == "outdated":
        if any(context.disk(stored.disk).read_only for stored in found):
            return []
        copying.remove_copies(context, found, reason=f"a copy of a part that was {state.why}")
        disks = ", ".join(stored.disk for stored in found)
        done = [f"removed {part} of {definition.full_name} from {disks}: the part was {state.why}"]
    context.journal.source_copies.forget([(definition.uuid, part)])
    return done


def _guarded(context: Context, table_uuid: str, part: str, step: Callable[[], list[str]]) -> list[str]:
    """Run a step under the part's claim; work of living processes is left alone, trouble is reported and kept."""
    try:
        with context.journal.claim(table_uuid, [part], "recovery"):
            return step()
    except Locked:
        return []
    except (FrostlineError, OSError) as error:
        logger.warning("the move of %s is postponed: %s", part, error)
        return []
