"""Texts that are written as the dictionaries they came in give the same file as the texts themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiering.parquet.dictionaries import decoded, joined, used_values
from tiering.parquet.part_files import write_part_files
from tiering.table.columns.types import arrow_schema
from tiering.table.schema import Column, TableDefinition, TableSettings

TABLE = TableDefinition(
    uuid="5f0e8b1c-0000-4000-8000-000000000003",
    database="demo",
    name="texts",
    columns=(
        Column(1, "service", "string", nullable=False),
        Column(2, "level", "string"),
        Column(3, "blob", "binary"),
        Column(4, "n", "int64"),
    ),
    order_by=("service", "n"),
    policy="hot_cold",
    settings=TableSettings(row_group_rows=64),
    last_column_id=4,
)
TEXTS = ("service", "level", "blob")


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    columns = [
        [f"service-{number // 100:03d}" for number in numbers],
        [None if number % 7 == 0 else f"level-{number % 3}" for number in numbers],
        [bytes([number % 5]) for number in numbers],
        list(numbers),
    ]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


SCHEMA = arrow_schema(TABLE)


def as_dictionaries(table: pa.Table, names: Sequence[str] = TEXTS) -> pa.Table:
    """Each chunk has a dictionary of its own, with values in it that no row has."""
    for name in names:
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        unused = pa.array(["zzz", "aaa"], pa.string()).cast(field.type)
        chunks = []
        for chunk in table.column(name).chunks:
            found = pa.concat_arrays([unused, chunk]).dictionary_encode()
            chunks.append(found.slice(2))
        kind = pa.dictionary(pa.int32(), field.type)
        table = table.set_column(place, field.with_type(kind), pa.chunked_array(chunks, kind))
    return table


@pytest.mark.parametrize("mixed", [False, True])
def test_the_file_is_the_same_whichever_way_its_texts_came(tmp_path: Path, mixed: bool) -> None:
    """What is read back, what `part.json` says, the schema with its field ids: nothing tells one from the other."""
    pieces = [rows(start, 50) for start in range(0, 500, 50)]
    encoded = [as_dictionaries(piece, TEXTS[: number % 4] if mixed else TEXTS) for number, piece in enumerate(pieces)]
    (tmp_path / "plain").mkdir()
    (tmp_path / "encoded").mkdir()
    (plain,) = write_part_files(pieces, TABLE, tmp_path / "plain")
    (other,) = write_part_files(encoded, TABLE, tmp_path / "encoded")
    files = [pq.ParquetFile(tmp_path / "plain" / plain.name), pq.ParquetFile(tmp_path / "encoded" / other.name)]
    assert files[0].read().equals(files[1].read())
    assert files[0].schema_arrow.equals(files[1].schema_arrow, check_metadata=True)
    assert files[0].schema.equals(files[1].schema)
    assert files[0].metadata.metadata == files[1].metadata.metadata
    assert plain.columns == other.columns
    assert [(g.rows, g.first_key) for g in plain.row_groups] == [(g.rows, g.first_key) for g in other.row_groups]
    for group in range(files[0].metadata.num_row_groups):
        for column in range(len(SCHEMA)):
            one, two = (file.metadata.row_group(group).column(column) for file in files)
            assert one.statistics.to_dict() == two.statistics.to_dict()
            assert one.encodings == two.encodings


def test_a_new_file_of_the_part_begins_between_two_keys(tmp_path: Path) -> None:
    definition = TableDefinition(
        **{
            **{name: getattr(TABLE, name) for name in TABLE.__struct_fields__},
            "order_by": ("service",),
            "settings": TableSettings(row_group_rows=64, target_file_size_bytes=1500),
        }
    )
    files = write_part_files([as_dictionaries(rows(start, 50)) for start in range(0, 500, 50)], definition, tmp_path)
    read = [pq.read_table(tmp_path / file.name) for file in files]
    assert len(files) > 1
    ends = [(table.column("service")[0].as_py(), table.column("service")[-1].as_py()) for table in read]
    assert all(left[1] < right[0] for left, right in pairwise(ends))
    assert pa.concat_tables(read).equals(pa.concat_tables([rows(0, 500)]))


def test_what_is_put_together_is_what_was_there() -> None:
    table = rows(0, 20)
    encoded = as_dictionaries(table)
    assert decoded(encoded).equals(table)
    assert joined([encoded, encoded]).schema.equals(encoded.schema)
    assert joined([encoded, table]).equals(pa.concat_tables([table, table]))
    assert set(used_values(encoded.column("level")).to_pylist()) == {"level-0", "level-1", "level-2"}
