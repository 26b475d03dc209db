"""How often Keeper is asked: what a session knows it does not ask again, and what is changed by it is checked then."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.replicas.machines import Machine
from tiering.engine.store import Store
from zerocopy.execution import work
from zerocopy.keeper.client import Keeper
from zerocopy.replica.connections import connections
from zerocopy.replica.nodes import TableNodes

TABLE = TableNodes("/tables/01/d.t")


def insert(store: Store, key: int) -> None:
    store.table("d.t").insert(pa.table({"k": pa.array([key])}).to_batches())


def requests(store: Store) -> int:
    return connections(store.context).keeper.requests


def follow(store: Store) -> None:
    """As a daemon does that is told of something new in the log."""
    names = connections(store.context).keeper.watch(TABLE.log, lambda: None)
    done = work.sync(store.context, store.definition("d.t"), log=names)
    assert not done.postponed


def test_requests_of_an_insert_a_fetch_and_an_idle_pass(a: Machine, b: Machine) -> None:
    """An idle pass is one in which nothing happens."""
    with a.serving() as one, b.serving() as other:
        insert(one, 0)
        follow(other)
        for key in range(1, 4):
            before = requests(one)
            insert(one, key)
            assert requests(one) - before <= 4
            before = requests(other)
            follow(other)
            assert requests(other) - before <= 6
        work.tick(other.context, other.definition("d.t"))
        before = requests(other)
        work.tick(other.context, other.definition("d.t"))
        assert requests(other) - before <= 3
    assert b.keys() == [0, 1, 2, 3]


def test_what_another_process_took_over_is_not_taken_over_twice(a: Machine, b: Machine) -> None:
    with a.serving() as one, b.serving() as other:
        insert(one, 0)
        follow(other)
        insert(one, 1)
        assert b.sync()["fetched"] == ["all_1_1_0"]
        insert(one, 2)
        follow(other)  # knows of an older place in the log
    assert b.keys() == [0, 1, 2]
    assert b.json("replica", "queue", "d.t")["entries"] == []
    b("fsck", "--read-data")


def test_who_was_given_up_takes_nothing_over_by_what_it_knew(a: Machine, b: Machine, keeper: Keeper) -> None:
    with a.serving() as one, b.serving() as other:
        insert(one, 0)
        follow(other)
        keeper.set(TABLE.replica("b").is_lost, b"1")
        insert(one, 1)
        names = keeper.children(TABLE.log)
        assert work.sync(other.context, other.definition("d.t"), log=names).cloned == "a"
    assert b.keys() == [0, 1]


def test_an_insert_is_refused_when_the_replica_is_another_now(a: Machine, keeper: Keeper) -> None:
    with a.serving() as one:
        insert(one, 0)
        keeper.set(TABLE.replica("a").path, b"somebody else")
        a.insert(1, code=13)
        with pytest.raises(Exception, match="is another machine's now"):
            insert(one, 1)
        assert keeper.children(TABLE.replica("a").parts) == ["all_0_0_0"]
