"""Yesterday's copy of a disk is brought back: the replica finds with its next session that its parts are not those that
Keeper speaks of, and becomes what the others are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.replicas.machines import Machine, Machines


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def a(machine: Machines) -> Machine:
    made = machine("a")
    made.create("--policy", "local", "--partition-by", "k")
    return made


@contextmanager
def set_back(one: Machine, *names: str) -> Iterator[None]:
    """What these directories of the machine have now is there again afterwards."""
    kept = one.path / "yesterday"
    for name in names:
        shutil.copytree(one.path / name, kept / name)
    yield
    for name in names:
        shutil.rmtree(one.path / name)
        shutil.copytree(kept / name, one.path / name)


@pytest.mark.in_turn
@pytest.mark.parametrize("names", [("ssd", "hdd"), ("ssd", "hdd", "state")], ids=["disks", "all"])
def test_yesterdays_disks_become_what_the_others_are(a: Machine, b: Machine, names: tuple[str, ...]) -> None:
    """I9: what came since then is fetched, what was merged is replaced, what was dropped does not come back."""
    with a.serving():
        a.insert(1)
        a.insert(2)
        b.sync()
        with set_back(b, *names):
            a("partition", "drop", "d.t", "2")
            a.insert(1, 1)
            a("merge", "d.t", "--final")
            b.sync()
            assert b.keys() == [1, 1, 1]
        if "state" not in names:  # then the journal has seen later transactions of the disks
            b("query", "SELECT k FROM d.t", code=5)
            assert "disk ssd was set back" in b.error
            assert "disk adopt ssd" in b.error
            b("disk", "adopt", "ssd")
        assert b.keys() == [1, 2], "yesterday is back"
        synced = b.sync()
    assert (synced["cloned"], len(synced["fetched"])) == ("a", 1)
    assert a.keys() == b.keys() == [1, 1, 1]
    assert a.files() == {name: data for name, data in b.files().items() if "unknown" not in name}
    assert [place.name for place in b.path.glob("ssd/store/*/*/detached/*")] == ["unknown_2_0_0_0"]
    b("fsck", "--read-data")
    assert b.sync()["cloned"] == "", "it is whole"


def test_what_was_dropped_since_does_not_come_back(a: Machine, b: Machine) -> None:
    """Nothing is lacking then: there is only something that Keeper says nothing of."""
    with a.serving():
        a.insert(1)
        b.sync()
        with set_back(b, "ssd", "hdd", "state"):
            a("partition", "drop", "d.t", "1")
            b.sync()
        assert (b.sync()["cloned"], b.keys()) == ("a", [])


def test_what_only_it_had_and_lost_is_named(a: Machine, b: Machine) -> None:
    """An insert that nobody fetched is gone with the disk: it is not taken for dropped."""
    with a.serving():
        b.sync()
    with set_back(a, "ssd", "hdd"):
        a.insert(1)
    a("disk", "adopt", "ssd")
    with b.serving():
        a.sync(code=1)
    (found,) = a.json("fsck", code=4)["problems"]
    assert (found["invariant"], found["part"]) == ("I9", "1_0_0_0")
    assert a.json("replica", "restore", "d.t", code=4)["lost"] == ["1_0_0_0"]


def test_the_only_replica_has_nobody_to_ask(a: Machine) -> None:
    """Nothing is set aside by it alone: fsck says what differs."""
    with set_back(a, "ssd", "hdd"):
        a.insert(1)
    a("disk", "adopt", "ssd")
    assert a.sync()["cloned"] == ""
    assert a.json("fsck", code=4)["problems"]
