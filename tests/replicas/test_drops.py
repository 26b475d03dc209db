"""Partitions of replicated tables that are dropped: on all replicas, for good, and nothing that came later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replicas.machines import Machine
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.move import mover
from zerocopy.execution import dropping
from zerocopy.replica import inserting
from zerocopy.replica.replica import Replica

Machines = Callable[[str], Machine]


@pytest.fixture
def machine(tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], bucket: str) -> Machines:
    return lambda name: Machine(tmp_path, name, settings, capsys, f"s3://{bucket}/cold/")


@pytest.fixture
def a(machine: Machines) -> Machine:
    made = machine("a")
    made.create("--policy", "cold")
    return made


@pytest.fixture
def b(machine: Machines, a: Machine) -> Machine:
    made = machine("b")
    made.join("--policy", "cold")
    return made


def once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, meanwhile: Callable[[], None]) -> None:
    """Something is done right before this is called the next time."""
    original = getattr(where, name)

    def call(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(where, name, original)
        meanwhile()
        return original(*arguments, **options)

    monkeypatch.setattr(where, name, call)


def drop(one: Machine, code: int = 0) -> Any:
    line = ("partition", "drop", "d.t", "all")
    return one(*line, code=code) if code else one.json(*line)


def test_all_replicas_drop_what_was_there_and_keep_what_came_later(a: Machine, b: Machine, machine: Machines) -> None:
    """One part in the bucket, one merged, one that a replica never fetched; one replica comes when all is over."""
    late = machine("late")
    late.join("--policy", "cold")
    for key in range(3):
        a.insert(key)
    with a.serving():
        b.sync()
        a.move("all_0_0_0")
        b.sync()
        a("merge", "d.t", "--final")
        a.insert(3)
    dropped = drop(a)
    assert [(one["part"], one["disk"]) for one in dropped["parts"]] == [
        ("all_0_0_0", "s3"),
        ("all_1_2_1", "ssd"),
        ("all_3_3_0", "ssd"),
    ]
    assert dropped["revisions"] == {}
    assert a.keys() == []
    assert a.insert(3)["parts"] == ["all_5_5_0"], "the same block is new, now that the first one is dropped"
    assert a.insert(3)["duplicates"] == 1
    with a.serving():
        for one in (b, late):
            synced = one.sync()
            assert (synced["fetched"], synced["merged"], synced["postponed"]) == (["all_5_5_0"], [], [])
            assert one.sync() == {**synced, "taken_over": 0, "fetched": [], "dropped": [], "skipped": 0}
    for one in (a, b, late):
        assert one.keys() == [3]
        assert one.on_disk("ssd") == {"all_5_5_0"}
        assert [found["parts"] for found in one.json("replica", "status", code=4)["replicas"]] == [1, 1, 1]
        one("fsck", "--read-data")


def test_what_is_dropped_is_not_waited_for(a: Machine, b: Machine) -> None:
    """The part was on one machine alone, and nobody gives it any more: the replica that never had it goes on."""
    a.insert(1)
    b.sync(code=1)
    drop(a)
    assert b.sync()["postponed"] == []
    assert b.json("replica", "queue", "d.t")["entries"] == []


def test_an_insert_on_its_way_stays(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is lower than the drop's, it has no answer yet; its word comes after the drop's."""
    a.insert(1)

    def meanwhile() -> None:
        assert a.insert(3)["parts"] == ["all_2_2_0"]
        drop(a)
        assert a.keys() == []

    once(monkeypatch, inserting.ReplicatedInserting, "_say", meanwhile)
    assert b.insert(2)["parts"] == ["all_1_1_0"]
    assert b.insert(2)["duplicates"] == 1
    with a.serving():
        b.sync()
    assert b.keys() == [2]
    with b.serving():
        assert a.sync()["fetched"] == ["all_1_1_0"]
    a.insert(4)
    assert [merge["output"] for merge in a.json("merge", "d.t", "--final")["merges"]] == ["all_1_4_1"]
    assert a.keys() == [2, 4]
    drop(a)
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == []


def test_an_insert_that_counts_and_is_not_in_the_table_yet_is_dropped(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile() -> None:
        with Store.open(a.configuration) as store:
            dropping.assign(Replica.open(store.context, store.definition("d.t")), "all", "by hand")
        assert "is not over here" in b.sync(code=3)["postponed"][0]["reason"]

    once(monkeypatch, inserting.arrivals, "take_in", meanwhile)
    b.insert(2)
    assert b.keys() == [2]
    assert b.sync()["dropped"] == ["all_0_0_0"]
    assert b.keys() == []


def test_what_moves_now_is_not_dropped(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    a.insert(1)
    with a.serving():
        b.sync()
    once(monkeypatch, mover._BatchMover, "_commit", lambda: drop(a, code=11))
    b.move("all_0_0_0")
    assert a.keys() == b.keys() == [1]
    drop(b)
    a.sync()
    assert a.keys() == b.keys() == []
    assert a.on_disk("ssd") == set()


def test_what_is_to_be_dropped_neither_moves_nor_merges(a: Machine, b: Machine) -> None:
    for key in (1, 2):
        a.insert(key)
    with a.serving():
        b.sync()
    drop(a)
    assert "drop that the replicas agreed upon" in b.move("all_0_0_0")["skipped"][0]["reason"]
    assert b.json("merge", "d.t", "--final")["merges"] == []
    assert b.keys() == []


def test_a_move_that_was_claimed_meanwhile_is_not_missed(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed after the drop looked, and before its word: the part would come to the bucket when the drop is over."""
    a.insert(1)
    with a.serving():
        b.sync()
    agree = dropping._say
    agreed: list[bool] = []

    def moved_first(*arguments: Any) -> bool:
        monkeypatch.setattr(dropping, "_say", agree)

        def meanwhile() -> None:
            agreed.append(agree(*arguments))
            if agreed[0]:
                a.sync()

        once(monkeypatch, mover._BatchMover, "_commit", meanwhile)
        b.move("all_0_0_0")
        return agreed[0]

    monkeypatch.setattr(dropping, "_say", moved_first)
    drop(a)
    assert agreed == [False]
    assert a.keys() == b.keys() == []
