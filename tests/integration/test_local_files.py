"""`query --allow-files`: local files beside tables, those that the statement names and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.homes import Home


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    """A table with a row in the bucket and one on the SSD; the working directory has files with names for its keys."""
    home = Home(tmp_path, "one", capsys)
    home.create()
    home.insert(1)
    home.to_bucket()
    home.insert(2)
    (tmp_path / "calls").mkdir()
    for name, rows in {"a.csv": "1,één", "b.csv": "2,two", "it's.csv": "3,three", "n.ndjson": '{"k": 4}'}.items():
        (tmp_path / "calls" / name).write_text(f"{'' if name == 'n.ndjson' else 'k,name' + chr(10)}{rows}\n")
    (tmp_path / "secret").write_text("k,name\n1,hidden\n")
    monkeypatch.chdir(tmp_path)
    return home


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT k, name FROM d.t JOIN read_csv('calls/*.csv') USING (k) ORDER BY k", [[1, "één"], [2, "two"]]),
        (
            "SELECT 'ö', k FROM read_csv(['calls/b.csv', 'calls/it''s.csv'], header = true) ORDER BY k",
            [["ö", 2], ["ö", 3]],
        ),
        ("SELECT k FROM d.t WHERE k NOT IN (SELECT k FROM read_csv('calls/b.csv'))", [[1]]),
        ("SELECT count(*) FROM read_json('calls/n.ndjson') n, read_csv('calls/a.csv') a", [[1]]),
        ("WITH c AS (FROM read_csv('calls/a.csv')) SELECT count(*) FROM c JOIN d.t USING (k)", [[1]]),
    ],
)
def test_files_are_read_beside_tables(home: Home, sql: str, rows: list[list[object]]) -> None:
    assert home.json("query", sql, "--allow-files")["rows"] == rows
    home("query", sql, code=2)
    assert "--allow-files" in home.error


def test_parquet_and_the_plan(home: Home) -> None:
    home("query", "SELECT k FROM d.t", "--output-format", "parquet", "-o", "keys.parquet")
    assert home.json("query", "SELECT sum(k) FROM read_parquet('keys.parquet')", "--allow-files")["rows"] == [[3]]
    assert "2 parts to read" in home(
        "query", "EXPLAIN SELECT * FROM d.t, read_parquet('keys.parquet')", "--allow-files"
    )


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("read_csv('calls/none.csv')", 10, "there is no file calls/none.csv"),
        ("read_csv('none/*.csv')", 10, "there is no file"),
        ("read_csv('https://example.org/x.csv')", 2, "is no local file"),
        ("read_csv('s3://bucket/x.csv')", 2, "is no local file"),
        ("read_csv('calls/' || 'a.csv')", 2, "literal file names"),
        ("read_csv((SELECT 'calls/a.csv'))", 2, "literal file names"),
        ("read_csv()", 2, "literal file names"),
        ("read_text('secret')", 2, "not possible here"),
        ("glob('*')", 2, "not possible here"),
        ("'calls/a.csv'", 10, "No such table"),
        ("read_parquet('calls/a.csv')", 2, "a.csv"),
    ],
)
def test_what_is_no_local_file_is_refused(home: Home, source: str, code: int, said: str) -> None:
    home("query", f"SELECT * FROM {source}", "--allow-files", code=code)
    assert said in home.error
    assert "Traceback" not in home.error


def test_nothing_is_written(home: Home) -> None:
    for sql in (
        "COPY d.t TO 'out.csv'",
        "COPY (FROM read_csv('secret')) TO 'out.csv'",
        "EXPLAIN ANALYZE COPY d.t TO 'x'",
    ):
        home("query", sql, "--allow-files", code=2)
    assert not Path("out.csv").exists()


def test_no_later_query_reads_a_file_that_an_earlier_one_named(home: Home) -> None:
    import frostline
    from oplog.errors import UsageError

    with frostline.open(home.configuration) as store:
        found = store.query("SELECT name FROM read_csv('secret')", allow_files=True).read_all()
        assert found["name"].to_pylist() == ["hidden"]
        assert store.query("SELECT k FROM d.t ORDER BY k").read_all()["k"].to_pylist() == [1, 2]
        with pytest.raises(UsageError, match="reads no files"):
            store.query("SELECT * FROM read_csv('secret')")
        assert store.query("SELECT k FROM d.t ORDER BY k").read_all()["k"].to_pylist() == [1, 2]
