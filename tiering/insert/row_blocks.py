"""The blocks that rows are inserted in, and the digest by which one is known that was inserted before. Pure.

Both go by the rows alone, by what every definition of the table says of them alike: running an insert again finds what
went in, whatever was altered meanwhile. A column whose values all are its default says nothing, as one that was not
there yet; a column is its id, whatever its name; numbers, days and moments are what they are in every type that holds
them; how files are laid out is no matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from struct import pack
from typing import Any, Protocol

import numpy
import pyarrow as pa
import pyarrow.compute as pc

from tiering.table.columns.types import cast_batch, default_array
from tiering.table.schema import Column, TableDefinition
from tiering.table.transforms import one_array

_BLOCK_BYTES = 256 * 1024 * 1024
"""A block ends at this size in memory even if it has fewer rows."""
_UNITS = ("s", "ms", "us", "ns")
_SIGNED = (numpy.int8, numpy.int16, numpy.int32, numpy.int64)


def row_blocks(batches: Iterable[pa.RecordBatch], definition: TableDefinition) -> Iterator[pa.Table]:
    """The rows as the table has them, in tables of exactly `insert_block_rows`, so that a repeat makes the same blocks.
    Of wide rows, what came in counts, not what the definition adds. Raises `UsageError` as `cast_batch` does."""
    limit = definition.settings.insert_block_rows
    pending: list[pa.RecordBatch] = []
    rows = size_bytes = first_row = 0
    for batch in batches:
        rest = cast_batch(batch, definition, first_row=first_row)
        first_row += batch.num_rows
        while rest.num_rows:
            taken = rest.slice(0, limit - rows)
            rest = rest.slice(taken.num_rows)
            pending.append(taken)
            rows += taken.num_rows
            size_bytes += taken.select(batch.schema.names).nbytes
            if rows >= limit or size_bytes >= _BLOCK_BYTES:
                yield pa.Table.from_batches(pending)
                pending, rows, size_bytes = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)


def row_digest(rows: pa.Table, definition: TableDefinition) -> str:
    """The SHA-256 of the rows, in their order."""
    digest = hashlib.sha256(pack("<q", rows.num_rows))
    for column in sorted(definition.columns, key=lambda column: column.id):
        values = one_array(rows.column(column.name))
        if not _is_default(values, column):
            digest.update(pack("<q", column.id))
            _add(digest, values)
    return digest.hexdigest()


class _Digest(Protocol):
    def update(self, data: Any, /) -> None: ...


def _is_default(values: pa.Array, column: Column) -> bool:
    if column.default is None or values.null_count == len(values):
        return bool(column.default is None and values.null_count == len(values))
    return bool(values.equals(default_array(column, len(values))))


def _add(digest: _Digest, values: pa.Array) -> None:
    """Which of the values are null, then those that are not."""
    digest.update(pack("<qq", len(values), values.null_count))
    if values.null_count:
        digest.update(numpy.packbits(values.is_valid().to_numpy(zero_copy_only=False)))
        values = values.drop_null()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if pa.types.is_struct(kind):
        for number, field in enumerate(kind):
            _add_bytes(digest, field.name.encode())
            _add(digest, pc.struct_field(values, [number]))
    elif pa.types.is_map(kind):
        _add(digest, values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))))
    elif pa.types.is_list(kind):
        _add_whole(digest, "n", pc.list_value_length(values).to_numpy(zero_copy_only=False))
        _add(digest, values.flatten())
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        _add_texts(digest, values)
    elif pa.types.is_boolean(kind):
        _add_bytes(digest, values.cast(pa.uint8()).to_numpy())
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        _add_moments(digest, values)
    elif pa.types.is_decimal(kind):
        _add_decimals(digest, values)
    elif pa.types.is_integer(kind):
        _add_whole(digest, "n", values.to_numpy())
    elif pa.types.is_floating(kind):
        _add_fractions(digest, values.to_numpy())
    else:
        _add_bytes(digest, _bytes_of(values))


def _add_bytes(digest: _Digest, data: Any) -> None:
    digest.update(pack("<q", memoryview(data).nbytes))
    digest.update(data)


def _bytes_of(values: pa.Array) -> memoryview:
    """The values, each of so many bits, where no one is null."""
    width = values.type.bit_width // 8
    data = values.buffers()[1]
    start = values.offset * width
    return memoryview(data or b"")[start : start + len(values) * width]


def _add_texts(digest: _Digest, values: pa.Array) -> None:
    _, offsets, data = values.buffers()
    ends = numpy.frombuffer(offsets or b"", numpy.int32)[values.offset : values.offset + len(values) + 1]
    _add_whole(digest, "n", numpy.diff(ends))
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    _add_bytes(digest, memoryview(data or b"")[first:last])


def _add_whole(digest: _Digest, label: str, numbers: numpy.ndarray[Any, Any]) -> None:
    """Whole numbers, in the fewest bytes that hold them all."""
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    fits = (kind for kind in _SIGNED if numpy.iinfo(kind).min <= low and high <= numpy.iinfo(kind).max)
    shortest = numpy.dtype(next(fits, numpy.uint64))
    digest.update(f"{label}{shortest.str}".encode())
    _add_bytes(digest, numpy.ascontiguousarray(numbers, shortest))


def _add_fractions(digest: _Digest, numbers: numpy.ndarray[Any, Any]) -> None:
    """As whole numbers where they all are such."""
    wide = numbers.astype(numpy.float64)
    with numpy.errstate(invalid="ignore"):
        whole = wide.astype(numpy.int64)
    if whole.astype(numpy.float64).tobytes() == wide.tobytes():
        _add_whole(digest, "n", whole)
    else:
        digest.update(b"f")
        _add_bytes(digest, wide)


def _add_decimals(digest: _Digest, values: pa.Array) -> None:
    """With as few digits after the point as they need; without any, as whole numbers where those reach so far."""
    for scale in range(values.type.scale, -1, -1):
        try:
            values = values.cast(pa.decimal128(38, scale))
        except pa.ArrowInvalid:
            break
    try:
        whole = values.cast(pa.int64())
    except pa.ArrowInvalid:
        digest.update(f"d{values.type.scale}".encode())
        _add_bytes(digest, _bytes_of(values))
    else:
        _add_whole(digest, "n", whole.to_numpy())


def _add_moments(digest: _Digest, values: pa.Array) -> None:
    """In the coarsest unit that holds them all."""
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s"))
    unit = _UNITS.index(values.type.unit)
    counts = values.cast(pa.int64()).to_numpy()
    while unit and not (counts % 1000).any():
        counts, unit = counts // 1000, unit - 1
    _add_whole(digest, f"t{_UNITS[unit]}", counts)
