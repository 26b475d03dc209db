"""A table that the tests of `ingest --spark` take files into, what they hold, and what is in the table then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from spark_tiering.running.spark_runner import SparkRunner
from tests.homes import Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def home(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Home:
    """With an empty table, and the session of these tests for its verbs."""

    @contextmanager
    def runner(*arguments: Any, **named: Any) -> Iterator[SparkRunner]:
        yield SparkRunner(spark)

    monkeypatch.setattr("spark_tiering.verbs.runner.runner", runner)
    home = Home(tmp_path, "one", capsys)
    create(home, "d.t", "k:int64", "at:timestamp[us, UTC]", "name:string", partition_by="month(at)")
    return home


def create(home: Home, table: str, *columns: str, partition_by: str = "") -> None:
    """A table that is sorted by its first column."""
    named = [word for column in columns for word in ("--column", column)]
    partitions = ["--partition-by", partition_by] if partition_by else []
    home("table", "create", table, *named, "--order-by", columns[0].partition(":")[0], *partitions)


def rows(first: int, count: int) -> pa.Table:
    """Keys from `first` on, in turn in January and February of 2026."""
    keys = list(range(first, first + count))
    days = [f"2026-0{1 + key % 2}-0{1 + key % 9}T10:00:00Z" for key in keys]
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "at": pa.array(days).cast(pa.timestamp("us", "UTC")),
            "name": [None if key % 5 == 0 else f"name {key}" for key in keys],
        }
    )


def written(home: Home, name: str, table: pa.Table, **options: Any) -> str:
    path = home.path / name
    match path.suffixes[0]:
        case ".parquet":
            pq.write_table(table, path, **options)
        case ".orc":
            orc.write_table(table, path)
        case ".csv":
            csv.write_csv(table, path)
        case _:
            path.write_text("".join(f"{line}\n" for line in _json(table)))
    return str(path)


def _json(table: pa.Table) -> Iterator[str]:
    for row in table.to_pylist():
        yield json.dumps({**row, "at": row["at"].isoformat()} if "at" in row else row)


def contents(home: Home) -> list[list[Any]]:
    sql = """SELECT k, strftime("at", '%m-%d'), name FROM d.t ORDER BY k"""
    found: list[list[Any]] = home.json("query", sql)["rows"]
    return found


def expected(first: int, count: int) -> list[list[Any]]:
    return [[row["k"], row["at"].strftime("%m-%d"), row["name"]] for row in rows(first, count).to_pylist()]
