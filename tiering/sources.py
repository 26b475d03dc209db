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

import glob
import gzip
import io
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as jsonlines
import pyarrow.parquet as pq

from oplog.errors import FrostlineError, NotFound, UsageError
from tiering.schema import TableDefinition
from tiering.types import arrow_schema

_ARROW_FILE = b"ARROW1"

FORMATS = ("parquet", "csv", "json", "arrow")
STDIN = "-"

_BATCH_ROWS = 131_072
_NEWLINE = ord("\n")
_BLOCK_BYTES = 8 * 1024 * 1024
_ENDINGS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMPRESSIONS = (".gz", ".zst", ".zip")
_NULLS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N"]


@dataclass(frozen=True, slots=True)
class Source:
    """One input: a path or `-`, its format and how it is compressed (`.gz`, `.zst`, `.zip` or nothing)."""

    path: str
    format: str
    compression: str = ""

    @property
    def label(self) -> str:
        return "standard input" if self.path == STDIN else self.path

    @property
    def delimiter(self) -> str:
        return "\t" if ".tsv" in Path(self.path).suffixes else ","


def find_sources(paths: Sequence[str], file_format: str | None = None) -> list[Source]:
    """The inputs named by paths, globs and `-`. Raises `NotFound` for what is not there, `UsageError` for a format that
    is neither given nor known by the ending. Reads nothing."""
    if file_format is not None and file_format not in FORMATS:
        raise UsageError(f"no such format: {file_format!r}", hint=f"formats are {', '.join(FORMATS)}")
    found: list[Source] = []
    for path in paths:
        found.extend(_source(match, file_format) for match in _matches(path))
    if not found:
        raise UsageError("nothing to insert", hint="name files, a glob or '-' for standard input")
    return found


def open_sources(
    paths: Sequence[str], file_format: str | None, definition: TableDefinition, *, stdin: IO[bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of all inputs, as batches to give to an insert. All paths are looked at before the first is read."""
    sources = find_sources(paths, file_format)
    return _read_all(sources, definition, stdin)


def source_schema(path: str, file_format: str | None = None) -> pa.Schema:
    """The columns of a file, for `--like`; of CSV and JSON they are guessed from the first megabytes."""
    (source, *_) = find_sources([path], file_format)
    with _errors(source), ExitStack() as stack:
        if source.format == "parquet":
            return pq.read_schema(stack.enter_context(_binary(source, None, seekable=True)))
        stream = stack.enter_context(_binary(source, None, seekable=source.format == "arrow"))
        match source.format:
            case "csv":
                reader = csv.open_csv(
                    stream,
                    read_options=csv.ReadOptions(block_size=_BLOCK_BYTES),
                    parse_options=csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
                    convert_options=csv.ConvertOptions(null_values=_NULLS, strings_can_be_null=True),
                )
                return reader.schema
            case "json":
                return jsonlines.open_json(stream, read_options=jsonlines.ReadOptions(block_size=_BLOCK_BYTES)).schema
            case _:
                return _open_arrow(stream).schema


def _read_all(
    sources: Sequence[Source], definition: TableDefinition, stdin: IO[bytes] | None
) -> Iterator[pa.RecordBatch]:
    readers: dict[str, Callable[[Source, TableDefinition, IO[bytes] | None], Iterator[pa.RecordBatch]]] = {
        "parquet": _read_parquet,
        "csv": _read_csv,
        "json": _read_json,
        "arrow": _read_arrow,
    }
    for source in sources:
        with _errors(source):
            yield from _checked(readers[source.format](source, definition, stdin), source, definition)


def _checked(
    batches: Iterator[pa.RecordBatch], source: Source, definition: TableDefinition
) -> Iterator[pa.RecordBatch]:
    """The batches cast to the table here, where the file's name is still known for messages."""
    from tiering.types import cast_batch

    row = 0
    for batch in batches:
        yield cast_batch(batch, definition, source=source.label, first_row=row)
        row += batch.num_rows


# ---- finding


def _matches(path: str) -> list[str]:
    if path == STDIN or Path(path).is_file():
        return [path]
    if Path(path).is_dir():
        raise UsageError(f"{path} is a directory", hint=f"name its files, such as '{path.rstrip('/')}/*.parquet'")
    matches = sorted(match for match in glob.glob(path, recursive=True) if Path(match).is_file())
    if not matches:
        raise NotFound(f"no such file: {path}", hint="check the path; quote globs so that they arrive here")
    return matches


def _source(path: str, file_format: str | None) -> Source:
    if path == STDIN:
        if file_format is None:
            raise UsageError("standard input needs a format", hint=f"say --format {'|'.join(FORMATS)}")
        return Source(path, file_format)
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else ""
    known = file_format or (_ENDINGS.get(suffixes[-1]) if suffixes else None)
    if known is None and compression == ".zip":
        known = _format_inside(path)
    if known is None:
        raise UsageError(f"{path}: the format is not clear from the name", hint=f"say --format {'|'.join(FORMATS)}")
    return Source(path, known, compression)


def _format_inside(path: str) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return _ENDINGS.get(Path(_only_member(archive, path)).suffix.lower())
    except (zipfile.BadZipFile, OSError) as error:
        raise UsageError(f"{path} is not a readable zip file: {error}") from error


def _only_member(archive: zipfile.ZipFile, path: str) -> str:
    members = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(members) != 1:
        raise UsageError(f"{path} holds {len(members)} files", hint="a zip file to insert holds exactly one; unpack it")
    return members[0]


# ---- opening


@contextmanager
def _errors(source: Source) -> Iterator[None]:
    """Turn what libraries raise for unreadable input into an error that names the file."""
    try:
        yield
    except FrostlineError:
        raise
    except PermissionError as error:
        raise UsageError(f"{source.label} cannot be read: {error.strerror}", hint="check its permissions") from error
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, gzip.BadGzipFile, pa.ArrowException) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"{source.label} cannot be read as {source.format}: {text}",
            hint="is the file complete? --format says which format it has",
        ) from error


