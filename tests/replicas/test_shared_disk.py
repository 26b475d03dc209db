"""Replicas whose cold parts lie in one bucket: one moves a part there, the others find it and free their SSDs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.replicas.machines import Machine, Machines, blobs_in, both_with_an_old_part
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.move import mover
from zerocopy.keeper.client import Keeper

FIRST = "all_0_0_0"


@pytest.mark.in_turn
def test_one_moves_and_all_have_it_once(a: Machine, b: Machine, machine: Machines) -> None:
    """Inserted on one, moved by another, counted on three: one copy in the bucket, none left on an SSD."""
    c = machine("c")
    c.join("--policy", "cold")
    a.insert(1, 2)
    with a.serving():
        b.sync()
    assert [one["part"] for one in b.move(FIRST)["moved"]] == [FIRST]
    assert b.on_disk("ssd") == set()
    assert a.on_disk("ssd") == {FIRST}
    a("fsck")
    assert a.sync()["freed"] == [FIRST]
    assert a.on_disk("ssd") == set()
    assert c.sync()["fetched"] == []
    for one in (a, b, c):
        assert one.keys() == [1, 2]
        assert one.disks() == {FIRST: "s3"}
        assert [found["parts"] for found in one.json("replica", "status", code=4)["replicas"]] == [1, 1, 1]
        one("fsck", "--read-data")
    assert a.insert(3)["parts"] == ["all_1_1_0"]
    with a.serving():
        c.sync()
    assert c.keys() == [1, 2, 3]


@pytest.mark.in_turn
def test_own_disks_are_drained_and_the_shared_one_is_not(a: Machine, b: Machine) -> None:
    a.insert(1, 2)
    with a.serving():
        b.sync()
    assert [move["to"] for move in a.json("disk", "drain", "ssd")["moved"]] == ["hdd"]
    assert a.json("disk", "drain", "hdd", "--dry-run")["moved"][0]["to"] == "s3"
    assert a.json("disk", "drain", "hdd")["empty"]
    assert b.sync()["freed"] == [FIRST]
    a("disk", "drain", "s3", code=13)
    assert "holds parts of d.t for all" in a.error
    assert a.disks() == b.disks() == {FIRST: "s3"}
    b("disk", "drain", "s3", code=13)
    a.insert(3, code=1)
    assert "disk ssd is drained" in a.error
    assert a.keys() == b.keys() == [1, 2]


def test_who_gives_up_all_its_first_disks_is_still_the_replica(a: Machine, b: Machine) -> None:
    """Which replica a machine is lies on its disks: it goes to the new ones before the old ones go."""
    a.insert(1)
    document = yaml.safe_load(a.configuration.read_text())
    document["disks"]["new"] = {"type": "local", "path": str(a.path / "new")}
    document["policies"]["cold"]["volumes"][0]["disks"].append("new")
    a.configuration.write_text(yaml.safe_dump(document))
    for name in ("ssd", "hdd"):
        a("disk", "drain", name)
        del document["disks"][name]
    del document["policies"]["local"]
    document["policies"]["cold"]["volumes"] = [
        {"name": "hot", "disks": ["new"]},
        {"name": "cold", "disks": ["s3"]},
    ]
    a.configuration.write_text(yaml.safe_dump(document))
    a.insert(2)
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == [1, 2]


@pytest.mark.in_turn
def test_what_was_merged_waits_for_every_replica(a: Machine, b: Machine) -> None:
    """Else the bucket has a part of whose inputs a replica still has its own: every row of them would count twice."""
    a.insert(1)
    a.insert(2)
    with a.serving():
        b.sync()
    a("merge", "d.t", "--final")
    assert "replica b has not" in a.move("all_0_1_1")["skipped"][0]["reason"]
    assert a.keys() == b.keys() == [1, 2]
    assert "a merge or drop" in b.move(FIRST)["skipped"][0]["reason"]
    b.sync()
    assert a.move("all_0_1_1")["moved"]
    assert a.keys() == b.keys() == [1, 2]
    assert b.sync()["freed"] == ["all_0_1_1"]
    assert a.keys() == b.keys() == [1, 2]


class Paused:
    """A move of `b` that stands still right before its commit, while something else is done."""

    def __init__(self, b: Machine, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
        original = mover._BatchMover._commit

        def commit(*arguments: Any) -> Any:
            monkeypatch.setattr(mover._BatchMover, "_commit", original)
            meanwhile()
            return original(*arguments)

        monkeypatch.setattr(mover._BatchMover, "_commit", commit)
        with Store.open(b.configuration) as store:
            self.report = store.apply(store.plan_manual_move("d.t", part=FIRST, to_disk="s3"))


@pytest.mark.in_turn
def test_a_part_that_is_moved_is_in_no_merge_and_no_other_move(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in range(3):
        a.insert(key)
    with a.serving():
        b.sync()

    def meanwhile() -> None:
        assert [merge["inputs"] for merge in a.json("merge", "d.t", "--final")["merges"]] == [
            ["all_1_1_0", "all_2_2_0"]
        ]
        assert "replica b moves parts" in a.move(FIRST)["skipped"][0]["reason"]

    assert [one.part for one in Paused(b, monkeypatch, meanwhile).report.moved] == [FIRST]
    for one in (a, b):
        one.sync()
        assert one.keys() == [0, 1, 2]
        assert one.disks() == {FIRST: "s3", "all_1_2_1": "ssd"}


@pytest.mark.in_turn
def test_a_mover_that_was_replaced_comes_too_late(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch, keeper: Keeper
) -> None:
    """Its session is over and it does not know: a merge of the part was agreed upon, and its commit is refused (P8)."""
    a.insert(1)
    a.insert(2)
    with a.serving():
        b.sync()

    def meanwhile() -> None:
        keeper.delete_tree("/tables/01/d.t/mover/" + keeper.children("/tables/01/d.t/mover")[0])
        assert [merge["output"] for merge in a.json("merge", "d.t", "--final")["merges"]] == ["all_0_1_1"]

    report = Paused(b, monkeypatch, meanwhile).report
    assert (report.moved, len(report.failed)) == ((), 1)
    why = report.failed[0].error
    assert f"part {FIRST} was not moved" in why, why
    assert "replica a took over" in why
    assert "'frostline replica sync'" in why
    assert b.sync()["merged"] == ["all_0_1_1"]
    for one in (a, b):
        assert one.keys() == [1, 2]
        assert one.disks() == {"all_0_1_1": "ssd"}


@pytest.mark.in_turn
@pytest.mark.parametrize("harm", ["object", "digest"])
def test_without_a_proof_the_copy_on_the_ssd_stays(
    a: Machine, b: Machine, harm: str, bucket: str, s3_environment: Server, keeper: Keeper
) -> None:
    a.insert(1, 2)
    with a.serving():
        b.sync()
    b.move(FIRST)
    if harm == "object":
        (key,) = blobs_in(bucket, s3_environment)
        s3_environment.client().delete_object(Bucket=bucket, Key=key)
    else:
        keeper.set(f"/tables/01/d.t/replicas/a/parts/{FIRST}", b"another")
    assert a.sync()["freed"] == []
    assert a.on_disk("ssd") == {FIRST}
    assert a.keys() == [1, 2]


def test_rules_move_a_part_once(machine: Machines, bucket: str, s3_environment: Server) -> None:
    """TTL on two replicas: the second finds it done (P12). As many objects as one machine would put there."""
    a, b = both_with_an_old_part(machine)
    assert a.disks() == {FIRST: "ssd"}
    ticked = [one.json("tick", "--believe-clock") for one in (a, b)]
    assert [[move["part"] for move in one["moved"]] for one in ticked] == [[FIRST], []]
    assert a.disks() == b.disks() == {FIRST: "s3"}
    assert (a.on_disk("ssd"), b.on_disk("ssd")) == (set(), set())
    assert len(blobs_in(bucket, s3_environment)) == 1


def test_who_joins_must_have_the_same_bucket(
    a: Machine, machine: Machines, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    b = machine("b")
    b("table", "create", "d.t", "--replicated", "--policy", "local", code=13)
    assert "has cold parts in a bucket" in b.error
    other = Machine(tmp_path, "other", settings, capsys, (tmp_path / "another").as_uri() + "/")
    other("table", "create", "d.t", "--replicated", "--policy", "cold", code=13)
    assert "another bucket" in other.error
    a("table", "create", "d.u", "--replicated", "--column", "k:int64", "--order-by", "k", "--policy", "local")
    b("table", "create", "d.u", "--replicated", "--policy", "cold", code=13)
    assert "buckets with a log each" in b.error
    own = Machine(tmp_path, "own", settings, capsys, (tmp_path / "third").as_uri() + "/", log="own")
    own("table", "create", "d.t", "--replicated", "--policy", "cold", code=13)
    assert "policy cold has s3" in own.error


def test_who_is_none_reads_what_is_cold_and_changes_nothing(a: Machine, machine: Machines) -> None:
    a.insert(1)
    a.move(FIRST)
    c = machine("c")
    assert c.keys() == [1]
    c.insert(2, code=13)
    c("table", "drop", "d.t", code=13)
    assert "no replica" in c.error
    assert a.keys() == [1]


def test_who_leaves_leaves_what_is_cold(a: Machine, b: Machine) -> None:
    """P13."""
    a.insert(1)
    a.move(FIRST)
    a("table", "drop", "d.t")
    b.sync()
    assert b.keys() == [1]
    assert a.keys() == [1]
    b("table", "drop", "d.t")
    assert b.json("keeper", "ls", "/tables/01")["nodes"] == []
    for one in (a, b):
        assert one.json("table", "list")["tables"] == []


def test_the_bucket_is_not_put_back_behind_the_replicas_backs(a: Machine, b: Machine) -> None:
    a.insert(1)
    before = a.json("log", "s3", "--limit", "1")["entries"][0]["revision"]
    a.move(FIRST)
    revision = a.json("log", "s3", "--limit", "1")["entries"][0]["revision"]
    for line in (("undo", "s3", str(revision)), ("restore", "s3", "--revision", str(before), "--apply")):
        a(*line, code=13)
        assert "its other replicas would not know" in a.error
    a("move", "d.t", "--part", FIRST, "--to-disk", "ssd")
    assert a.disks() == {FIRST: "s3"}


def test_a_bucket_that_takes_one_writer_is_none_to_share(machine: Machines) -> None:
    """Without conditional writes a machine that stood still can write over what another one acknowledged."""
    one = machine("a")
    plain = yaml.safe_load(one.configuration.read_text())
    plain["disks"]["s3"]["conditional_put"] = "no"
    one.configuration.write_text(yaml.safe_dump(plain))
    one("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--replicated", "--policy", "cold", code=13)
    assert "on s3 one machine at a time" in one.error
    assert one.json("table", "list")["tables"] == []


def test_what_is_in_the_bucket_but_differs_is_not_taken_for_it(a: Machine, b: Machine, keeper: Keeper) -> None:
    """Also of many at once: of the others it is said that they are here. What is there is not what others have."""
    a.insert(1)
    a.insert(2)
    for part in a.parts():
        a.move(part)
    path = f"/tables/01/d.t/replicas/a/parts/{FIRST}"
    before = keeper.get(path).data
    keeper.set(path, b"0" * 64)
    (postponed,) = b.sync(code=3)["postponed"]
    assert "the replicas agreed upon" in postponed["reason"]
    assert keeper.children("/tables/01/d.t/replicas/b/parts") == ["all_1_1_0"]
    keeper.set(path, before)
    assert b.sync()["skipped"] == 1
    assert a.keys() == b.keys() == [1, 2]
