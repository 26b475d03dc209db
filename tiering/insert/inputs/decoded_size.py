"""How many rows of a batch are decoded at once: dictionaries, runs and views hold few bytes that stand for many.

A dictionary with one value of a megabyte and a hundred thousand rows that name it is a megabyte in the file, and a
hundred gigabytes as text. So what is decoded is bounded by the widest value that a row may become. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

MOST_DECODED_BYTES = 256 * 1024 * 1024
_MOST_ROWS = 131_072


def bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices, none of which is much larger once it is decoded. Raises `pa.ArrowException`."""
    widest = sum(map(_widest, batch.columns))
    if not widest or widest * batch.num_rows <= MOST_DECODED_BYTES:
        yield batch
        return
    rows = rows_at_once(widest)
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def together(batches: Iterable[pa.RecordBatch], rows: int, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Batches of few rows as larger ones, of about so many rows or bytes."""
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_rows, waiting_bytes = waiting_rows + batch.num_rows, waiting_bytes + batch.nbytes
        if waiting_bytes > size_bytes or waiting_rows >= rows:
            yield pa.concat_batches(waiting)
            waiting, waiting_rows, waiting_bytes = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def rows_at_once(widest_bytes: int) -> int:
    """How many rows of this width are decoded together."""
    return max(1, min(_MOST_ROWS, MOST_DECODED_BYTES // max(widest_bytes, 1)))


def longest(array: pa.Array) -> int:
    """The bytes of the longest value of a plain array."""
    if not len(array):
        return 0
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind):
        return int(pc.max(pc.binary_length(array)).as_py() or 0)
    return int(array.nbytes) if pa.types.is_nested(kind) or _is_view(kind) else 16


def _widest(array: pa.Array) -> int:
    """The bytes that the widest row takes once it is decoded; 0 of an array that is as large as it says."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _widest(array.storage)
    if pa.types.is_dictionary(kind):
        return max(longest(array.dictionary), _widest(array.dictionary), 1)
    if pa.types.is_run_end_encoded(kind):
        return max(longest(array.values), _widest(array.values), 1)
    if pa.types.is_struct(kind):
        return sum(_widest(array.field(number)) for number in range(kind.num_fields))
    if _is_view(kind):
        return int(array.nbytes)
    if pa.types.is_map(kind):
        return len(array.items) * (_widest(array.keys) + _widest(array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _widest(array.values)
        return inner * int(pc.max(pc.list_value_length(array)).as_py() or 0) if inner and len(array) else 0
    return 0


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _is_view(kind: pa.DataType) -> bool:
    """Rows of views may share their bytes."""
    checks = (pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(check(kind) for check in checks)
