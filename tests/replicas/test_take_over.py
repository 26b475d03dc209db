"""A replica dies while it moves parts to what all share: the others hear of it, and one takes over at once (P8)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from tests.replicas.machines import Machine, Machines, both_with_an_old_part
from tiering.config.settings import DaemonConfig, KeeperConfig
from tiering.daemon import daemon
from tiering.engine.maintenance import TickReport
from tiering.engine.store import Store
from zerocopy.execution import following
from zerocopy.execution.moving import MoveClaim
from zerocopy.keeper.client import Keeper
from zerocopy.keeper.operations import CreateNode, Set
from zerocopy.replica.nodes import TableNodes

TABLE = TableNodes("/tables/01/d.t")
FIRST = "all_0_0_0"
HOURLY = DaemonConfig(tick_seconds=3600)


@contextmanager
def another_mover(settings: KeeperConfig) -> Iterator[Keeper]:
    """The session of a replica that moves the part."""
    claim = MoveClaim(id="1", replica="c", token="of another one", parts=(FIRST,))
    with Keeper(settings) as session:
        alive = CreateNode(TABLE.alive(claim.id), ephemeral=True)
        session.multi([Set(TABLE.mover, msgspec.json.encode(claim)), alive])
        yield session


class Passes:
    """The daemon of a machine, which makes one pass when it starts and then none for an hour."""

    def __init__(self, machine: Machine) -> None:
        self.stop = threading.Event()
        self.first, self.moved = threading.Event(), threading.Event()
        self._machine = machine
        self._thread = threading.Thread(target=self._run, name=f"daemon of {machine.name}")

    def _run(self) -> None:
        with Store.open(self._machine.configuration) as store:
            store.believe_clock()
            daemon.run(store, HOURLY, self.stop, on_tick=self._ticked)

    def _ticked(self, report: TickReport) -> None:
        if report.moves.moved:
            self.moved.set()
        self.first.set()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self.stop.set()
            self._thread.join()


@pytest.fixture(autouse=True)
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks who was not told."""
    monkeypatch.setattr(following, "_LOOK_SECONDS", 3600.0)


def test_a_daemon_takes_over_when_the_mover_is_gone(machine: Machines, settings: KeeperConfig) -> None:
    """With its session: no pass is waited for."""
    _, b = both_with_an_old_part(machine)
    passes = Passes(b)
    with another_mover(settings) as dying, passes.running():
        assert passes.first.wait(60)
        assert not passes.moved.is_set()
        dying.close()
        assert passes.moved.wait(60)
    assert b.disks() == {FIRST: "s3"}


def test_a_mover_that_was_gone_before_the_daemon_came_is_found(machine: Machines, settings: KeeperConfig) -> None:
    _, b = both_with_an_old_part(machine)
    with another_mover(settings):
        pass
    due = threading.Event()
    with b.serving(follows=True, pass_due=due.set):
        assert due.wait(60)


def test_no_pass_is_due_for_a_mover_that_is_done(machine: Machines, settings: KeeperConfig) -> None:
    """Nor for one that begins: many moves are no reason for as many passes of everybody else."""
    a, b = both_with_an_old_part(machine)
    due = threading.Event()
    newer = a.path / "newer.csv"
    newer.write_text("k,ts\n2,2100-01-01T00:00:00\n")
    with a.serving(), b.serving(follows=True, pass_due=due.set):
        assert [move["part"] for move in a.json("tick", "--believe-clock")["moved"]] == [FIRST]
        a("insert", "d.t", str(newer), "--quorum", "2")  # b has it: it looked at the mover before it looked at the log
    assert b.disks() == {FIRST: "s3", "all_1_1_0": "ssd"}
    assert not due.is_set()
