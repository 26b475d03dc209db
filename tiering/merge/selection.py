"""Which parts to merge. Pure: parts, settings and `now` in, plans with reasons out.

A merge takes adjacent parts of one partition and volume. It is worth its writes when together they are `base` times the
largest of them: a row then lands in a part `base` times larger with every rewrite, so it is written O(log n) times.
The base is 5 for fresh parts and falls towards 1.5 as parts get old or many, so that small leftovers merge in the end
and the number of parts stays logarithmic. Of all worthwhile ranges the one that removes most parts for its bytes goes
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise

import msgspec

from oplog.errors import FrostlineError
from tiering.catalog.catalog import StoredPart
from tiering.config.units import counted, format_size
from tiering.policy.plan import Reason
from tiering.table.schema import TableSettings

MAX_PARTS = 64
"""Parts in one merge; more would need more memory than a merge should take."""
FRESH_BASE = 5.0
LOWEST_BASE = 1.5

_PART_COST_BYTES = 2 * 1024 * 1024
"""What a part costs its readers beside its bytes; makes merges of many tiny parts go first."""
_FRESH_SECONDS = 60.0
OLD = timedelta(days=1)
"""From this age on a part is as easily merged as it ever will be."""
_FEW_PARTS = 8
_MANY_PARTS = 64


class MergePlan(msgspec.Struct, frozen=True):
    """Adjacent parts of one partition, in block order, to become one part."""

    partition: str
    parts: tuple[StoredPart, ...]
    reason: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(stored.facts.name for stored in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(stored.facts.size_bytes for stored in self.parts)


class FailedGroup(msgspec.Struct, frozen=True):
    """A group that was not merged, and why. Its parts are as they were."""

    plan: MergePlan
    error: FrostlineError


class MergeStay(msgspec.Struct, frozen=True):
    """A partition that is not merged now, and why."""

    partition: str
    parts: int
    reason: Reason


def _on_one_volume(left: StoredPart, right: StoredPart) -> bool:
    return left.volume == right.volume


def select_merges(
    parts: Sequence[StoredPart],
    settings: TableSettings,
    now: datetime,
    *,
    allowed: Callable[[StoredPart], bool] = lambda stored: True,
    joinable: Callable[[StoredPart, StoredPart], bool] = _on_one_volume,
    busy: Collection[str] = (),
    max_size_bytes: int | None = None,
) -> list[MergePlan]:
    """The merges worth doing now, over all partitions; no part is in two of them. Most worthwhile first.

    `allowed` says whether a part may be merged where it lies, `busy` names parts that are being moved or merged,
    `joinable` whether two neighbours may be merged. What may not ends a range: parts on its two sides are not adjacent.
    """
    limit = min(settings.max_merge_size_bytes, max_size_bytes or settings.max_merge_size_bytes)
    found: list[tuple[float, MergePlan]] = []
    for _, group in groupby(sorted(parts, key=lambda stored: stored.name), key=lambda stored: stored.name.partition):
        members = list(group)
        for segment in _segments(members, allowed, joinable, busy):
            found.extend(_select(segment, limit, now, len(members)))
    found.sort(key=lambda pair: pair[0])
    return [plan for _, plan in found]


def select_final(
    parts: Sequence[StoredPart],
    *,
    allowed: Callable[[StoredPart], bool] = lambda stored: True,
    joinable: Callable[[StoredPart, StoredPart], bool] = _on_one_volume,
    busy: Collection[str] = (),
) -> list[MergePlan]:
    """One merge for each partition's adjacent parts, however large; a single part needs none."""
    plans = []
    for partition, group in groupby(
        sorted(parts, key=lambda stored: stored.name), key=lambda stored: stored.name.partition
    ):
        for segment in _segments(list(group), allowed, joinable, busy):
            if len(segment) > 1:
                reason = f"final merge of {counted(len(segment), 'part')}, {format_size(_total(segment))}"
                plans.append(MergePlan(partition, tuple(segment), reason))
    return plans


def explain_rest(
    parts: Sequence[StoredPart],
    settings: TableSettings,
    now: datetime,
    *,
    why_not: Callable[[StoredPart], Reason | None],
    why_apart: Callable[[StoredPart, StoredPart], Reason | None],
    max_size_bytes: int | None = None,
    min_inputs: int = 2,
) -> list[MergeStay]:
    """Why nothing in these partitions is merged. `why_not` and `why_apart` say it for a part and for neighbours."""
    limit = min(settings.max_merge_size_bytes, max_size_bytes or settings.max_merge_size_bytes)
    stays = []
    for partition, group in groupby(sorted(parts, key=lambda stored: stored.name), key=lambda p: p.name.partition):
        members = list(group)
        reason = _why_not_merged(members, why_not, why_apart) or _why_not_worth(
            members, limit, now, why_not, why_apart, min_inputs
        )
        stays.append(MergeStay(partition, len(members), reason))
    return stays


