"""Saying where a replica gives its parts, and that it is there: for as long as its daemon runs."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from oplog.errors import AlreadyExists
from tiering.catalog.context import Context
from zerocopy.replica.connections import connections, secret_of
from zerocopy.replica.inserts import arrivals
from zerocopy.replica.replica import Replica

_AGAIN_SECONDS = 60.0
"""How often it is looked whether what was said is there still: somebody may have removed it by hand."""


def serve(context: Context) -> str:
    """Give parts to other replicas from now on, until the store is closed; returns the address."""
    from zerocopy.interserver.server import PartServer

    known = connections(context)
    if known.server is None:
        known.server = PartServer(context, secret_of(context), partial(arrivals.is_arriving, context))
    return known.server.address


def announce(replica: Replica) -> None:
    """Say in Keeper where this replica gives its parts, and that it is there; nothing where it gives none."""
    known = connections(replica.context)
    if known.server is None:
        return
    if time.monotonic() - replica.kept.announced < _AGAIN_SECONDS:
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
    replica.kept.announced = time.monotonic()
