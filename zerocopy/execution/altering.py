"""Changing the definition of a replicated table: one replica agrees upon it, each writes it down.

    word      one multi, at the version of the definition in Keeper that is altered:
              the definition; an entry of the log                                      <- the commit point
    shared    table.json on the shared disk, by the first replica to arrive               something to finish
    disks     table.json on this machine's own disks                                   the same
    done      metadata_version of the replica; the queued entry goes

Always the newest definition is written, so one that was away catches up at once. Parts that come after the entry in the
log wait until it is done here: none is read by a definition that does not know its columns. What was inserted by an
older one is a part of older columns like any other. What drops rows by a TTL rule is agreed upon at the version of the
definition that the replica which agrees upon it has: nobody deletes by a rule that is gone.
"""

from __future__ import annotations

import msgspec

from oplog.errors import AlreadyExists, Conflict, NotFound
from oplog.kinds import TableAltered
from tiering.catalog import reachability, tables
from tiering.table import schema, tombstones
from tiering.table.schema import Delete, TableDefinition
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CheckNode, CreateNode, Operation, Set
from zerocopy.replica import entries, shared
from zerocopy.replica.entries import Alter
from zerocopy.replica.nodes import ANY_POLICY
from zerocopy.replica.replica import Replica


def assign(replica: Replica, old: TableDefinition, new: TableDefinition, reason: str) -> Alter:
    """Make this the table's definition, one version higher. Raises what `tables.check_change` does, and
    `AlreadyExists` where the table was altered meanwhile."""
    tables.check_change(replica.context, old, new)
    keeper, table = replica.keeper, replica.table
    keeper.sync(table.path)
    theirs, version = _in_keeper(replica)
    meanwhile = AlreadyExists(
        f"table {old.full_name} was altered meanwhile by another replica",
        hint=f"'frostline replica sync {old.full_name}', check it again, then retry",
    )
    if theirs.version != old.version:
        raise meanwhile
    agreed = msgspec.structs.replace(new, version=old.version + 1, policy=ANY_POLICY)
    data = schema.encode(agreed)
    entry = Alter(time=replica.context.clock(), replica=replica.name, version=agreed.version, reason=reason)
    said: list[Operation] = [
        Set(table.metadata, data, version),
        CreateNode(f"{table.log}/log-", entries.encode(entry), numbered=True),
    ]
    try:
        keeper.multi(said, witness=Witness(table.metadata, data))
    except Conflict as error:
        raise meanwhile from error
    return entry


def catch_up(replica: Replica, reason: str) -> None:
    """Write the newest definition to every disk that has an older one. Raises `DiskUnreachable` where one is away."""
    context = replica.context
    theirs, _ = _in_keeper(replica)
    context.catalog.refresh()
    definition = msgspec.structs.replace(theirs, policy=replica.definition.policy)
    disk = shared.disk_of(context, definition)
    if disk is not None:
        reachability.require([disk], f"altering {definition.full_name}")
    names = sorted(
        context.catalog.policy_disks(definition), key=lambda name: not context.disk(name).capabilities.shared
    )
    for name in names:
        try:
            if _is_older(replica, name, definition.version):
                mark = tombstones.mark_of(definition)
                tables.write_definition(
                    context,
                    definition,
                    kind=TableAltered(),
                    reason=reason,
                    disks=[name],
                    beside={mark: tombstones.mark(definition)},
                )
        except Conflict:  # another replica was first on the shared disk
            context.disk(name).refresh()
            if _is_older(replica, name, definition.version):
                raise
    context.catalog.refresh()
    replica.definition = definition
    replica.keeper.set(replica.own.metadata_version, str(definition.version).encode())


def unaltered(replica: Replica) -> list[CheckNode] | None:
    """What is to be so still when rows are dropped by a TTL rule of this replica's definition: nothing where there is
    none; None where the table was altered already, and this replica is not so far."""
    if not any(isinstance(rule.action, Delete) for rule in replica.definition.ttl):
        return []
    theirs, version = _in_keeper(replica)
    return [CheckNode(replica.table.metadata, version)] if theirs.version <= replica.definition.version else None


def _in_keeper(replica: Replica) -> tuple[TableDefinition, int]:
    """The definition, and the version of its node."""
    path = replica.table.metadata
    node = replica.keeper.get(path)
    return schema.decode(node.data, path=f"keeper:{path}"), node.version


def _is_older(replica: Replica, name: str, version: int) -> bool:
    """Whether a disk has an older definition, or none."""
    path = replica.definition.path
    try:
        data = replica.context.disk(name).read(path)
    except (NotFound, FileNotFoundError):
        return True
    return schema.decode(data, path=f"{name}:{path}").version < version
