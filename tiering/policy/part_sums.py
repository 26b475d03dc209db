"""Sums over the parts of a table on a disk, and how they change with a few of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Protocol

import msgspec

from tiering.config.settings import PolicyConfig
from tiering.journal.kept_looks import PartitionSums, PartSums
from tiering.policy.due import dues_of, earlier
from tiering.table.part import Part, PartFacts, PartName, range_of
from tiering.table.schema import TableDefinition


class SummedPart(Protocol):
    """A part on a disk."""

    @property
    def definition(self) -> TableDefinition: ...
    @property
    def facts(self) -> Part | PartFacts: ...
    @property
    def name(self) -> PartName: ...
    @property
    def disk(self) -> str: ...


def of(parts: Iterable[SummedPart], policy: PolicyConfig | None) -> PartSums:
    """Of these parts."""
    return added(PartSums(), parts, policy)


def changed(
    sums: PartSums,
    gone: Iterable[SummedPart],
    new: Iterable[SummedPart],
    left_of: Callable[[Collection[str]], Iterable[SummedPart]],
    policy: PolicyConfig | None,
) -> PartSums:
    """Those of what the sums were of, but for these parts. Of a partition in which the first or the last of all is gone
    all parts are gone through: `left_of` gives those that such partitions have now. Ranges of block numbers still tell
    of parts that are gone."""
    sums, unsure = _without(sums, gone, policy)
    sums = added(sums, new, policy)
    return _gone_through(sums, left_of(unsure), policy) if unsure else sums


def are_of(sums: PartSums, facts: Iterable[PartFacts]) -> bool:
    """Whether the sums are those of parts with these facts, but for when a rule is due and for ranges of numbers."""
    partitions: dict[str, tuple[int, int, int, datetime]] = {}
    values: dict[str, set[tuple[object, ...] | None]] = {}
    for fact in facts:
        name, created = fact.part_name.partition, fact.created
        count, rows, size_bytes, newest = partitions.get(name, (0, 0, 0, created))
        partitions[name] = (count + 1, rows + fact.rows, size_bytes + fact.size_bytes, max(newest, created))
        values.setdefault(name, set()).add(fact.partition_values)
    kept = {name: (one.parts, one.rows, one.bytes, one.newest) for name, one in sums.partitions.items()}
    are_these = all(one.values is None or {one.values} == values.get(name) for name, one in sums.partitions.items())
    return kept == partitions and are_these and _together(sums.partitions, sums.highest) == sums


def added(sums: PartSums, parts: Iterable[SummedPart], policy: PolicyConfig | None) -> PartSums:
    """Those of what the sums were of, and of these parts."""
    highest, partitions = dict(sums.highest), dict(sums.partitions)
    for stored in parts:
        facts, name = stored.facts, stored.name
        due, told = dues_of(stored.definition, facts, stored.disk, policy)
        told_first, told_last = min(told, default=None), max(told, default=None)
        low, high = range_of(name.min_block), range_of(name.max_block)
        highest[high] = max(highest.get(high, 0), name.max_block)
        known = partitions.get(name.partition)
        if known is None:
            partitions[name.partition] = PartitionSums(
                1,
                facts.rows,
                facts.size_bytes,
                low,
                high,
                facts.created,
                due,
                told_first,
                told_last,
                facts.partition_values,
            )
        else:
            partitions[name.partition] = PartitionSums(
                known.parts + 1,
                known.rows + facts.rows,
                known.bytes + facts.size_bytes,
                min(known.first_range, low),
                max(known.last_range, high),
                max(known.newest, facts.created),
                earlier(known.due, due),
                earlier(known.told_first, told_first),
                max(filter(None, (known.told_last, told_last)), default=None),
                known.values if known.values == facts.partition_values else None,
            )
    return _together(partitions, highest)


def _without(
    sums: PartSums, parts: Iterable[SummedPart], policy: PolicyConfig | None
) -> tuple[PartSums, Collection[str]]:
    """And the partitions whose first or last was among these."""
    partitions = dict(sums.partitions)
    unsure: set[str] = set()
    for stored in parts:
        facts, partition = stored.facts, stored.name.partition
        known = partitions.pop(partition)
        if known.parts == 1:
            unsure.discard(partition)
            continue
        due, told = dues_of(stored.definition, facts, stored.disk, policy)
        is_first = due is not None and known.due == due
        if known.newest == facts.created or is_first or not {known.told_first, known.told_last}.isdisjoint(told):
            unsure.add(partition)
        partitions[partition] = msgspec.structs.replace(
            known, parts=known.parts - 1, rows=known.rows - facts.rows, bytes=known.bytes - facts.size_bytes
        )
    return _together(partitions, sums.highest), unsure


def _gone_through(sums: PartSums, left: Iterable[SummedPart], policy: PolicyConfig | None) -> PartSums:
    """With the first and the last of these parts, which are all of their partitions."""
    partitions = dict(sums.partitions)
    for partition, found in added(PartSums(), left, policy).partitions.items():
        partitions[partition] = msgspec.structs.replace(
            partitions[partition],
            newest=found.newest,
            due=found.due,
            told_first=found.told_first,
            told_last=found.told_last,
        )
    return _together(partitions, sums.highest)


def _together(partitions: dict[str, PartitionSums], highest: dict[int, int]) -> PartSums:
    found = partitions.values()
    return PartSums(
        sum(partition.parts for partition in found),
        sum(partition.rows for partition in found),
        sum(partition.bytes for partition in found),
        max((partition.newest for partition in found), default=None),
        min((partition.due for partition in found if partition.due is not None), default=None),
        highest,
        partitions,
    )
