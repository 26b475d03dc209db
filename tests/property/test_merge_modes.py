"""I13: every merge mode against DuckDB's answer to the same question, whatever types, nulls, NaNs and batches; and in
two steps, as parts merge, the same as in one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oplog.errors import UsageError
from tests.turns import examples
from tiering.merge import rows as merge_rows
from tiering.merge.rows import combine_rows
from tiering.parquet.sorting import sort_table
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table
from tiering.table.merge_modes import parse_merge_mode
from tiering.table.schema import TableDefinition

_database = duckdb.connect()
_database.execute("SET TimeZone = 'UTC'; SET threads = 1")
merging = settings(deadline=None, max_examples=examples(80))

START = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-9, 9),
    "int64": st.integers(-(2**40), 2**40),
    "uint64": st.integers(0, 2**60) | st.just(2**63 + 1),
    "float32": st.sampled_from([-1.5, 0.0, 0.25, float("nan"), float("inf")]),
    "float64": st.sampled_from([-1.5, 0.0, 0.25, 7.0, float("nan"), float("inf")]),
    "decimal(10, 2)": st.integers(-500, 500).map(lambda number: Decimal(number) / 100),
    "decimal(38, 0)": st.integers(-(10**36), 10**36).map(Decimal),
    "bool": st.booleans(),
    "date": st.integers(0, 5).map(lambda days: date(2026, 1, 1) + timedelta(days=days)),
    "timestamp[us, UTC]": st.integers(0, 5).map(lambda hours: START + timedelta(hours=hours)),
    "string": st.sampled_from(["", "a", "Z", "é", "aa"]),
    "binary": st.sampled_from([b"", b"\x00", b"\xff"]),
    "list<int64>": st.lists(st.integers(0, 3), max_size=2),
}
NUMBERS = ("int8", "int64", "uint64", "float32", "float64", "decimal(10, 2)", "decimal(38, 0)")
VERSIONS = (*NUMBERS, "date", "timestamp[us, UTC]")
KEYS = ("int64", "float64", "string", "decimal(10, 2)", "bool", "timestamp[us, UTC]")
SQL = {
    "min": "min({0})",
    "max": "max({0})",
    "sum": "sum({0})",
    "any": "first({0} ORDER BY seq) FILTER ({0} IS NOT NULL)",
    "anyLast": "last({0} ORDER BY seq) FILTER ({0} IS NOT NULL)",
    "": "first({0} ORDER BY seq)",
}


@pytest.fixture(autouse=True, scope="module")
def _small_tables() -> Iterator[None]:
    """Tables of a few rows are not gathered into one, so that runs reach over several, and long ones are shortened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_rows, "_COMBINE_ROWS", 4)
        patch.setattr(merge_rows, "_HELD_ROWS", 6)
        yield


def defined(columns: Sequence[str], mode: str, order_by: str = "k,t") -> TableDefinition:
    return define_table("a.b", columns=columns, order_by=order_by, policy="p", merge_mode=mode)


def a_column(data: st.DataObject, kind: str, count: int) -> list[Any]:
    return data.draw(st.lists(VALUES[kind] | st.none(), min_size=count, max_size=count))


def inserted(data: st.DataObject, definition: TableDefinition) -> pa.Table:
    """Rows as they were inserted, few keys among them."""
    count = data.draw(st.integers(1, 25))
    columns = {}
    for column in definition.columns:
        if column.name in definition.order_by:
            pool = data.draw(st.lists(VALUES[column.type] | st.none(), min_size=1, max_size=3))
            columns[column.name] = data.draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
        else:
            columns[column.name] = a_column(data, column.type, count)
    return pa.table(columns, arrow_schema(definition))


def combined(data: st.DataObject, table: pa.Table, definition: TableDefinition) -> pa.Table:
    """The rows merged at once, in tables of a random size."""
    ordered = sort_table(table, definition.order_by)
    size = data.draw(st.integers(1, 9))
    return pa.concat_tables(
        combine_rows((ordered.slice(start, size) for start in range(0, len(ordered), size)), definition)
    )


def in_two_steps(data: st.DataObject, table: pa.Table, definition: TableDefinition) -> pa.Table:
    """The rows merged as parts of three inserts, two of which, adjacent ones, were merged before."""
    first, second = sorted(data.draw(st.tuples(st.integers(0, len(table)), st.integers(0, len(table)))))
    pieces = [table.slice(0, first), table.slice(first, second - first), table.slice(second)]
    merged = slice(0, 2) if data.draw(st.booleans()) else slice(1, 3)
    members = pa.concat_tables(pieces[merged])
    pieces[merged] = [combined(data, members, definition) if members.num_rows else members]
    return combined(data, pa.concat_tables(pieces), definition)


def answer(table: pa.Table, sql: str) -> list[str]:
    numbered = table.append_column("seq", pa.array(range(len(table)), pa.int64()))
    _database.register("inserted", numbered)
    return plain(_database.sql(sql).to_arrow_table().cast(table.schema))


def plain(table: pa.Table) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in table.to_pylist())


@merging
@given(st.data())
def test_replacing_is_the_row_with_the_highest_version(data: st.DataObject) -> None:
    kinds = data.draw(st.tuples(st.sampled_from(KEYS), st.sampled_from(VERSIONS)))
    definition = defined([f"k:{kinds[0]}", "t:string", f"v:{kinds[1]}", "x:string"], "replacing:v")
    table = inserted(data, definition)
    number = "isnan(v)" if kinds[1].startswith("float") else "false"
    expected = answer(
        table,
        f"""SELECT k, t, v, x FROM inserted QUALIFY row_number() OVER (PARTITION BY k, t
        ORDER BY v IS NULL, {number}, v DESC, seq DESC) = 1""",
    )
    assert plain(combined(data, table, definition)) == expected
    assert plain(in_two_steps(data, table, definition)) == expected