@contextmanager
def _binary(source: Source, stdin: IO[bytes] | None, *, seekable: bool = False) -> Iterator[Any]:
    """The decompressed bytes of the input; `seekable` ones of a compressed input or a pipe are held in memory."""
    with ExitStack() as stack:
        raw: Any
        if source.path == STDIN:
            raw = _standard_input(stdin if stdin is not None else sys.stdin.buffer)
            seekable = seekable or (source.format == "arrow" and raw.peek(6)[:6] == _ARROW_FILE)
        elif source.compression == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(source.path))
            raw = stack.enter_context(archive.open(_only_member(archive, source.path)))
        elif source.compression == ".gz":
            raw = stack.enter_context(gzip.open(source.path, "rb"))
        elif source.compression == ".zst":
            raw = stack.enter_context(pa.CompressedInputStream(pa.OSFile(source.path), "zstd"))
        else:
            yield stack.enter_context(pa.memory_map(source.path) if seekable else pa.OSFile(source.path))
            return
        if seekable:
            yield pa.BufferReader(raw.read())
        else:
            yield raw if isinstance(raw, pa.NativeFile) else pa.PythonFile(raw, mode="r")


def _standard_input(stdin: Any) -> io.BufferedReader:
    """Standard input, decompressed: it has no name that tells, so its first bytes do."""
    given = stdin if hasattr(stdin, "peek") else io.BufferedReader(stdin)
    start = given.peek(4)[:4]
    if start[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.open(given, "rb"))
    if start == b"\x28\xb5\x2f\xfd":
        plain = pa.CompressedInputStream(pa.PythonFile(given, mode="r"), "zstd")
        return io.BufferedReader(plain)
    return given


# ---- formats


def _read_parquet(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    with _binary(source, stdin, seekable=True) as stream:
        yield from pq.ParquetFile(stream, pre_buffer=False).iter_batches(_BATCH_ROWS)


def _read_arrow(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    with _binary(source, stdin, seekable=source.path != STDIN) as stream:
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
    return pa.ipc.open_file(stream) if bytes(magic) == _ARROW_FILE else pa.ipc.open_stream(stream)


def _read_json(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    """JSON lines; parsed in blocks of whole lines, so that an error can name its line."""
    # Times and decimals come in several forms: they are read as they are and cast like those of other formats.
    fields = [field for field in arrow_schema(definition) if not _has_many_forms(field.type)]
    options = jsonlines.ParseOptions(explicit_schema=pa.schema(fields))
    line = 1
    with _binary(source, stdin) as stream:
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
    while data := stream.read(_BLOCK_BYTES):
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


def _read_csv(source: Source, definition: TableDefinition, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    with _binary(source, stdin) as stream:
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
                        null_values=_NULLS,
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
    while data := stream.read(_BLOCK_BYTES):
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
                convert_options=csv.ConvertOptions(column_types=types, null_values=_NULLS, strings_can_be_null=True),
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
