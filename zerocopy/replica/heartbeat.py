"""Saying where a replica gives its parts, and that it is there: for as long as its daemon runs.

`is_active` goes with the session of the daemon, and says in which home that one works (`identity.LivingOwner`). What an
earlier session of this home left is taken away; what another home has stays.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from oplog.errors import AlreadyExists, Conflict, NotFound
from tiering.catalog.context import Context
from tiering.table.schema import TableDefinition
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CreateNode, DeleteNode, Operation, Set
from zerocopy.replica import identity
from zerocopy.replica.connections import connections, secret_of
from zerocopy.replica.inserts import staged_parts
from zerocopy.replica.replica import Replica

_AGAIN_SECONDS = 60.0
"""How often the heartbeat checks that its node still exists: somebody may have removed it."""


def serve(context: Context) -> str:
    """Give parts to other replicas from now on, until the store is closed; returns the address."""
    from zerocopy.interserver.server import PartServer

    known = connections(context)
    if known.server is None:
        known.server = PartServer(
            context,
            secret_of(context),
            partial(staged_parts.is_arriving, context),
            staged_parts.place_of,
            partial(_replica_of, context),
        )
    return known.server.address


def _replica_of(context: Context, definition: TableDefinition) -> str:
    known = identity.read(context, definition)
    return known.replica if known is not None else ""


def announce(replica: Replica) -> None:
    """Say in Keeper where this replica gives its parts, and that it is there; nothing where it gives none. Raises
    `ReadOnly` where another home lives by its name."""
    known = connections(replica.context)
    if known.server is None:
        return
    if time.monotonic() - replica.kept.announced < _AGAIN_SECONDS:
        return
    keeper, own, address = replica.keeper, replica.own, known.server.address.encode()
    host, node = keeper.get(own.host), keeper.find(own.is_active)
    if node is None or node.owner != keeper.session:
        identity.check_owner(replica.context, replica.definition, replica.name, node)
        identity.check_home(replica.context, replica.definition, keeper, own)
        # A newcomer writes `host`, so at the version that was read first nobody has joined since then.
        left: list[Operation] = [] if node is None else [DeleteNode(own.is_active)]
        left += [DeleteNode(own.home)] if keeper.exists(own.home) else []
        data = identity.living_owner.encode(identity.owner_here(replica.context, keeper.session))
        words = [Set(own.host, address, host.version), *left, CreateNode(own.is_active, data, ephemeral=True)]
        try:
            keeper.multi(words, witness=Witness(own.is_active, data))
        except (AlreadyExists, Conflict, NotFound):  # the node went, or somebody came: the next pass looks again
            return
        if known.follower is not None:
            known.follower.look()
    elif host.data != address:
        keeper.set(own.host, address)
    replica.kept.announced = time.monotonic()


def is_announced(replica: Replica, *, within_seconds: float) -> bool:
    """Whether it is said that the replica is there, or is by then."""
    changed, end = threading.Event(), time.monotonic() + within_seconds
    while not replica.keeper.await_node(replica.own.is_active, changed.set):
        if not changed.wait(max(0.0, end - time.monotonic())):
            return False
        changed.clear()
    return True
