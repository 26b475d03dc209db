"""Parquet files as batches of rows, of which only so many are decoded at once as fit into memory.

A row group may unpack to any size, and a small file to many bytes: pages are compressed, rows name one large value of a
dictionary again and again, or repeat most of the value before them. What is decoded at once goes by all of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from oplog.errors import UsageError
from tiering.config.units import counted
from tiering.insert.inputs.decoded_size import MOST_DECODED_BYTES, longest, rows_at_once, together
from tiering.insert.inputs.packed_sizes import group_size, pages
from tiering.insert.inputs.source_files import BATCH_ROWS, check_at_once, open_binary
from tiering.insert.row_reader import RowReader

BUFFER_BYTES = 1024 * 1024
"""Of each column of a file on this machine: without it, a column of a row group is read whole."""
_PREFIXED = "DELTA_BYTE_ARRAY"
"""Values are stored as what differs from the one before."""


class RowGroupRun(msgspec.Struct, frozen=True):
    """Row groups that are read in the same way."""

    groups: range
    rows: int = BATCH_ROWS
    """Handed on at once."""
    decoded_rows: int = BATCH_ROWS
    """Decoded at once, where that is less."""


def read_parquet(intake: RowReader, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    source, found = intake.source, 0
    with open_binary(source, stdin, seekable=True) as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=BUFFER_BYTES if source.is_here else 0)
        rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        groups = source.span.within(rows) if source.span is not None else range(len(rows))
        intake.rows = sum(rows[: groups.start])
        for some in (
            runs_alike(source.label, file, stream, groups, source.most_decoded_bytes)
            if source.is_here
            else [_run_by_footer(file, groups)]
        ):
            for batch in parquet_batches(file, stream, some):
                found += batch.num_rows
                yield batch
        found += sum(rows) - sum(rows[groups.start : groups.stop])
        if found != file.metadata.num_rows:
            raise UsageError(
                f"{source.label} holds {counted(found, 'row')}, and its footer says {file.metadata.num_rows:,}",
                hint="the file is damaged: write it again",
            )


def _run_by_footer(file: pq.ParquetFile, groups: range) -> RowGroupRun:
    """How a file is read whose pages would take a request each."""
    found = (file.metadata.row_group(number) for number in groups)
    widest = max((group.total_byte_size // max(group.num_rows, 1) for group in found), default=0)
    rows = rows_at_once(widest)
    return RowGroupRun(groups, rows, rows)


def runs_alike(
    label: str, file: pq.ParquetFile, stream: Any, groups: range, most_decoded_bytes: int
) -> Iterator[RowGroupRun]:
    """The row groups in runs. Raises `UsageError` where the pages
    of one are too large."""
    columns = [(number, file.schema.column(number)) for number in range(len(file.schema))]
    texts = [
        (number, column.name)
        for number, column in columns
        if column.physical_type == "BYTE_ARRAY" and column.path == column.name and column.max_repetition_level == 0
        if pa.types.is_string(kind := file.schema_arrow.field(column.name).type) or pa.types.is_binary(kind)
    ]
    run = RowGroupRun(range(groups.start, groups.start))
    for number in groups:
        group = file.metadata.row_group(number)
        size = group_size(stream, group)
        check_at_once(label, size.at_once_bytes, most_decoded_bytes, f"the pages of row group {number}")
        names = [name for column, name in texts if group.column(column).has_dictionary_page]
        rows = rows_at_once(size.widest_row_bytes + _longest_values(file, stream, number, names))
        decoded_rows = min(rows, _prefixed_rows(stream, group))
        if run.groups and (run.rows, run.decoded_rows) != (rows, decoded_rows):
            yield run
            run = RowGroupRun(range(number, number))
        run = RowGroupRun(range(run.groups.start, number + 1), rows, decoded_rows)
    if run.groups:
        yield run


def _prefixed_rows(stream: Any, group: pq.RowGroupMetaData) -> int:
    """How many rows are decoded at once of columns whose values repeat the beginning of the one before: none is longer
    than its page, and all may be as long."""
    widest = 0
    for column in (group.column(number) for number in range(group.num_columns)):
        if _PREFIXED in column.encodings:
            largest = max((page.unpacked_bytes for page in pages(stream, column)), default=0)
            widest = max(widest, largest * -(-column.num_values // max(group.num_rows, 1)))
    return rows_at_once(widest)


def _longest_values(file: pq.ParquetFile, stream: Any, group: int, names: Sequence[str]) -> int:
    """The longest value of each dictionary of a row group, summed up."""
    if not names or not file.metadata.row_group(group).num_rows:
        return 0
    encoded = pq.ParquetFile(stream, metadata=file.metadata, pre_buffer=False, read_dictionary=list(names))
    first = next(encoded.iter_batches(1, row_groups=[group], columns=list(names)))
    return sum(longest(array.dictionary) for array in first.columns if pa.types.is_dictionary(array.type))


def parquet_batches(file: pq.ParquetFile, stream: Any, run: RowGroupRun) -> Iterator[pa.RecordBatch]:
    """The rows of a run."""
    batches = _decoded(file, stream, run.groups, run.decoded_rows)
    return batches if run.decoded_rows == run.rows else together(batches, run.rows, MOST_DECODED_BYTES)


def _decoded(file: pq.ParquetFile, stream: Any, groups: range, rows: int) -> Iterator[pa.RecordBatch]:
    """INT96 holds nanoseconds of any year, and Arrow's reach from 1677 to 2262: beyond that they would come as other
    moments, and so come in microseconds."""
    batches = file.iter_batches(rows, row_groups=groups)
    if all(file.schema.column(number).physical_type != "INT96" for number in range(len(file.schema))):
        yield from batches
        return
    coarse = pq.ParquetFile(stream, metadata=file.metadata, pre_buffer=False, coerce_int96_timestamp_unit="us")
    fields = enumerate(zip(file.schema_arrow, coarse.schema_arrow, strict=True))
    places = [number for number, (field, other) in fields if field.type != other.type]
    names = [file.schema_arrow.names[number] for number in places]
    again = coarse.iter_batches(rows, row_groups=groups, columns=names)
    for batch, moments in zip(batches, again, strict=True):
        arrays = batch.columns
        for number, array in zip(places, moments.columns, strict=True):
            try:
                array.cast(arrays[number].type)
            except pa.ArrowInvalid:
                arrays[number] = array
        yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)
