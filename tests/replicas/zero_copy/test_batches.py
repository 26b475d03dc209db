"""A replica takes many cold parts over at once: one commit, one request for their marks, one word in Keeper. What keeps
one of them back keeps no other one back (I4, I9)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disks.file_table.blob_sets import BlobReference
from tests.replicas.machines import Machine, blobs_in
from tests.replicas.zero_copy.sharing import clean, held
from tests.servers import Server
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper
from zerocopy.marks.nodes import ROOT, StoreNodes
from zerocopy.replica import sharing

PARTS = ["all_0_0_0", "all_1_1_0", "all_2_2_0", "all_3_3_0"]


@pytest.fixture
def machine(
    tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str], bucket: str, keeper: Keeper
) -> Callable[[str], Machine]:
    return lambda name: Machine(tmp_path, name, settings, capsys, f"s3://{bucket}/cold/", log=name)


@pytest.fixture
def cold(a: Machine, bucket: str, s3_environment: Server) -> dict[str, str]:
    """Four parts in the bucket of one replica, each with its object."""
    found: dict[str, str] = {}
    for key, part in enumerate(PARTS):
        a.insert(key)
        a.move(part)
        (found[part],) = {*blobs_in(bucket, s3_environment)} - {*found.values()}
    return found


def joined(machine: Callable[[str], Machine]) -> Machine:
    b = machine("b")
    b.join("--policy", "cold")
    return b


def entries(server: Server, bucket: str, log: str) -> int:
    """How many commits the log has."""
    found = server.client().list_objects_v2(Bucket=bucket, Prefix=f"cold/logs/{log}/operations/")
    return len(found.get("Contents", []))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations each change in Keeper is made of, from now on."""
    sizes: list[int] = []
    original = Keeper.multi

    def multi(self: Keeper, operations: Any, **named: Any) -> Any:
        sizes.append(len(operations))
        return original(self, operations, **named)

    monkeypatch.setattr(Keeper, "multi", multi)
    return sizes


