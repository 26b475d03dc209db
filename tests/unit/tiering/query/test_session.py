"""How parts become tables of the engine: exactly the columns' types, the files that were chosen, and no other."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig
from oplog.errors import FrostlineError, NotFound, UsageError
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.catalog.context import Context
from tiering.query.query import run_sql
from tiering.query.scan import scan
from tiering.query.selection import select_files
from tiering.query.sql.errors import cleaned
from tiering.query.sql.plan import Access, plan_reads
from tiering.query.sql.planning import plan_statement
from tiering.query.sql.session import SqlSession
from tiering.table.columns.types import arrow_schema
from tiering.table.pruning import TRUE, Compare
from tiering.table.schema import TableDefinition


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path, {"ssd": LocalDiskConfig(path=str(tmp_path / "ssd"))})


@pytest.fixture(scope="module")
def shared_context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """With the table, for tests that read only."""
    path = tmp_path_factory.mktemp("shared")
    context = make_context(path, {"ssd": LocalDiskConfig(path=str(path / "ssd"))})
    fill(context)
    return context


@pytest.fixture
def table(context: Context) -> TableDefinition:
    return fill(context)


def fill(context: Context) -> TableDefinition:
    definition = define("u.many", {"k": "int64", "other": "int64"}, ["k"])
    put_table(context, definition)
    for block in range(1, 6):
        rows = pa.table({"k": pa.array([block], pa.int64()), "other": pa.array([block * 10], pa.int64())})
        put_part(context, definition, "ssd", rows, block)
    return definition


def rows_of(context: Context, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in run_sql(context, sql, resolver(context)).read_all().to_pylist()]


_VALUES: dict[str, object] = {
    "bool": True,
    "int8": -1,
    "int16": -2,
    "int32": -3,
    "int64": -4,
    "uint8": 1,
    "uint16": 2,
    "uint32": 3,
    "uint64": 2**64 - 1,
    "float32": 0.5,
    "float64": 0.25,
    "string": "a text that is longer than twelve bytes",
    "binary": b"\x00\xff",
    "date": date(2026, 2, 3),
    "timestamp[s]": datetime(2026, 2, 3, 4, 5, 6),
    "timestamp[ns]": datetime(2026, 2, 3, 4, 5, 6),
    "timestamp[us, UTC]": datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC),
    "timestamp[ms, Europe/Berlin]": datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
    "timestamp[ns, Asia/Tokyo]": datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
    "decimal(38, 2)": Decimal("1.25"),
    "list<string>": ["x", None],
    "list<list<int64>>": [[1], []],
    "list<timestamp[us, Asia/Tokyo]>": [datetime(2026, 2, 3, tzinfo=UTC)],
}


def test_a_scan_has_exactly_the_types_of_the_columns(context: Context) -> None:
    names = {kind: f'{kind} of "{number}"' for number, kind in enumerate(_VALUES)}
    definition = define("u.types", {"k": "int64"} | {name: kind for kind, name in names.items()}, ["k"])
    put_table(context, definition)
    rows = pa.table(
        {
            field.name: pa.array([1 if field.name == "k" else _VALUES[kind]], field.type)
            for field, kind in zip(arrow_schema(definition), ["int64", *_VALUES], strict=True)
        }
    )
    for block in (1, 2):
        put_part(context, definition, "ssd", rows, block)
    found = scan(context, definition, context.catalog.parts(definition)).read_all()
    assert found.schema.types == arrow_schema(definition).types
    assert found.to_pylist() == rows.to_pylist() * 2
    answered = run_sql(context, "select * from u.types", resolver(context)).read_all()
    assert answered.cast(rows.schema).to_pylist() == rows.to_pylist() * 2


def test_pruned_parts_are_not_even_located(context: Context, table: TableDefinition) -> None:
    selection = select_files(context, table, context.catalog.parts(table), Compare("k", "=", 3))
    assert [file.stored.part.name for file in selection.files] == ["all_3_3_0"]
    assert (selection.parts_read, selection.parts_pruned) == (1, 4)


def test_a_column_that_was_not_compared_is_an_error(context: Context, table: TableDefinition) -> None:
    with ExitStack() as closing:
        files = select_files(context, table, context.catalog.parts(table)).files
        session = SqlSession(context, closing)
        _, columns = plan_statement(session.connection, "SELECT k FROM u.many", {"u.many": table})
        session.open({"u.many": (table, files, Access(TRUE, frozenset([0])))}, stops_early=False)
        assert sum(batch.num_rows for batch in session.batches("SELECT k FROM u.many", columns.schema)) == 5
        with pytest.raises(FrostlineError, match="column other was not compared"):
            list(session.batches("SELECT k FROM u.many WHERE other > 10", columns.schema))


def test_nothing_is_drawn_amid_the_answer(context: Context) -> None:
    with ExitStack() as closing:
        session = SqlSession(context, closing)
        (drawn,) = session.connection.execute("SELECT current_setting('enable_progress_bar_print')").fetchall()[0]
        assert drawn is False


def test_nothing_else_can_be_read_or_set(context: Context, table: TableDefinition, tmp_path: Path) -> None:
    """What the statement's check refuses, the engine refuses, too."""
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with ExitStack() as closing:
        files = select_files(context, table, context.catalog.parts(table)).files
        session = SqlSession(context, closing)
        plan_statement(session.connection, "SELECT k FROM u.many", {"u.many": table})
        session.open({"u.many": (table, files, Access.whole(table))}, stops_early=False)
        for sql in (
            f"SELECT * FROM read_csv('{secret}')",
            f"SELECT * FROM '{secret}'",
            f"SELECT * FROM glob('{tmp_path}/*')",
            f"COPY (SELECT 1) TO '{tmp_path}/written.csv'",
            f"ATTACH '{tmp_path}/other.db'",
            "INSTALL httpfs",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "SELECT * FROM table",
        ):
            with pytest.raises(duckdb.Error):
                session.connection.execute(sql).fetchall()
    assert not (tmp_path / "written.csv").exists()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{path}' (FORMAT parquet, USE_TMP_FILE false)",
        "COPY u.many TO '{path}'",
        "EXPORT DATABASE '{path}'",
        "ATTACH '{path}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "RESET threads",
        "PRAGMA version",
        "CALL pragma_version()",
        "USE u",
        "CHECKPOINT",
        "VACUUM",
        "PREPARE x AS SELECT 1",
        "BEGIN",
        "CREATE TABLE u.x AS SELECT 1",
        "DROP VIEW u.many",
        "INSERT INTO u.many VALUES (1, 1)",
        "UPDATE u.many SET k = 1",
        "DELETE FROM u.many",
        "WITH x AS (INSERT INTO u.many VALUES (1, 1)) SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "EXPLAIN (FORMAT json) SELECT 1",
        "EXPLAIN COPY (SELECT 1) TO '{path}'",
        "SELECT 1; COPY (SELECT 1) TO '{path}'",
        "SHOW TABLES",
        "DESCRIBE u.many",
        "SUMMARIZE u.many",
        "SELECT * FROM (SHOW TABLES)",
        "SELECT * FROM read_parquet('{path}')",
        "SELECT * FROM parquet_metadata('{path}')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM enable_logging('FileSystem')",
        "SELECT (SELECT count(*) FROM read_blob('{path}'))",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_settings",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM pg_catalog.pg_tables",
        "SELECT * FROM temp.planning_0",
        "SELECT * FROM memory.u.many",
        "SELECT * FROM '{path}'",
        "SELECT write_log('x')",
        "SELECT $1",
        "PIVOT u.many ON k",
    ],
)
def test_only_a_select_from_tables_runs(shared_context: Context, sql: str) -> None:
    (table,) = shared_context.catalog.tables()
    (stored, *_) = shared_context.catalog.parts(table)
    path = Path(shared_context.disk("ssd").location(stored.path("data-0000.parquet")).url.removeprefix("file://"))
    before = path.read_bytes()
    with pytest.raises((UsageError, NotFound)):
        rows_of(shared_context, sql.format(path=path))
    assert path.read_bytes() == before
    assert rows_of(shared_context, "SELECT count(*) FROM u.many") == [(5,)]


