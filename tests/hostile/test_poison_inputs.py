"""Small files that unpack, decode or nest without end (I24): each is refused, or goes in with bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import zstandard

from oplog.errors import UsageError
from tests.command_line import Frostline
from tests.opened_sources import open_sources
from tiering.insert.inputs import packed_sizes
from tiering.insert.inputs.decoded_size import MOST_DECODED_BYTES, bounded
from tiering.insert.inputs.source_files import find_sources
from tiering.insert.inputs.sources import read_each
from tiering.insert.reshaping import Reshaping
from tiering.table.definitions import define_table

DEPTH = 200_000
ROWS = 3000
DEEP = {
    "lists": b'{"id":1,"v":' + b"[" * DEPTH + b"]" * DEPTH + b"}\n",
    "objects": b'{"a":' * DEPTH + b"1" + b"}" * DEPTH + b"\n",
    "an array of lists": b"[" * DEPTH + b"]" * DEPTH,
    "lists without an end": b'{"id":1,"v":' + b"[" * DEPTH,
}


@pytest.fixture
def table(frostline: Frostline) -> Frostline:
    frostline("table", "create", "d.t", "--column", "id:int64", "--column", "v:string", "--order-by", "id")
    return frostline


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_json_is_refused_with_words(table: Frostline, text: bytes) -> None:
    """The parser of the engine ends the process at such a line, and Python's raises `RecursionError`."""
    Path("deep.json").write_bytes(text)
    table("insert", "d.t", "deep.json", code=2)
    assert "deep.json" in table.error
    assert "unexpected" not in table.error
    table("table", "create", "d.other", "--like", "deep.json", "--order-by", "id", code=2)
    assert "unexpected" not in table.error


def test_a_deep_line_is_kept_apart_as_other_bad_rows(table: Frostline) -> None:
    Path("some.json").write_bytes(b'{"id":1,"v":"a"}\n' + DEEP["lists"] + b'{"id":3,"v":"c"}\n')
    table("insert", "d.t", "some.json", "--skip-bad-rows", "1", "bad.jsonl")
    assert json.loads(Path("bad.jsonl").read_text())["line"] == 2
    assert table.json("query", "select count(*) from d.t")["rows"] == [[2]]


def test_a_line_of_many_brackets_is_not_a_deep_one(table: Frostline) -> None:
    flat = {"id": 1, "v": [[number] for number in range(2000)], "text": "[" * 5000}
    Path("flat.json").write_text(json.dumps(flat) + "\n")
    table("insert", "d.t", "flat.json", "--ignore-unknown")


def parquet(data: pa.Table, path: Path) -> None:
    pq.write_table(data, path)


def arrow(data: pa.Table, path: Path) -> None:
    with ipc.new_file(path, data.schema) as writer:
        writer.write_table(data)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {"parquet": parquet, "orc": orc.write_table, "arrow": arrow}


@pytest.mark.in_turn
@pytest.mark.parametrize("compression", ["gz", "zst"])
@pytest.mark.parametrize("kind", WRITERS)
def test_unpacked_bytes_have_a_limit(
    table: Frostline, monkeypatch: pytest.MonkeyPatch, kind: str, compression: str
) -> None:
    """Formats that seek are unpacked whole, on disk, and the setting says how large they may be."""
    plain = Path(f"plain.{kind}")
    WRITERS[kind](pa.table({"id": range(ROWS), "v": ["x"] * ROWS}), plain)
    packed = Path(f"packed.{kind}.{compression}")
    pack = gzip.compress if compression == "gz" else zstandard.compress
    packed.write_bytes(pack(plain.read_bytes()))
    monkeypatch.setenv("FROSTLINE_LIMITS__UNPACKED_BYTES", str(plain.stat().st_size - 1))
    table("insert", "d.t", str(packed), code=2)
    assert "limits.unpacked_bytes" in table.error
    assert str(packed) in table.error
    monkeypatch.setenv("FROSTLINE_LIMITS__UNPACKED_BYTES", str(plain.stat().st_size))
    table("insert", "d.t", str(packed))
    assert table.json("query", "select count(*) from d.t")["rows"] == [[ROWS]]


