"""The queue of a replica, several entries at once: what does not meet comes side by side, all else in its order."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from oplog.errors import Transient
from tests.replicas.machines import Machine, Machines
from tiering.catalog.context import Context
from tiering.catalog.freshness import Freshness
from tiering.merge import merger
from tiering.table.part import PartName
from zerocopy.execution import work
from zerocopy.execution.order import QueueOrder
from zerocopy.execution.queue import Queued
from zerocopy.interserver import client
from zerocopy.keeper.client import Keeper
from zerocopy.keeper.operations import CreateNode, Operation
from zerocopy.replica import shared
from zerocopy.replica.bringing import landing
from zerocopy.replica.bringing.fetching import Fetcher
from zerocopy.replica.bringing.landing import Landed
from zerocopy.replica.connections import connections
from zerocopy.replica.nodes import TableNodes
from zerocopy.replica.replica import Replica
from zerocopy.replica.sharing import PartHolder

_PATIENCE_SECONDS = 60


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def a(machine: Machines) -> Machine:
    made = machine("a")
    made("table", "create", "d.t", "--column", "p:int64", "--column", "k:int64", "--order-by", "k",
         "--partition-by", "p", "--replicated")  # fmt: skip
    return made


@pytest.fixture
def b(machine: Machines, a: Machine) -> Machine:
    made = machine("b")
    made.join()
    return made


def insert(one: Machine, *rows: tuple[int, int]) -> None:
    source = one.path / "rows.csv"
    source.write_text("\n".join(["p,k", *(f"{p},{k}" for p, k in rows)]))
    one("insert", "d.t", str(source))


def together(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """So many calls of it begin at the same time, or the last of them fails."""
    barrier = threading.Barrier(number)

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            barrier.wait(_PATIENCE_SECONDS)
            return original(*arguments, **options)

        return call

    return made


def test_parts_come_side_by_side(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(4):
        insert(a, (1, key))
    with a.serving(), monkeypatch.context() as patch:
        patch.setattr(Fetcher, "_fetch", together(4)(Fetcher._fetch))
        assert b.sync()["fetched"] == [f"1_{number}_{number}_0" for number in range(4)]
    assert b.files() == a.files()


def test_one_after_the_other_where_the_configuration_says_so(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    b.write_configuration(settings, replicas={"entries_at_once": 1})
    for key in range(3):
        insert(a, (1, key))
    threads: set[str] = set()
    original = Fetcher._fetch

    def fetch(self: Fetcher, source: PartHolder) -> Landed:
        threads.add(threading.current_thread().name)
        return original(self, source)

    monkeypatch.setattr(Fetcher, "_fetch", fetch)
    with a.serving():
        assert len(b.sync()["fetched"]) == 3
    assert threads == {"MainThread"}


@pytest.mark.in_turn
def test_merges_wait_for_their_inputs_and_are_made_side_by_side(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: of two partitions at once, each when its inputs came."""
    for key in range(2):
        insert(a, (1, key), (2, key))
    b_merges = together(2)(merger.merge)
    with a.serving():
        a("merge", "d.t", "--final")
        insert(a, (3, 1))
        synced = b.sync()
    assert synced["postponed"] == []
    assert b.files() == a.files()
    with b.serving(), a.serving():
        for key in range(2, 4):
            insert(a, (1, key), (2, key))
        b.sync()
        with monkeypatch.context() as patch:
            a("merge", "d.t", "--final")
            patch.setattr(merger, "merge", b_merges)
            synced = b.sync()
    assert sorted(synced["merged"]) == ["1_0_3_2", "2_0_3_2"]
    assert b.files() == a.files()


