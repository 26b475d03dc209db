"""Rows without a time under TTL rules, from the command line: the same rows stay whatever runs first. Guards I13."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.homes import Home

ROWS = [("1", "2013-01-01T00:00:00Z"), ("2", ""), ("3", "1970-01-01T00:00:00Z")]


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "a", capsys)


def fill(home: Home, rule: str, rows: list[tuple[str, str]]) -> None:
    columns = ("--column", "k:int64", "--column", "ts:timestamp[us, UTC]")
    home("table", "create", "d.t", *columns, "--order-by", "k", "--ttl", rule)
    path = home.path / "rows.csv"
    path.write_text("\n".join(["k,ts", *(",".join(row) for row in rows), ""]))
    home("insert", "d.t", str(path))


def test_a_pass_deletes_the_rows_that_are_due_and_no_others(home: Home) -> None:
    fill(home, "1d on ts delete", ROWS)
    home("tick", "--only", "moves", "--believe-clock")
    assert home.json("plan")["deletes"] == []
    explanation = home.json("explain", "d.t", "all_1_1_0")
    assert explanation["reason"]["kind"] == "undated_rows"
    assert "1 of 3 rows have no ts" in explanation["reason"]["detail"]
    home("tick", "--believe-clock")
    assert home.keys() == [2, 3]
    (part,) = home.json("parts")["parts"]
    home("tick", "--believe-clock")
    assert home.json("parts")["parts"] == [part], "nothing more is due"


@pytest.mark.parametrize("verb", [("--final",), ("--cold",)])
def test_a_merge_of_one_part_takes_its_due_rows(home: Home, verb: tuple[str, ...]) -> None:
    fill(home, "1d on ts delete", ROWS)
    if verb == ("--cold",):
        home("move", "d.t", "--partition", "all", "--to-disk", "s3")
    home("tick", "--only", "moves", "--believe-clock")
    assert home.keys() == [1, 2, 3]
    home("merge", "d.t", *verb)
    assert home.keys() == [2, 3]


def test_rows_that_are_due_later_stay(home: Home) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fill(home, "1d on ts delete", [*ROWS, ("4", later)])
    home("tick", "--believe-clock")
    home("merge", "d.t", "--final")
    assert home.keys() == [1, 2, 3, 4], "one part, of which not all is due: nothing to merge yet"


@pytest.mark.parametrize(("rows", "disk"), [(ROWS[:2], "s3"), (ROWS[1:2], "ssd")])
def test_a_part_moves_with_its_newest_time(home: Home, rows: list[tuple[str, str]], disk: str) -> None:
    """Rows without a time do not keep it; without any time it stays."""
    fill(home, "1d on ts to disk s3", rows)
    home("tick", "--believe-clock")
    assert [part["disk"] for part in home.json("parts")["parts"]] == [disk]
