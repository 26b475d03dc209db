"""The disk of the ZooKeeper is full: nothing goes in, what is here is answered, and it goes on when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from oplog.errors import OutcomeUnknown
from tests.mounts import mounted
from tests.replicas.machines import Machine
from tests.soak.keeper_server import KeeperServer
from tiering.config.settings import KeeperConfig
from zerocopy.keeper.client import Keeper

pytestmark = pytest.mark.in_turn


@pytest.fixture
def shared_url() -> str:
    return ""


def test_inserts_are_refused_while_the_disk_of_keeper_is_full(
    zookeeper: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends then, as ZooKeeper does; a service manager starts it again."""
    with mounted(tmp_path / "disk", size="8m") as disk, KeeperServer(disk.path / "keeper") as server:
        settings = KeeperConfig(
            hosts=(f"127.0.0.1:{server.port}",), root="/full", session_timeout_seconds=10, request_timeout_seconds=4
        )
        with Keeper(settings) as keeper:
            keeper.make_path("/")
        a, b = Machine(tmp_path, "a", settings, capsys), Machine(tmp_path, "b", settings, capsys)
        a.create()
        b.join()
        a.insert(1)
        with a.serving():
            b.sync()
        disk.fill()
        with Keeper(settings) as keeper, pytest.raises(OutcomeUnknown):  # the page that its log ends in had room
            keeper.create("/large", bytes(100_000))
        a.insert(2, code=5)
        assert "Keeper" in a.error
        assert a.keys() == b.keys() == [1]
        assert {one["subject"] for one in a.json("doctor", code=4)["findings"] if one["level"] == "problem"} >= {
            "keeper"
        }
        disk.free()
        server.kill()
        server.start()
        assert a.insert(2)["rows"] + a.insert(3)["rows"] in (1, 2)  # the one that was refused may have come in
        with a.serving():
            b.sync()
        assert a.keys() == b.keys() == [1, 2, 3]
        for one in (a, b):
            one("fsck", "--read-data")
