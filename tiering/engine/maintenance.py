"""What keeps a store in shape: merges, TTL deletes, moves and snapshots, in the order in which one pass does them.

Merges come first, so that what moves to the cold is large; deletes before moves, so that nothing is uploaded only to be
dropped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import FrostlineError, Locked, NoSpace, NotFound
from tiering.catalog import reachability, tables
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context, wall_clock
from tiering.catalog.freshness import Freshness
from tiering.engine import replication
from tiering.journal.records import Failures
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.move import policy_facts as planning
from tiering.move.report import MoveReport
from tiering.policy.backoff import AHEAD, wait_after
from tiering.policy.plan import HELD, NO_DISK, Plan, TtlDelete
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:  # the merge engine is a heavy import that planning does not need
    from tiering.merge.adoption import AdoptionPlan
    from tiering.merge.cold.job import ColdMergeReport, Workers
    from tiering.merge.output import MergeResult
    from tiering.merge.selection import FailedGroup, MergePlan, MergeStay

_NOTED_EVERY = timedelta(minutes=1)

TickStep = Literal["moves", "merges", "gc", "snapshots"]


class Sizes(msgspec.Struct, frozen=True):
    """Which merges and moves a pass does, by the bytes that they read. Who does the large ones does nothing else."""

    up_to: int | None = None
    above: int | None = None

    def take(self, size_bytes: int) -> bool:
        """Whether one of this size is among them."""
        return (self.up_to is None or size_bytes <= self.up_to) and (self.above is None or size_bytes > self.above)


ALL_SIZES = Sizes()


class TickReport(msgspec.Struct):
    """What one pass did. `problems` are sentences about what could not be done; the next pass tries again."""

    merges: list[MergeResult] = msgspec.field(default_factory=list)
    deleted: list[TtlDelete] = msgspec.field(default_factory=list)
    moves: MoveReport = msgspec.field(default_factory=MoveReport)
    snapshots: dict[str, int] = msgspec.field(default_factory=dict)
    """disk -> revision"""
    problems: list[str] = msgspec.field(default_factory=list)
    waiting: list[str] = msgspec.field(default_factory=list)
    """What was not tried in this pass: it failed before, or is paused."""
    failing: list[str] = msgspec.field(default_factory=list)
    """What failed before and waits to be tried again, as it was said then: that nothing failed in this pass does not
    make it well."""
    budgets: dict[str, str] = msgspec.field(default_factory=dict)
    """Why moves wait for money, requests or bytes: policy -> a sentence."""
    held: Counter[str] = msgspec.field(default_factory=Counter)
    """How many due parts the pacing of policies holds back, by what holds them (`plan.HELD`)."""
    left: set[TickStep] = msgspec.field(default_factory=set)
    """The steps of which something is due that is not of the sizes that this pass does."""


def tick(
    context: Context, *, only: TickStep | None = None, merges: bool = True, sizes: Sizes = ALL_SIZES
) -> TickReport:
    """One pass over all tables. A step that fails is noted, the others go on; `context.stop` ends it between steps.

    Without `merges` another process merges what no replicas agree upon. Merges and moves of other `sizes` are left to
    a pass beside this one.
    """
    with context.journal.file.rescue():
        if sizes.above is None:
            return _tick(context, only, sizes, merges=merges)
        return _tick_large(context, only, sizes)


def _tick_large(context: Context, only: TickStep | None, sizes: Sizes) -> TickReport:
    """The large merges, or the large moves, of a store that another pass looks after."""
    report = TickReport()
    if only == "merges":
        _merge_all(context, report, sizes)
    else:
        plan = planning.plan(context, reachability.whole_tables(context), rest="none")
        _move_all(context, plan, report, sizes)
    return report


def _tick(context: Context, only: TickStep | None, sizes: Sizes, *, merges: bool) -> TickReport:
    report = TickReport()
    _note_time(context)
    report.problems += [fault.error.message for fault in context.faults]
    report.problems += [table.text for table in context.catalog.unreadable()]
    if only in (None, "merges"):
        if merges:
            _merge_all(context, report, sizes)
        report.problems += replication.tick(context)
    if only in (None, "moves") and not context.stop.is_set():
        tables = reachability.whole_tables(context)
        plan = planning.plan(context, tables, rest="none")
        if (plan.moves or plan.deletes) and _look(context):
            tables = reachability.whole_tables(context)
            plan = planning.plan(context, tables, rest="none")
        report.problems += {stay.reason.detail for stay in plan.stays if stay.reason.kind == "clock"}
        report.waiting += _held_back(plan)
        policies = {table.uuid: table.policy for table in tables}
        spent = (stay for stay in plan.stays if stay.reason.kind == "budget")
        report.budgets = {policies[stay.table_uuid]: stay.reason.detail for stay in spent}
        report.held = Counter(stay.reason.kind for stay in plan.stays if stay.reason.kind in HELD)
        report.deleted = delete_due(context, plan, report.problems)
        _move_all(context, plan, report, sizes)
        if plan.moves or plan.deletes:
            context.catalog.refresh()
    if only in (None, "snapshots") and not context.stop.is_set():
        _write_snapshots(context, report, forced=only == "snapshots")
    return report


def _move_all(context: Context, plan: Plan, report: TickReport, sizes: Sizes) -> None:
    report.failing += _failing(context, plan)
    moves = [move for move in plan.moves if sizes.take(move.bytes)]
    if len(moves) < len(plan.moves):
        report.left.add("moves")
    report.moves = replication.moved(context, moves)


def _failing(context: Context, plan: Plan) -> list[str]:
    """The parts that are still to move and whose last move failed, whatever else keeps them now: also those of tables
    that could not be looked at, for want of a disk."""
    tried = planning.failing_moves(context)
    if not tried:
        return []
    by_part = {(uuid, part): failure for (uuid, part, _), failure in sorted(tried.items())}
    stay = {(one.table_uuid, one.part) for one in plan.stays}
    names = {table.uuid: table.full_name for table in context.catalog.tables()}
    unseen = names.keys() - {table.uuid for table in reachability.whole_tables(context)}
    return [
        f"{names[uuid]} {part}: {failure.error}"
        for (uuid, part), failure in by_part.items()
        if uuid in names and ((uuid, part) in stay or uuid in unseen)
    ]


def _look(context: Context) -> bool:
    """Before a pass changes anything: ask the buckets that it has not asked, and look at each part. Whether that had
    been left out."""
    if context.catalog.freshness is Freshness.EVERY_FILE:
        return False
    context.catalog.refresh()
    return True


def believe_clock(context: Context) -> None:
    """A person says that this machine's clock is right: rules that count days may go by it, and parts that are dated
    later were so by one that was wrong."""
    now, newest = context.clock(), planning.newest_part(context)
    context.clocks.believe(now)
    with context.journal.file.rescue():
        context.journal.confirm_time(now)
        if newest is not None and newest > now:
            context.journal.note_written_ahead(newest)


def _note_time(context: Context) -> None:
    """While the clock is believed, note how late it is: what a later process compares its own with."""
    now = context.clock()
    if context.clock is wall_clock and not planning.clock_problem(context):
        known = context.journal.confirmed_time()
        if known is None or abs(now - known) > _NOTED_EVERY:
            with suppress(NoSpace):  # a later process then asks other clocks first
                context.journal.confirm_time(now)


def merge(
    context: Context, definition: TableDefinition, request: MergeRequest, failures: list[FailedGroup] | None = None
) -> list[MergeResult]:
    """Merge until nothing is worth merging any more or, with `request.final`, each partition into one part.

    A group that cannot be merged, or a partition that cannot be adopted, keeps no other from it. It is added to
    `failures`; without that list, or when nothing was merged, the first error is raised at the end.
    """
    from tiering.merge.selection import FailedGroup

    not_adopted: list[FailedGroup] = []
    results = adopt(context, definition, request, not_adopted)
    failed = {group.plan.names: group for group in not_adopted}
    while plans := [plan for plan in plan_merges(context, definition, request) if plan.names not in failed]:
        for plan in plans:
            if context.stop.is_set():
                break
            try:
                results.append(_merge(context, definition, plan, request))
            except FrostlineError as error:
                failed[plan.names] = FailedGroup(plan, error)
        context.catalog.refresh()
        if request.final or request.rewrite or context.stop.is_set():
            break
    if failed and (failures is None or not results):
        raise next(iter(failed.values())).error
    if failures is not None:
        failures += failed.values()
    return results


def adopt(
    context: Context, definition: TableDefinition, request: MergeRequest, failures: list[FailedGroup]
) -> list[MergeResult]:
    """With `request.adopt`: rewrite the parts of other machines, and what comes after them, partition by partition. One
    that fails is added to `failures`; the others go on."""
    from tiering.merge import merger
    from tiering.merge.selection import FailedGroup, MergePlan

    results: list[MergeResult] = []
    if request.adopt:
        plans = plan_adoptions(context, definition, request, failures)
        for partition, plans_there in groupby(plans, key=lambda plan: plan.partition):
            if context.stop.is_set():
                break
            group = list(plans_there)
            try:
                doubt = planning.check_merge(context, definition)
                results += merger.adopt(context, definition, group, clock_doubt=doubt)
            except FrostlineError as error:
                parts = tuple(stored for plan in group for stored in plan.parts)
                failures.append(FailedGroup(MergePlan(partition, parts, group[0].reason), error))
        context.catalog.refresh()
    return results


def merge_cold(
    context: Context, definition: TableDefinition, workers: Workers, request: MergeRequest
) -> ColdMergeReport:
    """Merge the parts in buckets, also on volumes that prefer not to merge, until nothing of it is due any more."""
    from tiering.merge.cold import job as cold_merge

    if request.cold is None:
        request = replace(request, cold=ColdOptions())
    report = cold_merge.ColdMergeReport()
    report.merges += adopt(context, definition, request, report.failures)
    tried = {failure.plan.names for failure in report.failures}
    while plans := [plan for plan in plan_merges(context, definition, request) if plan.names not in tried]:
        tried |= {plan.names for plan in plans}
        doubt = planning.check_merge(context, definition)
        cold_merge.merge_groups(context, definition, plans, workers, request, report, clock_doubt=doubt)
        if request.final or report.not_begun or context.stop.is_set():
            break
    return report


def plan_merges(context: Context, definition: TableDefinition, request: MergeRequest) -> list[MergePlan]:
    """Which parts are worth merging now, and why. Raises `NotFound` for a partition without parts."""
    from tiering.merge import planning as merge_planning

    if request == MergeRequest():
        parts = merge_planning.parts_to_look_at(context, definition)
    else:
        parts = _parts_of(context, definition, request.partition)
    doubt = planning.delete_doubt(context, definition) if parts else ""
    return merge_planning.plan_merges(context, definition, parts, request, clock_doubt=doubt)


def plan_adoptions(
    context: Context, definition: TableDefinition, request: MergeRequest, failures: list[FailedGroup] | None = None
) -> list[AdoptionPlan]:
    """Which parts of other machines would be rewritten as this machine's own, and what with them. Raises `NotFound` as
    `plan_merges`. A partition where nobody can tell which rows came first is added to `failures`; without that list
    `Refused` is raised."""
    from tiering.merge import adoption

    parts = _parts_of(context, definition, request.partition)
    return adoption.plan_adoptions(context, definition, parts, request.adopt_as, failures)


def explain_merges(
    context: Context, definition: TableDefinition, plans: Sequence[MergePlan], request: MergeRequest
) -> list[MergeStay]:
    """Why the partitions that none of the plans is about are not merged now."""
    from tiering.merge import planning as merge_planning

    parts = _parts_of(context, definition, request.partition)
    return merge_planning.explain_merges(context, definition, parts, plans, request.cold)


def _parts_of(context: Context, definition: TableDefinition, partition: str | None) -> list[StoredPart]:
    parts = [stored for stored in context.catalog.originals(definition) if partition in (None, stored.name.partition)]
    if partition is not None and not parts:
        raise NotFound(
            f"table {definition.full_name} has no partition {partition!r}",
            hint=f"'frostline parts {definition.full_name}' lists its partitions",
        )
    return parts


def delete_due(context: Context, plan: Plan, problems: list[str]) -> list[TtlDelete]:
    """Drop the parts whose every row is past its TTL. What is in use waits for the next pass; of a replicated table
    its replicas agree first."""
    done: list[TtlDelete] = []
    agreed: dict[str, list[TtlDelete]] = defaultdict(list)
    for delete in plan.deletes:
        try:
            definition = context.catalog.table(delete.table_uuid)
            if definition.is_replicated:
                agreed[definition.uuid].append(delete)
                continue
            part = context.catalog.part(definition, delete.part)
            tables.drop_parts(context, [part], reason=delete.reason.detail, by_ttl=True)
        except FrostlineError as error:
            problems.append(f"{delete.table} {delete.part} was not deleted: {error.message}")
            continue
        done.append(delete)
    for uuid, deletes in agreed.items():
        done += replication.deleted(context, uuid, deletes, problems)
    return done


def _merge(context: Context, definition: TableDefinition, plan: MergePlan, request: MergeRequest) -> MergeResult:
    from tiering.merge import merger

    doubt = planning.check_merge(context, definition)
    return merger.merge(
        context,
        definition,
        plan.parts,
        reason=plan.reason,
        drop_deleted=request.drop_deleted,
        clock_doubt=doubt,
    )


def _next_try(failure: Failures, now: datetime) -> datetime | None:
    """When it is tried again; None: now. What failed in the future did so by a clock that was wrong."""
    until = failure.at + wait_after(failure.attempts)
    return until if now < until and failure.at - now <= AHEAD else None


def _merge_all(context: Context, report: TickReport, sizes: Sizes, *, looked: bool = False) -> None:
    request = MergeRequest()
    for definition in reachability.whole_tables(context):
        if definition.is_replicated:  # what is merged is agreed upon by its replicas
            continue
        if "merges" in context.journal.overrides.paused(definition.uuid) or context.stop.is_set():
            continue
        failures = context.journal.work.merge_failures(definition.uuid)
        plans = plan_merges(context, definition, request)
        if plans and not looked and _look(context):
            _merge_all(context, report, sizes, looked=True)
            return
        for plan in plans:
            if context.stop.is_set():
                break
            failure = failures.get(plan.names)
            if failure is not None and (until := _next_try(failure, context.clock())) is not None:
                report.waiting.append(_said(definition, failure, until))
                report.failing.append(f"merge of {definition.full_name}: {failure.error}")
                continue
            if not sizes.take(plan.size_bytes):
                report.left.add("merges")
                continue
            try:
                report.merges.append(_merge(context, definition, plan, request))
            except Locked:  # somebody moves or merges these parts now: next pass
                continue
            except FrostlineError as error:  # a damaged part must not keep the other partitions from merging
                report.problems.append(f"merge of {definition.full_name}: {error.message}")
    if report.merges:
        context.catalog.refresh()


def _held_back(plan: Plan) -> list[str]:
    """Why parts stay that may be due: a pause, moves that failed, and disks that take nothing now."""
    said = sorted({stay.reason.detail for stay in plan.stays if stay.reason.kind == "paused"})
    failed = [stay for stay in plan.stays if stay.reason.kind in ("backoff", "gave_up", *NO_DISK)]
    if failed:
        first, more = failed[0], len(failed) - 1
        others = f"; so do {more} more" if more else ""
        said.append(f"part {first.part} of {first.table} stays: {first.reason.detail}{others}")
    said += sorted({stay.reason.detail for stay in plan.stays if stay.reason.kind == "budget"})
    return said


def _said(definition: TableDefinition, failure: Failures, until: datetime) -> str:
    tries = f"{failure.attempts} attempt{'s' if failure.attempts > 1 else ''} failed, the last with: {failure.error}"
    return f"merge of {definition.full_name}: {tries}; next try at {until:%Y-%m-%d %H:%MZ}, or by 'frostline merge'"


def _write_snapshots(context: Context, report: TickReport, *, forced: bool) -> None:
    """Commits write their snapshots themselves; `tick --only snapshots` writes one of every object disk now."""
    if not forced:
        return
    for disk in context.disks.values():
        logged = as_disk(disk, LoggedDisk)
        if logged is None or disk.read_only:
            continue
        if disk.unreachable:
            report.problems.append(f"no snapshot: {disk.unreachable}")
        else:
            report.snapshots[disk.name] = logged.write_snapshot()
