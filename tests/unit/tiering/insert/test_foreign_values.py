"""Values from outside: they go in as they are, or are refused with their file, row and column."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from oplog.errors import LimitReached, UsageError
from tests.unit.tiering.insert.foreign_tables import inserted, refused, table_of, texts
from tiering.insert.bad_rows import BadRows
from tiering.insert.row_blocks import row_blocks
from tiering.table.columns.sound_values import rows_without_text
from tiering.table.schema import TableDefinition

BAD = (b"m\xffm", b"\xed\xa0\x80", b"\xc3")
"""No text: a byte that UTF-8 does not have, a surrogate, and a letter that is cut."""


def batch_of(values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(len(values)), pa.int64()), values], ["k", "v"])


def write_parquet(path: Path, batch: pa.RecordBatch) -> None:
    pq.write_table(pa.Table.from_batches([batch]), path)


def write_arrow(path: Path, batch: pa.RecordBatch) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def write_orc(path: Path, batch: pa.RecordBatch) -> None:
    orc.write_table(pa.Table.from_batches([batch]), path)


def write_lines(path: Path, batch: pa.RecordBatch) -> None:
    values = batch.column("v").view(pa.binary()).to_pylist()
    lines = [b'{"k":%d,"v":%s}' % (row, b'"' + value + b'"') for row, value in enumerate(values)]
    path.write_bytes(b"\n".join(lines))


def write_array(path: Path, batch: pa.RecordBatch) -> None:
    write_lines(path, batch)
    path.write_bytes(b"[" + path.read_bytes().replace(b"\n", b",") + b"]")


WRITERS: dict[str, Callable[[Path, pa.RecordBatch], None]] = {
    "v.parquet": write_parquet,
    "v.arrow": write_arrow,
    "v.orc": write_orc,
    "v.jsonl": write_lines,
    "v.json": write_array,
}


def kept(path: Path, definition: TableDefinition, most: int = 5) -> tuple[list[Any], list[dict[str, Any]]]:
    """What goes in, and what --skip-bad-rows keeps."""
    problems = path.with_suffix(".bad")
    with BadRows(most, problems) as bad:
        found = inserted(path, definition, bad)
    return found, [json.loads(line) for line in problems.read_text().splitlines()]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", WRITERS)
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, name: str, bad: bytes) -> None:
    path = tmp_path / name
    WRITERS[name](path, batch_of(texts(b"a", bad, b"z")))
    if name.endswith(("jsonl", "json")):
        refused(path, table_of("string"))  # the parser itself may say it, of a line
    else:
        refused(path, table_of("string"), "column v", "row 2", "UTF-8")
    found, problems = kept(path, table_of("string"))
    assert found == ["a", "z"]
    assert [problem.get("row", problem.get("line")) for problem in problems] == [2]


def _nested(values: pa.Array) -> dict[str, tuple[str, pa.Array]]:
    """Table's type, and three rows of which the second has the bad text."""
    numbers = pa.array(range(3))
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), values)
    return {
        "list": ("list<string>", pa.ListArray.from_arrays([0, 1, 2, 3], values)),
        "large list": ("list<string>", pa.LargeListArray.from_arrays([0, 1, 2, 3], values)),
        "fixed list": ("list<string>", pa.FixedSizeListArray.from_arrays(values, 1)),
        "struct": ("struct<a: string>", pa.StructArray.from_arrays([values], ["a"])),
        "map key": ("map<string, int64>", pa.MapArray.from_arrays([0, 1, 2, 3], values, numbers)),
        "map value": ("map<int64, string>", pa.MapArray.from_arrays([0, 1, 2, 3], numbers, values)),
        "dictionary": ("string", dictionary),
        "list of dictionary": ("list<string>", pa.ListArray.from_arrays([0, 1, 2, 3], dictionary)),
        "json": ("string", pa.ExtensionArray.from_storage(pa.json_(), values)),
    }


