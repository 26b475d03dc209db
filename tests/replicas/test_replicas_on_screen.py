"""The dashboard's screen of replicas: the numbers of `replica status`, of real replicas and a real Keeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.machines import Machine
from tests.tui.pilot import Driver, drive
from tiering.config.settings import KeeperConfig


def test_replicas_are_shown_and_synced(
    tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = Machine(tmp_path, "a", settings, capsys), Machine(tmp_path, "b", settings, capsys)
    a.create()
    b.join()
    a.insert(1, 2)

    async def story(driver: Driver) -> None:
        await driver.press("minus")
        expected = driver.beside(b, "replica", "status", code=4)["replicas"]
        assert {one["replica"]: one["behind"] for one in expected} == {"a": 1, "b": 1}
        await driver.lists(sorted(map(str, expected)), lambda rows: sorted(map(str, rows)))
        await driver.press("y")
        await driver.until(
            lambda: driver.told == ["d.t: 1 part fetched, 0 parts merged.\n$ frostline replica sync d.t"]
        )
        await driver.lists({"a": 1, "b": 0}, lambda rows: {row["replica"]: row["behind"] for row in rows})
        await driver.press("w")
        await driver.sees("frostline replica queue d.t", "Nothing waits here.")
        await driver.press("escape")

    with a.serving():
        drive(b, story)
    assert b.keys() == [1, 2]


def test_a_keeper_that_does_not_answer_is_said_and_what_is_known_here_stays(
    tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Machine(tmp_path, "a", settings, capsys)
    a.create()
    gone = KeeperConfig(hosts=("127.0.0.1:1",), root=settings.root, request_timeout_seconds=0.2)
    a.write_configuration(gone)

    async def story(driver: Driver) -> None:
        await driver.press("minus")
        await driver.sees("d.t: ", "127.0.0.1:1")
        await driver.lists([("d.t", "a")], lambda rows: [(row["table"], row["replica"]) for row in rows])

    drive(a, story)
