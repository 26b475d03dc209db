"""`top --once` and `top --json`: the overview for scripts, and for people without a terminal."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.homes import Home
from tests.tui.conftest import DUE


@pytest.mark.parametrize("verb", ["top", "dashboard"])
def test_the_overview_has_the_numbers_of_the_verbs(home: Home, verb: str) -> None:
    home.to_bucket(table="d.small")
    document = home.json(verb)
    status = home.json("status")
    assert document["status"] == status
    assert _without_room(document["disks"]) == _without_room(home.json("disks")["disks"])
    assert document["moves"] == home.json("moves", "list", "--active")["moves"] == []
    planned = [{key: value for key, value in move.items() if key != "cost"} for move in home.json("plan")["moves"]]
    assert document["due"] == planned
    assert [move["part"] for move in planned] == [DUE]
    assert document["trouble"] == []


def test_once_prints_text(home: Home) -> None:
    text = home("top", "--once")
    assert "2 tables, 3 parts, 13 rows" in text
    assert f"due        d.events {DUE}  ssd -> s3: " in text
    assert "no daemon runs" in text
    assert "!" not in text


def test_trouble_comes_first_with_the_command_that_goes_on(home: Home) -> None:
    home("pause", "d.events", "--moves")
    assert home("top", "--once").startswith("! moves of d.events are paused  [frostline resume d.events]\n")
    shutil.rmtree(home.path / "ssd")
    document = home.json("top")
    assert document["broken_disks"][0]["disk"] == "ssd"
    assert document["trouble"][0]["what"] == document["broken_disks"][0]["what"]
    assert document["trouble"][0]["command"] == "frostline doctor"


def test_without_a_terminal_it_says_what_to_ask_for(home: Home) -> None:
    home("top", code=2)
    assert "--once prints the overview as text" in home.error


def _without_room(disks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Others write to the file system of the tests meanwhile."""
    return [{name: value for name, value in disk.items() if name != "free_bytes"} for disk in disks]
