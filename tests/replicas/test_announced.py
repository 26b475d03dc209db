"""A replica is there for the others as soon as its daemon is, and is dropped by nobody then."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.replicas.machines import Machine, Machines
from tiering.cli import main as cli
from tiering.config.settings import KeeperConfig
from tiering.daemon.status import read_status
from zerocopy.keeper.client import Keeper
from zerocopy.replica.nodes import TableNodes

COMMAND = (sys.executable, "-m", "tiering.cli.main")
TABLE = TableNodes("/tables/01/d.t")
_PATIENCE_SECONDS = 200


@pytest.fixture
def shared_url() -> str:
    return ""


@contextmanager
def daemon(machine: Machine, keeper: KeeperConfig) -> Iterator[None]:
    """One that has made its first pass, and makes none by itself for an hour."""
    machine.write_configuration(keeper, daemon={"tick_seconds": 3600.0})
    process = subprocess.Popen([*COMMAND, "-c", str(machine.configuration), "daemon", "run"])
    try:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not read_status(machine.path / "state").ticks:
            assert process.poll() is None
            assert time.monotonic() < end, "it did not begin"
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.in_turn
def test_a_new_table_is_announced_and_followed_at_once(
    machine: Machines, settings: KeeperConfig, keeper: Keeper
) -> None:
    a, b = machine("a"), machine("b")
    with daemon(a, settings), daemon(b, settings):
        a.create()
        b.join()
        assert {one["replica"]: one["active"] for one in a.json("replica", "status", "d.t")["replicas"]} == {
            "a": True,
            "b": True,
        }
        source = a.path / "one.csv"
        source.write_text("k\n1\n")
        a("insert", "d.t", str(source), "--quorum", "2")
        assert b.keys() == [1]


@pytest.mark.in_turn
def test_a_converted_table_is_announced_at_once(machine: Machines, settings: KeeperConfig, keeper: Keeper) -> None:
    a = machine("a")
    with daemon(a, settings):
        a("table", "create", "d.t", "--column", "k:int64", "--order-by", "k")
        a("table", "alter", "d.t", "--replicated")
        assert keeper.exists(TABLE.replica("a").is_active)


def test_who_answers_is_not_dropped_though_keeper_is_silent(a: Machine, b: Machine, keeper: Keeper) -> None:
    """Keeper says nothing of the replica, and its process answers."""
    with b.serving():
        keeper.delete(TABLE.replica("b").is_active)
        a("replica", "drop", "d.t", "b", code=13)
        assert "replica b is not gone" in a.error
    a("replica", "drop", "d.t", "b")
    assert keeper.children(TABLE.replicas) == ["a"]


def test_another_replica_at_the_address_is_not_taken_for_it(a: Machine, b: Machine, keeper: Keeper) -> None:
    """The replica that was there is gone."""
    with a.serving():
        keeper.set(TABLE.replica("b").host, keeper.get(TABLE.replica("a").host).data)
        a("replica", "drop", "d.t", "b")


def test_nobody_is_asked_to_forget_a_replica_that_does_not_exist(
    a: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ((), ("--dry-run",)):
        assert cli.run(["-c", str(a.configuration), "replica", "drop", "d.t", "zz", *more]) == 10
        assert "d.t has no replica zz" in capsys.readouterr().err
    assert cli.run(["-c", str(a.configuration), "replica", "restore", "d.t"]) == 13
    assert "--dry-run" not in capsys.readouterr().err  # it has none
