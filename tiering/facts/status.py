"""The store at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.sharing.writers import refusal
from tiering.catalog.new_parts import with_several_writers
from tiering.catalog.rows import bytes_by_disk, usage_rows
from tiering.catalog.stored import Broken
from tiering.daemon.jobs.record import read
from tiering.daemon.jobs.row import JobRow
from tiering.daemon.status import DaemonStatus
from tiering.engine.small_parts import Crowded, crowded
from tiering.facts.backups import BackupsStatus
from tiering.facts.replicas import WaitingReplica, waiting_replicas
from tiering.move.policy_facts import failing_moves
from tiering.parquet.read_cache import CacheFigures
from tiering.policy.plan import WAITING

if TYPE_CHECKING:
    from tiering.catalog.catalog import StoredPart
    from tiering.config.settings import Config
    from tiering.engine.store import Store
    from tiering.parquet.read_cache import ReadCache
    from tiering.policy.plan import Plan
    from tiering.table.schema import TableDefinition

_DAEMON_ANSWERS_SECONDS = 1.0


class PauseRow(msgspec.Struct, frozen=True):
    """Automatic work that waits, of a table or of all."""

    table: str | None
    kind: str
    since: datetime


class PinRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part or a partition that stays."""

    table: str
    part: str | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    volume: str | None


class RepeatedParts(msgspec.Struct, frozen=True):
    """Two parts with the same data that two machines inserted."""

    table: str
    parts: tuple[str, str]


class CacheStatus(CacheFigures, frozen=True, kw_only=True):
    """`cache stats --json`."""

    rate: float | None = msgspec.field(name="hit_rate")


class DaemonRow(DaemonStatus, frozen=True, kw_only=True):
    """`daemon status --json`."""

    jobs: list[JobRow]


class BrokenDiskRow(msgspec.Struct, frozen=True):
    """A disk that is not the one that its name stands for."""

    disk: str
    kind: str
    what: str


class UnreadableRow(msgspec.Struct, frozen=True):
    """A table whose definition cannot be read."""

    table: str
    uuid: str
    what: str
    hint: str


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """What each answer about a store also says, where it is so."""

    broken_disks: list[BrokenDiskRow] | UnsetType = UNSET
    unreachable: list[str] | UnsetType = UNSET
    unreadable_tables: list[UnreadableRow] | UnsetType = UNSET


class NotWritten(msgspec.Struct, frozen=True):
    """A disk whose log this machine may not write: another machine does, or the log was retired."""

    disk: str
    what: str
    hint: str | None


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`status --json`."""

    tables: int
    replicated: list[str]
    replicas: list[WaitingReplica]
    parts: int
    rows: int
    bytes: int
    bytes_by_disk: dict[str, int]
    active_moves: int
    failed_moves: int
    active_merges: int
    planned_moves: int
    waiting_moves: dict[str, int]
    """Due parts that cannot move now, by the kind of reason."""
    pauses: list[PauseRow]
    pins: list[PinRow]
    not_written: list[NotWritten]
    broken: list[Broken]
    repeated: list[RepeatedParts]
    crowded: list[Crowded]
    garbage: dict[str, int] | None
    cache: CacheStatus | None
    daemon: DaemonRow
    recovered: list[str]
    backups: BackupsStatus | None


def store_status(store: Store, planned: Plan | None = None, *, backups: BackupsStatus | None = None) -> StoreStatus:
    """The store now. `planned` is the plan of now, where somebody has made it already."""
    from tiering.catalog.new_parts import repeated

    planned = store.plan(rest="none") if planned is None else planned
    journal, config = store.context.journal, store.context.config
    names = {definition.uuid: definition.full_name for definition in store.definitions()}
    sums = [*usage_rows(store.context.catalog, store.definitions())]
    return StoreStatus(
        tables=len(names),
        replicated=[definition.full_name for definition in store.definitions() if definition.is_replicated],
        replicas=waiting_replicas(store),
        parts=sum(row.parts for row in sums),
        rows=sum(row.rows for row in sums),
        bytes=sum(row.bytes for row in sums),
        bytes_by_disk=bytes_by_disk(store.context.disks, sums),
        active_moves=len(journal.work.moves(active=True)),
        failed_moves=len(failing_moves(store.context)),
        active_merges=len(journal.work.merges(active=True)),
        planned_moves=len(planned.moves),
        waiting_moves=waiting_moves(planned),
        pauses=[
            PauseRow(names.get(pause.table_uuid or "", pause.table_uuid), pause.kind, pause.created)
            for pause in journal.overrides.pauses()
        ],
        pins=[
            PinRow(table=names.get(pin.table_uuid, pin.table_uuid), volume=pin.volume, **{pin.scope: pin.name})
            for pin in journal.overrides.pins()
        ],
        not_written=not_written(store),
        broken=[*store.context.catalog.broken],
        repeated=[
            RepeatedParts(first.definition.full_name, (first.part.name, second.part.name))
            for definition in store.definitions()
            for first, second in repeated(_of_several_writers(store, definition))
        ],
        crowded=crowded(store, config.daemon.cold_merge_parts),
        garbage=garbage(config),
        cache=_cache_status(config),
        daemon=daemon_row(config),
        recovered=store.recovered,
        backups=backups,
    )


def not_written(store: Store) -> list[NotWritten]:
    """The disks whose logs this machine may not write."""
    refused = (
        (name, refusal(logged))
        for name, disk in store.context.disks.items()
        if not disk.unreachable and disk.broken is None and (logged := as_disk(disk, LoggedDisk)) is not None
    )
    return [NotWritten(name, error.message, error.hint) for name, error in refused if error is not None]


def garbage(config: Config) -> dict[str, int] | None:
    """What nothing in the buckets names, as the daemon's last gc left it; None where none ran."""
    known = read(config.state_directory).get("gc")
    return dict(known.figures) if known is not None and known.figures else None


