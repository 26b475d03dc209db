"""`frostline demo --replicas`: three machines, one of them lost, told by the commands that a user would type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiering.cli import main as cli


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
