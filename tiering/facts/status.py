"""The store at a glance, and its disks, as documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from tiering.catalog.rows import bytes_by_disk, usage_rows
from tiering.policy.plan import WAITING

if TYPE_CHECKING:
    from tiering.catalog.catalog import StoredPart
    from tiering.config.settings import Config
    from tiering.engine.store import Store
    from tiering.parquet.read_cache import ReadCache
    from tiering.policy.plan import Plan
    from tiering.table.schema import TableDefinition

_DAEMON_ANSWERS_SECONDS = 1.0


def status_document(store: Store, planned: Plan | None = None) -> dict[str, Any]:
    """`status --json`. `planned` is the plan of now, where somebody has made it already."""
    from tiering.catalog.new_parts import repeated
    from tiering.facts.replicas import replica_documents
    from tiering.move.policy_facts import failing_moves

    planned = store.plan(rest="none") if planned is None else planned
    journal = store.context.journal
    names = {definition.uuid: definition.full_name for definition in store.definitions()}
    pauses = [
        {"table": names.get(pause.table_uuid or "", pause.table_uuid), "kind": pause.kind, "since": pause.created}
        for pause in journal.overrides.pauses()
    ]
    pins = [
        {"table": names.get(pin.table_uuid, pin.table_uuid), pin.scope: pin.name, "volume": pin.volume}
        for pin in journal.overrides.pins()
    ]
    broken = [{"disk": item.disk, "path": item.path, "what": item.what} for item in store.context.catalog.broken]
    sums = [*usage_rows(store.context.catalog, store.definitions())]
    return {
        "tables": len(names),
        "replicated": [definition.full_name for definition in store.definitions() if definition.is_replicated],
        "replicas": replica_documents(store),
        "parts": sum(item.parts for item in sums),
        "rows": sum(item.rows for item in sums),
        "bytes": sum(item.bytes for item in sums),
        "bytes_by_disk": bytes_by_disk(store.context.disks, sums),
        "active_moves": len(journal.work.moves(active=True)),
        "failed_moves": len(failing_moves(store.context)),
        "active_merges": len(journal.work.merges(active=True)),
        "planned_moves": len(planned.moves),
        "waiting_moves": waiting_moves(planned),
        "pauses": pauses,
        "pins": pins,
        "broken": broken,
        "repeated": [
            {"table": one.definition.full_name, "parts": [one.part.name, other.part.name]}
            for definition in store.definitions()
            for one, other in repeated(_of_several_writers(store, definition))
        ],
        "crowded": crowded_documents(store),
        "garbage": garbage(store.context.config),
        "cache": _cache_document(store.context.config),
        "daemon": daemon_document(store.context.config),
        "recovered": store.recovered,
    }


def garbage(config: Config) -> dict[str, int] | None:
    """What nothing in the buckets names, as the daemon's last gc left it; None where none ran."""
    from tiering.daemon.jobs.record import read

    known = read(config.state_directory).get("gc")
    return dict(known.figures) if known is not None and known.figures else None


def crowded_documents(store: Store) -> list[dict[str, Any]]:
    """The partitions in buckets that have very many small parts."""
    import msgspec

    from tiering.engine.small_parts import crowded

    most_parts = store.context.config.daemon.cold_merge_parts
    return [msgspec.to_builtins(one) for one in crowded(store, most_parts)]


def crowded_text(partition: Mapping[str, Any]) -> str:
    """A sentence about a partition that has very many parts in a bucket."""
    return (
        f"partition {partition['partition']} of {partition['table']} has {partition['parts']:,} small parts"
        f" on disk {partition['disk']}, left by late rows"
    )


def cache_document(cache: ReadCache) -> dict[str, Any]:
    """`cache stats --json`."""
    figures = cache.figures()
    rate = figures.hit_rate
    return {**asdict(figures), "hit_rate": None if rate is None else round(rate, 4)}


def _cache_document(config: Config) -> dict[str, Any] | None:
    if not config.read_cache.max_bytes:  # then nothing of it is loaded
        return None
    from tiering.query.checked_parts import read_cache

    cache = read_cache(config)
    return None if cache is None else cache_document(cache)


def _of_several_writers(store: Store, definition: TableDefinition) -> Iterable[StoredPart]:
    """The parts of the table that may hold what another machine inserted as well."""
    from tiering.catalog.new_parts import with_several_writers

    sums = store.context.catalog.sums(definition)
    if sums is None:
        return store.parts(definition.uuid)
    partitions = with_several_writers(sums)
    return [stored for name in partitions for stored in store.parts(definition.uuid, partition=name)]


def beside_document(store: Store) -> dict[str, Any]:
    """What every answer about a store says beside itself: disks that are not what they were, or cannot be reached."""
    beside: dict[str, Any] = {}
    if faults := store.faults():
        beside["broken_disks"] = [
            {"disk": fault.disk, "kind": fault.kind, "what": fault.error.message} for fault in faults
        ]
    if names := store.unreachable():
        beside["unreachable"] = names
    if tables := store.unreadable():
        beside["unreadable_tables"] = [table.document for table in tables]
    return beside


def daemon_document(config: Config) -> dict[str, Any]:
    """`daemon status --json`: whether a daemon runs on this store, what it did, and its jobs. As it says itself; where
    it does not answer within a second, for this is read with every look at a store, as it was written down."""
    import msgspec

    from tiering.daemon.jobs.status import rows_of
    from tiering.daemon.live import live_status

    known, records = live_status(config.state_directory, answer_seconds=_DAEMON_ANSWERS_SECONDS)
    plain: dict[str, Any] = msgspec.to_builtins(known)
    return {**plain, "jobs": rows_of(records, config, is_running=known.running)}


def waiting_moves(planned: Plan) -> dict[str, int]:
    """How many due parts are kept from moving now, by the kind of reason that `plan` gives for each, the most first."""
    return dict(Counter(stay.reason.kind for stay in planned.stays if stay.reason.kind in WAITING).most_common())
