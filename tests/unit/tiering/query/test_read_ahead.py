"""Reading ahead of the engine: the planned chunks and nothing else, within a window; the engine needs none of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from disks.stores.base import ByteRange
from oplog.errors import Transient
from tiering.parquet.checked_file import CheckedFile
from tiering.parquet.part_files import write_part_files
from tiering.parquet.sections import stated_sections
from tiering.query.sql import read_ahead
from tiering.query.sql.file_places import FilePlace
from tiering.query.sql.plan import Access
from tiering.query.sql.read_ahead import ReadAhead, ScannedFiles
from tiering.table.columns.types import arrow_schema
from tiering.table.definitions import define_table
from tiering.table.pruning import TRUE, Compare, Predicate
from tiering.table.schema import TableDefinition

PATIENCE_SECONDS = 60


@pytest.fixture
def definition() -> TableDefinition:
    return define_table("a.b", columns=["k:int64", "wide:string", "v:int64"], order_by="k", policy="p")


class Store:
    """One data file of several row groups, and which of its ranges were asked for."""

    def __init__(self, definition: TableDefinition, directory: Path, groups: int = 4) -> None:
        rows = range(groups * 131_072)
        columns = {"k": rows, "wide": [f"{row * 7919:x}" for row in rows], "v": rows}
        table = pa.table(columns, arrow_schema(definition))
        (self.facts,) = write_part_files([table], definition, directory)
        assert len(self.facts.row_groups) == groups
        self._bytes = (directory / self.facts.name).read_bytes()
        self._asked = threading.Condition()
        self.asked: list[ByteRange] = []
        self.error: Exception | None = None

    def fetch(self, wanted: ByteRange) -> bytes:
        with self._asked:
            self.asked.append(wanted)
            self._asked.notify_all()
        if self.error is not None:
            raise self.error
        return self._bytes[wanted.start : wanted.stop]

    def opened(self, scan: ScannedFiles) -> CheckedFile:
        file = CheckedFile(self.facts, self.fetch, label="it", hint="", held=scan.held)
        scan.add(file, {number + 1: FilePlace(number, range(number, number + 1)) for number in range(3)})
        return file

    def wait(self, stop: int) -> None:
        """Until everything before `stop` in the file was asked for, that is, something that ends there or later."""
        with self._asked:
            assert self._asked.wait_for(lambda: any(one.stop >= stop for one in self.asked), PATIENCE_SECONDS)


@contextmanager
def reading(scan: ScannedFiles) -> Iterator[ReadAhead]:
    ahead = ReadAhead()
    try:
        ahead.start(scan)
        yield ahead
    finally:
        ahead.close()


def chunks(store: Store, column: int, group: int) -> tuple[int, int]:
    found = [one for one in stated_sections(store.facts) if (one.column, one.group) == (column, group)]
    return found[0].start, found[-1].stop


def scan_of(definition: TableDefinition, columns: set[int], predicate: Predicate = TRUE) -> ScannedFiles:
    return ScannedFiles(definition, Access(predicate, frozenset(columns)))


def test_the_planned_columns_are_there_before_they_are_asked_for(definition: TableDefinition, tmp_path: Path) -> None:
    store = Store(definition, tmp_path)
    scan = scan_of(definition, {2})
    file = store.opened(scan)
    with reading(scan):
        store.wait(chunks(store, 2, 3)[1])
    asked = list(store.asked)
    for group in range(4):
        start, stop = chunks(store, 2, group)
        assert b"".join(file.pieces(start, stop)) == store.fetch(ByteRange(start, stop))
    assert len(store.asked) == len(asked) + 4, "the engine asked again for what was read ahead"


def test_unneeded_columns_are_left_out_when_they_are_long(
    definition: TableDefinition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_HOLE_BYTES", 1024)
    store = Store(definition, tmp_path)
    scan = scan_of(definition, {0})
    store.opened(scan)
    with reading(scan):
        store.wait(chunks(store, 0, 3)[1])
    assert sorted((one.start, one.stop) for one in store.asked) == [chunks(store, 0, group) for group in range(4)]


def test_row_groups_that_cannot_match_are_not_read(
    definition: TableDefinition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_HOLE_BYTES", 1024)
    store = Store(definition, tmp_path)
    scan = scan_of(definition, {0}, Compare("k", ">=", 3 * 131_072))
    file = store.opened(scan)
    file.pieces(file.size() - 1, file.size())
    store.asked.clear()
    with reading(scan):
        store.wait(chunks(store, 0, 3)[1])
    assert [(one.start, one.stop) for one in store.asked] == [chunks(store, 0, 3)]


def test_it_keeps_within_its_window_until_the_engine_gets_on(
    definition: TableDefinition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_REQUEST_BYTES", 1)
    store = Store(definition, tmp_path)
    start, stop = chunks(store, 1, 0)
    scan = ScannedFiles(definition, Access(TRUE, frozenset({1})), window_bytes=stop - start)
    file = store.opened(scan)
    scan.prepare()
    taken = []
    while (piece := scan.take()) is not None:
        taken.append(piece)
    # A scan that was not begun has a window of its own; here it is larger than the file.
    assert taken[-1].stop == chunks(store, 1, 3)[1]
    scan = ScannedFiles(definition, Access(TRUE, frozenset({1})), window_bytes=stop - start)
    file = store.opened(scan)
    scan.prepare()
    assert scan.reach(file, start)
    taken = []
    while (piece := scan.take()) is not None:
        taken.append(piece)
    assert taken[-1].stop == stop
    # On to the third row group: what was skipped is not read, and one more row group fits.
    third, end = chunks(store, 1, 2)
    assert scan.reach(file, third)
    taken = []
    while (piece := scan.take()) is not None:
        taken.append(piece)
    assert (taken[0].start, taken[-1].stop <= end) == (third, True)


def test_a_second_scan_of_the_same_file_begins_anew(
    definition: TableDefinition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_REQUEST_BYTES", 1)
    store = Store(definition, tmp_path)
    scan = ScannedFiles(definition, Access(TRUE, frozenset({1})), window_bytes=1)
    file = store.opened(scan)
    scan.prepare()
    first, last = chunks(store, 1, 0)[0], chunks(store, 1, 3)[1] - 1
    scan.reach(file, last)
    scan.take()
    scan.reach(file, first)
    piece = scan.take()
    assert piece is not None
    assert piece.start == first


def test_what_fails_ahead_is_told_to_who_asks(definition: TableDefinition, tmp_path: Path) -> None:
    store = Store(definition, tmp_path)
    scan = scan_of(definition, {0})
    file = store.opened(scan)
    store.error = Transient("busy")
    with reading(scan):
        store.wait(5)
    start, stop = chunks(store, 0, 0)
    with pytest.raises(Transient):
        file.pieces(start, stop)
    store.error = None
    assert b"".join(file.pieces(start, stop)) == store.fetch(ByteRange(start, stop))


def test_closing_ends_it(definition: TableDefinition, tmp_path: Path) -> None:
    before = threading.active_count()
    with reading(scan_of(definition, {0})):
        assert threading.active_count() > before
    assert threading.active_count() == before
