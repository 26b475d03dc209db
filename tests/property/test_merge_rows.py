"""Merge modes against a plain dictionary, whatever the batches; runs of equal keys are never separated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.merge import rows as merge_rows
from tiering.merge.rows import combine_rows, live_rows, same_key, whole_runs
from tiering.merge.run_reduction import run_starts
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table
from tiering.table.schema import TableDefinition

NOW = datetime(2026, 1, 10, tzinfo=UTC)


@pytest.fixture(autouse=True, scope="module")
def _small_tables() -> Iterator[None]:
    """Tables of a few rows are not gathered into one, so that runs reach over several, and long ones are shortened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_rows, "_COMBINE_ROWS", 4)
        patch.setattr(merge_rows, "_HELD_ROWS", 6)
        yield


Row = tuple[int | None, str | None, int | None, int]
rows_strategy = st.lists(
    st.tuples(
        st.integers(0, 3) | st.none(), st.sampled_from(["a", "b"]) | st.none(), st.integers(0, 3) | st.none(),
        st.integers(-5, 5),
    ),
    max_size=40,
)  # fmt: skip


def definition(mode: str) -> TableDefinition:
    return define_table(
        "a.b",
        columns=["k:int64", "t:string", "v:int64", "n:int32"],
        order_by="k,t",
        policy="p",
        merge_mode=mode,
    )


def sort_key(row: Row) -> tuple[Any, ...]:
    return (row[0] is None, row[0] or 0, row[1] is None, row[1] or "")


def batches(rows: list[Row], sizes: list[int]) -> Iterator[pa.Table]:
    """The rows in key order, equal keys as inserted, cut into tables of these sizes again and again."""
    ordered = sorted(rows, key=sort_key)
    schema = arrow_schema(definition("ordinary"))
    start = turn = 0
    while start < len(ordered):
        size = sizes[turn % len(sizes)]
        chunk = ordered[start : start + size]
        yield pa.Table.from_pylist([dict(zip("ktvn", row, strict=True)) for row in chunk], schema)
        start, turn = start + size, turn + 1


def result(tables: Iterator[pa.Table]) -> list[Row]:
    return [(row["k"], row["t"], row["v"], row["n"]) for table in tables for row in table.to_pylist()]


sizes_strategy = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@given(rows_strategy, sizes_strategy)
def test_ordinary_changes_nothing(rows: list[Row], sizes: list[int]) -> None:
    assert result(combine_rows(batches(rows, sizes), definition("ordinary"))) == sorted(rows, key=sort_key)


@given(rows_strategy, sizes_strategy)
def test_replacing_keeps_the_newest_row_of_each_key(rows: list[Row], sizes: list[int]) -> None:
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        known = best.get(row[:2])
        version = -1 if row[2] is None else row[2]
        if known is None or version >= (-1 if known[2] is None else known[2]):
            best[row[:2]] = row
    expected = sorted(best.values(), key=sort_key)
    assert result(combine_rows(batches(rows, sizes), definition("replacing:v"))) == expected


@given(rows_strategy, sizes_strategy)
def test_replacing_without_a_version_keeps_the_last_insert(rows: list[Row], sizes: list[int]) -> None:
    expected = sorted({row[:2]: row for row in rows}.values(), key=sort_key)
    assert result(combine_rows(batches(rows, sizes), definition("replacing"))) == expected


@given(rows_strategy, sizes_strategy)
def test_summing_adds_up_each_key(rows: list[Row], sizes: list[int]) -> None:
    sums: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        if row[:2] in sums:
            sums[row[:2]][3] += row[3]
        else:
            sums[row[:2]] = list(row)
    expected = sorted((tuple(row) for row in sums.values()), key=sort_key)  # type: ignore[arg-type]
    assert result(combine_rows(batches(rows, sizes), definition("summing:n"))) == expected


@given(rows_strategy, sizes_strategy)
def test_runs_are_whole_and_numbered(rows: list[Row], sizes: list[int]) -> None:
    keys = ("k", "t")
    tables = list(whole_runs(batches(rows, sizes), keys, lambda run: run))
    assert result(iter(tables)) == sorted(rows, key=sort_key)
    for before, after in pairwise(tables):
        assert not same_key(before, before.num_rows - 1, after, 0, keys)
    for table in tables:
        starts = run_starts(table, keys).tolist()
        changes = [row for row in range(1, table.num_rows) if not same_key(table, row, table, row - 1, keys)]
        assert starts == [0, *changes]


@pytest.mark.parametrize(("mode", "numbers"), [("replacing", [99]), ("summing:n", [sum(range(100))])])
def test_rows_of_a_long_run_do_not_gather(mode: str, numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows have one key: what is made of them is held, and never many of them."""
    held = []
    shortened = merge_rows._row_a_key

    def seen(run: pa.Table, *arguments: Any) -> pa.Table:
        held.append(run.num_rows)
        return shortened(run, *arguments)

    monkeypatch.setattr(merge_rows, "_row_a_key", seen)
    rows: list[Row] = [(1, "a", None, number) for number in range(100)]
    assert [row[3] for row in result(combine_rows(batches(rows, [3]), definition(mode)))] == numbers
    assert max(held) < 20


def test_a_long_run_whose_sum_fits_only_as_a_whole() -> None:
    """The first of its rows have a sum beyond 32 bits: they are held until all of them are there."""
    rows: list[Row] = [(1, "a", None, number) for number in [2**30] * 20 + [-(2**30)] * 20]
    assert [row[3] for row in result(combine_rows(batches(rows, [3]), definition("summing:n")))] == [0]


@given(st.lists(st.integers(0, 20) | st.none(), max_size=30))
def test_only_due_rows_are_dropped(days: list[int | None]) -> None:
    """A row is due when its time plus the rule's is not after now; rows without a time stay."""
    table_definition = define_table(
        "a.b", columns=["ts:timestamp", "d:date"], order_by="ts", policy="p", ttl=["5d on ts delete"]
    )
    stamps = [None if day is None else NOW - timedelta(days=day) for day in days]
    table = pa.table({"ts": pa.array(stamps, pa.timestamp("us", "UTC")), "d": pa.nulls(len(days), pa.date32())})
    kept = [row for out in live_rows([table], table_definition, NOW) for row in out.column("ts").to_pylist()]
    assert kept == [stamp for stamp, day in zip(stamps, days, strict=True) if day is None or day < 5]


def test_a_time_before_1971_is_no_reason_to_delete() -> None:
    """A broken clock writes 1970; such rows are never deleted by a rule."""
    table_definition = define_table("a.b", columns=["ts:timestamp"], order_by="ts", policy="p", ttl=["5d on ts delete"])
    table = pa.table({"ts": pa.array([datetime(1970, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))})
    assert [out.num_rows for out in live_rows([table], table_definition, NOW)] == [1]
