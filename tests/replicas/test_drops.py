"""Parts of replicated tables that go, because a partition is dropped or by TTL: on all replicas, for good, and nothing
that came later."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from oplog.errors import NotFound
from tests.replicas.machines import Machine, Machines
from tiering.engine.store import Store
from tiering.move import mover, policy_facts
from zerocopy.execution import dropping, merging, work
from zerocopy.keeper.client import Keeper
from zerocopy.replica.inserts import inserting
from zerocopy.replica.nodes import TableNodes
from zerocopy.replica.replica import Replica


def once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, meanwhile: Callable[[], None]) -> None:
    """Something is done right before this is called the next time."""
    original = getattr(where, name)

    def call(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(where, name, original)
        meanwhile()
        return original(*arguments, **options)

    monkeypatch.setattr(where, name, call)


def drop(one: Machine, code: int = 0) -> Any:
    line = ("partition", "drop", "d.t", "all")
    return one(*line, code=code) if code else one.json(*line)


@pytest.mark.in_turn
def test_all_replicas_drop_what_was_there_and_keep_later_rows(a: Machine, b: Machine, machine: Machines) -> None:
    """One part in the bucket, one merged, one that a replica never fetched; one replica comes when all is over."""
    late = machine("late")
    late.join("--policy", "cold")
    for key in range(3):
        a.insert(key)
    with a.serving():
        b.sync()
        a.move("all_0_0_0")
        b.sync()
        a("merge", "d.t", "--final")
        a.insert(3)
    dropped = drop(a)
    assert [(one["part"], one["disk"]) for one in dropped["parts"]] == [
        ("all_0_0_0", "s3"),
        ("all_1_2_1", "ssd"),
        ("all_3_3_0", "ssd"),
    ]
    assert dropped["revisions"] == {}
    assert a.keys() == []
    assert a.insert(3)["parts"] == ["all_5_5_0"], "the same block is new, now that the first one is dropped"
    assert a.insert(3)["duplicates"] == 1
    with a.serving():
        for one in (b, late):
            synced = one.sync()
            assert (synced["fetched"], synced["merged"], synced["postponed"]) == (["all_5_5_0"], [], [])
            assert one.sync() == {**synced, "taken_over": 0, "fetched": [], "dropped": [], "skipped": 0}
    for one in (a, b, late):
        assert one.keys() == [3]
        assert one.on_disk("ssd") == {"all_5_5_0"}
        assert [found["parts"] for found in one.json("replica", "status", code=4)["replicas"]] == [1, 1, 1]
        one("fsck", "--read-data")


def test_what_is_dropped_is_not_waited_for(a: Machine, b: Machine) -> None:
    """The part was on one machine alone, and nobody gives it any more: the replica that never had it goes on."""
    a.insert(1)
    b.sync(code=1)
    drop(a)
    assert b.sync()["postponed"] == []
    assert b.json("replica", "queue", "d.t")["entries"] == []


@pytest.mark.in_turn
def test_an_insert_on_its_way_stays(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is lower than the drop's, it has no answer yet; its word comes after the drop's."""
    a.insert(1)

    def meanwhile() -> None:
        assert a.insert(3)["parts"] == ["all_2_2_0"]
        drop(a)
        assert a.keys() == []

    once(monkeypatch, inserting.ReplicatedInserting, "_say", meanwhile)
    assert b.insert(2)["parts"] == ["all_1_1_0"]
    assert b.insert(2)["duplicates"] == 1
    with a.serving():
        b.sync()
    assert b.keys() == [2]
    with b.serving():
        assert a.sync()["fetched"] == ["all_1_1_0"]
    a.insert(4)
    assert [merge["output"] for merge in a.json("merge", "d.t", "--final")["merges"]] == ["all_1_4_1"]
    assert a.keys() == [2, 4]
    drop(a)
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == []


