"""Agreeing upon merges: one replica writes an entry, and all make, or fetch, the same part.

What may lie between two parts is known, because numbers have no gaps that Keeper does not explain: first those on
their way are listed, then the log is taken over to its end. What was on its way is in the list or, having counted, in
the log. The entry is written with the version that the log's node had before all that, and raises it: of two replicas
that agree upon merges at once one is refused, and plans again. A replica that claims parts to move raises it, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from itertools import pairwise

import msgspec

from oplog.errors import Conflict, NotFound, Refused
from tiering.catalog.catalog import StoredPart
from tiering.merge.output import output_name
from tiering.merge.planning import plan_merges
from tiering.merge.request import MergeRequest
from tiering.merge.selection import MergePlan
from tiering.move.policy_facts import check_merge, delete_doubt
from tiering.policy import ttl
from tiering.table.part import PartName
from zerocopy.execution import altering, moving
from zerocopy.execution.queue import pull, queue
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CreateNode, Set
from zerocopy.replica import entries, shared
from zerocopy.replica.entries import Merge, MergeKeeping
from zerocopy.replica.replica import Replica


def assign(replica: Replica, request: MergeRequest) -> list[str]:
    """Write the merges that are due into the log; returns what they make. None where another replica was first. Where
    no clock confirms this machine's, all replicas keep rows past their TTL: every replica goes by the entry's time.
    Raises `Refused` where another clock contradicts it."""
    if request.adopt or request.drop_deleted or request.cold is not None:
        raise Refused(
            f"{replica.definition.full_name} is replicated: its merges take no --adopt, --drop-deleted or --cold",
            hint="merge it with --final, or without options",
        )
    doubt = delete_doubt(replica.context, replica.definition)
    if not _plans(replica, request, (), (), None, doubt):  # what the others know can only take from it
        return []
    keeper, table = replica.keeper, replica.table
    keeper.sync(table.path)
    version = keeper.get(table.log).version
    moving_now = moving.busy(replica)
    on_their_way = _on_their_way(replica)
    pull(replica)
    pending = [name for queued in queue(replica) for name in queued.entry.touches]
    plans = _plans(replica, request, pending, moving_now, replica.parts(), doubt)
    plans = [plan for plan in plans if _is_whole(plan, on_their_way, pending)]
    if not plans:
        return []
    doubt = check_merge(replica.context, replica.definition)
    unaltered = altering.unaltered(replica)
    if unaltered is None:
        return []
    mark = uuid.uuid4().hex.encode()
    outputs, creates = [], []
    for plan in plans:
        output = str(output_name(plan.parts))
        inputs = tuple(stored.facts.name for stored in plan.parts)
        now = replica.context.clock()
        entry = Merge(time=now, replica=replica.name, output=output, inputs=inputs, reason=plan.reason)
        if doubt:
            entry = MergeKeeping(**msgspec.structs.asdict(entry), clock_doubt=doubt)
        creates.append(CreateNode(f"{table.log}/log-", entries.encode(entry), numbered=True))
        outputs.append(output)
    try:
        keeper.multi([*creates, Set(table.log, mark, version), *unaltered], witness=Witness(table.log, mark))
    except Conflict:
        return []
    return outputs


def _plans(
    replica: Replica,
    request: MergeRequest,
    pending: Sequence[PartName],
    moving_now: Collection[str],
    own: Collection[PartName] | None,
    clock_doubt: str,
) -> list[MergePlan]:
    """What is due among the parts that are on this machine's own disks and in no merge or move that is agreed upon
    already; `own`: and that Keeper says are here. None while nobody knows what is on the shared disk."""
    context, definition = replica.context, replica.definition
    context.catalog.refresh()
    disk = shared.disk_of(context, definition)
    if disk is not None and disk.unreachable:
        return []
    resting = set() if request.final else {name for name in context.disks if context.disk(name).capabilities.remote}
    busy: dict[str, str] = {}
    parts = [stored for stored in context.catalog.originals(definition) if _asked_for(stored, request)]
    for stored in parts:
        if stored.facts.name in moving_now:
            busy[stored.facts.name] = "move"
        elif disk is not None and stored.disk == disk.name:
            busy[stored.facts.name] = "rest on the shared disk"
        elif stored.disk in resting:
            busy[stored.facts.name] = "rest in a bucket"
        elif (own is not None and stored.name not in own) or any(name.covers(stored.name) for name in pending):
            busy[stored.facts.name] = "merge"
        elif not clock_doubt and ttl.due_delete(ttl.due_times(definition, stored.facts), context.clock()) is not None:
            busy[stored.facts.name] = "delete"  # whole, by an entry of its own
    return plan_merges(context, definition, parts, request, busy=busy, clock_doubt=clock_doubt)


def _asked_for(stored: StoredPart, request: MergeRequest) -> bool:
    return request.partition in (None, stored.name.partition)


def _is_whole(plan: MergePlan, on_their_way: dict[str, list[int]], pending: Sequence[PartName]) -> bool:
    """Whether nothing can lie between the parts that is not among them."""
    for left, right in pairwise(stored.name for stored in plan.parts):
        gap = range(left.max_block + 1, right.min_block)
        if any(number in gap for number in on_their_way.get(plan.partition, ())):
            return False
        if any(
            name.partition == plan.partition and (name.min_block in gap or name.max_block in gap) for name in pending
        ):
            return False
    return True


def _on_their_way(replica: Replica) -> dict[str, list[int]]:
    """The numbers of each partition whose insert has not said yet whether it counts."""
    keeper, found = replica.keeper, {}
    for partition in keeper.children(f"{replica.table.path}/block_numbers"):
        try:
            found[partition] = [replica.number_of(name) for name in keeper.children(replica.table.numbers(partition))]
        except NotFound:
            continue
    return found