@merging
@given(st.data())
def test_aggregating_is_a_group_by(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(KEYS))
    chosen = []
    for kind in data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4)):
        possible = [function for function in SQL if function != "sum" or kind in NUMBERS]
        if kind.startswith("list"):
            possible = [function for function in possible if function not in ("min", "max")]
        chosen.append((kind, data.draw(st.sampled_from(possible))))
    named = [f"c{place}={function}" for place, (_, function) in enumerate(chosen) if function]
    assume(named)
    columns = [f"c{place}:{kind}" for place, (kind, _) in enumerate(chosen)]
    definition = defined([f"k:{key}", "t:string", *columns], f"aggregating:{','.join(named)}")
    table = inserted(data, definition)
    values = ", ".join(f"{SQL[function].format(f'c{place}')} AS c{place}" for place, (_, function) in enumerate(chosen))
    try:
        expected = answer(table, f"SELECT k, t, {values} FROM inserted GROUP BY k, t")
    except (duckdb.Error, pa.ArrowInvalid):  # a sum that does not fit
        with pytest.raises(UsageError, match="does not fit"):
            combined(data, table, definition)
        return
    assert plain(combined(data, table, definition)) == expected
    if not any(function == "sum" for _, function in chosen):  # partial sums may not fit where the whole does
        assert plain(in_two_steps(data, table, definition)) == expected


@merging
@given(st.data())
def test_summing_is_aggregating_by_sums(data: st.DataObject) -> None:
    columns = ["k:float64", "t:string", "n:int64", "m:decimal(10, 2)", "x:string"]
    summing, aggregating = defined(columns, "summing:n,m"), defined(columns, "aggregating:n=sum,m=sum")
    table = inserted(data, summing)
    found = plain(combined(data, table, summing))
    assert found == plain(combined(data, table, aggregating)) == plain(in_two_steps(data, table, summing))
    sql = "SELECT k, t, sum(n) n, sum(m) m, first(x ORDER BY seq) x FROM inserted GROUP BY k, t"
    assert found == answer(table, sql)


@merging
@given(st.data())
def test_a_tombstone_stays_until_a_merge_covers_everything(data: st.DataObject) -> None:
    """Whichever parts merge first, no older row comes back; the last merge leaves no tombstone."""
    marks = data.draw(st.sampled_from(["bool", "int8"]))
    columns = ["k:int64", "t:string", "v:int8", f"gone:{marks}", "x:string"]
    definition = defined(columns, "replacing:v,gone")
    table = inserted(data, definition)
    winners = """SELECT k, t, v, gone, x FROM inserted QUALIFY row_number() OVER (PARTITION BY k, t
    ORDER BY v DESC NULLS LAST, seq DESC) = 1"""
    partial = in_two_steps(data, table, definition)
    assert plain(partial) == answer(table, winners)
    final = pa.concat_tables(combine_rows([partial], definition, drop_deleted=True))
    assert plain(final) == answer(table, f"FROM ({winners}) WHERE NOT coalesce(gone::BOOL, false)")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int8", [100, 100]),
        ("int64", [2**62, 2**62]),
        ("int64", [-(2**63), -1]),
        ("uint64", [2**63, 2**63]),
        ("decimal(4, 0)", [Decimal(9999), Decimal(1)]),
        ("decimal(38, 0)", [Decimal(9 * 10**37), Decimal(9 * 10**37)]),
    ],
)
def test_a_sum_that_does_not_fit_is_an_error(kind: str, values: list[Any]) -> None:
    definition = defined(["k:int64", f"n:{kind}"], "summing:n", order_by="k")
    table = pa.table({"k": [1] * len(values), "n": values}, arrow_schema(definition))
    with pytest.raises(UsageError, match="sum of column n"):
        list(combine_rows([table], definition))


@pytest.mark.parametrize("values", [[math.nan, 1.0], [1.0, math.nan, None], [None, math.nan]])
def test_nan_is_above_all_numbers(values: list[float | None]) -> None:
    definition = defined(["k:int64", "a:float64", "b:float64"], "aggregating:a=min,b=max", order_by="k")
    table = pa.table({"k": [1] * len(values), "a": values, "b": values}, arrow_schema(definition))
    ((least, most),) = [(row["a"], row["b"]) for out in combine_rows([table], definition) for row in out.to_pylist()]
    assert math.isnan(most)
    assert least == 1.0 if 1.0 in values else math.isnan(least)


def test_a_sum_may_pass_its_type_on_the_way() -> None:
    definition = defined(["k:int64", "n:int64"], "summing:n", order_by="k")
    table = pa.table({"k": [1, 1, 1], "n": [2**63 - 1, 5, -6]}, arrow_schema(definition))
    assert [row["n"] for out in combine_rows([table], definition) for row in out.to_pylist()] == [2**63 - 2]


@given(st.sampled_from(["replacing", "replacing:v", "replacing:v,d", "summing:a,b", "aggregating:a=min,b=anyLast"]))
def test_a_mode_is_its_text(text: str) -> None:
    mode = parse_merge_mode(text)
    assert str(mode) == text
    assert str(mode.renamed("a", "z").renamed("z", "a")) == text
    assert parse_merge_mode(str(mode.renamed("v", "w"))).version in (None, "w")
