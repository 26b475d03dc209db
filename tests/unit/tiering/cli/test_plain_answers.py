"""Small answers come without Arrow, and are the same in every format as if they came with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.homes import Home
from tiering.query import query

REPOSITORY = Path(__file__).parents[4]
FLOATS = "0.1 1 -0 1e15 1e16 1e21 123456789012345680000 1e-4 1e-5 1e-6 1e-7 -1.5e-7 1e300 5e-324 9999999999 1e10 -1e10"
VALUES = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128"],
    "UBIGINT": ["18446744073709551615"],
    "BIGINT": ["-9223372036854775808", "0"],
    "HUGEINT": ["-1", "9223372036854775807", "9223372036854775808", "-99999999999999999999999999999999999999"],
    "DOUBLE": [*FLOATS.split(), "12345678901.5", "0.3333333333333333", "nan", "inf", "-inf", "-2.50"],
    "FLOAT": ["0.1", "16777216", "nan"],
    "VARCHAR": ["", 'a"b', "x,\ny", "ä☃", "NULL", " padded ", "2020-01-01T00:00:00Z"],
    "BLOB": [r"\x00\xFFa", ""],
    "DATE": ["2020-02-29", "0001-01-01", "9999-12-31", "0999-01-02"],
    "TIME": ["01:02:03", "00:00:00", "23:59:59.999999", "01:02:03.5"],
    "TIMESTAMP": ["2020-01-01 01:02:03.5", "1969-12-31 23:59:59.999999", "2020-01-01", "9999-12-31 23:59:59.999999"],
    "TIMESTAMPTZ": ["2020-01-01 01:02:03.004+00", "2020-01-01 00:00:00+05", "0020-01-01 00:00:00+00"],
    "TIMESTAMP_NS": ["2020-01-01 01:02:03.004005006"],
    "DECIMAL(12, 10)": ["0", "1e-9", "-1.5", "99.9999999999"],
    "DECIMAL(38, 0)": ["-5", "99999999999999999999999999999999999999"],
    "DECIMAL(4, 4)": ["0", "0.5"],
    "UUID": ["b578d6fd-10ae-4853-b658-0a5044a3945b"],
    "INTERVAL": ["1 month 2 days 3.5 seconds"],
    "INTEGER[]": ["[1, NULL]"],
}


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = Home(tmp_path, "one", capsys)
    home.create()
    home.insert(*range(3))
    return home


def _answers(home: Home, sql: str) -> list[str]:
    """In every format, on the screen and in a file."""
    file = home.path / "answer.csv"
    home("query", sql, "-o", str(file))
    return [
        home("query", sql),
        home("query", sql, "--json"),
        home("query", sql, "--output-format", "csv"),
        file.read_text(),
    ]


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", VALUES)
def test_the_same_with_and_without_arrow(kind: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    literals = [*("'" + value.replace("'", "''") + "'" for value in VALUES[kind]), "NULL"]
    rows = ", ".join(f"({place}, CAST({value} AS {kind}))" for place, value in enumerate(literals))
    sql = f'SELECT x AS "a ""name", x AS again, place FROM (VALUES {rows}) AS t(place, x) ORDER BY place -- all of them'
    plain = _answers(home, sql)
    monkeypatch.setattr(query, "_FEW_ROWS", -1)
    assert plain == _answers(home, sql)


def test_rows_come_in_the_order_that_was_asked_for(home: Home) -> None:
    sql = "SELECT k, DATE '2020-01-01' + k::INTEGER AS d FROM d.t ORDER BY d DESC"
    assert home.json("query", sql)["rows"] == [[2, "2020-01-03"], [1, "2020-01-02"], [0, "2020-01-01"]]


def test_moments_that_are_none_are_written_as_the_engine_does(home: Home) -> None:
    sql = "SELECT DATE 'infinity' AS d, TIMESTAMPTZ '-infinity' AS t, TIMESTAMP '12020-01-01 00:00:00' AS late"
    assert home.json("query", sql)["rows"] == [["infinity", "-infinity", "12020-01-01T00:00:00"]]


@pytest.mark.in_turn
def test_a_small_query_imports_neither_arrow_nor_fsspec(home: Home) -> None:
    """They take as long as all else that it does."""
    sql = "SELECT count(*) AS n, max(k) AS most, DATE '2020-01-01' AS d FROM d.t WHERE k > 0"
    command = [sys.executable, "-X", "importtime", "-m", "tiering.cli.entry", "-c", str(home.configuration)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    for chosen in ("table", "csv", "json"):
        words = [*command, "query", sql, "--output-format", chosen]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "duckdb" in modules
        assert not modules & {"pyarrow", "numpy", "fsspec", "concurrent.futures.process"}
        assert "2020-01-01" in done.stdout
