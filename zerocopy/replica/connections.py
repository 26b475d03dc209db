"""The open connections of a store's replicated tables: one session with Keeper, and what gives parts to others."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.object_disk.sharing.prefix import store_identity
from oplog.errors import UsageError
from tiering.catalog.context import Context
from zerocopy.keeper.client import Keeper, Node

if TYPE_CHECKING:  # most verbs need no HTTP
    from zerocopy.interserver.client import Peers
    from zerocopy.interserver.server import PartServer


class Worker(Protocol):
    """What works for as long as the connections are open."""

    def close(self) -> None:
        """End it."""

    def look(self) -> None:
        """There may be a table that it does not know."""


class KnownTable(msgspec.Struct):
    """What a session knows of a table and need not ask again. What is changed by it is checked when it is changed."""

    session: int
    own: Node | None = None
    """The node of this machine's replica, until `is_old` is set."""
    is_old: threading.Event = msgspec.field(default_factory=threading.Event)
    active_changed: threading.Event | None = None
    """Set when another home may live by the replica's name since it was looked who does; None where nobody looked."""
    is_proved: bool = False
    """Whether Keeper was seen to know what it knew before."""
    is_compared: bool = False
    """Whether what is here was compared with what Keeper says of it."""
    pointer: Node | None = None
    is_lost: Node | None = None
    entries: dict[str, bytes] = msgspec.field(default_factory=dict)
    """What waits in the queue, by its node."""
    inserted: dict[str, int] = msgspec.field(default_factory=dict)
    """Of those that bring a part of another replica's, when it was inserted: seconds since 1970."""
    oldest: bytes | None = None
    """What was last said in Keeper of the oldest of them."""
    log_length: int = 0
    """How many entries the log had when it was last looked at."""
    hosts: dict[str, str] = msgspec.field(default_factory=dict)
    """Where replicas give their parts, as they said once."""
    begun: float = msgspec.field(default_factory=time.time)
    """Since when it is known, in seconds since 1970."""
    announced: float = -math.inf
    named: float = -math.inf
    """When, by the clock of this process, the replica was last announced, and the others were last listed."""

    def forget(self) -> None:
        """The replica may have been replaced, or its nodes created again."""
        self.own, self.is_old, self.is_proved = None, threading.Event(), False
        self.active_changed = None
        self.entries, self.hosts, self.inserted, self.oldest = {}, {}, {}, None
        self.announced = -math.inf
        self.forget_place()

    def forget_place(self) -> None:
        """Of how far the replica is in the log nothing is known."""
        self.pointer = self.is_lost = None


class ReplicaConnections:
    """Opened with the first replicated table that is worked on, closed with the store."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self._peers: Peers | None = None
        self._dialling = threading.Lock()
        self.server: PartServer | None = None
        self.follower: Worker | None = None
        self.woken: Callable[[str], None] = lambda path: None
        """Told of the table at this path when what kept an entry of its queue waiting has changed."""
        self._kept: dict[str, KnownTable] = {}
        self._stores: dict[str, str] = {}
        """Disk -> which store its objects lie in."""

    def store_of(self, disk: LoggedDisk) -> str | None:
        """As `store_identity`, asked for once: it does not change."""
        if disk.name not in self._stores and (identity := store_identity(disk)) is not None:
            self._stores[disk.name] = identity
        return self._stores.get(disk.name)

    def kept(self, path: str) -> KnownTable:
        """What is kept of the table at this path; nothing of an earlier session."""
        session, known = self.keeper.session, self._kept.get(path)
        if known is None or known.session != session:
            known = self._kept[path] = KnownTable(session)
        return known

    def peers(self, context: Context) -> Peers:
        """The way to the other replicas."""
        from zerocopy.interserver import tls
        from zerocopy.interserver.client import Peers

        with self._dialling:
            if self._peers is None:
                self._peers = Peers(secret_of(context), tls.for_client(context.config.interserver))
            return self._peers

    def close(self) -> None:
        """Stop following and giving parts, and end the session."""
        if self.follower is not None:
            self.follower.close()
            self.follower = None
        if self.server is not None:
            self.server.close()
            self.server = None
        if self._peers is not None:
            self._peers.close()
            self._peers = None
        self.keeper.close()


def connections(context: Context) -> ReplicaConnections:
    """Those of the store; opened now if nobody did. Raises `UsageError` where no Keeper is configured."""
    if context.replication is None:
        from zerocopy.keeper.opening import open_keeper

        context.replication = ReplicaConnections(open_keeper(context.config.keeper, lambda: context.stop.is_set()))
    assert isinstance(context.replication, ReplicaConnections)
    return context.replication


def peers_of(context: Context) -> Peers:
    """The way to the other replicas. Raises `UsageError` when there is nothing to be known by."""
    return connections(context).peers(context)


def secret_of(context: Context) -> str:
    """What signs requests between replicas. Raises `UsageError` when none is configured."""
    secret = context.config.interserver.secret
    if not secret:
        raise UsageError(
            "replicas give parts to one another, and there is no secret to know each other by",
            hint="give all of them the same: interserver: {secret: …}; 'openssl rand -hex 32' makes one",
        )
    return secret
