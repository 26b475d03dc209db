"""What this machine remembers of its replicas, without asking Keeper."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from disks.host.locks import lock_holder
from tiering.config.settings import Config
from tiering.daemon.jobs.record import JobRecord, read
from tiering.daemon.lock import daemon_lock_path
from tiering.journal.journal import Journal
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from tiering.engine.store import Store

_PASS = "policy"
"""The job whose runs are the daemon's passes."""


class ReplicaTrouble(msgspec.Struct, frozen=True):
    """What kept this machine's replica of a table when it last worked."""

    error: str = ""
    """Why the first entry that waits could not be done; empty when all could."""
    waiting: int = 0
    tries: int = 0
    """Of that entry."""
    last_try: str | None = None
    next_try: str | None = None
    """When the daemon passes next; None when it does not run: with the next `replica sync`."""
    oldest_insert: int | None = None
    """Of what waits: when it was inserted, in seconds since 1970."""

    def lag_seconds(self, now: datetime) -> int:
        """How long that has waited."""
        return max(0, int(now.timestamp()) - self.oldest_insert) if self.oldest_insert is not None else 0


def replica_trouble(config: Config, journal: Journal, definition: TableDefinition) -> ReplicaTrouble:
    """Of one table."""
    failed = journal.replicas.failures(definition.uuid)
    if not failed:
        return ReplicaTrouble()
    inserted = [one.inserted for one in failed if one.inserted is not None]
    first = failed[0]
    return ReplicaTrouble(
        error=f"{first.brings}: {first.reason}",
        waiting=len(failed),
        tries=first.tries,
        last_try=first.last,
        next_try=_next_pass(config),
        oldest_insert=min(inserted, default=None),
    )


class WaitingReplica(msgspec.Struct, frozen=True):
    """A replica of this machine, in `status`."""

    table: str
    waiting: int
    lag_seconds: int
    last_error: str
    last_try: str | None
    next_try: str | None


def waiting_replicas(store: Store) -> list[WaitingReplica]:
    """One of each replicated table."""
    rows = []
    for definition in store.definitions():
        if definition.is_replicated:
            trouble = replica_trouble(store.context.config, store.context.journal, definition)
            lag = trouble.lag_seconds(store.context.clock())
            last_try, next_try = trouble.last_try, trouble.next_try
            rows.append(WaitingReplica(definition.full_name, trouble.waiting, lag, trouble.error, last_try, next_try))
    return rows


def is_followed(config: Config) -> bool:
    """Whether a daemon of this machine takes over what other replicas do."""
    return lock_holder(daemon_lock_path(config.state_directory)) is not None


def _next_pass(config: Config) -> str | None:
    if not is_followed(config):
        return None
    coming = read(config.state_directory).get(_PASS, JobRecord()).next
    return coming.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if coming is not None else None
