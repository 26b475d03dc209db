"""Merges that are not made by every replica for itself: of machines that only fetch, and large ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from oplog.errors import Transient
from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig
from zerocopy.execution import following, perform
from zerocopy.execution.steps import Done, Steps
from zerocopy.keeper.client import Keeper
from zerocopy.replica.bringing.fetching import Fetcher
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


@pytest.mark.in_turn
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

    def await_node(self: Steps, node: str) -> bool:
        is_there = awaits(self, node)
        if self.replica.name == "b":
            waits.set()
        return is_there

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


def worker_and_another(machine: Machines, settings: KeeperConfig) -> tuple[Machine, Machine]:
    """All merges are large ones, and `a` is to make them."""
    a, b = machine("a"), machine("b")
    for one in (a, b):
        one.write_configuration(settings, replicas={"merge_once_bytes": 0, "merge_workers": ["gone", "a"]})
    both_with_two_parts(a, b)
    return a, b


def test_a_large_merge_is_left_to_the_workers_while_one_lives(machine: Machines, settings: KeeperConfig) -> None:
    """Also when `b` comes to it first; where and why it waits is said, and no pass takes it for trouble."""
    a, b = worker_and_another(machine, settings)
    with a.serving() as store:
        store.tick()  # its session says that it lives; it may agree upon nothing by itself: two parts are few
        b("merge", "d.t", "--final")
        reason = "replica a is to make it (replicas.merge_workers)"
        assert f"waiting: {MERGED}: {reason}" in b.error
        (postponed,) = b.sync(code=1)["postponed"]
        assert (postponed["part"], postponed["reason"]) == (MERGED, reason)
        assert reason in b("replica", "queue", "d.t")
        status = b("replica", "status", "d.t", code=4) + b.error
        assert f"d.t: {MERGED}: {reason}" in status
        assert "no replica gone, which replicas.merge_workers" in status
        assert b.json("tick")["problems"] == []
        assert len(b.parts()) == 2
        assert a.sync()["merged"] == [MERGED]
        synced = b.sync()
    assert (synced["fetched"], synced["merged"]) == ([MERGED], [])
    assert a.files() == b.files()


def test_a_worker_s_merge_is_not_repeated_where_it_cannot_be_had(
    machine: Machines, settings: KeeperConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it is being made, and not while the worker is there and does not give it: only when none lives."""
    a, b = worker_and_another(machine, settings)
    with a.serving() as store:
        a("merge", "d.t", "--final")
        store.tick()

        def away(self: Fetcher, *given: Any, **more: Any) -> Any:
            raise Transient("the worker does not give it")

        with monkeypatch.context() as patched, Keeper(settings) as making:
            patched.setattr(Fetcher, "fetch", away)
            assert b.sync(code=1)["postponed"][0]["reason"] == "the worker does not give it"
            making.create(TABLE.merging(MERGED), b"another", ephemeral=True)
            assert "is to make it" in b.sync(code=1)["postponed"][0]["reason"]
        assert len(b.parts()) == 2
    assert b.sync()["merged"] == [MERGED]  # nobody lives
    assert a.files() == b.files()


def test_a_daemon_merges_at_once_when_the_last_worker_is_gone(
    machine: Machines, settings: KeeperConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its session, or as here with its node: no pass is waited for. It makes even a large merge then."""
    _, b = worker_and_another(machine, settings)
    monkeypatch.setattr(following, "_LOOK_SECONDS", 3600.0)
    waits, made = threading.Event(), threading.Event()
    execute = perform.execute

    def executed(replica: Replica, **options: Any) -> Done:
        done = execute(replica, **options)
        if replica.name == "b" and any(one.kind == "left" for one in done.postponed):
            waits.set()
        if replica.name == "b" and done.merged:
            made.set()
        return done

    with Keeper(settings) as worker:
        worker.create(TABLE.replica("a").is_active, b"{}", ephemeral=True)
        monkeypatch.setattr(perform, "execute", executed)
        with b.serving(follows=True):
            b("merge", "d.t", "--final")
            assert waits.wait(60)
            assert len(b.parts()) == 2
            worker.close()
            assert made.wait(60)
    assert b.parts() == [MERGED]
