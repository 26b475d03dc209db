"""Replicas with a log each in one bucket: what one brings up the others take over, by marks that prove it (I4, I9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from disks.file_table.blob_sets import BlobReference
from disks.object_disk.transaction import ObjectTransaction
from tests.replicas.machines import Machine, blobs_in, both_with_an_old_part
from tests.replicas.zero_copy.sharing import FIRST, clean, cold_on_a, fetched, held
from tests.replicas.zero_copy.sharing import machine as machine
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.move import mover
from zerocopy.execution import sharing_moves
from zerocopy.keeper.client import Keeper
from zerocopy.marks import census
from zerocopy.marks.census import CollectionGate
from zerocopy.marks.nodes import ROOT, StoreNodes
from zerocopy.replica import sharing


def test_a_new_replica_takes_cold_parts_over(
    a: Machine, machine: Any, bucket: str, s3_environment: Server, keeper: Keeper
) -> None:
    a.insert(1, 2)
    assert a.move(FIRST)["moved"]
    b = machine("b")
    b.join("--policy", "cold")
    with a.serving():
        synced = b.sync()
    assert (synced["fetched"], synced["adopted"], synced["whole"]) == ([FIRST], [FIRST], [])
    assert b.disks() == {FIRST: "s3"}
    assert b.on_disk("ssd") == set()
    assert len(blobs_in(bucket, s3_environment)) == 1
    assert [sorted(one.log for one in holders) for holders in held(keeper).values()] == [["a", "b"]]
    a("partition", "drop", "d.t", "all")
    assert (a.keys(), b.keys()) == ([], [1, 2])
    clean(a, b)
    b.sync()
    assert b.keys() == []
    assert held(keeper) == {}


@pytest.mark.in_turn
def test_a_part_goes_up_once(a: Machine, b: Machine, bucket: str, s3_environment: Server) -> None:
    a.insert(1, 2)
    with a.serving():
        assert b.sync()["whole"] == []  # as every part that is on no bucket yet
    assert b.json("replica", "queue", "d.t")["whole"] == []
    assert a.move(FIRST)["moved"]
    assert b.disks() == {FIRST: "ssd"}
    with a.serving():
        assert b.move(FIRST)["moved"]
    assert len(blobs_in(bucket, s3_environment)) == 1
    for one in (a, b):
        assert one.disks() == {FIRST: "s3"}
        assert one.on_disk("ssd") == set()
        assert one.keys() == [1, 2]
        one("fsck", "--read-data")
    clean(a, b)


def test_without_the_store_a_part_comes_whole(a: Machine, machine: Any, bucket: str, s3_environment: Server) -> None:
    """Another policy, without the bucket: the bytes come out of it, by way of the other replica."""
    a.insert(*range(1000))
    a.move(FIRST)
    b = machine("b")
    b.join("--policy", "local")
    with a.serving():
        synced = b.sync()
    assert (synced["fetched"], synced["adopted"], synced["whole"]) == ([FIRST], [], [])
    assert b.on_disk("ssd") == {FIRST}
    assert b.keys() == list(range(1000))
    b("fsck", "--read-data")


def test_another_store_of_the_same_name_is_another_one(
    a: Machine, tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], bucket: str
) -> None:
    a.insert(1, 2)
    a.move(FIRST)
    b = Machine(tmp_path, "b", settings, capsys, f"s3://{bucket}/other/", log="b")
    b.join("--policy", "cold")
    assert "which is another store" in fetched(a, b)
    assert b.disks() == {FIRST: "ssd"}
    assert b.move(FIRST)["moved"]
    assert b.disks() == {FIRST: "s3"}


@pytest.mark.in_turn
@pytest.mark.parametrize("what", ["gone", "shorter", "other bytes"])
def test_an_object_that_is_not_the_one_is_not_taken_over(
    what: str, a: Machine, machine: Any, bucket: str, s3_environment: Server, keeper: Keeper, tmp_path: Path
) -> None:
    """P1: every object is looked at. Nothing is marked that was not taken."""
    b = cold_on_a(a, machine)
    (key,) = blobs_in(bucket, s3_environment)
    client = s3_environment.client()
    whole = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    with a.serving() as store:
        client.delete_object(Bucket=bucket, Key=key)
        if what != "gone":
            body = whole[:-1] if what == "shorter" else whole[:-1] + bytes([whole[-1] ^ 1])
            client.put_object(Bucket=bucket, Key=key, Body=body, ChecksumAlgorithm="SHA256")
        synced = b.sync(code=1)
        reason = synced["postponed"][0]["reason"] if synced["postponed"] else ""
        del store
    assert synced["adopted"] == []
    assert reason
    assert [[one.log for one in holders] for holders in held(keeper).values()] == [["a"]]
    assert b.keys() == []


def test_a_source_without_its_own_mark_gives_whole_parts(a: Machine, machine: Any, keeper: Keeper) -> None:
    """ClickHouse 39560, 35348: it may be dropping the part just now."""
    b = cold_on_a(a, machine)
    (store,) = keeper.children(ROOT)
    ((name, (holder,)),) = held(keeper).items()
    nodes = StoreNodes(store)
    keeper.delete(nodes.mark(BlobReference(name, holder.directory), "a"))
    assert "the source's own mark is gone" in fetched(a, b)
    assert held(keeper) == {}
    assert b.disks() == {FIRST: "ssd"}


def test_a_set_that_is_being_collected_is_not_marked(a: Machine, machine: Any, keeper: Keeper) -> None:
    b = cold_on_a(a, machine)
    (store,) = keeper.children(ROOT)
    keeper.delete_tree(StoreNodes(store).path)
    assert "being collected" in fetched(a, b)
    assert not any(keeper.children(f"{ROOT}/{one}") for one in keeper.children(ROOT))


@pytest.mark.in_turn
@pytest.mark.parametrize("is_held", [True, False])
def test_what_a_collection_is_at_is_not_taken_over(
    is_held: bool, a: Machine, machine: Any, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: it takes the set's node away before it deletes, which a mark forbids; without the node nobody marks. So no
    look at what is announced is needed."""
    b = cold_on_a(a, machine)
    nodes = StoreNodes(keeper.children(ROOT)[0])
    ((name, (holder,)),) = held(keeper).items()
    original, released = sharing.asked, []

    def asked(*arguments: Any, **options: Any) -> Any:
        offers = original(*arguments, **options)
        if not is_held:
            keeper.delete(nodes.mark(BlobReference(name, holder.directory), "a"))
        released.append(census.release(keeper, nodes, [name], CollectionGate(nodes.path)))
        return offers

    monkeypatch.setattr(sharing, "asked", asked)
    assert ("are being collected, or were" in fetched(a, b)) == (not is_held)
    assert released[0] == (set() if is_held else {name})
    assert b.disks() == {FIRST: "s3" if is_held else "ssd"}


