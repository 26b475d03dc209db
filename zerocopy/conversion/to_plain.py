"""The last replica of a table becomes a plain table. The order, and what a crash after each step leaves:

    closed      one multi: nobody joins, and no insert counts any more                  a table that can only be read
    numbers     marks of a range of block numbers above all that Keeper gave            the same
    kept        what drops had kept goes                                                the same
    definition  table.json in the bucket, then on the disks: without Keeper; what only  <- the commit point
                replicated tables have goes in the same commit
    Keeper      the table's nodes go                                                    nodes that nobody goes by

Run again it goes on; `replica restore` before the commit point takes it back. No part is touched.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from oplog.errors import Locked, Refused, UsageError
from oplog.kinds import TableAltered
from tiering.catalog import blocks, retained_drops, tables
from tiering.catalog.context import Context
from tiering.config.units import counted
from tiering.engine.replication import Conversion
from tiering.table.part import range_of
from tiering.table.schema import TableDefinition
from zerocopy.conversion.exclusive import alone, check_disks, check_unused, held_by_others, replicas
from zerocopy.execution import moving
from zerocopy.execution.queue import queue
from zerocopy.execution.work import sync_patiently
from zerocopy.keeper.client import Keeper, Witness
from zerocopy.keeper.operations import CreateNode, DeleteNode, Set
from zerocopy.rebuilding import agreement, rebuilding
from zerocopy.replica import identity, lifecycle
from zerocopy.replica.connections import connections
from zerocopy.replica.inserts import staged_parts
from zerocopy.replica.nodes import TableNodes
from zerocopy.replica.replica import Replica, restoring_token


def convert(
    context: Context,
    definition: TableDefinition,
    keeper_path: str | None = None,
    replica: str | None = None,
    *,
    dry_run: bool = False,
) -> Conversion:
    """Make it a plain table, or finish that: then the place in Keeper is that of a new table, unless it is said.
    Raises `Refused` while it has other replicas, `Locked` while something is to be done or under way, `ReadOnly` on a
    machine that is no replica."""
    table = definition.full_name
    check_disks(context, definition, f"making {table} a plain table")
    if not definition.is_replicated:
        return _finish(context, definition, keeper_path, replica, dry_run=dry_run)
    keeper, nodes = connections(context).keeper, TableNodes(str(definition.keeper))
    known = identity.read(context, definition)
    is_closed = known is not None and _is_closed(keeper, nodes, known.replica, known.token)
    if not is_closed:
        _check_last(Replica.open(context, definition))
        if not dry_run:
            _check_idle(context, definition)
        definition = context.catalog.table(definition.uuid)
    assert known is not None
    own = Replica(context, definition, known.replica, keeper, nodes, nodes.replica(known.replica), known.token)
    check_unused(context, definition)
    new = msgspec.structs.replace(definition, keeper=msgspec.UNSET, first_block=msgspec.UNSET)
    done = Conversion(new, known.replica, nodes.path, len(context.catalog.parts(definition)), finished=is_closed)
    if dry_run:
        return done
    with alone(context, definition):
        if not is_closed:
            _close(Replica.open(context, definition))
        _check_whole(own, is_closed)
        blocks.take_all(context, definition, max(blocks.unused(context, definition), range_of(_highest(own)) + 1))
        # before the table is one that nobody else may drop parts of
        retained_drops.let_go(context.disks.values(), [definition], lambda disk, kept: True, context.actor)
        reason = f"{table} is not replicated any longer"
        new = tables.replace(context, definition, new, reason=reason, kind=TableAltered())
        _leave_keeper(context, new, keeper, nodes)
    return replace(done, definition=new)


def _check_last(own: Replica) -> None:
    others = own.others()
    if others:
        table = own.definition.full_name
        raise Refused(
            f"{table} has {counted(len(others), 'other replica')}: {', '.join(sorted(others))}",
            hint=f"'frostline table drop {table}' on each of their machines, or 'frostline replica drop {table} NAME' "
            "for one that is gone; the last replica becomes the plain table",
        )


def _check_idle(context: Context, definition: TableDefinition) -> None:
    """Do what is to be done. Raises `Locked` where something stays."""
    done = sync_patiently(context, definition)
    own = Replica.open(context, context.catalog.table(definition.uuid))
    waiting = queue(own)
    if waiting:
        why = next((one.reason for one in done.postponed), "")
        raise Locked(
            f"{counted(len(waiting), 'entry', 'entries')} of {definition.full_name} "
            f"{'waits' if len(waiting) == 1 else 'wait'} to be done{': ' + why if why else ''}",
            hint=f"'frostline replica queue {definition.full_name}' shows them; give up what no replica has with "
            f"'frostline replica restore {definition.full_name} --give-up-parts'",
        )
    if moved := moving.busy(own):
        raise Locked(f"part {min(moved)} of {definition.full_name} is moved now", hint="run it again when it is there")


def _is_closed(keeper: Keeper, nodes: TableNodes, name: str, token: str) -> bool:
    """Whether an earlier try got so far that nobody but this replica may go on."""
    node = keeper.find(nodes.replica(name).path)
    return (
        node is not None
        and node.data == restoring_token(token)
        and rebuilding.waits_for(keeper, nodes) == (name,)
        and keeper.children(nodes.replicas) == [name]
    )


def _close(own: Replica) -> None:
    """From now on nobody joins, and no insert counts. Raises `Refused` or `Locked`, and opens it again, where somebody
    came first."""
    keeper, nodes = own.keeper, own.table
    metadata = keeper.get(nodes.metadata)
    token, closed = own.token.encode(), rebuilding.restoring([own.name])
    keeper.multi(
        [
            Set(nodes.metadata, metadata.data, metadata.version),  # who joins goes by its version
            Set(own.own.path, restoring_token(own.token), own.version),  # an insert by that one's
            CreateNode(nodes.restoring, closed),
        ],
        witness=Witness(nodes.restoring, closed),
    )
    own.kept.forget()
    try:
        _check_last(own)
        if busy := held_by_others(own.context, own.definition):
            raise Locked(f"{own.definition.full_name} is in use on this machine: {busy}", hint="run it again then")
    except BaseException:
        keeper.multi([DeleteNode(nodes.restoring), Set(own.own.path, token)])
        raise


def _check_whole(own: Replica, is_closed: bool) -> None:
    """Finish what dead inserts left. Raises `Refused` where a part is not here that Keeper says is."""
    context, definition = own.context, own.definition
    staged_parts.settle(own)
    context.catalog.refresh()
    here = {stored.name for stored in context.catalog.parts(definition, include_outdated=True)}
    lacking = agreement.without_place(sorted(own.parts()), here, ())
    if lacking:
        own.keeper.multi([DeleteNode(own.table.restoring), Set(own.own.path, own.token.encode())])
        raise Refused(
            f"Keeper says of {counted(len(lacking), 'part')} of {definition.full_name} that this machine has them, and "
            f"they are not here; the first is {lacking[0]}",
            hint="'frostline fsck' names them; nothing was changed",
        )


def _highest(own: Replica) -> int:
    """The highest block number that Keeper gave."""
    keeper, parent = own.keeper, f"{own.table.path}/block_numbers"
    paths = [f"{parent}/{name}" for name in keeper.children(parent)]
    given = max(map(rebuilding.given, keeper.find_all(paths)), default=0)
    return own.definition.numbers_from + given


def _finish(
    context: Context, definition: TableDefinition, keeper_path: str | None, replica: str | None, *, dry_run: bool
) -> Conversion:
    """Take away what a killed conversion, either way, left in Keeper."""
    name, path = lifecycle.place(context, definition.full_name, definition, keeper_path, replica)
    keeper, nodes = connections(context).keeper, TableNodes(path)
    node = keeper.find(nodes.metadata)
    waiting = rebuilding.waits_for(keeper, nodes)
    if node is None or waiting is None:
        raise UsageError(
            f"{definition.full_name} is a plain table already",
            hint=f"there is nothing to do: Keeper has nothing at {path} either",
        )
    rebuilding.check_place(definition, keeper, nodes)
    if others := sorted({*waiting, *replicas(keeper, nodes)} - {name}):
        raise Refused(
            f"replica {others[0]} is at work at {nodes.path} in Keeper", hint="what it began is finished there"
        )
    if not dry_run:
        _leave_keeper(context, definition, keeper, nodes)
    return Conversion(definition, name, path, len(context.catalog.parts(definition)), finished=True)


def _leave_keeper(context: Context, definition: TableDefinition, keeper: Keeper, nodes: TableNodes) -> None:
    rebuilding.take_away(keeper, nodes)
    connections(context).kept(nodes.path).forget()
    context.journal.replicas.forget(definition.uuid)
