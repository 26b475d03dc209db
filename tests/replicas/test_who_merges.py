"""Merges that are not made by every replica for itself: of machines that only fetch, and large ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig
from zerocopy.execution import following, perform
from zerocopy.execution.steps import Done, Steps
from zerocopy.keeper.client import Keeper
from zerocopy.replica.nodes import TableNodes
from zerocopy.replica.replica import Replica

TABLE = TableNodes("/tables/01/d.t")
MERGED = "all_0_1_1"


@pytest.fixture
def shared_url() -> str:
    return ""


def both_with_two_parts(a: Machine, b: Machine) -> None:
    a.create("--policy", "local")
    b.join("--policy", "local")
    a.insert(1)
    a.insert(2)
    a.sync()
    with a.serving():
        assert len(b.sync()["fetched"]) == 2


def test_a_machine_that_does_not_merge_fetches(machine: Machines, settings: KeeperConfig) -> None:
    a, b = machine("a"), machine("b")
    b.write_configuration(settings, replicas={"merges": False})
    both_with_two_parts(a, b)
    b("tick")
    assert len(b.parts()) == 2  # and agrees upon none
    a("merge", "d.t", "--final")
    b.sync(code=1)
    assert len(b.parts()) == 2
    with a.serving():
        synced = b.sync()
    assert (synced["fetched"], synced["merged"]) == ([MERGED], [])
    assert a.files() == b.files()
    b("fsck", "--read-data")


def test_alone_in_its_table_it_merges(machine: Machines, settings: KeeperConfig) -> None:
    a = machine("a")
    a.write_configuration(settings, replicas={"merges": False})
    a.create("--policy", "local")
    a.insert(1)
    a.insert(2)
    a("merge", "d.t", "--final")
    assert a.parts() == [MERGED]


def test_a_large_merge_is_made_once(machine: Machines, settings: KeeperConfig, keeper: Keeper) -> None:
    a, b = machine("a"), machine("b")
    for one in (a, b):
        one.write_configuration(settings, replicas={"merge_once_bytes": 1})
    both_with_two_parts(a, b)
    a("merge", "d.t", "--final")
    assert not keeper.children(TABLE.all_merging)
    with a.serving():
        synced = b.sync()
    assert (synced["fetched"], synced["merged"]) == ([MERGED], [])
    assert a.files() == b.files()


@pytest.mark.parametrize("is_done", [False, True], ids=["dead", "done"])
def test_a_daemon_hears_of_it_when_who_makes_a_large_merge_ends(
    machine: Machines, settings: KeeperConfig, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """With its session, or because it is done: no pass is waited for."""
    a, b = machine("a"), machine("b")
    for one in (a, b):
        one.write_configuration(settings, replicas={"merge_once_bytes": 1})
    both_with_two_parts(a, b)
    monkeypatch.setattr(following, "_LOOK_SECONDS", 3600.0)
    waits, made = threading.Event(), threading.Event()
    awaits, execute = Steps._await, perform.execute

    def await_node(self: Steps, node: str) -> None:
        awaits(self, node)
        if self.replica.name == "b":
            waits.set()

    def executed(replica: Replica, **options: Any) -> Done:
        done = execute(replica, **options)
        if replica.name == "b" and done.merged:
            made.set()
        return done

    with Keeper(settings) as dying:
        dying.make_path(TABLE.all_merging)
        dying.create(TABLE.merging(MERGED), b"another", ephemeral=True)
        monkeypatch.setattr(Steps, "_await", await_node)
        monkeypatch.setattr(perform, "execute", executed)
        with b.serving(follows=True):
            a("merge", "d.t", "--final")
            assert waits.wait(60)
            if is_done:
                dying.delete(TABLE.merging(MERGED))
            else:
                dying.close()
            assert made.wait(60)
    assert b.parts() == [MERGED]


def test_a_large_merge_whose_replica_is_gone_is_made_by_another(machine: Machines, settings: KeeperConfig) -> None:
    """While it is at it, then when its session has ended; or when it has made the part, and gives it to nobody."""
    a, b = machine("a"), machine("b")
    for one in (a, b):
        one.write_configuration(settings, replicas={"merge_once_bytes": 1})
    both_with_two_parts(a, b)
    with Keeper(settings) as dying:
        dying.make_path(TABLE.all_merging)
        dying.create(TABLE.merging(MERGED), b"another", ephemeral=True)
        a("merge", "d.t", "--final")
        (postponed,) = a.sync(code=1)["postponed"]
        assert "another replica makes it" in postponed["reason"]
        assert len(a.parts()) == 2
    assert a.sync()["merged"] == [MERGED]
    assert b.sync()["merged"] == [MERGED]  # nobody serves
    assert a.files() == b.files()
