"""How a replica comes and goes.

The first creates the table's nodes in one multi; then every one does the same: the definition and who it is go to its
disks, then its own nodes to Keeper. A crash in between leaves a table that can only be read, and that `table create
--replicated` finishes. Who goes takes its nodes away first; the last one takes the table's.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import AlreadyExists, Conflict, NotFound, ReadOnly, Refused, UsageError
from oplog.kinds import TableAltered
from tiering.catalog import tables
from tiering.catalog.context import Context
from tiering.config.macros import expand, is_path, is_step
from tiering.config.units import counted
from tiering.engine.replication import Made
from tiering.table import schema
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition, split_table_name
from zerocopy.keeper.client import Keeper, Witness
from zerocopy.keeper.operations import CheckNode, CreateNode, Operation
from zerocopy.replica import history, identity, shared
from zerocopy.replica.connections import connections, peers_of, secret_of
from zerocopy.replica.identity import ReplicaIdentity
from zerocopy.replica.nodes import ANY_POLICY, TableNodes
from zerocopy.replica.replica import Replica, restoring_token

DEFAULT_PATH = "/tables/{shard}/{database}.{table}"
_COMPARED = ("columns", "order_by", "partition_by", "merge_mode", "settings", "ttl")


def create(
    context: Context,
    table: str,
    requested: TableDefinition | None,
    policy: str,
    keeper_path: str | None,
    replica: str | None,
    *,
    if_not_exists: bool,
) -> Made:
    """Create the table's first replica, or another one; `requested` may be None for that.

    Raises `Refused` for another structure than the table has, for a name in use and for what replicated tables cannot
    have yet, `AlreadyExists` for a replica that is there unless `if_not_exists`.
    """
    secret_of(context)
    name, path = place(context, table, requested, keeper_path, replica)
    disk = shared.check_policy(context, policy)
    keeper, nodes = connections(context).keeper, TableNodes(path)
    theirs = _definition_in(keeper, nodes)
    _check_name(context, table, theirs)
    first = theirs is None
    if theirs is None:
        if requested is None:
            raise NotFound(
                f"there is no table at {path} in Keeper to join", hint="use --column and --order-by to create the first"
            )
        new = msgspec.structs.replace(requested, keeper=path)
        theirs = _create_table(context, keeper, nodes, new, shared_disk=disk is not None)
        first = theirs.uuid == requested.uuid
    if _is_being_dropped(keeper, nodes):
        raise _half_dropped(nodes)
    version = keeper.get(nodes.metadata).version  # changes before the table becomes a plain one
    if keeper.exists(nodes.restoring):
        raise _being_restored(theirs)
    if requested is not None and (unlike := list(_differences(requested, theirs))):
        raise Refused(
            f"the table at {path} in Keeper is another one: {'; '.join(unlike)}",
            hint="give the same columns, or none to take them from there",
        )
    if theirs.full_name != table:
        raise Refused(
            f"the table at {path} in Keeper is called {theirs.full_name}", hint="use --keeper-path, or its name"
        )
    definition = msgspec.structs.replace(theirs, policy=policy)
    _check_shared(context, definition, disk, keeper, nodes)
    is_new = _write_here(context, definition, name, keeper, nodes, version)
    if not is_new and not if_not_exists:
        raise AlreadyExists(f"table {table} has its replica {name} here already", hint="use --if-not-exists to keep it")
    return Made(definition, name, first)


def drop(context: Context, definition: TableDefinition) -> None:
    """Take this machine's replica out of Keeper, then its parts off this machine's disks. The last one takes the table
    with it: from the shared disk, and then from Keeper.

    Raises `Refused` while this replica has parts that no other one has, where Keeper knows nothing of the table, and
    while a daemon answers as this replica; `ReadOnly` on a machine that is no replica, or where Keeper was set back.
    """
    known = identity.read(context, definition)
    nodes = TableNodes(str(definition.keeper))
    keeper = connections(context).keeper
    disk = shared.disk_of(context, definition)
    if known is None:
        if disk is not None and keeper.exists(nodes.metadata):
            raise ReadOnly(
                f"this machine is no replica of {definition.full_name}, and may only read it",
                hint="its replicas drop it: 'table drop' on each of their machines",
            )
    else:
        _leave(context, definition, keeper, nodes, known)
    if disk is not None and not _is_being_dropped(keeper, nodes):
        tables.drop(context, definition, here_only=True)
        return
    tables.drop(context, definition)
    if _is_being_dropped(keeper, nodes):
        keeper.delete_tree(nodes.path)


def _leave(
    context: Context, definition: TableDefinition, keeper: Keeper, nodes: TableNodes, own_replica: ReplicaIdentity
) -> None:
    node = keeper.find(nodes.replica(own_replica.replica).path)
    if node is not None and node.data == restoring_token(own_replica.token):
        raise _being_restored(definition)
    if node is None or node.data != own_replica.token.encode():
        _check_known(definition, keeper, nodes)
        return  # it is out already, or another machine's by now
    history.check(context, definition, keeper, nodes)
    own = nodes.replica(own_replica.replica)
    active = keeper.find(own.is_active)
    if active is None or active.owner != keeper.session:
        try:
            identity.check_owner(context, definition, own_replica.replica, active)
            identity.check_home(context, definition, keeper, own)
        except ReadOnly:
            if any(as_disk(context.disk(name), LoggedDisk) for name in context.catalog.policy_disks(definition)):
                raise  # what it would drop in a bucket is the living one's
            return
    if active is None:
        host = keeper.find(own.host)
        _check_silent(context, definition, host.data.decode(errors="replace") if host else "", own_replica.replica)
    _check_not_alone(keeper, nodes, own_replica.replica, _shared_parts(context, definition))
    remove(keeper, nodes, own_replica.replica)


def _check_known(definition: TableDefinition, keeper: Keeper, nodes: TableNodes) -> None:
    """Raise `Refused` where Keeper does not know the table: nobody can tell then whether others have the rows."""
    keeper.sync(nodes.path)
    theirs, table = _definition_in(keeper, nodes), definition.full_name
    if theirs is None:
        raise Refused(
            f"Keeper knows nothing of {table} at {nodes.path}: nobody can tell whether other replicas have its rows",
            hint=f"'frostline replica restore {table}' puts it back, with --without NAME for each replica that is gone;"
            " then drop it. Or is another keeper.root configured?",
        )


def _is_being_dropped(keeper: Keeper, nodes: TableNodes) -> bool:
    """Whether the last replica of the table went, and nobody finished the drop."""
    return keeper.exists(nodes.metadata) and not keeper.exists(nodes.replicas)


def check_dead(own: Replica, name: str) -> None:
    """Raise `Refused` for a replica that is active, or whose process answers, and for this machine's own;
    `NotFound`."""
    definition, replica = own.definition, own.table.replica(name)
    if name == own.name:
        raise Refused(
            f"{name} is this machine's own replica", hint=f"'frostline table drop {definition.full_name}' drops it"
        )
    if not own.keeper.exists(replica.path):
        raise NotFound(f"{definition.full_name} has no replica {name}", hint="'frostline replica status' lists them")
    if own.keeper.exists(replica.is_active):
        raise Refused(f"replica {name} is active: it is not gone", hint="drop the table on its own machine")
    address = own.address_of(name)
    _check_silent(own.context, definition, address, name)


def _check_silent(context: Context, definition: TableDefinition, address: str, name: str) -> None:
    """Raise `Refused` where the daemon of the replica answers, though Keeper does not know that it is there."""
    if address and peers_of(context).replica_at(address, definition) == name:
        raise Refused(
            f"replica {name} is not gone: its daemon answers at {address}",
            hint="its next pass registers it in Keeper; to drop the table, stop that daemon and drop it there",
        )


def remove(keeper: Keeper, nodes: TableNodes, name: str) -> None:
    """Take the replica's nodes away; what is deepest first, the replica itself last. The node of all replicas, too,
    when it was the last, so that nobody joins: deleting it fails while another one is there."""
    keeper.delete_tree(nodes.replica(name).path)
    with suppress(Conflict):
        keeper.delete(nodes.replicas)


def _shared_parts(context: Context, definition: TableDefinition) -> set[PartName]:
    """The parts that every replica has, on the shared disk."""
    disk = shared.disk_of(context, definition)
    if disk is None or disk.unreachable:
        return set()
    parts = context.catalog.parts(definition, include_outdated=True)
    return {stored.name for stored in parts if stored.disk == disk.name}


def _check_not_alone(keeper: Keeper, nodes: TableNodes, name: str, everywhere: Collection[PartName]) -> None:
    """Raise `Refused` where other replicas would miss what only this one has."""
    others = [other for other in keeper.children(nodes.replicas) if other != name]
    if not others:
        return
    mine = {PartName.parse(part) for part in keeper.children(nodes.replica(name).parts)}
    theirs = {PartName.parse(part) for other in others for part in keeper.children(nodes.replica(other).parts)}
    theirs |= set(everywhere)
    alone = [part for part in sorted(mine) if not any(one == part or one.covers(part) for one in theirs)]
    if alone:
        raise Refused(
            f"replica {name} alone has {counted(len(alone), 'part')}, the first is {alone[0]}",
            hint="let another one fetch them first: 'frostline replica sync' there",
        )


def place(
    context: Context, table: str, definition: TableDefinition | None, keeper_path: str | None, replica: str | None
) -> tuple[str, str]:
    """The replica's name and the table's path, as given or configured. Raises `UsageError`."""
    database, short = split_table_name(table)
    values = {**context.config.macros, "database": database, "table": short}
    if definition is not None:
        values["uuid"] = definition.uuid
    name = expand(replica or "{replica}", values, subject="the replica's name")
    path = expand(keeper_path or DEFAULT_PATH, values, subject="the path in Keeper")
    if not is_step(name):
        raise UsageError(f"not a replica's name: {name!r}", hint="letters, digits, '_', '-' and '.'")
    if not is_path(path):
        raise UsageError(f"not a path in Keeper: {path!r}", hint="write it as /tables/01/db.table")
    return name, path


def _check_shared(
    context: Context, definition: TableDefinition, disk: Disk | None, keeper: Keeper, nodes: TableNodes
) -> None:
    """Raise `Refused` unless this machine's shared disk is that of the other replicas."""
    what = f"the table at {nodes.path} in Keeper"
    if keeper.exists(nodes.mover) != (disk is not None):
        if disk is None:
            why = (
                f"{what} has cold parts in a bucket that its replicas write by one log, and policy {definition.policy}"
            )
            hint = "give it a policy with the same bucket and prefix: --policy P"
            found = (as_disk(context.disk(name), LoggedDisk) for name in context.catalog.policy_disks(definition))
            if own := next((one for one in found if one is not None and one.log_name is not None), None):
                why += f" has {own.name}, where each machine has its own (`log: {own.log_name}`)"
                raise Refused(why, hint=f"{hint}, without `log:`")
            raise Refused(f"{why} has none", hint=hint)
        raise Refused(
            f"the replicas of {what} have local disks, or buckets with a log each (`log: NAME`), and policy "
            f"{definition.policy} has the bucket {disk.name} without one",
            hint="give it a policy of local disks, or of a bucket with `log:`: --policy P",
        )
    if disk is None:
        return
    context.catalog.refresh()  # the others may have written to it just now
    there = next((known for known in context.catalog.tables() if known.uuid == definition.uuid), None)
    if not disk.exists(definition.path):
        if keeper.children(nodes.replicas):
            raise Refused(
                f"{what} is not on disk {disk.name} here: the other replicas have another bucket or prefix",
                hint="configure the same for all of them, then try again; replicas may have buckets of their own"
                " where the table was created with `log: NAME` in each",
            )
    elif there is not None and there.policy != definition.policy:
        raise Refused(
            f"{what} has policy {there.policy} on {disk.name}, not {definition.policy}",
            hint=f"call the policy the same on all machines: --policy {there.policy}",
        )


