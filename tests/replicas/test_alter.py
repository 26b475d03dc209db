"""Definitions of replicated tables that change: everywhere, whoever was away, with inserts and merges in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oplog.errors import Damaged, Transient
from tests.replicas.machines import Machine, Machines
from tiering.catalog import tables
from zerocopy.execution import cleaning, dropping, perform
from zerocopy.replica import entries

PAST = "2013-01-31 12:00:00"


def alter(one: Machine, *change: str, code: int = 0) -> Any:
    return one("table", "alter", "d.t", *change, code=code)


def version(one: Machine) -> tuple[int, str]:
    """Of the definition that the machine goes by, and what Keeper says of it."""
    told = one.json("keeper", "get", f"/tables/01/d.t/replicas/{one.name}/metadata_version")
    return one.json("table", "show", "d.t")["version"], told["data"]


def rows(one: Machine) -> list[list[Any]]:
    found: list[list[Any]] = one.json("query", "SELECT k, x FROM d.t ORDER BY k")["rows"]
    return found


def insert(one: Machine, key: int, x: str) -> None:
    source = one.path / "rows.csv"
    source.write_text(f"k,x\n{key},{x}\n")
    one("insert", "d.t", str(source))


@pytest.mark.in_turn
def test_all_replicas_follow_with_inserts_in_between(a: Machine, b: Machine, machine: Machines) -> None:
    """One part in the bucket, one of the old columns after the alter, one of the new; one replica joins later."""
    a.insert(1)
    with a.serving():
        b.sync()
        a.move("all_0_0_0")
        b.sync()
    alter(a, "--add-column", "x:string", "--default", "old")
    alter(a, "--setting", "deduplication_window=7")
    assert version(a) == (3, "3")
    insert(a, 3, "new")
    with a.serving():
        synced = b.sync()
    assert (synced["altered"], synced["fetched"], synced["postponed"]) == (3, ["all_1_1_0"], [])
    assert version(b) == (3, "3")
    late = machine("late")
    late.join("--policy", "cold")
    insert(b, 4, "newer")
    with b.serving():
        a.sync()
        late.sync()
    assert [merge["output"] for merge in a.json("merge", "d.t", "--final")["merges"]] == ["all_1_2_1"]
    for one in (b, late):
        assert one.sync()["merged"] == ["all_1_2_1"]
    for one in (a, b, late):
        assert rows(one) == [[1, "old"], [3, "new"], [4, "newer"]]
        assert one.files() == a.files()
        assert version(one) == (3, "3")
        one("fsck", "--read-data")
    alter(b, "--drop-column", "x")
    a.sync()
    assert a.keys() == b.keys() == [1, 3, 4]


def test_what_was_inserted_by_the_old_definition_stays(tmp_path: Path, machine: Machines) -> None:
    """Each on its own disks: the second replica knows nothing of the change when it inserts."""
    a, b = machine("a"), machine("b")
    a.create("--policy", "local")
    b.join("--policy", "local")
    alter(a, "--add-column", "x:string", "--default", "old")
    b.insert(2)
    insert(a, 1, "new")
    with a.serving():
        b.sync()
    with b.serving():
        a.sync()
    assert rows(a) == rows(b) == [[1, "new"], [2, "old"]]
    a("merge", "d.t", "--final")
    b.sync()
    assert a.files() == b.files()


def test_an_insert_that_is_repeated_after_a_change_is_the_same(machine: Machines) -> None:
    """Its answer was lost; whoever it is repeated at, told of the change or not, has one and the same block."""
    a, b = machine("a"), machine("b")
    a.create("--policy", "local")
    b.join("--policy", "local")
    assert a.insert(1, 2)["rows"] == 2
    alter(a, "--add-column", "x:string", "--default", "old")
    alter(a, "--widen-column", "k:decimal(20, 1)")
    assert version(b) == (1, "1")
    assert [one.insert(1, 2)["duplicates"] for one in (a, b)] == [1, 1]
    b.sync(code=1)
    assert version(b) == (3, "3")
    assert b.insert(1, 2)["duplicates"] == 1
    assert b.insert(1, 3)["rows"] == 2
    with a.serving():
        b.sync()
    assert [float(row[0]) for row in rows(b)] == [1, 1, 2, 3]


def test_one_of_two_changes_at_once_is_refused(a: Machine, b: Machine) -> None:
    b_local = b.json("table", "show", "d.t")["version"]
    alter(a, "--add-column", "x:string")
    assert b_local == 1
    alter(b, "--add-column", "y:string")  # the bucket has told it of the first
    assert version(b) == (3, "3")
    assert a.sync()["altered"] == 3
    alter(a, "--policy", "local", code=13)
    assert "each machine has its own" in a.error
    assert version(a) == (3, "3")


def test_who_was_not_told_yet_is_refused(machine: Machines) -> None:
    a, b = machine("a"), machine("b")
    a.create("--policy", "local")
    b.join("--policy", "local")
    alter(a, "--add-column", "x:string")
    alter(b, "--add-column", "y:string", code=1)
    assert "replica sync d.t" in b.error
    b.sync()
    alter(b, "--add-column", "y:string")
    assert version(b) == (3, "3")


def test_what_comes_after_waits_until_it_is_done(a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    alter(a, "--add-column", "x:string")
    insert(a, 1, "new")
    with a.serving():
        with monkeypatch.context() as patch:

            def away(*_: Any) -> None:
                raise Transient("the disk is away")

            patch.setattr(perform.altering, "catch_up", away)
            postponed = b.sync(code=1)["postponed"]
        assert [one["reason"].rpartition("an earlier ")[2] for one in postponed] == [
            "the disk is away",
            "definition of the table",
        ]
        assert b.sync()["fetched"] == ["all_0_0_0"]
    assert rows(b) == [[1, "new"]]


def test_who_becomes_whole_has_the_newest_definition(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry of the log is gone."""
    monkeypatch.setattr(cleaning, "KEEP_FEWEST", 1)
    monkeypatch.setattr(cleaning, "KEEP_MOST", 2)
    a, b = machine("a"), machine("b")
    a.create("--policy", "local")
    b.join("--policy", "local")
    alter(a, "--add-column", "x:string", "--default", "old")
    for key in range(4):
        insert(a, key, "new")
    a("tick", "--only", "merges")
    with a.serving():
        assert b.sync()["cloned"] == "a"
    assert version(b) == (2, "2")
    assert rows(b) == rows(a)


