"""Which parts an adoption rewrites: those of other machines, as this machine's own, and what has to follow
them so that every two neighbours of the partition may merge. Changes nothing.

Merges take rows of equal keys in the order of inserts. What is rewritten gets new numbers, above all others; so in a
table where the order counts, what was inserted after the first part that is rewritten is rewritten as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import msgspec

from oplog.errors import Refused
from tiering.catalog import blocks, insertion_order
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.insertion_order import InsertionOrder
from tiering.merge.planning import MergeRules, portions
from tiering.merge.request import CountsAs
from tiering.merge.selection import MergePlan
from tiering.table.merge_modes import depends_on_order
from tiering.table.part import PartName, range_of
from tiering.table.schema import TableDefinition


class AdoptionPlan(MergePlan, frozen=True):
    """Parts on one disk, in the order of inserts, to become one part with a new number."""

    inserted: tuple[int, int] | None = None
    """The blocks that its rows count as inserted under; None: those of the parts."""
    as_newest: bool = False
    """They count as inserted under the new number."""


def plan_adoptions(
    context: Context, definition: TableDefinition, parts: Sequence[StoredPart], counts_as: CountsAs | None = None
) -> list[AdoptionPlan]:
    """The rewrites of each partition, in the order of inserts. `counts_as`: what rows of other machines are next to
    this machine's where nobody can tell.

    Raises `Refused` where the order counts, cannot be told and is not said.
    """
    rules = MergeRules.of(context, definition, parts, final=True, anywhere=True)
    shared = [disk for disk in map(context.disk, context.catalog.policy_disks(definition)) if disk.capabilities.shared]
    others = frozenset().union(*(blocks.taken_by_others(context, definition, disk) for disk in shared))
    planner = _Planner(definition, rules, InsertionOrder(context, definition), others, counts_as)
    return [plan for group in _by_partition(parts) for plan in planner.plans(group)]


def _by_partition(parts: Sequence[StoredPart]) -> Iterator[list[StoredPart]]:
    for _, group in groupby(sorted(parts, key=_name), key=_partition):
        yield list(group)


class _Planner(msgspec.Struct, frozen=True):
    """What the partitions of a table have in common."""

    definition: TableDefinition
    rules: MergeRules
    order: InsertionOrder
    others: frozenset[int]
    """The ranges that other machines took."""
    counts_as: CountsAs | None

    def plans(self, members: list[StoredPart]) -> Iterator[AdoptionPlan]:
        """Those of a partition, all of whose parts these are. None while one that has to be rewritten is in use, or
        cannot be."""
        rewritten = self._to_rewrite(members)
        if any(self.rules.why_not(stored) is not None for stored in rewritten):
            return
        foreign = [stored for stored in rewritten if self._is_foreign(stored)]
        if not depends_on_order(self.definition):
            for _, group in groupby(sorted(rewritten, key=_disk_and_name), key=_disk):
                yield from self._in_portions(list(group))
        elif (doubt := self._doubt(members, foreign)) is None:
            yield from self._runs(rewritten)
        elif self.counts_as is None:
            raise Refused(doubt, hint=_hint(self.definition, members[0].name.partition))
        else:
            yield from self._as_said(members, rewritten, foreign)

    def _to_rewrite(self, members: list[StoredPart]) -> list[StoredPart]:
        """Those that must get new numbers, in the order of inserts."""
        target = self._target(members)
        needed = {stored.name for stored in members if self._needs_it(stored, target)}
        if not depends_on_order(self.definition):
            return [stored for stored in members if stored.name in needed]
        ordered = insertion_order.in_order(members)
        first = next((place for place, stored in enumerate(ordered) if stored.name in needed), len(ordered))
        if not any(insertion_order.meet(left, right) for left, right in pairwise(ordered)):
            out_of_line = (place for place, pair in enumerate(pairwise(ordered)) if not _ascend(*pair))
            first = min(first, next(out_of_line, first))
        return ordered[first:]

    def _target(self, members: Sequence[StoredPart]) -> int | None:
        """The range of this machine that the parts of the partition are to be in; None for one that it has yet to
        take."""
        adopted = [stored for stored in members if self._is_foreign(stored)]
        newest = max(self.rules.own, default=None)
        if not adopted:
            return max(range_of(stored.name.max_block) for stored in members)
        if newest is None or not depends_on_order(self.definition):
            return newest
        return newest if all(self.order.came_before(stored, newest) for stored in adopted) else None

    def _needs_it(self, stored: StoredPart, target: int | None) -> bool:
        """Whether another machine inserted it, or a range of another machine is between its own and the target."""
        first = range_of(stored.name.min_block)
        cut_off = any(first < index and (target is None or index < target) for index in self.others)
        return cut_off or self._is_foreign(stored)

    def _is_foreign(self, stored: StoredPart) -> bool:
        """Whether another machine inserted it."""
        return range_of(stored.name.max_block) not in self.rules.own

    def _doubt(self, members: Sequence[StoredPart], foreign: Sequence[StoredPart]) -> str | None:
        """Why the place of one of the foreign parts among the others cannot be told."""
        for stored in foreign:
            for other in members:
                earlier, later = insertion_order.in_order([stored, other])
                if other is not stored and not self.order.came_first(earlier, later):
                    return (
                        f"nobody can tell whether rows of {stored.facts.name} on {stored.disk}, which another machine "
                        f"inserted, are older or newer than those of {other.facts.name} on {other.disk}, and the merge "
                        f"mode {self.definition.merge_mode} goes by it"
                    )
        return None

    def _as_said(
        self, members: Sequence[StoredPart], rewritten: list[StoredPart], foreign: list[StoredPart]
    ) -> Iterator[AdoptionPlan]:
        """The foreign parts before all others of the partition, or after them."""
        theirs, names = list(self._runs(foreign)), {stored.name for stored in foreign}
        if self.counts_as == "newer":
            yield from self._runs([stored for stored in rewritten if stored.name not in names])
            yield from (msgspec.structs.replace(plan, as_newest=True) for plan in theirs)
            return
        first = min(0, *(stored.inserted[0] for stored in members)) - len(theirs)
        for place, plan in enumerate(theirs, first):
            yield msgspec.structs.replace(plan, inserted=(place, place))
        yield from self._runs([stored for stored in insertion_order.in_order(members) if stored.name not in names])

    def _runs(self, ordered: Sequence[StoredPart]) -> Iterator[AdoptionPlan]:
        """Those that come one after the other on one disk, together. Those whose order nobody knows stay apart."""
        run: list[StoredPart] = []
        for stored in ordered:
            if run and (run[-1].disk != stored.disk or any(insertion_order.meet(one, stored) for one in run)):
                yield from self._in_portions(run)
                run = []
            run.append(stored)
        if run:
            yield from self._in_portions(run)

    def _in_portions(self, group: list[StoredPart]) -> Iterator[AdoptionPlan]:
        """As many at once as a merge takes, all on one disk."""
        for members in portions(group, self.definition.settings.max_merge_size_bytes, fewest=1):
            count = f"{len(members)} parts" if len(members) > 1 else "a part"
            disk, theirs = members[0].disk, sum(map(self._is_foreign, members))
            reason = f"{count} of other machines on {disk}, rewritten as this machine's own"
            if theirs < len(members):
                reason = f"{count} on {disk}, {theirs} of other machines, rewritten in the order of inserts"
            yield AdoptionPlan(members[0].name.partition, tuple(members), reason)


def _ascend(left: StoredPart, right: StoredPart) -> bool:
    return left.name.max_block < right.name.min_block


def _hint(definition: TableDefinition, partition: str) -> str:
    return (
        f"you may know: 'frostline merge {definition.full_name} --partition {partition} --adopt --adopt-as older', or "
        "newer; until then every row of both is in each answer"
    )


def _name(stored: StoredPart) -> PartName:
    return stored.name


def _partition(stored: StoredPart) -> str:
    return stored.name.partition


def _disk(stored: StoredPart) -> str:
    return stored.disk


def _disk_and_name(stored: StoredPart) -> tuple[str, PartName]:
    return stored.disk, stored.name
