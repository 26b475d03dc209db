"""A replica whose ZooKeeper lags behind the others: what it reads is old, and what must be exact is asked for anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.replicas.keeper.ensemble import Ensemble, ensemble
from tests.replicas.machines import Machine
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from zerocopy.execution import work
from zerocopy.keeper.client import Keeper
from zerocopy.replica.connections import connections

pytestmark = pytest.mark.in_turn

LOG = "/tables/01/d.t/log"


@pytest.fixture
def shared_url() -> str:
    return ""


@pytest.fixture
def three(zookeeper: int, tmp_path: Path) -> Iterator[Ensemble]:
    with ensemble(tmp_path / "ensemble") as made:
        yield made


@pytest.fixture
def both(
    three: Ensemble, settings: KeeperConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[Machine, Machine]:
    """One asks the leader, the other one the follower."""
    ahead, behind = (msgspec.structs.replace(settings, hosts=(one,)) for one in (three.leader, three.follower))
    with Keeper(ahead) as keeper:
        keeper.make_path("/")
    a, b = Machine(tmp_path, "a", ahead, capsys), Machine(tmp_path, "b", behind, capsys)
    a.create()
    b.join()
    return a, b


def meanwhile(three: Ensemble, work_: Callable[[], Any]) -> Any:
    """What comes of work that begins while the follower lags and asks it to catch up; it is let when it was asked."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work_())
        except BaseException as error:
            found.append(error)

    three.line.asked.clear()
    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not three.line.asked.wait(0.05):
        pass
    three.line.release()
    thread.join()
    (one,) = found
    if isinstance(one, BaseException):
        raise one
    return one


def names(store: Store) -> list[str]:
    """The log as the machine's server has it."""
    return connections(store.context).keeper.children(LOG)


def test_a_sync_waits_until_its_server_has_what_was_acknowledged(
    three: Ensemble, both: tuple[Machine, Machine]
) -> None:
    a, b = both
    with a.serving(), b.serving() as store:
        work.sync(store.context, store.definition("d.t"))
        with three.line.hold():
            a.insert(1)
            assert names(store) == [], "the follower does not lag"
            done = meanwhile(three, lambda: work.sync(store.context, store.definition("d.t")))
        assert done.fetched == ["all_0_0_0"]


def test_a_sequential_read_does_not_miss_what_a_quorum_has(three: Ensemble, both: tuple[Machine, Machine]) -> None:
    a, b = both
    with a.serving(), b.serving() as store:
        work.sync(store.context, store.definition("d.t"))
        with three.line.hold():
            a.insert(1)
            meanwhile(three, lambda: work.read_all(store.context, store.definition("d.t")))
        store.refresh()
        assert [part.part.name for part in store.parts("d.t")] == ["all_0_0_0"]


def test_what_is_agreed_upon_by_an_old_log_is_not(three: Ensemble, both: tuple[Machine, Machine]) -> None:
    """An alter and a merge of the other one come between: neither is overwritten."""
    a, b = both
    with a.serving(), b.serving() as store:
        a.insert(1)
        a.insert(2)
        work.sync(store.context, store.definition("d.t"))
        with three.line.hold():
            a("merge", "d.t", "--final")
            a("table", "alter", "d.t", "--add-column", "more:int64")
            meanwhile(three, lambda: work.drop_partition(store.context, store.definition("d.t"), "all", "test"))
        with Keeper(a_settings(a)) as keeper:
            assert len(keeper.children(LOG)) == 5
    a.sync()
    assert a.keys() == b.keys() == []
    assert a.json("table", "show", "d.t")["version"] == b.json("table", "show", "d.t")["version"]


def a_settings(one: Machine) -> KeeperConfig:
    with Store.open(one.configuration) as store:
        return store.context.config.keeper