@pytest.mark.in_turn
def test_a_mark_that_went_during_the_commit_is_missed(
    a: Machine, machine: Any, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6, P11: Keeper lost everything in between."""
    b = cold_on_a(a, machine)
    original = ObjectTransaction.commit

    def commit(transaction: ObjectTransaction) -> int | None:
        revision = original(transaction)
        if transaction._reason.startswith("shared with"):
            keeper.delete_tree(ROOT)
        return revision

    monkeypatch.setattr(ObjectTransaction, "commit", commit)
    assert "its mark went" in fetched(a, b)
    assert b.disks() == {FIRST: "ssd"}


@pytest.mark.in_turn
def test_a_replica_of_an_earlier_version_gives_whole_parts(
    a: Machine, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no second version of the protocol, and does not say which it speaks."""
    b = cold_on_a(a, machine)
    original = web.Application.add_routes

    def add_routes(application: Any, routes: Any) -> Any:
        return original(application, [one for one in routes if "/v2/" not in one.path])

    monkeypatch.setattr(web.Application, "add_routes", add_routes)
    assert "gives parts whole" in fetched(a, b)


@pytest.mark.in_turn
def test_back_to_the_ssd_and_there_again(
    a: Machine, b: Machine, bucket: str, s3_environment: Server, keeper: Keeper
) -> None:
    """P24."""
    a.insert(1, 2)
    with a.serving():
        b.sync()
        a.move(FIRST)
        b.move(FIRST)
    assert b.move(FIRST, "ssd")["moved"]
    assert [[one.log for one in holders] for holders in held(keeper).values()] == [["a"]]
    with a.serving():
        assert b.move(FIRST)["moved"]
    assert len(blobs_in(bucket, s3_environment)) == 1
    clean(a, b)
    a.move(FIRST, "ssd")
    b.move(FIRST, "ssd")
    assert held(keeper) == {}
    assert b.move(FIRST)["moved"]
    with b.serving():
        assert a.move(FIRST)["moved"]
    assert len(blobs_in(bucket, s3_environment)) == 2
    clean(a, b)


@pytest.mark.in_turn
def test_nobody_has_to_answer_where_the_log_does(a: Machine, b: Machine, bucket: str, s3_environment: Server) -> None:
    a.insert(1, 2)
    with a.serving():
        b.sync()
    a.move(FIRST)
    assert b.move(FIRST)["moved"]
    assert len(blobs_in(bucket, s3_environment)) == 1
    clean(a, b)


@pytest.mark.in_turn
def test_one_moves_and_the_other_waits(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch, bucket: str, s3_environment: Server
) -> None:
    """P8, P12."""
    a.insert(1, 2)
    with a.serving():
        b.sync()
    original = mover._BatchMover._commit
    seen: list[str] = []

    def commit(*arguments: Any) -> Any:
        monkeypatch.setattr(mover._BatchMover, "_commit", original)
        seen.append(b.move(FIRST)["skipped"][0]["reason"])
        return original(*arguments)

    monkeypatch.setattr(mover._BatchMover, "_commit", commit)
    with Store.open(a.configuration) as store:
        assert len(store.apply(store.plan_manual_move("d.t", part=FIRST, to_disk="s3")).moved) == 1
    assert "replica a moves it now" in seen[0]
    assert b.move(FIRST)["moved"]
    assert len(blobs_in(bucket, s3_environment)) == 1


@pytest.mark.in_turn
def test_a_mover_that_died_is_replaced(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    a.insert(1, 2)
    with a.serving():
        b.sync()

    def die(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(mover._BatchMover, "_commit", die)
        dying.setattr(sharing_moves, "say", die)
        with Store.open(a.configuration) as store, pytest.raises(KeyboardInterrupt):
            store.apply(store.plan_manual_move("d.t", part=FIRST, to_disk="s3"))
    assert b.move(FIRST)["moved"]
    with b.serving():
        assert a.move(FIRST)["moved"]
    clean(a, b)


def test_rules_move_a_part_once(machine: Any, bucket: str, s3_environment: Server) -> None:
    """TTL on two replicas: the second takes over what the first brought up."""
    a, b = both_with_an_old_part(machine)
    ticked = [one.json("tick", "--believe-clock") for one in (a, b)]
    assert [[move["part"] for move in one["moved"]] for one in ticked] == [[FIRST], [FIRST]]
    assert len(blobs_in(bucket, s3_environment)) == 1
    clean(a, b)


@pytest.mark.in_turn
def test_one_merges_in_the_bucket_and_the_other_takes_it_over(
    a: Machine, b: Machine, bucket: str, s3_environment: Server
) -> None:
    a.insert(1)
    a.insert(2)
    with a.serving():
        b.sync()
    for one in (a, b):
        one("move", "d.t", "--partition", "all", "--to-disk", "s3")
    a("merge", "d.t")
    assert a.parts() == [FIRST, "all_1_1_0"]
    a("merge", "d.t", "--final")
    assert a.disks() == {"all_0_1_1": "s3"}
    before = blobs_in(bucket, s3_environment)
    assert "is not to be had now" in b.sync(code=1)["postponed"][0]["reason"]
    with a.serving():
        synced = b.sync()
    assert (synced["merged"], synced["adopted"]) == ([], ["all_0_1_1"])
    assert b.disks() == {"all_0_1_1": "s3"}
    assert blobs_in(bucket, s3_environment) == before
    assert (a.keys(), b.keys()) == ([1, 2], [1, 2])
    clean(a, b)


@pytest.mark.in_turn
def test_what_one_has_merged_the_other_may_have_on_its_ssd(a: Machine, b: Machine) -> None:
    """Each makes the same bytes; where they come to lie is its own affair."""
    a.insert(1)
    a.insert(2)
    with a.serving():
        b.sync()
    a("move", "d.t", "--partition", "all", "--to-disk", "s3")
    a("merge", "d.t", "--final")
    assert b.sync()["merged"] == ["all_0_1_1"]
    assert (a.disks(), b.disks()) == ({"all_0_1_1": "s3"}, {"all_0_1_1": "ssd"})
    assert (a.keys(), b.keys()) == ([1, 2], [1, 2])
    clean(a, b)


@pytest.mark.in_turn
def test_a_merge_of_a_part_in_the_bucket_here_is_made_on_a_disk(a: Machine, b: Machine) -> None:
    """Whoever agreed upon it had them on disks, and may be gone: the merge is not to wait for ever."""
    a.insert(1)
    a.insert(2)
    with a.serving():
        b.sync()
        assert b.move(FIRST)["moved"]
    a("merge", "d.t", "--final")
    assert b.sync()["merged"] == ["all_0_1_1"]
    assert (a.disks(), b.disks()) == ({"all_0_1_1": "ssd"}, {"all_0_1_1": "ssd"})
    assert (a.keys(), b.keys()) == ([1, 2], [1, 2])
    clean(a, b)


@pytest.mark.in_turn
def test_a_part_whose_object_is_gone_keeps_no_other_back(
    a: Machine, b: Machine, bucket: str, s3_environment: Server, keeper: Keeper
) -> None:
    """Many are taken over in one commit. Where one cannot be, each is looked at alone, and that one goes up anew."""
    for key in (1, 2):
        a.insert(key)
    with a.serving():
        b.sync()
        a.move(FIRST)
        (lost,) = blobs_in(bucket, s3_environment)
        a.move("all_1_1_0")
        s3_environment.client().delete_object(Bucket=bucket, Key=lost)
        moved = b.json("move", "d.t", "--partition", "all", "--to-disk", "s3")["moved"]
    assert sorted(one["part"] for one in moved) == [FIRST, "all_1_1_0"]
    assert b.keys() == [1, 2]
    assert len(blobs_in(bucket, s3_environment)) == 2
    assert sorted(sorted(one.log for one in holders) for holders in held(keeper).values()) == [["a"], ["a", "b"], ["b"]]
