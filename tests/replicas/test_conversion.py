"""A plain table becomes a replicated one and back: parts keep names, rows and bytes (I10), numbers are never given
again (I3), nobody else writes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from disks.base import Disk
from oplog.errors import Transient
from oplog.kinds import Dropped
from tests.replicas.converting import plain
from tests.replicas.machines import Machine, Machines
from tiering.catalog import tables
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.journal.records import Drop, TableDrop
from zerocopy.keeper.client import Keeper

PLACE = "/tables/01/d.t"


@pytest.mark.in_turn
@pytest.mark.parametrize("policy", ["local", "cold"])
def test_there_and_back_keeps_every_part(machine: Machines, keeper: Keeper, policy: str) -> None:
    a = plain(machine("a"), policy)
    parts, files = a.parts(), a.files()
    done = a.json("table", "alter", "d.t", "--replicated")
    assert (done["replica"], done["keeper_path"], done["parts"], done["finished"]) == ("a", PLACE, 2, False)
    assert (a.parts(), a.files(), a.keys()) == (parts, files, [1, 2, 3])
    (number,) = a.insert(4)["parts"]
    assert int(number.split("_")[1]) >= 1_000_000
    a("fsck", "--read-data")
    b = machine("b")
    b.join("--policy", policy)
    with a.serving():
        assert sorted(b.sync()["fetched"]) == sorted(a.parts())
    assert b.keys() == a.keys() == [1, 2, 3, 4]
    assert b.files() == a.files()
    assert b.insert(3)["duplicates"] == 1
    b.insert(5)
    with b.serving():
        a.sync()
    assert [one["output"] for one in a.json("merge", "d.t", "--final")["merges"]] != []
    with a.serving():
        assert b.sync()["postponed"] == []
    assert a.files() == b.files()
    a("table", "alter", "d.t", "--not-replicated", code=13)
    assert "has 1 other replica: b" in a.error
    b("table", "drop", "d.t")
    parts, files = a.parts(), a.files()
    done = a.json("table", "alter", "d.t", "--not-replicated")
    assert (done["parts"], done["finished"], done.get("keeper")) == (len(parts), False, None)
    assert (a.parts(), a.files(), a.keys()) == (parts, files, [1, 2, 3, 4, 5])
    assert not keeper.exists(PLACE)
    assert a.insert(5)["duplicates"] == 1
    (later,) = a.insert(6)["parts"]
    assert int(later.split("_")[1]) > 2_000_000
    a("merge", "d.t", "--final")
    assert (a.keys(), len(a.parts())) == ([1, 2, 3, 4, 5, 6], 1)
    a("fsck", "--read-data")


@pytest.mark.in_turn
def test_a_replica_of_before_joins_again(machine: Machines) -> None:
    """It took entries over from a log that is gone: the new one is none that was set back."""
    a, b = plain(machine("a")), machine("b")
    a("table", "alter", "d.t", "--replicated")
    b.join("--policy", "cold")
    with a.serving():
        for key in (4, 5, 6):
            a.insert(key)
            b.sync()
    b("table", "drop", "d.t")
    a("table", "alter", "d.t", "--not-replicated")
    a("table", "alter", "d.t", "--replicated")
    b.join("--policy", "cold")
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == [1, 2, 3, 4, 5, 6]
    b.insert(7)
    with b.serving():
        a.sync()
    assert a.keys() == b.keys() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.in_turn
def test_a_bucket_that_the_table_left_still_says_it_is_plain(
    machine: Machines, tmp_path: Path, settings: KeeperConfig
) -> None:
    """Another machine that has that bucket, too, joins, and becomes a replica."""
    a, b = machine("a"), machine("b")
    for one in (a, b):
        document = yaml.safe_load(one.configuration.read_text())
        document["disks"]["left"] = {"type": "object_disk", "url": f"{(tmp_path / 'left').as_uri()}/"}
        document["policies"]["left"] = {"volumes": [*document["policies"]["local"]["volumes"], _volume("left")]}
        one.configuration.write_text(yaml.safe_dump(document))
    plain(a, "left")
    a("move", "d.t", "--partition", "all", "--to-disk", "left")
    a("move", "d.t", "--partition", "all", "--to-disk", "ssd")
    a("table", "alter", "d.t", "--policy", "local")
    a("table", "alter", "d.t", "--replicated")
    b.join("--policy", "local")
    with a.serving():
        b.sync()
    assert a.keys() == b.keys() == [1, 2, 3]
    b.insert(4)
    with b.serving():
        a.sync()
    assert a.keys() == b.keys() == [1, 2, 3, 4]


def _volume(disk: str) -> dict[str, object]:
    return {"name": disk, "disks": [disk]}


def test_a_dry_run_changes_nothing(machine: Machines, keeper: Keeper) -> None:
    a = plain(machine("a"))
    done = a.json("table", "alter", "d.t", "--replicated", "--dry-run")
    assert (done["keeper"], done["dry_run"], done["parts"]) == (PLACE, True, 2)
    assert not keeper.exists(PLACE)
    a.insert(4)
    a("table", "alter", "d.t", "--replicated")
    a("table", "alter", "d.t", "--not-replicated", "--dry-run")
    assert a.json("table", "show", "d.t")["keeper"] == PLACE
    assert a.insert(5)["rows"] == 1


def test_refusals_name_what_is_in_the_way(
    machine: Machines, keeper: Keeper, tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    a = plain(machine("a"))
    a("table", "alter", "d.t", "--not-replicated", code=2)
    assert "is a plain table already" in a.error
    a("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "cold", "--replicated", code=1)
    assert "another table is called d.t here" in a.error
    assert "table alter d.t --replicated" in a.error
    assert not keeper.exists("/tables")
    other = Machine(tmp_path, "other", settings, capsys)
    other("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "local", "--replicated")
    a("table", "alter", "d.t", "--replicated", code=13)
    assert "is the place of another table" in a.error
    a("table", "alter", "d.t", "--replicated", "--keeper-path", "/tables/mine")
    a("table", "alter", "d.t", "--replicated", code=1)
    assert "is replicated already, as replica a" in a.error
    a("table", "alter", "d.t", "--replicated", "--ttl", "", code=2)
    assert a.insert(9)["rows"] == 1
    assert other.insert(9)["rows"] == 1


@pytest.mark.in_turn
def test_another_machine_may_only_read_and_loses_nothing(machine: Machines) -> None:
    """What it has on its own disks no replica knows: it stays there, and it does not join over it."""
    a, b = plain(machine("a")), machine("b")
    a.move("all_1_2_1")
    assert b.keys() == [1, 2]
    b.insert(7)
    a("table", "alter", "d.t", "--replicated")
    assert b.keys() == [1, 2, 7]
    b.insert(8, code=13)
    assert "this machine is no replica of d.t" in b.error
    b("table", "alter", "d.t", "--replicated", code=13)
    assert "table create d.t --replicated" in b.error
    b("table", "create", "d.t", "--replicated", "--policy", "cold", code=13)
    assert "own disks have 1 part of d.t" in b.error
    assert b.keys() == [1, 2, 7]
    c = machine("c")
    c.join("--policy", "cold")
    with a.serving():
        c.sync()
    assert c.keys() == [1, 2, 3]


@pytest.mark.in_turn
@pytest.mark.parametrize("policy", ["local", "cold"])
def test_what_began_before_does_not_count_after(machine: Machines, policy: str) -> None:
    """An insert that goes by the plain table while another process converts it (I2)."""
    a = plain(machine("a"), policy)
    with Store.open(a.configuration) as store:
        stale = store.table("d.t")
        a("table", "alter", "d.t", "--replicated")
        with pytest.raises(Transient, match="was made a replicated table meanwhile"):
            stale.insert(pa.table({"k": [4]}).to_batches())
    assert a.keys() == [1, 2, 3]
    a("fsck")
    assert a.insert(4)["rows"] == 1


@pytest.mark.in_turn
def test_a_move_that_began_before_is_refused_and_says_what_to_do(machine: Machines) -> None:
    """It goes by the plain table, and its parts are every replica's by now (I1)."""
    a = plain(machine("a"), "cold")
    with Store.open(a.configuration) as store:
        (part, *_) = a.parts()
        moves = store.plan_manual_move("d.t", part=part, to_disk="s3")
        a("table", "alter", "d.t", "--replicated")
        (failed,) = store.apply(moves).failed
    assert f"part {part} was not moved to s3: d.t" in failed.error
    assert "'frostline replica sync d.t'" in failed.error
    a.sync()
    assert [moved["part"] for moved in a.move(part)["moved"]] == [part]
    assert a.keys() == [1, 2, 3]


