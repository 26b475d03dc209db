"""The store at a glance: trouble first, then the disks, what is under way, what is due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from tiering.catalog.rows import DiskRow, disk_rows
from tiering.config.units import counted, format_size, format_time
from tiering.daemon.jobs.row import in_trouble
from tiering.daemon.status import DaemonStatus
from tiering.facts.status import (
    DaemonRow,
    StoreStatus,
    Unavailable,
    crowded_text,
    daemon_row,
    store_status,
    unavailable,
)
from tiering.journal.records import MergeRecord, MoveRecord
from tiering.policy.plan import Move
from tui.facts.inbox import inbox_problems

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tiering.policy.plan import Plan

DUE_SHOWN = 20
"""How many of the moves that are due a document names; `plan` has all."""


HOURS_SHOWN = 24


class WorkUnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """What changes while work goes on."""

    moves: list[MoveRecord]
    merges: list[MergeRecord]


class TroubleRow(msgspec.Struct, frozen=True):
    """What somebody has to look at: a sentence, and the command that goes on from there."""

    what: str
    command: str


class TopDocument(Unavailable, frozen=True):
    """`top --json`. Fields of the base are keyword-only and come last."""

    at: datetime
    trouble: list[TroubleRow]
    disks: list[DiskRow]
    capacity: dict[str, list[int | None]]
    moves: list[MoveRecord]
    merges: list[MergeRecord]
    due: tuple[Move, ...]
    next_due: datetime | None
    status: StoreStatus


def overview(store: Store) -> TopDocument:
    """`status` is `status --json`, `disks` is `disks --json`, `moves` is `moves list --active --json`."""
    from backup.verify import last_seen

    names = {definition.uuid: definition.full_name for definition in store.definitions()}
    plan = store.plan(rest="next")
    status = store_status(store, plan, backups=last_seen.backups_status(store.context.config, names))
    beside = unavailable(store)
    disks = [*disk_rows(store.context)]
    work = under_way(store)
    return TopDocument(
        at=store.context.clock(),
        trouble=[*_trouble(store, status, beside, disks, plan), *_trouble_of_work(store, status.daemon)],
        disks=disks,
        capacity=store.context.journal.capacity.hours(HOURS_SHOWN, store.context.clock()),
        moves=work.moves,
        merges=work.merges,
        due=plan.moves[:DUE_SHOWN],
        next_due=plan.next_due,
        status=status,
        **asdict(beside),
    )


def has_aged(document: TopDocument, store: Store) -> bool:
    """Whether the clock alone, or others in ways that nothing tells of, changed what is shown of such a document.
    Looks at no part."""
    now, due = store.context.clock(), document.next_due
    daemon = daemon_row(store.context.config)
    return (
        (due is not None and now >= due)
        or _hour(now) != _hour(document.at)
        or daemon_text(daemon) != daemon_text(document.status.daemon)
        or [disk_text(disk) for disk in disk_rows(store.context)] != [disk_text(disk) for disk in document.disks]
    )


def _hour(time: datetime) -> tuple[int, ...]:
    return (time.year, time.month, time.day, time.hour)


def under_way(store: Store) -> WorkUnderWay:
    """Reads the journal alone."""
    work = store.context.journal.work
    return WorkUnderWay(moves=work.moves(active=True), merges=work.merges(active=True))


def _trouble(
    store: Store, status: StoreStatus, beside: Unavailable, disks: list[DiskRow], plan: Plan
) -> Iterator[TroubleRow]:
    from tiering.engine.capacity import low

    def problem(message: str, command: str) -> TroubleRow:
        return TroubleRow(message, f"frostline {command}")

    for fault in beside.broken_disks or ():
        yield problem(fault.what, "doctor")
    for table in beside.unreadable_tables or ():
        yield problem(table.what, f"table alter {table.table}")
    for name in beside.unreachable or ():
        yield problem(_as_last_seen(name), f"doctor {name}")
    for disk in disks:
        if disk.problem is not UNSET:
            yield problem(f"disk {disk.name}: {disk.problem}", "doctor")
    for entry in status.broken:
        yield problem(f"{entry.disk}:{entry.path}: {entry.what}", f"fsck {entry.disk}")
    for name, sentences in low(store.context, store.context.config.daemon.low_space_ratio):
        for sentence in sentences:
            yield problem(sentence, f"doctor {name}")
    if failed := status.failed_moves:
        yield problem(f"{failed:,} move{'s' if failed > 1 else ''} failed at the last attempt", "moves list --failed")
    if (clock := next((stay.reason.detail for stay in plan.stays if stay.reason.kind == "clock"), None)) is not None:
        yield problem(clock, "doctor")
    for pair in status.repeated:
        first, second = pair.parts
        yield problem(f"{first} and {second} of {pair.table}: two machines inserted the same data", "fsck")
    for pause in status.pauses:
        paused = pause.table or ""
        yield problem(f"{pause.kind} of {paused or 'all tables'} are paused", f"resume {paused}".rstrip())
    for partition in status.crowded:
        yield problem(crowded_text(partition), f"merge {partition.table} --cold")


def _trouble_of_work(store: Store, daemon: DaemonRow) -> Iterator[TroubleRow]:
    """The present trouble of the daemon, its jobs and the inbox; Jobs shows what was mended since."""
    known = daemon if daemon.running else DaemonStatus()
    for what, command in (
        (known.trouble and f"the daemon's last pass: {known.trouble}", "daemon status"),
        (known.inbox_trouble and f"files wait: {known.inbox_trouble}", "inbox status"),
        (known.config_problem and f"invalid configuration: {known.config_problem}", "config show"),
        (known.unserved and f"metrics are not served: {known.unserved}", "daemon status"),
        (known.untraced and f"traces are lost: {known.untraced}", "daemon status"),
        (known.unkept and f"the daemon cannot write its status: {known.unkept}", "daemon status"),
        *((f"the last run of job {said}", "daemon status") for said in in_trouble(daemon.jobs)),
        *((said, "inbox status") for said in inbox_problems(store, runs=daemon.running)),
    ):
        if what:
            yield TroubleRow(what, f"frostline {command}")


def missing_lines(store: Store) -> Iterator[str]:
    """What of the store's answers is missing or may be old. Not yet escaped."""
    for fault in store.faults():
        yield fault.error.message
    for name in store.unreachable():
        yield f"{_as_last_seen(name)}; retried twice a minute, and by Reload"


