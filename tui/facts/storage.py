"""Tables, partitions, parts and disks as screens list them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from msgspec import to_builtins

from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
from disks.kinds import as_disk
from oplog import pins
from tiering.catalog.rows import DiskRow, UsageRow, disk_rows, part_row, table_rows, time_column, usage
from tiering.config.units import counted
from tiering.facts.status import garbage
from tiering.journal.records import PAUSE_KINDS
from tiering.move.policy_facts import failing_moves, placed
from tui.facts.listing import ListColumn, Listing, age, field, minute, number, size
from tui.facts.replicas import marks

if TYPE_CHECKING:
    from tiering.catalog.catalog import StoredPart
    from tiering.engine.store import Store
    from tiering.journal.records import MoveRecord
    from tiering.policy.plan import Reason


def tables(store: Store) -> Listing:
    """`table list`, and of each table what its partitions take on which disk: `du`."""
    catalog, paused = store.context.catalog, _paused(store)
    held = ListColumn("paused", "paused", 10, lambda row: _kinds(paused[row.uuid]))
    partitions: dict[str, list[UsageRow]] = {}
    for item in usage(catalog, store.definitions()):
        partitions.setdefault(item.table, []).append(item)
    return Listing(
        columns=(
            ListColumn("table", "table", 20, field("table"), grows=True),
            *((held,) if any(paused.values()) else ()),
            ListColumn("parts", "parts", 7, field("parts"), number, right=True),
            ListColumn("rows", "rows", 13, field("rows"), number, right=True),
            ListColumn("size", "size", 10, field("bytes"), size, right=True),
            ListColumn("disks", "on disks", 18, lambda row: _on_disks(row.bytes_by_disk), grows=True),
            ListColumn("policy", "policy", 14, field("policy")),
        ),
        rows=[*table_rows(catalog)],
        key=lambda row: str(row.uuid),
        document=lambda row: {
            **to_builtins(row),
            "paused": paused[row.uuid],
            "partitions": to_builtins(partitions.get(row.table, [])),
        },
        state=lambda row: (row.parts, row.rows, row.bytes, *paused[row.uuid]),
        empty="No tables yet: frostline table create --help, or frostline demo.",
    )


def _paused(store: Store) -> dict[str, list[str]]:
    """By table the kinds of automatic work that wait, for it or for all tables."""
    pauses = store.context.journal.overrides.pauses()
    return {
        definition.uuid: sorted({one.kind for one in pauses if one.table_uuid in (None, definition.uuid)}, reverse=True)
        for definition in store.definitions()
    }


def _kinds(kinds: Sequence[str]) -> str:
    return "all" if len(kinds) == len(PAUSE_KINDS) else ", ".join(kinds)


def partitions(store: Store) -> Listing:
    """`du`: what each partition of each table takes on each disk."""
    return Listing(
        columns=(
            ListColumn("table", "table", 16, field("table"), grows=True),
            ListColumn("partition", "partition", 12, field("partition")),
            ListColumn("disk", "disk", 10, field("disk")),
            ListColumn("parts", "parts", 6, field("parts"), number, right=True),
            ListColumn("rows", "rows", 13, field("rows"), number, right=True),
            ListColumn("size", "size", 10, field("bytes"), size, right=True),
        ),
        rows=usage(store.context.catalog, store.definitions()),
        key=lambda row: f"{row.table}/{row.partition}/{row.disk}",
        document=to_builtins,
        state=lambda row: (row.parts, row.rows, row.bytes),
        empty="No parts.",
    )


def _on_disks(by_disk: Mapping[str, int]) -> str:
    return ", ".join(f"{disk} {size(size_bytes)}" for disk, size_bytes in by_disk.items())


class _Told:
    """What is shown of a part beside its own facts. Rows are the parts themselves: of a hundred thousand, what nobody
    looks at is not kept, but computed when it is asked for. Ages are those of that moment."""

    def __init__(self, store: Store) -> None:
        self._placed = placed
        plan = store.plan(rest="next")
        self._clock = store.context.clock
        self.now, self.until = plan.now, plan.next_due
        self._staying = store.staying(plan)
        self._times = {definition.uuid: time_column(definition) for definition in store.definitions()}
        self._going: dict[tuple[str, str], dict[str, tuple[str, Reason | None]]] = {}
        """By table and disk, then part: where it goes now, and why; None for a rule: its reason is computed later."""
        for gone in plan.deletes:
            self._going.setdefault((gone.table_uuid, gone.disk), {})[gone.part] = ("delete", gone.reason)
        by_rule: dict[str, tuple[str, None]] = {}
        for move in plan.moves:
            known = by_rule.setdefault(move.target, (move.target, None))
            why = known if move.reason.kind == "ttl" else (move.target, move.reason)
            self._going.setdefault((move.table_uuid, move.source), {})[move.part] = why
        self._held = {(stay.table_uuid, stay.part, stay.disk): stay for stay in plan.stays}
        self._states: dict[tuple[str, ...], tuple[str, ...]] = {}

    def goes(self, stored: StoredPart) -> str:
        """`s3` when it moves there, now or when it is due; `delete`; `pinned` while somebody holds it; or nothing."""
        if self._is_pinned(stored):
            return "pinned"
        return self._goes_now(stored) or self._staying.next_goal(self._placed(stored))

    def _goes_now(self, stored: StoredPart) -> str:
        going = self._now(stored)
        return "" if going is None else going[0]

    def _now(self, stored: StoredPart) -> tuple[str, Reason | None] | None:
        here = self._going.get((stored.definition.uuid, stored.disk))
        return None if here is None else here.get(stored.label)

    def due(self, stored: StoredPart) -> datetime | None:
        """When a rule acts on it, if that is known."""
        if self._now(stored) is not None:
            return self.now
        if self._is_pinned(stored):
            return None
        held = self._held.get(_key(stored))
        until = None if held is None else held.next_due
        return until or self._staying.next_due(self._placed(stored))

    def _is_pinned(self, stored: StoredPart) -> bool:
        held = self._held.get(_key(stored)) if self._held else None
        return held is not None and held.reason.kind == "pin"

    def why(self, stored: StoredPart) -> str:
        """Why it goes or stays."""
        if (going := self._now(stored)) is not None:
            return (going[1] or self._staying.why_due(self._placed(stored))).detail
        held = self._held.get(_key(stored))
        return (self._staying.why(self._placed(stored)) if held is None else held.reason).detail

    def age(self, stored: StoredPart) -> timedelta | None:
        """Of the newest row, where the table has a time; else since it was written."""
        return _age(stored, self._times[stored.definition.uuid], self._clock())

    def state(self, stored: StoredPart) -> tuple[str, ...]:
        """What of it counts as a change; one object for all that are the same."""
        state = (stored.state, stored.volume or "", self._goes_now(stored))
        return self._states.setdefault(state, state)


def _key(stored: StoredPart) -> tuple[str, str, str]:
    return stored.definition.uuid, stored.label, stored.disk


def parts(store: Store) -> Listing:
    """`parts`, and of each part why it stays, when it goes, and where to."""
    told = _Told(store)
    return Listing(
        columns=_part_columns(told, of_tables=len(store.definitions())),
        rows=store.parts(),
        key=lambda row: f"{row.label}/{row.disk}/{row.definition.full_name}",  # short: there may be very many
        document=lambda row: to_builtins(part_row(row)),
        state=told.state,
        until=told.until,
        empty="No parts yet: frostline insert DB.TABLE FILE.",
    )


def _part_columns(told: _Told, *, of_tables: int) -> tuple[ListColumn, ...]:
    """Where there are several tables, a part's name says little without that of its table."""
    table = ListColumn("table", "table", 14, lambda row: row.definition.full_name)
    several = of_tables > 1
    return (
        ListColumn("part", "part", 18, lambda row: row.label, grows=True),
        *((table,) if several else ()),
        ListColumn("disk", "disk", 8, lambda row: row.disk),
        ListColumn("age", "age", 8, told.age, age, right=True),
        ListColumn("size", "size", 10, lambda row: row.facts.size_bytes, size, right=True),
        ListColumn("goes", "goes to", 8, told.goes),
        ListColumn("due", "due", 16, told.due, lambda at: "now" if at == told.now else minute(at)),
        ListColumn("rows", "rows", 11, lambda row: row.facts.rows, number, right=True),
        ListColumn("level", "lvl", 3, lambda row: row.name.level, number, right=True),
        *(() if several else (table,)),
        ListColumn("state", "state", 9, lambda row: row.state),
        ListColumn("volume", "volume", 10, lambda row: row.volume),
        ListColumn("partition", "partition", 10, lambda row: row.name.partition),
        ListColumn("why", "why", 40, told.why, least=16),
    )


