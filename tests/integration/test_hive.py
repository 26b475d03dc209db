"""Hive directories: `region=eu/a.csv` has the column `region`, as DuckDB reads the same path (I15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tests.homes import Home
from tiering.insert.inputs.hive import with_path_fields

VALUES = ("eu", "1", "02", "-3", "1.5", "2026-01-01", "2026-01-01 10:00:00", "a%20b", "a+b", "a%2Fb", "NULL", "NA", "%")
VALUES += ("true", "99999999999999999999", "__HIVE_DEFAULT_PARTITION__", "%zz", "é", "%C3%A9", "", "12:30:00")


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    """The work directory is that of the home."""
    home = Home(tmp_path, "one", capsys)
    monkeypatch.chdir(home.path)
    return home


def put(path: str, text: str = "id\n1\n") -> str:
    source = Path(path)
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    return path


def create(home: Home, kind: str = "string", *more: str) -> None:
    columns = ("--column", "id:int64", "--column", f"region:{kind}")
    home("table", "create", "d.t", *columns, "--order-by", "id", *more)


def rows(home: Home, sql: str = "SELECT id, region FROM d.t ORDER BY ALL") -> list[list[Any]]:
    found: list[list[Any]] = home.json("query", sql)["rows"]
    return found


def oracle(files: str) -> list[list[Any]]:
    """As DuckDB reads them, each file by itself."""
    found = []
    for path in sorted(Path().glob(files)):
        relation = duckdb.sql(f"SELECT id, region FROM read_csv('{path}', hive_types = {{'region': VARCHAR}})")
        found += [list(row) for row in relation.fetchall()]
    return sorted(found, key=str)


@pytest.mark.parametrize("like", [False, True])
def test_every_value_is_what_duckdb_reads(home: Home, like: bool) -> None:
    for number, value in enumerate(VALUES):
        put(f"in/region={value}/{number}.csv", f"id\n{number}\n")
    if like:
        home("table", "create", "d.t", "--like", "in", "--order-by", "id")
    else:
        create(home)
    home("insert", "d.t", "in/**/*.csv")
    assert sorted(rows(home), key=str) == oracle("in/*/*.csv")


def test_a_sample_has_the_types_that_duckdb_infers(home: Home) -> None:
    """Of each value beside a null; and a table of such a sample takes it."""
    kinds = {"BIGINT": pa.int64(), "VARCHAR": pa.string(), "DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us")}
    for number, value in enumerate(VALUES):
        paths = [f"{number}/region={value}/a.csv", f"{number}/region=__HIVE_DEFAULT_PARTITION__/b.csv"]
        for path in paths:
            put(path)
        (kind,) = duckdb.sql(f"SELECT region FROM read_csv({paths})").types
        assert with_path_fields(pa.schema([]), paths) == pa.schema([("region", kinds[str(kind)])]), value
    home("table", "create", "d.t", "--like", "5", "--order-by", "id")
    home("insert", "d.t", "5/*/*.csv")
    assert rows(home) == [[1, "2026-01-01"], [1, None]]


def test_of_several_values_a_sample_holds_all(home: Home) -> None:
    for value in ("1", "2", "abc"):
        put(f"in/region={value}/year=2026/{value}.csv")
    home("table", "create", "d.t", "--like", "in", "--order-by", "id")
    home("insert", "d.t", "in/**/*.csv")
    sql = "SELECT region, year FROM d.t ORDER BY ALL"
    assert rows(home, sql) == [["1", 2026], ["2", 2026], ["abc", 2026]]
    put("in/region=4/4.csv")  # not all paths have a year: DuckDB takes none of their columns
    home("table", "create", "d.u", "--like", "in", "--order-by", "id")
    assert [column["name"] for column in home.json("table", "show", "d.u")["columns"]] == ["id"]


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["int64", "decimal(5, 2)", "float64", "timestamp[us, UTC]", "date", "bool", "uuid"])
def test_a_value_is_of_the_type_of_the_column_or_refused(home: Home, kind: str) -> None:
    good = {"int64": "7", "decimal(5, 2)": "7.50", "float64": "7.5", "bool": "true", "date": "2026-01-01"}
    good |= {"timestamp[us, UTC]": "2026-01-01 10%3A00%3A00", "uuid": "2b9d7f6e-0000-4000-8000-000000000001"}
    create(home, kind)
    put(f"in/region={good[kind]}/a.csv", "id\n1\n")
    put("in/region=__HIVE_DEFAULT_PARTITION__/b.csv", "id\n2\n")
    home("insert", "d.t", "in/*/*.csv")
    (first, second) = rows(home)
    assert first[1] is not None
    assert second == [2, None]
    put("in/region=abc/c.csv", "id\n3\n")
    home("insert", "d.t", "in/*/*.csv", code=2)
    assert "in/region=abc/c.csv: the directory region=abc holds no" in home.error
    assert len(rows(home)) == 2
    home("insert", "d.t", "in/region=abc/c.csv", "--no-hive")
    assert rows(home)[-1] == [3, None]


@pytest.mark.parametrize("step", ["region=%E9", "region=eu/region=us", "Region=eu"])
def test_what_is_in_doubt_is_refused(home: Home, step: str) -> None:
    create(home)
    source = put(f"{step}/a.csv")
    home("insert", "d.t", source, code=2)
    assert f"{step}/a.csv: " in home.error
    assert "--no-hive" in home.error
    home("insert", "d.t", source, "--no-hive")
    assert rows(home) == [[1, None]]


@pytest.mark.in_turn
def test_which_directories_count_is_what_duckdb_says(home: Home) -> None:
    """All of the path as it is named, and no file name; a second `=` makes no column."""
    create(home)
    for path in ("region=eu/x/a.csv", "b/region=c.csv", "region=a=b/d.csv", "other=1/region=us/e.csv", "=5/f.csv"):
        source = put(path, f"id\n{len(path)}\n")
        for named in (source, str(Path(source).resolve())):
            kinds = duckdb.read_csv(named).columns
            expected = duckdb.sql(f"SELECT region FROM '{named}'").fetchall()[0][0] if "region" in kinds else None
            home("insert", "d.t", named, "--dedup-by", "none")
            assert rows(home, f"SELECT DISTINCT region FROM d.t WHERE id = {len(path)}") == [[expected]]


@pytest.mark.parametrize("how", ["block", "file"])
def test_the_same_bytes_in_two_directories_are_two_blocks(home: Home, how: str) -> None:
    create(home)
    put("in/region=eu/a.csv")
    put("in/region=us/a.csv")
    for _ in range(2):
        home("insert", "d.t", "in/*/*.csv", "--dedup-by", how)
        assert rows(home) == [[1, "eu"], [1, "us"]]


@pytest.mark.in_turn
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "orc", "arrow"])
def test_a_column_of_the_file_must_say_the_same(home: Home, ending: str) -> None:
    create(home, "int64")
    tables = {"same": [5, 5], "other": [5, 6], "null": [5, None]}
    for name, values in tables.items():
        path = Path(put(f"in/region=5/{name}.{ending}"))
        table = pa.table({"id": [1, 2], "region": pa.array(values, pa.int32())})
        match ending:
            case "csv":
                second = {"same": "5", "other": "6", "null": ""}[name]
                path.write_text(f"id,region\n1,5\n2,{second}\n")
            case "jsonl":
                second = {"same": ',"region":5', "other": ',"region":6', "null": ""}[name]
                path.write_text(f'{{"id":1,"region":5}}\n{{"id":2{second}}}\n')
            case "parquet":
                pq.write_table(table, path)
            case "orc":
                orc.write_table(table, path)
            case _:
                feather.write_feather(table, path)
    home("insert", "d.t", f"in/region=5/same.{ending}")
    home("insert", "d.t", f"in/region=5/other.{ending}", code=2)
    assert f"in/region=5/other.{ending}: row 2 has 6 in column region" in home.error
    is_refused = ending != "jsonl"  # where a row need not have every column
    home("insert", "d.t", f"in/region=5/null.{ending}", code=2 if is_refused else 0)
    assert rows(home) == [[1, 5], [2, 5]]  # of JSON the same rows, which are known
    home("insert", "d.t", f"in/region=5/other.{ending}", "--no-hive")
    assert [2, 6] in rows(home)


def test_bad_rows_are_kept_apart(home: Home) -> None:
    create(home)
    source = put("region=eu/a.csv", "id,region\n1,eu\n2,us\n")
    home("insert", "d.t", source, "--skip-bad-rows", "1", "bad.jsonl")
    assert rows(home) == [[1, "eu"]]
    assert '"2,us"' in Path("bad.jsonl").read_text()


def test_columns_of_a_path_are_chosen_and_renamed_as_others(home: Home) -> None:
    create(home)
    source = put("area=eu/a.csv", "id,more\n1,2\n")
    home("insert", "d.t", source, "--ignore-unknown", "--rename-column", "area:region")
    home("insert", "d.t", source, "--select", "id, area as region", "--dedup-by", "none")
    home("insert", "d.t", source, "--select", "id", "--dedup-by", "none")
    assert rows(home) == [[1, "eu"], [1, "eu"], [1, None]]
    other = put("region=us/a.csv", "id,area\n2,eu\n")
    home("insert", "d.t", other, "--rename-column", "area:region")  # the column is filled by what is named
    home("insert", "d.t", put("Region=cn/a.csv", "id\n3\n"), "--rename-column", "Region:region")
    home("insert", "d.t", put("region=__HIVE_DEFAULT_PARTITION__/a.csv", "id\n4\n"), "--default", "region=none")
    assert rows(home)[3:] == [[2, "eu"], [3, "cn"], [4, "none"]]


def test_a_path_fills_sort_order_and_partition(home: Home) -> None:
    columns = ("--column", "id:int64", "--column", "day:date not null")
    home("table", "create", "d.t", *columns, "--order-by", "day,id", "--partition-by", "day")
    put("in/day=2026-01-01/a.csv")
    put("in/day=2026-01-02/a.csv", "id\n2\n")
    assert len(home.json("insert", "d.t", "in/*/*.csv")["parts"]) == 2
    home("insert", "d.t", put("day=__HIVE_DEFAULT_PARTITION__/a.csv"), code=2)
    home("move", "d.t", "--partition", "20260101", "--to-disk", "s3")
    home("insert", "d.t", put("in/day=2026-01-01/b.csv", "id\n9\n"), "--replace-partitions")
    assert rows(home, "SELECT id FROM d.t ORDER BY id") == [[2], [9]]
