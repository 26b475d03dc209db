"""How much is asked of a bucket for a statement, without a clock: few requests, little beside what is needed, and
`EXPLAIN` says it beforehand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from disks.config import LocalDiskConfig, ObjectDiskConfig
from tests.tiers import define, make_context, put_part, put_table, resolver
from tiering.catalog.context import Context
from tiering.config.settings import ReadCacheConfig
from tiering.config.units import counted, format_size
from tiering.parquet.checked_file import CheckedFile
from tiering.parquet.sections import bytes_of_columns
from tiering.query.query import QueryResult, run_sql
from tiering.query.sql.served_files import ServedFiles
from tiering.table.schema import TableSettings

PARTS, ROWS, GROUP_ROWS = 12, 30_000, 5_000


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """Parts in a bucket whose sort keys follow one another."""
    home = tmp_path_factory.mktemp("home")
    disks = {"ssd": LocalDiskConfig(path=str(home / "ssd")), "s3": ObjectDiskConfig(url="memory://cold-requests/")}
    context = make_context(home, disks)
    settings = TableSettings(row_group_rows=GROUP_ROWS)
    definition = define("u.t", {"k": "int64", "a": "int64", "s": "string", "b": "int64"}, ["k"], settings=settings)
    put_table(context, definition)
    for number in range(PARTS):
        keys = range(number * ROWS, (number + 1) * ROWS)
        mixed = [key * 0x9E3779B97F4A7C15 % (1 << 62) for key in keys]
        rows = {"k": keys, "a": mixed, "s": [f"{value:x}{value * 3:x}" for value in mixed], "b": mixed[::-1]}
        put_part(context, definition, "s3", pa.table(rows), number + 1)
    return context


def run(context: Context, sql: str) -> QueryResult:
    result = run_sql(context, sql, resolver(context))
    result.read_all()
    return result


def needed(context: Context, columns: set[int], groups: int) -> int:
    """Bytes of these columns in so many row groups."""
    files = [file for stored in context.catalog.parts(context.catalog.table("u.t")) for file in stored.part.files]
    return sum(bytes_of_columns(file, columns) for file in files) * groups // (PARTS * ROWS // GROUP_ROWS)


@pytest.mark.parametrize(
    ("sql", "columns", "groups", "requests"),
    [
        ("SELECT sum(k), sum(a), max(s), sum(b) FROM u.t", {0, 1, 2, 3}, PARTS * ROWS // GROUP_ROWS, PARTS),
        ("SELECT max(s), sum(b) FROM u.t", {2, 3}, PARTS * ROWS // GROUP_ROWS, 7 * PARTS),
        (f"SELECT sum(k), max(s) FROM u.t WHERE k < {3 * ROWS}", {0, 2}, 18, 3 * 7),
        ("SELECT max(s) FROM u.t WHERE k = 100000", {0, 2}, 1, 3),
        ("SELECT * FROM u.t WHERE k = 100000", {0, 1, 2, 3}, 1, 2),
    ],
)
def test_little_else_is_read(context: Context, sql: str, columns: set[int], groups: int, requests: int) -> None:
    result = run(context, sql)
    assert result.requests <= requests
    needs = needed(context, columns, groups)
    tails = result.parts_read * 20_000
    assert 0.9 * needs <= result.bytes_fetched <= 1.1 * needs + tails + 256 * 1024 * (result.requests - 1)


@pytest.mark.parametrize("where", ["", " WHERE k BETWEEN 40000 AND 90000", " WHERE k = 7", " WHERE b < 0"])
def test_explain_says_what_will_be_asked(context: Context, where: str) -> None:
    lines = [
        line
        for (line,) in run_sql(context, f"EXPLAIN SELECT max(s) FROM u.t{where}", resolver(context))
        .plain_rows()
        .__next__()
    ]
    result = run(context, f"SELECT max(s) FROM u.t{where}")
    said = [line for line in lines if re.match(r"at most \d+ request", line)]
    asked = f"at most {counted(result.requests, 'request')} for {format_size(result.bytes_fetched)} in buckets"
    assert said == ([asked] if result.requests else [])


@pytest.fixture
def cached(context: Context, tmp_path: Path) -> Iterator[Context]:
    """With a read cache, which is empty."""
    former = context.config
    context.config = former.__replace__(read_cache=ReadCacheConfig(path=str(tmp_path), max_bytes=10**8))
    context.idle_engines.clear()  # they may not open what it keeps
    yield context
    context.config = former
    context.idle_engines.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that the engine reads through Python."""
    found: list[str] = []
    add = ServedFiles.add

    def noted(self: ServedFiles, file: CheckedFile) -> str:
        found.append(path := add(self, file))
        return path

    monkeypatch.setattr(ServedFiles, "add", noted)
    return found


@pytest.mark.parametrize("where", ["k = 7", "k BETWEEN 40000 AND 90000", "b < 0", "k < 0 OR k > 100000"])
def test_row_groups_in_the_cache_are_asked_once(cached: Context, opened: list[str], where: str) -> None:
    """A filter that leaves row groups out leaves holes in what is kept."""
    sql = f"SELECT count(*), max(s), sum(a) FROM u.t WHERE {where}"
    first = run_sql(cached, sql, resolver(cached))
    rows = first.read_all()
    again = run_sql(cached, sql, resolver(cached))
    assert again.read_all() == rows
    assert again.requests == 0
    assert not opened
    other = run_sql(cached, f"SELECT count(*), max(b) FROM u.t WHERE {where}", resolver(cached))
    assert other.read_all().column(0) == rows.column(0)
    assert other.bytes_fetched <= first.bytes_fetched


def test_what_went_from_the_cache_is_asked_again(cached: Context, tmp_path: Path) -> None:
    sql = "SELECT count(*), max(s) FROM u.t WHERE k BETWEEN 40000 AND 90000"
    first = run_sql(cached, sql, resolver(cached))
    rows = first.read_all()
    for number, path in enumerate(path for folder in ("once", "again") for path in (tmp_path / folder).iterdir()):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + bytes(path.stat().st_size // 2))
    again = run_sql(cached, sql, resolver(cached))
    assert again.read_all() == rows
    assert 0 < again.requests <= first.requests + 2


def test_explain_fetches_no_columns(context: Context) -> None:
    result = run(context, "EXPLAIN SELECT max(s) FROM u.t")
    assert result.bytes_read == 0
