"""What an entry of a replicated table's log drops stays for a while, and comes back: a forged one takes no row for
good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from disks.base import DiskUsage
from tests.replicas.machines import Machine, Machines
from tiering.catalog import retained_drops
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.insert import attach_files
from zerocopy.keeper.client import Keeper
from zerocopy.replica import entries
from zerocopy.replica.inserts import inserting


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def policy() -> str:
    return "flat"


@pytest.fixture
def machine(machine: Machines, settings: KeeperConfig) -> Machines:
    """Disks whose policy wants no free space: how full this machine's disk is, plays no part."""

    def make(name: str) -> Machine:
        made = machine(name)
        configure(made, settings)
        return made

    return make


def configure(one: Machine, settings: KeeperConfig, **replicas: Any) -> None:
    flat = {"move_factor": 0, "volumes": [{"name": "hot", "disks": ["ssd"]}, {"name": "warm", "disks": ["hdd"]}]}
    one.write_configuration(settings, policies={"flat": flat}, replicas=replicas)


def forge(keeper: Keeper, last: int = 999) -> None:
    """As by another client, which tells no replica and knows no rule of ours."""
    entry = {
        "type": "drop_range",
        "time": "2026-01-01T00:00:00Z",
        "replica": "a",
        "ranges": [entries.whole_range("all", 0, last)],
        "reason": "because I can",
    }
    data = json.dumps(entry).encode()
    keeper._client.create(keeper._full("/tables/01/d.t/log/log-"), data, sequence=True)


def kept(one: Machine) -> list[str]:
    return [part for found in one.path.glob("*/store/*/*/detached/*") if (part := retained_drops.kept_part(found.name))]


def attach(one: Machine, code: int = 0) -> Any:
    line = ("partition", "attach", "d.t", "all")
    return one(*line, code=code) if code else one.json(*line)


@contextmanager
def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    genuine = retained_drops.RetainedDrop.is_over
    with monkeypatch.context() as patch:
        patch.setattr(
            retained_drops.RetainedDrop,
            "is_over",
            lambda self, keep, now: genuine(self, keep, now + timedelta(seconds=seconds)),
        )
        yield


def test_what_a_forged_entry_drops_comes_back(a: Machine, b: Machine, keeper: Keeper) -> None:
    """With a merged part on one machine, its inputs on the other, and the same rows twice."""
    a.insert(1)
    a("insert", "d.t", str(a.path / "rows.csv"), "--dedup-by", "none")
    with a.serving():
        b.sync()
    a.insert(2)
    a("merge", "d.t", "--final")
    with a.serving():
        forge(keeper)
        a.sync()
        b.sync()
    assert a.keys() == b.keys() == []
    assert kept(a) == ["all_0_2_1"]
    assert sorted(kept(b)) == ["all_0_0_0", "all_1_1_0"]
    (detached,) = a.json("partition", "list", "d.t")["detached"]
    assert detached["rows"] == 3
    a("fsck", "--read-data")
    assert attach(a)["rows"] == 3
    assert a.keys() == [1, 1, 2]
    assert kept(a) == []
    with a.serving():
        attach(b, code=10)
        assert "is attached already" in b.error
        b.sync()
    assert b.keys() == [1, 1, 2]
    for one in (a, b):
        one("fsck", "--read-data")
    forge(keeper)
    a.sync()
    assert attach(a)["rows"] == 3, "and a second time"
    assert a.keys() == [1, 1, 2]


def test_two_machines_take_back_what_each_has(a: Machine, b: Machine, keeper: Keeper) -> None:
    """One has the inputs alone, and was not there when the other one merged and inserted more."""
    a.insert(1)
    with a.serving():
        b.sync()
    a.insert(2)
    forge(keeper)
    a.sync()
    b.sync()
    assert attach(b)["rows"] == 1
    attach(a, code=5)
    assert "is not here yet" in a.error
    with b.serving():
        a.sync()
    assert attach(a)["rows"] == 1
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == [1, 2]


