"""Cutting files by key: what the sparse index says about rows is never too narrow."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turns import examples
from tiering.parquet.part_files import write_part_files
from tiering.parquet.sort_keys import EVERYTHING, Key, SortKeyRange, row_groups_within, row_key, rows_below, stored_key
from tiering.parquet.sorted_input import SortedFile
from tiering.parquet.sorted_merge import merged
from tiering.parquet.sorting import sort_table
from tiering.table.columns.types import arrow_schema
from tiering.table.schema import Column, TableDefinition, TableSettings

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.integers(-3, 3),
    "float64": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, math.nan]),
    "string": st.sampled_from(["", "a", "b", "x" * 256, "x" * 256 + "y", "x" * 256 + "z", "x" * 300, "ä"]),
    "binary": st.sampled_from([b"", b"\0", b"\xff", b"q" * 128, b"q" * 128 + b"r", b"q" * 200]),
    "bool": st.booleans(),
    "decimal(10, 2)": st.sampled_from([Decimal("-1.50"), Decimal("0.00"), Decimal("12345.67")]),
    "date": st.sampled_from([datetime(1969, 12, 31).date(), datetime(2026, 1, 1).date()]),
    "timestamp[us, UTC]": st.sampled_from(
        [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (0, 1, 7)]
    ),
    "timestamp[ns]": st.sampled_from([1_767_225_600_000_000_000 + n for n in (0, 1, 999, 1000, 1001)]),
    "uint64": st.sampled_from([0, 1, 2**63, 2**64 - 1]),
}


def a_table(first: str, second: str) -> TableDefinition:
    return TableDefinition(
        uuid="5f0e8b1c-0000-4000-8000-000000000002",
        database="demo",
        name="keys",
        columns=(Column(1, "a", first), Column(2, "b", second), Column(3, "number", "int64")),
        order_by=("a", "b"),
        policy="hot_cold",
        settings=TableSettings(row_group_rows=3),
        last_column_id=3,
    )


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_ranges_take_every_row_once_in_order(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """I13: however a merge is cut into ranges, its rows are those of the whole merge, in the same order."""
    kinds = sorted(VALUES)
    definition = a_table(data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(kinds)))
    directory = tmp_path_factory.mktemp("keys")
    names = {column.id: column.name for column in definition.columns}
    files: list[SortedFile] = []
    for order in range(data.draw(st.integers(1, 3))):
        rows = data.draw(
            st.lists(st.tuples(*(VALUES[column.type] | st.none() for column in definition.columns[:2])), max_size=14)
        )
        columns = [*zip(*rows, strict=True)] or [(), ()]
        schema = arrow_schema(definition)
        arrays = [pa.array(columns[0], schema.field(0).type), pa.array(columns[1], schema.field(1).type)]
        numbers = pa.array(range(order * 100, order * 100 + len(rows)), pa.int64())
        table = sort_table(pa.Table.from_arrays([*arrays, numbers], schema=schema), definition.order_by)
        place = directory / str(order)
        place.mkdir()
        (file,) = write_part_files([table], definition, place)
        files.append(SortedFile(place / file.name, file, names, order, file.name))
    whole = [row for table in merged(files, definition, directory / "whole") for row in keyed(table, definition)]
    stored = [stored_key(group.first_key, definition) for item in files for group in item.file.row_groups]
    cuts = sorted({key for key in stored if key is not None})
    ends = [None, *data.draw(st.lists(st.sampled_from(cuts), unique=True).map(sorted) if cuts else st.just([])), None]
    pieces = []
    for number, (low, high) in enumerate(pairwise(ends)):
        within = SortKeyRange(low, high)
        chosen = [
            SortedFile(i.source, i.file, i.names, i.order, i.label, groups)
            for i in files
            if (groups := row_groups_within(i.file, definition, within))
        ]
        for table in merged(chosen, definition, directory / f"piece-{number}", within) if chosen else ():
            pieces += keyed(table, definition)
    assert pieces == whole


def keyed(table: pa.Table, definition: TableDefinition) -> list[tuple[Key, int]]:
    numbers = table.column("number").to_pylist()
    return [(row_key(table, row, definition.order_by), numbers[row]) for row in range(table.num_rows)]


def test_a_range_reads_only_its_row_groups(tmp_path: Path) -> None:
    definition = a_table("int64", "int64")
    numbers = pa.array(range(12), pa.int64())
    table = pa.Table.from_arrays([numbers, numbers, numbers], schema=arrow_schema(definition))
    (file,) = write_part_files([table], definition, tmp_path)
    low, high = ((0, 4),), ((0, 9),)
    # Groups begin at 0, 3, 6 and 9: the one of 3 to 5 holds key 4, the one that begins at 9 nothing below 9.
    assert row_groups_within(file, definition, SortKeyRange(low, high)) == (1, 2)
    assert row_groups_within(file, definition, EVERYTHING) == (0, 1, 2, 3)
    assert rows_below(table, low, definition.order_by) == 4