def _as_last_seen(disk: str) -> str:
    return f"disk {disk} cannot be reached: its last known contents are shown"


def overview_lines(document: TopDocument) -> Iterator[str]:
    """The same for people, a line at a time; not yet escaped."""
    status = document.status
    for item in document.trouble:
        yield f"! {item.what}  [{item.command}]"
    yield (f"{', '.join(amounts(status))}, {format_size(status.bytes)}; {daemon_text(status.daemon)}")
    for disk in document.disks:
        yield f"  {disk.name:<12} {disk.kind:<11} {disk_text(disk)}"
    yield (
        f"moves: {len(document.moves)} under way, {due_text(status)},"
        f" {status.failed_moves:,} failed; merges: {len(document.merges)} under way"
    )
    for move in document.moves:
        yield f"  {move.state:<10} {move.table} {move.part}  {move.source} -> {move.target}"
    for merge in document.merges:
        yield f"  {merge.state:<10} {merge.table} {merge.partition}: {counted(len(merge.inputs), 'part')}"
    for due in document.due:
        yield f"  due        {due.table} {due.part}  {due.source} -> {due.target}: {due.reason.detail}"
    if more := status.planned_moves - len(document.due):
        yield f"  and {more:,} more: 'frostline plan'"
    if not document.due and document.next_due:
        yield f"  the next part is due at {format_time(document.next_due.replace(microsecond=0))}"


def amounts(status: StoreStatus) -> Iterator[str]:
    """How many tables, parts and rows there are."""
    return (counted(getattr(status, f"{what}s"), what) for what in ("table", "part", "row"))


def due_text(status: StoreStatus) -> str:
    """How many moves are due, and how many more parts would move, but for what keeps them."""
    kept = ", ".join(f"{count:,} {_KEPT.get(kind, kind)}" for kind, count in status.waiting_moves.items())
    return f"{status.planned_moves:,} due{f' (kept: {kept})' if kept else ''}"


_KEPT = {
    "unusable_disk": "for an unavailable disk",
    "no_space": "for a full disk",
    "backoff": "after a failure",
    "gave_up": "after failures",
    "clock": "for an uncertain clock",
    "merge_first": "until merged",
    "cool_down": "just moved",
    "budget": "by a budget",
    "window": "until a time window",
    "spread": "to spread them",
}
"""What keeps due parts from moving, by the kind of reason."""


def disk_text(disk: DiskRow) -> str:
    """What lies on a disk, what is wrong with it, and what room is left."""
    used, free = disk.used_bytes, disk.free_bytes
    size = "-" if used is None else format_size(used)
    room = "" if free is None else f"; {format_size(free)} free"
    revision = "" if disk.revision is None else f", revision {disk.revision:,}"
    state = "" if disk.state == "ok" else f", {disk.state.upper()}"
    return f"{size}, {counted(disk.parts, 'part')}{revision}{state}{room}"


def daemon_text(daemon: DaemonRow) -> str:
    """Whether somebody moves things without being told."""
    return f"daemon: process {daemon.pid}" if daemon.running else "no daemon runs (frostline daemon run)"