def _age(stored: StoredPart, column: str | None, now: datetime) -> timedelta | None:
    known = stored.facts.columns.get(column) if column is not None else None
    newest = stored.facts.created
    if known is not None and isinstance(known.max, str):
        try:
            newest = datetime.fromisoformat(known.max)
        except ValueError:  # a date that Python has no number for
            return None
    return now - (newest.replace(tzinfo=UTC) if newest.tzinfo is None else newest)


def disks(store: Store) -> Listing:
    """`disks`, and what moves of this machine do on each just now: throughput, and those that fail."""
    now, work = store.context.clock(), store.context.journal.work
    rates = throughput(work.moves_since(now - timedelta(seconds=WINDOW_SECONDS)), now)
    failing = Counter(target for _, _, target in failing_moves(store.context))
    none = Throughput()

    def rate(kind: str) -> Callable[[DiskRow], float]:
        return lambda row: getattr(rates.get(row.name, none), kind)

    return Listing(
        columns=(
            ListColumn("name", "disk", 12, field("name"), grows=True),
            ListColumn("kind", "kind", 11, field("kind")),
            ListColumn("used", "used", 10, field("used_bytes"), size, right=True),
            ListColumn("free", "free", 10, field("free_bytes"), size, right=True),
            ListColumn("parts", "parts", 7, field("parts"), number, right=True),
            ListColumn("state", "state", 11, field("state")),
            ListColumn("written", "written/s", 10, rate("written_per_second"), _per_second, right=True),
            ListColumn("read", "read/s", 10, rate("read_per_second"), _per_second, right=True),
            ListColumn("failing", "failing", 7, lambda row: failing[row.name] or None, number, right=True),
            ListColumn("revision", "revision", 8, field("revision"), number, right=True),
            ListColumn("volume", "volume", 14, field("volume")),
            ListColumn("total", "total", 10, field("total_bytes"), size, right=True),
            ListColumn("requests", "req/s", 6, rate("requests_per_second"), _count_per_second, right=True),
        ),
        rows=[*disk_rows(store.context)],
        key=lambda row: str(row.name),
        document=to_builtins,
        state=lambda row: (row.parts, row.used_bytes, row.revision, row.state),
    )


