"""A plain table becomes a replicated one, with this machine's replica as its first. The order, and what a crash after
each step leaves:

    copies      what a move kept here of parts in the shared bucket goes                a plain table
    place       one multi: the table's nodes, and that they are not whole yet           a plain table
    replica     replica.json on this machine's disks                                    the same
    definition  table.json in the bucket, then on the disks: where the numbers come
                from, and that they begin above all that were given; beside it what
                keeps late commits of a plain table out                                 <- the commit point
    said        as after a loss of Keeper: parts, digests of blocks, one multi at the   a table that can only be read
                end (`rebuilding`)

Run again it goes on, from any of them. No part is touched. Keeper's numbers begin with the next range of a million, so
none of them is one that was given, here or by another machine that has the bucket: that one may only read from then on,
by the definition in the bucket.
"""

from __future__ import annotations

import uuid

import msgspec

from oplog.errors import AlreadyExists, Conflict, ReadOnly, Refused, Transient, UsageError
from oplog.kinds import TableAltered
from tiering.catalog import blocks, tables
from tiering.catalog.context import Context
from tiering.engine.replication import Conversion
from tiering.table.part import RANGE_BLOCKS
from tiering.table.schema import TableDefinition
from zerocopy.conversion.exclusive import alone, check_disks, check_order, check_unused, replicas
from zerocopy.execution.work import sync_patiently
from zerocopy.keeper.client import Keeper
from zerocopy.rebuilding import rebuilding
from zerocopy.replica import identity, lifecycle, shared
from zerocopy.replica.connections import connections, secret_of
from zerocopy.replica.identity import ReplicaIdentity
from zerocopy.replica.nodes import TableNodes


def convert(
    context: Context,
    definition: TableDefinition,
    keeper_path: str | None,
    replica: str | None,
    *,
    dry_run: bool = False,
) -> Conversion:
    """Make it a replicated table, or finish that. Raises `AlreadyExists` where it is one, `Refused` for a policy that
    replicas cannot have and for a place in Keeper that is taken, `Locked` while parts of it are in use here."""
    secret_of(context)
    what = f"making {definition.full_name} a replicated table"
    check_disks(context, definition, what)
    if definition.is_replicated:
        return _finish(context, definition, keeper_path, replica, dry_run=dry_run)
    name, path = lifecycle.place(context, definition.full_name, definition, keeper_path, replica)
    shared.check_policy(context, definition.policy)
    keeper, nodes = connections(context).keeper, TableNodes(path)
    is_left = _is_left(keeper, nodes, definition, name)
    check_unused(context, definition)
    check_order(context, definition)
    parts = len(context.catalog.parts(definition))
    new = msgspec.structs.replace(
        definition, keeper=path, first_block=blocks.unused(context, definition) * RANGE_BLOCKS
    )
    if dry_run:
        return Conversion(new, name, path, parts)
    with alone(context, definition):
        if is_left:
            rebuilding.take_away(keeper, nodes)
        shared.free_copies(context, definition)
        rebuilding.begin(context, msgspec.structs.replace(new, version=new.version + 1), keeper, nodes, [name])
        _check_own(keeper, nodes, name)
        _identify(context, definition, name)
        reason = f"{definition.full_name} is replicated, by {path} in Keeper"
        new = tables.replace(context, definition, new, reason=reason, kind=TableAltered())
        _make_whole(context, new)
    sync_patiently(context, new)
    return Conversion(new, name, path, parts)


def _finish(
    context: Context, definition: TableDefinition, keeper_path: str | None, replica: str | None, *, dry_run: bool
) -> Conversion:
    """Go on where a conversion was killed."""
    table = definition.full_name
    known = identity.read(context, definition)
    if known is None:
        raise ReadOnly(
            f"{table} is replicated, and this machine is no replica of it",
            hint=f"'frostline table create {table} --replicated' makes it one",
        )
    name, path = lifecycle.place(context, table, definition, keeper_path, replica)
    path = path if keeper_path is not None else str(definition.keeper)
    name = name if replica is not None else known.replica
    if (name, path) != (known.replica, definition.keeper):
        raise UsageError(
            f"{table} is replicated already, as replica {known.replica} at {definition.keeper}",
            hint="use neither --keeper-path nor --replica to finish what was begun",
        )
    done = Conversion(definition, name, path, len(context.catalog.parts(definition)), finished=True)
    keeper, nodes = connections(context).keeper, TableNodes(path)
    if rebuilding.waits_for(keeper, nodes) is None:
        raise AlreadyExists(
            f"{table} is replicated already, as replica {name}", hint="'frostline replica status' shows its replicas"
        )
    if not dry_run:
        with alone(context, definition):
            _make_whole(context, definition)
        sync_patiently(context, definition)
    return done


def _make_whole(context: Context, definition: TableDefinition) -> None:
    rebuilt = rebuilding.rebuild(context, definition)
    if rebuilt is not None and rebuilt.waits_for:
        raise Transient(
            f"{definition.full_name} waits for its replicas {', '.join(rebuilt.waits_for)}",
            hint=f"'frostline replica restore {definition.full_name}' on each of them, or here with --without NAME",
        )


def _is_left(keeper: Keeper, nodes: TableNodes, definition: TableDefinition, name: str) -> bool:
    """Whether an earlier try left nodes at this place. Raises `Refused` where a table is."""
    if not keeper.exists(nodes.path):
        return False
    rebuilding.check_place(definition, keeper, nodes)
    waiting = rebuilding.waits_for(keeper, nodes)
    if waiting is None and not keeper.exists(nodes.metadata):
        raise Conflict(
            f"{nodes.path} in Keeper is no table's, and is not empty",
            hint="choose another path: --keeper-path PATH; or check with 'frostline keeper ls'",
        )
    if waiting is None:
        raise Refused(
            f"the table at {nodes.path} in Keeper is {definition.full_name} itself, with replicas on other machines",
            hint="for one more table of the same rows choose another path: --keeper-path PATH",
        )
    if others := sorted({*waiting, *replicas(keeper, nodes)} - {name}):
        raise Refused(
            f"replica {others[0]} is at work at {nodes.path} in Keeper",
            hint="the same command there finishes it; or choose another path: --keeper-path PATH",
        )
    return True


def _check_own(keeper: Keeper, nodes: TableNodes, name: str) -> None:
    """Raise `Conflict` where another machine converts the same table."""
    if rebuilding.waits_for(keeper, nodes) != (name,):
        raise Conflict(f"another machine makes the table at {nodes.path} in Keeper", hint="check it, then run it again")


def _identify(context: Context, definition: TableDefinition, name: str) -> None:
    known = identity.read(context, definition)
    if known is None or known.replica != name:
        identity.erase(context, definition)
        known = ReplicaIdentity(replica=name, token=uuid.uuid4().hex)
    identity.write(context, definition, known)
