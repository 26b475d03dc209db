"""Reading inputs: every format and compression, with bounded batches; errors that name file and line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from oplog.errors import NotFound, UsageError
from tests.opened_sources import open_sources
from tiering.insert.inputs import source_csv, sources
from tiering.insert.inputs.json import records
from tiering.insert.inputs.json.records import whole_lines
from tiering.insert.inputs.source_files import COMPRESSIONS, find_sources
from tiering.insert.inputs.sources import source_schema
from tiering.insert.reshaping import parse_reshaping
from tiering.table.definitions import define_table

TABLE = define_table(
    "a.b",
    columns=["id:int64", "ts:timestamp", "plain:timestamp[us]", "name:string", "price:decimal(8,2)", "day:date",
             "ok:bool", "x:float64"],
    order_by="id",
    policy="p",
)  # fmt: skip
NAMES = [column.name for column in TABLE.columns]
LINES = [
    ["1", "2013-01-01 05:00:00", "2013-01-01T05:00:00Z", "café", "1.50", "2013-01-01", "true", "1.5"],
    ["2", "NA", "", "", "NA", "", "", "NaN"],
]
EXPECTED = [
    {
        "id": 1,
        "ts": datetime(2013, 1, 1, 5, tzinfo=UTC),
        "plain": datetime(2013, 1, 1, 5),
        "name": "café",
        "price": 1.5,
        "day": datetime(2013, 1, 1).date(),
        "ok": True,
        "x": 1.5,
    },
    {"id": 2, "ts": None, "plain": None, "name": None, "price": None, "day": None, "ok": None, "x": None},
]


def csv_text(delimiter: str = ",") -> bytes:
    return "\n".join(delimiter.join(fields) for fields in [NAMES, *LINES]).encode() + b"\n"


def read(*paths: Path | str, file_format: str | None = None, stdin: bytes = b"") -> list[dict[str, Any]]:
    batches = open_sources([str(path) for path in paths], file_format, TABLE, stdin=io.BytesIO(stdin))
    return [row for batch in batches for row in batch.to_pylist()]


def table() -> pa.Table:
    (batch,) = open_sources(["-"], "csv", TABLE, stdin=io.BytesIO(csv_text()))
    return pa.Table.from_batches([batch])


def write_parquet(path: Path) -> None:
    pq.write_table(table(), path)


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(path, table().schema) as writer:
        writer.write_table(table())


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, table().schema) as writer:
        writer.write_table(table())


def write_json(path: Path) -> None:
    lines = [json.dumps(row, default=str) for row in EXPECTED]
    path.write_text("\n".join(lines) + "\n")


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inner.csv", csv_text())


WRITERS: dict[str, Callable[[Path], object]] = {
    "t.parquet": write_parquet,
    "t.csv": lambda path: path.write_bytes(csv_text()),
    "t.tsv": lambda path: path.write_bytes(csv_text("\t")),
    "t.csv.gz": lambda path: path.write_bytes(gzip.compress(csv_text())),
    "t.CSV.zst": lambda path: path.write_bytes(zstandard.compress(csv_text())),
    "t.csv.bz2": lambda path: path.write_bytes(bz2.compress(csv_text()[:40]) + bz2.compress(csv_text()[40:])),
    "t.csv.xz": lambda path: path.write_bytes(lzma.compress(csv_text())),
    "t.csv.zip": write_zip,
    "t.zip": write_zip,
    "bom.csv": lambda path: path.write_bytes(b"\xef\xbb\xbf" + csv_text()),
    "no-newline.csv": lambda path: path.write_bytes(csv_text().rstrip()),
    "crlf.csv": lambda path: path.write_bytes(csv_text().replace(b"\n", b"\r\n")),
    "t.jsonl": write_json,
    "t.arrow": write_arrow,
    "t.arrows": write_stream,
}

COMPRESSED = [name for name in WRITERS if name.lower().startswith("t.csv.")]


def test_each_compression_is_tried() -> None:
    assert {Path(name).suffix.lower() for name in COMPRESSED} | {".lz4"} == set(COMPRESSIONS)


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    rows = read(tmp_path / name)
    assert [{**row, "price": row["price"] and float(row["price"])} for row in rows] == EXPECTED


@pytest.mark.parametrize(
    ("name", "file_format"),
    [("t.csv", "csv"), ("t.jsonl", "json"), ("t.arrows", "arrow"), ("t.arrow", "arrow"), ("t.parquet", "parquet")],
)
def test_standard_input(tmp_path: Path, name: str, file_format: str) -> None:
    WRITERS[name](tmp_path / name)
    assert len(read("-", file_format=file_format, stdin=(tmp_path / name).read_bytes())) == 2


def test_globs_are_read_in_name_order_and_large_files_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded: a file is never held whole. Quoted line ends do not break a record."""
    for module in (sources, source_csv):
        monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    for number in (2, 1):
        lines = [f'{number * 100 + row},"two\nlines, ""quoted"" {row}"' for row in range(20)]
        (tmp_path / f"f{number}.csv").write_text("id,name\n" + "\n".join(lines))
    batches = list(open_sources([str(tmp_path / "*.csv")], None, TABLE))
    assert len(batches) > 10
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [*range(100, 120), *range(200, 220)]
    assert rows[3]["name"] == 'two\nlines, "quoted" 3'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,name\n1,a\n2,b,c\n3,d\n", "line 3: 3 fields instead of 2"),
        ("id,name\n1,a\nx,b\n3,d\n", "line 3: column id: CSV conversion error to int64: invalid value 'x'"),
        ("id,day\n1,2013-01-01\n2,soon\n", "line 3"),
        ("id,nope\n1,2\n", "unknown columns: nope"),
        ("name\na\n", "the sort column id is missing"),
        ("id,ts\n1,2013-01-01\n2,soon\n", "row 2 has 'soon'"),
        ("", "is empty"),
    ],
)
def test_a_broken_csv_names_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    """Bad input: a CSV with a broken line."""
    path = tmp_path / "broken.csv"
    path.write_text(content)
    with pytest.raises(UsageError) as error:
        read(path)
    assert str(path) in error.value.message
    assert message in error.value.message


