"""How many partitions one block of a replicated table may have: as many as Keeper takes in one request."""

from __future__ import annotations

import pytest

from tests.replicas.machines import Machine, Machines
from zerocopy.keeper.client import Keeper

MOST = 99
NUMBERS = "/tables/01/d.t/block_numbers"


@pytest.fixture
def a(machine: Machines) -> Machine:
    one = machine("a")
    one("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "local",
        "--partition-by", "k", "--replicated")  # fmt: skip
    return one


def test_a_block_that_keeper_does_not_take_leaves_nothing(a: Machine, keeper: Keeper) -> None:
    before = keeper.children(NUMBERS) if keeper.exists(NUMBERS) else []
    a.insert(*range(MOST + 1), code=2)
    assert f"a block of {MOST + 1} partitions of d.t does not go in as one" in a.error
    assert "fewer partitions at once" in a.error
    assert (keeper.children(NUMBERS) if keeper.exists(NUMBERS) else []) == before
    assert a.keys() == []


def test_the_most_go_in_and_what_is_there_already_does_not_count(a: Machine) -> None:
    assert a.insert(*range(MOST))["rows"] == MOST
    assert a.insert(*range(MOST + 1))["duplicates"] == MOST
    assert a.keys() == list(range(MOST + 1))
