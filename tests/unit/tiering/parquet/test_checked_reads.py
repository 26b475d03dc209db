"""Readers get what was written, or an error: sections of files, wherever they come from, and local files beforehand."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from disks.stores.base import ByteRange
from oplog.errors import Damaged, Transient
from tests.flips import without_sums
from tiering.parquet import checked_local
from tiering.parquet.checked_file import CheckedFile, HeldSections, _learned
from tiering.parquet.checked_local import LocalRead, check_local, unchecked_bytes
from tiering.parquet.part_files import write_part_files
from tiering.parquet.sections import BLOCK_BYTES, bytes_of_columns, stated_sections
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table
from tiering.table.part import DataFile


class Written:
    """A data file, and what was asked for of it."""

    def __init__(self, directory: Path, *, rows: int = 3000, group_rows: int = 1000) -> None:
        columns = ["k:int64", "noise:binary", "tags:list<list<string>>"]
        settings = [f"row_group_rows={group_rows}"]
        definition = define_table("a.b", columns=columns, order_by="k", policy="p", settings=settings)
        data = {
            "k": range(rows),
            "noise": [number.to_bytes(4, "big") * 40 + os.urandom(160) for number in range(rows)],
            "tags": [[["a"], []][: number % 3] for number in range(rows)],
        }
        table = pa.table(data, arrow_schema(definition))
        directory.mkdir(exist_ok=True)
        (self.file,) = write_part_files([table], definition, directory)
        self.path = directory / self.file.name
        self.data = self.path.read_bytes()
        self.asked: list[ByteRange] = []

    def fetch(self, wanted: ByteRange) -> bytes:
        self.asked.append(wanted)
        return self.data[wanted.start : wanted.stop]

    def opened(self, file: DataFile | None = None, *, held: HeldSections | None = None) -> CheckedFile:
        return CheckedFile(file or self.file, self.fetch, label="the file", hint="", held=held)

    def read(self, columns: list[int] | None = None, groups: list[int] | None = None) -> LocalRead:
        return LocalRead(self.path, self.file, "the file", "", columns, groups)

    def flip(self, position: int) -> None:
        altered = bytearray(self.data)
        altered[position] ^= 1
        self.path.write_bytes(altered)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "part")


def test_the_sections_are_the_whole_file(tmp_path: Path) -> None:
    """Also of no rows, and of chunks that are longer than a block."""
    for rows, groups in ((3000, 1000), (0, 1000), (6000, 6000)):
        written = Written(tmp_path / f"{rows}", rows=rows, group_rows=groups)
        sections = stated_sections(written.file)
        assert [section.start for section in sections] == [0, *(section.stop for section in sections[:-1])]
        assert sections[-1].stop == written.file.size_bytes
        assert all(section.stop - section.start <= BLOCK_BYTES for section in sections[:-1])
        assert {section.column for section in sections} == ({None, 0, 1, 2} if rows else {None})
        for columns in ({0}, {1, 2}, {0, 1, 2, 7}, set[int]()):
            chunks = (section for section in sections if section.column in columns)
            assert bytes_of_columns(written.file, columns) == sum(chunk.stop - chunk.start for chunk in chunks)


def test_sums_outlive_their_form(written: Written) -> None:
    encoded = msgspec.json.encode(written.file)
    assert stated_sections(msgspec.json.decode(encoded, type=DataFile)) == stated_sections(written.file)
    assert b"chunk_sums" not in msgspec.json.encode(without_sums(written.file))


@pytest.mark.parametrize("change", ["short", "odd", "long", "moved", "no tail"])
def test_sums_that_do_not_fit_the_file_are_none(written: Written, change: str) -> None:
    first, *others = written.file.row_groups
    sums = first.chunk_sums
    changed = {
        "short": lambda: msgspec.structs.replace(first, chunk_sums=sums[:-8]),
        "odd": lambda: msgspec.structs.replace(first, chunk_sums=sums[:-1]),
        "long": lambda: msgspec.structs.replace(first, chunk_sums=sums + sums),
        "moved": lambda: msgspec.structs.replace(first, offset_bytes=5),
        "no tail": lambda: first,
    }[change]()
    file = msgspec.structs.replace(written.file, row_groups=(changed, *others))
    if change == "no tail":
        file = msgspec.structs.replace(file, tail_crc32=None)
    assert stated_sections(file) == ()


def test_any_range_is_what_was_written(written: Written) -> None:
    size = written.file.size_bytes
    for file in (written.file, without_sums(written.file)):
        opened = written.opened(file)
        for start, stop in ((0, size), (0, 1), (size - 1, size), (3, 5), (1000, 90_000), (size - 70_000, size)):
            assert b"".join(opened.pieces(start, stop)) == written.data[start:stop]
        opened.seek(7)
        assert opened.read(13) == written.data[7:20]


def test_neighbours_are_fetched_at_once_and_once(written: Written) -> None:
    opened = written.opened()
    group = written.file.row_groups[1]
    stop = group.offset_bytes + group.size_bytes
    opened.pieces(group.offset_bytes, stop)
    assert written.asked == [ByteRange(group.offset_bytes, stop)]
    opened.pieces(group.offset_bytes + 9, stop - 9)
    assert len(written.asked) == 1
    opened.pieces(4, stop + 1)
    assert [asked.start for asked in written.asked[1:]] == [4, stop]


def test_what_many_ask_for_is_fetched_once(written: Written) -> None:
    gate = threading.Barrier(8)
    opened = written.opened()

    def ask(_: int) -> bytes:
        gate.wait()
        return b"".join(opened.pieces(4, 5000))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {written.data[4:5000]}
    assert len(written.asked) == 1


def test_held_sections_have_a_limit(written: Written) -> None:
    opened = written.opened(held=HeldSections(limit_bytes=0))
    opened.pieces(4, 5000)
    opened.pieces(written.file.size_bytes - 1, written.file.size_bytes)
    opened.pieces(4, 5000)
    assert len(written.asked) == 3


def test_a_bit_that_is_lost_on_the_way_is_asked_for_again(written: Written) -> None:
    good = written.data

    def fetch(wanted: ByteRange) -> bytes:
        data = bytearray(good[wanted.start : wanted.stop])
        data[0] ^= len(written.asked) == 0
        written.asked.append(wanted)
        return bytes(data)

    opened = CheckedFile(written.file, fetch, label="the file", hint="")
    assert b"".join(opened.pieces(4, 5000)) == good[4:5000]
    assert len(written.asked) == 2


def test_a_read_that_fails_fails_for_all_and_can_be_tried_again(written: Written) -> None:
    """Nobody waits for ever for a section that somebody else could not read."""
    data = written.data
    opened = written.opened()
    written.data = bytes([data[0] ^ 1]) + data[1:]
    for _ in range(2):
        with pytest.raises(Damaged, match=r"\Athe file is .*: bytes 0 to 4 have another CRC32"):
            opened.pieces(0, written.file.size_bytes)
    written.data = data
    assert b"".join(opened.pieces(0, 9)) == data[:9]

    def broken(wanted: ByteRange) -> bytes:
        raise Transient("no")

    with pytest.raises(Transient):
        CheckedFile(written.file, broken, label="", hint="").pieces(0, 5)


def test_a_file_without_sums_is_compared_once(written: Written) -> None:
    _learned.forget()
    file = without_sums(written.file)
    written.opened(file).pieces(0, 1)
    assert sum(asked.size_bytes for asked in written.asked) >= file.size_bytes
    written.asked.clear()
    written.opened(file).pieces(0, 1)
    assert [asked.start for asked in written.asked] == [0]
    _learned.forget()
    written.data = written.data[:-1] + b"x"
    with pytest.raises(Damaged, match="its SHA-256 is another one"):
        written.opened(file).pieces(0, 1)


class TestLocal:
    def test_only_what_is_read_is_compared(self, written: Written) -> None:
        sections = stated_sections(written.file)
        chunk = next(section for section in sections if (section.group, section.column) == (1, 1))
        written.flip(chunk.start)
        check_local([written.read([0, 2]), written.read([1], [0, 2])])
        for columns, groups in (([1], None), (None, None), ([0, 1], [1])):
            with pytest.raises(Damaged, match=f"bytes {chunk.start} to "):
                check_local([written.read(columns, groups)])
        written.flip(sections[-1].stop - 9)
        with pytest.raises(Damaged):
            check_local([written.read([])])

    @pytest.mark.parametrize("data", [b"", b"short", b"PAR1" * 300_000])
    def test_a_file_of_another_size(self, written: Written, data: bytes) -> None:
        written.path.write_bytes(data)
        with pytest.raises(Damaged, match="it has"):
            check_local([written.read([])])

    def test_a_file_that_is_gone(self, written: Written) -> None:
        written.path.unlink()
        with pytest.raises(FileNotFoundError):
            check_local([written.read([])] * 2)
        assert unchecked_bytes([written.read([])]) == 0

    def test_a_comparison_counts_for_a_while(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checked_local, "_SETTLED_NANOSECONDS", 0)
        assert unchecked_bytes([written.read([0])]) > 0
        check_local([written.read([0])])
        assert unchecked_bytes([written.read([0]), written.read([])]) == 0
        assert unchecked_bytes([written.read([1])]) > 0
        check_local([written.read()])
        assert unchecked_bytes([written.read([1]), written.read()]) == 0
        monkeypatch.setattr(checked_local, "KEPT_SECONDS", 0.0)
        assert unchecked_bytes([written.read([0])]) > 0

    def test_a_file_that_was_just_written_is_compared_each_time(self, written: Written) -> None:
        check_local([written.read()])
        assert unchecked_bytes([written.read()]) == written.file.size_bytes

    def test_a_file_that_was_changed_is_compared_again(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though its size and time say that it is the same: it is another inode."""
        monkeypatch.setattr(checked_local, "_SETTLED_NANOSECONDS", 0)
        check_local([written.read()])
        before = written.path.stat()
        other = written.path.with_name("other")
        other.write_bytes(written.data[:-9] + b"x" + written.data[-8:])
        other.replace(written.path)
        os.utime(written.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(Damaged):
            check_local([written.read()])

    def test_a_file_without_sums_is_compared_as_a_whole(
        self, written: Written, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checked_local, "_SETTLED_NANOSECONDS", 0)
        written.file = without_sums(written.file)
        check_local([written.read([0], [0])])
        assert unchecked_bytes([written.read()]) == 0
        written.flip(len(written.data) // 2)
        with pytest.raises(Damaged, match="SHA-256"):
            check_local([written.read([])])