def test_the_line_is_right_in_a_later_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sources, source_csv):
        monkeypatch.setattr(module, "BLOCK_BYTES", 50)
    path = tmp_path / "broken.csv"
    path.write_text("id,name\n" + "".join(f"{row},n\n" for row in range(100)) + "1000,n,n\n" + "7,n\n" * 50)
    with pytest.raises(UsageError, match="line 102: 3 fields"):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"id": 1}\n{"id": 2\n', "line 2"), ('{"id": 1}\n\n[3]\n', "line 3"), ('{"id": "x"}\n', "line 1")],
)
def test_broken_json_names_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError) as error:
        read(path)
    assert str(path) in error.value.message
    assert message in error.value.message


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.arrows", *COMPRESSED])
def test_cut_off_files_are_errors_that_name_them(tmp_path: Path, name: str) -> None:
    """Bad input: an unreadable file; never a shorter table."""
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError) as error:
        read(path)
    assert str(path) in error.value.message


def test_what_is_missing_or_unclear_is_said_before_any_reading(tmp_path: Path) -> None:
    good = tmp_path / "t.csv"
    good.write_bytes(csv_text())
    with pytest.raises(NotFound, match="no such file"):
        open_sources([str(good), str(tmp_path / "missing*.csv")], None, TABLE)
    with pytest.raises(UsageError, match="is a directory"):
        open_sources([str(tmp_path)], None, TABLE)
    (tmp_path / "odd.txt").write_bytes(csv_text())
    with pytest.raises(UsageError, match="format is not clear"):
        open_sources([str(tmp_path / "odd.txt")], None, TABLE)
    assert len(read(tmp_path / "odd.txt", file_format="csv")) == 2
    with pytest.raises(UsageError, match="needs a format"):
        open_sources(["-"], None, TABLE)
    with pytest.raises(UsageError, match="no such format"):
        open_sources([str(good)], "xml", TABLE)
    with zipfile.ZipFile(tmp_path / "two.csv.zip", "w") as archive:
        archive.writestr("a.csv", csv_text())
        archive.writestr("b.csv", csv_text())
    with pytest.raises(UsageError, match="holds 2 files"):
        read(tmp_path / "two.csv.zip")


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (b",a,b", ["column_1", "a", "b"]),
        (b'\xef\xbb\xbf"",a,,', ["column_1", "a", "column_3", "column_4"]),
        (b"a, ,column_2\r", ["a", "column_2_2", "column_2"]),
        (b'a,a_2,"x,""y",a,a', ["a", "a_2", 'x,"y', "a_3", "a_4"]),
        (b"a,b", ["a", "b"]),
    ],
)
def test_every_column_of_a_csv_has_a_name_of_its_own(tmp_path: Path, header: bytes, names: list[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(header + b"\n" + b",".join(b"%d" % number for number, _ in enumerate(names)) + b"\n")
    assert source_schema(str(path)).names == names
    definition = define_table("d.t", order_by=f'"{names[1]}"', policy="p", like=source_schema(str(path)))
    (batch,) = open_sources([str(path)], None, definition)
    assert batch.to_pylist() == [{name: number for number, name in enumerate(names)}]


def test_columns_of_a_file(tmp_path: Path) -> None:
    for name in ("t.parquet", "t.arrow", "t.arrows"):
        WRITERS[name](tmp_path / name)
        assert source_schema(str(tmp_path / name)).equals(table().schema)
    for name in ("t.csv.gz", "t.csv.zip", "t.jsonl"):
        WRITERS[name](tmp_path / name)
        schema = source_schema(str(tmp_path / name))
        assert schema.names == NAMES
        assert schema.field("id").type == pa.int64()


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
def test_standard_input_may_be_compressed(compress: Any) -> None:
    assert read("-", file_format="csv", stdin=compress(csv_text())) == read("-", file_format="csv", stdin=csv_text())


@pytest.mark.parametrize("data", [b"id,ts\n1,\xff\n", b"PAR1\x15\xb5\x00\n\xb5,b,c\n"])
def test_bytes_that_are_no_text_are_named_by_line(data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"line [12] is not UTF-8 text"):
        read("-", file_format="csv", stdin=data)
    assert capfd.readouterr().err == ""


MANY_STREAMS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


@pytest.mark.parametrize("standard_input", [False, True], ids=["file", "stdin"])
@pytest.mark.parametrize("name", MANY_STREAMS)
def test_a_damaged_stream_behind_a_whole_one_is_no_end(tmp_path: Path, name: str, standard_input: bool) -> None:
    """Whichever bit of it is another one: all rows, or none and an error."""
    rows_of_one = csv_text().index(b"\n2,NA") + 1
    whole, behind = (MANY_STREAMS[name](text) for text in (csv_text()[:rows_of_one], csv_text()[rows_of_one:]))
    file = tmp_path / f"t.csv{name}"

    def rows(packed: bytes) -> list[dict[str, Any]]:
        if standard_input:
            return read("-", file_format="csv", stdin=packed)
        file.write_bytes(packed)
        return read(file)

    expected = rows(whole + behind)
    assert len(expected) == len(LINES)
    answers = []
    for place in range(0, len(behind), 3):
        damaged = bytearray(behind)
        damaged[place] ^= 1 << place % 8
        with suppress(UsageError):
            answers.append(rows(whole + damaged))
    assert all(repr(answer) == repr(expected) for answer in answers)
    for size in range(1, len(behind), 7):
        with pytest.raises(UsageError, match="cannot be read as csv"):
            rows(whole + behind[:size])


@pytest.mark.parametrize("name", [".gz", ".bz2", ".xz"])
def test_only_zeros_may_follow_the_last_stream(tmp_path: Path, name: str) -> None:
    packed = MANY_STREAMS[name](csv_text())
    file = tmp_path / f"t.csv{name}"
    file.write_bytes(packed + bytes(512))
    assert len(read(file)) == len(LINES)
    file.write_bytes(packed + bytes(512) + b"x")
    with pytest.raises(UsageError, match="cannot be read as csv"):
        read(file)


class Drops:
    """A stream that gives few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        given, self._data = self._data[:7], self._data[7:]
        return given


@pytest.mark.parametrize("rows", [[], [{"a": 1}], [{"a": "x\ny ]}", "b": [1, {"c": None}]}, {"a": "ä" * 30}, {}] * 3])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_elements_of_an_array_are_lines(rows: list[Any], indent: int | None) -> None:
    text = "\ufeff \n" + json.dumps(rows, indent=indent, ensure_ascii=False) + "\n"
    lines = b"".join(whole_lines(Drops(text.encode("utf-8-sig")[3:]), "x")).splitlines()
    assert [json.loads(line) for line in lines] == rows


@pytest.mark.parametrize("text", ['[{"a": 1}', '[{"a": 1}, {"a"', '[{"a": 1} x]', "[12"])
def test_an_array_that_ends_early_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^x: element \d of the array"):
        list(whole_lines(Drops(text.encode()), "x"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"n,s\n1," + b"7" * 4000),
        ("a.csv", b'n,s\n1,"open\n' + b"2,x\n" * 1000),
        ("a.csv", b"\0" * 4000),
        ("a.json", b'{"n": 2, "s": "' + b"7" * 4000),
        ("a.json", b'[{"n": 1, "s": "' + b"7" * 4000),
    ],
)
def test_a_record_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    """A line of 10 GB was read to its end, all of it in memory and in quadratic time."""
    for module in (source_csv, records):
        monkeypatch.setattr(module, "BLOCK_BYTES", 64)
        monkeypatch.setattr(module, "MOST_RECORD_BYTES", 1000)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.(csv|json).* is longer than"):
        read(str(tmp_path / name))


@pytest.mark.parametrize(
    ("nulls", "expected"),
    [
        (None, [None, None, "NA", "", None]),
        ([""], ["NA", None, "NA", "", "-"]),
        (["-", "NA"], [None, "", "NA", "", None]),
    ],
)
def test_who_says_what_is_null_keeps_other_texts(nulls: list[str] | None, expected: list[str | None]) -> None:
    names = iter(["NA", "", '"NA"', '""', "None" if nulls is None else "-"])
    text = "id,name\n" + "".join(f"{number},{name}\n" for number, name in enumerate(names))
    reshaping = parse_reshaping(TABLE, null=nulls)
    (batches,) = sources.read_each(find_sources(["-"], "csv", None), reshaping, io.BytesIO(text.encode()))
    assert [row["name"] for batch in batches for row in batch.to_pylist()] == expected


def test_what_is_not_said_to_be_null_is_refused_unless_it_fits() -> None:
    reshaping = parse_reshaping(TABLE, null=[""])
    (batches,) = sources.read_each(find_sources(["-"], "csv", None), reshaping, io.BytesIO(b"id,x\n1,\nNA,2\n"))
    with pytest.raises(UsageError, match="line 3"):
        list(batches)


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("t.csv", '\ufeffid;text;when\r\n1;"a; ""b""";31.12.2025\r\n2;"two\r\nlines, 1,5";\r\n', None),
        ("t.csv", 'id\ttext\twhen\n1\t"a; ""b"""\t31.12.2025\n2\t"two\r\nlines, 1,5"\t\n', None),
        ("t.csv", '"id"|"text"|"when"\n1|"a; ""b"""|31.12.2025\n2|"two\r\nlines, 1,5"|\n', None),
        ("t.csv", '"id, a;b",text\n1,x\n', [{"id, a;b": 1, "text": "x"}]),
        ("t.csv", '"id;a"\n1\n', [{"id;a": 1}]),
        ("t.tsv", "a,b;c;d\te\n1\t2\n", [{"a,b;c;d": 1, "e": 2}]),
    ],
)
def test_sheets_have_the_delimiter_of_their_header(
    tmp_path: Path, name: str, text: str, rows: list[dict[str, Any]] | None
) -> None:
    """Those of Excel have semicolons where a comma is for decimals."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    schema = source_schema(str(path))
    definition = define_table("d.t", order_by=f'"{schema.names[0]}"', policy="p", like=schema)
    (batch,) = open_sources([str(path)], None, definition)
    expected = [
        {"id": 1, "text": 'a; "b"', "when": "31.12.2025"},
        {"id": 2, "text": "two\r\nlines, 1,5", "when": None},
    ]
    assert batch.to_pylist() == (rows or expected)


def test_a_sample_that_is_no_text_makes_no_table(tmp_path: Path) -> None:
    """It made one whose column is `binary`, and the insert of the same file was refused."""
    path = tmp_path / "latin.csv"
    path.write_bytes(b"id,name\r\n1,caf\xe9\r\n")
    with pytest.raises(UsageError, match=r"line 2 is not UTF-8 text") as caught:
        source_schema(str(path))
    assert "iconv" in caught.value.hint


def test_moments_of_int96_are_what_they_are_in_every_year(tmp_path: Path) -> None:
    """Arrow's nanoseconds reach from 1677 to 2262; a year beyond came as one within. Nanoseconds stay."""
    moments = [datetime(9999, 12, 31), datetime(1500, 3, 1, 5), None, datetime(2026, 1, 1)]
    near = [1_700_000_000_000_000_001, None, 0, -1]
    table = pa.table(
        {
            "id": range(4),
            "far": pa.array(moments, pa.timestamp("us")),
            "many": pa.array([[moment] for moment in moments], pa.list_(pa.timestamp("us"))),
            "near": pa.array(near, pa.timestamp("ns")),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=3)
    columns = ["id:int64", "far:timestamp[us]", "many:list<timestamp[us]>", "near:timestamp[ns]"]
    target = define_table("a.c", columns=columns, order_by="id", policy="p")
    found = pa.Table.from_batches(open_sources([str(path)], None, target))
    assert found.column("far").to_pylist() == moments
    assert found.column("many").to_pylist() == [[moment] for moment in moments]
    assert found.column("near").cast(pa.int64()).to_pylist() == near
