"""What may be done side by side: whatever is done first, the outcome is that of one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import turns
from tiering.table.part import PartName
from zerocopy.execution.order import QueueOrder, meet
from zerocopy.execution.queue import Queued
from zerocopy.replica import entries
from zerocopy.replica.entries import Alter, DropRange, Entry, Get, Merge

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def get(name: str) -> Get:
    return Get(time=NOW, replica="a", part=name, digest="0" * 64)


def merge(output: str, *inputs: str) -> Merge:
    return Merge(time=NOW, replica="a", output=output, inputs=inputs, reason="test")


def drop(partition: str, last: int) -> DropRange:
    return DropRange(time=NOW, replica="a", ranges=(entries.whole_range(partition, 0, last),), reason="test")


def alter(version: int) -> Alter:
    return Alter(time=NOW, replica="a", version=version, reason="test")


def queued(log: list[Entry]) -> list[Queued]:
    return [Queued(f"/queue/queue-{number:010d}", number, entry) for number, entry in enumerate(log)]


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """What replicas may agree upon: blocks are numbered as they come, neighbours become one, the beginning goes."""
    made: list[Entry] = []
    parts: dict[str, list[PartName]] = {"p": [], "q": []}
    blocks = {"p": 0, "q": 0}
    for _ in range(draw(st.integers(1, 14))):
        partition = draw(st.sampled_from("pq"))
        here = parts[partition]
        match draw(st.sampled_from(["get", "get", "get", "merge", "merge", "drop", "alter"])):
            case "get":
                name = PartName(partition, blocks[partition], blocks[partition], 0)
                blocks[partition] += 1
                here.append(name)
                made.append(get(str(name)))
            case "merge" if len(here) > 1:
                begin = draw(st.integers(0, len(here) - 2))
                inputs = here[begin : begin + draw(st.integers(2, 3))]
                level = max(name.level for name in inputs) + 1
                output = PartName(partition, inputs[0].min_block, inputs[-1].max_block, level)
                here[begin : begin + len(inputs)] = [output]
                made.append(merge(str(output), *map(str, inputs)))
            case "drop" if blocks[partition]:
                here.clear()
                made.append(drop(partition, blocks[partition] - 1))
            case "alter":
                made.append(alter(2 + sum(isinstance(one, Alter) for one in made)))
    return made


@dataclass
class Made:
    """What a run made, by the rules of `perform`: parts, each with its blocks and the definition it was made by."""

    parts: dict[PartName, tuple[frozenset[int], int]] = field(default_factory=dict)
    version: int = 1
    undone: list[Queued] = field(default_factory=list)
    doing: list[Queued] = field(default_factory=list)

    def begin(self, one: Queued) -> None:
        for other in self.doing:
            touched = [(mine, its) for mine in one.entry.touches for its in other.entry.touches]
            assert not any(meet(*both) for both in touched), f"{one.entry.brings} beside {other.entry.brings}"
            assert not isinstance(one.entry, Alter)
            assert not isinstance(other.entry, Alter)
        self.doing.append(one)

    def do(self, one: Queued) -> bool:
        """Whether it could be done."""
        self.doing.remove(one)
        match one.entry:
            case Alter():
                self.version = one.entry.version
            case DropRange():
                self.parts = {name: what for name, what in self.parts.items() if not one.entry.drops(name)}
            case Get():
                self.parts[one.name] = (frozenset([one.name.min_block]), self.version)
            case Merge():
                inputs = [PartName.parse(name) for name in one.entry.inputs]
                if any(name not in self.parts for name in inputs):
                    return False
                rows = frozenset[int]().union(*(self.parts.pop(name)[0] for name in inputs))
                self.parts[one.name] = (rows, self.version)
        return True


def run(log: list[Entry], failing: set[int], at_once: int, choose: st.DataObject) -> Made:
    """The outcome when those are done first that are chosen."""
    order, made = QueueOrder(queued(log), at_once), Made()

    def finish(one: Queued) -> None:
        if one.number in failing:
            made.doing.remove(one)
        elif made.do(one):
            order.end(one)
            return
        order.postpone(one)
        made.undone.append(one)

    while True:
        while (one := order.take()) is not None:
            made.begin(one)
            if any(drop.drops(one.name) for drop in order.drops_after(one) if isinstance(one.entry, Get | Merge)):
                made.doing.remove(one)
                order.end(one)
            elif order.why_held(one):
                made.doing.remove(one)
                order.postpone(one)
                made.undone.append(one)
            elif isinstance(one.entry, Alter | DropRange):
                finish(one)
        if not made.doing:
            break
        landing = [one for one in made.doing if isinstance(one.entry, Get) and one.node not in order._landed]
        lands = choose.draw(st.integers(0, len(landing)))
        if lands:
            order.land(landing[lands - 1])
            continue
        finish(made.doing[choose.draw(st.integers(0, len(made.doing) - 1))])
    made.undone.sort(key=lambda each: each.number)
    return made


def one_by_one(log: list[Entry], failing: set[int]) -> Made:
    """The outcome by the rules themselves: each in its turn, without an `QueueOrder`."""
    made, held, is_older = Made(), list[PartName](), False
    for number, one in enumerate(queued(log)):
        entry, later = one.entry, log[number + 1 :]
        brings = isinstance(entry, Get | Merge)
        if brings and any(isinstance(drop, DropRange) and drop.drops(one.name) for drop in later):
            continue
        meets = any(meet(mine, other) for mine in entry.touches for other in held)
        made.doing.append(one)
        if brings and (is_older or meets):
            made.doing.clear()
        elif number not in failing and made.do(one):
            continue
        made.doing.clear()
        is_older = is_older or isinstance(entry, Alter)
        held += entry.touches
        made.undone.append(one)
    return made


@settings(max_examples=turns.examples(300))
@given(logs(), st.sets(st.integers(0, 13), max_size=2), st.integers(2, 6), st.data())
def test_any_order_of_completion_comes_to_the_same(
    log: list[Entry], failing: set[int], at_once: int, choose: st.DataObject
) -> None:
    """I10: also what is left undone, and the definition that each part was made by."""
    expected, actual = one_by_one(log, failing), run(log, failing, at_once, choose)
    assert (actual.parts, actual.version, actual.undone) == (expected.parts, expected.version, expected.undone)


def test_what_does_not_meet_runs_side_by_side_up_to_a_limit() -> None:
    names = [f"p_{number}_{number}_0" for number in range(5)]
    order = QueueOrder(queued([*map(get, names), merge("p_0_1_1", *names[:2]), get("q_0_0_0")]), 3)
    begun = [order.take() for _ in range(4)]
    assert [one.entry.brings if one else None for one in begun] == [*names[:3], None]
    for one in begun:
        if one is not None:
            order.end(one)
    rest = [order.take() for _ in range(3)]
    assert [one.entry.brings if one else None for one in rest] == [*names[3:], "p_0_1_1"]


def test_what_landed_leaves_its_place_and_holds_off_what_meets() -> None:
    names = [f"p_{number}_{number}_0" for number in range(4)]
    order = QueueOrder(queued([*map(get, names), merge("p_0_1_1", *names[:2])]), 1)
    first = order.take()
    assert first is not None
    assert order.take() is None
    order.land(first)
    rest = []
    while (one := order.take()) is not None:
        rest.append(one)
        order.land(one)
    assert [one.entry.brings for one in rest] == names[1:], "the merge waits for what is not committed"
    for one in (first, rest[0]):
        order.end(one)
    last = order.take()
    assert last is not None
    assert last.entry.brings == "p_0_1_1"


def test_no_more_land_than_are_committed_in_a_while() -> None:
    order = QueueOrder(queued([get(f"p_{number}_{number}_0") for number in range(300)]), 4)
    landed = 0
    while (one := order.take()) is not None:
        order.land(one)
        landed += 1
    assert landed < 300


def test_a_part_that_covers_more_waits_for_what_it_meets() -> None:
    """Another replica has only what it merged of both: one of them brings it, the other one finds it here."""
    order = QueueOrder(queued([get("p_0_0_0"), get("p_1_1_0"), get("p_2_2_0")]), 2)
    first, second = order.take(), order.take()
    assert first is not None
    assert second is not None
    larger = PartName.parse("p_0_2_1")
    assert not order.widen(first, larger)
    order.put_back(first)
    assert order.take() is None, "what comes after it and meets it waits, too"
    assert order.widen(second, PartName.parse("p_1_1_1"))
    order.end(second)
    assert order.take() == first
    assert order.widen(first, larger)
    assert order.take() is None
    order.end(first)
    last = order.take()
    assert last is not None
    assert last.entry.brings == "p_2_2_0"
