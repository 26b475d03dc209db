"""One engine for the queries of a store: nothing of a query is left in it, and it reads no other files than it may."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig
from oplog.errors import FrostlineError, LimitReached, UsageError
from tests.tiers import altered, define, make_context, put_part, put_table, resolver
from tiering.catalog.context import Context
from tiering.query.query import run_sql
from tiering.query.scan import scan
from tiering.query.selection import select_files
from tiering.query.sql import engine as engines
from tiering.query.sql.engine import Engine
from tiering.query.sql.planning import connect, plan_statement
from tiering.query.sql.session import SqlSession
from tiering.query.sql.statement import read_statement
from tiering.table.pruning import And, Compare, Or
from tiering.table.schema import Column, TableDefinition


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})


@pytest.fixture
def table(context: Context) -> TableDefinition:
    definition = define("u.many", {"k": "int64", "other": "int64", "unread": "string"}, ["k"])
    put_table(context, definition)
    put(context, definition, 1)
    return definition


def put(context: Context, definition: TableDefinition, block: int) -> None:
    numbers = pa.array([block], pa.int64())
    put_part(context, definition, "ssd", pa.table({"k": numbers, "other": numbers, "unread": ["x"]}), block)


def rows_of(context: Context, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in run_sql(context, sql, resolver(context)).read_all().to_pylist()]


def kept(context: Context) -> Engine:
    (engine,) = context.idle_engines
    assert isinstance(engine, Engine)
    return engine


def left_in(engine: Engine) -> list[tuple[str]]:
    """The views and tables that are there between two queries."""
    views = engine.connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    return [*views, *engine.connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]


def test_the_next_query_gets_the_engine_without_earlier_rows(context: Context, table: TableDefinition) -> None:
    assert rows_of(context, "SELECT k FROM u.many") == [(1,)]
    first = kept(context)
    assert rows_of(context, "SELECT count(*) FROM system.tables") == [(1,)]
    assert scan(context, table, context.catalog.parts(table), columns=["k"]).read_all().num_rows == 1
    assert kept(context) is first
    assert left_in(first) == [("many",), ("empty_1",)]
    assert first.connection.execute("SELECT count(*) FROM u.many").fetchall() == [(0,)]


def test_a_table_that_was_altered_is_planned_as_it_is(context: Context, table: TableDefinition) -> None:
    assert rows_of(context, "SELECT * FROM u.many") == [(1, 1, "x")]
    first = kept(context)
    more = (*table.columns, Column(id=4, name="more", type="int64"))
    put_table(context, altered(table, more))
    context.catalog.refresh()
    assert rows_of(context, "SELECT more, k FROM u.many WHERE more IS NULL") == [(None, 1)]
    assert kept(context) is first
    assert left_in(first) == [("many",), ("empty_2",)]


def test_tables_whose_names_differ_in_case_are_told_apart(context: Context, table: TableDefinition) -> None:
    other = define("u.Many", {"k": "int64", "name": "string"}, ["k"])
    put_table(context, other)
    put_part(context, other, "ssd", pa.table({"k": pa.array([7], pa.int64()), "name": ["y"]}), 1)
    for _ in range(2):
        assert rows_of(context, "SELECT * FROM u.many") == [(1, 1, "x")]
        assert rows_of(context, "SELECT * FROM u.Many") == [(7, "y")]
    assert len(left_in(kept(context))) == 2


def test_a_query_of_other_files_gets_an_engine_that_reads_both(context: Context, table: TableDefinition) -> None:
    rows_of(context, "SELECT k FROM u.many")
    first = kept(context)
    put(context, table, 2)
    assert rows_of(context, "SELECT k FROM u.many ORDER BY k") == [(1,), (2,)]
    second = kept(context)
    assert second is not first
    assert rows_of(context, "SELECT other FROM u.many WHERE k = 1") == [(1,)]
    put(context, table, 3)
    assert scan(context, table, context.catalog.parts(table), columns=["k"]).read_all().num_rows == 3
    assert kept(context) is not second


def test_an_engine_whose_query_failed_or_was_left_is_not_kept(context: Context, table: TableDefinition) -> None:
    with pytest.raises(UsageError):
        rows_of(context, "SELECT nothing FROM u.many")
    with pytest.raises(FrostlineError):
        rows_of(context, "SELECT CAST('x' || k AS BIGINT) FROM u.many")
    next(run_sql(context, "SELECT k FROM u.many, range(1000000)", resolver(context)).batches())
    assert context.idle_engines == []


def test_an_engine_ends_after_so_many_queries(
    context: Context, table: TableDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_QUERIES", 2)
    rows_of(context, "SELECT k FROM u.many")
    rows_of(context, "SELECT k FROM u.many")
    assert context.idle_engines == []


def test_a_forked_process_makes_its_own(context: Context, table: TableDefinition) -> None:
    rows_of(context, "SELECT k FROM u.many")
    child = os.fork()
    if child == 0:
        os._exit(0 if rows_of(context, "SELECT k FROM u.many") == [(1,)] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert rows_of(context, "SELECT k FROM u.many") == [(1,)]


_FORK = """
import os
from types import SimpleNamespace
from tiering.query.sql.engine import take_engine

