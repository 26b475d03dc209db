"""What `--like` makes of a sample's types, an insert of the sample takes, with its values; finer ones are refused."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

import pyarrow as pa
import pytest

from oplog.errors import UsageError
from tiering.table.columns.types import cast_batch
from tiering.table.definitions import define_table


def extension(kind: pa.BaseExtensionType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def category(kind: pa.DataType) -> pa.Array:
    """As Polars writes it to Arrow files."""
    return pa.DictionaryArray.from_arrays(pa.array([0, None], pa.uint32()), pa.array(["a"], kind))


DAY = datetime(2026, 1, 1)
JSON = extension(pa.json_(), ['{"a": 1}', None])
SAMPLES: list[tuple[pa.Array, str, Any]] = [
    (pa.array([timedelta(seconds=3), None], pa.duration("ns")), "duration", timedelta(seconds=3)),
    (pa.array([timedelta(seconds=3), None], pa.duration("s")), "duration", timedelta(seconds=3)),
    (pa.array([time(1, 2), None], pa.time64("ns")), "time", time(1, 2)),
    (pa.array([time(1, 2), None], pa.time32("s")), "time", time(1, 2)),
    (JSON, "string", '{"a": 1}'),
    (pa.ListArray.from_arrays(pa.array([0, 1, 2]), JSON), "list<string>", ['{"a": 1}']),
    (category(pa.string_view()), "string", "a"),
    (category(pa.binary_view()), "binary", b"a"),
    (pa.array([DAY, None], pa.timestamp("s")).dictionary_encode(), "timestamp[us]", DAY),
    (pa.array([{}, None], pa.struct([])), "string", "{}"),
    (pa.array([[{}], None], pa.list_(pa.struct([]))), "list<string>", ["{}"]),
    (pa.array([[DAY], None], pa.list_(pa.timestamp("ns"), 1)), "list<timestamp[ns]>", [DAY]),
    (pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), ["x"]), "string", "x"),
    (pa.array([[DAY], None], pa.list_(pa.timestamp("s"), 1)), "list<timestamp[us]>", [DAY]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "kind", "first"), SAMPLES, ids=[str(sample[0].type) for sample in SAMPLES])
def test_a_sample_goes_in_as_what_was_made_of_it(values: pa.Array, kind: str, first: Any) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), values], ["k", "c"])
    definition = define_table("d.t", like=batch.schema, order_by="k", policy="p")
    assert definition.column("c").type == kind
    assert cast_batch(batch, definition).column("c")[0].as_py() == first


@pytest.mark.parametrize("kind", [pa.duration("ns"), pa.time64("ns")])
def test_a_value_finer_than_a_microsecond_is_refused_with_row(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([1000, 1001], kind)], ["k", "c"])
    definition = define_table("d.t", like=batch.schema, order_by="k", policy="p")
    with pytest.raises(UsageError, match=r"column c must be .*row 2 has") as caught:
        cast_batch(batch, definition)
    assert "would lose data: 1001" in caught.value.hint
