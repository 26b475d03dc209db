"""What it takes to have a cold part that another replica has there: requests to the bucket and to Keeper."""

from __future__ import annotations

import time
from typing import Any

import pytest

from disks.kinds import with_commits
from disks.stores.wrappers.metered import MeteredStore
from tests.replicas.machines import Machine
from tests.replicas.zero_copy.sharing import FIRST, cold_on_a
from tests.replicas.zero_copy.sharing import machine as machine
from tiering.engine.store import Store
from zerocopy.execution import work
from zerocopy.replica.connections import connections
from zerocopy.replica.nodes import TableNodes

__all__ = ["machine"]


def asked(store: Store) -> dict[str, int]:
    counting = with_commits(store.disk("s3")).store
    assert isinstance(counting, MeteredStore)
    return counting.counts()


SECOND = "all_1_1_0"


def test_requests_of_a_part_that_is_taken_over(a: Machine, machine: Any) -> None:
    """One for the object, the log's entry and a look at its end; and nothing where nothing is new."""
    b = cold_on_a(a, machine)
    with a.serving(), b.serving() as store:
        definition = store.definition("d.t")
        assert work.sync(store.context, definition).adopted == [FIRST]
        a.insert(3)
        a.move(SECOND)
        before, keeper = asked(store), connections(store.context).keeper.requests
        assert work.sync(store.context, definition).adopted == [SECOND]
        after = asked(store)
        spent = {verb: count - before.get(verb, 0) for verb, count in after.items() if count > before.get(verb, 0)}
        assert spent == {"LIST": 1, "HEAD": 1, "PUT": 1}
        assert connections(store.context).keeper.requests - keeper <= 16
        work.sync(store.context, definition)
        assert asked(store) == after
    assert b.keys() == [1, 2, 3]


@pytest.mark.in_turn
def test_requests_of_what_one_large_part_makes_needless(a: Machine, machine: Any) -> None:
    """The entries of the log whose parts it covers are done with together."""
    inserts = 20
    a.insert(0)
    b = cold_on_a(a, machine)
    for key in range(10, 10 + inserts):
        a.insert(key)
    a("merge", "d.t", "--final")
    with a.serving(), b.serving() as store:
        keeper = connections(store.context).keeper
        before = keeper.requests
        assert work.sync(store.context, store.definition("d.t")).fetched == [FIRST, f"all_1_{inserts + 1}_1"]
        assert keeper.requests - before < 20 + inserts
    assert b.keys() == a.keys()


@pytest.mark.in_turn
def test_requests_of_many_parts_that_are_taken_over_together(a: Machine, machine: Any) -> None:
    """Each entry of the log is said to be done with its part, and not once more."""
    inserts = 20
    for key in range(inserts):
        a.insert(key)
    a("move", "d.t", "--partition", "all", "--to-volume", "cold")
    b: Machine = machine("b")
    b.join("--policy", "cold")
    with a.serving(), b.serving() as store:
        keeper = connections(store.context).keeper
        before = keeper.requests
        assert len(work.sync(store.context, store.definition("d.t")).adopted) == inserts
        assert keeper.requests - before < 10 + inserts
    assert b.keys() == a.keys()


def test_a_log_seen_in_this_session_is_not_asked_what_it_is(a: Machine, machine: Any) -> None:
    """Once a session what is here is compared with what Keeper says of it, for a disk may have been set back."""
    b = cold_on_a(a, machine)
    with a.serving(), b.serving() as store:
        work.sync(store.context, store.definition("d.t"))
        kept = connections(store.context).kept(TableNodes("/tables/01/d.t").path)
        for looks, begun in ((0, 0.0), (1, time.time() + 60)):
            kept.is_compared, kept.begun = False, begun
            before = asked(store)["LIST"]
            work.sync(store.context, store.definition("d.t"))
            assert (asked(store)["LIST"] - before, kept.is_compared) == (looks, True)