def _definition_in(keeper: Keeper, nodes: TableNodes) -> TableDefinition | None:
    node = keeper.find(nodes.metadata)
    return None if node is None else schema.decode(node.data, path=f"keeper:{nodes.metadata}")


def _create_table(
    context: Context, keeper: Keeper, nodes: TableNodes, definition: TableDefinition, *, shared_disk: bool
) -> TableDefinition:
    """Make the table's nodes; the definition that is there then, which another machine's may be."""
    tables.check(context, definition)
    data = schema.encode(msgspec.structs.replace(definition, policy=ANY_POLICY))
    keeper.make_path(nodes.path.rpartition("/")[0] or "/")
    try:
        made = [
            CreateNode(nodes.path),
            CreateNode(nodes.metadata, data),
            *map(CreateNode, nodes.common(shared_disk=shared_disk)),
        ]
        keeper.multi(made, witness=Witness(nodes.metadata, data))
    except AlreadyExists:
        found = _definition_in(keeper, nodes)
        if found is None:
            raise _half_dropped(nodes) from None
        return found
    return definition


def _being_restored(definition: TableDefinition) -> Refused:
    return Refused(
        f"the nodes of {definition.full_name} are being put back into Keeper",
        hint=f"'frostline replica restore {definition.full_name}' on its replicas comes first",
    )


