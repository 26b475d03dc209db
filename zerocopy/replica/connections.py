"""The open connections of a store's replicated tables: one session with Keeper, and what gives parts to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from oplog.errors import UsageError
from tiering.catalog.context import Context
from zerocopy.keeper.client import Keeper

if TYPE_CHECKING:  # a server is only in the daemon
    from zerocopy.interserver.server import PartServer


class Closeable(Protocol):
    """What works for as long as the connections are open."""

    def close(self) -> None:
        """End it."""


class Connections:
    """Opened with the first replicated table that is worked on, closed with the store."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.server: PartServer | None = None
        self.follower: Closeable | None = None
        self.proved: set[tuple[int, str]] = set()
        """Sessions and tables of which Keeper was seen to know what it knew before."""

    def close(self) -> None:
        """Stop following and giving parts, and end the session."""
        if self.follower is not None:
            self.follower.close()
            self.follower = None
        if self.server is not None:
            self.server.close()
            self.server = None
        self.keeper.close()


def connections(context: Context) -> Connections:
    """Those of the store; opened now if nobody did. Raises `UsageError` where no Keeper is configured."""
    if context.replication is None:
        from zerocopy.keeper.opening import open_keeper

        context.replication = Connections(open_keeper(context.config.keeper, lambda: context.stop.is_set()))
    assert isinstance(context.replication, Connections)
    return context.replication


def secret_of(context: Context) -> str:
    """What signs requests between replicas. Raises `UsageError` when none is configured."""
    secret = context.config.interserver.secret
    if not secret:
        raise UsageError(
            "replicas give parts to one another, and there is no secret to know each other by",
            hint="give all of them the same: interserver: {secret: …}; 'openssl rand -hex 32' makes one",
        )
    return secret