def test_another_replica_that_takes_back_now_is_left_to_it(
    a: Machine, b: Machine, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.insert(1)
    with a.serving():
        b.sync()
    forge(keeper)
    a.sync()
    b.sync()
    genuine = attach_files.attach_files

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(attach_files, "attach_files", genuine)
        attach(b, code=11)
        assert "another replica is taking back" in b.error
        return genuine(*arguments)

    monkeypatch.setattr(attach_files, "attach_files", meanwhile)
    attach(a)
    assert a.keys() == [1]


def test_what_was_inserted_again_does_not_come_twice(a: Machine) -> None:
    a.insert(1)
    a("partition", "drop", "d.t", "all")
    a.insert(1)
    attach(a, code=10)
    assert a.keys() == [1]


def test_what_was_inserted_again_keeps_no_other_part_back(a: Machine) -> None:
    """I11: a part that came back once remembers which part it was, and its rows inserted again are some of it."""
    a.insert(1)
    a.insert(2)
    a("partition", "drop", "d.t", "all")
    attach(a)
    a("partition", "drop", "d.t", "all")
    a.insert(2)
    preview = a.run("partition", "attach", "d.t", "all", "--dry-run")
    assert (preview[0], "1 part, 1 row" in preview[1]) == (3, True), a.error
    attach(a, code=3)
    assert "inserted again since" in a.error
    assert sorted(a.keys()) == [1, 2]
    attach(a, code=13)
    assert sorted(a.keys()) == [1, 2]


@pytest.mark.parametrize("step", ["_say", "finish"])
def test_an_attach_that_was_killed_is_run_again(step: str, a: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the word, and between it and the end of the kept directory."""
    for key in (1, 2):
        a.insert(key)
    a("partition", "drop", "d.t", "all")
    genuine, calls = getattr(inserting.ReplicatedInserting, step), []

    def killed(self: Any, *arguments: Any) -> Any:
        calls.append(step)
        if len(calls) == (2 if step == "_say" else 1):
            raise KeyboardInterrupt
        return genuine(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(inserting.ReplicatedInserting, step, killed)
        a.run("partition", "attach", "d.t", "all")
    attach(a, code=0 if step == "_say" else 10)
    assert a.keys() == [1, 2]


@pytest.mark.parametrize("seconds", [470, 490])
def test_what_is_past_its_time_goes(seconds: float, a: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    a.insert(1)
    a("partition", "drop", "d.t", "all")
    with later(monkeypatch, seconds):
        a("tick")
    assert len(kept(a)) == (seconds < 480)
    attach(a, code=0 if seconds < 480 else 10)
    assert a.keys() == ([1] if seconds < 480 else [])


def test_nothing_is_kept_where_the_setting_is_zero(a: Machine, settings: KeeperConfig) -> None:
    configure(a, settings, keep_dropped_seconds=0)
    a.insert(1)
    a("partition", "drop", "d.t", "all")
    assert kept(a) == []


def test_a_full_disk_gives_up_the_oldest_first(a: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as has to go; an insert is not sent to a colder disk."""
    for key in (1, 2, 3):
        a.insert(key)
        a("partition", "drop", "d.t", "all")
    order = ["all_2_2_0", "all_0_0_0", "all_4_4_0"]  # each drop takes a number, too
    for number, part in enumerate(order):
        (found,) = a.path.glob(f"ssd/store/*/*/detached/kept_*_{part}")
        found.rename(found.with_name(f"kept_{1_000_000 + number}_{part}"))
    with store_of(a, monkeypatch) as store, monkeypatch.context() as patch:
        context, disk = store.context, store.disk("ssd")
        genuine = type(disk).usage

        def usage(self: Any) -> DiskUsage:
            return DiskUsage(10_000, 1_000 * (3 - len(kept(a))), 0) if self.name == "ssd" else genuine(self)

        patch.setattr(type(disk), "usage", usage)
        with context.reservations.for_insert(store.definition("d.t"), 2_000, None, context.clock()) as chosen:
            assert chosen == "ssd"
        assert kept(a) == order[2:]


@contextmanager
def store_of(one: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Its store, in which nothing kept is past its time."""
    monkeypatch.setattr(retained_drops.RetainedDrop, "is_over", lambda self, seconds, now: False)
    with Store.open(one.configuration) as store:
        yield store