def test_an_insert_that_counts_but_is_not_here_yet_is_dropped(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile() -> None:
        with Store.open(a.configuration) as store:
            dropping.assign(Replica.open(store.context, store.definition("d.t")), "all", "by hand")
        assert "is not over here" in b.sync(code=3)["postponed"][0]["reason"]

    once(monkeypatch, inserting.staged_parts, "take_in", meanwhile)
    b.insert(2)
    assert b.keys() == [2]
    assert b.sync()["dropped"] == ["all_0_0_0"]
    assert b.keys() == []


@pytest.mark.in_turn
def test_what_moves_now_is_not_dropped(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    a.insert(1)
    with a.serving():
        b.sync()
    once(monkeypatch, mover._BatchMover, "_commit", lambda: drop(a, code=11))
    b.move("all_0_0_0")
    assert a.keys() == b.keys() == [1]
    drop(b)
    a.sync()
    assert a.keys() == b.keys() == []
    assert a.on_disk("ssd") == set()


@pytest.mark.in_turn
def test_what_is_to_be_dropped_neither_moves_nor_merges(a: Machine, b: Machine) -> None:
    for key in (1, 2):
        a.insert(key)
    with a.serving():
        b.sync()
    drop(a)
    assert "drop that the replicas agreed upon" in b.move("all_0_0_0")["skipped"][0]["reason"]
    assert b.json("merge", "d.t", "--final")["merges"] == []
    assert b.keys() == []


@pytest.mark.in_turn
def test_a_move_that_was_claimed_meanwhile_is_not_missed(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed after the drop looked, and before its word: the part would come to the bucket when the drop is over."""
    a.insert(1)
    with a.serving():
        b.sync()
    agree = dropping.say
    agreed: list[bool] = []

    def moved_first(*arguments: Any) -> bool:
        monkeypatch.setattr(dropping, "say", agree)

        def meanwhile() -> None:
            agreed.append(agree(*arguments))
            if agreed[0]:
                a.sync()

        once(monkeypatch, mover._BatchMover, "_commit", meanwhile)
        b.move("all_0_0_0")
        return agreed[0]

    monkeypatch.setattr(dropping, "say", moved_first)
    drop(a)
    assert agreed == [False]
    assert a.keys() == b.keys() == []


def create(one: Machine, ttl: str) -> None:
    columns = ("--column", "ts:timestamp", "--column", "k:int64", "--order-by", "k")
    one("table", "create", "d.t", *columns, "--replicated", "--policy", "cold", "--ttl", ttl)


def insert(one: Machine, **keys: int) -> Any:
    """A block of a key of each of these times."""
    source = one.path / "rows.csv"
    source.write_text("\n".join(["ts,k", *(f"{TIMES[time]},{key}" for time, key in keys.items())]))
    return one.json("insert", "d.t", str(source))["parts"]


TIMES = {"past": "2013-01-31 12:00:00", "future": "2200-01-01 00:00:00"}


@pytest.mark.in_turn
def test_what_is_past_its_time_goes_from_all_replicas(machine: Machines) -> None:
    """Whole parts by an entry of their own, from the disks and the bucket; rows with the merges, everywhere alike."""
    a, b, late = machine("a"), machine("b"), machine("late")
    create(a, "1d on ts delete")
    for one in (b, late):
        one.join("--policy", "cold")
    for keys in ({"past": 1}, {"past": 2, "future": 3}, {"past": 4}):
        insert(a, **keys)
    with a.serving():
        b.sync()
        a.move("all_0_0_0")
        b.sync()
    deleted = b.json("tick", "--believe-clock")["deleted"]
    assert [(one["part"], one["disk"]) for one in deleted] == [("all_0_0_0", "s3"), ("all_2_2_0", "ssd")]
    assert b.keys() == [2, 3]
    assert b.json("tick", "--believe-clock")["deleted"] == []
    assert a.sync()["dropped"] == ["all_0_0_0", "all_2_2_0"]
    assert insert(a, future=5) == ["all_3_3_0"]
    assert [merge["output"] for merge in a.json("merge", "d.t", "--final")["merges"]] == ["all_1_3_1"]
    with a.serving():
        b.sync()
        late.sync()
    for one in (a, b, late):
        assert one.keys() == [3, 5]
        assert one.files() == a.files()
        assert one.sync()["postponed"] == []
        one("fsck", "--read-data")


@pytest.mark.in_turn
def test_a_merge_that_leaves_no_row_makes_no_part(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has what goes into it, and who never fetched it and finds nobody who has what comes out."""
    a, b, late = machine("a"), machine("b"), machine("late")
    create(a, "1d on ts delete")
    for one in (b, late):
        one.join("--policy", "cold")
    insert(a, past=1)
    insert(a, past=2)
    with a.serving():
        b.sync()
    monkeypatch.setattr(merging.ttl, "due_delete", lambda *_: None)
    assert [merge["output"] for merge in a.json("merge", "d.t", "--final")["merges"]] == [None]
    for one in (b, late):
        with a.serving():
            assert one.sync()["postponed"] == []
    for one in (a, b, late):
        assert one.json("replica", "queue", "d.t")["entries"] == []
        assert one.on_disk("ssd") == set()
    assert [found["parts"] for found in a.json("replica", "status", code=4)["replicas"]] == [0, 0, 0]
    assert insert(a, future=3) == ["all_2_2_0"]


def test_no_merge_goes_by_a_clock_that_is_wrong(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replica would drop the rows that are past their time by the clock of one."""
    a = machine("a")
    create(a, "1d on ts delete")
    for key in (1, 2):
        insert(a, past=key, future=10 + key)
    monkeypatch.setattr(policy_facts, "_contradiction", lambda context, now, options: "it says 2400")
    a("merge", "d.t", "--final", code=13)
    assert "it says 2400" in a.error
    assert a.keys() == [1, 2, 11, 12]


@pytest.mark.in_turn
def test_replicas_merge_by_an_unconfirmed_clock_and_keep_rows(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P23: parts do not pile up where no clock confirms the machine's that agrees upon merges; no replica deletes."""
    a, b = machine("a"), machine("b")
    create(a, "1d on ts delete")
    b.join("--policy", "cold")
    for key in (1, 2):
        insert(a, past=key, future=10 + key)
    with a.serving():
        b.sync()
    with monkeypatch.context() as patch:
        patch.setattr(policy_facts, "clock_doubt", lambda context, now: "no other clock")
        (merge,) = a.json("merge", "d.t", "--final")["merges"]
    assert "no other clock" in merge["kept"]
    assert b.sync()["merged"] == [merge["output"]]
    assert a.keys() == b.keys() == [1, 2, 11, 12]
    assert b.files() == a.files()


def test_a_part_is_recompressed_alike_on_all_replicas(machine: Machines) -> None:
    a, b = machine("a"), machine("b")
    create(a, "1d on ts recompress zstd(9)")
    b.join("--policy", "cold")
    insert(a, past=1)
    with a.serving():
        b.sync()
    assert [merge["output"] for merge in a.json("merge", "d.t")["merges"]] == ["all_0_0_1"]
    assert b.sync()["merged"] == ["all_0_0_1"]
    assert b.files() == a.files()
    assert json.loads(b.files()["all_0_0_1/part.json"])["compression_level"] == 9
    assert a.json("merge", "d.t")["merges"] == []


def test_a_partition_without_any_insert_ever_is_not_dropped(a: Machine, b: Machine) -> None:
    """What cannot be read would lie in the log for ever, and keep all replicas back."""
    with a.serving() as store:
        definition = store.definition("d.t")
        with pytest.raises(NotFound):
            work.drop_partition(store.context, definition, "all", "there is nothing")
        a.insert(1)
        assert len(b.sync()["fetched"]) == 1
        work.drop_partition(store.context, definition, "all", "there is something")
        b.sync()
    assert (a.keys(), b.keys()) == ([], [])


def test_what_a_drop_takes_is_done_with_before_the_drop(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who is killed in between is to fetch later what nobody has any more. All of it is one request."""
    for key in range(3):
        a.insert(key)
    drop(a)
    original, deleted = dropping.execute, Keeper.delete
    left: list[int] = []
    one_by_one: list[str] = []

    def delete(self: Keeper, path: str, *more: Any) -> bool:
        one_by_one.append(path)
        return deleted(self, path, *more)

    def execute(replica: Replica, entry: Any) -> Any:
        left.append(len(replica.keeper.children(replica.own.queue)))
        return original(replica, entry)

    with a.serving(), monkeypatch.context() as patch:
        patch.setattr(dropping, "execute", execute)
        patch.setattr(Keeper, "delete", delete)
        b.sync()
    assert left == [1]
    assert [path[-2:] for path in one_by_one if "/queue/" in path] == ["03"]


@pytest.mark.in_turn
def test_what_is_done_with_together_may_be_done_with_already(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch, keeper: Keeper
) -> None:
    """By another process of the machine, or by an earlier try whose answer was lost."""
    for key in range(3):
        a.insert(key)
    drop(a)
    nodes = TableNodes("/tables/01/d.t").replica("b")
    once(monkeypatch, Replica, "finish_all", lambda: keeper.delete(nodes.queued(1)))
    with a.serving():
        b.sync()
    assert keeper.children(nodes.queue) == []
