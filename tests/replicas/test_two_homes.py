"""Two homes with one replica's name: a copy of a home has its token, and nothing but Keeper tells which of them lives.
Whose daemon is there keeps its node; the other one may only read, and is told why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.replicas.machines import Machine, Machines
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper, Node
from zerocopy.replica import identity
from zerocopy.replica.connections import connections

ACTIVE = "/tables/01/d.t/replicas/a/is_active"


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def copied(a: Machine, machine: Machines) -> Machine:
    """A copy of the home of a, with a part of it."""
    a.insert(1)
    made = machine("copied")
    for name in ("state", "ssd", "hdd"):
        shutil.copytree(a.path / name, made.path / name)
    return made


def active(keeper: Keeper) -> Node:
    keeper.sync()
    return keeper.get(ACTIVE)


@contextmanager
def held(settings: KeeperConfig, data: bytes) -> Iterator[None]:
    """As by a daemon that is gone, and of whose session Keeper does not know that yet."""
    with Keeper(settings) as other:
        other.create(ACTIVE, data, ephemeral=True)
        yield


def test_the_node_of_a_living_daemon_is_never_taken_away(a: Machine, copied: Machine, keeper: Keeper) -> None:
    """I9: else what each of the two takes over from the log the other one never does."""
    with a.serving() as store:
        alive = active(keeper)
        with copied.serving():
            copied.insert(2, code=13)
            assert "d.t can only be read here" in copied.error
            assert "is at work as replica a" in copied.error
            copied("replica", "sync", "d.t", code=13)
            assert copied.keys() == [1]
            assert active(keeper) == alive
        server = connections(store.context).server
        assert server is not None
        assert keeper.get("/tables/01/d.t/replicas/a/host").data.decode() == server.address
        assert a.insert(3)["parts"] == ["all_1_1_0"]
    with copied.serving():
        assert active(keeper).owner != alive.owner, "nobody is there any more"


def test_a_copy_joins_by_a_name_of_its_own(a: Machine, copied: Machine, keeper: Keeper) -> None:
    with a.serving():
        alive = active(keeper)
        copied("table", "drop", "d.t")
        assert active(keeper) == alive
        copied.join("--policy", "local", "--replica", "another")
        assert copied.sync()["fetched"] == ["all_0_0_0"]
        assert copied.insert(2)["parts"] == ["all_1_1_0"]
    with copied.serving():
        a.sync()
    assert a.keys() == copied.keys() == [1, 2]


def test_a_copy_drops_nothing_that_lies_in_a_bucket(
    tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would write the log of the one that lives."""
    bucket = (tmp_path / "bucket").as_uri() + "/"
    a = Machine(tmp_path, "a", settings, capsys, bucket, log="a")
    a.create("--policy", "cold")
    made = Machine(tmp_path, "copied", settings, capsys, bucket, log="a")
    for name in ("state", "ssd", "hdd"):
        shutil.copytree(a.path / name, made.path / name)
    with a.serving():
        made("table", "drop", "d.t", code=13)
        assert "delete this home" in made.error
        assert "table drop" not in made.error


def test_a_copy_drops_nothing_after_keeper_was_lost(a: Machine, copied: Machine, keeper: Keeper) -> None:
    """The daemon of the living replica has not said yet that it is there again."""
    keeper.delete_tree("/tables")
    a("replica", "restore", "d.t")
    assert not keeper.exists(ACTIVE)
    copied.insert(2, code=13)
    assert "another home put replica a" in copied.error
    copied("table", "drop", "d.t")
    assert keeper.exists("/tables/01/d.t/replicas/a")
    assert a.insert(3)["rows"] == 1
    with a.serving():
        assert not keeper.exists("/tables/01/d.t/replicas/a/home")
    assert a.keys() == [1, 3]


def test_a_home_says_that_it_is_the_one(a: Machine, copied: Machine, keeper: Keeper) -> None:
    """The one that put the nodes back is gone, or cannot be told any more: its machine was started since."""
    keeper.delete_tree("/tables")
    a("replica", "restore", "d.t")
    copied.insert(2, code=13)
    assert "'frostline replica restore d.t' here" in copied.error
    copied("replica", "restore", "d.t")
    assert copied.insert(2)["rows"] == 1
    a.insert(3, code=13)
    copied("table", "drop", "d.t")
    assert not keeper.exists("/tables/01/d.t")


def test_a_daemon_that_answers_keeps_its_replica(a: Machine, copied: Machine, keeper: Keeper) -> None:
    """Its session ended, and it has not said yet that it is there again."""
    with a.serving():
        keeper.delete_tree(ACTIVE)
        for one in (a, copied):
            one("table", "drop", "d.t", code=13)
            assert "its daemon answers at" in one.error
    assert a.keys() == copied.keys() == [1]


def test_what_an_earlier_daemon_of_this_home_left_is_taken_over(
    a: Machine, keeper: Keeper, settings: KeeperConfig
) -> None:
    """A restart waits for no session to end."""
    with a.serving() as store:
        left = active(keeper).data
    with held(settings, left):
        assert a.insert(1)["rows"] == 1
        with a.serving():
            found = json.loads(active(keeper).data)
        assert found["home"] == json.loads(left)["home"] == identity.home_of(store.context)
        assert found["session"] != json.loads(left)["session"]


@pytest.mark.parametrize("data", [b"", b"\xff", b'{"home": 1}'])
def test_who_does_not_say_where_it_works_is_not_taken_away(
    a: Machine, keeper: Keeper, settings: KeeperConfig, data: bytes
) -> None:
    with held(settings, data):
        with a.serving():
            assert active(keeper).data == data
        a.insert(1, code=13)
        assert "unknown state directory" in a.error
    assert a.insert(1)["rows"] == 1


def test_a_node_that_goes_with_no_session_is_nobodys(a: Machine, keeper: Keeper) -> None:
    keeper.create(ACTIVE, b"made by hand")
    assert a.insert(1)["rows"] == 1
    with a.serving():
        assert active(keeper).owner
