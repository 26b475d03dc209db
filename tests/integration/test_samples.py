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


def test_a_sheet_and_a_log_with_times_go_in_as_they_are(home: Home) -> None:
    """As pandas writes a sheet: the column of row numbers has no name. The sheet has its row numbers."""
    sheet, log = home.path / "sheet.csv", home.path / "log.jsonl"
    sheet.write_text(",n,n\n0,5,6\n1,7,8\n")
    home("table", "create", "d.s", "--like", str(sheet), "--order-by", "n")
    assert "column_1 int64, n int64, n_2 int64" in home.error
    home("insert", "d.s", str(sheet))
    assert home.json("query", "SELECT * FROM d.s ORDER BY n")["rows"] == [[0, 5, 6], [1, 7, 8]]
    log.write_text('{"seen": "2026-01-01T00:00:00Z", "n": 1}\n{"seen": "2026-01-01T02:00:00.25+02:00", "n": 2}\n')
    home("table", "create", "d.l", "--like", str(log), "--order-by", "seen")
    assert "seen timestamp[us, UTC]" in home.error
    assert "--partition-by 'day(seen)'" in home.error
    home("insert", "d.l", str(log))
    assert home.json("query", "SELECT n, epoch_ms(seen) % 1000 FROM d.l ORDER BY n")["rows"] == [[1, 0], [2, 250]]


def test_a_column_without_a_name_is_renamed(home: Home) -> None:
    source = home.path / "rows.jsonl"
    source.write_text('{"": 1, "k": 2}\n')
    home("table", "create", "d.t", "--like", str(source), "--order-by", "k", code=2)
    assert "--rename-column ':NEW'" in home.error
    home("table", "create", "d.t", "--column", "n:int64", "--column", "k:int64", "--order-by", "k")
    home("insert", "d.t", str(source), "--rename", ":n")
    home("insert", "d.t", str(source), "--select", '"" as n,k', "--dedup-by", "none")
    assert home.json("query", "SELECT n, k FROM d.t")["rows"] == [[1, 2], [1, 2]]
    home("insert", "d.t", str(source), "--rename", "n:", code=2)
    assert "write --rename-column A:B" in home.error