def test_two_replicas_write_the_bucket_at_the_same_moment(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is first with the definition there, between this one's look and its commit."""
    original = tables.write_definition
    disks: list[list[str]] = []

    def the_other_one_first(*arguments: Any, **options: Any) -> Any:
        disks.append(list(options["disks"]))
        if len(disks) == 1:
            assert b.sync()["altered"] == 2
        return original(*arguments, **options)

    monkeypatch.setattr(tables, "write_definition", the_other_one_first)
    alter(a, "--add-column", "x:string", "--default", "old")
    assert disks[:2] == [["s3"], ["s3"]]
    assert version(a) == version(b) == (2, "2")
    insert(a, 1, "new")
    for one in (a, b):
        assert one.sync(code=1 if one is b else 0)["altered"] is None
        one("fsck")


def test_nobody_deletes_by_a_rule_that_is_gone(machine: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is taken back on one replica while the other one is about to delete by it."""
    a, b = machine("a"), machine("b")
    columns = ("--column", "ts:timestamp", "--column", "k:int64", "--order-by", "k")
    a("table", "create", "d.t", *columns, "--replicated", "--policy", "local", "--ttl", "1d on ts delete")
    b.join("--policy", "local")
    source = a.path / "rows.csv"
    source.write_text(f"ts,k\n{PAST},1\n")
    a("insert", "d.t", str(source))
    with a.serving():
        b.sync()
    agree = dropping.say
    agreed: list[bool] = []

    def altered_first(*arguments: Any) -> bool:
        if not agreed:
            alter(a, "--ttl", "")
        agreed.append(agree(*arguments))
        return agreed[-1]

    monkeypatch.setattr(dropping, "say", altered_first)
    b("tick", "--believe-clock")
    assert agreed == [False]
    assert b.sync()["altered"] is None or version(b) == (2, "2")
    b("tick", "--believe-clock")
    assert agreed == [False]
    assert a.keys() == b.keys() == [1]


def test_an_entry_of_a_version_that_cannot_be_is_damaged() -> None:
    said = b'{"type":"alter","time":"2024-01-01T00:00:00Z","replica":"a","version":%d,"reason":"r"}'
    assert entries.decode(said % 2, path="/log-1").brings == "version 2"
    with pytest.raises(Damaged, match="version is -1"):
        entries.decode(said % -1, path="/log-1")
