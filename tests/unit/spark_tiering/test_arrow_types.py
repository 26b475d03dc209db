"""Names in a schema that Spark gives, compared with the columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_tiering.arrow_types import conform, unknown_names

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

pytest.importorskip("pyspark")

_POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])


def _schema(column: str, field: str) -> StructType:
    from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

    point = StructType().add("x", LongType()).add(field, LongType())
    schema = StructType().add(column, StringType()).add("p", point).add("l", ArrayType(point))
    return schema.add("m", MapType(StringType(), ArrayType(point)))


def test_names_that_a_table_has_not_are_found_at_any_depth() -> None:
    """I15. Arrow makes a field null that a struct has not."""
    known = {"k": pa.int64(), "p": _POINT, "l": pa.list_(_POINT), "m": pa.map_(pa.string(), pa.list_(_POINT))}
    assert list(unknown_names(_schema("k", "y"), known)) == []
    assert list(unknown_names(_schema("n", "z"), known)) == ["n", "p.z", "l.element.z", "m.value.element.z"]


def test_fields_of_a_struct_are_converted_by_their_names() -> None:
    swapped = pa.schema([("p", pa.struct([("y", pa.int64()), ("x", pa.int64())]))])
    batch = pa.record_batch({"p": pa.array([{"x": 1, "y": 2}], _POINT)})
    assert conform(batch, swapped).to_pylist() == [{"p": {"x": 1, "y": 2}}]
