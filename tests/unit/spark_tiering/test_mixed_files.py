"""Whether files mix the partitions of a table, as far as Parquet tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_tiering.writing.file_shares import IngestFile, shares_of
from spark_tiering.writing.mixed_files import are_mixed, spread, too_many
from tiering.insert.reshaping import parse_reshaping
from tiering.table.definitions import define_table

DAYS = 40
TASKS = 8


@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 9)).map(lambda it: (it[0], it[0] + it[1]))))
def test_partitions_are_counted_once(intervals: list[tuple[int, int]]) -> None:
    counted = {number for first, last in intervals for number in range(first, last + 1)}
    assert spread(intervals) == max(len(counted), 1)


def test_what_is_too_many() -> None:
    """8 tasks and 40 partitions leave 48 parts in ranges, and 320 where each task has rows of all."""
    everything = [[(0, DAYS - 1)]] * TASKS
    in_turn = [[(task * 5, task * 5 + 4)] for task in range(TASKS)]
    assert too_many({"day": everything})
    assert not too_many({"day": in_turn})
    assert not too_many({"day": [[]] * TASKS})
    assert too_many({"day": everything, "k": everything})
    assert not too_many({"day": in_turn, "k": everything})  # 1,600 parts of 1,600 partitions
    assert not too_many({})


def files(
    directory: Path, *, mixed: bool, column: str = "at", kind: str = "parquet", **options: Any
) -> list[IngestFile]:
    """Eight files, of five days each or all of all days."""
    found = []
    for number in range(TASKS):
        days = [row * 7 % DAYS for row in range(400)] if mixed else [number * 5 + row // 80 for row in range(400)]
        values = pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in days])
        table = pa.table({column: values.cast(pa.timestamp("us", "UTC")), "k": pa.array(days, pa.int64())})
        path = directory / f"{number}.{kind}"
        orc.write_table(table, path) if kind == "orc" else pq.write_table(table, path, **options)
        found.append(IngestFile(f"file:{path}", kind, ",", path.stat().st_size, path.stat().st_mtime))
    return found


@pytest.mark.parametrize("by", ["day(at)", "k", "truncate(1, k)", "day(at), bucket(4, k)", "hour(at)"])
def test_files_are_mixed_or_in_turn(tmp_path: Path, by: str) -> None:
    columns = ["k:int64", "at:timestamp[ms, UTC]"]
    definition = define_table("a.b", columns=columns, order_by="k", partition_by=by, policy="p")
    reshaping = parse_reshaping(definition)
    mixed, in_turn = tmp_path / "mixed", tmp_path / "in turn"
    mixed.mkdir()
    in_turn.mkdir()
    assert are_mixed(shares_of(files(mixed, mixed=True), TASKS), reshaping)
    assert not are_mixed(shares_of(files(mixed, mixed=True), 1), reshaping)
    assert not are_mixed(shares_of(files(in_turn, mixed=False), TASKS), reshaping)


@pytest.mark.parametrize(
    ("by", "kind", "options"),
    [
        ("month(at)", "parquet", {}),
        ("bucket(16, k)", "parquet", {}),
        ("day(at)", "orc", {}),
        ("day(at)", "parquet", {"write_statistics": False}),
        ("day(at)", "parquet", {"use_deprecated_int96_timestamps": True}),
        ("name", "parquet", {}),
    ],
)
def test_few_partitions_and_what_is_not_known_are_left(
    tmp_path: Path, by: str, kind: str, options: dict[str, Any]
) -> None:
    columns = ["k:int64", "at:timestamp[ms, UTC]", "name:string"]
    definition = define_table("a.b", columns=columns, order_by="k", partition_by=by, policy="p")
    assert not are_mixed(
        shares_of(files(tmp_path, mixed=True, kind=kind, **options), TASKS), parse_reshaping(definition)
    )


def test_the_chosen_column_tells(tmp_path: Path) -> None:
    definition = define_table(
        "a.b", columns=["k:int64", "at:timestamp"], order_by="k", partition_by="day(at)", policy="p"
    )
    found = files(tmp_path, mixed=True, column="when")
    assert are_mixed(shares_of(found, TASKS), parse_reshaping(definition, select="k, when as at"))
    assert not are_mixed(shares_of(found, TASKS), parse_reshaping(definition))


def test_a_file_that_cannot_be_read_is_no_matter_here(tmp_path: Path) -> None:
    definition = define_table(
        "a.b", columns=["k:int64", "at:timestamp"], order_by="k", partition_by="day(at)", policy="p"
    )
    shares = shares_of(files(tmp_path, mixed=True), TASKS)
    (tmp_path / "3.parquet").write_bytes(b"PAR1")
    assert not are_mixed(shares, parse_reshaping(definition))
    (tmp_path / "3.parquet").unlink()
    assert not are_mixed(shares, parse_reshaping(definition))


@pytest.mark.parametrize(
    ("kind", "by", "values"),
    [
        ("uint64", "truncate(10, v)", pa.array([2**64 - 1, 0] * 50, pa.uint64())),
        ("date", "month(v)", pa.array([2**30, 0] * 50, pa.int32()).cast(pa.date32())),
        ("timestamp[us, UTC]", "day(v)", pa.array([2**60, 0] * 50, pa.timestamp("us", "UTC"))),
        ("timestamp[ms]", "year(v)", pa.array([-(2**60), 0] * 50, pa.timestamp("ms"))),
    ],
)
def test_values_that_python_cannot_hold_are_not_known(tmp_path: Path, kind: str, by: str, values: pa.Array) -> None:
    """They are no reason not to begin: tasks take them, or say what is wrong with them."""
    definition = define_table("a.b", columns=["k:int64", f"v:{kind}"], order_by="k", partition_by=by, policy="p")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": pa.array(range(100)), "v": values}), path, row_group_size=10)
    file = IngestFile(f"file:{path}", "parquet", ",", path.stat().st_size, path.stat().st_mtime)
    assert not are_mixed(shares_of([file], 4), parse_reshaping(definition))
