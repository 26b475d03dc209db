"""What counts of what the replicas of a table say, when Keeper has lost it."""

from __future__ import annotations

import random

import pytest

from tiering.table.part import PartName
from zerocopy.rebuilding.agreement import agree

P = PartName.parse


def said(**parts: str) -> dict[str, dict[PartName, str]]:
    """Of each replica `part:digest part:digest`."""
    return {
        replica: {P(name): digest for name, _, digest in (one.partition(":") for one in text.split())}
        for replica, text in parts.items()
    }


def test_what_all_have_is_fetched_by_nobody() -> None:
    found = agree(said(a="p_0_0_0:x p_1_1_0:y", b="p_1_1_0:y p_0_0_0:x"))
    assert (found.refused, found.lacking) == ({}, {})
    assert found.digests == {P("p_0_0_0"): "x", P("p_1_1_0"): "y"}


def test_who_has_not_merged_fetches_what_was_merged() -> None:
    found = agree(said(a="p_0_1_1:z", b="p_0_0_0:x p_1_1_0:y p_2_2_0:w"))
    assert found.refused == {}
    assert found.lacking == {P("p_0_1_1"): "a", P("p_2_2_0"): "b"}


def test_of_two_contents_that_of_the_fuller_replica_counts() -> None:
    found = agree(said(a="p_0_0_0:x", b="p_0_0_0:other p_1_1_0:y"))
    assert found.refused == {"a": {P("p_0_0_0")}}
    assert found.lacking == {P("p_0_0_0"): "b", P("p_1_1_0"): "b"}


@pytest.mark.parametrize("wide", ["a", "b"])
def test_parts_that_cross_do_not_both_count(wide: str) -> None:
    """Whichever begins first, the one of the fuller replica stays."""
    first, second = "p_0_3_1:x p_9_9_0:n", "p_2_5_1:y"
    if wide == "b":
        first, second = "p_2_5_1:y p_9_9_0:n", "p_0_3_1:x"
    found = agree(said(a=first, b=second))
    assert list(found.refused) == ["b"]
    assert set(found.digests) == {P(one.split(":")[0]) for one in first.split()}


@pytest.mark.parametrize("seed", range(40))
def test_replicas_of_one_history_lose_nothing(seed: int) -> None:
    """Blocks that are merged at random, each replica somewhere on the way: every block is in one outermost part, and
    nothing is refused."""
    chance = random.Random(seed)
    blocks = chance.randrange(1, 30)
    history = {name: f"d{name}" for name in (PartName("p", number, number, 0) for number in range(blocks))}
    states = [dict(history)]
    current = sorted(history)
    while len(current) > 1 and chance.random() < 0.9:
        at = chance.randrange(len(current) - 1)
        end = min(len(current), at + chance.randrange(2, 5))
        group = current[at:end]
        output = PartName("p", group[0].min_block, group[-1].max_block, max(one.level for one in group) + 1)
        current[at:end] = [output]
        states.append({name: f"d{name}" for name in current})
    replicas = {
        name: {part: digest for part, digest in chance.choice(states).items() if name == "a" or chance.random() < 0.8}
        for name in ("a", "b", "c")
    }
    found = agree(replicas)
    assert found.refused == {}
    outer = [part for part in found.digests if not any(one.covers(part) for one in found.digests)]
    covered = sorted(number for part in outer for number in range(part.min_block, part.max_block + 1))
    assert covered == list(range(blocks))
    for part in outer:
        lacks = any(part not in parts for parts in replicas.values())
        assert lacks == (part in found.lacking)
        assert not lacks or part in replicas[found.lacking[part]]