context = SimpleNamespace(workers=2, idle_engines=[])
engine = take_engine(context)
engine.begin(ordered=True)
engine.allow(context, [])
engine.give_back(context)
assert context.idle_engines == [engine]
if (child := os.fork()) == 0:
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
assert take_engine(context) is not engine
"""


def test_a_forked_process_ends_as_any_other() -> None:
    """The engine has threads, which it does not have there: it crashed where the engine ended."""
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=120)


def test_what_a_killed_query_left_goes_with_the_next_one(
    context: Context, table: TableDefinition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed = """
import os, signal
from tiering.query.sql.engine import Engine
engine = Engine()
(engine.kept_directory.parent / "spilled").write_bytes(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed])
    assert [path.name for path in tmp_path.glob("frostline-query-*/*/spilled")] == ["spilled"]
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert rows_of(context, "SELECT k FROM u.many") == [(1,)]
    assert list(tmp_path.glob("frostline-query-*/*/spilled")) == []
    kept(context).close()
    assert [entry for place in tmp_path.glob("frostline-query-*") for entry in place.iterdir()] == []


def test_a_kept_engine_is_locked(context: Context, table: TableDefinition, tmp_path: Path) -> None:
    rows_of(context, "SELECT k FROM u.many")
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with ExitStack() as closing:
        session = SqlSession(context, closing)
        for sql in (
            f"SELECT * FROM read_csv('{secret}')",
            f"COPY (SELECT 1) TO '{tmp_path}/written.csv'",
            f"ATTACH '{tmp_path}/other.db'",
            "SET threads = 1",
            "SET allowed_paths = []",
            "RESET allowed_paths",
            "SET allowed_configs = ['threads']",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "SET python_enable_replacements = true",
        ):
            session.connection.execute("ROLLBACK")
            session.connection.execute("BEGIN")
            with pytest.raises(duckdb.Error):
                session.connection.execute(sql).fetchall()
    assert not (tmp_path / "written.csv").exists()


def test_a_query_is_planned_for_the_moment_at_which_it_runs(context: Context) -> None:
    """Planned at an earlier one, the part of rows that came meanwhile would be left out."""
    rows_of(context, "SELECT 1")
    definition = define("u.times", {"ts": "timestamp[us, UTC]"}, ["ts"])
    put_table(context, definition)
    for block in (1, 2):
        (moment,) = rows_of(context, "SELECT now() AS ts")[0]
        put_part(context, definition, "ssd", pa.table({"ts": pa.array([moment], pa.timestamp("us", "UTC"))}), block)
        assert rows_of(context, "SELECT count(*) FROM u.times WHERE ts < now()") == [(block,)]


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        (
            "SELECT other, sum(price), sum(price * (1 - k)), avg(price), avg(k), sum(k), count(*) FROM u.a "
            "WHERE other > 3 GROUP BY other ORDER BY other",
            {"u.a": ({"k", "other", "price"}, Compare("other", ">", 3))},
        ),
        (
            "SELECT b.k, sum(b.price * (1 - b.other)) AS r, a.other FROM u.c c, u.a a, u.b b WHERE c.other = 1 "
            "AND c.k = a.price AND b.k = a.k AND a.other < 5 AND b.other > 7 GROUP BY b.k, a.other "
            "ORDER BY r DESC, a.other LIMIT 10",
            {
                "u.c": ({"k", "other"}, Compare("other", "=", 1)),
                "u.a": ({"k", "other", "price"}, Compare("other", "<", 5)),
                "u.b": ({"k", "other", "price"}, Compare("other", ">", 7)),
            },
        ),
    ],
)
def test_sums_and_joins_read_no_more_than_they_need(sql: str, read: dict[str, tuple[set[str], Compare]]) -> None:
    """The engine cannot write each of its plans as JSON: all of all tables was read then."""
    columns = {
        "unread": "string",
        "k": "int64",
        "day": "date",
        "other": "int64",
        "neither": "decimal(15, 2)",
        "price": "decimal(15, 2)",
    }
    with connect({"threads": 1}) as connection:
        reads, _ = plan_statement(connection, sql, {name: define(name, columns, ["k"]) for name in read})
    assert not reads.stops_early
    for name, (wanted, condition) in read.items():
        assert {[*columns][place] for place in reads.tables[name].columns} == wanted
        assert reads.tables[name].predicate == Or((And((condition,)),))


def test_an_engine_given_a_part_of_the_files_reads_no_other(context: Context, table: TableDefinition) -> None:
    put(context, table, 2)
    rows_of(context, "SELECT k FROM u.many WHERE k = 1")
    (other,) = select_files(context, table, context.catalog.parts(table), Compare("k", "=", 2)).files
    with ExitStack() as closing, pytest.raises(duckdb.PermissionException):
        SqlSession(context, closing).connection.execute(f"FROM read_parquet('{other.local_path}')")


class _OutOfMemory:
    """A connection of a process that may have no more memory."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: object) -> None:
            raise duckdb.OutOfMemoryException("Out of Memory Error: Failed to allocate block of 2048 bytes")

        return refuse


def test_no_memory_to_read_a_statement_is_no_mistake_in_it() -> None:
    for steps in (lambda one: read_statement(one, "SELECT 1 AS a"), lambda one: plan_statement(one, "SELECT 1", {})):
        with pytest.raises(LimitReached, match="more memory"):
            steps(_OutOfMemory())
