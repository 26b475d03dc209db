"""Following the log: a daemon takes in what the other replicas did when they did it, not with its next pass.

A thread with a store of its own, as the daemon's other lanes have one, watches the log of each replicated table here.
A watch fires once and may be lost with a session, so each log is still read now and then: one request.
What could not be done is left to the passes. One is due at once when a replica is gone that was moving parts to what
all of them share: it takes over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from oplog.errors import FrostlineError, Locked
from tiering.catalog.context import Context
from tiering.catalog.freshness import Freshness
from tiering.engine.replication import OpenStore
from tiering.table.schema import TableDefinition
from zerocopy.execution import work
from zerocopy.replica import heartbeat, identity, shared
from zerocopy.replica.connections import connections
from zerocopy.replica.nodes import TableNodes
from zerocopy.replica.replica import Replica

_LOOK_SECONDS = 60.0
_AGAIN_SECONDS = 0.2
"""Another thread or process of this machine is at the queue."""

log = logging.getLogger("frostline.replicas")


class Follower:
    """Follows from `begin` to `close`."""

    def __init__(self, open_store: Callable[[], OpenStore], pass_due: Callable[[], object] = lambda: None) -> None:
        self._open_store, self._pass_due = open_store, pass_due
        self._wake, self._over = threading.Event(), threading.Event()
        self._seen: dict[str, list[str]] = {}
        """The log of each table when it was done with."""
        self._again: set[str] = set()
        """The tables of which an entry waited for what has changed since."""
        self._minded: set[str] = set()
        """The tables whose mover was looked at, and nothing has changed since."""
        self._thread = threading.Thread(target=self._work, name="replicas", daemon=True)

    def begin(self) -> None:
        """Start."""
        self._thread.start()

    def close(self) -> None:
        """Stop between two tables, and wait for that."""
        self._over.set()
        self._wake.set()
        self._thread.join()

    def look(self) -> None:
        """There may be a table that it does not know."""
        self._wake.set()

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                self._minded.clear()
                with self._open_store() as store:
                    connections(store.context).woken = self._wake_for
                    self._follow(store)
            except (FrostlineError, OSError) as error:  # told by the passes, which meet it too
                log.debug("the logs of replicated tables are not followed: %s", error)
            except Exception:
                log.exception("the logs of replicated tables are not followed")
            self._over.wait(_LOOK_SECONDS)

    def _follow(self, store: OpenStore) -> None:
        while not (self._over.is_set() or store.context.stop.is_set()):
            self._wake.clear()
            store.refresh(Freshness.LAST_ANSWER)
            ours = [table for table in store.definitions() if table.is_replicated]
            done = [self._of_table(store, table) for table in ours if identity.read(store.context, table) is not None]
            self._wake.wait(_LOOK_SECONDS if all(done) else _AGAIN_SECONDS)

    def _wake_for(self, path: str) -> None:
        self._again.add(path)
        self._wake.set()

    def _of_table(self, store: OpenStore, table: TableDefinition) -> bool:
        """Whether all that is new in the log was looked at."""
        nodes = TableNodes(str(table.keeper))
        self._mind_mover(store, table, nodes)
        try:
            names = connections(store.context).keeper.watch(nodes.log, self._wake.set)
            if self._seen.get(nodes.path) == names and nodes.path not in self._again:
                return True
            self._again.discard(nodes.path)
            work.sync(store.context, table, log=names)
        except Locked:
            self._seen.pop(nodes.path, None)
            return False
        except FrostlineError as error:
            log.debug("%s: %s", table.full_name, error.message)
            return True
        self._seen[nodes.path] = names
        return True

    def _mind_mover(self, store: OpenStore, table: TableDefinition, nodes: TableNodes) -> None:
        """Say that a pass is due when who moved parts is gone, and has not said that it is done."""
        if nodes.path in self._minded or shared.disk_of(store.context, table) is None:
            return
        keeper = connections(store.context).keeper
        self._minded.add(nodes.path)  # before the question: what changes from then on counts
        try:
            if not keeper.watch(nodes.mover, lambda: self._look_at_mover(nodes.path)) and keeper.get(nodes.mover).data:
                log.info("%s: who moved its parts is gone, and a pass takes over", table.full_name)
                self._pass_due()
        except FrostlineError as error:
            self._minded.discard(nodes.path)
            log.debug("%s: who moves is unknown: %s", table.full_name, error.message)

    def _look_at_mover(self, path: str) -> None:
        self._minded.discard(path)
        self._wake.set()


def serve(
    context: Context,
    beside: Callable[[], OpenStore] | None = None,
    pass_due: Callable[[], object] = lambda: None,
) -> str:
    """Give parts to other replicas until the store is closed; returns the address. With a way to open the store once
    more, for another thread, also take in at once what they do, and say when a pass is due before its time: when one of
    them is gone that was moving parts."""
    address = heartbeat.serve(context)
    for definition in context.catalog.tables():
        if definition.is_replicated:
            try:
                heartbeat.announce(Replica.open(context, definition))
            except FrostlineError:  # told by the next pass
                continue
    known = connections(context)
    if beside is not None and known.follower is None:
        following = Follower(beside, pass_due)
        known.follower = following
        following.begin()
    return address
