"""The sorted merge against Python's own stable sort, for every type a table can be ordered by. Guards I3 and I4."""

from __future__ import annotations

import math
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oplog.errors import Damaged
from tiering.parquet import sorted_merge
from tiering.parquet.column_ranges import column_range
from tiering.parquet.dictionaries import decoded
from tiering.parquet.part_files import write_part_files
from tiering.parquet.sorted_input import SortedFile
from tiering.parquet.sorted_merge import merged
from tiering.parquet.sorting import sort_table
from tiering.table.columns.types import arrow_schema
from tiering.table.part import DataFile
from tiering.table.schema import Column, TableDefinition

START = datetime(2026, 1, 1, tzinfo=UTC)

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-128, 127),
    "int64": st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]) | st.integers(-3, 3),
    "uint64": st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    "bool": st.booleans(),
    "float64": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, math.nan]),
    "string": st.text(alphabet="ab\0é\U0001f600", max_size=3),
    "binary": st.binary(max_size=2),
    "date": st.integers(0, 5).map(lambda days: date(2026, 1, 1) + timedelta(days=days)),
    "timestamp[us, UTC]": st.integers(0, 5).map(lambda micros: START + timedelta(microseconds=micros)),
    "timestamp[ns]": st.integers(0, 3).map(lambda nanos: pa.scalar(1_700_000_000_000_000_001 + nanos, pa.int64())),
    "decimal(10, 2)": st.integers(-300, 300).map(lambda cents: Decimal(cents).scaleb(-2)),
}


def python_key(value: Any) -> tuple[int, Any]:
    """Numbers, then NaN, then null: as every sort of the project orders."""
    if value is None:
        return (2, 0)
    if isinstance(value, pa.Scalar):
        return (0, value.as_py())
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


@st.composite
def sorted_inputs(draw: st.DrawFn) -> tuple[TableDefinition, list[list[tuple[Any, ...]]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    row = st.tuples(*(st.none() | KEYS[kind] for kind in kinds))
    inputs = draw(st.lists(st.lists(row, max_size=30), min_size=1, max_size=5))
    columns = [Column(number, f"k{number}", kind) for number, kind in enumerate(kinds, 1)]
    columns.append(Column(9, "came", "int64"))
    definition = TableDefinition(
        uuid="5f0e8b1c-0000-4000-8000-000000000001",
        database="db",
        name="t",
        columns=tuple(columns),
        order_by=tuple(column.name for column in columns[:-1]),
        policy="hot_cold",
        last_column_id=9,
    )
    return definition, [sorted(rows, key=lambda row: tuple(map(python_key, row))) for rows in inputs]


def as_table(definition: TableDefinition, rows: list[tuple[Any, ...]], first: int) -> pa.Table:
    """The rows with the number of their arrival in the last column."""
    schema = arrow_schema(definition)
    arrays = []
    for number, field in enumerate(schema):
        values = [row[number] for row in rows] if number < len(schema) - 1 else list(range(first, first + len(rows)))
        if any(isinstance(value, pa.Scalar) for value in values):
            plain = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
            arrays.append(pa.array(plain, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def write(directory: Path, definition: TableDefinition, number: int, rows: list[tuple[Any, ...]]) -> SortedFile:
    own = directory / str(number)
    own.mkdir()
    (file,) = write_part_files([as_table(definition, rows, number * 1000)], definition, own)
    names = {column.id: column.name for column in definition.columns}
    return SortedFile(own / file.name, file, names, number, f"file {number}")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sorted_inputs(), st.sampled_from([(1, 1), (2, 3), (7, 7), (256, 16_384)]), st.sampled_from([2, 64]))
def test_the_merge_is_pythons_stable_sort(
    given_inputs: tuple[TableDefinition, list[list[tuple[Any, ...]]]], batches: tuple[int, int], most_open: int
) -> None:
    definition, inputs = given_inputs
    expected = sorted(
        ((row, number * 1000 + place) for number, rows in enumerate(inputs) for place, row in enumerate(rows)),
        key=lambda pair: tuple(map(python_key, pair[0])),
    )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(sorted_merge, "_BATCH_ROWS", batches)
        patch.setattr(sorted_merge, "MAX_OPEN_FILES", most_open)
        files = [write(Path(name), definition, number, rows) for number, rows in enumerate(inputs)]
        found = [came for table in merged(files, definition, Path(name)) for came in table.column("came").to_pylist()]
    assert found == [came for _, came in expected]


@settings(deadline=None)
@given(sorted_inputs())
def test_a_sort_is_pythons_stable_sort(given_inputs: tuple[TableDefinition, list[list[tuple[Any, ...]]]]) -> None:
    definition, inputs = given_inputs
    rows = [row for rows in reversed(inputs) for row in rows]
    expected = sorted(range(len(rows)), key=lambda place: tuple(map(python_key, rows[place])))
    assert sort_table(as_table(definition, rows, 0), definition.order_by).column("came").to_pylist() == expected


def test_texts_of_several_dictionaries_become_plain_texts(tmp_path: Path) -> None:
    """Texts go through the merge as dictionaries; each row group has its own, and what comes out has none."""
    definition = TableDefinition(
        uuid="5f0e8b1c-0000-4000-8000-000000000001",
        database="db",
        name="t",
        columns=(Column(1, "k1", "string"), Column(2, "came", "int64")),
        order_by=("k1",),
        policy="hot_cold",
        last_column_id=2,
    )
    files = []
    for number in range(3):
        rows = [(f"{letter}{number}" if letter != "z" else None,) for letter in "abcxyz" for _ in range(50)]
        table = as_table(definition, rows, 0)
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=70)
        ranges = {"1": column_range(table.column("k1"))}
        described = DataFile(path.name, table.num_rows, path.stat().st_size, "x", columns=ranges)
        files.append(SortedFile(path, described, {1: "k1", 2: "came"}, number, "f"))
    found = pa.concat_tables(map(decoded, merged(files, definition, tmp_path)))
    assert found.schema.equals(arrow_schema(definition))
    expected = [f"{letter}{number}" for letter in "abcxy" for number in range(3) for _ in range(50)] + [None] * 150
    assert found.column("k1").to_pylist() == expected


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "torn.parquet"
    path.write_bytes(b"PAR1 this is no Parquet file PAR1")
    definition = TableDefinition(
        uuid="5f0e8b1c-0000-4000-8000-000000000001",
        database="db",
        name="t",
        columns=(Column(1, "k1", "int64"),),
        order_by=("k1",),
        policy="hot_cold",
        last_column_id=1,
    )
    file = SortedFile(path, DataFile(path.name, 1, 10, "x"), {1: "k1"}, 0, "ssd:store/t/torn.parquet")
    with pytest.raises(Damaged, match=r"ssd:store/t/torn\.parquet"):
        list(merged([file], definition, tmp_path))
