"""Data files of parts: what they hold, how they are laid out, and that part.json tells the truth about them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiering.parquet.column_ranges import combine_ranges, leaf_keys, stated_ranges
from tiering.parquet.part_files import write_part_files
from tiering.table.columns.type_texts import leaf_ranges
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table
from tiering.table.part import ColumnRange, DataFile
from tiering.table.schema import TableDefinition


def table_of(columns: dict[str, str], *, order_by: str, settings: list[str] | None = None) -> TableDefinition:
    texts = [f"{name}:{kind}" for name, kind in columns.items()]
    return define_table("a.b", columns=texts, order_by=order_by, policy="p", settings=settings or [])


def events(count: int) -> tuple[TableDefinition, pa.Table]:
    definition = table_of(
        {"k": "int64", "ts": "timestamp", "level": "string", "id": "string", "x": "float64"},
        order_by="k,ts",
        settings=["row_group_rows=1000"],
    )
    data = {
        "k": [number // 10 for number in range(count)],
        "ts": [datetime(2026, 1, 1, 0, 0, number % 10, tzinfo=UTC) for number in range(count)],
        "level": [("INFO", "WARN")[number % 2] for number in range(count)],
        "id": [f"{number * 7919 % 10**9:09d}" for number in range(count)],
        "x": [number / 7 for number in range(count)],
    }
    return definition, pa.table(data, arrow_schema(definition))


def test_files_read_back_with_statistics_indexes_order_and_ids(tmp_path: Path) -> None:
    definition, table = events(2500)
    (file,) = write_part_files([table.slice(0, 700), table.slice(700)], definition, tmp_path)
    path = tmp_path / file.name
    assert pq.read_table(path).equals(table)
    assert (file.rows, file.size_bytes) == (2500, path.stat().st_size)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(number).num_rows for number in range(3)] == [1000, 1000, 500]
    for number in range(3):
        group = metadata.row_group(number)
        assert [column.column_index for column in group.sorting_columns] == [0, 1]
        assert not any(column.nulls_first or column.descending for column in group.sorting_columns)
        for position in range(group.num_columns):
            column = group.column(position)
            assert column.compression == "ZSTD"
            assert column.statistics.has_min_max
            assert column.has_column_index
            assert column.has_offset_index
    encodings = {
        metadata.row_group(0).column(n).path_in_schema: metadata.row_group(0).column(n).encodings for n in range(5)
    }
    assert "RLE_DICTIONARY" in encodings["level"]
    assert "RLE_DICTIONARY" not in encodings["id"]
    assert "BYTE_STREAM_SPLIT" not in encodings["x"]
    assert "RLE_DICTIONARY" in encodings["ts"]
    assert pq.read_schema(path).field("id").metadata[b"PARQUET:field_id"] == b"4"


def test_the_sparse_index_points_at_the_row_groups(tmp_path: Path) -> None:
    definition, table = events(2500)
    (file,) = write_part_files([table], definition, tmp_path)
    metadata = pq.read_metadata(tmp_path / file.name)
    for number, group in enumerate(file.row_groups):
        columns = [metadata.row_group(number).column(position) for position in range(5)]
        assert group.rows == metadata.row_group(number).num_rows
        assert group.offset_bytes == min(c.dictionary_page_offset or c.data_page_offset for c in columns)
        assert group.size_bytes == sum(column.total_compressed_size for column in columns)
        first = table.slice(number * 1000, 1).to_pylist()[0]
        assert group.first_key == (first["k"], first["ts"].isoformat().replace("+00:00", "Z"))


def test_the_query_engine_prunes_with_them(tmp_path: Path) -> None:
    """Row groups that cannot match are skipped: what they hold does not matter."""
    definition, table = events(5000)
    (file,) = write_part_files([table], definition, tmp_path)
    path = tmp_path / file.name
    wanted = f"SELECT count(*) FROM '{path}' WHERE k = 5"
    assert duckdb.connect().execute(wanted).fetchall() == [(10,)]
    metadata = pq.read_metadata(path)
    matching = [number for number in range(5) if _holds(metadata.row_group(number).column(0).statistics, 5)]
    assert len(matching) == 1
    data = bytearray(path.read_bytes())
    for number in set(range(5)) - set(matching):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(number).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.chmod(0o644)
    path.write_bytes(data)
    assert duckdb.connect().execute(wanted).fetchall() == [(10,)]


def _holds(statistics: pq.Statistics, value: int) -> bool:
    return bool(statistics.min <= value <= statistics.max)


def test_large_parts_become_several_files_with_disjoint_keys(tmp_path: Path) -> None:
    definition, table = events(20_000)
    small = define_table(
        "a.b",
        like=arrow_schema(definition),
        order_by="k,ts",
        policy="p",
        settings=["row_group_rows=1005", "target_file_size_bytes=20000"],
    )
    # every key occurs twice, and row groups do not end where keys do
    doubled = pa.concat_tables([table, table]).sort_by([("k", "ascending"), ("ts", "ascending")])
    files = write_part_files([doubled], small, tmp_path)
    assert len(files) > 3
    assert [file.name for file in files] == [f"data-{number:04d}.parquet" for number in range(len(files))]
    read = [pq.read_table(tmp_path / file.name) for file in files]
    assert pa.concat_tables(read).equals(doubled)
    for before, after in pairwise(read):
        last, first = before.slice(before.num_rows - 1).to_pylist()[0], after.slice(0, 1).to_pylist()[0]
        assert (last["k"], last["ts"]) < (first["k"], first["ts"])


@pytest.mark.in_turn
def test_wide_rows_make_small_row_groups(tmp_path: Path) -> None:
    definition = table_of({"k": "int64", "blob": "binary"}, order_by="k")
    random_bytes = [hashlib.sha256(str(number).encode()).digest() * 300 for number in range(20_000)]
    table = pa.table({"k": range(20_000), "blob": random_bytes}, arrow_schema(definition))
    (file,) = write_part_files([table], definition, tmp_path)
    assert max(group.rows for group in file.row_groups) <= 4096
    assert sum(group.rows for group in file.row_groups) == 20_000
    assert pq.read_table(tmp_path / file.name).equals(table)


def test_no_rows_still_make_a_readable_file(tmp_path: Path) -> None:
    definition, table = events(10)
    (file,) = write_part_files([table.slice(0, 0)], definition, tmp_path)
    assert (file.rows, file.row_groups) == (0, ())
    assert pq.read_table(tmp_path / file.name).num_rows == 0


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("int64", [3, None, -1], ColumnRange(-1, 3, 1)),
        ("uint64", [2**64 - 1, 0], ColumnRange(0, 2**64 - 1)),
        ("bool", [True, False], ColumnRange(False, True)),
        ("string", ["b", "a", "é"], ColumnRange("a", "é")),
        ("string", ["a" * 100, "b" * 100], ColumnRange("a" * 64, "b" * 63 + "c")),
        ("string", [chr(0x10FFFF) * 70], ColumnRange(chr(0x10FFFF) * 64, None)),
        ("binary", [b"\x01", b"\xff"], ColumnRange("01", "ff")),
        ("float64", [1.5, float("nan")], ColumnRange(1.5, None)),
        ("float64", [float("nan")], ColumnRange(None, None)),
        ("float64", [float("inf"), 1.0], ColumnRange(1.0, None)),
        ("decimal(8, 2)", [Decimal("10"), Decimal("9")], ColumnRange("9.00", "10.00")),
        ("date", [None, None], ColumnRange(None, None, 2)),
        ("timestamp[us, UTC]", [datetime(2026, 1, 1, tzinfo=UTC)], ColumnRange(*["2026-01-01T00:00:00Z"] * 2)),
        ("timestamp[ns]", pa.array([1500], pa.timestamp("ns")),
         ColumnRange("1970-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.000002Z")),
        ("list<int64>", [[1]], ColumnRange()),
    ],
)  # fmt: skip
def test_ranges_bound_every_value(tmp_path: Path, kind: str, values: Any, expected: ColumnRange) -> None:
    """Pruning trusts these: a bound may be wider than the values, never narrower."""
    definition = table_of({"k": "int64", "v": kind}, order_by="k")
    table = pa.table({"k": range(len(values)), "v": values}, arrow_schema(definition))
    (file,) = write_part_files([table], definition, tmp_path)
    assert file.columns["2"] == expected


def test_ranges_are_combined_as_values_not_as_text() -> None:
    definition = table_of({"k": "int64", "d": "decimal(8, 2)", "t": "timestamp"}, order_by="k")

    def file(low: Any, high: Any, start: str, end: str) -> DataFile:
        columns = {"2": ColumnRange(low, high), "3": ColumnRange(start, end)}
        return DataFile(name="f", rows=5, size_bytes=1, sha256="", columns=columns)

    nulls = DataFile(name="n", rows=5, size_bytes=1, sha256="", columns={"2": ColumnRange(None, None, 5)})
    unknown = DataFile(name="u", rows=5, size_bytes=1, sha256="", columns={"2": ColumnRange("1.00", None)})
    one = file("9.00", "9.50", "2026-01-01T00:00:00.500000Z", "2026-01-01T00:00:00.500000Z")
    two = file("10.00", "11.00", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
    combined = combine_ranges([one, two, nulls], definition)
    assert combined["2"] == ColumnRange("9.00", "11.00", 5)
    assert combined["3"] == ColumnRange("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.500000Z")
    assert combine_ranges([one, unknown], definition)["2"] == ColumnRange("1.00", None)


@pytest.mark.parametrize("last_byte", [0x0F, 0xEF, 0xFF])
def test_long_binary_values_keep_bounds_that_hold_them(tmp_path: Path, last_byte: int) -> None:
    definition = table_of({"k": "int64", "b": "binary"}, order_by="k")
    longest = b"\x10" * 31 + bytes((last_byte,)) + b"rest"
    table = pa.table({"k": [1, 2], "b": [b"\x00" * 40, longest]}, arrow_schema(definition))
    (file,) = write_part_files([table], definition, tmp_path)
    found = combine_ranges([file], definition)[str(definition.column("b").id)]
    assert bytes.fromhex(found.min) <= b"\x00" * 40
    if last_byte == 0xFF:
        assert found.max is None
    else:
        assert bytes.fromhex(found.max) >= longest


def test_fields_of_structs_have_ranges_as_in_the_footer(tmp_path: Path) -> None:
    """By rows, whose structs may be null at each level, and whatever lies beneath one that is. In `part.json`."""
    kind = "struct<a: int64, s: struct<t: timestamp, w: string, more: list<int64>>>"
    definition = table_of({"k": "int64", "o": kind, "m": "list<struct<a: int64>>", "z": "int64"}, order_by="k")
    inner = pa.StructArray.from_arrays(
        [
            pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in (5, 2, 9, 4)], pa.timestamp("us", "UTC")),
            pa.array(["b", None, "z", "c"]),
            pa.array([[1], [], None, [2, 3]], pa.list_(pa.int64())),
        ],
        names=["t", "w", "more"],
        mask=pa.array([False, False, True, False]),
    )
    outer = pa.StructArray.from_arrays(
        [pa.array([7, 8, None, 1]), inner], names=["a", "s"], mask=pa.array([0, 0, 0, 1], pa.int8()).cast(pa.bool_())
    )
    rows = pa.table({"k": range(4), "o": outer, "m": [[{"a": 1}]] * 4, "z": range(4)}, arrow_schema(definition))
    (file,) = write_part_files([rows], definition, tmp_path)
    first, last = "2026-01-02T00:00:00Z", "2026-01-05T00:00:00Z"
    a, s, t, w, more = "5", "6", "7", "8", "9"
    assert {key: found for key, found in file.columns.items() if key not in "134"} == {
        "2": ColumnRange(nulls=1),
        a: ColumnRange(7, 8, 2),
        s: ColumnRange(nulls=2),
        t: ColumnRange(first, last, 2),
        w: ColumnRange("b", "b", 3),
        more: ColumnRange(nulls=2),
    }
    metadata = pq.read_metadata(tmp_path / file.name)
    held = dict(zip(range(1, 5), leaf_ranges(arrow_schema(definition).types), strict=True))
    keys = leaf_keys(metadata.schema, held, definition)
    assert keys == {0: "1", 1: a, 2: t, 3: w, 6: "4"}
    stated = stated_ranges(metadata.row_group(0), keys)
    assert stated == {key: file.columns[key] for key in keys.values()}
    assert combine_ranges([file], definition) == file.columns
    older = msgspec.structs.replace(file, columns={"1": ColumnRange(0, 3), "2": ColumnRange()})
    assert combine_ranges([file, older], definition).keys() == {
        "1",
        "2",
        "3",
        "4",
    }  # what one file says bounds no other
