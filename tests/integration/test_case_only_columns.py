"""Columns that differ in case alone: SQL takes them for one, so none come in, and no answer takes one for the other
(I15)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from oplog.errors import UsageError
from tests.homes import Home
from tiering.catalog import tables
from tiering.config.reading import load
from tiering.engine.store import Store
from tiering.table import definitions
from tiering.table.names import alike, folded

LOG = '{"ts":"2026-01-01T00:00:00Z","message":"one","Message":"TWO"}\n'
CREATE = ("table", "create", "d.t", "--order-by", "ts")
COLUMN, ADD, RENAME = "--column", "--add-column", "--rename-column"


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "one", capsys)


def file(home: Home, name: str = "log.jsonl", text: str = LOG) -> str:
    source = home.path / name
    source.write_text(text)
    return str(source)


def store_of(home: Home) -> Store:
    return Store.open(load(home.configuration), actor="test")


@pytest.fixture
def old(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A table with both columns and a row, as older versions made it."""
    with monkeypatch.context() as patch:
        for module in (tables, definitions):
            patch.setattr(module, "check_told_apart", lambda *arguments: None)
        home(*CREATE, "--like", file(home))
    home("insert", "d.t", file(home))
    return home


def test_names_are_compared_as_the_engine_compares_them() -> None:
    """Of every letter that has a case: É and é, ı and I, ß and ẞ are different names, and only ASCII's are not."""
    cased = [
        chr(code) for code in range(sys.maxunicode) if chr(code).lower() != chr(code) or chr(code).upper() != chr(code)
    ]
    distinct = {folded(letter): letter for letter in cased}
    with duckdb.connect() as connection:
        columns = ", ".join(f'"{letter}" INT' for letter in distinct.values())
        connection.execute(f"CREATE TABLE t ({columns})")
        for letter in set(cased).difference(distinct.values()):
            with pytest.raises(duckdb.CatalogException, match="already exists"):
                connection.execute(f'ALTER TABLE t ADD COLUMN "{letter}" INT')
    assert len(cased) - len(distinct) == 26
    assert alike(["é", "É", "b", "B"]) == ("b", "B")


@pytest.mark.parametrize(
    ("name", "text"),
    [("log.jsonl", LOG), ("sheet.csv", "ts,message,Message\n2026-01-01T00:00:00Z,one,TWO\n"), ("both.parquet", "")],
)
def test_a_sample_with_both_is_refused_a_renamed_one_is_taken(home: Home, name: str, text: str) -> None:
    source = file(home, name, text)
    if not text:
        with duckdb.connect() as connection:
            connection.from_arrow(pa.table({"ts": ["x"]})).write_parquet(source)
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"ts": ["2026-01-01"], "message": ["one"], "Message": ["TWO"]}), source)
    home(*CREATE, "--like", source, code=2)
    assert "columns message and Message differ" in home.error
    assert "--rename-column 'Message:NEW'" in home.error
    renamed = ("--rename-column", "Message:upper")
    home(*CREATE, "--like", source, *renamed)
    home("insert", "d.t", source, code=2)
    assert "column Message differs in case alone" in home.error
    assert "--rename-column 'Message:COLUMN'" in home.error
    home("insert", "d.t", source, *renamed)
    assert home.json("query", "SELECT message, upper FROM d.t")["rows"] == [["one", "TWO"]]


@pytest.mark.parametrize(
    "renames", [["nope:x"], ["Message:message"], ["Message:ts"], ["Message"], ["message:a", "Message:A"]]
)
def test_a_sample_is_renamed_as_it_can_be(home: Home, renames: list[str]) -> None:
    home(*CREATE, "--like", file(home), *(word for text in renames for word in ("--rename-column", text)), code=2)
    assert home.tables() == []


