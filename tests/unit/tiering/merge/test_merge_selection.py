"""Merge selection: few parts, bounded write amplification, adjacency; shown by simulating ten thousand inserts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tiering.merge.parts import MIB, NOW, part
from tiering.catalog.catalog import StoredPart
from tiering.merge.selection import MAX_PARTS, select_final, select_merges
from tiering.table.schema import TableSettings


class Simulation:
    """Inserts and merges of one partition, with a clock."""

    def __init__(self) -> None:
        self.now = NOW
        self.parts: list[StoredPart] = []
        self.inserted = self.written = self.peak = 0

    def insert(self, size: int) -> None:
        last = self.parts[-1].name.max_block if self.parts else 0
        self.parts.append(part(last + 1, size, created=self.now))
        self.inserted += size

    def merge(self) -> None:
        while plans := select_merges(self.parts, TableSettings(), self.now):
            for plan in plans:
                start = self.parts.index(plan.parts[0])
                assert self.parts[start : start + len(plan.parts)] == list(plan.parts)
                first, last = plan.parts[0].name, plan.parts[-1].name
                level = max(stored.name.level for stored in plan.parts) + 1
                self.parts[start : start + len(plan.parts)] = [
                    part(first.min_block, plan.size_bytes, last=last.max_block, level=level, created=self.now)
                ]
                self.written += plan.size_bytes
        self.peak = max(self.peak, len(self.parts))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        (1.0, lambda rng: 10 * MIB),
        (60.0, lambda rng: int(rng.lognormvariate(14, 1.5))),
        (0.01, lambda rng: rng.choice([1000, 100 * MIB])),
        (3600.0, lambda rng: rng.randint(1, 5000)),
    ],
    ids=["even", "spread", "two sizes", "rare and tiny"],
)
def test_ten_thousand_inserts_leave_few_parts_and_few_rewrites(
    seconds: float, size: Callable[[random.Random], int]
) -> None:
    rng, simulation, inserts = random.Random(7), Simulation(), 10_000
    for _ in range(inserts):
        simulation.now += timedelta(seconds=seconds)
        simulation.insert(size(rng))
        simulation.merge()
    assert simulation.peak < 3 * math.log2(inserts)
    assert simulation.written / simulation.inserted < math.log2(inserts)
    for _ in range(20):
        simulation.now += timedelta(hours=6)
        simulation.merge()
    assert len(simulation.parts) <= math.log2(inserts) + 2


def test_a_backlog_is_worked_off_in_merges_of_bounded_fan_in() -> None:
    parts = [part(block, 5000) for block in range(1, 1001)]
    plans = select_merges(parts, TableSettings(), NOW)
    assert sum(len(plan.parts) for plan in plans) > 900
    assert all(2 <= len(plan.parts) <= MAX_PARTS for plan in plans)


def test_small_leftovers_merge_when_old_and_large_parts_stay() -> None:
    leftovers = [part(1, 3 * MIB), part(2, 2 * MIB)]
    assert select_merges(leftovers, TableSettings(), NOW) == []
    (plan,) = select_merges(leftovers, TableSettings(), NOW + timedelta(days=2))
    assert "2 adjacent parts" in plan.reason
    giant_and_crumb = [part(1, 2000 * MIB), part(2, MIB)]
    assert select_merges(giant_and_crumb, TableSettings(), NOW + timedelta(days=900)) == []


def test_limits_busy_parts_and_volumes_end_a_range() -> None:
    parts = [part(block, MIB) for block in range(1, 11)]
    assert len(select_merges(parts, TableSettings(), NOW)) == 1
    assert select_merges(parts, TableSettings(max_merge_size_bytes=MIB), NOW) == []
    assert select_merges(parts, TableSettings(), NOW, max_size_bytes=MIB) == []
    assert select_merges(parts, TableSettings(), NOW, allowed=lambda stored: False) == []
    assert select_merges(parts, TableSettings(), NOW, busy=["all_4_4_0", "all_7_7_0"]) == []
    other = [*parts[:4], *(part(block, MIB, volume="warm") for block in range(5, 9)), *parts[8:]]
    assert select_merges(other, TableSettings(), NOW) == []


def test_final_takes_everything_that_is_adjacent() -> None:
    parts = [part(1, 1), part(2, 10**15), part(4, 1), part(5, 1), part(1, 1, partition="b")]
    plans = select_final(parts, busy=["all_4_4_0"])
    assert [[str(stored.name) for stored in plan.parts] for plan in plans] == [["all_1_1_0", "all_2_2_0"]]


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6), st.booleans()), max_size=60), st.data())
def test_plans_are_adjacent_disjoint_and_deterministic(specs: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    parts = [
        part(number, size, created=NOW - timedelta(seconds=age), volume="hot" if hot else "warm")
        for number, (size, age, hot) in enumerate(specs, 1)
    ]
    plans = select_merges(parts, TableSettings(), NOW)
    shuffled = data.draw(st.permutations(parts))
    assert select_merges(shuffled, TableSettings(), NOW) == plans
    taken: set[str] = set()
    for plan in plans:
        start = parts.index(plan.parts[0])
        assert list(plan.parts) == parts[start : start + len(plan.parts)]
        assert len({stored.volume for stored in plan.parts}) == 1
        names = {stored.part.name for stored in plan.parts}
        assert not names & taken
        taken |= names
