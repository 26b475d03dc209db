"""Keeper loses its data, or is set back to an older state: nobody writes until its nodes are put back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from oplog.errors import ReadOnly
from tests.replicas.machines import Machine, Machines
from tests.soak.keeper_server import KeeperServer
from tiering.config.settings import KeeperConfig
from zerocopy.execution import work
from zerocopy.keeper.client import Keeper
from zerocopy.replica.nodes import TableNodes

TABLE = TableNodes("/tables/01/d.t")


def restore(one: Machine, *more: str, code: int = 0) -> dict[str, object]:
    rebuilt = one.json("replica", "restore", "d.t", *more, code=code)["rebuilt"]
    assert isinstance(rebuilt, dict)
    return rebuilt


def agree(*machines: Machine, keys: list[int]) -> None:
    """All have the same, nobody finds anything wrong."""
    for one in machines:
        assert one.keys() == keys
        one("fsck", "--read-data")
    assert {tuple(sorted(one.files())) for one in machines} == {tuple(sorted(machines[0].files()))}


def detached(one: Machine) -> list[str]:
    return [place.name for place in one.path.glob("ssd/store/*/*/detached/*")]


@pytest.mark.in_turn
def test_all_nodes_come_back_out_of_what_the_replicas_have(
    a: Machine, b: Machine, machine: Machines, keeper: Keeper
) -> None:
    """What each has alone, a merge that one has not done, numbers, digests, and a replica that comes afterwards."""
    for key in (1, 2):
        a.insert(key)
    with a.serving():
        b.sync()
    a("merge", "d.t", "--final")
    a.insert(3)
    b.insert(4)
    keeper.delete_tree("/tables")
    for one, keys in ((a, [1, 2, 3]), (b, [1, 2, 4])):
        one.insert(9, code=13)
        assert "Keeper knows nothing of the table" in one.error
        assert "replica restore d.t" in one.error
        assert one.keys() == keys
    assert restore(a, code=3)["waits_for"] == ["b"]
    assert "1 of 2 replicas of d.t have not reported" in a.error
    assert "failed" not in a.error
    for one in (a, b):
        one.insert(9, code=13)
    a("table", "drop", "d.t", code=13)
    c = machine("c")
    c("table", "create", "d.t", "--replicated", "--policy", "local", code=13)
    rebuilt = restore(b)
    assert (rebuilt["waits_for"], rebuilt["replicas"], rebuilt["lacking"], rebuilt["refused"]) == ([], ["a", "b"], 3, 0)
    with a.serving():
        b.sync()
    with b.serving():
        a.sync()
    assert b.insert(3)["duplicates"] == a.insert(4)["duplicates"] == 1
    assert b.insert(5)["parts"] == ["all_4_4_0"]
    with b.serving():
        a.sync()
        c.join("--policy", "local")
        assert c.sync()["cloned"]
    agree(a, b, c, keys=[1, 2, 3, 4, 5])
    assert detached(a) == detached(b) == []


def test_nobody_drops_what_others_may_lack(a: Machine, b: Machine, keeper: Keeper) -> None:
    a.insert(1)
    with a.serving():
        b.sync()
    b.insert(2)
    files = b.files()
    keeper.delete_tree("/tables")
    b("table", "drop", "d.t", code=13)
    assert "Keeper knows nothing of d.t" in b.error
    assert "replica restore d.t" in b.error
    assert b.files() == files
    restore(b, "--without", "a")
    b("table", "drop", "d.t")
    assert b.files() == {}


@pytest.mark.in_turn
def test_what_only_a_latecomer_had_is_set_aside(a: Machine, b: Machine, keeper: Keeper) -> None:
    """Nobody waits for a replica that comes late."""
    a.insert(1)
    with a.serving():
        b.sync()
    b.insert(2)
    keeper.delete_tree("/tables")
    a("replica", "restore", "d.t", "--without", "b", "--without", "bb", code=10)  # misspelt: nothing begins
    assert not keeper.exists("/tables")
    assert restore(a, "--without", "b")["waits_for"] == []
    a.insert(3)
    b.insert(9, code=13)
    with a.serving():
        restored = b.json("replica", "restore", "d.t")
    assert restored["rebuilt"]["came_late"]
    assert restored["set_aside"] == ["all_1_1_0"]
    assert detached(b) == ["unknown_all_1_1_0"]
    agree(a, keys=[1, 3])
    assert b.keys() == [1, 3]
    b("fsck", "--read-data")


def test_of_two_contents_of_a_part_that_of_who_has_most_counts(a: Machine, b: Machine, keeper: Keeper) -> None:
    for key in (1, 2):
        a.insert(key)
    with a.serving():
        b.sync()
    (place,) = (b.path / "ssd").glob("store/*/*/all_0_0_0/part.json")
    said = json.loads(place.read_bytes())
    place.write_text(json.dumps({**said, "created": "2020-01-01T00:00:00Z"}))
    a.insert(3)
    keeper.delete_tree("/tables")
    restore(a, code=3)
    with a.serving():
        assert restore(b)["refused"] == 1
    with a.serving():  # says where it is only now
        b.sync()
    assert detached(b) == ["unknown_all_0_0_0"]
    assert b.keys() == a.keys() == [1, 2, 3]
    b("fsck", "--read-data")


def test_a_table_that_keeper_has_is_not_built_anew(a: Machine) -> None:
    a.insert(1)
    a("replica", "restore", "d.t", "--from-parts", code=13)
    assert a.insert(2)["rows"] == 1


def test_a_taken_over_entry_that_is_gone_makes_it_read_only(a: Machine, b: Machine, keeper: Keeper) -> None:
    a.insert(1)
    with a.serving():
        b.sync()
    last = f"{TABLE.log}/{keeper.children(TABLE.log)[-1]}"
    entry = keeper.get(last)
    keeper.delete(last)
    b.insert(2, code=13)
    assert "set back to an older state" in b.error
    keeper.create(last, entry.data.replace(b'"a"', b'"b"'))
    b("replica", "sync", "d.t", code=13)
    keeper.set(last, entry.data)
    assert b.insert(2)["rows"] == 1


def test_a_number_that_keeper_gives_again_is_not_taken(a: Machine, keeper: Keeper) -> None:
    a.insert(1)
    keeper.delete_tree(f"{TABLE.path}/block_numbers/all")
    a.insert(2, code=13)
    assert "gives the number of all_0_0_0" in a.error
    assert keeper.children(f"{TABLE.path}/block_numbers/all") == []
    assert a.keys() == [1]


def test_an_insert_that_keeper_forgot_at_once_is_not_set_aside(a: Machine, b: Machine, keeper: Keeper) -> None:
    """It was acknowledged: its rows stay in the table, whichever verb comes next. Nobody had taken it over yet."""
    a.insert(1)
    with a.serving():
        b.sync()
    pointer = keeper.get(TABLE.replica("a").log_pointer).data
    a.insert(2)
    assert keeper.get(TABLE.replica("a").log_pointer).data == pointer, "or it was taken over"
    (forgotten,) = set(keeper.children(TABLE.log)) - {"log-0000000000"}
    keeper.delete_tree(f"{TABLE.log}/{forgotten}")
    keeper.delete_tree(TABLE.replica("a").part("all_1_1_0"))
    verbs = ["replica sync d.t", "replica restore d.t", "merge d.t --final", "table drop d.t"]
    for words in map(str.split, verbs):
        a(*words, code=13)
        assert f"entry {int(forgotten[-10:])} of the log" in a.error
    assert a.keys() == [1, 2]
    assert detached(a) == []
    assert restore(a, "--from-parts", code=3)["waits_for"] == ["b"]
    assert restore(b)["waits_for"] == []
    with a.serving():
        b.sync()
    agree(a, b, keys=[1, 2])


@pytest.mark.in_turn
def test_a_session_outlives_the_data_of_its_server(tmp_path: Path) -> None:
    """A server that knows less than the client has seen refuses it for ever; one that begins anew is let in."""
    with KeeperServer(tmp_path / "keeper") as server:
        way = KeeperConfig(hosts=(f"127.0.0.1:{server.port}",), session_timeout_seconds=2, request_timeout_seconds=120)
        with Keeper(way) as session:
            session.make_path("/")
            for number in range(20):
                session.create(f"/node-{number}")
            server.kill()
            shutil.rmtree(tmp_path / "keeper" / "data")
            server.start()
            assert session.find("/node-1") is None
            session.make_path("/")
            session.create("/node-1")


@pytest.mark.in_turn
def test_a_keeper_with_yesterdays_data_deletes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], zookeeper: int
) -> None:
    """A real server, stopped, its directory copied, and brought back; a machine's session lives through it.
    It is built again from what the replicas have."""
    place, server = tmp_path / "keeper", None
    server = KeeperServer(place)
    with server:
        way = KeeperConfig(
            hosts=(f"127.0.0.1:{server.port}",),
            root="/test",
            session_timeout_seconds=2,
            request_timeout_seconds=30,
        )
        a, b = (Machine(tmp_path, name, way, capsys) for name in ("a", "b"))
        a.create("--policy", "local")
        b.join("--policy", "local")
        for key in (1, 2):
            a.insert(key)
        with a.serving():
            b.sync()
        server.kill()
        shutil.copytree(place, tmp_path / "yesterday")
        server.start()
        with a.serving() as living:
            a("merge", "d.t", "--final")
            a.insert(3)
            b.sync()
            b.insert(4)
            files = {one.name: one.files() for one in (a, b)}
            server.kill()
            shutil.rmtree(place)
            shutil.copytree(tmp_path / "yesterday", place)
            server.start()
            for one in (a, b):
                one.insert(9, code=13)
                assert "set back to an older state" in one.error
                one("replica", "sync", "d.t", code=13)
                one("tick", "--only", "merges", code=1)
                assert one.files() == files[one.name]
            with pytest.raises(ReadOnly, match="set back to an older state"):
                work.sync(living.context, living.definition("d.t"))
            assert restore(a, "--from-parts", code=3)["waits_for"] == ["b"]
            assert restore(b)["waits_for"] == []
            assert [one.queued.entry.brings for one in work.sync(living.context, living.definition("d.t")).postponed]
            b.sync()
        with b.serving():
            a.sync()
        assert b.insert(3)["duplicates"] == 1
        agree(a, b, keys=[1, 2, 3, 4])
