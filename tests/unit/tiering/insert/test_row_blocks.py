"""By what a block that was inserted before is known: its rows, whatever was altered meanwhile."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tiering.insert.row_blocks import row_blocks, row_digest
from tiering.table import definitions
from tiering.table.columns.types import arrow_schema
from tiering.table.schema import TableDefinition

COLUMNS = ("k:int64", "x:string")


def table(*columns: str, order_by: str = "k", **more: Any) -> TableDefinition:
    return definitions.define_table("d.t", columns=columns or COLUMNS, order_by=order_by, policy="p", **more)


def digest(definition: TableDefinition, **columns: list[Any]) -> str:
    """Of a block of these values; columns that are not named come as they do for an insert."""
    kinds = {field.name: field.type for field in arrow_schema(definition)}
    batch = pa.RecordBatch.from_pydict({name: pa.array(values, kinds[name]) for name, values in columns.items()})
    (block,) = row_blocks([batch], definition)
    return row_digest(block, definition)


def test_a_column_that_came_or_has_another_name_changes_nothing() -> None:
    old = table()
    before = digest(old, k=[1, 2], x=["a", None])
    more = definitions.add_column(old, "y:int64")
    assert digest(more, k=[1, 2], x=["a", None]) == before
    assert digest(more, k=[1, 2], x=["a", None], y=[None, 3]) != before
    filled = definitions.add_column(more, "z:list<string>", default=None)
    filled = definitions.add_column(filled, "n:int64 not null", default="7")
    assert digest(filled, k=[1, 2], x=["a", None]) == before
    assert digest(filled, k=[1, 2], x=["a", None], n=[7, 7]) == before
    assert digest(filled, k=[1, 2], x=["a", None], n=[7, 8]) != before
    renamed = definitions.rename_column(filled, "x:text")
    assert digest(renamed, k=[1, 2], text=["a", None]) == before
    wide = definitions.set_settings(renamed, ["row_group_rows=1", "compression_level=9"])
    assert digest(wide, k=[1, 2], text=["a", None]) == before


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("int8", "int64", [1, None, -128]),
        ("uint8", "int16", [255, 0, None]),
        ("uint32", "uint64", [2**32 - 1, 3, None]),
        ("int32", "float64", [2**31 - 1, None, -1]),
        ("int64", "decimal(38, 4)", [2**63 - 1, None, -5]),
        ("float32", "float64", [1.5, None, -0.0]),
        ("decimal(9, 2)", "decimal(38, 6)", [Decimal("1.20"), None, Decimal("-3.45")]),
        ("date", "timestamp[us, UTC]", [1, None, -400]),
        ("timestamp[s]", "timestamp[ns]", [5, None, -1]),
        ("timestamp[ms, UTC]", "timestamp[us, UTC]", [5001, None, -1]),
    ],
)
def test_a_wider_type_changes_nothing(old: str, new: str, values: list[Any]) -> None:
    narrow = table("k:int64", f"x:{old}")
    wide = definitions.widen_column(narrow, f"x:{new}")
    kinds = [arrow_schema(definition).field("x").type for definition in (narrow, wide)]
    column = pa.array(values, kinds[0])
    if pa.types.is_float32(kinds[0]) or not pa.types.is_date(kinds[0]):
        assert column.cast(kinds[1]).null_count == 1
    blocks = [pa.table({"k": [1, 2, 3], "x": column.cast(kind)}) for kind in kinds]
    assert row_digest(blocks[0], narrow) == row_digest(blocks[1], wide)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("string", ["ab", "c"], ["a", "bc"]),
        ("string", ["", None], [None, ""]),
        ("binary", [b"\0", b""], [b"", b"\0"]),
        ("int64", [0, None], [None, 0]),
        ("uint64", [2**64 - 1, 1], [2**63, 1]),
        ("float64", [0.0, 1.0], [-0.0, 1.0]),
        ("float64", [float("nan"), 1.0], [0.0, 1.0]),
        ("bool", [True, False], [False, True]),
        ("decimal(38, 2)", [Decimal("1.01"), Decimal(1)], [Decimal("1.10"), Decimal(1)]),
        ("timestamp[us]", [1, 2], [1000, 2000]),
        ("time", [1, 2], [2, 1]),
        ("duration", [1, 2], [1, 3]),
        ("list<int64>", [[1], [2, 3]], [[1, 2], [3]]),
        ("list<int64>", [[], None], [None, []]),
        ("struct<a: int64, b: int64>", [{"a": 1, "b": None}, None], [{"a": None, "b": 1}, None]),
        ("struct<a: int64>", [{"a": None}, None], [None, {"a": None}]),
        ("map<string, int64>", [[("a", 1)], [("b", 2)]], [[("a", 1), ("b", 2)], []]),
        ("map<string, list<int64>>", [[("a", [1])], None], [[("a", [2])], None]),
    ],
)
def test_other_rows_are_another_block(kind: str, one: list[Any], other: list[Any]) -> None:
    """Also in columns of which all values but these are the same; and a cut through an array changes nothing."""
    definition = table("k:int64", f"x:{kind}")
    found = [digest(definition, k=[1, 2], x=values) for values in (one, other)]
    assert found[0] != found[1]
    column = pa.array([*other, *one, *other], arrow_schema(definition).field("x").type)
    cut = pa.table({"k": pa.array([1, 2]), "x": column.slice(2, 2)})
    assert row_digest(cut, definition) == found[0]
    pieces = pa.table({"k": pa.array([1, 2]), "x": pa.chunked_array([column.slice(2, 1), column.slice(3, 1)])})
    assert row_digest(pieces, definition) == found[0]


def test_the_order_and_the_number_of_rows_count() -> None:
    definition = table()
    found = {digest(definition, k=keys) for keys in ([1, 2], [2, 1], [1, 2, 2], [1])}
    assert len(found) == 4


def test_a_column_that_came_moves_no_border_of_wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiering.insert.row_blocks._BLOCK_BYTES", 2000)
    old = table()
    new = definitions.add_column(old, "y:string", default="a long text that takes its place in memory")
    batches = pa.table({"k": range(300), "x": [f"{number:05d}" for number in range(300)]}).to_batches(max_chunksize=37)
    counts = [[block.num_rows for block in row_blocks(batches, definition)] for definition in (old, new)]
    assert counts[0] == counts[1]
    assert len(counts[0]) > 1
