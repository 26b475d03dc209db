"""Which merges a table is due, and why its other partitions stay unchanged. Changes nothing.

Gathers what bears on the question (volumes, claims, inserts on their way, block ranges, free space) and hands it to the
pure `tiering.merge.selection`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from tiering.catalog import blocks
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.insertion_order import Followers
from tiering.catalog.new_parts import first_block_on_its_way
from tiering.config.units import counted, format_size
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.merge.selection import MAX_PARTS, OLD, MergePlan, MergeStay, explain_rest, select_final, select_merges
from tiering.policy import ttl
from tiering.policy.late import LatePartitions, LateParts
from tiering.policy.placement import size_limit
from tiering.policy.plan import Reason
from tiering.table.part import Part, PartFacts, PartName, range_of
from tiering.table.pruning import Predicate, may_match
from tiering.table.schema import Delete, Recompress, TableDefinition, TtlRule

LARGE_ENOUGH = 0.75
"""Of the target size. Parts that miss it by little would be rewritten with every run, and gain nothing."""


_ADOPT = "'merge --adopt' rewrites them as this machine's own"


def plan_merges(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    request: MergeRequest,
    *,
    busy: Mapping[str, str] | None = None,
    clock_doubt: str = "",
) -> list[MergePlan]:
    """The merges worth doing among the parts, or with `final` one for each run of adjacent parts. With `cold`, among
    the parts in buckets, whether their volume prefers to rest or not; else among those on volumes that do not.
    `drop_deleted` adds parts that are all of their partition and have deleted keys to forget. `busy`: further parts
    that are in no merge now, and what with. The parts are originals (`Catalog.originals`): a merge of a copy would take
    the rows off the bucket. `clock_doubt`: why the clock may be wrong; then no part is rewritten only to delete rows by
    a rule."""
    cold = request.cold
    if not parts:
        return []
    rules = MergeRules.of(context, definition, parts, cold, busy, final=request.final, anywhere=request.rewrite)
    if request.rewrite:
        return [
            MergePlan(stored.name.partition, (stored,), "it is older than the columns of its table")
            for stored in _not_in((), parts, rules)
            if stored.part.schema_version != definition.schema_version
            or not definition.files_have_nested_ids(stored.part.schema_version)
        ]
    if cold is not None:
        parts = _within(parts, definition, cold.where)
    limit = _largest_merge(context, definition, rules)
    if request.final:
        plans = select_final(parts, allowed=rules.allowed, busy=rules.claims, joinable=rules.joinable)
        if cold is not None and limit is not None:
            plans = [portion for plan in plans for portion in _in_portions(plan, limit)]
        plans = [plan for plan in plans if len(plan.parts) >= rules.min_inputs]
        if request.drop_deleted:
            plans += _forgetting(context, definition, _not_in(plans, parts, rules))
        if not clock_doubt:
            rest = _not_in(plans, parts, rules)
            plans += [*_expirations(context, definition, rest), *_partial_expirations(context, definition, rest)]
        return [*plans, *_reductions(definition, parts, _not_in(plans, parts, rules), limit)]
    late = list(_late_merges(parts, definition, rules, limit))
    merges = select_merges(
        parts,
        definition.settings,
        rules.now,
        allowed=rules.allowed,
        busy={**rules.claims, **dict.fromkeys((stored.facts.name for plan in late for stored in plan.parts), "merge")},
        joinable=rules.joinable,
        max_size_bytes=limit,
    )
    merges = [*late, *(plan for plan in merges if len(plan.parts) >= rules.min_inputs)]
    if request.drop_deleted:
        merges += _forgetting(context, definition, _not_in(merges, parts, rules))
    if not clock_doubt:
        merges += _expirations(context, definition, _not_in(merges, parts, rules))
    return [*merges, *_recompressions(context, definition, _not_in(merges, parts, rules))]


def parts_to_look_at(context: Context, definition: TableDefinition) -> list[StoredPart]:
    """The parts of the partitions of which `plan_merges`, asked for what is worth it, can take some: none is looked at
    in a partition that has one part on each volume that merges, and of which no rule deletes rows."""
    sums = context.catalog.sums(definition)
    if sums is None or any(isinstance(rule.action, Recompress) for rule in definition.ttl):
        return context.catalog.originals(definition)
    counts: Counter[tuple[str, str]] = Counter()
    resting = _resting(context, definition)
    for disk, whole in sums.items():
        volume = context.catalog.volume_of(definition, disk)
        if volume is not None and volume not in resting:
            counts.update({(volume, name): partition.parts for name, partition in whole.partitions.items()})
    several = {name for (_, name), parts in counts.items() if parts > 1}
    return context.catalog.partitions(definition, several | _expiring(context, definition))


def _expiring(context: Context, definition: TableDefinition) -> set[str]:
    """The partitions in which a rule that deletes may be due for a part."""
    if not any(isinstance(rule.action, Delete) for rule in definition.ttl):
        return set()
    return context.catalog.due(definition, context.clock())


def _resting(context: Context, definition: TableDefinition) -> frozenset[str]:
    """The volumes of the table that prefer not to merge."""
    volumes = context.config.policy(definition.policy).volumes
    return frozenset(volume.name for volume in volumes if volume.prefer_not_to_merge)


def holds_everything(context: Context, definition: TableDefinition, parts: Sequence[StoredPart]) -> bool:
    """Whether these are all parts of their partition that there can be, on any machine: only then may a merge forget
    deleted keys, else an older row of a key could come back."""
    partition = parts[0].name.partition
    known = {stored.name for stored in context.catalog.parts(definition) if stored.name.partition == partition}
    if known != {stored.name for stored in parts}:
        return False
    disks = [context.disk(name) for name in context.catalog.policy_disks(definition)]
    return not any(disk.unreachable or blocks.foreign(context, definition, disk) for disk in disks)


def _not_in(plans: Sequence[MergePlan], parts: Sequence[StoredPart], rules: MergeRules) -> list[StoredPart]:
    """The parts that none of the plans takes, and that may be merged."""
    taken = {*rules.claims, *(stored.facts.name for plan in plans for stored in plan.parts)}
    return [stored for stored in parts if stored.facts.name not in taken and rules.allowed(stored)]


def _within(parts: Sequence[StoredPart], definition: TableDefinition, where: Predicate) -> list[StoredPart]:
    """The parts of the partitions that can hold a selected row: all of them, so that neighbours stay neighbours."""
    chosen = {stored.name.partition for stored in parts if may_match(where, stored.part, definition)}
    return [stored for stored in parts if stored.name.partition in chosen]


def _in_portions(plan: MergePlan, limit_bytes: int) -> Iterator[MergePlan]:
    if plan.size_bytes <= limit_bytes:
        yield plan
        return
    for portion in portions(list(plan.parts), limit_bytes):
        size = format_size(sum(stored.facts.size_bytes for stored in portion))
        yield MergePlan(plan.partition, tuple(portion), f"final merge of {counted(len(portion), 'part')}, {size}")


def _late_merges(
    parts: Sequence[StoredPart], definition: TableDefinition, rules: MergeRules, limit: int | None
) -> Iterator[MergePlan]:
    """One merge for each run of adjacent small parts whose rows came late, where these wait no longer."""
    if not rules.late:
        return

    def takes(stored: StoredPart) -> bool:
        return stored.facts.name in rules.late and rules.allowed(stored)

    bound = min(definition.settings.max_merge_size_bytes, limit or definition.settings.max_merge_size_bytes)
    for plan in select_final(parts, allowed=takes, busy=rules.claims, joinable=rules.joinable):
        for portion in portions(plan.parts, bound):
            reason = f"{len(portion)} small parts of late rows, which move together"
            yield MergePlan(plan.partition, tuple(portion), reason)


def portions(group: Sequence[StoredPart], limit_bytes: int, *, fewest: int = 2) -> Iterator[list[StoredPart]]:
    """The parts in portions of at least so many, each no larger than a merge may be."""
    portion: list[StoredPart] = []
    for stored in group:
        size = sum(known.part.size_bytes for known in portion) + stored.facts.size_bytes
        if portion and (len(portion) == MAX_PARTS or size > limit_bytes):
            yield from [portion] if len(portion) >= fewest else []
            portion = []
        portion.append(stored)
    if len(portion) >= fewest:
        yield portion


def explain_merges(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    plans: Sequence[MergePlan],
    cold: ColdOptions | None,
) -> list[MergeStay]:
    """Why the partitions that none of the plans is about are not merged: one reason each."""
    rules = MergeRules.of(context, definition, parts, cold)
    planned = {plan.partition for plan in plans}
    rest = [stored for stored in parts if stored.name.partition not in planned]
    inside = _within(rest, definition, cold.where) if cold is not None else rest
    stays = explain_rest(
        inside,
        definition.settings,
        rules.now,
        why_not=rules.why_not,
        why_apart=rules.why_apart,
        max_size_bytes=_largest_merge(context, definition, rules),
        min_inputs=rules.min_inputs,
    )
    outside = Counter(stored.name.partition for stored in rest) - Counter(stored.name.partition for stored in inside)
    reason = Reason("where", "the condition selects no row of it")
    return sorted([*stays, *(MergeStay(name, count, reason) for name, count in outside.items())], key=_partition)


def _partition(stay: MergeStay) -> str:
    return stay.partition


def due_level(definition: TableDefinition, part: Part | PartFacts, now: datetime) -> tuple[int, TtlRule | None]:
    """The highest zstd level of the recompression rules that are due for all of the part, and its rule; 0 for none."""
    due = ttl.due_recompressions(ttl.due_times(definition, part), now)
    levels = [(item.rule.action.level, item.rule) for item in due if isinstance(item.rule.action, Recompress)]
    return max(levels, key=lambda pair: pair[0], default=(0, None))


class MergeRules(msgspec.Struct, frozen=True):
    """What may not be merged now, and what may not be merged with one another."""

    context: Context
    resting: frozenset[str]
    claims: Mapping[str, str]
    first_in_flight: int | None
    own: frozenset[int]
    cold: ColdOptions | None
    vanished: blocks.Vanished
    tangled: frozenset[PartName]
    followers: Followers
    drained: frozenset[str]
    late: Mapping[str, LateParts]
    """The small parts whose rows came late, and with whom they wait."""

    @classmethod
    def of(
        cls,
        context: Context,
        definition: TableDefinition,
        parts: Sequence[StoredPart],
        cold: ColdOptions | None = None,
        busy: Mapping[str, str] | None = None,
        *,
        final: bool = False,
        anywhere: bool = False,
    ) -> MergeRules:
        """For these parts: all of the partitions that they are of. `anywhere`: also on volumes that prefer to rest."""
        claims = context.journal.claimed(definition.uuid)
        return cls(
            context,
            _resting(context, definition) if cold is None and not anywhere else frozenset(),
            {**claims, **(busy or {})},
            first_block_on_its_way(claims),
            frozenset(blocks.owned(context, definition)),
            cold,
            blocks.Vanished(context, definition),
            frozenset(blocks.overlapping({stored.name for stored in parts})),
            Followers.of(definition, parts),
            context.journal.overrides.drained(),
            {} if cold is not None or final else _late_parts(context, definition, parts),
        )

    @property
    def now(self) -> datetime:
        """By which parts are old enough to merge: in a bucket at once, for no company comes there by itself."""
        return self.context.clock() + (OLD if self.cold is not None else timedelta(0))

    @property
    def min_inputs(self) -> int:
        return max(self.cold.min_inputs, 2) if self.cold is not None else 2

    def allowed(self, stored: StoredPart) -> bool:
        return self._blocked(stored) is None

    def joinable(self, left: StoredPart, right: StoredPart) -> bool:
        return self.why_apart(left, right) is None

    def why_not(self, stored: StoredPart) -> Reason | None:
        """Why the part is in no merge now; None when it may be in one."""
        holder = self.claims.get(stored.facts.name)
        return Reason("busy", f"a {holder} works on {stored.facts.name} now") if holder else self._blocked(stored)

    def _blocked(self, stored: StoredPart) -> Reason | None:
        disk = self.context.disk(stored.disk)
        if stored.volume is None:
            return Reason("not_in_policy", f"disk {stored.disk} is not in the table's policy")
        if stored.volume in self.resting:
            return Reason("resting", f"merges are disabled on volume {stored.volume}")
        if disk.unreachable:
            return Reason("unreachable", disk.unreachable)
        if disk.read_only:
            return Reason("read_only", f"disk {stored.disk} is read-only")
        if stored.disk in self.drained:
            return Reason("drained", f"disk {stored.disk} is drained: parts can only leave it")
        waiting = self.late.get(stored.facts.name)
        if waiting is not None and not waiting.is_over(self.now):
            until = ttl.short_time(waiting.ends())
            return Reason("late", f"small parts of late rows are merged into one at {until}")
        if self.cold is not None and (reason := _not_cold(self.cold, disk, stored)) is not None:
            return reason
        if self.first_in_flight is not None and stored.name.max_block >= self.first_in_flight:
            return Reason("insert", f"an insert is running that may still bring block {self.first_in_flight}")
        return None

    def why_apart(self, left: StoredPart, right: StoredPart) -> Reason | None:
        """Why two neighbours are never in one merge; None when they may be."""
        if left.volume != right.volume:
            return Reason(
                "volumes", f"{left.part.name} is on volume {left.volume}, {right.part.name} on {right.volume}"
            )
        if apart := self.tangled & {left.name, right.name}:
            detail = f"{min(apart)} and another part share block numbers but no rows: they stay apart. Query them, and"
            detail += " write the rows to keep with 'frostline insert --replace-partitions'"
            return Reason("overlap", detail)
        if not self.followers.follows(left.name, right.name):
            return Reason("order", out_of_line(left, right))
        if blocks.may_join(left.name, right.name, self.own):
            gone = self.vanished.between(left.name, right.name)
            return Reason("gone_between", may_come_back(left, right, gone)) if gone is not None else None
        if range_of(left.name.min_block) != range_of(right.name.max_block):
            detail = f"{left.part.name} and {right.part.name} were inserted by different machines; {_ADOPT}"
            return Reason("machines", detail)
        gap = f"{left.name.max_block + 1} to {right.name.min_block - 1}"
        return Reason(
            "foreign_gap",
            f"another machine inserted {left.part.name} and {right.part.name}, and may hold what is between them "
            f"(blocks {gap}) on its own disk; {_ADOPT}",
        )


def out_of_line(left: StoredPart, right: StoredPart) -> str:
    """Why the two are not merged: merges take rows of equal keys in the order of inserts."""
    return (
        f"{left.facts.name} and {right.facts.name} do not follow each other in the order of inserts; 'merge --adopt' "
        "puts them in line"
    )


def may_come_back(left: StoredPart, right: StoredPart, gone: PartName) -> str:
    """Why the two are not merged: a part that lay between them is in neither."""
    return (
        f"{gone} was between {left.part.name} and {right.part.name}, and no merge took it: it may be restored, "
        "or be on another machine's disk"
    )


def _late_parts(context: Context, definition: TableDefinition, parts: Sequence[StoredPart]) -> Mapping[str, LateParts]:
    policy = context.config.policy(definition.policy)
    if not policy.pacing.late_seconds:
        return {}
    found = LatePartitions(context.clock())
    for stored in parts:
        dues = ttl.due_times(definition, stored.facts)
        found.add(definition.uuid, stored.name, stored.facts, dues, stored.disk, policy)
    each = {stored.facts.name: found.of(definition.uuid, stored.name, stored.disk, policy) for stored in parts}
    return {name: waiting for name, waiting in each.items() if waiting is not None}


def _not_cold(options: ColdOptions, disk: Disk, stored: StoredPart) -> Reason | None:
    """Why a cold merge leaves the part alone."""
    if as_disk(disk, LoggedDisk) is None:
        return Reason("not_in_bucket", f"disk {stored.disk} is no bucket with a log: merge without --cold or --spark")
    if options.target_bytes is not None and stored.facts.size_bytes >= LARGE_ENOUGH * options.target_bytes:
        size, target = format_size(stored.facts.size_bytes), format_size(options.target_bytes)
        return Reason("large_enough", f"{stored.facts.name} has {size}, near the target of {target}")
    return None


def _largest_merge(context: Context, definition: TableDefinition, rules: MergeRules) -> int | None:
    """In bytes: what the volumes take, the disks have room for and the options allow; None without a limit."""
    states = context.reservations.states()
    volumes = [
        volume for volume in context.config.policy(definition.policy).volumes if volume.name not in rules.resting
    ]
    if rules.cold is not None:
        volumes = [v for v in volumes if all(as_disk(context.disk(name), LoggedDisk) is not None for name in v.disks)]
    limits = [limit for volume in volumes if (limit := size_limit(volume, states)) is not None]
    free = [
        state.unreserved_bytes
        for volume in volumes
        for state in [states[name] for name in volume.disks if name in states]
        if state.unreserved_bytes is not None and not state.broken and not state.drained
    ]
    bounds = [*limits, *([max(free)] if free else [])]
    if rules.cold is not None and rules.cold.max_group_bytes is not None:
        bounds.append(rules.cold.max_group_bytes)
    return max(min(bounds), 1) if bounds else None


def _forgetting(context: Context, definition: TableDefinition, parts: Sequence[StoredPart]) -> Iterator[MergePlan]:
    """Parts to rewrite by themselves, because they hold deleted keys and nothing else is in their partition."""
    from tiering.table.merge_modes import parse_merge_mode  # with Arrow, which a pass that finds nothing does without

    deleted = parse_merge_mode(definition.merge_mode).deleted
    if deleted is None:
        return
    column = str(definition.column(deleted).id)
    for stored in parts:
        known = stored.part.columns.get(column)
        if known is not None and (known.min or known.max) and holds_everything(context, definition, [stored]):
            yield MergePlan(stored.name.partition, (stored,), "deleted keys to forget")


def _reductions(
    definition: TableDefinition, parts: Sequence[StoredPart], rest: Sequence[StoredPart], limit: int | None
) -> Iterator[MergePlan]:
    """Parts of the `rest` that are alone in their partition and were never merged, where a merge reduces rows: equal
    keys of one insert are in them."""
    if definition.merge_mode == "ordinary":
        return
    counts = Counter(stored.name.partition for stored in parts)
    for stored in rest:
        alone = counts[stored.name.partition] == 1 and stored.name.level == 0
        if alone and (limit is None or stored.facts.size_bytes <= limit):
            reason = f"final merge of a part by itself: {definition.merge_mode} reduces its rows"
            yield MergePlan(stored.name.partition, (stored,), reason)


def _expirations(context: Context, definition: TableDefinition, parts: Sequence[StoredPart]) -> Iterator[MergePlan]:
    """Parts to rewrite by themselves, because a rule deletes all of their rows but those that have no time."""
    now = context.clock()
    for stored in parts:
        due = ttl.due_in_part(ttl.due_times(definition, stored.facts), now)
        if due is not None:
            yield MergePlan(stored.name.partition, (stored,), f"due: {ttl.rule_text(due.rule)}; {due.undated}")


def _partial_expirations(
    context: Context, definition: TableDefinition, parts: Sequence[StoredPart]
) -> Iterator[MergePlan]:
    """Parts to rewrite by themselves in a final merge, because a rule deletes some of their rows: an earlier merge may
    have kept them, while the clock was in doubt."""
    now = context.clock()
    for stored in parts:
        dues = ttl.due_times(definition, stored.facts)
        due = ttl.due_rows(dues, now) if ttl.due_in_part(dues, now) is None else None
        if due is not None:
            reason = f"final merge of a part by itself: {ttl.rule_text(due.rule)} is due for some of its rows"
            yield MergePlan(stored.name.partition, (stored,), reason)


def _recompressions(context: Context, definition: TableDefinition, parts: Sequence[StoredPart]) -> Iterator[MergePlan]:
    """Parts to rewrite by themselves, because a recompression rule is due that they do not follow yet."""
    now = context.clock()
    for stored in parts:
        level, rule = due_level(definition, stored.facts, now)
        if rule is not None and level > stored.part.compression_level:
            yield MergePlan(stored.name.partition, (stored,), f"due: {ttl.rule_text(rule)}")
