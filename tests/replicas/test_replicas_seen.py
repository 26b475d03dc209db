"""Replicas as they are shown: the dashboard's screen of them, with the numbers of `replica status`; and `frostline demo
--replicas`, three machines of which one is lost, told by the commands that a user would type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.replicas.machines import Machine
from tests.tui.pilot import Driver, drive
from tiering.cli import main as cli
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
        await driver.sees("automatic fetches are off here: no daemon runs")
        await driver.lists(_but_the_time(expected), _but_the_time)
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


def test_a_silent_keeper_is_said_and_what_is_here_stays(
    tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is known here stays on the screen."""
    a = Machine(tmp_path, "a", settings, capsys)
    a.create()
    gone = KeeperConfig(hosts=("127.0.0.1:1",), root=settings.root, request_timeout_seconds=0.2)
    a.write_configuration(gone)

    async def story(driver: Driver) -> None:
        await driver.press("minus")
        await driver.sees("d.t: ", "127.0.0.1:1")
        await driver.lists([("d.t", "a")], lambda rows: [(row["table"], row["replica"]) for row in rows])

    drive(a, story)


def _but_the_time(rows: list[Any]) -> list[str]:
    """A lag of seconds grows while one looks."""
    return sorted(str({**row, "lag_seconds": None}) for row in rows)


@pytest.mark.slow
def test_the_story_of_three_machines(zookeeper: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`zookeeper` says that there is a Java; the story runs one of its own."""
    assert cli.run(["demo", str(tmp_path / "demo"), "--replicas", "3", "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["replicas"], told["rows"], told["parts"]) == (["a", "b", "c"], 4000, ["all_0_2_1", "all_3_3_0"])
    assert "1 part freed" in captured.err
    assert "silent" in captured.err


def test_one_machine_is_no_story_of_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["demo", str(tmp_path / "demo"), "--replicas", "1"]) == 2
    assert "--replicas 3" in capsys.readouterr().err


def test_without_java_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert cli.run(["demo", str(tmp_path / "demo"), "--replicas", "3"]) == 2
    assert "install a Java runtime" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