def _half_dropped(nodes: TableNodes) -> Conflict:
    return Conflict(
        f"{nodes.path} in Keeper is being dropped, or is no table's",
        hint="check with 'frostline keeper ls'; you can remove what a killed drop left",
    )


def _differences(definition: TableDefinition, theirs: TableDefinition) -> Iterator[str]:
    for field in _COMPARED:
        here, there = (msgspec.json.encode(_compared(version, field)).decode() for version in (definition, theirs))
        if here != there:
            yield f"{field.replace('_', ' ')} {here} here, {there} there"


def _compared(definition: TableDefinition, field: str) -> object:
    if field != "columns":
        return getattr(definition, field)
    return [msgspec.structs.replace(column, nested_ids=()) for column in definition.columns]


def _write_here(
    context: Context, definition: TableDefinition, name: str, keeper: Keeper, nodes: TableNodes, version: int
) -> bool:
    """Whether anything was missing here or in Keeper, where the definition's node still has this version."""
    existing = _check_name(context, definition.full_name, definition)
    known = identity.read(context, definition) if existing is not None else None
    if known is None and keeper.exists(nodes.replica(name).path):
        raise _name_in_use(definition, name)
    if known is None and existing is not None:
        _check_empty(context, existing)
    if existing is None:
        tables.create(context, definition)
    elif not existing.is_replicated:  # a bucket that its machine has left says still what it was
        reason = f"replica {name} of {definition.full_name}, a plain table before"
        tables.write_definition(context, definition, kind=TableAltered(), reason=reason)
    elif lacking := context.catalog.disks_lacking_definition(existing):
        reason = f"replica {name} of {definition.full_name}"
        tables.write_definition(context, existing, kind=TableAltered(), reason=reason, disks=lacking)
    if known is not None and known.replica != name:
        raise Refused(
            f"this machine is replica {known.replica} of {definition.full_name}, not {name}",
            hint=f"use --replica {known.replica}, or drop the table here first",
        )
    if known is None:
        # What this machine took over as a replica that it no longer is may be of nodes that are gone: the table keeps
        # its uuid where it became a plain one and a replicated one again.
        context.journal.replicas.forget(definition.uuid)
        known = ReplicaIdentity(replica=name, token=uuid.uuid4().hex)
    identity.write(context, definition, known)
    own, token = nodes.replica(name), known.token.encode()
    try:
        made: list[Operation] = [CheckNode(nodes.metadata, version), *own.made(token, definition.version)]
        keeper.multi(made, witness=Witness(own.path, token))
    except Conflict as error:
        raise Conflict(
            f"{definition.full_name} was altered meanwhile by another replica", hint="run it again"
        ) from error
    except AlreadyExists:
        if keeper.get(own.path).data != token:
            raise _name_in_use(definition, name) from None
        return existing is None
    return True