def test_many_parts_are_one_commit(
    a: Machine,
    cold: dict[str, str],
    machine: Callable[[str], Machine],
    bucket: str,
    s3_environment: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = joined(machine)
    before = entries(s3_environment, bucket, "b")
    with a.serving():
        sizes = counted(monkeypatch)
        synced = b.sync()
    assert (sorted(synced["fetched"]), sorted(synced["adopted"]), synced["whole"]) == (PARTS, PARTS, [])
    assert entries(s3_environment, bucket, "b") == before + 1
    queued, marks, checks, looks, words = (size for size in sizes if size >= len(PARTS))
    assert (queued, marks, checks, looks, words) == (7, 4, 4, 4, 8)
    assert b.disks() == dict.fromkeys(PARTS, "s3")
    assert b.keys() == [0, 1, 2, 3]
    assert sorted(blobs_in(bucket, s3_environment)) == sorted(cold.values())
    clean(a, b)
    assert (b.sync()["fetched"], a.sync()["fetched"]) == ([], [])


def test_more_than_one_commit_takes(
    a: Machine,
    cold: dict[str, str],
    machine: Callable[[str], Machine],
    bucket: str,
    s3_environment: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zerocopy.execution.perform.AT_ONCE", 3)
    b = joined(machine)
    before = entries(s3_environment, bucket, "b")
    with a.serving():
        assert sorted(b.sync()["adopted"]) == PARTS
    assert entries(s3_environment, bucket, "b") == before + 2


def test_one_whose_object_is_gone_keeps_no_other_back(
    a: Machine, cold: dict[str, str], machine: Callable[[str], Machine], bucket: str, s3_environment: Server
) -> None:
    b = joined(machine)
    s3_environment.client().delete_object(Bucket=bucket, Key=cold[PARTS[1]])
    with a.serving():
        synced = b.sync(code=3)
    assert sorted(synced["adopted"]) == sorted({*PARTS} - {PARTS[1]})
    assert PARTS[1] in str(synced["postponed"])
    assert b.keys() == [0, 2, 3]


@pytest.mark.in_turn
@pytest.mark.parametrize("what", ["mark", "set"])
def test_one_that_is_not_held_comes_whole(
    what: str, a: Machine, cold: dict[str, str], machine: Callable[[str], Machine], keeper: Keeper
) -> None:
    """ClickHouse 35348: its source is dropping it, or it is being collected; the others are taken over."""
    b = joined(machine)
    (store,) = keeper.children(ROOT)
    name, holder = next((name, one) for name, (one,) in held(keeper).items() if one.directory.endswith(PARTS[2]))
    keeper.delete(StoreNodes(store).mark(BlobReference(name, holder.directory), "a"))
    if what == "set":
        keeper.delete(StoreNodes(store).blob_set(name))
    with a.serving():
        synced = b.sync()
    assert (sorted(synced["fetched"]), sorted(synced["adopted"])) == (PARTS, sorted({*PARTS} - {PARTS[2]}))
    (why,) = synced["whole"]
    assert ("own mark" if what == "mark" else "being collected") in why["reason"]
    assert b.disks()[PARTS[2]] == "ssd"
    assert b.keys() == [0, 1, 2, 3]
    assert keeper.exists(StoreNodes(store).blob_set(name)) is (what == "mark")


def test_what_one_answer_does_not_hold_is_asked_for_again(
    a: Machine, cold: dict[str, str], machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of names that a server takes, and an answer that a receiver takes."""
    monkeypatch.setattr("zerocopy.interserver.offer.ANSWER_BYTES", 1)
    monkeypatch.setattr("zerocopy.interserver.offer._NAMES_BYTES", 25)
    b = joined(machine)
    with a.serving():
        assert sorted(b.sync()["adopted"]) == PARTS


def test_parts_are_asked_for_by_their_names(a: Machine, machine: Callable[[str], Machine]) -> None:
    """A partition's name may have any letter that a part's name has."""
    b = machine("b")
    columns = ("--column", "k:int64", "--column", "day:date", "--order-by", "k", "--partition-by", "day")
    for one, more in ((a, columns), (b, ())):
        one("table", "create", "d.names", "--replicated", "--policy", "cold", *more)
    source = a.path / "days.csv"
    source.write_text("k,day\n1,2020-01-01\n2,2020-01-02\n")
    a("insert", "d.names", str(source))
    for part in a.parts("d.names"):
        a.move(part, table="d.names")
    with a.serving():
        synced = b.sync("d.names")
    assert sorted(synced["adopted"]) == a.parts("d.names")


def test_parts_are_moved_at_once(
    a: Machine, b: Machine, bucket: str, s3_environment: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second replica asks who has them there, and not Keeper of each."""
    for key in range(4):
        a.insert(key)
    with a.serving():
        b.sync()
        a("move", "d.t", "--partition", "all", "--to-disk", "s3")
        looked: list[int] = []
        original = Keeper.find_all

        def find_all(self: Keeper, paths: Any) -> Any:
            looked.append(len(paths))
            return original(self, paths)

        monkeypatch.setattr(Keeper, "find_all", find_all)
        moved = b.json("move", "d.t", "--partition", "all", "--to-disk", "s3")["moved"]
    assert sorted(one["part"] for one in moved) == PARTS
    assert max(looked, default=0) < len(PARTS)
    assert b.on_disk("ssd") == set()
    assert len(blobs_in(bucket, s3_environment)) == 4
    clean(a, b)


def test_who_does_not_answer_is_replaced_by_its_log(
    a: Machine, b: Machine, bucket: str, s3_environment: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts of one log at once."""
    for key in range(4):
        a.insert(key)
    with a.serving():
        b.sync()
    a("move", "d.t", "--partition", "all", "--to-disk", "s3")
    read: list[int] = []
    original = sharing.read

    def read_all(replica: Any, disk: Any, log: str, wanted: Any) -> Any:
        read.append(len(wanted))
        return original(replica, disk, log, wanted)

    monkeypatch.setattr(sharing, "read", read_all)
    before = entries(s3_environment, bucket, "b")
    assert len(b.json("move", "d.t", "--partition", "all", "--to-disk", "s3")["moved"]) == 4
    assert read == [4]
    assert entries(s3_environment, bucket, "b") == before + 1
    assert len(blobs_in(bucket, s3_environment)) == 4