def test_columns_that_differ_in_case_alone(context: Context) -> None:
    definition = define("u.cases", {"k": "int64", "x": "int64", "X": "string", "X_1": "int64"}, ["k"])
    put_table(context, definition)
    rows = {"k": [1], "x": pa.array([10], pa.int64()), "X": ["ten"], "X_1": pa.array([100], pa.int64())}
    for block in (1, 2):
        put_part(context, definition, "ssd", pa.table(rows), block)
    with pytest.raises(UsageError, match=r"columns of u\.cases x and X"):
        rows_of(context, "SELECT DISTINCT x, X_2, X_1 FROM u.cases")
    found = scan(context, definition, context.catalog.parts(definition), columns=["X"], filter=[("X", "=", "ten")])
    assert found.read_all().to_pylist() == [{"X": "ten"}] * 2


@pytest.mark.parametrize("database", ["temp", "system", "memory", "main", "information_schema", "select"])
def test_databases_may_have_names_of_the_engine(context: Context, database: str) -> None:
    definition = define(f"{database}.t", {"k": "int64"}, ["k"])
    put_table(context, definition)
    put_part(context, definition, "ssd", pa.table({"k": pa.array([7], pa.int64())}), 1)
    assert rows_of(context, f'SELECT t.k FROM "{database}".t WHERE k > 1') == [(7,)]
    assert scan(context, definition, context.catalog.parts(definition)).read_all().to_pylist() == [{"k": 7}]


