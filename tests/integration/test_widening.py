"""Columns whose types became wider: parts of before and after are one table, for every reader, hot, cold and merged."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frostline
from tests.homes import Home

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
WIDER: dict[str, tuple[str, str, Any, Any]] = {
    # The old and the new type, a value of before and one of after, by the row's number.
    "whole": ("int16", "int64", lambda n: n * 9 - 40, lambda n: (n - 5) << 40),
    "fraction": ("int32", "float64", lambda n: n * 9 - 40, lambda n: n * 9.5 - 40),
    "exact": ("int64", "decimal(22, 2)", lambda n: n * 9 - 40, lambda n: Decimal(n * 95 - 400) / 10),
    "price": ("decimal(5, 2)", "decimal(9, 4)", lambda n: Decimal(n * 9 - 40), lambda n: Decimal(n * 95 - 400) / 10),
    "real": ("float32", "float64", lambda n: n / 4, lambda n: n / 3),
    "day": (
        "date",
        "timestamp[us, UTC]",
        lambda n: date(2020, 1, 1) + timedelta(n * 9),
        lambda n: EPOCH + timedelta(n * 9.5),
    ),
    "bare": (
        "date",
        "timestamp[ms]",
        lambda n: date(2020, 1, 1) + timedelta(n * 9),
        lambda n: datetime(2020, 1, 1) + timedelta(n * 9.5),
    ),
    "seconds": (
        "timestamp[s]",
        "timestamp[us]",
        lambda n: datetime(2020, 1, 1 + n),
        lambda n: datetime(2020, 1, 1 + n, 0, 0, 0, 7),
    ),
    "micros": (
        "timestamp[us, UTC]",
        "timestamp[ns, UTC]",
        lambda n: EPOCH + timedelta(n, 0, n),
        lambda n: EPOCH + timedelta(n, 5),
    ),
    "given": ("int64 not null", "int64 null", lambda n: n, lambda n: None if n % 2 else n),
}
ROWS = 12


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(tmp_path, "one", capsys)


@pytest.fixture
def widened(home: Home) -> Home:
    """With a table for each column."""
    return _widened(home, *WIDER)


def _widened(home: Home, *names: str) -> Home:
    """For each of these columns a table that is sorted by it, or by a number where it is in no order."""
    for name in names:
        old, new, before, after = WIDER[name]
        order = "k" if name == "given" else "v"
        home("table", "create", f"d.{name}", "--column", "k:int64", "--column", f"v:{old}", "--order-by", order)
        _insert(home, name, 0, before)
        home("table", "alter", f"d.{name}", "--widen-column", f"v:{new}")
        _insert(home, name, 100, after)
    return home


def _insert(home: Home, name: str, first: int, value: Any) -> None:
    source = home.path / "rows.parquet"
    pq.write_table(pa.table({"k": range(first, first + ROWS), "v": [value(n) for n in range(ROWS)]}), source)
    home("insert", f"d.{name}", str(source))


def _kind(name: str) -> pa.DataType:
    from tiering.table.columns.type_texts import arrow_type

    return arrow_type(WIDER[name][1].removesuffix(" null"))


def _expected(name: str) -> pa.Table:
    _, _, before, after = WIDER[name]
    made = [before(n) for n in range(ROWS)]
    kind = _kind(name)
    if pa.types.is_timestamp(kind) and isinstance(made[0], date) and not isinstance(made[0], datetime):
        made = [datetime(day.year, day.month, day.day, tzinfo=UTC if kind.tz else None) for day in made]
    values = pa.array(made + [after(n) for n in range(ROWS)], kind)
    return pa.table({"k": [*range(ROWS), *range(100, 100 + ROWS)], "v": values})


def _same(home: Home) -> None:
    with frostline.open(home.configuration) as store:
        for name in WIDER:
            expected, table = _expected(name), store.table(f"d.{name}")
            assert table.scan().read_all().sort_by("k").equals(expected), name
            assert table.dataset().to_table().sort_by("k").equals(expected), name
            engine = duckdb.connect()
            table.to_duckdb(engine).create_view("there")
            engine.register("here", expected)
            assert engine.sql("FROM there EXCEPT FROM here").fetchall() == [], name


@pytest.mark.in_turn
def test_every_reader_sees_the_wider_type(widened: Home) -> None:
    home = widened
    _same(home)
    for name in WIDER:
        home("merge", f"d.{name}", "--final")
    _same(home)


@pytest.mark.in_turn
def test_cold_parts_too_and_merges_of_them(widened: Home) -> None:
    home = widened
    for name in WIDER:
        home.to_bucket(table=f"d.{name}")
    _same(home)
    for name in WIDER:
        home("merge", f"d.{name}", "--final", "--cold")
    _same(home)
    home("fsck", "--read-data")


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sorted(WIDER))
def test_filters_find_rows_by_values_and_not_by_their_texts(home: Home, name: str) -> None:
    """Each value as a bound of its own: what `part.json` says of older parts is of another form than of newer ones."""
    _widened(home, name)
    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    engine.register("here", _expected(name))
    ((kind,),) = engine.sql("SELECT DISTINCT typeof(v) FROM here WHERE v IS NOT NULL").fetchall()
    bounds = [text for (text,) in engine.sql("SELECT v::VARCHAR FROM here WHERE v IS NOT NULL").fetchall()]
    for operator in ("<", ">=", "="):
        for bound in bounds[::3]:
            condition = f"v {operator} CAST('{bound}' AS {kind})"
            found = home.json("query", f"SELECT k FROM d.{name} WHERE {condition} ORDER BY k")["rows"]
            wanted = engine.sql(f"SELECT k FROM here WHERE {condition} ORDER BY k").fetchall()
            assert [tuple(row) for row in found] == wanted, condition


@pytest.mark.in_turn
def test_merges_keep_the_order_of_values(widened: Home) -> None:
    """The sparse index of older parts is one of numbers and days, that of newer ones of decimals and moments."""
    home = widened
    for name in WIDER:
        home("merge", f"d.{name}", "--final")
        if name != "given":
            with frostline.open(home.configuration) as store:
                (stored,) = store.parts(f"d.{name}")
                path = home.path / "ssd" / stored.path("data-0000.parquet")
            values = pq.read_table(path)["v"].to_pylist()
            assert values == sorted(values), name


def test_merges_order_parts_by_values_and_not_by_their_texts(home: Home) -> None:
    """The later part is above the earlier one; as texts it would come first."""
    home("table", "create", "d.t", "--column", "k:int64", "--column", "v:int64", "--order-by", "v")
    _insert(home, "t", 0, lambda n: 2 + n % 8)
    home("table", "alter", "d.t", "--widen-column", "v:decimal(22, 2)")
    _insert(home, "t", 100, lambda n: Decimal(10 + n % 2))
    home("merge", "d.t", "--final")
    (path,) = (home.path / "ssd").glob("store/*/*/all_1_2_1/data-0000.parquet")
    values = pq.read_table(path)["v"].to_pylist()
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("int64", "int32", "types may only widen: int64 to decimal(19, 0)"),
        ("int64", "float64", "types may only widen"),
        ("int64", "decimal(20, 2)", "types may only widen"),
        ("uint64", "int64", "types may only widen"),
        ("decimal(5, 2)", "decimal(6, 4)", "as many digits before and after"),
        ("timestamp[us, UTC]", "timestamp[ns]", "ns in the same zone"),
        ("timestamp[us]", "timestamp[ms]", "types may only widen"),
        ("timestamp[us]", "date", "types may only widen"),
        ("string", "binary", "string to nothing"),
        ("int64", "int64 null", "types may only widen"),
    ],
)
def test_what_could_lose_a_value_is_refused(home: Home, old: str, new: str, said: str) -> None:
    home("table", "create", "d.t", "--column", "k:int64", "--column", f"v:{old}", "--order-by", "k")
    home("table", "alter", "d.t", "--widen-column", f"v:{new}", code=2)
    assert said in home.error


def test_moments_that_nanoseconds_do_not_reach_are_refused(home: Home) -> None:
    home("table", "create", "d.far", "--column", "v:timestamp[us]", "--order-by", "v")
    source = home.path / "far.csv"
    source.write_text("v\n2020-01-01 00:00:00\n2300-01-01 00:00:00\n")
    home("insert", "d.far", str(source))
    home("table", "alter", "d.far", "--widen-column", "v:timestamp[ns]", code=2)
    assert "2300-01-01" in home.error


def test_a_partition_keeps_its_name(home: Home) -> None:
    columns = ("--column", "ts:date", "--column", "n:int32", "--order-by", "ts")
    home("table", "create", "d.t", *columns, "--partition-by", "month(ts), bucket(4, n)")
    home("table", "alter", "d.t", "--widen-column", "n:decimal(12, 0)", code=2)
    assert "bucket(4, n) would give" in home.error
    source = home.path / "rows.csv"
    source.write_text("ts,n\n2020-01-31,7\n")
    home("insert", "d.t", str(source))
    home("table", "alter", "d.t", "--widen-column", "n:int64", "--widen-column", "ts:timestamp[us, UTC]")
    source.write_text("ts,n\n2020-01-31 23:59:59.999999,7\n")
    home("insert", "d.t", str(source))
    assert len({part["part"].split("_")[0] for part in home.json("parts", "d.t")["parts"]}) == 1
    assert home.json("query", "SELECT count(*) FROM d.t WHERE ts >= '2020-01-31'")["rows"] == [[2]]
    home("merge", "d.t", "--final")
    assert home.json("query", "SELECT count(*) FROM d.t WHERE ts < '2020-01-31 12:00:00'")["rows"] == [[1]]
