"""The index of parts: what another process changes meanwhile, and what the file loses, is in no answer (I1, I7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from disks.local.disk import LocalDisk
from disks.memory import MemoryDisk
from oplog.kinds import Inserted
from tests.index_parts import BEGIN, TABLE, dying, part
from tests.keeping import keeping, patched
from tiering.catalog.index import scan
from tiering.catalog.index.database import OvertakenError
from tiering.catalog.index.index import PartIndex
from tiering.catalog.index.rows import DiskTable, IndexChange, IndexedPart, decoded_facts, encoded_facts
from tiering.catalog.index.scan import ScanTarget
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, ColumnRange, facts_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "index.db"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    """With two parts of one partition and one of another."""
    with keeping():
        disk = LocalDisk("ssd", tmp_path / "ssd")
        for partition, block in ((1, 1), (1, 2), (2, 3)):
            commit(disk, partition, block)
        yield disk
        disk.close()


def commit(disk: LocalDisk | MemoryDisk, partition: int, block: int, *gone: str) -> None:
    made = part(partition, block, 0, 10 * block)
    with disk.transaction(Inserted()) as transaction:
        for name in gone:
            transaction.remove(TABLE.part_directory(name))
        transaction.create(f"{TABLE.part_directory(made.name)}/{PART_FILE}", part_format.encode(made))
        transaction.commit()


def look(index: PartIndex, disk: LocalDisk | MemoryDisk, *, every_file: bool = False) -> DiskTable:
    return scan.scan(index, ScanTarget(disk, TABLE), every_file=every_file)


def names(index: PartIndex, table: DiskTable, partition: str | None = None) -> list[str]:
    return index.parts([table], lambda _, row: row.name, partition)


def test_a_place_that_others_changed_gives_no_answer(path: Path, disk: LocalDisk) -> None:
    """Neither parts nor times; and what is kept stays."""
    index, other = PartIndex(path), PartIndex(path)
    before = look(index, disk)
    commit(disk, 1, 4, "20260101_1_1_0")
    after = look(other, disk)
    for ask in (
        lambda: names(index, before),
        lambda: names(index, before, "20260102"),
        lambda: index.newest(before),
        lambda: index.due(before, BEGIN),
        lambda: index.between_told(before, BEGIN),
        lambda: index.next_due(before, BEGIN),
        lambda: index.mixed([before]),
        lambda: index.settle([before], ["20260101"], {}),
        lambda: index.follow(before, IndexChange(), before.row.state),
    ):
        with pytest.raises(OvertakenError):
            ask()
    assert index.newest(after) == BEGIN + timedelta(minutes=40)
    assert (
        names(other, after) == names(index, look(index, disk)) == ["20260101_2_2_0", "20260101_4_4_0", "20260102_3_3_0"]
    )


def test_a_scan_that_others_overtake_does_not_end(path: Path, disk: LocalDisk) -> None:
    """What it found is not what the index has then."""
    index = PartIndex(path)
    table = look(index, disk)
    found = IndexChange(parts=table.parts, check=table.row.check)
    assert index.finish(table, found, table.row.state, table.row.basis) == table
    commit(disk, 1, 4)
    after = look(PartIndex(path), disk)
    with pytest.raises(OvertakenError):
        index.finish(table, found, table.row.state, table.row.basis)
    assert names(index, after) == [*names(index, look(index, disk))]
    assert len(names(index, after)) == 4


@pytest.mark.in_turn
@pytest.mark.parametrize(("table", "column"), [("sums", "data"), ("disk_tables", "data"), ("sums", "partition")])
def test_no_flipped_bit_of_a_sum_is_believed(path: Path, disk: LocalDisk, table: str, column: str) -> None:
    index = PartIndex(path)
    before = look(index, disk)
    wanted = sums(before)
    index.close()
    kept = path.read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM {table}").fetchone()
    for bit in range(0, 8 * len(value), 5):
        path.write_bytes(kept)
        flipped = bytearray(value if isinstance(value, bytes) else value.encode())
        flipped[bit // 8] ^= 1 << bit % 8
        changed = bytes(flipped) if isinstance(value, bytes) else flipped.decode(errors="replace")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (changed, value))
        other = PartIndex(path)
        assert sums(look(other, disk)) == wanted, bit
        other.close()


@pytest.mark.parametrize("column", ["rows", "size_bytes", "created", "due", "state", "facts", "revision", "replaces"])
def test_no_flipped_bit_of_a_part_goes_into_a_sum(path: Path, disk: LocalDisk, column: str) -> None:
    """Where the part itself is dropped, too: then it is taken from the sums."""
    index = PartIndex(path)
    look(index, disk)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"UPDATE parts SET {column} = CASE WHEN {column} = 1 THEN 2 ELSE 1 END WHERE name LIKE '%_1_1_0'"
        )
    commit(disk, 1, 4, "20260101_1_1_0")
    assert sums(look(index, disk)) == {"20260101": (2, 60, 600), "20260102": (1, 30, 300)}
    assert sorted(names(index, look(index, disk))) == ["20260101_2_2_0", "20260101_4_4_0", "20260102_3_3_0"]


@pytest.mark.parametrize("partition", [None, "20260101"])
def test_a_row_that_is_lost_leaves_no_part_out(path: Path, disk: LocalDisk, partition: str | None) -> None:
    index = PartIndex(path)
    table = look(index, disk)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM parts WHERE name LIKE '%_1_1_0'")
    assert names(index, table, "20260102") == ["20260102_3_3_0"]
    with pytest.raises(OvertakenError):
        names(index, table, partition)
    assert len(names(index, look(index, disk))) == 3


@pytest.mark.parametrize("table", ["sums", "disk_tables"])
def test_sums_that_are_lost_are_not_left_out(path: Path, disk: LocalDisk, table: str) -> None:
    index = PartIndex(path)
    before = sums(look(index, disk))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"DELETE FROM {table} WHERE rowid = 1" if table == "disk_tables" else f"DELETE FROM {table}")
    other = PartIndex(path)
    after = look(other, disk)
    assert sums(after) == before
    assert len(names(other, after)) == 3


def test_a_scan_that_died_is_not_believed(path: Path, disk: LocalDisk) -> None:
    """Wherever it died; and who goes on does not read again what it has brought in."""
    with patched({"tiering.catalog.index.scan.AT_ONCE": 1}):
        for at in count():
            PartIndex(path).throw_away()
            is_whole = False
            with dying(at), suppress(KeyboardInterrupt):
                look(PartIndex(path), disk)
                is_whole = True
            index = PartIndex(path)
            after = look(index, disk)
            assert len(names(index, after)) == 3, at
            assert sums(after) == {"20260101": (2, 30, 300), "20260102": (1, 30, 300)}, at
            if is_whole:
                assert at > 8
                return


def test_states_are_kept_and_go_with_the_parts(path: Path, disk: LocalDisk) -> None:
    index = PartIndex(path)
    table = look(index, disk)
    (table,) = index.settle([table], {"20260101", "20260102"}, {(table.id, "20260101_2_2_0"): 1})
    assert (table.partitions["20260101"].inactive, table.partitions["20260102"].inactive) == (1, 0)
    again = look(PartIndex(path), disk, every_file=True)
    assert again == table
    assert {row.name: row.state for row in index.parts([again], row_of)} == {
        "20260101_1_1_0": 0,
        "20260101_2_2_0": 1,
        "20260102_3_3_0": 0,
    }
    commit(disk, 2, 5, "20260101_2_2_0")
    after = look(index, disk)
    assert [after.partitions[name].is_settled for name in ("20260101", "20260102")] == [False, False]
    assert after.partitions["20260101"].inactive == 0


def test_parts_whose_blocks_meet_are_mixed(path: Path, disk: LocalDisk) -> None:
    index = PartIndex(path)
    assert index.mixed([look(index, disk)]) == set()
    commit(disk, 1, 2, "20260101_2_2_0")
    other = MemoryDisk("s3")
    commit(other, 2, 3)
    assert index.mixed([look(index, disk), look(index, other)]) == {"20260102"}


def test_what_shows_no_change_is_not_written(path: Path, disk: LocalDisk) -> None:
    index = PartIndex(path)
    table = look(index, disk)
    index.close()
    before = path.read_bytes()
    assert look(index, disk) == look(index, disk, every_file=True) == table
    index.close()
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_made_is_none(path: Path, disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process goes on in memory, and tries the file again after a minute."""
    clock = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr("tiering.catalog.index.database.time", clock)
    seconds = 1000.0
    path.parent.write_text("no directory")
    index = PartIndex(path)
    assert len(names(index, look(index, disk))) == 3
    commit(disk, 1, 4)
    assert len(names(index, look(index, disk))) == 4
    path.parent.unlink()
    seconds = 1059.0
    assert len(names(index, look(index, disk))) == 4
    assert not path.exists()
    seconds = 1060.0
    assert len(names(index, look(index, disk))) == 4
    assert path.exists()


