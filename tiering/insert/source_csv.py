"""CSV to Arrow, in blocks of whole records, so that an error can name its line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as csv

from oplog.errors import UsageError
from tiering.insert.source_files import BLOCK_BYTES, Source, open_binary
from tiering.table.schema import TableDefinition
from tiering.table.types import arrow_schema

_NEWLINE = ord("\n")
NULLS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N"]
"""What an empty field looks like."""


def read_csv(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    """The rows, typed as the table is. Raises `UsageError` that names the line."""
    with open_binary(source, stdin) as stream:
        head, lines = _csv_head(stream, source)
        types = _csv_types(definition)
        broken: list[str] = []

        def refuse(row: csv.InvalidRow) -> str:
            broken.append(f"{row.actual_columns} fields instead of {row.expected_columns}: {row.text[:80]!r}")
            return "error"

        line = 2
        header = head
        _check_text(source, head, 1)
        for block in lines:
            _check_text(source, block, line)
            try:
                table = csv.read_csv(
                    io.BytesIO(header + block),
                    read_options=csv.ReadOptions(block_size=len(header) + len(block) + 1),
                    parse_options=csv.ParseOptions(
                        delimiter=source.delimiter, newlines_in_values=True, invalid_row_handler=refuse
                    ),
                    convert_options=csv.ConvertOptions(
                        column_types=types,
                        null_values=NULLS,
                        strings_can_be_null=True,
                        quoted_strings_can_be_null=False,
                        true_values=["true", "True", "TRUE", "1", "t"],
                        false_values=["false", "False", "FALSE", "0", "f"],
                    ),
                )
            except pa.ArrowInvalid as error:
                raise _csv_error(source, header, block, line, types, error, broken) from error
            yield from _without_needless_nulls(table, definition).combine_chunks().to_batches()
            line += block.count(b"\n")


def _check_text(source: Source, block: bytes, first_line: int) -> None:
    """Raise `UsageError` for bytes that are no text; the CSV reader cannot even say where such a line is."""
    try:
        block.decode()
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        raise UsageError(
            f"{source.label} line {line} is not UTF-8 text",
            hint="is it a CSV file? --format says which format it has; convert other encodings with iconv",
        ) from error


def _csv_head(stream: Any, source: Source) -> tuple[bytes, Iterator[bytes]]:
    """The header line, and the rest in blocks of whole records."""
    blocks = _whole_records(stream)
    first = next(blocks, b"")
    end = first.find(b"\n") + 1 or len(first)
    if not first[:end].strip():
        raise UsageError(f"{source.label} is empty", hint="a CSV file begins with a line of column names")
    header = first[:end] if first[:end].endswith(b"\n") else first[:end] + b"\n"

    def rest() -> Iterator[bytes]:
        if first[end:]:
            yield first[end:]
        yield from blocks

    return header.removeprefix(b"\xef\xbb\xbf"), rest()


def _whole_records(stream: Any) -> Iterator[bytes]:
    """Blocks that end where a record ends: at a line end outside of quotes."""
    rest = b""
    quoted = False
    while data := stream.read(BLOCK_BYTES):
        data = bytes(data)
        # `inside` says whether position `end` is inside of quotes; go back to a line end that is not.
        end = len(data)
        quoted ^= bool(data.count(b'"') & 1)
        inside = quoted
        while end and (inside or data[end - 1] != _NEWLINE):
            line = data.rfind(b"\n", 0, end - 1) + 1
            inside ^= bool(data.count(b'"', line, end) & 1)
            end = line
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
    if rest:
        yield rest


def _csv_types(definition: TableDefinition) -> dict[str, pa.DataType]:
    """How each column is read: times as text that is cast later, since files write them with and without a zone."""
    return {field.name: _csv_type(field.type) for field in arrow_schema(definition)}


def _csv_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _without_needless_nulls(table: pa.Table, definition: TableDefinition) -> pa.Table:
    """Empty texts of columns that take no nulls are texts."""
    for column in definition.columns:
        if column.type == "string" and not column.nullable and column.name in table.column_names:
            index = table.column_names.index(column.name)
            table = table.set_column(index, column.name, table.column(index).fill_null(""))
    return table


def _csv_error(
    source: Source,
    header: bytes,
    block: bytes,
    first_line: int,
    types: dict[str, pa.DataType],
    error: pa.ArrowInvalid,
    broken: list[str],
) -> UsageError:
    """Which line is broken, found by halving the block."""
    hint = "mend the line; rows before it may be in already, and a repeated insert skips them"
    lines = block.splitlines(keepends=True)
    low, high = 0, len(lines)

    def fails(start: int, stop: int) -> bool:
        try:
            csv.read_csv(
                io.BytesIO(header + b"".join(lines[start:stop])),
                parse_options=csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
                convert_options=csv.ConvertOptions(column_types=types, null_values=NULLS, strings_can_be_null=True),
            )
        except pa.ArrowInvalid:
            return True
        return False

    while high - low > 1:
        middle = (low + high) // 2
        if fails(low, middle):
            high = middle
        else:
            low = middle
    what = broken[0] if broken else str(error).splitlines()[0]
    return UsageError(f"{source.label} line {first_line + low}: {what}", hint=hint)
