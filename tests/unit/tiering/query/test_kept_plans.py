"""A statement that comes again is planned once, and never by what was true of another table or at another time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tiering.query.sql.planning as planning
from disks.config import LocalDiskConfig
from oplog.errors import UsageError
from tests.tiers import altered, define, make_context, put_part, put_table, resolver
from tiering.catalog.context import Context
from tiering.query.query import run_sql
from tiering.query.sql.kept import KeptByText
from tiering.query.sql.planning import EmptyTables, connect, plan_once
from tiering.query.sql.statement import is_planned_alike, read_statement
from tiering.table.schema import Column, TableDefinition

COLUMNS = {"k": "int64", "day": "date", "moment": "timestamp[us, UTC]", "name": "string"}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were planned over empty tables."""
    texts: list[str] = []
    plan_statement = planning.plan_statement

    def noting(connection: Any, statement: str, *rest: Any) -> Any:
        texts.append(statement)
        return plan_statement(connection, statement, *rest)

    monkeypatch.setattr(planning, "plan_statement", noting)
    monkeypatch.setattr(planning, "_plans", KeptByText())
    return texts


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect({"threads": 1}) as made:
        made.execute("BEGIN")
        yield made


def put(context: Context, definition: TableDefinition, block: int) -> None:
    import pyarrow as pa

    put_part(context, definition, "ssd", pa.table({"k": pa.array([block], pa.int64())}), block)


def rows_of(context: Context, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in run_sql(context, sql, resolver(context)).read_all().to_pylist()]


def test_a_statement_that_comes_again_is_planned_once(context: Context, planned: list[str]) -> None:
    """Its rows are those of today."""
    definition = define("kept.t", {"k": "int64"}, ["k"])
    put_table(context, definition)
    sql = "SELECT sum(k) AS s, count(*) AS n FROM kept.t WHERE k BETWEEN 2 AND 9"
    for block in range(1, 5):
        put(context, definition, block)
        context.catalog.refresh()
        assert rows_of(context, sql) == [(sum(range(2, block + 1)) or None, block - 1)]
    assert planned == [sql]


def test_a_table_that_was_altered_is_planned_again(context: Context, planned: list[str]) -> None:
    """The columns of its answer and the places of those that it reads are others."""
    definition = define("kept.t", {"k": "int64"}, ["k"])
    put_table(context, definition)
    put(context, definition, 1)
    sql = "SELECT * FROM kept.t WHERE k = 1"
    assert rows_of(context, sql) == rows_of(context, sql) == [(1,)]
    put_table(context, altered(definition, (Column(id=2, name="more", type="string"), *definition.columns)))
    context.catalog.refresh()
    assert rows_of(context, sql) == rows_of(context, sql) == [(None, 1)]
    assert planned == [sql, sql]


def test_the_same_text_of_another_table_is_planned_again(context: Context, planned: list[str], tmp_path: Path) -> None:
    sql = "SELECT * FROM kept.t"
    for at, kind in (("one", "int64"), ("two", "string")):
        other = make_context(tmp_path / at, {"ssd": LocalDiskConfig(path=str(tmp_path / at / "ssd"))})
        put_table(other, define("kept.t", {"k": kind}, ["k"]))
        assert run_sql(other, sql, resolver(other)).columns == [("k", kind)]
    assert planned == [sql, sql]


@pytest.mark.parametrize(
    "condition",
    [
        "day < current_date",
        "moment < now()",
        "moment > CURRENT_TIMESTAMP - INTERVAL 1 DAY",
        "moment::TIMESTAMP < localtimestamp",
        "k > random()",
        "name = user",
        "name = getvariable('x')",
        "k IN (SELECT k FROM kept.t WHERE moment < get_current_timestamp())",
        "list_sum([k]) > 1",
    ],
)
def test_what_time_or_chance_is_in_is_planned_each_time(
    condition: str, connection: duckdb.DuckDBPyConnection, planned: list[str]
) -> None:
    definitions = {"kept.t": define("kept.t", COLUMNS, ["k"])}
    tables, statement = EmptyTables(), read_statement(connection, f"SELECT k FROM kept.t WHERE {condition}")
    for _ in range(2):
        plan_once(connection, statement, definitions, tables)
    assert len(planned) == 2


def test_no_word_of_the_engine_is_a_function_unseen() -> None:
    """Every word that has a value by itself, with or without parentheses, is a function of which the engine says that
    it gives the same each time, or its statements are planned each time."""
    settled, unsettled = set(), set()
    with connect({"threads": 1}) as connection:
        words = connection.execute(
            "SELECT keyword_name FROM duckdb_keywords() UNION VALUES ('localtime'), ('localtimestamp') UNION "
            "SELECT unnest([function_name, function_name || '()']) FROM duckdb_functions() "
            "WHERE function_name SIMILAR TO '[a-z_][a-z0-9_]*' AND len(parameters) = 0"
        ).fetchall()
        changing = connection.execute(
            "SELECT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
        ).fetchall()
        for (call,) in sorted(words):
            with suppress(duckdb.Error, UsageError):
                connection.sql(f"SELECT {call}")
                statement = read_statement(connection, f"SELECT {call}")
                (settled if is_planned_alike(connection, statement) else unsettled).add(call)
    assert {"localtimestamp", "current_date", "current_user", "now()", "random()"} <= unsettled
    assert settled
    assert not {call.removesuffix("()") for call in settled} & {word for (word,) in changing}
    assert {call for call in settled if not call.endswith("()")} <= {"true", "false", "null"}


def test_the_latest_statements_are_kept() -> None:
    """So many, and none that is very long."""
    kept: KeptByText[int] = KeptByText()
    kept.put("x" * 100_000, 1)
    assert kept.get("x" * 100_000) is None
    for number in range(256):
        kept.put(str(number), number)
    assert kept.get("0") == 0
    kept.put("more", 1)
    assert kept.get("1") is None
    assert (kept.get("0"), kept.get("2")) == (0, 2)
