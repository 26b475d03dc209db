"""Opening what a store works on: its disks, its journal, what is known of both."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime

from disks.kinds import check_holds_parts
from disks.registry import open_disk
from disks.stores.wrappers.limit import Limiter
from disks.workers.progress import SILENT, Progress
from tiering.catalog.catalog import Catalog
from tiering.catalog.context import Context
from tiering.catalog.identities.identity import Identities
from tiering.catalog.index.index import PartIndex
from tiering.catalog.reservation import Reservations
from tiering.config.disk_locations import place_of
from tiering.config.settings import Config
from tiering.engine import replication
from tiering.journal.journal import Journal


def make_context(
    config: Config,
    *,
    actor: str,
    workers: int | None,
    limiter: Limiter | None,
    progress: Progress | None,
    clock: Callable[[], datetime],
) -> Context:
    """Open the disks and the journal of a configuration, and compare the disks' ids: one request a bucket at most."""
    state = config.state_directory
    limits = config.limits
    workers = workers or limits.workers
    limiter = limiter or Limiter(
        bytes_per_second=limits.bytes_per_second,
        requests_per_second=limits.requests_per_second,
        max_concurrency=max(workers, 16),
    )
    disks = {name: open_disk(name, keys, state, limiter=limiter) for name, keys in config.disks.items()}
    for disk in disks.values():
        check_holds_parts(disk)
    journal = Journal(state, reserve_bytes=limits.state_reserve_bytes)
    places = {name: place_of(disk, os.environ).text for name, disk in config.disks.items()}
    identities = Identities(disks, places, journal)
    identities.look()
    context = Context(
        config=config,
        disks=disks,
        catalog=Catalog(
            config,
            disks,
            dropping=journal.being_dropped,
            merges=lambda uuid: journal.work.merges(table_uuid=uuid),
            index=PartIndex(state / "catalog.db"),
            copies=journal.source_copies,
            progress=progress or SILENT,
        ),
        journal=journal,
        reservations=Reservations(config, disks, journal.overrides.drained),
        limiter=limiter,
        workers=workers,
        actor=actor,
        progress=progress or SILENT,
        clock=clock,
        identities=identities,
    )
    if config.keeper.hosts:
        replication.put_marks(disks.values(), config, context)
    return context
