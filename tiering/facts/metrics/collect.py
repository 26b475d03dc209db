"""Looks at an open store for its numbers. Sends no request and opens no file of a part: it takes what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
from disks.kinds import as_disk
from disks.stores.wrappers.metered import MeteredStore
from oplog.errors import FrostlineError
from tiering.daemon.inbox import records, table_inbox
from tiering.engine.small_parts import crowded
from tiering.facts.metrics.process import Calls, Process, Traffic
from tiering.facts.metrics.snapshot import Amount, DiskSeen, InboxSeen, PartsSeen, ReplicaSeen, Seen, WorkSeen, overdue
from tiering.move import policy_facts

if TYPE_CHECKING:
    from disks.base import Disk
    from disks.stores.wrappers.limit import Limiter
    from tiering.catalog.catalog import Catalog
    from tiering.catalog.context import Context
    from tiering.daemon.jobs.row import JobRow
    from tiering.daemon.status import DaemonStatus
    from tiering.engine.store import Store
    from tiering.facts.backups import BackupsStatus


_DAY = timedelta(days=1)


def look(store: Store, backups: BackupsStatus | None = None) -> Seen:
    """The store now, as its catalog knows it. `backups` is what `status` says of them."""
    context = store.context
    now = context.clock()
    known, failed = _backups(backups)
    journal = context.journal
    return Seen(
        at=now,
        places=_places(context.catalog),
        overdue=overdue(_perhaps_due(context.catalog, now), context.config.policies, now),
        disks=tuple(_disk(disk) for disk in context.disks.values()),
        moves=tuple(WorkSeen(*row) for row in journal.work.move_counts()),
        merges=tuple(WorkSeen(*row) for row in journal.work.merge_counts()),
        failing_moves=len(policy_facts.failing_moves(context)),
        pins=len(journal.overrides.pins()),
        paused=Counter(str(pause.kind) for pause in journal.overrides.pauses()),
        broken=len(context.catalog.broken),
        set_aside=len(store.set_aside()),
        backups=known,
        failed_proofs=failed,
        inbox=_inbox(context.config.inbox.path),
        crowded=_crowded(store),
        replicas=_replicas(context),
        budgets=tuple(policy_facts.budgets(context)),
        day_money=policy_facts.money_since(context, now - _DAY),
        currency=context.config.prices.currency,
    )


def process(
    status: DaemonStatus,
    jobs: Sequence[JobRow],
    store: Store | None = None,
    limiter: Limiter | None = None,
) -> Process:
    """The daemon by its status and that of its jobs; with its store and limiter, what it sends as well."""
    return Process(
        up=status.running,
        passes=status.ticks,
        moved=status.moved,
        merged=status.merged,
        failures=status.failures,
        last_pass=status.last_tick,
        is_troubled=bool(status.problem),
        needs_restart=bool(status.config_kept),
        jobs=jobs,
        lanes=status.lanes,
        hooks=status.hooks,
        held=status.held,
        traffic=tuple(_traffic(store)) if store is not None else (),
        concurrency=limiter.concurrency if limiter is not None else None,
        answered={call: Calls(*astuple(found)) for call, found in limiter.answered().items()} if limiter else {},
    )


def _places(catalog: Catalog) -> dict[PartsSeen, Amount]:
    """What lies where. Goes through the parts only where nothing else tells."""
    places: dict[PartsSeen, Amount] = {}
    for table in catalog.tables():
        sums = catalog.sums(table)
        for disk, whole in (sums or {}).items():
            if whole.parts:
                volume = catalog.volume_of(table, disk) if table.policy in catalog.config.policies else None
                place = PartsSeen(table.full_name, disk, volume or "", "active")
                places.setdefault(place, Amount()).add(whole.rows, whole.bytes, whole.parts)
        for stored in catalog.parts(table, include_outdated=True) if sums is None else ():
            place = PartsSeen(table.full_name, stored.disk, stored.volume or "", stored.state)
            places.setdefault(place, Amount()).add(stored.facts.rows, stored.facts.size_bytes)
    return places


def _perhaps_due(catalog: Catalog, now: datetime) -> Iterator[_Known]:
    """The parts of which a rule may be due where they lie: those of a partition of which none is are not looked at."""
    for table in catalog.tables():
        if not table.ttl:
            continue
        yield from map(_Known, catalog.partitions(table, catalog.due(table, now)))


def _replicas(context: Context) -> dict[str, ReplicaSeen]:
    """Of the tables that there are, as far as this process has taken in what other replicas did."""
    known = ((table, context.synced.get(table.uuid)) for table in context.catalog.tables())
    return {table.full_name: ReplicaSeen(last.at, last.waiting) for table, last in known if last is not None}


def _crowded(store: Store) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in crowded(store, store.context.config.daemon.cold_merge_parts):
        found[one.table] += one.parts
    return found


class _Known:
    """A part by what is known without reading more: the policy wants no more of it here."""

    __slots__ = ("definition", "disk", "name", "part")

    def __init__(self, stored: Any) -> None:
        self.definition, self.disk, self.name, self.part = stored.definition, stored.disk, stored.name, stored.facts


def _disk(disk: Disk) -> DiskSeen:
    if disk.broken is not None:
        return DiskSeen(disk.name, disk.kind, up=False)
    try:
        usage = disk.usage()
        return DiskSeen(
            disk.name,
            disk.kind,
            not disk.unreachable,
            usage.free_bytes,
            usage.total_bytes,
            disk.revision,
            logged.looked if (logged := as_disk(disk, LoggedDisk)) is not None else None,
        )
    except (FrostlineError, OSError):
        return DiskSeen(disk.name, disk.kind, up=False)


def _inbox(path: str | None) -> dict[str, InboxSeen]:
    """Nothing where there is no inbox: its worker reports that."""
    if path is None:
        return {}
    try:
        return {records.shown(table.name): _landed(table) for table in table_inbox.tables_of(Path(path))[0]}
    except (FrostlineError, OSError):
        return {}


def _landed(table: table_inbox.TableInbox) -> InboxSeen:
    files = [*table.listing()[0], *table.taken()]
    oldest = min((file.changed_ns for file in files), default=None)
    return InboxSeen(
        len(files),
        sum(file.size_bytes for file in files),
        len(table.finished(table_inbox.FAILED)),
        oldest / 1e9 if oldest is not None else None,
    )


def _traffic(store: Store) -> list[Traffic]:
    found = []
    for disk in store.context.disks.values():
        bucket = as_disk(disk, BucketDisk)
        if bucket is not None and disk.broken is None and isinstance(bucket.store, MeteredStore):
            metered = bucket.store
            found.append(Traffic(disk.name, metered.counts(), metered.bytes_sent, metered.bytes_received))
    return found


def _backups(status: BackupsStatus | None) -> tuple[dict[str, dict[str, datetime]] | None, int]:
    if status is None:
        return None, 0
    known: dict[str, dict[str, datetime]] = {}
    failed = 0
    for row in status.tables:
        times = known.setdefault(row.table, {})
        if row.taken is not None:
            times["taken"] = datetime.fromisoformat(row.taken)
        proofs = [(word, proof) for word, proof in (("verified", row.verified), ("drilled", row.drilled)) if proof]
        times.update({word: datetime.fromisoformat(proof.time) for word, proof in proofs})
        failed += any(not proof.ok for _, proof in proofs)
    return known, failed