def repeated(rows: int, size_bytes: int) -> pa.Table:
    """Rows that all name one value of a dictionary."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size_bytes]))
    return pa.table({"id": pa.array(range(rows), pa.int64()), "v": values})


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_long_value_of_a_dictionary_is_decoded_in_slices(
    table: Frostline, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import tiering.insert.inputs.decoded_size as decoded_size
    from tiering.insert.row_reader import RowReader

    monkeypatch.setattr(decoded_size, "MOST_DECODED_BYTES", 1_000_000)
    sizes: list[int] = []
    take = RowReader.batches

    def batches(self: RowReader, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        sizes.append(batch.num_rows)
        yield from take(self, batch)

    monkeypatch.setattr(RowReader, "batches", batches)
    path = Path(f"long.{kind}")
    data = repeated(ROWS, 10_000)
    pq.write_table(data, path, store_schema=False) if kind == "parquet" else arrow(data, path)
    assert path.stat().st_size < 1_000_000
    table("insert", "d.t", str(path))
    assert 95 <= max(sizes) <= 100
    answer = table.json("query", "select count(*), min(length(v)), max(length(v)) from d.t")["rows"]
    assert answer == [[ROWS, 10000, 10000]]


def encoded(kind: str) -> pa.Array:
    """An array whose rows are more bytes than it has."""
    long = "x" * (1 << 20)
    rows = 1 << 14
    match kind:
        case "dictionary":
            return repeated(rows, len(long)).column("v").combine_chunks()
        case "runs":
            return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array([long]))
        case "list of dictionary":
            return pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), encoded("dictionary"))
        case "struct of runs":
            return pa.StructArray.from_arrays([encoded("runs")], ["inner"])
        case _:
            return pa.array([long] + ["y"] * (rows - 1), pa.string_view())


@pytest.mark.parametrize("kind", ["dictionary", "runs", "list of dictionary", "struct of runs", "view"])
def test_every_encoding_is_decoded_in_slices(kind: str) -> None:
    batch = pa.record_batch([encoded(kind)], ["v"])
    slices = list(bounded(batch))
    assert sum(some.num_rows for some in slices) == batch.num_rows
    assert max(some.num_rows for some in slices) <= MOST_DECODED_BYTES >> 20


LIMIT = 18 << 20


def zeros(kind: str, path: Path, *, rows: int = 50_000, lies: bool = False) -> None:
    """A small file, of which one piece unpacks to 50 MB. A liar's Arrow buffers say that they are small."""
    data = pa.table({"id": pa.array([0] * rows, pa.int64()), "v": ["x" * 1000] * rows})
    if kind == "parquet":
        pq.write_table(data, path, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    elif kind == "orc":
        orc.write_table(data, path, compression="zstd")
    else:
        make = ipc.new_file if kind == "arrow" else ipc.new_stream
        with make(path, data.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(data.combine_chunks().to_batches()[0])
        if lies:
            size = struct.pack("<q", rows * 1000)
            assert path.read_bytes().count(size) >= 1
            path.write_bytes(path.read_bytes().replace(size, struct.pack("<q", 1000)))
    assert path.stat().st_size < 1 << 20


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_what_is_unpacked_at_once_has_a_limit(table: Frostline, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = Path(f"zeros.{kind}")
    zeros(kind, path)
    monkeypatch.setenv("FROSTLINE_LIMITS__DECODED_BYTES", str(LIMIT))
    table("insert", "d.t", str(path), code=2)
    assert "limits.decoded_bytes" in table.error
    assert str(path) in table.error
    monkeypatch.setenv("FROSTLINE_LIMITS__DECODED_BYTES", str(3 * LIMIT))
    table("insert", "d.t", str(path))
    assert table.json("query", "select count(*), min(length(v)) from d.t")["rows"] == [[50_000, 1000]]


@pytest.mark.parametrize("kind", ["arrow", "arrows"])
def test_a_buffer_that_is_larger_than_it_says_is_refused(table: Frostline, kind: str) -> None:
    zeros(kind, Path(f"liar.{kind}"), lies=True)
    table("insert", "d.t", f"liar.{kind}", code=2)
    assert f"liar.{kind}" in table.error
    assert "unexpected" not in table.error


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_rows_of_packed_pages_are_decoded_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Memory is that of some rows, however many bytes the row group or the stripe unpacks to."""
    from tiering.insert.inputs import decoded_size, sources

    monkeypatch.setattr(decoded_size, "MOST_DECODED_BYTES", 4 << 20)
    monkeypatch.setattr(sources, "_ORC_BYTES", 2 << 20)
    path = tmp_path / f"zeros.{kind}"
    zeros(kind, path)
    definition = define_table("d.t", order_by="id", policy="p", like=sources.source_schema(str(path)))
    found = list(open_sources([str(path)], None, definition))
    assert sum(batch.num_rows for batch in found) == 50_000
    assert max(batch.nbytes for batch in found) < 8 << 20


def test_values_that_repeat_the_one_before_are_decoded_in_slices(
    table: Frostline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is stored as the bytes in which it differs, and any may be as long as all of its page."""
    from tiering.insert.inputs import decoded_size

    monkeypatch.setattr(decoded_size, "MOST_DECODED_BYTES", 1_000_000)
    asked: list[int] = []
    decode = pq.ParquetFile.iter_batches

    def iter_batches(self: pq.ParquetFile, batch_size: int, **options: Any) -> Any:
        asked.append(batch_size)
        return decode(self, batch_size, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    data = pa.table({"id": range(ROWS), "v": ["x" * 10_000] * ROWS})
    pq.write_table(data, "a.parquet", use_dictionary=False, column_encoding={"v": "DELTA_BYTE_ARRAY"})
    assert Path("a.parquet").stat().st_size < 50_000
    table("insert", "d.t", "a.parquet")
    assert max(asked) <= 100
    answer = table.json("query", "select count(*), min(length(v)), max(length(v)) from d.t")["rows"]
    assert answer == [[ROWS, 10_000, 10_000]]


def test_rows_of_a_stripe_that_are_too_much_at_once(table: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
    orc.write_table(pa.table({"id": range(512), "v": ["x"] * 256 + ["x" * 100_000] * 256}), "a.orc")
    monkeypatch.setenv("FROSTLINE_LIMITS__DECODED_BYTES", str(20 << 20))
    table("insert", "d.t", "a.orc", code=2)
    assert "a.orc: 256 rows from row 257 on unpack to" in table.error
    assert "limits.decoded_bytes" in table.error


def piped(kind: str, rows: int = 20_000) -> bytes:
    """A stream of Arrow of two batches, each of a kilobyte a row in memory."""
    text = pa.array(["x" * 1000] * rows)
    columns: dict[str, Any] = {"id": pa.array([0] * rows, pa.int64()), "v": text}
    if kind == "dictionary":
        columns["v"] = text.dictionary_encode()
    data = pa.table(columns)
    sink = io.BytesIO()
    options = ipc.IpcWriteOptions(compression="zstd" if kind == "zstd" else None)
    with ipc.new_stream(sink, data.schema, options=options) as writer:
        for _ in range(2):
            writer.write_batch(data.combine_chunks().to_batches()[0])
    return sink.getvalue()


@contextmanager
def pipe(data: bytes) -> Iterator[BinaryIO]:
    """One that the data comes out of, in pieces."""
    reader, writer = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), os.fdopen(writer, "wb") as sink:
            sink.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader, "rb") as source:
        yield source
    thread.join()


def rows_of_pipe(data: bytes, most_bytes: int = 3 * LIMIT) -> int:
    definition = define_table("d.t", order_by="id", policy="p", columns=("id:int64", "v:string"))
    with pipe(data) as source:
        (found,) = find_sources(["-"], "arrow")
        batches = read_each([replace(found, most_decoded_bytes=most_bytes)], Reshaping(definition), source)
        return sum(batch.num_rows for batch in chain.from_iterable(batches))


@pytest.mark.parametrize("kind", ["plain", "zstd", "dictionary"])
def test_a_piped_stream_of_arrow_is_measured_as_it_comes(kind: str) -> None:
    data = piped(kind)
    assert rows_of_pipe(data) == 40_000
    assert rows_of_pipe(gzip.compress(data, 1)) == 40_000
    if kind != "dictionary":
        with pytest.raises(UsageError, match=r"standard input: .* 1 unpack to 2"):
            rows_of_pipe(data, LIMIT)
    with pytest.raises(UsageError, match=r"standard input .* arrow"):
        rows_of_pipe(data[: len(data) // 2])


@pytest.mark.parametrize("damage", range(40))
def test_damaged_streams_of_a_pipe_are_refused(damage: int) -> None:
    chance = random.Random(damage)
    data = bytearray(piped("zstd", 100))
    for _ in range(3):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
    with suppress(UsageError):
        rows_of_pipe(bytes(data))


@pytest.mark.parametrize("damage", range(40))
@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_damaged_sizes_are_no_mistake_of_ours(tmp_path: Path, kind: str, damage: int) -> None:
    """Whatever the headers say, the answer is a number or `ArrowInvalid`."""
    chance = random.Random(damage)
    path = tmp_path / f"bent.{kind}"
    zeros(kind, path, rows=100)
    data = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0) if kind == "parquet" else None
    for _ in range(3):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
    stream = io.BytesIO(data)
    with suppress(pa.ArrowInvalid):
        if column is not None:
            assert packed_sizes.group_size(stream, column).at_once_bytes >= 0
        else:
            assert all(size >= 0 for size in packed_sizes.batch_sizes(stream))


def test_a_header_of_a_page_says_what_will_be_made() -> None:
    """It is the header that the reader goes by, not the footer."""
    header = bytes.fromhex("1500 15feffffff0f 1520 2c1502150015061506 00 00".replace(" ", ""))
    page, size = packed_sizes._page(io.BytesIO(header), 0)
    assert size == len(header)
    assert (page.unpacked_bytes, page.packed_bytes, page.values) == ((1 << 31) - 1, 16, 1)
    with pytest.raises(pa.ArrowInvalid):
        packed_sizes._page(io.BytesIO(header[:-3]), 0)
