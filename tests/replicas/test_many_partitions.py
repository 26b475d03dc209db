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


def test_a_file_of_the_inbox_with_too_many_partitions_fails_once_and_keeps_no_other(
    a: Machine, settings: KeeperConfig, tmp_path: Path
) -> None:
    """It is not tried for ever, and nothing of it is in the table. Files that have too many together go in one by one,
    each once."""
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
