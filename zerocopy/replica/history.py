"""Whether Keeper still knows what it knew: a snapshot of yesterday that was brought back would have replicas take older
words for new ones, and numbers be given twice.

The journal of a machine has the last entry of the log that it took over or made, by its number and digest. Who opens a
replica looks for it once a session: a server that knows less than a client has seen does not take it back, so a session
that lasts was not rolled back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from oplog.errors import NotFound, ReadOnly
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition
from zerocopy.keeper.client import Keeper
from zerocopy.replica.connections import connections
from zerocopy.replica.nodes import TableNodes, number_of


class SetBack(ReadOnly):
    """Keeper is older than what this machine knows of it."""


def note(
    context: Context,
    definition: TableDefinition,
    number: int,
    data: bytes,
    by: Collection[str],
    *,
    durable: bool = True,
) -> None:
    """This entry of the log was taken over, or was made here; it and those before it are by these replicas, among
    others. Not `durable`: where it is taken over soon, and is noted then."""
    context.journal.replicas.note_entry(definition.uuid, number, hashlib.sha256(data).hexdigest(), durable=durable)
    note_names(context, definition, by)


def note_names(context: Context, definition: TableDefinition, names: Collection[str]) -> None:
    """The table has these replicas, among others."""
    known = context.journal.replicas.record(definition.uuid).names
    if not known.issuperset(names):
        context.journal.replicas.note_names(definition.uuid, known.union(names))


def check(context: Context, definition: TableDefinition, keeper: Keeper, nodes: TableNodes) -> None:
    """Raise `ReadOnly` where Keeper is older than what this machine knows of it."""
    kept = connections(context).kept(nodes.path)
    if kept.is_proved:
        return
    names = frozenset(keeper.children(nodes.replicas))
    last = context.journal.replicas.record(definition.uuid)
    if last.number >= 0 and not _is_there(keeper, nodes, last.number, last.digest):
        keeper.sync(nodes.path)  # a server that lags behind the others may not have it yet
        if not _is_there(keeper, nodes, last.number, last.digest):
            raise rolled_back(definition, f"it does not have entry {last.number} of the log, which it had")
    if names != last.names:
        context.journal.replicas.note_names(definition.uuid, names)
    kept.is_proved = True


def rolled_back(definition: TableDefinition, why: str) -> SetBack:
    """What is said of a Keeper that knows less than it did."""
    name = definition.full_name
    return SetBack(
        f"{name} can only be read here: Keeper was set back to an older state: {why}",
        hint="nothing was deleted. Give Keeper its newer data back, or rebuild the table's nodes from what the "
        f"replicas have: 'frostline replica restore {name} --from-parts'",
    )


def _is_there(keeper: Keeper, nodes: TableNodes, number: int, digest: str) -> bool:
    """Whether the log has the entry, or was cleaned past it."""
    node = keeper.find(f"{nodes.log}/log-{number:010d}")
    if node is not None:
        return hashlib.sha256(node.data).hexdigest() == digest
    try:
        numbers = [number_of(name) for name in keeper.children(nodes.log)]
    except NotFound:
        return False
    return min(numbers, default=-1) > number
