"""Which parts an adoption rewrites: those of other machines, as this machine's own, and what has to follow
them so that every two neighbours of the partition may merge. Changes nothing.

Merges take rows of equal keys in the order of inserts. What is rewritten gets new numbers, above all others; so in a
table where the order counts, what was inserted after the first part that is rewritten is rewritten as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import msgspec

from oplog.errors import FrostlineError, Refused
from tiering.catalog import blocks, insertion_order
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.insertion_order import InsertionOrder
from tiering.config.units import counted
from tiering.merge.planning import MergeRules, portions
from tiering.merge.request import CountsAs
from tiering.merge.selection import FailedGroup, MergePlan
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
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    counts_as: CountsAs | None = None,
    failures: list[FailedGroup] | None = None,
) -> list[AdoptionPlan]:
    """The rewrites of each partition, in the order of inserts. `counts_as`: what rows of other machines are next to
    this machine's where nobody can tell.

    A partition where the order counts, cannot be told and is not said is added to `failures`; without that list
    `Refused` is raised.
    """
    rules = MergeRules.of(context, definition, parts, final=True, anywhere=True)
    shared = [disk for disk in map(context.disk, context.catalog.policy_disks(definition)) if disk.capabilities.shared]
    others = frozenset().union(*(blocks.taken_by_others(context, definition, disk) for disk in shared))
    planner = _Planner(definition, rules, InsertionOrder(context, definition), others, counts_as)
    plans: list[AdoptionPlan] = []
    for group in _by_partition(parts):
        try:
            plans += list(planner.plans(group))
        except FrostlineError as error:
            if failures is None:
                raise
            failures.append(FailedGroup(MergePlan(group[0].name.partition, tuple(group), "adoption"), error))
    return plans


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
        target = self._target(members)
        if not depends_on_order(self.definition):
            needed = [stored for stored in members if self._needs_it(stored, target)]
            if self._may_go(needed):
                for _, group in groupby(sorted(needed, key=_disk_and_name), key=_disk):
                    yield from self._in_portions(list(map(_where_it_was, group)))
            return
        ordered = insertion_order.in_order(members)
        placed = self._placed(ordered) if any(map(self._is_foreign, ordered)) else list(map(_where_it_was, ordered))
        rewritten = placed[self._first(placed, target) :]
        if self._may_go([one.stored for one in rewritten]):
            yield from self._runs(rewritten)

    def _may_go(self, rewritten: Sequence[StoredPart]) -> bool:
        return all(self.rules.why_not(stored) is None for stored in rewritten)

    def _first(self, placed: Sequence[_Placed], target: int | None) -> int:
        """The place of the first that must get a new number; what comes after it must as well."""
        first = next((at for at, one in enumerate(placed) if self._needs_it(one.stored, target)), len(placed))
        if not any(insertion_order.meet(left.stored, right.stored) for left, right in pairwise(placed)):
            out_of_line = (at for at, (left, right) in enumerate(pairwise(placed)) if not _ascend(left, right))
            first = min(first, next(out_of_line, first))
        moved = (at for at, one in enumerate(placed) if one.blocks is None or one.said)
        first = min(first, next(moved, first))
        if first and first < len(placed) and placed[first].blocks is None and not placed[first].said:
            first -= 1  # it becomes one part with the one before it
        while first:  # what has a higher number than one of these is one of these, for nothing may come between them
            lowest = min(one.stored.inserted for one in placed[first:]) if first < len(placed) else None
            before = next((at for at in range(first) if lowest and placed[at].stored.inserted > lowest), first)
            if before == first:
                break
            first = before
        return first

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

    def _placed(self, ordered: list[StoredPart]) -> list[_Placed]:
        """All parts of a partition as they were inserted: by the log, and where that says nothing by `counts_as`.

        Raises `Refused` where neither says it. Parts of other machines that the log cannot order among themselves are
        refused also with that word, which says nothing about them.
        """
        said: set[PartName] = set()
        earlier = self._earlier(ordered)
        for stored in filter(self._is_foreign, ordered):
            for other in ordered:
                if other is stored or stored.name in earlier[other.name] or other.name in earlier[stored.name]:
                    continue
                doubt = self._doubt(stored, other)
                if self._is_foreign(other):
                    raise Refused(doubt, hint=_hint_among_others(self.definition))
                if self.counts_as is None:
                    raise Refused(doubt, hint=_hint(self.definition, stored.name.partition))
                said.add(stored.name)
        if not said:
            return list(map(_where_it_was, ordered))
        return list(self._with_blocks(self._in_line(ordered, earlier), said))

    def _earlier(self, ordered: Sequence[StoredPart]) -> dict[PartName, set[PartName]]:
        """For each part those that were inserted before it, for certain: also by way of a third one."""
        earlier: dict[PartName, set[PartName]] = {}
        for at, stored in enumerate(ordered):
            names: set[PartName] = set()
            for other in ordered[:at]:
                is_ours = not (self._is_foreign(stored) or self._is_foreign(other))
                if not insertion_order.meet(other, stored) and (is_ours or self.order.came_first(other, stored)):
                    names |= {other.name, *earlier[other.name]}
            earlier[stored.name] = names
        return earlier

    def _in_line(self, ordered: Sequence[StoredPart], earlier: Mapping[PartName, set[PartName]]) -> list[StoredPart]:
        """Of this machine's parts and those of others, each in its order, the one that has to come first, or that is
        said to be older."""
        ours = [stored for stored in ordered if not self._is_foreign(stored)]
        theirs = [stored for stored in ordered if self._is_foreign(stored)]
        first, second = (theirs, ours) if self.counts_as == "older" else (ours, theirs)
        line: list[StoredPart] = []
        while first and second:
            waits = any(stored.name in earlier[first[0].name] for stored in second)
            line.append((second if waits else first).pop(0))
        return [*line, *first, *second]

    def _with_blocks(self, line: Sequence[StoredPart], said: Collection[PartName]) -> Iterator[_Placed]:
        """What this machine inserted keeps its blocks, for what is gone of it may come back. Next to them those of
        others get some, or count as a part of what they follow."""
        groups = [(foreign, list(group)) for foreign, group in groupby(line, key=self._is_foreign)]
        last: int | None = None
        for at, (foreign, group) in enumerate(groups):
            following = groups[at + 1][1][0].inserted[0] if at + 1 < len(groups) else None
            if not foreign or not (
                any(stored.name in said for stored in group) or _is_out_of_line(last, group, following)
            ):
                yield from map(_where_it_was, group)
            elif following is None:
                yield from (_Placed(stored, None, "newer") for stored in group)
            elif last is None:
                first = min(0, *(stored.inserted[0] for stored in line)) - len(group)
                yield from (_Placed(stored, (n, n), "older") for n, stored in enumerate(group, first))
            elif following - last > len(group):
                yield from (_Placed(stored, (n, n)) for n, stored in enumerate(group, last + 1))
            else:
                yield from (_Placed(stored, None) for stored in group)
            if not foreign:
                last = max(stored.inserted[1] for stored in group)

    def _doubt(self, stored: StoredPart, other: StoredPart) -> str:
        """That the place of one of the foreign parts among the others cannot be told."""
        one, two = (f"{part.facts.name} on {part.disk}" for part in (stored, other))
        theirs = f"those of {two}" + (", which another machine inserted too" if self._is_foreign(other) else "")
        return (
            f"it is unknown whether rows of {one}, which another machine inserted, are older or newer than {theirs}, "
            f"and merge mode {self.definition.merge_mode} depends on it"
        )

    def _runs(self, placed: Sequence[_Placed]) -> Iterator[AdoptionPlan]:
        """Those that come one after the other on one disk, together. Those whose order nobody knows stay apart."""
        run: list[_Placed] = []
        for one in placed:
            apart = run and (run[-1].said != one.said or run[-1].stored.disk != one.stored.disk)
            if apart or any(_meet(other, one) for other in run):
                yield from self._in_portions(run)
                run = []
            run.append(one)
        if run:
            yield from self._in_portions(run)

    def _in_portions(self, group: list[_Placed]) -> Iterator[AdoptionPlan]:
        """As many at once as a merge takes, all on one disk."""
        rest = iter(group)
        for members in portions([one.stored for one in group], self.definition.settings.max_merge_size_bytes, fewest=1):
            count = counted(len(members), "part") if len(members) > 1 else "a part"
            disk, theirs = members[0].disk, sum(map(self._is_foreign, members))
            reason = f"{count} of other machines on {disk}, rewritten as this machine's own"
            if theirs < len(members):
                reason = f"{count} on {disk}, {theirs} of other machines, rewritten in the order of inserts"
            inserted, is_newest = self._span([next(rest) for _ in members])
            yield AdoptionPlan(members[0].name.partition, tuple(members), reason, inserted, is_newest)

    def _span(self, portion: Sequence[_Placed]) -> tuple[tuple[int, int] | None, bool]:
        """The blocks of what becomes one part, None for those of the parts; and whether it gets the newest."""
        if portion[0].said == "newer":
            return None, True
        spans = [one.blocks for one in portion if one.blocks is not None]
        if not spans:
            name, disk = portion[0].stored.facts.name, portion[0].stored.disk
            raise Refused(
                f"rows of {name} on {disk} come between two inserts of this machine that are next to one another: they "
                "have to become one part with the older one, which is on another disk, or too large",
                hint=f"move the parts of the partition to {disk}, or raise max_merge_size_bytes, and run it again",
            )
        if all(one.blocks == one.stored.inserted for one in portion):
            return None, False
        return (min(first for first, _ in spans), max(last for _, last in spans)), False


class _Placed(msgspec.Struct, frozen=True):
    """A part in the order of inserts."""

    stored: StoredPart
    blocks: tuple[int, int] | None
    """Those that its rows count as inserted under; None: those of the part before it, or the newest."""
    said: CountsAs | None = None
    """Whether it comes before, or after, all that this machine inserted because that was said."""


def _where_it_was(stored: StoredPart) -> _Placed:
    return _Placed(stored, stored.inserted)


def _meet(left: _Placed, right: _Placed) -> bool:
    """Whether rows of the one may have been inserted between rows of the other."""
    if left.blocks is None or right.blocks is None:
        return False
    return left.blocks[0] <= right.blocks[1] and right.blocks[0] <= left.blocks[1]


def _is_out_of_line(last: int | None, group: Sequence[StoredPart], following: int | None) -> bool:
    """Whether the blocks of the parts do not lie between these two."""
    return (last is not None and group[0].inserted[0] <= last) or (
        following is not None and max(stored.inserted[1] for stored in group) >= following
    )


def _ascend(left: _Placed, right: _Placed) -> bool:
    return left.stored.name.max_block < right.stored.name.min_block


def _hint(definition: TableDefinition, partition: str) -> str:
    return (
        f"if you know the order: 'frostline merge {definition.full_name} --partition {partition} --adopt "
        "--adopt-as older', or newer; until then queries return every row of both"
    )


def _hint_among_others(definition: TableDefinition) -> str:
    return (
        "--adopt-as does not apply to them. Queries return every row of both: query them, and write those that you "
        f"keep with 'frostline insert {definition.full_name} FILE --replace-partitions'"
    )


def _name(stored: StoredPart) -> PartName:
    return stored.name


def _partition(stored: StoredPart) -> str:
    return stored.name.partition


def _disk(stored: StoredPart) -> str:
    return stored.disk


def _disk_and_name(stored: StoredPart) -> tuple[str, PartName]:
    return stored.disk, stored.name
