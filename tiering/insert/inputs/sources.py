"""Reading what is to be inserted: Parquet, CSV, JSON lines, Arrow and ORC, from files, globs and standard input.

The format follows from the file's ending (`.csv.gz`, `.jsonl.zst`, `.orc.lz4`, …) unless it is given. Files are
streamed in batches of bounded size, one after the other, in the order given; a glob's files in name order. CSV columns
are read as the table's types: `NA`, `null`, `NaN` and empty fields are null (an empty text stays a text where a column
takes no nulls), times come as `2013-01-01 05:00:00` or `2013-01-01T05:00:00Z`.

What cannot be read raises `UsageError` that names the file and, where it can be known, the line. Batches before the
broken line have been handed out by then: an insert keeps its whole blocks, says how many rows they were, and skips them
when it is repeated with the line mended.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from disks.workers.progress import Task
from tiering.insert.bad_rows import BadRows
from tiering.insert.inputs.bucket_sources import BucketSources
from tiering.insert.inputs.decoded_size import bounded, together
from tiering.insert.inputs.hive import path_columns, with_path_fields
from tiering.insert.inputs.json.source import guess_schema, read_json
from tiering.insert.inputs.packed_sizes import batch_sizes
from tiering.insert.inputs.piped_batches import CheckedStream
from tiering.insert.inputs.source_csv import check_text, csv_head, read_csv
from tiering.insert.inputs.source_files import (
    ARROW_FILE,
    BATCH_ROWS,
    BLOCK_BYTES,
    STDIN,
    InputSource,
    check_at_once,
    files_below,
    find_sources,
    open_binary,
    reading,
)
from tiering.insert.inputs.source_parquet import read_parquet
from tiering.insert.reshaping import NULLS, Reshaping
from tiering.insert.row_reader import RowReader

_ORC_ROWS = 256
"""Decoded at once, whatever they come to."""
_ORC_BYTES = 64 * 1024 * 1024
"""So many are handed on together."""


def read_each(
    sources: Sequence[InputSource],
    reshaping: Reshaping,
    stdin: IO[bytes] | None = None,
    bad: BadRows | None = None,
    task: Task | None = None,
) -> Iterator[Iterator[pa.RecordBatch]]:
    """The rows of each input, as batches to give to an insert. `bad` gets the rows that cannot be taken; without it the
    first one raises `UsageError`, as, at once, a path does whose directories do not fit the table. `task` counts the
    bytes read so far."""
    for source in sources:
        path_columns(source, reshaping)
    return (_told(_read(source, reshaping, stdin, bad), source, task) for source in sources)


def total_bytes(sources: Sequence[InputSource]) -> int | None:
    """Of all inputs; None where not all of them tell."""
    sizes = [source.size_bytes for source in sources]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def typed_rows(batches: Iterable[pa.RecordBatch], reshaping: Reshaping, *, label: str) -> Iterator[pa.RecordBatch]:
    """Rows that are no file's and have types of their own, as batches to give to an insert. `label` says whose they
    are. Raises `UsageError` for what does not fit the table."""
    intake = RowReader(InputSource(label, "arrow"), reshaping)
    for batch in batches:
        yield from intake.batches(batch)


def sample_sources(path: str, buckets: BucketSources | None = None) -> list[InputSource]:
    """The inputs of a sample: as of an insert, and the files below a directory."""
    return find_sources(files_below(path) if Path(path).is_dir() else [path], None, buckets)


def source_schema(path: str, buckets: BucketSources | None = None, *, hive: bool = True) -> pa.Schema:
    """The columns of a file, for `--like`; of CSV and JSON they are guessed from the first megabytes. Of a glob or a
    directory, those of the first; with `hive` also those that the paths of all have."""
    sources = sample_sources(path, buckets)
    schema = _schema_within(sources[0])
    return with_path_fields(schema, [source.label for source in sources]) if hive else schema


def _schema_within(source: InputSource) -> pa.Schema:
    with reading(source), ExitStack() as stack:
        if source.format == "parquet":
            return pq.read_schema(stack.enter_context(open_binary(source, None, seekable=True)))
        stream = stack.enter_context(open_binary(source, None, seekable=source.format in ("arrow", "orc")))
        match source.format:
            case "csv":
                source, header, blocks = csv_head(stream, source)
                sample = header + next(blocks, b"")
                check_text(source, sample, 1)
                reader = csv.open_csv(
                    io.BytesIO(sample),
                    read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
                    parse_options=csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
                    convert_options=csv.ConvertOptions(null_values=list(NULLS), strings_can_be_null=True),
                )
                return reader.schema
            case "json":
                return guess_schema(stream, source.label)
            case "orc":
                return _open_orc(stream).schema
            case _:
                return _open_arrow(stream).schema


def _told(batches: Iterator[pa.RecordBatch], source: InputSource, task: Task | None) -> Iterator[pa.RecordBatch]:
    size_bytes = source.size_bytes if task is not None else None
    if task is None or size_bytes is None:
        yield from batches
        return
    told = 0
    for batch in batches:
        now = min(max(told, source.at.tell()), size_bytes)
        task.advance(size_bytes=now - told)
        told = now
        yield batch
    task.advance(size_bytes=size_bytes - told)


def _read(
    source: InputSource, reshaping: Reshaping, stdin: IO[bytes] | None, bad: BadRows | None
) -> Iterator[pa.RecordBatch]:
    with reading(source):
        match source.format:
            case "csv":
                yield from read_csv(RowReader(source, reshaping, bad), stdin)
            case "json":
                yield from read_json(RowReader(source, reshaping, bad, seen=set()), stdin)
            case _:
                intake = RowReader(source, reshaping, bad)
                for batch in _READERS[source.format](intake, stdin):
                    for some in bounded(batch):
                        yield from intake.batches(some)


def _read_arrow(intake: RowReader, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    source = intake.source

    def check(number: int, size_bytes: int) -> None:
        check_at_once(
            source.label, size_bytes, source.most_decoded_bytes, f"the buffers of batch or dictionary {number}"
        )

    with open_binary(source, stdin, seekable=source.path != STDIN) as stream:
        if stream.seekable():
            for number, size_bytes in enumerate(batch_sizes(stream) if source.is_here else ()):
                check(number, size_bytes)
            stream.seek(0)
            reader = _open_arrow(stream)
        else:
            reader = pa.ipc.open_stream(pa.PythonFile(CheckedStream(stream, check), mode="r"))
        if isinstance(reader, pa.RecordBatchFileReader):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            yield from reader


def _open_arrow(stream: Any) -> Any:
    """The IPC file format begins with ARROW1 and needs seeking; anything else is the stream format."""
    magic = stream.read(6)
    stream.seek(0)
    return pa.ipc.open_file(stream) if bytes(magic) == ARROW_FILE else pa.ipc.open_stream(stream)


def _read_orc(intake: RowReader, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    with open_binary(intake.source, stdin, seekable=True) as stream:
        yield from together(_orc_batches(intake.source, stream), BATCH_ROWS, _ORC_BYTES)


def _orc_batches(source: InputSource, stream: Any) -> Iterator[pa.RecordBatch]:
    """In few rows each: nothing tells what a stripe unpacks to, and the reader of a data set unpacks no whole one.
    Raises `UsageError` for rows that came to too much: what follows needs a multiple of it."""
    import pyarrow.dataset as ds

    fragment = ds.OrcFileFormat().make_fragment(stream)
    row = 0
    for batch in fragment.to_batches(batch_size=_ORC_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False):
        check_at_once(
            source.label, batch.nbytes, source.most_decoded_bytes, f"{_ORC_ROWS} rows from row {row + 1:,} on"
        )
        row += batch.num_rows
        yield batch


def _open_orc(stream: Any) -> Any:
    from pyarrow import orc

    return orc.ORCFile(stream)


_READERS: dict[str, Callable[[RowReader, IO[bytes] | None], Iterator[pa.RecordBatch]]] = {
    "parquet": read_parquet,
    "arrow": _read_arrow,
    "orc": _read_orc,
}
"""Of the formats that bring their types."""
