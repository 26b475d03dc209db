"""Parquet files that somebody made to do harm, and the real command line. I15 (loud): words, no crash, no wrong row.

| where it lies | what is answered |
|---|---|
| given to `insert` | exit 2, which names the file; nothing is inserted |
| in the place of a part's data file, here or in the bucket | exit 1, which names it; `fsck --read-data` finds it |
| the same, with a `part.json` of before that is forged to fit it | an error in words, or all the rows of the file |
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command_line import Frostline
from tiering.cli import main as cli

pytestmark = pytest.mark.in_turn

ROWS = 123_457
"""A number that a footer holds nowhere by chance."""
MAGIC = b"PAR1"
COUNT = "select count(*), sum(n), count(distinct text) from d.t"


def good() -> bytes:
    sink = pa.BufferOutputStream()
    columns = {"n": pa.array(range(ROWS), pa.int64()), "text": pa.array([f"row {n}" for n in range(ROWS)])}
    pq.write_table(pa.table(columns), sink, compression="zstd", row_group_size=ROWS)
    return bytes(sink.getvalue())


def with_footer(change: Callable[[bytes], bytes]) -> bytes:
    data = good()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = change(data[-8 - length : -8])
    return data[: -8 - length] + footer + struct.pack("<I", len(footer)) + MAGIC


def zigzag(number: int) -> bytes:
    """As Thrift's compact protocol writes a number."""
    rest, result = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        result.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*result, rest])


def of_rows(number: int) -> Callable[[bytes], bytes]:
    """All counts of rows and values say this number."""

    def change(footer: bytes) -> bytes:
        assert footer.count(zigzag(ROWS)) >= 3
        return footer.replace(zigzag(ROWS), zigzag(number))

    return change


def cut_by(number: int) -> Callable[[bytes], bytes]:
    return lambda footer: footer[:-number]


def length_of(number: int) -> bytes:
    return good()[:-8] + struct.pack("<I", number) + MAGIC


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a footer larger than the file": lambda: length_of(0x7FFFFFFF),
    "a footer of 4 GiB": lambda: length_of(0xFFFFFFFF),
    "a footer of nothing": lambda: length_of(0),
    "a footer that is cut": lambda: with_footer(cut_by(100)),
    "a footer of 0xff": lambda: with_footer(lambda footer: b"\xff" * len(footer)),
    "a schema of 2^31 columns": lambda: with_footer(lambda footer: b"\x15\x04\x19\xfc\xff\xff\xff\xff\x07" + footer),
    "structs in structs": lambda: with_footer(lambda footer: b"\x1c" * 200_000),
    "lists in lists": lambda: with_footer(lambda footer: b"\x19" * 200_000),
    "more rows than it has": lambda: with_footer(of_rows(1_000_000)),
    "2^62 rows": lambda: with_footer(of_rows(1 << 62)),
    "fewer than no rows": lambda: with_footer(of_rows(-5)),
    "nothing but the magic": lambda: MAGIC,
    "an encrypted footer": lambda: good()[:-4] + b"PARE",
    "holes where the data was": lambda: good()[:4] + bytes(len(good()) // 2) + good()[4 + len(good()) // 2 :],
}


@pytest.fixture
def table(frostline: Frostline) -> Frostline:
    frostline("table", "create", "d.t", "--column", "n:int64", "--column", "text:string", "--order-by", "n")
    return frostline


def answer(frostline: Frostline) -> list[int]:
    return [int(value or 0) for value in frostline.json("query", COUNT)["rows"][0]]


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_what_is_given_to_an_insert(table: Frostline, hostile: Callable[[], bytes]) -> None:
    Path("bad.parquet").write_bytes(hostile())
    table("insert", "d.t", "bad.parquet", code=2)
    assert "bad.parquet" in table.error
    assert answer(table) == [0, 0, 0]
    assert table.json("fsck", "--read-data")["ok"]
    Path("good.parquet").write_bytes(good())
    table("insert", "d.t", "good.parquet")
    assert answer(table) == [ROWS, ROWS * (ROWS - 1) // 2, ROWS]


def data_file(home: Path, disk: str) -> Path:
    below = home / ("ssd/store" if disk == "ssd" else "bucket/store")
    return max((path for path in below.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("disk", ["ssd", "s3"])
@pytest.mark.parametrize("name", ["a footer of 4 GiB", "structs in structs", "more rows than it has"])
def test_what_lies_in_the_place_of_a_parts_data(table: Frostline, home: Path, disk: str, name: str) -> None:
    Path("good.parquet").write_bytes(good())
    table("insert", "d.t", "good.parquet")
    if disk == "s3":
        table("move", "d.t", "--partition", "all", "--to-disk", "s3")
    path = data_file(home, disk)
    path.write_bytes(HOSTILE[name]())
    table("query", COUNT, code=1)
    assert "d.t" in table.error
    problems = table.json("fsck", "--read-data", code=4)["problems"]
    assert {problem["invariant"] for problem in problems} <= {"I1", "I3"}
    table("move", "d.t", "--partition", "all", "--to-disk", "s3" if disk == "ssd" else "ssd", code=1)
    table("fsck", "--read-data", "--repair")
    assert answer(table) == [0, 0, 0]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_part_json_was_forged_to_fit(
    table: Frostline, home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the checksums of sections, as older versions wrote it: the engine itself opens the file."""
    Path("good.parquet").write_bytes(good())
    table("insert", "d.t", "good.parquet")
    path = data_file(home, "ssd")
    data = HOSTILE[name]()
    path.write_bytes(data)
    part = path.with_name("part.json")
    document = json.loads(part.read_bytes())
    (file,) = document["files"]
    file |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    file.pop("tail_crc32")
    for group in file["row_groups"]:
        group.pop("chunk_sums")
    document["size_bytes"] = len(data)
    part.write_text(json.dumps(document))
    code = cli.run(["query", COUNT])
    said = capsys.readouterr()
    assert code in (1, 2, 8), said.out  # 8: there is not so much memory
    assert "unexpected" not in said.err
