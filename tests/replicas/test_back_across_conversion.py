"""A definition of before does not make a table a replica again, nor a plain one of a replicated one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.homes import Home
from tests.replicas.machines import Machine, Machines

FIRST = "all_1_1_0"


def head(machine: Machine) -> int:
    return int(machine.json("log", "s3", "--limit", "1")["entries"][0]["revision"])


@pytest.fixture
def a(machine: Machines) -> Machine:
    """Was a plain table, then a replica, and is plain again."""
    one = machine("a")
    one("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", "cold")
    one.insert(1)
    return one


def test_what_was_replicated_then_comes_back_as_no_replica(a: Machine) -> None:
    a("table", "alter", "d.t", "--replicated")
    replicated = head(a)
    a("table", "alter", "d.t", "--not-replicated")
    plain = head(a)
    for line in (("undo", "s3", str(plain)), ("restore", "s3", "--revision", str(replicated), "--apply")):
        a(*line, code=13)
        assert "d.t would bring back its definition" in a.error
        assert "table alter d.t --replicated" in a.error
    assert "would bring back" in a.json("restore", "s3", "--revision", str(replicated))["objection"]
    assert (head(a), a.json("table", "show", "d.t").get("keeper")) == (plain, None)
    assert a.insert(2)["rows"] == 1


def test_a_partition_from_replicated_times_joins_a_plain_table(a: Machine) -> None:
    a("table", "alter", "d.t", "--replicated")
    a("move", "d.t", "--part", FIRST, "--to-disk", "s3")
    replicated = head(a)
    a("table", "alter", "d.t", "--not-replicated")
    a("partition", "drop", "d.t", "all")
    assert a.keys() == []
    a("restore", "s3", "--revision", str(replicated), "--table", "d.t", "--partition", "all", "--apply")
    assert (a.keys(), a.json("table", "show", "d.t").get("keeper")) == ([1], None)


def test_what_was_plain_then_stays_a_replica(a: Machine) -> None:
    plain = head(a)
    a("table", "alter", "d.t", "--replicated")
    replicated = head(a)
    for line in (("undo", "s3", str(replicated)), ("restore", "s3", "--revision", str(plain), "--apply")):
        a(*line, code=13)
        assert "d.t is not possible here" in a.error
    assert (head(a), a.json("table", "show", "d.t")["keeper"]) == (replicated, "/tables/01/d.t")


def test_another_bucket_s_replica_does_not_become_one_here(
    a: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a home that is no replica; as a plain table it comes."""
    far = Home(tmp_path / "far", "far", capsys)
    a("move", "d.t", "--part", FIRST, "--to-disk", "s3")
    a("table", "alter", "d.t", "--replicated")
    copied = ("restore", "s3", "--from", a.bucket)
    assert "would bring back its definition" in far.json(*copied)["objection"]
    far(*copied, "--apply", code=13)
    assert "table alter --not-replicated" in far.error
    assert far.json("table", "list")["tables"] == []
    a("table", "alter", "d.t", "--not-replicated")
    far(*copied, "--apply")
    assert far("query", "SELECT k FROM d.t", "--output-format", "csv").split() == ['"k"', "1"]


def test_what_is_a_replica_here_takes_nothing_of_another_bucket(
    a: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = Home(tmp_path / "far", "far", capsys)
    a("move", "d.t", "--part", FIRST, "--to-disk", "s3")
    far("restore", "s3", "--from", a.bucket, "--apply")
    a("table", "alter", "d.t", "--replicated")
    replicated = head(a)
    a("restore", "s3", "--from", (tmp_path / "far" / "s3").as_uri(), "--apply", code=13)
    assert "d.t is not possible here" in a.error
    assert head(a) == replicated


def test_the_log_is_asked_where_the_store_cannot_be_opened(a: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from oplog.errors import Damaged
    from tiering.cli.frame.session import Session

    a("table", "alter", "d.t", "--replicated")
    replicated = head(a)
    a("table", "alter", "d.t", "--not-replicated")

    def broken(session: Session) -> None:
        raise Damaged("the journal cannot be read")

    monkeypatch.setattr(Session, "unrecovered", broken)
    a("restore", "s3", "--revision", str(replicated), "--apply", code=13)
    assert "d.t would bring back its definition" in a.error
