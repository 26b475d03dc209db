"""Columns that a statement does not read and does not name are left out when it runs; never where that changes what it
says. Its answer is that of the engine over tables that have all of them."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig
from oplog.errors import UsageError
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.catalog.context import Context
from tiering.query.query import run_sql
from tiering.query.sql import session as sql_session
from tiering.query.sql.planning import connect
from tiering.query.sql.statement import read_statement

MANY = {"k": [1, 2, 3], "shared": [10, 20, 30], 'a"b': [5, 6, 7], "far": [8, 8, 9], "GROSS": [1, 1, 2]}
MORE = {"shared": [20, 30, 40], "name": ["x", "y", "z"], "k2": [1, 2, 3]}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """Which all tests here read only."""
    path = tmp_path_factory.mktemp("unnamed")
    context = make_context(path, {"ssd": LocalDiskConfig(path=str(path / "ssd"))})
    for name, columns in (("u.many", MANY), ("u.more", MORE)):
        kinds = {column: "string" if column == "name" else "int64" for column in columns}
        definition = define(name, kinds, [next(iter(columns))])
        put_table(context, definition)
        for block in range(3):
            rows = pa.table({column: [values[block]] for column, values in columns.items()})
            put_part(context, definition, "ssd", rows, block)
    return context


STATEMENTS = (
    "SELECT count(*) FROM u.many",
    "SELECT 1 AS one FROM u.many",
    "SELECT sum(k) FROM u.many WHERE far > 8",
    "SELECT sum(k) FROM u.many WHERE gross = 1",
    'SELECT sum("a""b") FROM u.many',
    'SELECT count(*) FROM (SELECT k, "a""b", Far FROM u.many)',
    "SELECT k FROM (SELECT * FROM u.many) ORDER BY k",
    "SELECT count(*) FROM (SELECT * FROM u.many)",
    "SELECT typeof(many) FROM u.many LIMIT 1",
    "SELECT typeof(m) FROM u.many AS m LIMIT 1",
    "SELECT typeof(m) FROM u.many AS M LIMIT 1",
    "SELECT count(m) FROM u.many m",
    "SELECT count(u.many) FROM u.many",
    "SELECT len(json_keys(to_json(m))) FROM u.many m LIMIT 1",
    "SELECT typeof(COLUMNS(*)) FROM u.many LIMIT 1",
    "SELECT typeof(COLUMNS('a|r')) FROM u.many LIMIT 1",
    "SELECT typeof(COLUMNS(lambda c: c LIKE '%a%')) FROM u.many LIMIT 1",
    "SELECT many.* FROM u.many ORDER BY k",
    "SELECT name FROM u.many NATURAL JOIN u.more ORDER BY name",
    "SELECT count(*) FROM u.many NATURAL JOIN u.more",
    "SELECT count(*) FROM u.many NATURAL LEFT JOIN u.more",
    "SELECT count(*) FROM u.many JOIN u.more USING (shared)",
    "SELECT count(*) FROM u.many LEFT JOIN u.more ON many.k = more.k2",
    "SELECT count(*) FROM u.many POSITIONAL JOIN u.more",
    "SELECT count(*) FROM u.many ASOF JOIN u.more ON many.k >= more.k2",
    "SELECT count(*) FROM u.many WHERE EXISTS (FROM u.more WHERE k2 = k)",
    "SELECT k AS far FROM u.many WHERE far = 8 ORDER BY far",
    "SELECT k AS name FROM u.many ORDER BY name",
    "WITH c AS (SELECT * FROM u.many) SELECT count(*) FROM c",
    "WITH c AS (SELECT k AS far FROM u.many) SELECT sum(far) FROM c",
    "SELECT count(*) FROM (UNPIVOT u.many ON k, far)",
    "SELECT k FROM u.many UNION ALL SELECT k2 FROM u.more ORDER BY 1",
    "SELECT * EXCLUDE (far) FROM u.many ORDER BY k",
    "FROM u.more ORDER BY k2",
    "SELECT b FROM u.many AS m(a, b) ORDER BY b",
    "SELECT x, far FROM u.many AS m(a, b, x) ORDER BY ALL",
    "SELECT #2 FROM u.more ORDER BY 1",
    "SELECT typeof(s) FROM (u.many) AS s LIMIT 1",
    "SELECT typeof(s) FROM (u.many JOIN u.more ON k = k2) AS s LIMIT 1",
    "SELECT b FROM (SELECT far, k FROM u.many) AS s(a, b) ORDER BY b",
    "WITH c(a, b) AS (SELECT far, k FROM u.many) SELECT b FROM c ORDER BY b",
    # What the engine computes though nobody wants it:
    "SELECT k, count(*) FROM (SELECT k, sum(far) OVER (PARTITION BY gross) AS w FROM u.many) GROUP BY k ORDER BY k",
    "WITH c AS (SELECT count(*) AS n, sum(DISTINCT far) FROM u.many GROUP BY ROLLUP (k)) SELECT n FROM c ORDER BY n",
    "SELECT count(*) FROM (SELECT k, count(DISTINCT far), count(DISTINCT gross) FROM u.many GROUP BY CUBE (k, shared))",
    "SELECT count(DISTINCT shared) OVER () FROM u.many ORDER BY k LIMIT 1",
)


@pytest.mark.in_turn
@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_answer_is_that_of_whole_tables(context: Context, statement: str) -> None:
    with connect() as whole:
        whole.execute("CREATE SCHEMA u")
        for name, columns in (("u.many", MANY), ("u.more", MORE)):
            whole.register("rows", pa.table(columns))
            whole.execute(f"CREATE TABLE {name} AS FROM rows")
        try:
            expected = whole.sql(statement).to_arrow_table()
        except duckdb.Error as error:
            pytest.fail(f"the statement is wrong: {error}")
    answer = run_sql(context, statement, resolver(context)).read_all()
    assert answer.column_names == expected.column_names
    assert [tuple(row.values()) for row in answer.to_pylist()] == [tuple(row.values()) for row in expected.to_pylist()]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("statement", "declared"),
    [
        ("SELECT count(*) FROM u.many", ["k"]),
        ("SELECT sum(far) FROM u.many WHERE gross = 1", ["far", "GROSS"]),
        ('SELECT "a""b" FROM u.many', ['a"b']),
        ("SELECT count(*) FROM (SELECT * FROM u.many)", list(MANY)),
        ("SELECT 'far' FROM u.many", ["far"]),
    ],
)
def test_what_a_statement_cannot_mean_is_not_declared(
    context: Context, monkeypatch: pytest.MonkeyPatch, statement: str, declared: list[str]
) -> None:
    original, seen = sql_session.declare, []

    def declare(connection: duckdb.DuckDBPyConnection, definition: object, name: str, *how: object) -> None:
        original(connection, definition, name, *how)  # type: ignore[arg-type]
        seen.extend(connection.sql(f"FROM {name}").columns)

    monkeypatch.setattr(sql_session, "declare", declare)
    run_sql(context, statement, resolver(context)).read_all()
    assert seen == declared


def test_names_are_compared_as_the_engine_compares_them() -> None:
    with connect() as connection:
        statement = read_statement(connection, 'SELECT "Größe", "a""b" FROM u.t')
    assert [statement.may_mean(name) for name in ("größe", "GRößE", 'A"B', "GRÖSSE", "other")] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.in_turn
@pytest.mark.parametrize("sets", ["ROLLUP (far)", "CUBE (far)", "GROUPING SETS ((far), ())", "ROLLUP (far, far)"])
def test_grouping_sets_read_only_their_columns(context: Context, sets: str) -> None:
    """P14's kind: what is asked for is read, and nothing else."""
    plain = run_sql(context, "SELECT far, count(*) AS n FROM u.many GROUP BY far", resolver(context))
    sets_read = run_sql(context, f"SELECT far, count(*) AS n FROM u.many GROUP BY {sets}", resolver(context))
    assert len(plain.read_all()) == 2
    assert len(sets_read.read_all()) >= 3
    assert sets_read.bytes_read == plain.bytes_read > 0


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN SELECT"),
        ("PIVOT u.many ON far USING count(*)", "IN ("),
        ("SELECT * FROM (PIVOT u.many ON far USING count(*))", "IN ("),
        ("COPY u.many TO 'x.csv'", "-o FILE"),
    ],
)
def test_the_hint_names_what_works(context: Context, statement: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        run_sql(context, statement, resolver(context))
    assert hint in refused.value.hint