def _check_name(context: Context, table: str, theirs: TableDefinition | None) -> TableDefinition | None:
    """The table of this name here. Raises `AlreadyExists` where it is another one than in Keeper, before anything is
    made there."""
    existing = next((known for known in context.catalog.tables() if known.full_name == table), None)
    if existing is not None and (theirs is None or existing.uuid != theirs.uuid):
        hint = "drop or rename it first"
        if not existing.is_replicated and theirs is None:
            hint = f"'frostline table alter {table} --replicated' makes it one with replicas; else {hint}"
        raise AlreadyExists(f"another table is called {table} here", hint=hint)
    return existing


def _check_empty(context: Context, definition: TableDefinition) -> None:
    """Take copies of what is on the shared disk off this machine's own. Raise `Refused` where it has parts that no
    replica knows, of the time when the table was a plain one: what the replicas merged meanwhile may have names that
    cover theirs."""
    names = [stored.label for stored in context.catalog.parts(definition, include_outdated=True)]
    with context.journal.claim(definition.uuid, names, "conversion"):
        shared.free_copies(context, definition)
    parts = context.catalog.parts(definition, include_outdated=True)
    alone = [stored for stored in parts if not context.disk(stored.disk).capabilities.shared]
    if alone:
        raise Refused(
            f"this machine's own disks have {counted(len(alone), 'part')} of {definition.full_name} of when it was "
            "a plain table, "
            f"and no replica knows of that; the first is {alone[0].facts.name} on {alone[0].disk}",
            hint=f"move {definition.directory} of these disks elsewhere, join, then bring the rows in with 'frostline "
            f"insert {definition.full_name} …/*/data-*.parquet'",
        )


def _name_in_use(definition: TableDefinition, name: str) -> Refused:
    return Refused(
        f"{definition.full_name} has a replica {name} already, on another machine",
        hint="choose another name: --replica NAME; if that machine is gone: 'frostline replica drop'",
    )
