"""What is under way, what was done, what is due, and who does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import to_builtins

from oplog.errors import FrostlineError
from tiering.config.units import counted
from tiering.facts.moves import plan_document, why_nothing_moves
from tiering.facts.status import DaemonRow, daemon_row
from tiering.journal.records import MergeRecord, MoveRecord
from tiering.move.policy_facts import budgets
from tiering.policy.plan import Move, Stay, TtlDelete
from tui.facts.inbox import inbox_tables
from tui.facts.listing import ListColumn, Listing, field, minute, number, size
from tui.facts.overview import daemon_text

if TYPE_CHECKING:
    from tiering.daemon.jobs.row import JobRow
    from tiering.engine.store import Store

MOVES_SHOWN = 2_000
"""The newest so many; `moves list --limit` has more."""


def moves(store: Store) -> Listing:
    """`moves list`, unfinished ones first, with the merges that are under way or failed."""
    work = store.context.journal.work
    records: list[MoveRecord | MergeRecord] = [*work.moves(limit=MOVES_SHOWN), *work.merges()[:MOVES_SHOWN]]
    rows = sorted(records, key=lambda row: (_rank(row.state), row.updated), reverse=True)
    return Listing(
        columns=(
            ListColumn("what", "what", 5, _what),
            ListColumn("id", "id", 5, field("id"), number, right=True),
            ListColumn("state", "state", 9, field("state")),
            ListColumn("part", "part", 18, _part, grows=True),
            ListColumn("way", "from > to", 14, _way),
            ListColumn("size", "size", 9, _size_bytes, size, right=True),
            ListColumn("done", "done", 9, _share, _share_bar),
            ListColumn("tries", "try", 3, lambda row: getattr(row, "attempts", None), number, right=True),
            ListColumn("updated", "when", 16, lambda row: to_builtins(row.updated), minute),
            ListColumn("table", "table", 16, field("table")),
            ListColumn(
                "seconds", "took", 7, field("seconds"), lambda seconds: f"{seconds:.1f}s" if seconds else "", right=True
            ),
            ListColumn(
                "requests", "requests", 8, lambda row: getattr(row, "requests", None) or None, number, right=True
            ),
            ListColumn("why", "why", 40, _why, least=16),
        ),
        rows=rows,
        key=lambda row: f"{_what(row)} {row.id}",
        document=to_builtins,
        state=lambda row: (row.state, to_builtins(row.updated), getattr(row, "bytes_done", None)),
        summary=_paused(store, "moves", "merges"),
        empty="No moves or merges yet.",
    )


def _paused(store: Store, *kinds: str) -> str:
    """Which automatic work waits of these kinds, and of which tables."""
    names = {definition.uuid: definition.full_name for definition in store.definitions()}
    paused: dict[str, list[str]] = {}
    for pause in store.context.journal.overrides.pauses():
        if pause.kind in kinds:
            table = "all tables" if pause.table_uuid is None else names.get(pause.table_uuid, pause.table_uuid)
            paused.setdefault(pause.kind, []).append(table)
    return "; ".join(f"{kind} of {', '.join(tables)} are paused" for kind, tables in paused.items())


def _rank(state: str) -> int:
    """What goes on stands before what failed, and that before what is done."""
    return {"planned": 2, "copying": 2, "committed": 2, "running": 2, "failed": 1}.get(state, 0)


def _what(row: MoveRecord | MergeRecord) -> str:
    return "move" if isinstance(row, MoveRecord) else "merge"


def _part(row: MoveRecord | MergeRecord) -> str:
    return row.part if isinstance(row, MoveRecord) else row.output


def _size_bytes(row: MoveRecord | MergeRecord) -> int:
    return row.bytes if isinstance(row, MoveRecord) else row.bytes_in


def _share(row: MoveRecord | MergeRecord) -> float | None:
    """How far a copy is, as its process last noted."""
    if not isinstance(row, MoveRecord) or row.state != "copying" or not row.bytes:
        return None
    return min(row.bytes_done / row.bytes, 1.0)


def _share_bar(share: float | None) -> str:
    """Four characters and a number: a list has little room."""
    if share is None:
        return ""
    full = round(share * 4)
    return f"{'#' * full}{'.' * (4 - full)} {share:>4.0%}"


def _way(row: MoveRecord | MergeRecord) -> str:
    return f"{row.source} > {row.target}" if isinstance(row, MoveRecord) else f"{counted(len(row.inputs), 'part')} > 1"


def _why(row: MoveRecord | MergeRecord) -> str:
    return row.error or (row.reason_detail if isinstance(row, MoveRecord) else row.reason)


def _planned(row: Move | TtlDelete | Stay) -> str:
    return "move" if isinstance(row, Move) else "delete" if isinstance(row, TtlDelete) else "held"


def policy(store: Store, at: datetime | None = None) -> Listing:
    """`plan`, now or at another time: its moves, the parts that a TTL deletes, and those that are held back."""
    planned = store.plan(at=at, rest="next")
    document = plan_document(store, planned)
    moves, deletes, held = document.moves, document.deletes, document.held
    upcoming = planned.next_due
    summary = f"{counted(document.stays, 'part')} {'stays' if document.stays == 1 else 'stay'}"
    if held:
        summary += f", {len(held):,} of them postponed"
    if moves or deletes:
        summary = (
            f"{counted(len(moves), 'move')}, {size(document.bytes)}, about"
            f" {counted(document.requests, 'write request')}; {counted(len(deletes), 'delete')}; {summary}"
        )
    elif held:
        summary = f"{why_nothing_moves(store, planned).removesuffix('.')}; {summary}"
    if upcoming is not None:
        summary += f"; next at {minute(upcoming)}"
    rows = [*moves, *deletes, *held]
    return Listing(
        columns=(
            ListColumn("what", "what", 6, _planned),
            ListColumn("part", "part", 18, field("part"), grows=True),
            ListColumn("from", "from", 8, lambda row: row.source if isinstance(row, Move) else row.disk),
            ListColumn("to", "to", 8, lambda row: row.target if isinstance(row, Move) else "-"),
            ListColumn("size", "size", 10, field("bytes"), size, right=True),
            ListColumn("table", "table", 14, field("table")),
            ListColumn("why", "why", 40, field("reason.detail"), least=16),
        ),
        rows=rows,
        key=lambda row: f"{_planned(row)} {row.table_uuid}/{row.part}",
        document=to_builtins,
        state=lambda row: (row.target if isinstance(row, Move) else None,),
        summary=summary if at is None else f"at {minute(at)}: {summary}",
        until=upcoming if at is None else None,
        empty="" if rows else why_nothing_moves(store, planned),
    )


def jobs(store: Store) -> Listing:
    """`daemon status`: what the daemon did, each of its jobs, and what goes on beside them: lanes, the inbox by table
    (`inbox status`), budgets of policies, hooks."""
    daemon = daemon_row(store.context.config)
    paused = sorted({pause.kind for pause in store.context.journal.overrides.pauses() if pause.table_uuid is None})
    runs = daemon_text(daemon)
    did = f"{daemon.moved:,} moved, {daemon.merged:,} merged, {counted(daemon.failures, 'failure')}"
    held = f"; paused: {', '.join(paused)}" if paused else ""
    error = f"; last error: {daemon.last_error}" if daemon.last_error else ""
    beside = [*_lanes(daemon), *_inbox(store), *_budgets(store), *_hooks(daemon)]
    return Listing(
        columns=(
            ListColumn("job", "job", 20, field("job")),
            ListColumn("state", "state", 9, lambda row: _job_state(row, runs=daemon.running)),
            ListColumn("schedule", "schedule", 14, field("schedule")),
            ListColumn("last", "last run", 16, field("last_run"), minute),
            ListColumn("result", "result", 7, field("result")),
            ListColumn("next", "next run", 16, field("next_run"), minute),
            ListColumn("said", "what it said", 40, field("said"), grows=True, least=12),
        ),
        rows=[*map(_of_job, daemon.jobs), *beside],
        key=field("job"),
        document=field("document"),
        state=lambda row: (row.state, row.last_run, row.next_run, row.said),
        summary=f"{runs}; {did}{held}{error}",
    )


class WorkRow(msgspec.Struct, frozen=True):
    """A job, or what goes on beside them; times as `document` has them."""

    job: str
    state: str
    said: str
    document: Mapping[str, Any]
    schedule: str = ""
    last_run: str | None = None
    result: str = ""
    next_run: datetime | str | None = None
    is_job: bool = False


def _of_job(row: JobRow) -> WorkRow:
    document = to_builtins(row)
    last, upcoming = document["last_run"], document["next_run"]
    return WorkRow(row.job, row.state, row.said, document, row.schedule, last, row.result or "", upcoming, is_job=True)


def _job_state(row: WorkRow, *, runs: bool) -> str:
    """A job is idle between two runs; without a daemon there is no next one."""
    return "no daemon" if row.state == "idle" and row.is_job and not runs else row.state


def _lanes(daemon: DaemonRow) -> Iterator[WorkRow]:
    for lane in daemon.lanes:
        total = "" if lane.bytes is None else f" of {size(lane.bytes)}"
        said = f"{lane.doing}: {size(lane.bytes_done)}{total}"
        yield WorkRow(f"lane {lane.lane}", "running", said, to_builtins(lane), last_run=to_builtins(lane.since))


def _inbox(store: Store) -> Iterator[WorkRow]:
    try:
        found = inbox_tables(store)
    except FrostlineError as error:
        problem = {"path": store.context.config.inbox.path, "problem": error.message}
        yield WorkRow("inbox", "failed", error.message, problem)
        return
    for table in found:
        waiting, failed = len(table.waiting) + table.taken, len(table.failed)
        size_bytes = sum(file.bytes for file in table.waiting)
        pieces = [f"{failed:,} failed"] if failed else []
        pieces += [f"{counted(waiting, 'file')} {size(size_bytes)} waiting"] if waiting else []
        said = ", ".join([*pieces, f"{table.done:,} done"])
        yield WorkRow(
            f"inbox {table.table}", "failed" if failed else "waits" if waiting else "idle", said, to_builtins(table)
        )


def _budgets(store: Store) -> Iterator[WorkRow]:
    from msgspec.structs import asdict

    currency = store.context.config.prices.currency
    for budget in budgets(store.context):
        shown = size if budget.of == "bytes" else (lambda value: f"{value:,.6g}")
        unit = {"bytes": "", "requests": " requests", "money": f" {currency}"}[budget.of]
        said = f"{shown(budget.spent)} of {shown(budget.limit)}{unit} in this interval"
        state = "spent" if budget.spent >= budget.limit else "open"
        name = f"budget {budget.policy} {budget.of}"
        yield WorkRow(name, state, said, asdict(budget), next_run=budget.until)


def _hooks(daemon: DaemonRow) -> Iterator[WorkRow]:
    for hook in daemon.hooks if daemon.running else ():
        said = f"{hook.delivered:,} delivered, {hook.waiting:,} waiting, {hook.given_up:,} given up"
        state = "failed" if hook.last_error else "idle"
        yield WorkRow(f"hook {hook.hook}", state, f"{said}; {hook.last_error}".rstrip("; "), to_builtins(hook))