def _per_second(size_bytes: float) -> str:
    return size(size_bytes) if size_bytes else ""


def _count_per_second(count: float) -> str:
    return f"{count:,.1f}" if count else ""


def work_lines(store: Store, name: str) -> list[str]:
    """What moves of this machine do on the disk just now, and why those fail that do."""
    now, work = store.context.clock(), store.context.journal.work
    rates = throughput(work.moves_since(now - timedelta(seconds=WINDOW_SECONDS)), now)
    lines = []
    if (rate := rates.get(name)) is not None:
        lines.append(
            f"moves of the last {WINDOW_SECONDS} s: {size(rate.written_per_second)}/s written,"
            f" {size(rate.read_per_second)}/s read, {rate.requests_per_second:,.1f} requests/s"
        )
    for (_, part, target), why in failing_moves(store.context).items():
        if target == name:
            lines.append(f"move of {part} here failed {counted(why.attempts, 'time')}: {why.error}")
    return lines


def _orphans(store: Store) -> str:
    """What nothing in the buckets names, as the daemon last found it; gc counts those of all buckets together."""
    found = garbage(store.context.config)
    if found is None:
        return "not counted by a daemon yet"
    total = f"{counted(found.get('orphaned', 0), 'object')} ({size(found.get('orphaned_bytes', 0))})"
    return f"{total} in all buckets at the daemon's last gc"


def bucket_lines(store: Store, name: str) -> list[str]:
    """What these screens asked of the disk's bucket, its pins, and who tells what nothing names. Of a local disk
    nothing."""
    from disks.stores.wrappers.metered import MeteredStore

    disk = store.disk(name)
    bucket = as_disk(disk, BucketDisk)
    if bucket is None or disk.broken is not None:
        return []
    lines = []
    if isinstance(metered := bucket.store, MeteredStore):
        asked = ", ".join(f"{verb} {count:,}" for verb, count in metered.counts().items() if count) or "none"
        lines.append(f"requests of these screens: {asked}")
        lines.append(f"sent {size(metered.bytes_sent)}, received {size(metered.bytes_received)}")
    if (limiter := store.context.limiter) is not None:
        answered = limiter.answered().values()
        failed, throttled = sum(one.failed for one in answered), sum(one.throttled for one in answered)
        calls = sum(one.calls for one in answered)
        lines.append(f"calls of these screens to all buckets: {calls:,}, {failed:,} failed, {throttled:,} throttled")
    if (logged := as_disk(disk, LoggedDisk)) is not None:
        held = pins.list_pins(bucket.store)
        lines.append(
            f"pins: {len(held):,}" + "".join(f"; {pin.name} keeps revision {pin.revision:,}" for pin in held[:5])
        )
    lines.append(f"orphans: {_orphans(store)}; c lists the bucket and shows them before deleting any")
    if logged is not None and logged.log_name is not None:
        lines.append(f"marks: {marks(store, logged)}; m compares them with all logs")
    return lines


WINDOW_SECONDS = 10


class Throughput(msgspec.Struct):
    """Of one disk: the mean of the last ten seconds."""

    written_per_second: float = 0.0
    read_per_second: float = 0.0
    requests_per_second: float = 0.0
    """Of moves that are done: one that is copying has not told its own yet."""


def throughput(records: Iterable[MoveRecord], now: datetime) -> dict[str, Throughput]:
    """By disk, also for moves of other processes. A copy's bytes are taken to have gone evenly over its time."""
    found: dict[str, Throughput] = {}
    for record in records:
        if record.state == "copying":
            began, ended, size_bytes = record.updated, now, record.bytes_done
        elif record.state in ("committed", "done"):
            ended, size_bytes = record.updated, record.bytes
            began = ended - timedelta(seconds=record.seconds)
        else:
            continue
        since = now - timedelta(seconds=WINDOW_SECONDS)
        within = (min(ended, now) - max(began, since)).total_seconds()
        if ended < since or within < 0:
            continue
        lasted = (ended - began).total_seconds()
        share = min(within / lasted, 1.0) if lasted > 0 else 1.0
        target = found.setdefault(record.target, Throughput())
        target.written_per_second += size_bytes * share / WINDOW_SECONDS
        target.requests_per_second += record.requests * share / WINDOW_SECONDS
        found.setdefault(record.source, Throughput()).read_per_second += size_bytes * share / WINDOW_SECONDS
    return found
