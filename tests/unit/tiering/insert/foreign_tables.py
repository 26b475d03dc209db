"""Tables that values of other types are inserted into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oplog.errors import UsageError
from tiering.insert.bad_rows import BadRows
from tiering.insert.inputs.source_files import find_sources
from tiering.insert.inputs.sources import read_each
from tiering.insert.reshaping import Reshaping
from tiering.table.definitions import define_table
from tiering.table.schema import TableDefinition

TEXT = pa.string()


def texts(*values: bytes | None, kind: pa.DataType = TEXT) -> pa.Array:
    """Texts that Arrow has not looked at."""
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value or b""))
    wide = pa.int64() if kind == pa.large_string() else pa.int32()
    validity = pa.array([value is not None for value in values]).buffers()[1]
    buffers = [validity, pa.array(offsets, wide).buffers()[1], pa.py_buffer(b"".join(value or b"" for value in values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def table_of(kind: str) -> TableDefinition:
    return define_table("d.t", columns=["k:int64", f"v:{kind}"], order_by="k", policy="p")


def inserted(path: Path, definition: TableDefinition, bad: BadRows | None = None) -> list[Any]:
    """The values of column v that go in."""
    streams = read_each(find_sources([str(path)]), Reshaping(definition), bad=bad)
    return [value for stream in streams for batch in stream for value in batch.column("v").to_pylist()]


def refused(path: Path, definition: TableDefinition, *words: str) -> str:
    with pytest.raises(UsageError) as raised:
        inserted(path, definition)
    for word in (path.name, *words):
        assert word in raised.value.message
    return raised.value.message
