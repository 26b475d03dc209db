"""Saying where a replica gives its parts, and that it is there: for as long as its daemon runs."""

from __future__ import annotations

from contextlib import suppress

from oplog.errors import AlreadyExists
from tiering.catalog.context import Context
from zerocopy.replica.connections import connections, secret_of
from zerocopy.replica.replica import Replica


def serve(context: Context) -> str:
    """Give parts to other replicas from now on, until the store is closed; returns the address."""
    from zerocopy.interserver.server import PartServer

    known = connections(context)
    if known.server is None:
        known.server = PartServer(context, secret_of(context))
    return known.server.address


def announce(replica: Replica) -> None:
    """Say in Keeper where this replica gives its parts, and that it is there; nothing where it gives none."""
    known = connections(replica.context)
    if known.server is None:
        return
    keeper, address = replica.keeper, known.server.address.encode()
    if keeper.get(replica.own.host).data != address:
        keeper.set(replica.own.host, address)
    node = keeper.find(replica.own.is_active)
    if node is not None and node.owner != keeper.session:
        keeper.delete(replica.own.is_active)  # of a daemon that ended, and of whose session Keeper does not know yet
        node = None
    if node is None:
        with suppress(AlreadyExists):
            keeper.create(replica.own.is_active, ephemeral=True)
