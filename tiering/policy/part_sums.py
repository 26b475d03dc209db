"""Sums over the parts of a table on a disk, and how they change with a few of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Protocol

from tiering.config.settings import PolicyConfig
from tiering.journal.kept_looks import PartSums
from tiering.policy.due import first_due
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
    return _with(PartSums(), parts, policy)


def changed(
    sums: PartSums,
    gone: Collection[SummedPart],
    new: Iterable[SummedPart],
    everything: Iterable[SummedPart],
    policy: PolicyConfig | None,
) -> PartSums:
    """Those of `everything`, which is what the sums were of but for these parts. Only where one of those that are gone
    was the first or the last of all, all are gone through. Ranges of block numbers still tell of parts that are
    gone."""
    if gone:
        least, last = _first_due(gone, policy), max(stored.facts.created for stored in gone)
        if (least is not None and least == sums.due) or last == sums.newest:
            return of(everything, policy)
        sums = _without(sums, gone)
    return _with(sums, new, policy)


def _with(sums: PartSums, parts: Iterable[SummedPart], policy: PolicyConfig | None) -> PartSums:
    count, rows, size_bytes, newest, due = sums.parts, sums.rows, sums.bytes, sums.newest, sums.due
    highest, partitions = dict(sums.highest), dict(sums.partitions)
    for stored in parts:
        facts, name = stored.facts, stored.name
        count, rows, size_bytes = count + 1, rows + facts.rows, size_bytes + facts.size_bytes
        newest = facts.created if newest is None else max(newest, facts.created)
        first = first_due(stored.definition, facts, stored.disk, policy)
        if first is not None and (due is None or first < due):
            due = first
        low, high = range_of(name.min_block), range_of(name.max_block)
        highest[high] = max(highest.get(high, 0), name.max_block)
        known = partitions.get(name.partition, (0, 0, 0, low, high))
        sizes = (known[0] + 1, known[1] + facts.rows, known[2] + facts.size_bytes)
        partitions[name.partition] = (*sizes, min(known[3], low), max(known[4], high))
    return PartSums(count, rows, size_bytes, newest, due, highest, partitions)


def _without(sums: PartSums, parts: Iterable[SummedPart]) -> PartSums:
    count, rows, size_bytes = sums.parts, sums.rows, sums.bytes
    partitions = dict(sums.partitions)
    for stored in parts:
        facts, partition = stored.facts, stored.name.partition
        count, rows, size_bytes = count - 1, rows - facts.rows, size_bytes - facts.size_bytes
        known = partitions[partition]
        partitions[partition] = (known[0] - 1, known[1] - facts.rows, known[2] - facts.size_bytes, *known[3:])
        if not partitions[partition][0]:
            del partitions[partition]
    return PartSums(count, rows, size_bytes, sums.newest, sums.due, sums.highest, partitions)


def _first_due(parts: Iterable[SummedPart], policy: PolicyConfig | None) -> datetime | None:
    found = (first_due(stored.definition, stored.facts, stored.disk, policy) for stored in parts)
    return min((due for due in found if due is not None), default=None)
