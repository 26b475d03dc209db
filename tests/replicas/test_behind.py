"""The log of a replicated table is bounded, and a replica that fell behind it becomes whole again."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.replicas.machines import Machine, Machines
from zerocopy.execution import cleaning
from zerocopy.keeper.client import Keeper


@pytest.fixture(autouse=True)
def _short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "KEEP_FEWEST", 1)
    monkeypatch.setattr(cleaning, "KEEP_MOST", 2)


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def a(machine: Machines) -> Machine:
    made = machine("a")
    made.create("--policy", "local", "--setting", "deduplication_window=2")
    return made


def log(one: Machine) -> list[str]:
    return [node["name"][-3:] for node in one.json("keeper", "ls", "/tables/01/d.t/log")["nodes"]]


def state_of(replica: str, one: Machine) -> tuple[bool, bool]:
    """Whether it is active, and whether it is lost."""
    found = one.json("replica", "status", "d.t", code=4)["replicas"]
    return next((other["active"], other["lost"]) for other in found if other["replica"] == replica)


def test_a_replica_that_was_given_up_takes_over_what_another_has(a: Machine, b: Machine) -> None:
    a.insert(0)
    with a.serving():
        b.sync()
    forge_part(b, "all_0_0_0", "all_9_9_0")
    for key in range(1, 5):
        a.insert(key)
    a("merge", "d.t", "--final")
    a("tick", "--only", "merges")
    assert log(a) == ["005"]
    assert state_of("b", a) == (False, True)
    assert b.insert(5)["parts"] == ["all_5_5_0"]
    with a.serving():
        synced = b.sync()
    assert (synced["cloned"], synced["fetched"], synced["postponed"]) == ("a", ["all_0_4_1"], [])
    assert synced["set_aside"] == ["all_9_9_0"]
    assert b.keys() == [0, 1, 2, 3, 4, 5]
    assert [place.name for place in b.path.glob("ssd/store/*/*/detached/*")] == ["unknown_all_9_9_0"]
    assert state_of("b", b) == (False, False)
    with b.serving():
        a.sync()
    assert a.keys() == b.keys()
    assert a.files() == {name: data for name, data in b.files().items() if "all_9_9_0" not in name}


def test_who_is_heard_of_is_never_passed(a: Machine, b: Machine) -> None:
    with b.serving():
        b.sync()
        for key in range(5):
            a.insert(key)
        a("merge", "d.t", "--final")
        a("tick", "--only", "merges")
        assert log(a)[0] == "000"
        assert state_of("b", a) == (True, False)
    with a.serving():
        synced = b.sync()
    assert (synced["cloned"], synced["fetched"]) == ("", ["all_0_4_1"])
    a("tick", "--only", "merges")
    assert len(log(a)) == 1
    assert b.keys() == [0, 1, 2, 3, 4]


def test_who_comes_when_the_log_is_cleaned_takes_over_the_parts(a: Machine, machine: Machines) -> None:
    for key in range(5):
        a.insert(key)
    a("merge", "d.t", "--final")
    a("tick", "--only", "merges")
    assert log(a) == ["005"]
    late = machine("late")
    late.join("--policy", "local")
    with a.serving():
        synced = late.sync()
    assert (synced["cloned"], synced["fetched"]) == ("a", ["all_0_4_1"])
    assert late.keys() == [0, 1, 2, 3, 4]
    assert late.files() == a.files()


def test_digests_are_remembered_as_far_as_the_window_reaches(a: Machine) -> None:
    for key in range(5):
        a.insert(key)
    a("tick", "--only", "merges")
    assert len(a.json("keeper", "ls", "/tables/01/d.t/blocks")["nodes"]) == 2
    assert a.insert(4)["duplicates"] == 1


def forge_part(one: Machine, name: str, another: str) -> None:
    """A part that Keeper does not know: a copy under another name, its rows counted twice."""
    (place,) = (one.path / "ssd").glob(f"store/*/*/{name}")
    copy = place.parent / another
    shutil.copytree(place, copy)
    said = json.loads((copy / "part.json").read_bytes())
    (copy / "part.json").write_text(json.dumps({**said, "name": another}))


@pytest.mark.in_turn
def test_what_a_dead_replica_alone_had_is_given_up(a: Machine, b: Machine, machine: Machines) -> None:
    """Nobody waits for it."""
    c = machine("c")
    c.join("--policy", "local")
    a.insert(1)
    with a.serving():
        b.sync()
        c.sync()
    a.insert(2)
    a.insert(3)
    a("merge", "d.t", "--final")  # of what the others never had
    assert [one["part"] for one in b.sync(code=1)["postponed"]] == ["all_1_1_0", "all_2_2_0", "all_0_2_1"]
    b("replica", "drop", "d.t", "a", code=13)
    assert "replica a alone, the first is all_1_1_0" in b.error
    gone = b.json("replica", "drop", "d.t", "a", "--give-up-parts")
    assert gone["given_up"] == ["all_1_1_0", "all_2_2_0"]
    assert b.json("replica", "queue", "d.t")["entries"] == c.sync()["postponed"] == []
    assert b.keys() == c.keys() == [1]
    assert b.insert(2)["rows"] == 1  # the same block, which is new
    b("merge", "d.t", "--final")
    with b.serving():
        c.sync()
    assert b.keys() == c.keys() == [1, 2]
    a.insert(9, code=13)
    for one in (b, c):
        one("fsck", "--read-data")


def test_fsck_names_what_the_log_brings_and_nobody_has(a: Machine, b: Machine, keeper: Keeper) -> None:
    a.insert(1)
    a.insert(2)
    with a.serving():
        b.sync()
    a.insert(3)
    keeper.delete("/tables/01/d.t/replicas/a/parts/all_2_2_0")
    (found,) = b.json("fsck", code=4)["problems"]
    assert (found["invariant"], found["part"]) == ("I9", "all_2_2_0")
    assert "no replica has it" in found["what"]
    assert b.json("replica", "restore", "d.t", code=4)["lost"] == ["all_2_2_0"]
    assert b.json("replica", "restore", "d.t", "--give-up-parts")["given_up"]
    b("fsck")
    assert b.insert(3)["rows"] == 1
    assert b.keys() == [1, 2, 3]


def test_a_replica_is_restored_to_what_the_others_have(a: Machine, b: Machine) -> None:
    for key in (1, 2):
        a.insert(key)
    with a.serving():
        b.sync()
        for part in (b.path / "ssd").glob("store/*/*/all_1_1_0"):
            shutil.rmtree(part)
        assert {one["invariant"] for one in b.json("fsck", code=4)["problems"]} == {"I9"}
        assert b.json("replica", "restore", "d.t")["fetched"] == ["all_1_1_0"]
    b("fsck", "--read-data")
    assert b.keys() == a.keys() == [1, 2]
    assert b.files() == a.files()


def test_what_was_merged_only_here_yet_is_not_set_aside(a: Machine, b: Machine) -> None:
    """The log knows it: the others have not taken over what it was made of, and only this one can give it."""
    a.insert(1)
    a.insert(2)
    a("merge", "d.t", "--final")
    assert a.parts() == ["all_0_1_1"]
    a("replica", "restore", "d.t")
    assert (a.parts(), a.keys()) == (["all_0_1_1"], [1, 2])
    with a.serving():
        assert b.sync()["postponed"] == []
    assert (b.parts(), b.keys()) == (["all_0_1_1"], [1, 2])
    a("replica", "restore", "d.t")
    assert a.keys() == [1, 2]