@pytest.mark.in_turn
@pytest.mark.parametrize("policy", ["local", "cold"])
@pytest.mark.parametrize("whole", [True, False], ids=["table", "parts"])
def test_a_drop_begun_before_takes_nothing_that_replicas_have(machine: Machines, policy: str, whole: bool) -> None:
    """A drop that goes by the plain table while another process converts it (I1)."""
    a = plain(machine("a"), policy)
    with Store.open(a.configuration) as store:
        definition, parts = store.definition("d.t"), store.parts("d.t")
        a("table", "alter", "d.t", "--replicated")
        with pytest.raises(Transient, match="it keeps what it has"):
            if whole:
                tables.drop(store.context, definition)
            else:
                tables.drop_parts(store.context, parts, reason="by hand")
        assert store.context.journal.drops() == []
    assert a.keys() == [1, 2, 3]
    a("fsck")
    assert a.insert(4)["rows"] == 1


def test_a_drop_of_another_machine_is_refused_where_it_commits(
    machine: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is converted after the other machine has looked, and before its commit in the bucket."""
    a, b = plain(machine("a")), machine("b")
    a.move("all_1_2_1")
    assert b.keys() == [1, 2]
    genuine = tables._marks_below

    def converted_now(disk: Disk, decided: Drop, going: Collection[str]) -> dict[str, bytes]:
        monkeypatch.setattr(tables, "_marks_below", genuine)
        a("table", "alter", "d.t", "--replicated")
        return genuine(disk, decided, going)

    monkeypatch.setattr(tables, "_marks_below", converted_now)
    b("table", "drop", "d.t", code=5)
    assert "it keeps what it has" in b.error
    assert (a.keys(), b.keys()) == ([1, 2, 3], [1, 2])
    a("fsck", "--read-data")


def test_a_killed_drop_is_given_up_by_a_now_read_only_machine(machine: Machines) -> None:
    a, b = plain(machine("a")), machine("b")
    a.move("all_1_2_1")
    with Store.open(b.configuration) as store:
        definition = store.definition("d.t")
        store.context.journal.begin_drop(
            TableDrop(
                table="d.t",
                table_uuid=definition.uuid,
                reason="drop table d.t",
                directories=(definition.directory,),
                barred_by=definition.barred_by,
            )
        )
    a("table", "alter", "d.t", "--replicated")
    assert (b.keys(), a.keys()) == ([1, 2], [1, 2, 3])
    a("fsck", "--read-data")


def test_it_waits_for_nobody_who_is_at_the_parts(machine: Machines) -> None:
    a = plain(machine("a"))
    with Store.open(a.configuration) as store:
        definition = store.definition("d.t")
        with store.context.journal.claim(definition.uuid, ["all_3_3_0"], "move"):
            a("table", "alter", "d.t", "--replicated", code=11)
            assert "on this machine: move" in a.error
        a("table", "alter", "d.t", "--replicated")
        with store.context.journal.claim(definition.uuid, ["all_3_3_0"], "move"):
            a("table", "alter", "d.t", "--not-replicated", code=11)
    assert a.insert(4)["rows"] == 1
    a("table", "alter", "d.t", "--not-replicated")


@pytest.mark.in_turn
def test_a_name_that_joined_or_left_keeps_the_table_replicated(machine: Machines) -> None:
    """A part that is not here is not forgotten, and what was detached stays."""
    a = plain(machine("a"))
    a("partition", "detach", "d.t", "all")
    a.insert(4)
    a("table", "alter", "d.t", "--replicated")
    (four,) = a.parts()
    a.insert(5)
    with (
        Store.open(a.configuration) as store,
        store.disk("ssd").transaction(Dropped(), reason="by hand", actor="test") as transaction,
    ):
        transaction.remove(store.definition("d.t").part_directory(four))
        transaction.commit()
    a("table", "alter", "d.t", "--not-replicated", code=13)
    assert f"the first is {four}" in a.error
    assert a.insert(6)["rows"] == 1  # it is as it was
    a("partition", "drop", "d.t", "all")
    a("table", "alter", "d.t", "--not-replicated")
    a("partition", "attach", "d.t", "all")
    assert a.keys() == [1, 2, 3]


@pytest.mark.in_turn
def test_a_backup_of_a_replica_comes_back_plain_and_as_replicas(a: Machine, machine: Machines, tmp_path: Path) -> None:
    """Under another name while the table lives, on another machine, first plain, then with replicas of its own."""
    repository = (tmp_path / "repository").as_uri()
    a.insert(1, 2)
    a.move("all_0_0_0")
    a.insert(3)
    a("backup", "init", repository)
    a("backup", "create", "first", "--to", repository)
    c = machine("c")
    c("backup", "restore", "first", "--map-table", "d.t:d.again", "--to", repository)
    assert c.keys("d.again") == [1, 2, 3]
    assert "keeper" not in c.json("table", "show", "d.again")
    c("table", "alter", "d.again", "--replicated", "--keeper-path", "/tables/01/d.t", code=13)
    assert "is the place of another table" in c.error
    assert c.json("table", "alter", "d.again", "--replicated")["keeper_path"] == "/tables/01/d.again"
    e = machine("e")
    e.join("--policy", "cold", table="d.again")
    with c.serving():
        e.sync("d.again")
    assert e.insert(4, table="d.again")["rows"] == 1
    assert (e.keys("d.again"), a.keys()) == ([1, 2, 3, 4], [1, 2, 3])
    for one in (a, c, e):
        one("fsck", "--read-data")


@pytest.mark.in_turn
@pytest.mark.parametrize("policy", ["local", "cold"])
def test_a_move_planned_before_is_given_up_and_loses_nothing(machine: Machines, policy: str) -> None:
    """A move that goes by the plain table while another process converts it (I1): nobody agreed upon it in Keeper."""
    a = plain(machine("a"), policy)
    before = a.disks()
    with Store.open(a.configuration) as store:
        planned = store.plan_manual_move("d.t", part="all_3_3_0", to_disk={"local": "hdd", "cold": "s3"}[policy])
        assert len(planned) == 1
        a("table", "alter", "d.t", "--replicated")
        report = store.apply(planned)
        assert (report.moved, [one.part for one in report.failed]) == ((), ["all_3_3_0"])
    assert (a.disks(), a.keys()) == (before, [1, 2, 3])
    a("fsck", "--read-data")
    assert a.insert(4)["rows"] == 1
