"""Files of buckets of which a statement's columns and row groups are fetched before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from msgspec.structs import replace

from disks.stores.base import ByteRange
from oplog.errors import Damaged, Transient
from tiering.parquet import checked_file
from tiering.parquet.checked_file import CheckedFile, HeldSections
from tiering.parquet.part_files import write_part_files
from tiering.query.sql.cold_reads import ColdRead, cold_read, fitting
from tiering.query.sql.fetched_files import FetchedFiles
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table

GROUPS, GROUP_ROWS = 4, 131_072
KEY, WIDE, VALUE = 0, 1, 2


class Bucket:
    """One data file of several row groups, and what was asked of it."""

    def __init__(self, directory: Path) -> None:
        definition = define_table("a.b", columns=["k:int64", "wide:string", "v:int64"], order_by="k", policy="p")
        numbers = range(GROUPS * GROUP_ROWS)
        columns = {"k": numbers, "wide": [f"{number * 7919:x}" * 3 for number in numbers], "v": numbers}
        rows = pa.table(columns, arrow_schema(definition))
        (self.file,) = write_part_files([rows], definition, directory)
        self.bytes = bytearray((directory / self.file.name).read_bytes())
        self.asked: list[ByteRange] = []
        self.flips = 0
        self.error: Exception | None = None

    def fetch(self, wanted: ByteRange) -> bytes:
        self.asked.append(wanted)
        if self.error is not None:
            raise self.error
        data = bytearray(self.bytes[wanted.start : wanted.stop])
        if self.flips:
            self.flips -= 1
            data[len(data) // 2] ^= 1
        return bytes(data)

    def read(self, leaves: Collection[int], groups: Collection[int] | None = None) -> ColdRead:
        selected: Any = SimpleNamespace(file=self.file, hint="")
        file = CheckedFile(self.file, self.fetch, label="it", hint="", held=HeldSections(0))
        return cold_read(selected, file, leaves, groups)

    def bytes_of(self, leaves: Collection[int], groups: Collection[int] = range(GROUPS)) -> int:
        file = CheckedFile(self.file, self.fetch, label="it", hint="")
        chosen = [one for one in file.sections if one.column in leaves and one.group in groups]
        return sum(one.stop - one.start for one in chosen)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    return Bucket(tmp_path_factory.mktemp("written"))


@pytest.fixture
def bucket(written: Bucket) -> Bucket:
    written.asked, written.flips, written.error = [], 0, None
    return written


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FetchedFiles]:
    with closing(FetchedFiles(tmp_path)) as files:
        yield files


def answer(files: FetchedFiles, read: ColdRead, select: str) -> list[Any]:
    path = files.path(read.selected)
    assert path is not None
    with duckdb.connect() as engine:
        return engine.execute(f"SELECT {select} FROM '{path}'").fetchall()


def test_the_engine_reads_what_was_fetched(bucket: Bucket, files: FetchedFiles) -> None:
    read = bucket.read({KEY, VALUE})
    files.fetch([read])
    rows = GROUPS * GROUP_ROWS
    assert answer(files, read, "count(*), min(k), max(k), sum(v)") == [(rows, 0, rows - 1, rows * (rows - 1) // 2)]
    assert files.bytes_read == bucket.bytes_of({KEY, VALUE})


@pytest.mark.parametrize("groups", [{0}, {3}, {1, 2}, {0, 3}, set(range(GROUPS))], ids=str)
def test_other_row_groups_are_not_there(bucket: Bucket, files: FetchedFiles, groups: set[int]) -> None:
    read = bucket.read({VALUE}, groups)
    files.fetch([read])
    expected = sum(range(GROUP_ROWS)) * len(groups) + GROUP_ROWS**2 * sum(groups)
    assert answer(files, read, "count(*), count(v), sum(v)") == [(len(groups) * GROUP_ROWS,) * 2 + (expected,)]
    assert answer(files, read, "count(*) FILTER (v < 0)") == [(0,)]


@pytest.mark.parametrize("column", ["k", "wide"])
def test_a_column_that_was_not_fetched_cannot_be_read(bucket: Bucket, files: FetchedFiles, column: str) -> None:
    read = bucket.read({VALUE})
    files.fetch([read])
    with pytest.raises(duckdb.Error):
        answer(files, read, f"max({column}), sum(length({column}::VARCHAR))")


@pytest.mark.parametrize(
    ("leaves", "groups", "most"), [({KEY, VALUE}, None, 5), ({VALUE}, {2}, 2), ({KEY, WIDE, VALUE}, {0}, 3)]
)
def test_requests_are_few_and_read_little_else(
    bucket: Bucket, files: FetchedFiles, leaves: set[int], groups: set[int] | None, most: int
) -> None:
    files.fetch([bucket.read(leaves, groups)])
    assert len(bucket.asked) <= most
    asked_bytes = sum(one.size_bytes for one in bucket.asked)
    needed = bucket.bytes_of(leaves, groups or range(GROUPS))
    tail = bucket.file.size_bytes - sum(group.size_bytes for group in bucket.file.row_groups)
    assert needed <= asked_bytes <= needed + tail + 256 * 1024 * len(bucket.asked)


def test_a_bit_that_was_lost_on_the_way_is_fetched_again(bucket: Bucket, files: FetchedFiles) -> None:
    bucket.flips = 1
    read = bucket.read({VALUE}, {1})
    files.fetch([read])
    assert answer(files, read, "min(v)") == [(GROUP_ROWS,)]


def test_what_is_not_what_was_written_is_an_error(bucket: Bucket, files: FetchedFiles, tmp_path: Path) -> None:
    bucket.flips = 1000
    with pytest.raises(Damaged, match="it is not what was written"):
        files.fetch([bucket.read({KEY, VALUE})])
    files.close()
    assert not [*tmp_path.glob("fetched-*")]


def test_the_error_of_a_request_is_raised(bucket: Bucket, files: FetchedFiles) -> None:
    bucket.error = Transient("not now", hint="later")
    with pytest.raises(Transient, match="not now"):
        files.fetch([bucket.read({KEY})])


@pytest.fixture
def older(bucket: Bucket) -> Iterator[ColdRead]:
    """Of a file whose `part.json` states no sections: what an older version wrote."""
    file = replace(bucket.file, tail_crc32=None)
    checked = CheckedFile(file, bucket.fetch, label="it", hint="", held=HeldSections(0))
    yield cold_read(SimpleNamespace(file=file), checked, {VALUE}, {1})  # type: ignore[arg-type]
    checked_file._learned.forget()


def test_a_file_without_sections_is_fetched_as_a_whole(bucket: Bucket, files: FetchedFiles, older: ColdRead) -> None:
    files.fetch([older])
    rows = GROUPS * GROUP_ROWS
    assert answer(files, older, "count(*), max(k), count(wide)") == [(rows, rows - 1, rows)]
    assert sum(one.size_bytes for one in bucket.asked) == bucket.file.size_bytes


def test_a_file_without_sections_is_read_again_once(bucket: Bucket, files: FetchedFiles, older: ColdRead) -> None:
    bucket.flips = 1
    files.fetch([older])
    assert answer(files, older, "max(k)") == [(GROUPS * GROUP_ROWS - 1,)]
    assert sum(one.size_bytes for one in bucket.asked) == 2 * bucket.file.size_bytes


def test_a_file_without_sections_that_is_another_one(bucket: Bucket, files: FetchedFiles, older: ColdRead) -> None:
    bucket.flips = 1000
    with pytest.raises(Damaged, match="its SHA-256 is another one"):
        files.fetch([older])


@pytest.mark.parametrize("groups", [None, set(), {2}, set(range(GROUPS))], ids=str)
def test_the_footer_says_which_row_groups(bucket: Bucket, files: FetchedFiles, groups: set[int] | None) -> None:
    selected: Any = SimpleNamespace(file=bucket.file, hint="")
    file = CheckedFile(bucket.file, bucket.fetch, label="it", hint="", held=HeldSections(0))
    read = cold_read(selected, file, {VALUE, WIDE}, None, lambda tail: groups)
    files.fetch([read])
    chosen = range(GROUPS) if groups is None else groups
    values = [(GROUP_ROWS * len(chosen), max(chosen) * GROUP_ROWS + GROUP_ROWS - 1 if chosen else None)]
    assert answer(files, read, "count(*), max(v)") == values
    assert files.bytes_read == bucket.bytes_of({VALUE, WIDE}, chosen)
    first, *others = bucket.asked
    assert first == ByteRange(bucket.file.size_bytes - file.tail_bytes, bucket.file.size_bytes)  # type: ignore[operator]
    assert sum(one.size_bytes for one in others) <= 1.1 * files.bytes_read


def test_of_few_bytes_no_footer_is_asked_first(bucket: Bucket) -> None:
    selected: Any = SimpleNamespace(file=bucket.file, hint="")
    file = CheckedFile(bucket.file, bucket.fetch, label="it", hint="")
    assert bucket.bytes_of({VALUE}, {0}) < 1 << 20 < bucket.bytes_of({WIDE})
    assert cold_read(selected, file, {VALUE}, {0}, lambda tail: {0}).footer_says is None
    assert cold_read(selected, file, {WIDE}, None, lambda tail: {0}).footer_says is not None


def test_what_has_no_room_is_left(bucket: Bucket) -> None:
    reads = [bucket.read({VALUE}, {number}) for number in range(GROUPS)]
    sizes = [read.size_bytes for read in reads]
    assert fitting(reads, sum(sizes), 3) == reads[:3]
    assert fitting(reads, sum(sizes[:2]), 10) == reads[:2]
    assert fitting(reads, sizes[0] - 1, 10) == []


def test_a_footer_of_other_row_groups_is_left_to_others(bucket: Bucket, files: FetchedFiles) -> None:
    read = bucket.read({VALUE}, {1})
    fewer = SimpleNamespace(
        file=SimpleNamespace(size_bytes=bucket.file.size_bytes, row_groups=bucket.file.row_groups[1:])
    )
    other = ColdRead(fewer, read.file, read.ranges, read.column_bytes, {1})  # type: ignore[arg-type]
    files.fetch([other])
    assert files.path(fewer) is None  # type: ignore[arg-type]


def test_nothing_is_left_afterwards(bucket: Bucket, files: FetchedFiles, tmp_path: Path) -> None:
    reads = [bucket.read({VALUE}, {number}) for number in range(GROUPS)]
    files.fetch(reads)
    assert len({files.path(read.selected) for read in reads}) == GROUPS
    files.close()
    assert not [*tmp_path.iterdir()]
    assert files.path(reads[0].selected) is None
