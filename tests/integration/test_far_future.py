"""A row that is dated far ahead keeps its part from every TTL rule: `doctor` says which, and how to see it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.homes import Home

TYPES = {"timestamp[us, UTC]": "T00:00:00Z", "timestamp[ms]": "T00:00:00", "date32": ""}


def far_ahead(home: Home) -> list[dict[str, Any]]:
    return [found for found in home.json("doctor")["findings"] if found["check"] == "far-future"]


@pytest.mark.in_turn
@pytest.mark.parametrize("newest", ["2999-01-01", "9999-12-31"])
@pytest.mark.parametrize("kind", TYPES)
def test_the_part_its_partition_and_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, newest: str
) -> None:
    home, column = Home(tmp_path, "a", capsys), "the 'day\""
    named = '"the \'day"""'
    columns = ("--column", "k:int64", "--column", f"{named}:{kind}", "--order-by", "k")
    home("table", "create", "d.t", *columns, "--partition-by", "k", "--ttl", f"30d on {named} delete")
    for number, day in enumerate(["2013-01-01", newest]):
        (home.path / "rows.csv").write_text(f'k,"the \'day"""\n{number},{day}{TYPES[kind]}\n')
        home("insert", "d.t", str(home.path / "rows.csv"))
    (found,) = far_ahead(home)
    assert f"of d.t, partition 1, has a row with {column} {newest}" in found["what"]
    assert (found["level"], home.json("doctor")["ok"]) == ("warning", True)
    command = shlex.split(found["hint"].partition(" shows it")[0])
    assert [row[0] for row in home.json(*command[1:])["rows"]] == [1]


@pytest.mark.in_turn
def test_a_time_that_comes_within_a_year_is_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "a", capsys)
    home("table", "create", "d.t", "--column", "k:int64", "--column", "ts:timestamp[us, UTC]", "--order-by", "k")
    (home.path / "rows.csv").write_text("k,ts\n1,2013-01-01T00:00:00Z\n")
    home("insert", "d.t", str(home.path / "rows.csv"))
    assert far_ahead(home) == []
    home("table", "alter", "d.t", "--ttl", "1d on ts delete")
    assert far_ahead(home) == []
