"""CSV to Arrow, in blocks of whole records, so that an error can name its line."""

from __future__ import annotations

import csv as plain_csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from disks.workers.parallel import worked_ahead
from oplog.errors import UsageError
from tiering.insert.inputs.source_files import (
    BLOCK_BYTES,
    MOST_RECORD_BYTES,
    InputSource,
    numbered_blocks,
    open_binary,
    too_long,
)
from tiering.insert.reshaping import Reshaping, source_types
from tiering.insert.row_reader import RowReader, TextRecord
from tiering.table.schema import Column

_OTHER_DELIMITERS = (";", "\t", "|")
_ANY_OTHER = re.compile(rb"[;\t|]")
_HEXADECIMAL = re.compile(rb"(?<![0-9A-Za-z])0[xX][0-9A-Fa-f]{1,16}(?![0-9A-Za-z])")
_QUOTED = re.compile(rb'"[^"]*"')
_NEWLINE = ord("\n")
_COLUMN = re.compile(r"In CSV column #(\d+): ")
"""How Arrow begins to say what does not fit."""


def read_csv(intake: RowReader, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    """The rows, as the table has them. Raises `UsageError` that names the line."""
    source = intake.source
    with open_binary(source, stdin) as stream:
        source, header, lines = csv_head(stream, source)
        columns, conversion = intake.reshaping.columns(), _conversion(intake.reshaping)
        check_text(source, header, 1)

        def parse(numbered: tuple[int, bytes]) -> pa.Table:
            line, block = numbered
            check_text(source, block, line)
            broken: list[str] = []
            try:
                found = _parse(header, block, source, conversion, broken)
            except pa.ArrowInvalid as error:
                raise _csv_error(source, header, block, line, conversion, error, broken) from error
            return _without_needless_nulls(found, columns)

        def parse_some(some: Sequence[TextRecord]) -> pa.Table:
            text, broken = b"".join(record.text for record in some), list[str]()
            check_text(source, text, some[0].line)
            try:
                found = _parse(header, text, source, conversion, broken)
            except pa.ArrowInvalid as error:
                raise UsageError(broken[0] if broken else _told(error, header, source)) from error
            return _without_needless_nulls(found, columns)

        blocks = numbered_blocks(lines, 2)
        if intake.bad is None:
            for table in worked_ahead(parse, blocks):
                yield from intake.taken(table)
            return
        intake.check_columns(_parse(header, b"", source, conversion, []).schema)
        for line, block in blocks:
            yield from intake.records(_records(block, line), parse_some)


def _parse(
    header: bytes, block: bytes, source: InputSource, conversion: csv.ConvertOptions, broken: list[str]
) -> pa.Table:
    """The rows of whole records, with texts in the place of numbers that the parser may have taken for others: what
    casts these says which row is wrong. `broken` as of `_parse_all`."""
    found = _parse_all(header, block, source, conversion, broken)
    doubted = _doubted(found, block)
    if not doubted:
        return found
    types = {field.name: field.type for field in found.schema} | dict.fromkeys(doubted, pa.string())
    texts = _parse_all(header, block, source, _with_types(conversion, types), broken)
    for name in doubted:
        trimmed = pc.utf8_trim_whitespace(texts.column(name))
        texts = texts.set_column(texts.column_names.index(name), name, trimmed)
    return texts


def _doubted(table: pa.Table, block: bytes) -> list[str]:
    """The columns of numbers that may not be what stands in the file."""
    is_hexadecimal = _HEXADECIMAL.search(block) is not None
    return [
        field.name
        for field in table.schema
        if (pa.types.is_integer(field.type) and is_hexadecimal)
        or (pa.types.is_floating(field.type) and pc.any(pc.is_inf(table.column(field.name))).as_py())
    ]


def _with_types(conversion: csv.ConvertOptions, types: Mapping[str, pa.DataType]) -> csv.ConvertOptions:
    return _options(types, conversion.null_values)


def _parse_all(
    header: bytes, block: bytes, source: InputSource, conversion: csv.ConvertOptions, broken: list[str]
) -> pa.Table:
    """The rows of whole records. `broken` gets what is wrong with one of too few or too many fields."""

    def refuse(row: csv.InvalidRow) -> str:
        broken.append(f"{row.actual_columns} fields instead of {row.expected_columns}: {row.text[:80]!r}")
        return "error"

    return csv.read_csv(
        io.BytesIO(header + block),
        read_options=csv.ReadOptions(block_size=len(header) + len(block) + 1),
        parse_options=csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        convert_options=conversion,
    )


def _conversion(reshaping: Reshaping) -> csv.ConvertOptions:
    types = {name: _csv_type(kind) for name, kind in source_types(reshaping).items()}
    return _options(types, reshaping.nulls)


def _options(types: Mapping[str, pa.DataType], nulls: Sequence[str]) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        column_types=types,
        null_values=list(nulls),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["true", "True", "TRUE", "1", "t"],
        false_values=["false", "False", "FALSE", "0", "f"],
    )


def _records(block: bytes, first_line: int) -> list[TextRecord]:
    """The records of a block, each with the number of its first line; those of blanks are left out, as in parsing."""
    found: list[TextRecord] = []
    begun, number = b"", first_line
    for line, text in enumerate(io.BytesIO(block), first_line):  # which splits at \n alone
        number = number if begun else line
        begun += text
        if begun.count(b'"') % 2 == 0:
            if begun.strip(b"\r\n"):
                found.append(TextRecord(number, begun))
            begun = b""
    return [*found, TextRecord(number, begun)] if begun.strip(b"\r\n") else found