@pytest.mark.parametrize("form", _nested(texts(b"", b"", b"")))
def test_bytes_that_are_no_text_at_any_depth(tmp_path: Path, form: str) -> None:
    kind, array = _nested(texts(b"a", b"\xff", b"z"))[form]
    assert rows_without_text(array) == [1]
    assert rows_without_text(array.slice(1)) == [0]
    path = tmp_path / "v.arrow"
    write_arrow(path, batch_of(array))
    refused(path, table_of(kind), "column v", "row 2")
    found, problems = kept(path, table_of(kind))
    assert [len(found), len(problems)] == [2, 1]
    with pytest.raises(UsageError, match=r"column v .* row 2"):  # and of batches of Python
        list(row_blocks([batch_of(array)], table_of(kind)))


def test_large_texts_and_those_that_no_row_has(tmp_path: Path) -> None:
    write_parquet(tmp_path / "v.parquet", batch_of(texts(b"a", b"\xff", kind=pa.large_string())))
    refused(tmp_path / "v.parquet", table_of("string"), "row 2")
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 0]), texts(b"a", b"\xff"))
    write_arrow(tmp_path / "v.arrow", batch_of(unused))
    assert inserted(tmp_path / "v.arrow", table_of("string")) == ["a", "a"]
    assert inserted_rows(texts(b"a", b"\xff").slice(0, 1), "string") == ["a"]


def inserted_rows(values: pa.Array, kind: str) -> list[Any]:
    return [value for rows in row_blocks([batch_of(values)], table_of(kind)) for value in rows.column("v").to_pylist()]


@pytest.mark.parametrize("offsets", [(0, 1, 10**9, 3), (0, 1, 2, 10**9), (0, 1, 0, 3), (-5, 1, 2, 3), (0, -5, 2, 3)])
def test_offsets_out_of_the_buffer_are_refused(tmp_path: Path, offsets: Sequence[int]) -> None:
    """Nothing may touch them: the process would end."""
    path, sound, wild = tmp_path / "v.arrow", struct.pack("<4i", 0, 1, 2, 3), struct.pack("<4i", *offsets)
    letters = pa.array(["a", "b", "c"])
    for array, kind in (
        (letters, "string"),
        (pa.ListArray.from_arrays([0, 1, 2, 3], pa.array([7, 8, 9])), "list<int64>"),
        (pa.MapArray.from_arrays([0, 1, 2, 3], pa.array([7, 8, 9]), pa.array([7, 8, 9])), "map<int64, int64>"),
        (pa.StructArray.from_arrays([letters], ["a"]), "struct<a: string>"),
    ):
        write_arrow(path, batch_of(array))
        assert path.read_bytes().count(sound) == 1
        path.write_bytes(path.read_bytes().replace(sound, wild))
        refused(path, table_of(kind), "column v", "damaged in row")
        with pytest.raises(LimitReached):
            kept(path, table_of(kind), most=0)


DIGITS = {
    "883406386745030.3": "decimal(20, 1)",
    "1234567890123456.78": "decimal(18, 2)",
    "12345678901234567890123456789012345678": "decimal(38, 0)",
    "-0.1": "decimal(5, 1)",
    "1.10": "decimal(5, 1)",
    "1e2": "decimal(5, 1)",
    "7": "decimal(5, 1)",
    "99999999999999999999": "decimal(20, 0)",
}


def _forms(number: str, kind: str) -> dict[str, tuple[str, str, Callable[[Any], Any]]]:
    """Form -> JSON, type, and how the number comes out of it."""
    return {
        "column": (number, kind, lambda value: value),
        "text": (f'"{number}"', kind, lambda value: value),
        "list": (f"[1, {number}]", f"list<{kind}>", lambda value: value[1]),
        "struct": (f'{{"a": {number}}}', f"struct<a: {kind}>", lambda value: value["a"]),
        "map": (f'{{"a": {number}}}', f"map<string, {kind}>", lambda value: value[0][1]),
        "map in a list": (f'[{{"a": {number}}}]', f"list<map<string, {kind}>>", lambda value: value[0][0][1]),
    }


