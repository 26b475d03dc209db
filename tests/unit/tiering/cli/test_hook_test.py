"""Hooks that can never work are named before anything fails, and parts outside of their policy, too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.homes import Home

NEVER: dict[str, Any] = {
    "no-program": {"command": ["/no/such/program"]},
    "private": {"url": "https://10.1.2.3/x"},
}


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "a", capsys)


def configure(home: Home, **changes: Any) -> None:
    raw = yaml.safe_load(home.configuration.read_text())
    home.configuration.write_text(json.dumps({**raw, **changes}))


@pytest.mark.parametrize("name", NEVER)
def test_a_hook_that_can_never_work_is_named(home: Home, name: str) -> None:
    home.create()
    configure(home, hooks={"x": NEVER[name]})
    home("config", "validate")
    assert "hook x cannot work" in home.error
    (problem,) = [one for one in home.json("doctor", code=4)["findings"] if one["level"] == "problem"]
    assert problem["subject"] == "hook x"
    home("hook", "test", "x", code=13)


def test_a_hook_is_tried_once(home: Home, tmp_path: Path) -> None:
    """With an event of the first kind that it hears of."""
    file = tmp_path / "heard"
    reads = [sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())", str(file)]
    configure(home, hooks={"x": {"command": reads, "events": ["backup"]}, "bad": {"command": ["false"]}})
    home("hook", "test", "x", "-n")
    assert not file.exists()
    assert "accepted the test event" in home("hook", "test", "x")
    event = json.loads(file.read_text())
    assert (event["event"], event["where"]) == ("backup", "hook test")
    home("hook", "test", "bad", code=5)
    home("hook", "test", "other", code=10)
    home("config", "validate")
    assert home.error == ""


def test_parts_on_a_disk_that_the_policy_lost_are_named(home: Home) -> None:
    home.create()
    home.insert(1)
    raw = yaml.safe_load(home.configuration.read_text())
    disks = {**raw["disks"], "other": {"type": "local", "path": str(home.path / "other")}}
    text = json.dumps(raw["policies"]).replace('"ssd"', '"other"')
    configure(home, disks=disks, policies=json.loads(text))
    home("status")
    assert "not name the disk ssd" in home.error
    found = [one for one in home.json("doctor")["findings"] if one["check"] == "policy"]
    assert [(one["subject"], one["level"]) for one in found] == [("table d.t", "warning")]
