"""What is known of the replicas of a table: who is active, what each has, how far each is behind. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from oplog.errors import FrostlineError
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition
from zerocopy.replica import identity
from zerocopy.replica.connections import connections
from zerocopy.replica.nodes import TableNodes, number_of
from zerocopy.replica.replica import Replica


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica of a table."""

    table: str
    replica: str
    here: bool
    """Whether it is this machine's."""
    active: bool
    """Whether its daemon runs and is heard of."""
    host: str
    """Where it gives parts to the others; empty where it never did."""
    parts: int
    queue: int
    """Entries that it took over and has not done."""
    behind: int
    """Entries of the log that it has not taken over."""
    lost: bool
    """Whether the log is cleaned past that: with its next sync it takes over what another one has."""


@dataclass(frozen=True, slots=True)
class OwnReplica:
    """This machine's replica of a table, as far as is known without Keeper."""

    table: str
    keeper_path: str
    replica: str
    """Empty where this machine is none."""
    read_only: str
    """Why the table cannot be changed here; empty when it can."""


def own_replicas(context: Context) -> list[OwnReplica]:
    """Every replicated table here."""
    found = []
    for definition in context.catalog.tables():
        if definition.is_replicated:
            known = identity.read(context, definition)
            name = known.replica if known is not None else ""
            found.append(
                OwnReplica(definition.full_name, str(definition.keeper), name, why_read_only(context, definition))
            )
    return found


def why_read_only(context: Context, definition: TableDefinition) -> str:
    """Why the table cannot be changed here; empty when it can."""
    try:
        Replica.open(context, definition)
    except FrostlineError as error:
        return error.message
    return ""


def statuses(context: Context, definition: TableDefinition) -> list[ReplicaStatus]:
    """Every replica of the table. Raises `Transient` when Keeper does not answer, `NotFound` when it knows no such
    table."""
    keeper, nodes = connections(context).keeper, TableNodes(str(definition.keeper))
    known = identity.read(context, definition)
    keeper.sync(nodes.path)
    log = [number_of(name) for name in keeper.children(nodes.log)]
    found = []
    for name in keeper.children(nodes.replicas):
        own = nodes.replica(name)
        pointer, host = keeper.find(own.log_pointer), keeper.find(own.host)
        queue, parts = keeper.find(own.queue), keeper.find(own.parts)
        if pointer is None or queue is None or parts is None:  # it is being dropped
            continue
        begin = int(pointer.data or b"0")
        found.append(
            ReplicaStatus(
                definition.full_name,
                name,
                here=known is not None and known.replica == name,
                active=keeper.exists(own.is_active),
                host=host.data.decode(errors="replace") if host is not None else "",
                parts=parts.children,
                queue=queue.children,
                behind=sum(number >= begin for number in log),
                lost=(lost := keeper.find(own.is_lost)) is not None and lost.data == b"1",
            )
        )
    return found
