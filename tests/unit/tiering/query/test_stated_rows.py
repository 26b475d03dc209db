"""Counts, outermost values and first rows of parts in a bucket: from `part.json`, or of the fewest row groups."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from tests.tiers import altered, define, make_context, put_part, put_table, resolver
from tiering.catalog.context import Context
from tiering.query.query import QueryResult, run_sql
from tiering.query.sql.planning import connect
from tiering.table.schema import Column, PartitionField, TableSettings

ROWS, PARTS = 400, 4
START = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = {
    "k": "int64",
    "ts": "timestamp[us, UTC]",
    "day": "date",
    "d": "decimal(12, 2)",
    "s": "string",
    "long": "string",
    "f": "float64",
    "n": "int32",
    "nil": "int32",
    "nano": "timestamp[ns]",
    "b": "bool",
}


def rows_of(start: int) -> pa.Table:
    keys = range(start, start + ROWS)
    times = [START + timedelta(hours=7, minutes=key * 60) for key in keys]
    columns = {
        "k": pa.array(keys, pa.int64()),
        "ts": pa.array(times, pa.timestamp("us", "UTC")),
        "day": pa.array([date(1960, 1, 1) + timedelta(days=key % 90) for key in keys]),
        "d": pa.array([Decimal(key - 700) / 4 for key in keys], pa.decimal128(12, 2)),
        "s": pa.array([f"it's {key * 7919 % 4001:04d}" for key in keys]),
        "long": pa.array([f"{key:070d}" for key in keys]),
        "f": pa.array([float("nan") if key % 100 == 7 else key / 3 for key in keys]),
        "n": pa.array([None if key % 3 else key for key in keys], pa.int32()),
        "nil": pa.nulls(ROWS, pa.int32()),
        "nano": pa.array([key * 1001 for key in keys], pa.timestamp("ns")),
        "b": pa.array([key % 2 == 0 for key in keys]),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return pa.concat_tables([rows_of(number * ROWS) for number in range(PARTS)])


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory, rows: pa.Table) -> Context:
    home = tmp_path_factory.mktemp("home")
    disks = {"ssd": LocalDiskConfig(path=str(home / "ssd")), "s3": ObjectDiskConfig(url="memory://stated-rows/")}
    context = make_context(home, disks)
    settings = TableSettings(row_group_rows=50)
    definition = define("u.t", TYPES, ["k"], settings=settings, partition_by=[PartitionField("day", "ts")])
    put_table(context, definition)
    for number in range(PARTS):
        put_part(context, definition, "s3", rows.slice(number * ROWS, ROWS), number + 1)
    return context


@pytest.fixture(scope="module")
def engine(rows: pa.Table) -> duckdb.DuckDBPyConnection:
    engine = connect()
    engine.execute("CREATE SCHEMA u")
    engine.register("rows", rows)
    engine.execute("CREATE TABLE u.t AS FROM rows")
    return engine


def run(context: Context, sql: str) -> tuple[QueryResult, list[tuple[object, ...]]]:
    result = run_sql(context, sql, resolver(context))
    return result, [tuple(row.values()) for row in result.read_all().to_pylist()]


STATED = [
    "SELECT count(*) FROM u.t WHERE ts >= '2026-01-03' AND ts < '2026-01-20'",
    "SELECT count(*) FROM u.t WHERE ts >= '2026-01-03' OR k < 0",
    "SELECT count(*) + 1 AS n, min(k) AS low FROM u.t WHERE NOT (ts < '2026-01-03')",
    "SELECT min(k) AS a, max(k) AS b, min(ts) AS c, max(ts) AS d FROM u.t",
    "SELECT min(day) AS a, max(day) AS b, min(d) AS c, max(d) AS d, min(s) AS e, max(s) AS f, max(b) AS g FROM u.t",
    "SELECT count(n) AS a, min(n) AS b, max(n) AS c, count(*) AS d FROM u.t",
    "SELECT count(nil) AS a, min(nil) AS b, count(k) AS c FROM u.t",
    "SELECT count(*) FROM u.t WHERE nil IS NULL AND k IS NOT NULL",
    "SELECT max(d) FROM (SELECT d, ts AS t FROM u.t) WHERE t BETWEEN '2026-01-03' AND '2026-01-09 23:59:59'",
    "SELECT count(*) FROM u.t WHERE long >= '0' AND s LIKE 'it''s%'",
    "SELECT count(*) FROM u.t WHERE k > 100000",
]
READ = [
    "SELECT max(f) FROM u.t",
    "SELECT min(f) FROM u.t",
    "SELECT min(long) AS a, max(long) AS b FROM u.t",
    "SELECT epoch_ns(max(nano)) AS b FROM u.t",
    "SELECT count(DISTINCT k) FROM u.t",
    "SELECT count(*) FILTER (WHERE k > 100) FROM u.t",
    "SELECT min(k + 1) FROM u.t",
    "SELECT min(k, 2) FROM u.t",
    "SELECT any_value(b) IS NULL FROM u.t",
    "SELECT day, max(k) FROM u.t GROUP BY day ORDER BY day",
    "SELECT count(*) FROM u.t WHERE k % 2 = 0",
    "SELECT count(*) FROM (SELECT k % 7 AS m FROM u.t) WHERE m = 3",
    "SELECT count(*) FROM u.t WHERE n >= 0",
    "SELECT count(*) FROM u.t WHERE n IS NULL OR n >= 0",
    "SELECT count(*) FROM u.t WHERE f > -1",
    "SELECT min(k) FROM (SELECT k FROM u.t LIMIT 700)",
    "SELECT max(x.k) FROM u.t x, u.t y WHERE x.k = y.k + 1",
    "SELECT max(k) FROM u.t WHERE k < (SELECT max(n) FROM u.t)",
]


@pytest.mark.parametrize("sql", STATED)
def test_what_part_json_says_is_not_asked(context: Context, engine: duckdb.DuckDBPyConnection, sql: str) -> None:
    result, rows = run(context, sql)
    assert rows == engine.execute(sql).fetchall()
    assert (result.requests, result.bytes_read) == (0, 0)


@pytest.mark.parametrize("sql", READ)
def test_what_it_does_not_say_is_read(context: Context, engine: duckdb.DuckDBPyConnection, sql: str) -> None:
    result, rows = run(context, sql)
    assert repr(rows) == repr(engine.execute(sql).fetchall())
    assert result.requests > 0


def test_only_parts_with_some_rows_are_read(context: Context, engine: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT count(*), min(ts), max(s) FROM u.t WHERE ts >= '2026-01-03 11:30' AND ts < '2026-01-20'"
    result, rows = run(context, sql)
    assert rows == engine.execute(sql).fetchall()
    assert 0 < result.requests <= 2


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (1, 0), (5, 3), (30, 0), (1000, 300), (5000, 0), (5, 1590)])
@pytest.mark.parametrize("where", ["", " WHERE k >= 0"])
def test_some_rows_need_few_requests(
    context: Context, engine: duckdb.DuckDBPyConnection, limit: int, offset: int, where: str
) -> None:
    result, rows = run(context, f"SELECT k, s FROM u.t{where} LIMIT {limit} OFFSET {offset}")
    assert len(rows) == min(limit, PARTS * ROWS - offset)
    assert set(rows) <= set(engine.execute("SELECT k, s FROM u.t").fetchall())
    assert len(set(rows)) == len(rows)
    assert result.requests <= 2 + (limit + offset) // 17


def test_rows_that_a_filter_may_leave_out_are_read(context: Context) -> None:
    result, rows = run(context, "SELECT k FROM u.t WHERE n = 1200 LIMIT 3")
    assert rows == [(1200,)]
    assert result.requests > 0


def test_what_a_column_was_before_is_read(tmp_path: Path) -> None:
    """Its ranges are of the values that it had."""
    disks = {"s3": ObjectDiskConfig(url="memory://stated-before/")}
    context = make_context(tmp_path, disks)
    definition = define("u.v", {"k": "int64", "n": "int32"}, ["k"])
    put_table(context, definition)
    put_part(context, definition, "s3", pa.table({"k": [1, 2], "n": pa.array([5, 6], pa.int32())}), 1)
    later = altered(definition, [*definition.columns, Column(20, "late", "int64", default=7)])
    put_table(context, later)
    put_part(context, later, "s3", pa.table({"k": [3], "n": pa.array([9], pa.int32()), "late": [1]}), 2)
    _, rows = run(context, "SELECT min(late), max(late), count(late), max(n), count(*) FROM u.v")
    assert rows == [(1, 7, 3, 9, 3)]