def check_text(source: InputSource, block: bytes, first_line: int) -> None:
    """Raise `UsageError` for bytes that are no text; the CSV reader cannot even say where such a line is."""
    try:
        block.decode()
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        raise UsageError(
            f"{source.label} line {line} is not UTF-8 text",
            hint="is it a CSV file? --format says which format it has; convert other encodings with iconv",
        ) from error


def csv_head(stream: Any, source: InputSource) -> tuple[InputSource, bytes, Iterator[bytes]]:
    """The source with its delimiter, its header line, by which every column has a name of its own, and the rest in
    blocks of whole records. Raises `UsageError` where there is none, or no text."""
    blocks = _whole_records(stream, source.label)
    first = next(blocks, b"")
    end = first.find(b"\n") + 1 or len(first)
    if not first[:end].strip():
        raise UsageError(f"{source.label} is empty", hint="a CSV file begins with a line of column names")
    header = first[:end] if first[:end].endswith(b"\n") else first[:end] + b"\n"

    def rest() -> Iterator[bytes]:
        if first[end:]:
            yield first[end:]
        yield from blocks

    header = header.removeprefix(b"\xef\xbb\xbf")
    source = replace(source, delimiter=_delimiter(header, source))
    return source, _named(header, source.delimiter), rest()


def _delimiter(header: bytes, source: InputSource) -> str:
    """What stands between the names: where there is no comma, the other one that sheets are written with, if any."""
    if ".tsv" in Path(source.label).suffixes:
        return "\t"
    bare = _QUOTED.sub(b"", header)
    if b"," in bare:
        return ","
    return (
        max(_OTHER_DELIMITERS, key=lambda delimiter: bare.count(delimiter.encode())) if _ANY_OTHER.search(bare) else ","
    )


def _named(header: bytes, delimiter: str) -> bytes:
    """The header with names where it has none, `column_1` of the first column, and a number behind those that were
    there before: `total`, `total_2`. What is no text stays as it is."""
    try:
        (given,) = plain_csv.reader([header.decode().rstrip("\r\n")], delimiter=delimiter)
    except (UnicodeDecodeError, ValueError, plain_csv.Error):
        return header
    if all(name.strip() for name in given) and len(set(given)) == len(given):
        return header
    names: list[str] = []
    for number, name in enumerate(given, start=1):
        wanted = first = name if name.strip() else f"column_{number}"
        count = 1
        while wanted in names or (wanted != name and wanted in given):
            count += 1
            wanted = f"{first}_{count}"
        names.append(wanted)
    text = io.StringIO()
    plain_csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(names)
    return text.getvalue().encode()


def _whole_records(stream: Any, label: str) -> Iterator[bytes]:
    """Blocks that end where a record ends: at a line end outside of quotes. Raises `UsageError` with the label for a
    record that does not end."""
    rest: list[bytes] = []
    given = held = 0
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
            block = b"".join([*rest, data[:end]])
            given += len(block)
            yield block
            rest, held = [data[end:]], len(data) - end
        else:
            rest.append(data)
            held += len(data)
            if held > MOST_RECORD_BYTES:
                raise too_long(label, given)
    if held:
        yield b"".join(rest)


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """How a column is read. Times are texts that are cast later, since files write them with and without a zone; so is
    what CSV has no form for: lists, maps and structs are JSON."""
    as_text = pa.types.is_temporal(kind) or pa.types.is_nested(kind) or kind == pa.uuid()
    return pa.string() if as_text and not pa.types.is_date(kind) else kind


def _without_needless_nulls(table: pa.Table, columns: Mapping[str, Column]) -> pa.Table:
    """Empty texts of columns that take no nulls are texts. `columns`: by their names in the file."""
    for name, column in columns.items():
        if column.type == "string" and not column.nullable and name in table.column_names:
            index = table.column_names.index(name)
            table = table.set_column(index, name, table.column(index).fill_null(""))
    return table


def _csv_error(
    source: InputSource,
    header: bytes,
    block: bytes,
    first_line: int,
    conversion: csv.ConvertOptions,
    error: pa.ArrowInvalid,
    broken: list[str],
) -> UsageError:
    """Which line is broken, found by halving the block."""
    hint = (
        "fix the line, or set it aside with --skip-bad-rows; rows before it may be in already, and a repeated insert "
        "skips them"
    )
    lines = block.splitlines(keepends=True)
    low, high = 0, len(lines)

    def fails(start: int, stop: int) -> bool:
        try:
            csv.read_csv(
                io.BytesIO(header + b"".join(lines[start:stop])),
                parse_options=csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
                convert_options=conversion,
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
    what = broken[0] if broken else _told(error, header, source)
    return UsageError(f"{source.label} line {first_line + low}: {what}", hint=hint)


def _told(error: pa.ArrowInvalid, header: bytes, source: InputSource) -> str:
    """What is wrong, with the column's name in the place of its number."""
    text = str(error).splitlines()[0]
    if (match := _COLUMN.match(text)) is None:
        return text
    names = next(plain_csv.reader([header.decode("utf-8", "replace")], delimiter=source.delimiter), [])
    number = int(match[1])
    return f"column {names[number]}: {text[match.end() :]}" if number < len(names) else text
