"""A table from a sample: what is said of it, which partition it speaks for, and structs taken apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.homes import Home


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "one", capsys)


@pytest.mark.parametrize(
    ("last", "partition"),
    [
        ("2026-01-01 05:00:00", "day"),
        ("2026-02-28 00:00:00", "day"),
        ("2026-04-01 00:00:00", "month"),
        ("2035-01-01 00:00:00", "year"),
    ],
)
def test_the_span_of_its_times_tells_a_partition(home: Home, last: str, partition: str) -> None:
    source = home.path / "rows.csv"
    source.write_text(f"n,the time\n1,2026-01-01 00:00:00\n2,{last}\n")
    home("table", "create", "d.t", "--like", str(source), "--order-by", "n")
    assert "n int64, the time timestamp[us]" in home.error
    assert f"--partition-by '{partition}(\"the time\")'" in home.error
    home(
        "table", "create", "d.u", "--like", str(source), "--order-by", "n", "--partition-by", f'{partition}("the time")'
    )
    assert "Its first" not in home.error
    assert "Columns by" in home.error
    home("insert", "d.u", str(source))


@pytest.mark.parametrize("text", ["n\n1\n", "n,at\n1,\n", "n,at\n"])
def test_no_times_suggest_nothing(home: Home, text: str) -> None:
    source = home.path / "rows.csv"
    source.write_text(text)
    home("table", "create", "d.t", "--like", str(source), "--column", "at:date", "--order-by", "n")
    assert "Its first" not in home.error


def test_structs_are_taken_apart(home: Home) -> None:
    source = home.path / "rows.jsonl"
    rows = [{"k": 1, "a": {"b": 2, "c": {"d": "x"}}, "l": [{"m": 1}]}, {"k": 2, "a": {"b": None}}, {"k": 3, "a": None}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    home("table", "create", "d.t", "--like", str(source), "--flatten", "--order-by", "k")
    home("insert", "d.t", str(source), code=2)
    assert "unknown columns: a" in home.error
    home("insert", "d.t", str(source), "--flatten")
    found = home.json("query", "SELECT * FROM d.t ORDER BY k")
    assert [column["name"] for column in found["columns"]] == ["k", "a.b", "a.c.d", "l"]
    assert found["rows"] == [[1, 2, "x", [{"m": 1}]], [2, None, None, None], [3, None, None, None]]
    assert home.json("insert", "d.t", str(source), "--flatten")["duplicates"] == 1


def test_a_struct_that_the_table_has_stays_whole(home: Home) -> None:
    source = home.path / "rows.jsonl"
    source.write_text('{"k": 1, "a": {"b": {"c": 2}}}\n')
    home("table", "create", "d.t", "--column", "k:int64", "--column", "a.b:struct<c: int64>", "--order-by", "k")
    home("insert", "d.t", str(source), "--flatten")
    assert home.json("query", 'SELECT "a.b".c FROM d.t')["rows"] == [[2]]
