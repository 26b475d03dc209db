"""Dropping parts of a replicated table: one replica agrees upon it, all of them do it.

    number    a number of the partition: what has a lower one and is not on its way now goes       nothing
    word      one multi, at the version of the log's node that merges are agreed upon against:
              the number's node goes; an entry of the log; what was dropped of the partition        <- the commit point
    unsaid    of each replica: parts/<part> goes                                                    something to finish
    bytes     the parts go from its own disks, where local ones keep them aside for a while; from
                        the shared one by the first replica to arrive, under the mover's fence          the same
    done      the queued entry goes

Numbers only grow. An insert that is on its way has no answer yet: its number is spared, and what it brings stays; so
does everything after, and the entries of both come after this one in the log. No merge reaches across: one that was
agreed upon before is in the log before, or the version has changed. Digests of what was dropped count no more: the same
block inserted again is new."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from oplog.errors import Conflict, FrostlineError, Locked, NotFound, Transient
from oplog.kinds import Dropped
from tiering.catalog import reachability, tables
from tiering.catalog.catalog import StoredPart
from tiering.config.units import counted
from tiering.table.part import PartName
from zerocopy.execution import altering, moving
from zerocopy.execution.queue import pull, queue
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CheckNode, CreateNode, DeleteNode, Operation, Set, portions
from zerocopy.replica import entries, shared
from zerocopy.replica.entries import DropRange
from zerocopy.replica.inserts import staged_parts
from zerocopy.replica.replica import Replica

_ATTEMPTS = 20


def assign(replica: Replica, partition: str, reason: str) -> DropRange:
    """Write into the log that all that is in the partition now goes; what is inserted meanwhile, or later, stays.

    Raises `NotFound` where nothing was ever inserted, `Locked` while parts of it move, `Conflict` when the replicas
    agree upon other things all the time, `Transient` when the session with Keeper was lost: nothing is dropped then."""
    context, definition, keeper, table = replica.context, replica.definition, replica.keeper, replica.table
    disk = shared.disk_of(context, definition)
    if disk is not None:
        reachability.require([disk], f"dropping a partition of {definition.full_name}")
    parent = table.numbers(partition)
    keeper.make_path(parent)
    for _ in range(_ATTEMPTS):
        keeper.sync(table.path)
        version = keeper.get(table.log).version
        check_not_moving(replica, partition)
        with _number(replica, parent) as node:
            number = replica.number_of(node)
            if not number:
                raise NotFound(f"{definition.full_name} never had a partition {partition}", hint="nothing was dropped")
            coming = {found: name for name in keeper.children(parent) if (found := replica.number_of(name)) < number}
            entry = DropRange(
                time=context.clock(),
                replica=replica.name,
                ranges=(entries.whole_range(partition, 0, number - 1),),
                spared=tuple(sorted(coming)),
                reason=reason,
            )
            still = [CheckNode(f"{parent}/{name}") for name in coming.values()]
            if say(replica, entry, version, [*still, DeleteNode(node), Set(parent, entries.encode(entry))]):
                return entry
            if not keeper.exists(node):
                raise Transient(
                    f"the session with Keeper was lost while a drop of {definition.full_name} was agreed upon",
                    hint="run it again; nothing was dropped",
                )
    raise Conflict(f"what the replicas of {definition.full_name} agree upon keeps changing", hint="run it again")


def assign_due(replica: Replica, to_delete: Mapping[str, str]) -> list[str]:
    """Write into the log that these parts go, by name and reason: every row in them is past its time. Returns those of
    which that was agreed upon; what merges or moves have now waits for the next pass, as does everything where
    something else was agreed upon meanwhile, or the table altered."""
    context, definition, keeper, table = replica.context, replica.definition, replica.keeper, replica.table
    disk = shared.disk_of(context, definition)
    if disk is not None:
        reachability.require([disk], f"deleting parts of {definition.full_name}")
    keeper.sync(table.path)
    version = keeper.get(table.log).version
    moving_now = moving.busy(replica)
    pull(replica)
    taken = [name for queued in queue(replica) for name in queued.entry.touches]
    context.catalog.refresh()
    own = replica.parts()
    chosen = [
        stored.name
        for stored in context.catalog.parts(definition)
        if stored.facts.name in to_delete
        and stored.name in own
        and stored.facts.name not in moving_now
        and not any(name.covers(stored.name) for name in taken)
    ][: entries.MOST_RANGES]
    if not chosen:
        return []
    more = f", and {counted(len(chosen) - 1, 'part')} more" if len(chosen) > 1 else ""
    entry = DropRange(
        time=context.clock(),
        replica=replica.name,
        ranges=tuple(entries.whole_range(name.partition, name.min_block, name.max_block) for name in chosen),
        reason=f"{to_delete[str(chosen[0])]}{more}",
        by_ttl=True,
    )
    unaltered = altering.unaltered(replica)
    if unaltered is None or not say(replica, entry, version, unaltered):
        return []
    return list(map(str, chosen))


def check_not_moving(replica: Replica, partition: str) -> None:
    """Raise `Locked` while somebody moves parts of the partition to the shared disk."""
    moving_now = [name for name in moving.busy(replica) if PartName.parse(name).partition == partition]
    if moving_now:
        raise Locked(
            f"part {moving_now[0]} of {replica.definition.full_name} is moved now", hint="run it again when it is there"
        )


def say(replica: Replica, entry: DropRange, version: int, more: Sequence[Operation]) -> bool:
    """Write the entry; False when something else was agreed upon since this version of the log's node, or `more` of it
    is not so any more."""
    log, mark = replica.table.log, uuid.uuid4().hex.encode()
    said = [CreateNode(f"{log}/log-", entries.encode(entry), numbered=True), Set(log, mark, version), *more]
    try:
        replica.keeper.multi(said, witness=Witness(log, mark))
    except (Conflict, NotFound):
        return False
    return True


@contextmanager
def _number(replica: Replica, parent: str) -> Iterator[str]:
    """A number of the partition's own, given back."""
    node = replica.keeper.create_numbered(f"{parent}/block-{uuid.uuid4().hex}-", ephemeral=True)
    try:
        yield node
    finally:
        with suppress(FrostlineError):  # nobody answers: the node goes with the session
            replica.keeper.delete(node)


