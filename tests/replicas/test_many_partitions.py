"""How many partitions one block of a replicated table may have: as many as Keeper takes in one request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper

MOST = 99
NUMBERS = "/tables/01/d.t/block_numbers"


@pytest.fixture
def a(machine: Machines) -> Machine:
    one = machine("a")
    one("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "local",
        "--partition-by", "k", "--replicated")  # fmt: skip
    return one


def in_blocks_of(rows: int, machine: Machines) -> Machine:
    """A replica of a table with a partition a key."""
    one = machine("blocks")
    one("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "local",
        "--partition-by", "k", "--setting", f"insert_block_rows={rows}", "--replicated")  # fmt: skip
    return one


def test_a_block_that_keeper_does_not_take_leaves_nothing(a: Machine, keeper: Keeper) -> None:
    before = keeper.children(NUMBERS) if keeper.exists(NUMBERS) else []
    a.insert(*range(MOST + 1), code=2)
    assert f"a block of {MOST + 1} partitions of d.t" in a.error
    assert "fewer partitions at once" in a.error
    assert (keeper.children(NUMBERS) if keeper.exists(NUMBERS) else []) == before
    assert a.keys() == []


@pytest.mark.in_turn
def test_an_insert_with_a_second_block_refused_leaves_nothing_in(machine: Machines) -> None:
    """Cut otherwise, the rows of a first block that is in would go in twice. Keeper does not take the second block."""
    a = in_blocks_of(MOST + 1, machine)
    rows = [0] * (MOST + 1) + list(range(MOST + 1))
    a.insert(*rows, code=2)
    assert "nothing of this block was inserted" in a.error
    assert a.keys() == []
    for part in (rows[:MOST], rows[MOST:-1], rows[-1:]):
        a.insert(*part)
    assert a.keys() == sorted(rows)


@pytest.mark.in_turn
def test_a_refused_block_far_into_an_insert_says_which_are_in(machine: Machines) -> None:
    """All before it, and none after it: so the others can be inserted by themselves, and no row is in twice.
    It says which rows are in."""
    size = MOST + 1
    a = in_blocks_of(size, machine)
    rows = [key for block in range(10) for key in [block] * size] + list(range(size)) + [size] * 50
    a.insert(*rows, code=2)
    assert "the first 1,000 rows went in" in a.error
    assert a.keys() == rows[:1000]
    a.insert(*rows, code=2)
    assert "the first 1,000 rows went in" in a.error
    assert a.keys() == rows[:1000]
    for part in (rows[1000:1050], rows[1050:]):
        a.insert(*part)
    assert a.keys() == sorted(rows)


@pytest.mark.in_turn
def test_the_most_go_in_and_what_is_there_already_does_not_count(a: Machine) -> None:
    assert a.insert(*range(MOST))["rows"] == MOST
    assert a.insert(*range(MOST + 1))["duplicates"] == MOST
    assert a.keys() == list(range(MOST + 1))


@pytest.mark.in_turn
def test_an_inbox_file_with_too_many_partitions_fails_once(a: Machine, settings: KeeperConfig, tmp_path: Path) -> None:
    """It is not tried for ever, and nothing of it is in the table. Files that have too many together go in one by one,
    each once. It keeps back no other file."""
    home = tmp_path / "inbox" / "d.t"
    home.mkdir(parents=True)
    a.write_configuration(settings, inbox={"path": str(tmp_path / "inbox"), "stable_seconds": 0})
    some, more = range(1000, 1000 + MOST // 2 + 1), range(2000, 2000 + MOST // 2 + 1)
    for name, keys in (("wide", range(MOST + 1)), ("some", some), ("more", more)):
        (home / f"{name}.csv").write_text("\n".join(["k", *map(str, keys)]))
    a("inbox", "run", "--once", code=3)
    assert a.keys() == [*some, *more]
    assert not [file for file in home.iterdir() if file.is_file()]
    assert (home / "failed" / "wide.csv").exists()
    said = f"d.t/wide.csv: a block of {MOST + 1} partitions"
    assert said in a("inbox", "status")
    a("inbox", "run", "--once")
    assert a.keys() == [*some, *more]
