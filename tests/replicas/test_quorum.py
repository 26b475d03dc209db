"""Inserts that wait for a quorum of the replicas, and queries that see all of those."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oplog.errors import FrostlineError, Transient
from tests.replicas.machines import Machine, Machines
from tiering.engine.store import Store
from zerocopy.execution import work
from zerocopy.keeper.client import Keeper
from zerocopy.replica.inserts import quorum
from zerocopy.replica.replica import Replica


@pytest.fixture
def c(machine: Machines, a: Machine) -> Machine:
    made = machine("c")
    made.join("--policy", "cold")
    return made


@contextmanager
def following(store: Store) -> Iterator[None]:
    """Let the replica take in what comes, as its daemon does."""
    over = threading.Event()

    def follow() -> None:
        while not over.is_set():
            work.sync(store.context, store.definition("d.t"))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def insert(machine: Machine, key: int, *more: str, code: int = 0) -> Any:
    """One row; the document, or the error."""
    file = machine.path / "one.csv"
    file.write_text(f"k\n{key}\n")
    if not code:
        return machine.json("insert", "d.t", str(file), *more)
    machine("insert", "d.t", str(file), *more, code=code)
    return machine.error


@pytest.mark.in_turn
def test_it_ends_when_so_many_replicas_have_the_rows(a: Machine, b: Machine) -> None:
    with a.serving(), b.serving() as store, following(store):
        assert insert(a, 1, "--quorum", "2")["rows"] == 1
        assert b.keys() == [1]
        assert insert(a, 2, "--quorum", "auto")["rows"] == 1
        assert b.keys() == a.keys() == [1, 2]


def test_who_waits_for_a_quorum_hears_of_it(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks a second time before somebody says that there is something to see."""
    looked = threading.Event()
    holders = quorum.holders

    def look(*arguments: Any) -> int:
        found = holders(*arguments)
        looked.set()
        return found

    monkeypatch.setattr(quorum, "holders", look)
    monkeypatch.setattr(quorum, "_LOOK_SECONDS", 3600.0)
    with a.serving(), b.serving() as store:

        def take_in() -> None:
            looked.wait(60)
            work.sync(store.context, store.definition("d.t"))

        thread = threading.Thread(target=take_in)
        thread.start()
        try:
            assert insert(a, 1, "--quorum", "2", "--quorum-timeout", "20s")["rows"] == 1
        finally:
            thread.join()


@pytest.mark.in_turn
def test_a_daemon_takes_in_at_once_what_another_replica_does(a: Machine, b: Machine) -> None:
    with a.serving(follows=True), b.serving(follows=True):
        for key in range(3):
            insert(a, key, "--quorum", "2")
            assert b.keys() == list(range(key + 1))
        a("merge", "d.t", "--final")
        a("table", "alter", "d.t", "--add-column", "more:int64")
        a("partition", "drop", "d.t", "all")
        insert(b, 7, "--quorum", "auto")
        assert a.keys() == [7]
    assert b.sync()["fetched"] == []


def test_nothing_goes_in_while_too_few_replicas_are_heard_of(a: Machine, b: Machine) -> None:
    with a.serving():
        assert "into d.t: not heard of: b" in insert(a, 1, "--quorum", "2", code=5)
        assert "d.t has 2 replicas" in insert(a, 1, "--quorum", "3", code=2)
    assert a.keys() == []
    a("table", "create", "d.plain", "--column", "k:int64", "--order-by", "k", "--policy", "cold")
    a("insert", "d.plain", str(a.path / "one.csv"), "--quorum", "1", code=2)
    assert "not a number of replicas" in insert(a, 1, "--quorum", "none", code=2)


@pytest.mark.in_turn
def test_rows_too_few_have_in_time_stay_and_the_insert_waits_on(a: Machine, b: Machine) -> None:
    """The same insert, made again."""
    with a.serving(), b.serving() as store:
        said = insert(a, 1, "--quorum", "2", "--quorum-timeout", "1s", code=5)
        assert "is all_0_0_0) is known" in said
        assert (a.keys(), b.keys()) == ([1], [])
        insert(b, 1, "--quorum", "2", "--quorum-timeout", "1s", code=5)
        with following(store):
            assert insert(a, 1, "--quorum", "2")["duplicates"] == 1
    assert b.keys() == [1]


@pytest.mark.in_turn
def test_a_keeper_that_goes_away_meanwhile_leaves_it_unknown(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> int:
        raise Transient("Keeper cannot be reached: nothing was changed")

    monkeypatch.setattr(quorum, "holders", away)
    with a.serving(), b.serving():
        said = insert(a, 1, "--quorum", "2", code=5)
    assert "fewer than 2 replicas: Keeper" in said
    assert "repeat the insert: it duplicates nothing" in said
    assert a.keys() == [1]


def test_what_was_dropped_is_not_waited_for(a: Machine, b: Machine) -> None:
    with a.serving(), b.serving():
        insert(a, 1)
        names = a.parts()
        a("partition", "drop", "d.t", "all")
        with Store.open(a.configuration) as store:
            replica = Replica.open(store.context, store.definition("d.t"))
            quorum.wait(replica, names, 2, 0)


def sequential(machine: Machine, code: int = 0) -> list[int]:
    sql = "SELECT k FROM d.t ORDER BY k"
    if code:
        machine("query", sql, "--sequential", code=code)
        return []
    return [row[0] for row in machine.json("query", sql, "--sequential")["rows"]]


@pytest.mark.in_turn
def test_a_sequential_query_sees_what_a_quorum_has(a: Machine, b: Machine, c: Machine, keeper: Keeper) -> None:
    with a.serving(), b.serving() as store:
        with following(store):
            insert(a, 1, "--quorum", "2")
        assert c.keys() == []
        assert sequential(c) == [1]
        with following(store):
            insert(a, 2, "--quorum", "2")
    assert sequential(a) == [1, 2]
    assert sequential(c, code=5) == []
    assert "d.t lacks all_1_1_0 here" in c.error
    assert c.keys() == [1]


@pytest.mark.in_turn
def test_what_nobody_waited_for_keeps_no_sequential_query(a: Machine, b: Machine, c: Machine) -> None:
    insert(a, 1)
    assert sequential(b) == []
    with a.serving(), b.serving() as store:
        work.sync(store.context, store.definition("d.t"))
    sequential(c, code=5)  # two have it: it may have been waited for


def test_who_may_only_read_knows_no_quorum(a: Machine, b: Machine) -> None:
    for file in (b.path / "ssd").glob("store/*/*/replica.json"):
        file.unlink()
    for file in (b.path / "hdd").glob("store/*/*/replica.json"):
        file.unlink()
    assert b.keys() == []
    sequential(b, code=13)


@pytest.mark.in_turn
def test_sequential_is_about_now(a: Machine) -> None:
    a("query", "SELECT k FROM d.t", "--sequential", "--revision", "1", code=2)
    with Store.open(a.configuration) as store, pytest.raises(FrostlineError):
        store.query("SELECT k FROM d.nothing", sequential=True)