def test_there_is_nothing_to_rename_without_a_sample(home: Home) -> None:
    home(*CREATE, COLUMN, "ts:timestamp", RENAME, "a:b", code=2)
    assert "add --like FILE" in home.error


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "words",
    [
        (*CREATE, COLUMN, "ts:timestamp", COLUMN, "k:int64", COLUMN, "K:int64"),
        (*CREATE, COLUMN, "ts:timestamp", COLUMN, "s:struct<a: struct<b: int64, B: int64>>"),
        ("table", "alter", "d.ok", ADD, "K:int64"),
        ("table", "alter", "d.ok", RENAME, "ts:K"),
        ("table", "alter", "d.ok", ADD, "New:int64", ADD, "new:int64"),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_none_come_in_by_a_definition(home: Home, words: tuple[str, ...], dry: tuple[str, ...]) -> None:
    home("table", "create", "d.ok", "--order-by", "ts", COLUMN, "ts:timestamp", COLUMN, "k:int64", COLUMN, "É:int64")
    home(*words, *dry, code=2)
    assert "differ in case alone" in home.error
    home("table", "alter", "d.ok", ADD, "é:int64", RENAME, "k:K")
    home("query", 'SELECT "é", "É", k, K FROM d.ok')


def test_programs_are_refused_as_people_are(home: Home) -> None:
    columns = ["a:int64", "A:int64"]
    with pytest.raises(UsageError, match="a and A differ"):
        definitions.define_table("d.t", columns=columns, order_by="a", policy="hot_cold")
    one = definitions.define_table("d.t", columns=["a:int64", "b:int64"], order_by="a", policy="hot_cold")
    replace = definitions.msgspec.structs.replace
    both = replace(one, columns=(one.columns[0], replace(one.columns[1], name="A")))
    home("table", "create", "d.other", COLUMN, "k:int64", "--order-by", "k")
    with store_of(home) as store:
        with pytest.raises(UsageError, match="a and A differ"):
            store.create_table(both)
        store.create_table(one)
        with pytest.raises(UsageError, match="a and A differ"):
            store.alter_table(one, both, reason="by a program")


def test_letters_that_only_unicode_folds_are_answered_by_name(home: Home) -> None:
    source = file(home, "u.csv", "ts,é,É,ß,ẞ,ı,I,i̇\n1,2,3,4,5,6,7,8\n")
    home(*CREATE, "--like", source)
    home("insert", "d.t", source)
    answer = home.json("query", 'SELECT "É", "é", "ẞ", "ß", "I", "ı", "i̇" FROM d.t WHERE "É" = 3 AND "ı" = 6')
    assert answer["rows"] == [[3, 2, 5, 4, 7, 6, 8]]
    assert [column["name"] for column in answer["columns"]] == ["É", "é", "ẞ", "ß", "I", "ı", "i̇"]


def test_sql_over_an_old_table_with_both_is_refused(old: Home) -> None:
    """Whichever column it is about; and what the hint says mends it."""
    for sql in ('SELECT "Message" FROM d.t', "SELECT ts FROM d.t", "SELECT count(*) FROM d.t"):
        old("query", sql, code=2)
        assert "columns of d.t message and Message" in old.error
    assert "frostline table alter d.t --rename-column 'Message:NEW'" in old.error
    old("merge", "d.t", "--where", "ts > '2020-01-01'", "--final", "--recompress", code=2)
    with (
        store_of(old) as store,
        duckdb.connect() as connection,
        pytest.raises(UsageError, match="differ in case alone"),
    ):
        store.table("d.t").to_duckdb(connection)
    old("query", "SELECT 1 AS one")
    old("table", "alter", "d.t", "--rename-column", "Message:upper")
    assert old.json("query", "SELECT message, upper FROM d.t")["rows"] == [["one", "TWO"]]


def test_an_old_table_with_both_lives_on(old: Home) -> None:
    """It is scanned, filled, merged, altered, moved and backed up, by the exact names."""
    old("insert", "d.t", file(old, "more.jsonl", LOG.replace("TWO", "THREE")))
    old("table", "alter", "d.t", "--setting", "row_group_rows=10", "--add-column", "x:int64")
    old("merge", "d.t", "--final")
    old("move", "d.t", "--partition", "all", "--to-disk", "s3")
    repository = (old.path / "backups").as_uri()
    old("backup", "init", repository)
    old("backup", "create", "first", "--to", repository)
    old("table", "drop", "d.t")
    old("backup", "restore", "first", "--to", repository)
    with store_of(old) as store:
        table = store.table("d.t")
        found = table.scan(columns=["Message", "message"], filter=[("Message", "=", "THREE")]).read_all()
        assert found.to_pylist() == [{"Message": "THREE", "message": "one"}]
        assert sorted(table.scan().read_all().column("Message").to_pylist()) == ["THREE", "TWO"]
    assert old.json("fsck", "--read-data")["ok"]
    old("table", "alter", "d.t", "--add-column", "X:int64", code=2)
    old("table", "alter", "d.t", "--drop-column", "Message")
    assert old.json("query", "SELECT DISTINCT MESSAGE FROM d.t")["rows"] == [["one"]]


def test_no_undo_brings_both_back(old: Home) -> None:
    old("table", "alter", "d.t", "--rename-column", "Message:upper")
    old("undo", "s3", str(old.head()), code=2)
    assert "message and Message differ" in old.error
    assert old.json("query", "SELECT upper FROM d.t")["rows"] == [["TWO"]]


def test_the_inbox_keeps_such_a_file_apart(home: Home) -> None:
    home(*CREATE, COLUMN, "ts:timestamp", COLUMN, "message:string")
    inbox = home.path / "inbox"
    (inbox / "d.t").mkdir(parents=True)
    home.configuration.write_text(home.configuration.read_text() + f"inbox:\n  path: {inbox}\n  stable_seconds: 0\n")
    (inbox / "d.t" / "log.jsonl").write_text(LOG)
    done: Any = home.json("inbox", "run", "--once", code=1)
    assert "column Message differs in case alone" in str(done)
    assert (inbox / "d.t" / "failed" / "log.jsonl").is_file()