def test_sums_of_whole_numbers_never_wrap(context: Context) -> None:
    definition = define("u.large", {"k": "int64"}, ["k"])
    put_table(context, definition)
    put_part(context, definition, "ssd", pa.table({"k": pa.array([2**63 - 1] * 3, pa.int64())}), 1)
    assert rows_of(context, "SELECT sum(k) FROM u.large") == [(Decimal(3 * (2**63 - 1)),)]
    with pytest.raises(UsageError, match=r"(?i)overflow") as caught:
        rows_of(context, "SELECT k + 1 FROM u.large")
    assert "cast to a wider type" in caught.value.hint


def test_explain_says_what_is_read(context: Context, table: TableDefinition) -> None:
    lines = [row[0] for row in rows_of(context, "EXPLAIN SELECT count(*) FROM u.many WHERE k = 3")]
    assert lines[0].startswith("1 part to read, 4 left out")
    assert lines[1] == "u.many: 4 left out by k = 3"
    assert len(lines) > 4


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k FROM u.many a WHERE other < (SELECT 2 * avg(other) FROM u.many b WHERE b.k = a.k)",
        "SELECT k FROM u.many a WHERE EXISTS (SELECT * FROM u.many b WHERE b.k = a.k AND b.other <> a.other) "
        "AND NOT EXISTS (SELECT * FROM u.many b WHERE b.k = a.k AND b.other > a.other + 1)",
    ],
)
def test_correlated_subqueries_are_joins(context: Context, sql: str) -> None:
    """Where the engine takes something in the views for what gives another value each time, it numbers the rows, and
    computes the subquery for each: minutes where a join takes a moment."""
    definition = define("u.many", {"k": "int64", "other": "int64", "unread": "string"}, ["k"])
    put_table(context, definition)
    numbers = pa.array([1, 2], pa.int64())
    put_part(context, definition, "ssd", pa.table({"k": numbers, "other": numbers, "unread": ["a", "b"]}), 1)
    plan = "\n".join(str(row[0]) for row in rows_of(context, f"EXPLAIN {sql}"))
    assert "Hash Join" in plan
    assert "Window" not in plan


def test_a_plan_of_another_form_restricts_nothing(table: TableDefinition) -> None:
    """Should a new version of the engine write plans otherwise, all is read."""
    for plan in ("", "[]", '{"plans": [{"type": "LOGICAL_GET"}]}', '{"plans": [{"kind": 1}]}'):
        reads = plan_reads(plan, {"t": table})
        assert reads.tables.get("t", Access.whole(table)) == Access.whole(table)
        assert not reads.is_filter_alone


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Binder Error: no such thing\n\nLINE 1: select x", "no such thing"),
        ("Invalid Input Error: IO Error: gone", "gone"),
        ("", "the query failed"),
    ],
)
def test_messages_without_wrappings(said: str, kept: str) -> None:
    assert cleaned(said) == kept