def test_after_a_boot_times_are_indexed_once_more(path: Path, disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    index = PartIndex(path)
    look(index, disk)
    index.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        query = "SELECT sql FROM sqlite_master WHERE name = 'parts_created'"
        (statement,) = connection.execute(query).fetchone()
        connection.execute("DROP INDEX parts_created")
        connection.execute(f"{statement} WHERE rows < 0")  # without entries
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'parts_created'", (statement,))
    index = PartIndex(path)
    assert index.newest(look(index, disk)) is None
    index.close()
    monkeypatch.setattr("tiering.catalog.index.database.boot_id", lambda: "another")
    index = PartIndex(path)
    assert index.newest(look(index, disk)) == BEGIN + timedelta(minutes=30)


def test_facts_with_numbers_that_are_too_large_for_msgpack() -> None:
    facts = facts_of(part(1, 1, 0, 1), ["3"])
    facts.columns["3"] = ColumnRange(0, 1 << 80)
    assert decoded_facts(encoded_facts(facts)) == facts


def sums(table: DiskTable) -> dict[str, tuple[int, int, int]]:
    return {name: (one.parts, one.rows, one.bytes) for name, one in table.partitions.items() if one.parts}


def row_of(table: DiskTable, row: IndexedPart) -> IndexedPart:
    return row
