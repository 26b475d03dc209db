"""I13: what a person says of the rows of other machines orders what the log leaves open, and nothing else."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from tiering.catalog import insertion_order
from tiering.merge.adoption import _Planner
from tiering.table.part import RANGE_BLOCKS, PartName, range_of

OURS = (0, 2)


def _part(index: int, number: int) -> Any:
    block = index * RANGE_BLOCKS + number
    name = PartName("all", block, block, 0)
    return SimpleNamespace(name=name, inserted=(block, block), disk="s3", facts=SimpleNamespace(name=str(name)))


@given(data=st.data(), word=st.sampled_from(["older", "newer"]))
def test_it_decides_what_the_log_leaves_open(data: st.DataObject, word: Literal["older", "newer"]) -> None:
    """This machine has two ranges, the lost one as well, and each range has seen some of what was there before."""
    counts = [data.draw(st.integers(0, 3), label=f"parts of range {index}") for index in range(4)]
    parts = [_part(index, 1 + number * 2) for index, count in enumerate(counts) for number in range(count)]
    seen = {index: {stored.name for stored in parts if data.draw(st.booleans())} for index in range(4)}

    def came_first(earlier: Any, later: Any) -> bool:
        first, last = range_of(earlier.name.max_block), range_of(later.name.min_block)
        is_known = {first, last} == {1, 3} or earlier.name in seen[last]  # the lost machine's own order is known
        return bool(earlier.inserted < later.inserted and (first == last or is_known))

    definition = SimpleNamespace(merge_mode="replacing", full_name="d.t")
    order, rules = SimpleNamespace(came_first=came_first), SimpleNamespace(own=frozenset(OURS))
    planner: Any = _Planner(definition, rules, order, frozenset(), word)  # type: ignore[arg-type]
    ordered = insertion_order.in_order(parts)
    earlier = planner._earlier(ordered)
    placed = planner._placed(ordered)
    line = [one.stored.name for one in placed]
    assert sorted(line) == [stored.name for stored in ordered]
    for stored in ordered:
        for other in ordered:
            left, right = stored.name, other.name
            if left in earlier[right]:
                assert line.index(left) < line.index(right)
            elif right not in earlier[left] and planner._is_foreign(stored) and not planner._is_foreign(other):
                assert (line.index(left) < line.index(right)) == (word == "older")
    for one in placed:
        assert planner._is_foreign(one.stored) or one.blocks == one.stored.inserted
    spans = [one.blocks for one in placed if one.blocks is not None]
    assert all(left[1] < right[0] for left, right in pairwise(spans))
    newest = [one.said == "newer" for one in placed]
    assert newest == sorted(newest)
