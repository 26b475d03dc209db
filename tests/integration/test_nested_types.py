"""Columns of every type and any name, from foreign files: hot, merged, cold and back, they are what the file held."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frostline
from tests.homes import Home
from tiering.query.sql.plan import plan_reads

KINDS = {
    "k": pa.int64(),
    "user": pa.struct([("id", pa.int64()), ("größe (m)", pa.float64()), ("at", pa.timestamp("us", "UTC"))]),
    "attributes": pa.map_(pa.string(), pa.int64()),
    "items": pa.list_(pa.struct([("sku", pa.string()), ("tags", pa.list_(pa.string()))])),
    "matrix": pa.list_(pa.list_(pa.int32())),
    "clock": pa.time64("us"),
    "took": pa.duration("us"),
    "key": pa.uuid(),
    "raw": pa.binary(),
    "user id": pa.string(),
    "x.y": pa.decimal128(38, 4),
    'a "b", c': pa.date32(),
}


def _row(k: int) -> dict[str, Any]:
    return {
        "k": k,
        "user": None
        if k % 7 == 0
        else {"id": k * 3, "größe (m)": k / 8, "at": datetime(2026, 1, 1, k % 24, tzinfo=UTC)},
        "attributes": None if k % 5 == 0 else [(f"a{n}", n) for n in range(k % 4)],
        "items": None if k % 6 == 0 else [{"sku": str(n), "tags": [str(k)] * (n % 3)} for n in range(k % 3)],
        "matrix": [[k, None], []] if k % 2 else [],
        "clock": time(k % 24, 30, 0, k),
        "took": None if k % 9 == 0 else timedelta(microseconds=k * 1_000_001),
        "key": None if k % 8 == 0 else UUID(int=k).bytes,
        "raw": bytes([k % 256]) * (k % 3),
        "user id": f"ä{k}",
        "x.y": Decimal(10**30 + k),
        'a "b", c': date(2026, 1, 1 + k % 28),
    }


def _table(keys: range) -> pa.Table:
    schema = pa.schema(list(KINDS.items()))
    rows = [_row(k) for k in keys]
    return pa.Table.from_arrays(
        [pa.array([row[name] for row in rows], kind) for name, kind in KINDS.items()], schema=schema
    )


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    home = Home(tmp_path, "one", capsys)
    for number, keys in enumerate((range(60), range(40, 100))):
        pq.write_table(_table(keys), home.path / f"{number}.parquet")
    home("table", "create", "d.t", "--like", str(home.path / "0.parquet"), "--order-by", 'k,"user id"')
    home("insert", "d.t", str(home.path / "0.parquet"))
    home("insert", "d.t", str(home.path / "1.parquet"))
    return home


def _held(home: Home) -> list[dict[str, Any]]:
    with frostline.open(home.configuration) as store:
        rows: list[dict[str, Any]] = store.table("d.t").scan().read_all().sort_by("k").to_pylist()
    return rows


def _expected() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables([_table(range(60)), _table(range(40, 100))]).sort_by("k").to_pylist()
    return rows


def test_every_type_comes_back_hot_merged_and_cold(home: Home) -> None:
    assert _held(home) == _expected()
    home("merge", "d.t", "--final")
    assert _held(home) == _expected()
    home.to_bucket()
    assert _held(home) == _expected()
    home("fsck", "--read-data")
    with frostline.open(home.configuration) as store:
        table = store.table("d.t")
        assert table.dataset().to_table().sort_by("k").to_pylist() == _expected()
        assert len(table.to_polars().collect()) == 120


@pytest.mark.in_turn
@pytest.mark.parametrize("is_cold", [False, True])
def test_fields_are_filtered_as_their_rows_are(home: Home, is_cold: bool) -> None:
    if is_cold:
        home("merge", "d.t", "--final")
        home.to_bucket()
    rows = [_row(k) for k in (*range(60), *range(40, 100))]
    for condition, holds in {
        '"user".id = 30': lambda row: row["user"] is not None and row["user"]["id"] == 30,
        '"user".id IS NULL': lambda row: row["user"] is None,
        '"user"."größe (m)" > 11': lambda row: row["user"] is not None and row["user"]["größe (m)"] > 11,
        "attributes['a1'] = 1": lambda row: len(row["attributes"] or ()) > 1,
        "attributes IS NULL": lambda row: row["attributes"] is None,
        "items[1].sku = '0'": lambda row: bool(row["items"]),
        "clock < '02:00'": lambda row: row["clock"] < time(2),
        "took > INTERVAL 90 seconds": lambda row: row["took"] is not None and row["took"] > timedelta(seconds=90),
        f"key = '{UUID(int=41)}'": lambda row: row["key"] == UUID(int=41).bytes,
        "\"user id\" = 'ä41'": lambda row: row["user id"] == "ä41",
        '"x.y" = 1000000000000000000000000000041': lambda row: row["k"] == 41,
        '"a ""b"", c" = \'2026-01-03\'': lambda row: row["k"] % 28 == 2,
    }.items():
        found = home.json("query", f"SELECT k FROM d.t WHERE {condition} ORDER BY k")["rows"]
        assert [k for (k,) in found] == sorted(row["k"] for row in rows if holds(row)), condition


def test_a_field_of_a_struct_that_is_never_null_may_be_null(home: Home) -> None:
    """What the scan says of a field is not said of its struct: no part has a struct that is null."""
    home("table", "create", "d.s", "--column", "k:int64", "--column", "s:struct<a: int64>", "--order-by", "k")
    source = home.path / "s.jsonl"
    source.write_text('{"k": 1, "s": {"a": null}}\n{"k": 2, "s": {"a": 5}}\n')
    home("insert", "d.s", str(source))
    assert home.json("query", "SELECT k FROM d.s WHERE s.a IS NULL")["rows"] == [[1]]
    assert home.json("query", "SELECT k FROM d.s WHERE s IS NULL")["rows"] == []


@pytest.mark.in_turn
def test_older_parts_are_read_after_columns_came_and_went(home: Home) -> None:
    home.to_bucket()
    home("table", "alter", "d.t", "--drop-column", "items", "--rename-column", '"user id":"wer, auch"')
    home("table", "alter", "d.t", "--add-column", '"neu:1":struct<a: int64, b: list<string>>')
    held = _held(home)
    expected = [
        {("wer, auch" if name == "user id" else name): value for name, value in row.items() if name != "items"}
        for row in _expected()
    ]
    assert held == [{**row, "neu:1": None} for row in expected]
    plan = home("query", "EXPLAIN SELECT count(*) FROM d.t WHERE \"wer, auch\" || 'x' = 'ä5x'")
    assert "wer, auch" in plan  # by its name of today, whatever the file calls it
    source = home.path / "new.jsonl"
    source.write_text(json.dumps({"k": 500, "wer, auch": "x", "neu:1": {"b": ["c"]}}) + "\n")
    home("insert", "d.t", str(source))
    home("merge", "d.t", "--final", "--cold")
    assert home.json("query", 'SELECT "neu:1" FROM d.t WHERE k = 500')["rows"] == [[{"a": None, "b": ["c"]}]]
    assert _held(home)[:-1] == held


@pytest.mark.in_turn
def test_json_and_csv_bring_nested_values(home: Home) -> None:
    """Objects are structs and maps; in CSV they are JSON texts, as a query writes them."""
    home("query", "SELECT * FROM d.t WHERE k < 40", "-o", str(home.path / "out.csv"))
    names = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in KINDS if name != "raw")
    home(
        "query", f"SELECT {names} FROM d.t WHERE k >= 40", "--output-format", "json", "-o", str(home.path / "out.json")
    )
    home("table", "create", "d.again", "--like", str(home.path / "0.parquet"), "--order-by", "k")
    home("insert", "d.again", str(home.path / "out.csv"), "--ignore-unknown", "--select", names)
    document = json.loads((home.path / "out.json").read_text())
    lines = home.path / "out.jsonl"
    columns = [column["name"] for column in document["columns"]]
    lines.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in document["rows"]))
    home("insert", "d.again", str(lines))
    for name in KINDS:
        if name != "raw":
            quoted = f'"{name.replace(chr(34), chr(34) * 2)}"'
            there, here = (
                home.json("query", f"SELECT k, {quoted} FROM {table} ORDER BY k")["rows"]
                for table in ("d.t", "d.again")
            )
            assert here == there, name


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            {"k": 1, "user id": "x", "user": {"id": 1, "other": 2}},
            "user: there are fields that the table does not have: other",
        ),
        ({"k": 1, "user id": "x", "user": 5}, "user"),
        ({"k": 1, "user id": "x", "key": "abc"}, "column key must be uuid"),
        ({"k": 1, "user id": "x", "clock": "25:00"}, "column clock must be time"),
        ({"k": 1, "user id": "x", "attributes": {"a": 1, "b": "c"}}, "column attributes must be map"),
        ({"k": 1, "user id": "x", "took": "soon"}, "column took must be duration"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(home: Home, line: dict[str, Any], said: str) -> None:
    source = home.path / "bad.jsonl"
    source.write_text(json.dumps(line) + "\n")
    home("insert", "d.t", str(source), code=2)
    assert said in home.error
    if "other" in said:
        home("insert", "d.t", str(source), "--ignore-unknown")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--column", "d:decimal(50, 2)"], "keep longer numbers as string"),
        (["--column", "u:list<uuid>"], "--select"),
        (["--column", "s:struct<a: int64, A: int64>"], "differ in case alone"),
        (["--column", "s:struct<>"], "not a column name"),
        (["--column", "s:duration", "--order-by", "s"], "cannot order by s"),
        (["--column", "s:map<string, int64>", "--partition-by", "bucket(4, s)"], "cannot partition by"),
    ],
)
def test_what_cannot_be_is_refused_at_create(home: Home, arguments: list[str], said: str) -> None:
    order = [] if "--order-by" in arguments else ["--order-by", "k"]
    home("table", "create", "d.bad", "--column", "k:int64", *order, *arguments, code=2)
    assert said in home.error


def test_a_plan_of_a_field_restricts_nothing() -> None:
    """By the plan alone: `child_indexes` say that the filter is one of a field."""
    from tiering.table.definitions import define_table
    from tiering.table.pruning import IsNull, Unknown

    definition = define_table("d.t", columns=["k:int64", "s:struct<a: int64>"], order_by="k", policy="p")

    def plan(index: dict[str, Any]) -> str:
        scan = {
            "type": "LOGICAL_GET",
            "function_data": {"table": "planning_0"},
            "table_filters_by_projection": True,
            "column_indexes": [{"index": 1, **index}],
            "table_filters": {"filters": [{"key": 0, "value": {"filter_type": "LEGACY_IS_NULL"}}]},
        }
        return json.dumps({"plans": [scan]})

    field = plan_reads(plan({"child_indexes": [{}]}), {"planning_0": definition}).tables["planning_0"].predicate
    whole = plan_reads(plan({}), {"planning_0": definition}).tables["planning_0"].predicate
    assert Unknown() in _leaves(field)
    assert IsNull("s") in _leaves(whole)


def _leaves(predicate: Any) -> list[Any]:
    children = getattr(predicate, "children", None)
    return [predicate] if children is None else [leaf for child in children for leaf in _leaves(child)]


@pytest.mark.in_turn
def test_damage_in_any_leaf_is_found(home: Home) -> None:
    """Of a column that a query reads, wherever in it: the leaves of a file are not its columns."""
    home("merge", "d.t", "--final")
    (path,) = (home.path / "ssd").glob("store/*/*/all_1_2_1/data-0000.parquet")
    whole = path.read_bytes()
    group = pq.read_metadata(path).row_group(0)
    for number in range(group.num_columns):
        chunk = group.column(number)
        place = chunk.data_page_offset + chunk.total_compressed_size // 2
        if chunk.dictionary_page_offset:
            place = chunk.dictionary_page_offset + chunk.total_compressed_size // 2
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        column = chunk.path_in_schema.split(".")[0] if not chunk.path_in_schema.startswith("x.y") else "x.y"
        quoted = f'"{column.replace(chr(34), chr(34) * 2)}"'
        home("query", f"SELECT count({quoted}), max(k) FROM d.t", code=1)
        assert "is not what was written" in home.error, column
    path.write_bytes(whole)
    home("query", "SELECT count(matrix) FROM d.t")
