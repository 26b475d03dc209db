"""Which numbers there are, by name, and what each means. Pure; no I/O.

Names are those of Prometheus: units last, `_total` for what only grows while the process lives, times as seconds since
1970, so that an alert says `time() - …`. What is not known has no sample, which is another thing than 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tiering.facts.metrics.family import Family
from tiering.facts.metrics.process import Process, process_families
from tiering.facts.metrics.snapshot import Amount, Overdue, PartsSeen, Seen, WorkSeen, bounded


def families(seen: Seen | None, process: Process, *, version: str) -> list[Family]:
    """All of them, also those without a sample: their names are what dashboards and rules are checked against. Before
    the store was seen (None), those of the process."""
    info = Family("frostline_build_info", "gauge", "1, with the version.", ("version",))
    info.add(1, version)
    found = [info, *process_families(process)]
    return (
        found
        if seen is None
        else [
            *found,
            _at(seen),
            *_parts(seen),
            *_work(seen),
            *_disks(seen),
            *_replicas(seen),
            *_backups(seen),
            *_inbox(seen),
            *_budgets(seen),
        ]
    )


def _at(seen: Seen) -> Family:
    at = Family("frostline_seen_timestamp_seconds", "gauge", "Time of this scan of the store.")
    at.add(seen.at.timestamp())
    return at


def _parts(seen: Seen) -> list[Family]:
    called = bounded(
        {location: amount.bytes for location, amount in seen.places.items()}, lambda location: location.table
    )
    summed: dict[PartsSeen, Amount] = {}
    for location, amount in seen.places.items():
        key = PartsSeen(called(location.table), location.disk, location.volume, location.state)
        summed.setdefault(key, Amount()).add(amount.rows, amount.bytes, amount.parts)
    where = ("table", "disk", "volume", "state")
    parts = Family("frostline_parts", "gauge", "Parts, by table and tier; outdated ones wait to be removed.", where)
    rows = Family("frostline_part_rows", "gauge", "Rows in them.", where)
    sizes = Family("frostline_part_bytes", "gauge", "Bytes in them.", where)
    for location, amount in sorted(summed.items(), key=lambda entry: (entry[0].table, entry[0].disk, entry[0].state)):
        labels = (location.table, location.disk, location.volume, location.state)
        parts.add(amount.parts, *labels)
        rows.add(amount.rows, *labels)
        sizes.add(amount.bytes, *labels)
    many = Family(
        "frostline_crowded_parts", "gauge", "Small parts of partitions in buckets that have very many.", ("table",)
    )
    for table, count in sorted(_by_name(seen.crowded, called).items()):
        many.add(count, table)
    return [parts, rows, sizes, many, *_overdue(seen, called)]


def _by_name(counts: Mapping[str, int], called: Callable[[str], str]) -> Counter[str]:
    summed: Counter[str] = Counter()
    for table, count in counts.items():
        summed[called(table)] += count
    return summed


def _overdue(seen: Seen, called: Callable[[str], str]) -> list[Family]:
    parts = Family("frostline_due_parts", "gauge", "Parts that a TTL rule will move or delete.", ("table",))
    sizes = Family("frostline_due_bytes", "gauge", "Bytes in them.", ("table",))
    oldest = Family(
        "frostline_oldest_due_timestamp_seconds", "gauge", "When the oldest of them became due.", ("table",)
    )
    summed: dict[str, Overdue] = {}
    for table, waiting in seen.overdue.items():
        summed.setdefault(called(table), Overdue()).add(waiting)
    for table, waiting in sorted(summed.items()):
        parts.add(waiting.parts, table)
        sizes.add(waiting.bytes, table)
        if waiting.oldest is not None:
            oldest.add(waiting.oldest.timestamp(), table)
    return [parts, sizes, oldest]


def _work(seen: Seen) -> list[Family]:
    failing = Family("frostline_failing_moves", "gauge", "Moves whose last attempt failed; they are retried.")
    failing.add(seen.failing_moves)
    pins = Family("frostline_pins", "gauge", "Pinned parts and partitions.")
    pins.add(seen.pins)
    paused = Family("frostline_pauses", "gauge", "Pauses of background work, per table or for all.", ("kind",))
    for kind, count in sorted(seen.paused.items()):
        paused.add(count, kind)
    broken = Family("frostline_broken_parts", "gauge", "Unreadable parts on a disk.")
    broken.add(seen.broken)
    aside = Family("frostline_parts_set_aside", "gauge", "Parts a repair set aside; queries omit their rows.")
    aside.add(seen.set_aside)
    moves = _remembered("move", "Moves", seen.moves)
    return [*moves, *_remembered("merge", "Merges", seen.merges), failing, pins, paused, broken, aside]


def _remembered(noun: str, title: str, work: tuple[WorkSeen, ...]) -> list[Family]:
    """The journal forgets the oldest, so these may fall: gauges."""
    labels = ("state", "reason")
    counts = Family(f"frostline_{noun}s", "gauge", f"{title} in the journal, by state and reason.", labels)
    sizes = Family(f"frostline_{noun}_bytes", "gauge", "Bytes of them.", labels)
    called = bounded({group: group.count for group in work}, lambda group: group.reason, 50)
    sums: dict[tuple[str, str], list[int]] = {}
    for group in work:
        totals = sums.setdefault((group.state, called(group.reason)), [0, 0])
        totals[0] += group.count
        totals[1] += group.bytes
    for (state, reason), (count, size_bytes) in sorted(sums.items()):
        counts.add(count, state, reason)
        sizes.add(size_bytes, state, reason)
    return [counts, sizes]


def _disks(seen: Seen) -> list[Family]:
    up = Family(
        "frostline_disk_up", "gauge", "1 when the disk is available and has the right identity.", ("disk", "kind")
    )
    free = Family("frostline_disk_free_bytes", "gauge", "Free bytes of the disk, if limited.", ("disk",))
    total = Family("frostline_disk_total_bytes", "gauge", "Size of the disk, if limited.", ("disk",))
    revision = Family("frostline_disk_revision", "gauge", "Applied revision of the disk's log.", ("disk",))
    looked = Family("frostline_disk_looked_timestamp_seconds", "gauge", "When the disk's log was last read.", ("disk",))
    for disk in seen.disks:
        up.add(disk.up, disk.name, disk.kind)
        known = ((free, disk.free_bytes), (total, disk.total_bytes), (revision, disk.revision), (looked, disk.looked))
        for family, value in known:
            if value is not None:
                family.add(value, disk.name)
    return [up, free, total, revision, looked]


def _replicas(seen: Seen) -> list[Family]:
    synced = Family(
        "frostline_replica_synced_timestamp_seconds", "gauge", "When it last synced with the others.", ("table",)
    )
    waiting = Family("frostline_replica_waiting_entries", "gauge", "Pending log entries.", ("table",))
    called = bounded(dict.fromkeys(seen.replicas, 1), lambda table: table)
    times: dict[str, float] = {}
    for table, known in seen.replicas.items():
        times[called(table)] = min(known.synced.timestamp(), times.get(called(table), known.synced.timestamp()))
    for table, moment in sorted(times.items()):
        synced.add(moment, table)
    counts = _by_name({table: known.waiting for table, known in seen.replicas.items()}, called)
    for table, count in sorted(counts.items()):
        waiting.add(count, table)
    return [synced, waiting]


def _backups(seen: Seen) -> list[Family]:
    configured = Family("frostline_backup_configured", "gauge", "1 when a repository is configured.")
    configured.add(seen.backups is not None)
    missing = Family("frostline_backup_missing_tables", "gauge", "Tables without a backup, as last seen here.")
    failed = Family(
        "frostline_backup_failed_proofs", "gauge", "Tables whose last verification or drill found problems."
    )
    times = {
        "taken": Family("frostline_backup_timestamp_seconds", "gauge", "Time of the newest backup.", ("table",)),
        "verified": Family(
            "frostline_backup_verified_timestamp_seconds", "gauge", "When one was verified.", ("table",)
        ),
        "drilled": Family("frostline_backup_drilled_timestamp_seconds", "gauge", "When one was drilled.", ("table",)),
    }
    if seen.backups is not None:
        missing.add(sum("taken" not in known for known in seen.backups.values()))
        failed.add(seen.failed_proofs)
        called = bounded(dict.fromkeys(seen.backups, 1), lambda table: table)
        for what, family in times.items():
            oldest: dict[str, float] = {}
            for table, known in seen.backups.items():
                if what in known:
                    name, moment = called(table), known[what].timestamp()
                    oldest[name] = min(moment, oldest.get(name, moment))
            for name, moment in sorted(oldest.items()):
                family.add(moment, name)
    return [configured, missing, failed, *times.values()]


def _inbox(seen: Seen) -> list[Family]:
    waiting = Family("frostline_inbox_waiting_files", "gauge", "Files waiting to be inserted.", ("table",))
    sizes = Family("frostline_inbox_waiting_bytes", "gauge", "Bytes of them.", ("table",))
    failed = Family("frostline_inbox_failed_files", "gauge", "Files in failed/.", ("table",))
    oldest = Family(
        "frostline_inbox_oldest_timestamp_seconds", "gauge", "Modification time of the oldest of them.", ("table",)
    )
    called = bounded(dict.fromkeys(seen.inbox, 1), lambda table: table)
    sums: dict[str, list[int]] = {}
    times: dict[str, float] = {}
    for table, known in seen.inbox.items():
        total = sums.setdefault(called(table), [0, 0, 0])
        for index, value in enumerate((known.waiting, known.bytes, known.failed)):
            total[index] += value
        if known.oldest is not None:
            times[called(table)] = min(known.oldest, times.get(called(table), known.oldest))
    for table, total in sorted(sums.items()):
        for family, value in zip((waiting, sizes, failed), total, strict=True):
            family.add(value, table)
    for table, moment in sorted(times.items()):
        oldest.add(moment, table)
    return [waiting, sizes, failed, oldest]


def _budgets(seen: Seen) -> list[Family]:
    labels = ("policy", "budget")
    spent = Family("frostline_budget_spent", "gauge", "Amount used of a budget in its interval.", labels)
    limit = Family("frostline_budget_limit", "gauge", "Limit of the budget: bytes, requests or money.", labels)
    renewed = Family("frostline_budget_renewed_timestamp_seconds", "gauge", "Start of its next interval.", labels)
    for budget in seen.budgets:
        for family, value in ((spent, budget.spent), (limit, budget.limit), (renewed, budget.until.timestamp())):
            family.add(value, budget.policy, budget.of)
    money = Family(
        "frostline_day_money",
        "gauge",
        "What the moves of the last 24 hours cost, by the section `prices`.",
        ("currency",),
    )
    if seen.day_money is not None:
        money.add(seen.day_money, seen.currency)
    return [spent, limit, renewed, money]