def execute(replica: Replica, entry: DropRange) -> set[PartName]:
    """Let this replica have none of it any more; returns what Keeper says of it no longer. Raises `Locked` or
    `Transient` where something is in use or cannot be reached; it is repeated then."""
    context, definition = replica.context, replica.definition
    if left := [name for name in staged_parts.arriving(context, definition) if entry.drops(PartName.parse(name))]:
        raise Locked(f"the insert of {left[0]} is not over here", hint="the next pass tries again")
    gone = {name for name in replica.parts() if entry.drops(name)}
    unsaid: list[list[Operation]] = [[DeleteNode(replica.own.part(str(name)))] for name in sorted(gone)]
    for portion in portions(unsaid):
        replica.keeper.multi(portion)
    context.catalog.refresh()
    disk = shared.disk_of(context, definition)
    to_delete = _doomed(replica, entry)
    here = [stored for stored in to_delete if disk is None or stored.disk != disk.name]
    keep = context.config.replicas.keep_dropped_seconds > 0
    tables.drop_parts(context, here, reason=entry.reason, by_ttl=entry.by_ttl, here_only=True, keep=keep)
    if disk is not None:
        reachability.require([disk], f"dropping parts of {definition.full_name}")
        if any(stored.disk == disk.name for stored in to_delete):
            _drop_shared(replica, entry)
    return gone


def _doomed(replica: Replica, entry: DropRange) -> list[StoredPart]:
    everything = replica.context.catalog.parts(replica.definition, include_outdated=True)
    return [stored for stored in everything if entry.drops(stored.name)]


def _drop_shared(replica: Replica, entry: DropRange) -> None:
    """Take the parts off the shared disk, in one commit that requires the fence."""
    context, disk = replica.context, shared.disk_of(replica.context, replica.definition)
    assert disk is not None
    with moving.fenced(replica, disk) as (fence, clean):
        context.catalog.refresh()
        there = [stored for stored in _doomed(replica, entry) if stored.disk == disk.name]
        if there:  # else another replica has done it
            with disk.transaction(
                Dropped(by_ttl=entry.by_ttl), reason=entry.reason, actor=context.actor
            ) as transaction:
                transaction.require(present=(replica.definition.path, fence))
                for stored in there:
                    transaction.remove(stored.directory)
                transaction.commit()
        clean()
    context.catalog.refresh()