def crowded_text(partition: Crowded) -> str:
    """A sentence about a partition that has very many parts in a bucket."""
    return (
        f"partition {partition.partition} of {partition.table} has {partition.parts:,} small parts"
        f" on disk {partition.disk}, left by late rows"
    )


def cache_status(cache: ReadCache) -> CacheStatus:
    """What is kept, and how often it served."""
    figures = cache.figures()
    rate = figures.hit_rate
    return CacheStatus(**asdict(figures), rate=None if rate is None else round(rate, 4))


def _cache_status(config: Config) -> CacheStatus | None:
    if not config.read_cache.max_bytes:  # then nothing of it is loaded
        return None
    from tiering.query.checked_parts import read_cache

    cache = read_cache(config)
    return None if cache is None else cache_status(cache)


def _of_several_writers(store: Store, definition: TableDefinition) -> Iterable[StoredPart]:
    """The parts of the table that may hold what another machine inserted as well."""
    sums = store.context.catalog.sums(definition)
    if sums is None:
        return store.parts(definition.uuid)
    partitions = with_several_writers(sums)
    return [stored for name in partitions for stored in store.parts(definition.uuid, partition=name)]


def unavailable(store: Store) -> Unavailable:
    """Disks that are not what they were or cannot be reached, and tables that cannot be read."""
    faults, names, tables = store.faults(), store.unreachable(), store.unreadable()
    return Unavailable(
        broken_disks=[BrokenDiskRow(fault.disk, fault.kind, fault.error.message) for fault in faults] or UNSET,
        unreachable=names or UNSET,
        unreadable_tables=[UnreadableRow(**table.document) for table in tables] or UNSET,
    )


def daemon_row(config: Config) -> DaemonRow:
    """Whether a daemon runs on this store, what it did, and its jobs. As it says itself; where it does not answer
    within a second, for this is read with every look at a store, as it was written down."""
    from tiering.daemon.jobs.status import rows_of
    from tiering.daemon.live import live_status

    known, records = live_status(config.state_directory, answer_seconds=_DAEMON_ANSWERS_SECONDS)
    return DaemonRow(**asdict(known), jobs=rows_of(records, config, is_running=known.running))


def waiting_moves(planned: Plan) -> dict[str, int]:
    """How many due parts are kept from moving now, by the kind of reason that `plan` gives for each, the most first."""
    return dict(Counter(stay.reason.kind for stay in planned.stays if stay.reason.kind in WAITING).most_common())
