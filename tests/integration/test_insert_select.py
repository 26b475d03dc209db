"""`insert TABLE --select SQL`: what a query answers goes into a table, as files do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.homes import Home

ANSWER = "SELECT k, k * 10 AS tens, sum(k) OVER () AS total FROM d.t"


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = Home(tmp_path, "one", capsys)
    home.create()
    home.insert(1, 2)
    home.insert(3)
    home.to_bucket()
    home.insert(4)
    columns = ("--column", "k:int64", "--column", "tens:int32", "--column", "total:int64")
    home("table", "create", "d.made", *columns, "--order-by", "k")
    return home


def test_the_rows_of_a_query_go_in_with_the_tables_types(home: Home) -> None:
    """From all tiers; a sum has a wider type than the column that it goes to."""
    told = home.json("insert", "d.made", "--select", ANSWER)
    assert (told["rows"], told["duplicates"]) == (4, 0)
    made = home.json("query", "SELECT * FROM d.made ORDER BY k")
    assert made["rows"] == [[1, 10, 10], [2, 20, 10], [3, 30, 10], [4, 40, 10]]
    assert [column["type"] for column in made["columns"]] == ["int64", "int32", "int64"]


def test_the_same_again_doubles_nothing(home: Home) -> None:
    home("insert", "d.made", "--select", ANSWER)
    again = home.json("insert", "d.made", "--select", ANSWER)
    assert (again["rows"], again["duplicates"]) == (0, 1)
    assert len(home.keys("d.made")) == 4


def test_a_table_can_be_put_into_itself(home: Home) -> None:
    home("insert", "d.t", "--select", "SELECT k + 100 AS k FROM d.t")
    assert home.keys() == [1, 2, 3, 4, 101, 102, 103, 104]


def test_columns_are_renamed_filled_and_left_out(home: Home) -> None:
    shaping = ("--rename", "key:k", "--ignore-unknown", "--default", "tens=7", "--default", "total=8")
    home("insert", "d.made", "--select", "SELECT k AS key, 1 AS more FROM d.t WHERE k < 2", *shaping)
    assert home.json("query", "SELECT * FROM d.made")["rows"] == [[1, 7, 8]]


def test_a_preview_inserts_nothing(home: Home) -> None:
    assert "would insert 4 rows" in home("insert", "d.made", "--select", ANSWER, "--dry-run")
    assert home.keys("d.made") == []


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "no file is named"),
        (["--select", "SELECT k FROM d.t", "--format", "csv"], 2, "no file is named"),
        (["--select", "k, tens"], 2, "syntax error"),
        (["--select", "DELETE FROM d.t"], 2, "only reads"),
        (["--select", "SELECT k FROM d.nothing"], 10, "d.nothing"),
        (["--select", "SELECT k, 'x' AS tens, 1 AS total FROM d.t"], 2, "tens"),
        (["--select", "SELECT k, 1 AS other FROM d.t"], 2, "other"),
        (["--select", "SELECT k, 1::BIGINT << 40 AS tens, 1 AS total FROM d.t"], 2, "tens"),
        (["--select", "SELECT k, k FROM d.t"], 2, "k"),
    ],
)
def test_what_does_not_fit_is_refused(home: Home, arguments: list[str], code: int, said: str) -> None:
    home("insert", "d.made", *arguments, code=code)
    assert said in home.error
    assert home.keys("d.made") == []
