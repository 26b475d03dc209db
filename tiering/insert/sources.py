"""Reading what is to be inserted: Parquet, CSV, JSON lines and Arrow, from files, globs and standard input.

The format follows from the file's ending (`.csv.gz`, `.jsonl.zst`, `.csv.zip`, …) unless it is given. Files are
streamed in batches of bounded size, one after the other, in the order given; a glob's files in name order. CSV columns
are read as the table's types: `NA`, `null`, `NaN` and empty fields are null (an empty text stays a text where a column
takes no nulls), times come as `2013-01-01 05:00:00` or `2013-01-01T05:00:00Z`.

What cannot be read raises `UsageError` that names the file and, where it can be known, the line. Batches before the
broken line have been handed out by then: an insert keeps its whole blocks, says how many rows they were, and skips them
when it is repeated with the line mended.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as jsonlines
import pyarrow.parquet as pq

from oplog.errors import UsageError
from tiering.insert.source_csv import NULLS, read_csv
from tiering.insert.source_files import ARROW_FILE, BLOCK_BYTES, STDIN, Source, find_sources, open_binary, reading
from tiering.table.schema import TableDefinition
from tiering.table.types import arrow_schema

_BATCH_ROWS = 131_072


def open_sources(
    paths: Sequence[str], file_format: str | None, definition: TableDefinition, *, stdin: IO[bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of all inputs, as batches to give to an insert. All paths are looked at before the first is read."""
    sources = find_sources(paths, file_format)
    return _read_all(sources, definition, stdin)


def source_schema(path: str) -> pa.Schema:
    """The columns of a file, for `--like`; of CSV and JSON they are guessed from the first megabytes."""
    (source, *_) = find_sources([path], None)
    with reading(source), ExitStack() as stack:
        if source.format == "parquet":
            return pq.read_schema(stack.enter_context(open_binary(source, None, seekable=True)))
        stream = stack.enter_context(open_binary(source, None, seekable=source.format == "arrow"))
        match source.format:
            case "csv":
                reader = csv.open_csv(
                    stream,
                    read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
                    parse_options=csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
                    convert_options=csv.ConvertOptions(null_values=NULLS, strings_can_be_null=True),
                )
                return reader.schema
            case "json":
                return jsonlines.open_json(stream, read_options=jsonlines.ReadOptions(block_size=BLOCK_BYTES)).schema
            case _:
                return _open_arrow(stream).schema


def _read_all(
    sources: Sequence[Source], definition: TableDefinition, stdin: IO[bytes] | None
) -> Iterator[pa.RecordBatch]:
    readers: dict[str, Callable[[Source, TableDefinition, IO[bytes] | None], Iterator[pa.RecordBatch]]] = {
        "parquet": _read_parquet,
        "csv": read_csv,
        "json": _read_json,
        "arrow": _read_arrow,
    }
    for source in sources:
        with reading(source):
            yield from _checked(readers[source.format](source, definition, stdin), source, definition)


def _checked(
    batches: Iterator[pa.RecordBatch], source: Source, definition: TableDefinition
) -> Iterator[pa.RecordBatch]:
    """The batches cast to the table here, where the file's name is still known for messages."""
    from tiering.table.types import cast_batch

    row = 0
    for batch in batches:
        yield cast_batch(batch, definition, source=source.label, first_row=row)
        row += batch.num_rows


def _read_parquet(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    with open_binary(source, stdin, seekable=True) as stream:
        file, found = pq.ParquetFile(stream, pre_buffer=False), 0
        for batch in file.iter_batches(_BATCH_ROWS):
            found += batch.num_rows
            yield batch
        if found != file.metadata.num_rows:
            raise UsageError(
                f"{source.label} holds {found:,} rows, and its footer says {file.metadata.num_rows:,}",
                hint="the file is damaged: write it again",
            )


def _read_arrow(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    with open_binary(source, stdin, seekable=source.path != STDIN) as stream:
        reader = _open_arrow(stream)
        if isinstance(reader, pa.RecordBatchFileReader):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            yield from reader


def _open_arrow(stream: Any) -> Any:
    """The IPC file format begins with ARROW1 and needs seeking; anything else is the stream format."""
    if not stream.seekable():
        return pa.ipc.open_stream(stream)
    magic = stream.read(6)
    stream.seek(0)
    return pa.ipc.open_file(stream) if bytes(magic) == ARROW_FILE else pa.ipc.open_stream(stream)


def _read_json(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    """JSON lines; parsed in blocks of whole lines, so that an error can name its line."""
    # Times and decimals come in several forms: they are read as they are and cast like those of other formats.
    fields = [field for field in arrow_schema(definition) if not _has_many_forms(field.type)]
    options = jsonlines.ParseOptions(explicit_schema=pa.schema(fields))
    line = 1
    with open_binary(source, stdin) as stream:
        for block in _whole_lines(stream):
            try:
                table = jsonlines.read_json(
                    io.BytesIO(block), jsonlines.ReadOptions(block_size=len(block) + 1), options
                )
            except pa.ArrowInvalid as error:
                raise _json_error(source, block, line, error) from error
            present = [name for name in table.column_names if _occurs(block, name)]
            yield from table.select(present).combine_chunks().to_batches()
            line += block.count(b"\n")


def _has_many_forms(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind))


def _occurs(block: bytes, name: str) -> bool:
    """Whether a JSON block mentions the column; the parser adds every column of its schema."""
    import json

    return json.dumps(name).encode() in block or json.dumps(name, ensure_ascii=False).encode() in block


def _whole_lines(stream: Any) -> Iterator[bytes]:
    """Blocks that end where a line ends; blank blocks are left out."""
    rest = b""
    while data := stream.read(BLOCK_BYTES):
        data = rest + bytes(data)
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if data[:end].strip():
            yield data[:end]
    if rest.strip():
        yield rest


def _json_error(source: Source, block: bytes, first_line: int, error: pa.ArrowInvalid) -> UsageError:
    """Which line is broken: found by parsing them one by one."""
    import json

    for offset, text in enumerate(block.splitlines()):
        try:
            if text.strip() and not isinstance(json.loads(text), dict):
                raise ValueError("not an object")
        except ValueError as broken:
            return UsageError(
                f"{source.label} line {first_line + offset} is not a JSON object: {broken}",
                hint="mend the line; rows before it may be in already, and a repeated insert skips them",
            )
    return UsageError(f"{source.label} near line {first_line}: {str(error).splitlines()[0]}", hint="mend the line")
