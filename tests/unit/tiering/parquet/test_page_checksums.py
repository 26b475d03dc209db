"""Page checksums: a merge that reads some row groups of a file, whose SHA-256 it cannot check, finds every altered bit
all the same (I15). Every reader takes the files, and files without checksums are still merged."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from oplog.errors import Damaged
from tiering.merge.cold.shards import byte_ranges
from tiering.parquet.dictionaries import decoded
from tiering.parquet.part_files import write_part_files
from tiering.parquet.sorted_input import SortedFile
from tiering.parquet.sorted_merge import merged
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table
from tiering.table.part import DataFile
from tiering.table.schema import TableDefinition

ROWS = 3000


@pytest.fixture
def definition() -> TableDefinition:
    """Columns whose pages are a dictionary, deltas, plain numbers and texts that are all different."""
    columns = ["k:int64", "level:string", "id:string", "x:float64"]
    settings = ["row_group_rows=1000"]
    return define_table("a.b", columns=columns, order_by="k", policy="p", settings=settings)


@pytest.fixture
def table(definition: TableDefinition) -> pa.Table:
    data = {
        "k": [number * 37 for number in range(ROWS)],
        "level": [("INFO", "WARN", None)[number % 3] for number in range(ROWS)],
        "id": [f"{number * 7919 % 10**9:09d}" for number in range(ROWS)],
        "x": [number / 7 for number in range(ROWS)],
    }
    return pa.table(data, arrow_schema(definition))


def rows_of(path: Path, file: DataFile, definition: TableDefinition, groups: tuple[int, ...] | None) -> pa.Table:
    names = {column.id: column.name for column in definition.columns}
    source = SortedFile(path, file, names, 0, "s3:store/a/part/data-0000.parquet", groups)
    return pa.concat_tables(map(decoded, merged([source], definition, path.parent)))


@pytest.mark.in_turn
def test_no_altered_bit_of_a_row_group_gets_into_a_merge(
    tmp_path: Path, definition: TableDefinition, table: pa.Table
) -> None:
    """Whatever bit it is, of a page or its header: the merge names the file, or the rows are as they were written."""
    (file,) = write_part_files([table], definition, tmp_path)
    path = tmp_path / file.name
    good = path.read_bytes()
    read = byte_ranges(file, (1,))[0]
    found = 0
    group = file.row_groups[1]
    for position in range(read.start, group.offset_bytes + group.size_bytes, 7):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        try:
            rows = rows_of(path, file, definition, (1,))
        except Damaged as error:
            found += "s3:store/a/part/data-0000.parquet" in error.message
        else:
            assert rows.equals(table.slice(1000, 1000)), position
    assert found > group.size_bytes / 7 * 0.99


def test_a_file_without_checksums_is_merged(tmp_path: Path, definition: TableDefinition, table: pa.Table) -> None:
    path = tmp_path / "data-0000.parquet"
    pq.write_table(table, path, row_group_size=1000)
    file = DataFile(path.name, ROWS, path.stat().st_size, "x")
    assert rows_of(path, file, definition, (0, 1, 2)).equals(table)


def test_every_reader_reads_files_with_checksums(tmp_path: Path, definition: TableDefinition, table: pa.Table) -> None:
    (file,) = write_part_files([table], definition, tmp_path)
    path = str(tmp_path / file.name)
    total = pc.sum(table.column("k")).as_py()
    assert pq.read_table(path, page_checksum_verification=True).equals(table)
    assert polars.read_parquet(path).get_column("k").sum() == total
    sql = "SELECT sum(k), count(level), max(id) FROM '{0}' WHERE x > 1"
    some = table.filter(pc.greater(table.column("x"), 1))
    expected = (
        pc.sum(some.column("k")).as_py(),
        pc.count(some.column("level")).as_py(),
        pc.max(some.column("id")).as_py(),
    )
    assert duckdb.connect().execute(sql.format(path)).fetchall() == [expected]