@pytest.mark.parametrize("form", _forms("", ""))
@pytest.mark.parametrize("number", DIGITS)
def test_a_number_for_a_decimal_keeps_its_digits(tmp_path: Path, number: str, form: str) -> None:
    text, kind, out = _forms(number, DIGITS[number])[form]
    lines, sheet = tmp_path / "v.jsonl", tmp_path / "v.csv"
    lines.write_text(f'{{"k": 1, "v": {text}}}\n{{"k": 2, "v": null}}\n')
    assert [value if value is None else out(value) for value in inserted(lines, table_of(kind))] == [
        Decimal(number),
        None,
    ]
    sheet.write_text(f'k,v\n1,"{text.strip(chr(34)).replace(chr(34), chr(34) * 2)}"\n')
    assert out(inserted(sheet, table_of(kind))[0]) == Decimal(number)


@pytest.mark.parametrize("form", _forms("", ""))
@pytest.mark.parametrize("number", ["1.25", "12345.6", "1e400"])
def test_a_number_with_too_many_digits_is_refused(tmp_path: Path, number: str, form: str) -> None:
    text, kind, _ = _forms(number, "decimal(5, 1)")[form]
    path = tmp_path / "v.jsonl"
    path.write_text(f'{{"k": 1, "v": {text}}}\n')
    refused(path, table_of(kind))
    assert len(kept(path, table_of(kind))[1]) == 1
    sheet = tmp_path / "v.csv"
    sheet.write_text(f'k,v\n1,"{text.strip(chr(34)).replace(chr(34), chr(34) * 2)}"\n')
    refused(sheet, table_of(kind))


MOMENT = datetime(2026, 1, 1, 10)
BENT: dict[str, tuple[pa.Array, str]] = {
    "places": (pa.array([1.5, 1.25]), "decimal(5, 1)"),
    "places of float32": (pa.array([1.5, 1.25], pa.float32()), "decimal(5, 1)"),
    "too large": (pa.array([1.5, 1e300]), "float32"),
    "too large, of decimals": (pa.array([Decimal(1), Decimal(10) ** 39], pa.decimal256(50, 0)), "float32"),
    "time of a day": (pa.array([datetime(2026, 1, 1), MOMENT], pa.timestamp("us")), "date"),
    "time in a zone": (pa.array([1767222000, 1767225600], pa.timestamp("s", "Europe/Berlin")), "date"),
    "day": (pa.array([MOMENT, MOMENT], pa.timestamp("us")), "time"),
    "day and time": (pa.array([0, 86_400_000 + 1], pa.int64()).view(pa.date64()), "date"),
    "hexadecimal": (pa.array(["10", "0x10"]), "int64"),
    "text too large": (pa.array(["inf", "1e400"]), "float64"),
    "far day": (pa.array([date(2026, 1, 1), date(2300, 1, 1)]), "timestamp[ns]"),
    "far day with a zone": (pa.array([date(2026, 1, 1), date(2300, 1, 1)]), "timestamp[ns, UTC]"),
    "far moment": (pa.array([MOMENT, datetime(2300, 1, 1)], pa.timestamp("us")), "timestamp[ns]"),
    "unknown zone": (pa.array([1, 10**15], pa.timestamp("s", "Nowhere/Land")), "timestamp[ns]"),
}