def _why_not_merged(
    members: list[StoredPart],
    why_not: Callable[[StoredPart], Reason | None],
    why_apart: Callable[[StoredPart, StoredPart], Reason | None],
) -> Reason | None:
    """Why no two of the parts may be merged; None when some may."""
    if len(members) == 1:
        return why_not(members[0]) or Reason("single", "one part: nothing to merge it with")
    obstacle: Reason | None = None
    for left, right in pairwise(members):
        found = why_not(left) or why_not(right) or why_apart(left, right)
        if found is None:
            return None
        obstacle = obstacle or found
    return obstacle


def _why_not_worth(
    members: list[StoredPart],
    limit: int,
    now: datetime,
    why_not: Callable[[StoredPart], Reason | None],
    why_apart: Callable[[StoredPart, StoredPart], Reason | None],
    min_inputs: int,
) -> Reason:
    """Why the longest run of parts that may be merged is not worth it now."""
    segments = _segments(members, lambda p: why_not(p) is None, lambda a, b: why_apart(a, b) is None, ())
    run = max(segments, key=len)
    if len(run) < min_inputs:
        return Reason("few_inputs", f"{len(run)} adjacent parts; at least {min_inputs} are asked")
    smallest = sum(sorted(stored.facts.size_bytes for stored in run)[:2])
    if smallest > limit:
        return Reason("too_large", f"two parts together exceed the {format_size(limit)} that a merge may have")
    total, largest = _total(run), max(stored.facts.size_bytes for stored in run)
    youngest = min((now - stored.facts.created).total_seconds() for stored in run)
    base = merge_base(total, youngest, len(members))
    return Reason(
        "not_worth",
        f"{len(run)} adjacent parts of {format_size(total)} are {total / max(largest, 1):.1f} times their largest; "
        f"{base:.1f} times is asked, and less as parts get older or more",
    )


def merge_base(size_bytes: int, age_seconds: float, part_count: int) -> float:
    """How many times its largest part a range must be: lower the older, the smaller and the more numerous parts are."""
    aged = _share(math.log(max(age_seconds, 1.0)), math.log(_FRESH_SECONDS), math.log(OLD.total_seconds()))
    crowded = _share(part_count, _FEW_PARTS, _MANY_PARTS)
    small = 1.0 - _share(math.log(max(size_bytes, 1)), math.log(64 * 1024**2), math.log(16 * 1024**3))
    # Size only helps age: large fresh parts wait for company, small ones need not.
    eased = max(crowded, aged * (0.5 + 0.5 * small))
    return FRESH_BASE - (FRESH_BASE - LOWEST_BASE) * eased


def _segments(
    members: list[StoredPart],
    allowed: Callable[[StoredPart], bool],
    joinable: Callable[[StoredPart, StoredPart], bool],
    busy: Collection[str],
) -> Iterator[list[StoredPart]]:
    """Runs of adjacent parts that may be merged, each with the one before it."""
    segment: list[StoredPart] = []
    for stored in members:
        usable = stored.facts.name not in busy and allowed(stored)
        if segment and not (usable and joinable(segment[-1], stored)):
            yield segment
            segment = []
        if usable:
            segment.append(stored)
    if segment:
        yield segment


def _select(segment: list[StoredPart], limit: int, now: datetime, part_count: int) -> Iterator[tuple[float, MergePlan]]:
    """The best range of the segment, then the best of what is left on both sides."""
    best = _best_range(segment, limit, now, part_count)
    if best is None:
        return
    score, start, stop, base = best
    chosen = tuple(segment[start:stop])
    largest = max(stored.facts.size_bytes for stored in chosen)
    reason = (
        f"{len(chosen)} adjacent parts of {format_size(_total(chosen))} are {_total(chosen) / max(largest, 1):.1f} "
        f"times their largest (at least {base:.1f} asked); the partition has {counted(part_count, 'part')}"
    )
    yield score, MergePlan(chosen[0].name.partition, chosen, reason)
    yield from _select(segment[:start], limit, now, part_count)
    yield from _select(segment[stop:], limit, now, part_count)


def _best_range(
    segment: list[StoredPart], limit: int, now: datetime, part_count: int
) -> tuple[float, int, int, float] | None:
    """(score, start, stop, base) of the worthwhile range with the lowest score; None when there is none."""
    sizes = [stored.facts.size_bytes for stored in segment]
    ages = [(now - stored.facts.created).total_seconds() for stored in segment]
    best: tuple[float, int, int, float] | None = None
    for start in range(len(segment) - 1):
        total = largest = sizes[start]
        youngest = ages[start]
        for stop in range(start + 2, min(start + MAX_PARTS, len(segment)) + 1):
            total += sizes[stop - 1]
            largest = max(largest, sizes[stop - 1])
            youngest = min(youngest, ages[stop - 1])
            if total > limit:
                break
            count = stop - start
            if total < LOWEST_BASE * largest:
                continue
            score = (total + _PART_COST_BYTES * count) / (count - 0.9)
            if best is not None and score >= best[0]:
                continue
            base = merge_base(total, youngest, part_count)
            if total >= base * largest:
                best = (score, start, stop, base)
    return best


def _share(value: float, low: float, high: float) -> float:
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _total(parts: Sequence[StoredPart]) -> int:
    return sum(stored.facts.size_bytes for stored in parts)
