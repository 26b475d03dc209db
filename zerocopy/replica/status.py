"""What is known of the replicas of a table: who is active, what each has, how far each is behind. Changes nothing."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from oplog.errors import FrostlineError
from tiering.catalog.context import Context
from tiering.facts.replicas import replica_trouble
from tiering.table.schema import TableDefinition
from zerocopy.keeper.client import Node
from zerocopy.replica import identity
from zerocopy.replica.connections import connections
from zerocopy.replica.lag import lag_seconds
from zerocopy.replica.nodes import TableNodes, number_of, place_in
from zerocopy.replica.replica import Replica


class ReplicaStatus(msgspec.Struct, frozen=True):
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
    lag_seconds: int = 0
    """How long the oldest insert of another replica has waited that it has not got."""
    last_error: str = ""
    """Why the first entry waits that could not be done; of this machine's replica."""
    next_try: str | None = None
    """When this machine's daemon passes next, if something could not be done and it runs."""


class OwnReplica(msgspec.Struct, frozen=True):
    """This machine's replica of a table, as far as is known without Keeper."""

    table: str
    keeper_path: str
    replica: str
    """Empty where this machine is none."""
    read_only: str
    """Why the table cannot be changed here; empty when it can."""
    lag_seconds: int | None = None
    """As `ReplicaStatus` has it; None where Keeper does not say."""
    last_error: str = ""
    next_try: str | None = None


def own_replicas(context: Context) -> list[OwnReplica]:
    """Every replicated table here."""
    found = []
    for definition in context.catalog.tables():
        if definition.is_replicated:
            known = identity.read(context, definition)
            name = known.replica if known is not None else ""
            why, lag = why_read_only(context, definition), None
            if not why:
                with suppress(FrostlineError):
                    lag = _own_lag(Replica.open(context, definition))
            trouble = replica_trouble(context.config, context.journal, definition)
            found.append(
                OwnReplica(
                    *(definition.full_name, str(definition.keeper), name, why, lag),
                    last_error=trouble.error,
                    next_try=trouble.next_try,
                )
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
    log = keeper.children(nodes.log)
    trouble = replica_trouble(context.config, context.journal, definition)
    found = []
    for name in keeper.children(nodes.replicas):
        own = nodes.replica(name)
        pointer, host = keeper.find(own.log_pointer), keeper.find(own.host)
        queue, parts = keeper.find(own.queue), keeper.find(own.parts)
        if pointer is None or queue is None or parts is None:  # it is being dropped
            continue
        behind = _beyond(log, pointer, own.log_pointer)
        here = known is not None and known.replica == name
        found.append(
            ReplicaStatus(
                definition.full_name,
                name,
                here=here,
                active=keeper.exists(own.is_active),
                host=host.data.decode(errors="replace") if host is not None else "",
                parts=parts.children,
                queue=queue.children,
                behind=len(behind),
                lost=(lost := keeper.find(own.is_lost)) is not None and lost.data == b"1",
                lag_seconds=lag_seconds(keeper, nodes, name, behind, context.clock()),
                last_error=trouble.error if here else "",
                next_try=trouble.next_try if here else None,
            )
        )
    return found


def _own_lag(replica: Replica) -> int:
    keeper, nodes = replica.keeper, replica.table
    behind = _beyond(keeper.children(nodes.log), keeper.get(path := replica.own.log_pointer), path)
    return lag_seconds(keeper, nodes, replica.name, behind, replica.context.clock())


def _beyond(log: list[str], pointer: Node, path: str) -> list[str]:
    """The entries of the log that were not taken over."""
    begin = place_in(pointer.data, path)
    return [name for name in log if number_of(name) >= begin]
