"""What every operation of the engine works with: one place, passed along, never global."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from disks.base import Disk
from disks.stores.wrappers.limit import Limiter
from disks.workers.progress import Progress, Silent
from oplog.errors import NotFound
from tiering.catalog.catalog import Catalog
from tiering.catalog.clock_check import Clocks
from tiering.catalog.identities.faults import Fault
from tiering.catalog.identities.identity import Identities
from tiering.catalog.reservation import Reservations
from tiering.config.settings import Config
from tiering.journal.journal import Journal


def wall_clock() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


class Closeable(Protocol):
    """What ends with the store."""

    def close(self) -> None:
        """End it."""


class Synced(msgspec.Struct, frozen=True):
    """A replica had taken in at this time what the others had done."""

    at: datetime
    waiting: int
    """Entries of it that could not be done here yet."""


class Context(msgspec.Struct):
    """An open store's parts. `stop` is polled between steps of long work: SIGTERM and `moves cancel` set it."""

    config: Config
    disks: Mapping[str, Disk]
    catalog: Catalog
    journal: Journal
    reservations: Reservations
    limiter: Limiter | None = None
    """What all of its buckets' requests keep to; None where nobody has to share it."""
    workers: int = 8
    actor: str = "library"
    progress: Progress = msgspec.field(default_factory=Silent)
    clock: Callable[[], datetime] = wall_clock
    clocks: Clocks = msgspec.field(default_factory=Clocks)
    identities: Identities | None = None
    """Whether the disks are those that their names stand for; None where nobody compares."""
    partial: bool = False
    """Answers may leave out what lies on disks that are not there: somebody asked for that."""
    stop: threading.Event = msgspec.field(default_factory=threading.Event)
    replication: Closeable | None = None
    """The open connections that replicated tables work with; None until the first of them is worked on."""
    synced: dict[str, Synced] = msgspec.field(default_factory=dict)
    """How far this machine's replica of each table is, by uuid, as the passes of this process found it."""
    idle_engines: list[Closeable] = msgspec.field(default_factory=list)
    """Query engines that no query uses, kept for the next ones."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The disks that are not what they were."""
        return self.identities.faults if self.identities is not None else ()

    def take(self, config: Config) -> None:
        """Go on by another configuration. It has the same disks, and its policies put them into the same volumes."""
        self.config = self.catalog.config = self.reservations.config = config

    def disk(self, name: str) -> Disk:
        """The disk. Raises `NotFound` with the known names."""
        try:
            return self.disks[name]
        except KeyError:
            known = ", ".join(sorted(self.disks))
            raise NotFound(f"No such disk: {name}", hint=f"the disks are: {known}") from None
