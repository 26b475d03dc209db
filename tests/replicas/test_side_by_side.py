"""The queue of a replica, several entries at once: what does not meet comes side by side, all else in its order."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oplog.errors import Transient
from tests.replicas.machines import Machine, Machines
from tiering.merge import merger
from tiering.table.part import PartName
from zerocopy.interserver import client
from zerocopy.replica.fetching import Fetcher
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

    def fetch(self: Fetcher, source: PartHolder) -> None:
        threads.add(threading.current_thread().name)
        original(self, source)

    monkeypatch.setattr(Fetcher, "_fetch", fetch)
    with a.serving():
        assert len(b.sync()["fetched"]) == 3
    assert threads == {"MainThread"}


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


def test_one_that_cannot_come_holds_up_what_meets_it_and_nothing_else(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in range(2):
        insert(a, (1, key), (2, key))
    original = Fetcher._fetch

    def fetch(self: Fetcher, source: PartHolder) -> None:
        if source.part == PartName.parse("1_1_1_0"):
            raise Transient("the peer is away")
        original(self, source)

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
