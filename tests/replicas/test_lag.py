"""How long inserts wait for a replica, why, and when they are tried again: as each verb shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.replicas.machines import Machine
from tiering.catalog.context import Context
from tiering.engine import opening, store
from zerocopy.keeper.client import Keeper
from zerocopy.replica.nodes import TableNodes

LATER = datetime(2100, 1, 1, tzinfo=UTC)
OLDEST = TableNodes("/tables/01/d.t").replica("b").min_unprocessed


def at_that_time(patch: pytest.MonkeyPatch) -> None:
    """From now on it is LATER."""
    original = opening.make_context

    def made(*arguments: Any, **options: Any) -> Context:
        return original(*arguments, **{**options, "clock": lambda: LATER})

    patch.setattr(store, "make_context", made)


def lag(one: Machine, *, code: int = 4) -> dict[str, int]:
    found = one.json("replica", "status", "d.t", code=code)["replicas"]
    return {each["replica"]: each["lag_seconds"] for each in found}


@pytest.mark.in_turn
def test_an_insert_waits_in_the_log_then_the_queue_then_nowhere(
    a: Machine, b: Machine, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.insert(1)
    with monkeypatch.context() as patch:
        at_that_time(patch)
        assert a.json("replica", "list")["replicas"][0]["lag_seconds"] == 0  # its own insert
        seen = lag(a)
    (postponed,) = b.sync(code=1)["postponed"]
    expected = int(LATER.timestamp()) - int(keeper.get(OLDEST).data)
    assert seen == {"a": 0, "b": expected}
    assert b.sync(code=1)["postponed"] == [postponed]
    with monkeypatch.context() as patch:
        at_that_time(patch)
        assert lag(b) == {"a": 0, "b": expected}
        (listed,) = b.json("replica", "list")["replicas"]
        (told,) = b.json("status")["replicas"]
        (entry,) = b.json("replica", "queue", "d.t")["entries"]
    assert listed["lag_seconds"] == told["lag_seconds"] == expected
    assert entry["time"].startswith(datetime.fromtimestamp(int(keeper.get(OLDEST).data), UTC).isoformat()[:19])
    assert listed["last_error"] == told["last_error"] == f"all_0_0_0: {postponed['reason']}"
    assert listed["next_try"] is told["next_try"] is None  # no daemon runs
    assert (entry["waits"]["reason"], entry["waits"]["tries"]) == (postponed["reason"], 2)
    assert "all_0_0_0" in b("status")
    assert postponed["reason"] in b("replica", "queue", "d.t")
    b("replica", "status", "d.t", code=4)
    assert "next 'frostline replica sync'" in b.error
    with a.serving():
        b.sync()
    assert keeper.get(OLDEST).data == b"0"
    assert b.json("status")["replicas"][0]["last_error"] == ""
    assert (lag(b)["b"], b.json("replica", "queue", "d.t")["entries"]) == (0, [])


def test_the_older_of_two_inserts_counts_when_the_younger_came(a: Machine, b: Machine, keeper: Keeper) -> None:
    """And another process of the machine says what this one knew nothing of."""
    a.insert(1)
    b.sync(code=1)
    first = keeper.get(OLDEST).data
    keeper.set(OLDEST, b"0")
    a.insert(2)
    b.sync(code=1)
    assert keeper.get(OLDEST).data == first