def test_one_that_cannot_come_holds_up_only_what_meets_it(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in range(2):
        insert(a, (1, key), (2, key))
    original = Fetcher._fetch

    def fetch(self: Fetcher, source: PartHolder) -> Landed:
        if source.part == PartName.parse("1_1_1_0"):
            raise Transient("the peer is away")
        return original(self, source)

    with a.serving():
        with monkeypatch.context() as patch:
            patch.setattr(Fetcher, "_fetch", fetch)
            synced = b.sync(code=3)
        assert synced["fetched"] == ["1_0_0_0", "2_0_0_0", "2_1_1_0"]
        (postponed,) = synced["postponed"]
        assert "the peer is away" in postponed["reason"]
        assert b.json("replica", "queue", "d.t")["entries"][0]["waits"]["reason"] == postponed["reason"]
        b.sync()
    assert b.files() == a.files()


def test_what_was_merged_meanwhile_comes_once(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other replica has only the larger part: whoever is first brings it, for all."""
    for key in range(4):
        insert(a, (1, key))
    a("merge", "d.t", "--final")
    asked: list[str] = []
    original = client.Peers.fetch

    def fetch(self: Any, address: str, definition: Any, name: str, *more: Any) -> tuple[Any, Path]:
        asked.append(name)
        return original(self, address, definition, name, *more)

    monkeypatch.setattr(client.Peers, "fetch", fetch)
    with a.serving():
        synced = b.sync()
    assert synced["fetched"] == ["1_0_3_1"]
    assert asked.count("1_0_3_1") == 1
    assert b.files() == a.files()


def test_connections_to_a_peer_are_kept(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    original = client._session

    def session(secured: ssl.SSLContext | None) -> Any:
        opened.append(1)
        return original(secured)

    monkeypatch.setattr(client, "_session", session)
    for key in range(5):
        insert(a, (1, key))
    with a.serving():
        b.sync()
    assert len(opened) == 1


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The parts of each commit; the first one is made when nothing more is to be fetched beside it."""
    made: list[list[str]] = []
    landed, original_land, original = threading.Semaphore(0), QueueOrder.land, landing.commit

    def land(self: QueueOrder, queued: Queued) -> None:
        original_land(self, queued)
        landed.release()

    def commit(replica: Replica, group: Sequence[Landed]) -> None:
        if not made:
            made.append([])
            for _ in range(7):
                assert landed.acquire(timeout=_PATIENCE_SECONDS)
            made.clear()
        made.append([one.part.name for one in group])
        original(replica, group)

    monkeypatch.setattr(QueueOrder, "land", land)
    monkeypatch.setattr(landing, "commit", commit)
    return made


def test_what_comes_while_a_commit_is_made_is_committed_together(
    a: Machine, b: Machine, commits: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: and Keeper hears of each when it is there, of those of one commit by one request."""
    for key in range(7):
        insert(a, (1, key))
    words: list[set[str]] = []
    original = Keeper.multi

    def multi(self: Keeper, operations: Sequence[Operation], **more: Any) -> list[str]:
        said = {one.path for one in operations if isinstance(one, CreateNode) and "/replicas/b/parts/" in one.path}
        words.append({path.rpartition("/")[2] for path in said})
        assert words[-1] <= b.on_disk("ssd"), "said before it is there"
        return original(self, operations, **more)

    with a.serving(), monkeypatch.context() as patch:
        patch.setattr(Keeper, "multi", multi)
        synced = b.sync()
    assert synced["fetched"] == [f"1_{number}_{number}_0" for number in range(7)]
    assert sorted(map(len, commits)) == [1, 6]
    assert sorted(len(word) for word in words if word) == [1, 6]
    assert b.files() == a.files()
    assert b.json("replica", "queue", "d.t")["entries"] == []
    b("fsck", "--read-data")


def test_one_that_cannot_be_committed_keeps_none_of_the_others(
    a: Machine, b: Machine, commits: list[list[str]]
) -> None:
    for key in range(7):
        insert(a, (1, key))
    with a.serving(), b.serving() as store:
        uuid = store.definition("d.t").uuid
        with store.context.journal.claim(uuid, ["1_0_0_0", "1_6_6_0"], "move"):
            synced = b.sync(code=3)
        assert {one["part"] for one in synced["postponed"]} == {"1_0_0_0", "1_6_6_0"}
        assert synced["fetched"] == [f"1_{number}_{number}_0" for number in range(1, 6)]
        b.sync()
    assert b.files() == a.files()
    assert not list((b.path / "ssd" / ".frostline" / "staging").iterdir())


def test_who_follows_inserts_looks_over_all_when_a_part_goes(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that takes the place of none costs what it is, not what the table has; passes look over all the same."""
    looked: list[Freshness] = []
    original = shared.refresh

    def refresh(context: Context, *, freshness: Freshness = Freshness.EVERY_FILE, **more: Any) -> None:
        looked.append(freshness)
        original(context, freshness=freshness, **more)

    monkeypatch.setattr(shared, "refresh", refresh)
    with a.serving(), b.serving() as store:
        table = store.definition("d.t")

        def looks(*, follows: bool = True) -> list[Freshness]:
            names = connections(store.context).keeper.children(TableNodes(str(table.keeper)).log)
            looked.clear()
            done = work.sync(store.context, table, log=names if follows else None)
            assert done.pulled > 0
            return list(looked)

        work.sync(store.context, table)  # the first one compares all that is here with what Keeper knows
        insert(a, (1, 1))
        assert looks() == []
        insert(a, (1, 2))
        assert looks(follows=False) == [Freshness.EVERY_FILE]
        a("merge", "d.t", "--final")
        assert looks() == [Freshness.EVERY_FILE]
        insert(a, (1, 3))
        a("partition", "drop", "d.t", "1", "--yes")
        assert looks() == [Freshness.EVERY_FILE]
        assert not store.parts("d.t")