@pytest.mark.parametrize("what", BENT)
def test_values_that_a_cast_would_bend_are_refused(tmp_path: Path, what: str) -> None:
    array, kind = BENT[what]
    path = tmp_path / "v.arrow"
    write_arrow(path, batch_of(array))
    refused(path, table_of(kind), "column v", *([] if what == "day" else ["row 2"]))
    assert len(kept(path, table_of(kind))[1]) == (2 if what == "day" else 1)
    if array.type == pa.date64() or what == "day":
        return
    offsets = pa.array([0, 1, 2], pa.int32())
    for inner, wide in (
        (pa.ListArray.from_arrays(offsets, array), f"list<{kind}>"),
        (pa.StructArray.from_arrays([array], ["a"]), f"struct<a: {kind}>"),
        (pa.MapArray.from_arrays(offsets, pa.array(["a", "b"]), array), f"map<string, {kind}>"),
    ):
        write_arrow(path, batch_of(inner))
        refused(path, table_of(wide), "column v", "row 2")


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([0.1, None, 883406386745030.25]), "decimal(20, 2)", ["0.10", None, "883406386745030.25"]),
        (pa.array([0.1, 1e39, float("inf")]).slice(0, 1), "float32", [0.10000000149011612]),
        (pa.array([float("inf"), float("-inf")]), "float32", [float("inf"), float("-inf")]),
        (pa.array(["inf", "-Infinity", "1e3"]), "float64", [float("inf"), float("-inf"), 1000.0]),
        (pa.array([datetime(2026, 1, 1)], pa.timestamp("ns")), "date", [date(2026, 1, 1)]),
        (pa.array([1767222000], pa.timestamp("s", "Europe/Berlin")), "date", [date(2026, 1, 1)]),
        (pa.array(["7"], pa.string_view()), "int64", [7]),
    ],
)
def test_values_that_a_cast_keeps_go_in(array: pa.Array, kind: str, expected: list[Any]) -> None:
    found = inserted_rows(array, kind)
    assert [str(value) if isinstance(value, Decimal) else value for value in found] == expected


def test_numbers_of_text_formats_are_what_stands_there(tmp_path: Path) -> None:
    sheet, lines = tmp_path / "v.csv", tmp_path / "v.jsonl"
    for number, kind in (("0x10", "int64"), ("1e400", "float64"), ("1e39", "float32"), ("-1e400", "float64")):
        sheet.write_text(f"k,v\n1, 1\n2,{number}\n")
        refused(sheet, table_of(kind), "column v", "row 2", number)
        assert [len(some) for some in kept(sheet, table_of(kind))] == [1, 1]
    sheet.write_text("k,v\n1,inf\n2, 2\n3,NA\n")
    assert inserted(sheet, table_of("float64")) == [float("inf"), 2.0, None]
    for number, kind in (("1e400", "float64"), ("1e39", "float32"), ("[1, 1e39]", "list<float32>")):
        first = "[1]" if number.startswith("[") else "1"
        lines.write_text(f'{{"k": 1, "v": {first}}}\n{{"k": 2, "v": {number}}}\n')
        words = () if number == "1e400" else ("column v", "row 2")  # the parser itself refuses that
        refused(lines, table_of(kind), *words)
        assert [len(some) for some in kept(lines, table_of(kind))] == [1, 1]
    lines.write_text('{"k": 1, "v": [Infinity]}\n{"k": 2, "v": [1e38, -Infinity]}\n')
    assert inserted(lines, table_of("list<float64>")) == [[float("inf")], [1e38, float("-inf")]]
    assert [len(value) for value in inserted(lines, table_of("list<float32>"))] == [1, 2]
    for text in ("[1e400]", "[1e39]", f"[{10**400}]"):
        sheet.write_text(f'k,v\n1,"{text}"\n')
        refused(sheet, table_of("list<float32>"), "column v")


@pytest.mark.in_turn
def test_messages_name_some_of_many_columns(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(20_000)]
    path = tmp_path / "v.parquet"
    write_parquet(path, pa.RecordBatch.from_arrays([pa.array([1])] * len(names), names))
    message = refused(path, table_of("int64"), "unknown columns: c0, c1,", "and 19,981 more")
    assert len(message) < 500
