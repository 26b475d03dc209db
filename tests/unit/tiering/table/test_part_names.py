"""Names of parts: what is one, and what only looks like one (I15)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import builds, integers, lists

from oplog.errors import UsageError
from tiering.table.part import PartName, apart


@pytest.mark.parametrize("text", ["all_1_1_0", "202601_1_5_1", "202601_1_5_1_7"])
def test_a_name_is_read_and_written_alike(text: str) -> None:
    assert str(PartName.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["all_١_١_0", "all_1_1_٠", "all_¹_1_0", "all_1_1_0\n", "all_-1_1_0", "all_1_1", "…_1_1_0"]
)
def test_digits_of_other_scripts_name_no_part(text: str) -> None:
    with pytest.raises(UsageError):
        PartName.parse(text)


def names(*texts: str) -> list[PartName]:
    return [PartName.parse(text) for text in texts]


def test_which_meet_no_other_one() -> None:
    wanted = names("p_0_0_0", "p_1_1_0", "p_3_6_1", "p_4_4_0", "p_9_9_0", "q_1_1_0", "r_5_5_0")
    others = names("p_1_2_1", "p_8_12_2", "q_0_0_0", "r_0_9_1", "r_2_2_0")
    assert sorted(map(str, apart(wanted, others))) == ["p_0_0_0", "q_1_1_0"]
    assert apart(wanted[:1], wanted[:1]) == set()
    assert apart(wanted[:2], ()) == {*wanted[:2]}


@given(*(lists(builds(lambda low, more: PartName("p", low, low + more, 0), integers(0, 20), integers(0, 4))),) * 2)
def test_each_of_them_is_compared_with_every_other_one(wanted: list[PartName], others: list[PartName]) -> None:
    everything = [*dict.fromkeys(wanted), *others]

    def meets(one: PartName) -> bool:
        ranges = [
            other for other in everything if one.min_block <= other.max_block and other.min_block <= one.max_block
        ]
        return len(ranges) > 1

    assert apart(wanted, others) == {one for one in wanted if not meets(one)}
