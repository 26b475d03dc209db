"""Rows that ClickHouse's files need: several objects in one file, no digest, frozen; and the older layout of the cache.

Guards I7 (nothing is lost on the way through the table), I15 (wrong bytes are never returned), P47."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from disks.file_table.row_bytes import read_row
from disks.file_table.table import FileTable
from disks.object_disk.table_disk import row_info
from disks.stores.base import ByteRange
from disks.stores.memory import MemoryStore
from oplog import snapshot
from oplog.errors import Damaged
from oplog.replay import FileRow, diff
from oplog.table_digest import line_of
from tests.memory_table import MemoryTable

PIECES = {"k1": b"first-", "k2": b"", "k3": b"third", "k4": b"-4"}
WHOLE = b"first-third-4"
FILE = FileRow("store/p/k.bin", len(WHOLE), "", "k1", None, None, 3, (("k2", 0), ("k3", 5), ("k4", 2)), True)


@pytest.fixture
def store() -> MemoryStore:
    filled = MemoryStore("pieces")
    for key, data in PIECES.items():
        filled.put(key, data, sha256=hashlib.sha256(data).digest())
    return filled


def test_a_file_in_several_objects_reads_as_one(store: MemoryStore) -> None:
    assert read_row(store, FILE, disk="s3") == WHOLE
    for start in range(len(WHOLE) + 1):
        for stop in range(start, len(WHOLE) + 1):
            assert read_row(store, FILE, ByteRange(start, stop), disk="s3") == WHOLE[start:stop]


def test_without_a_digest_the_size_still_counts(store: MemoryStore) -> None:
    with pytest.raises(Damaged, match="k3"):
        read_row(store, FileRow("f", 9, "", "k3", None, None, 1), disk="s3")
    with pytest.raises(Damaged, match="k9"):
        read_row(store, FileRow("f", 9, "", "k1", None, None, 1, (("k9", 3),)), disk="s3")
    with pytest.raises(Damaged, match="outside"):
        read_row(store, FILE, ByteRange(3, 99), disk="s3")
    assert row_info(FILE).sha256 is None


def test_the_table_keeps_every_field(tmp_path: Path) -> None:
    plain = FileRow("a", 3, "ab" * 32, "k", None, "set", 1)
    empty = FileRow("b", 0, "", None, b"", None, 2)
    table = FileTable(tmp_path / "files.db")
    table.insert([FILE, plain, empty])
    table.rename("store/p", "store/q", 9)
    table.close()
    again = FileTable(tmp_path / "files.db")
    assert list(again.rows()) == [plain, empty, FILE.at("store/q/k.bin", 9)]
    again.close()


FIRST_LAYOUT = """
CREATE TABLE files (path TEXT PRIMARY KEY NOT NULL, size_bytes INTEGER NOT NULL, sha256 BLOB NOT NULL, key TEXT,
  blob_set TEXT, revision INTEGER NOT NULL, document INTEGER NOT NULL, inline BLOB);
CREATE INDEX documents ON files (path) WHERE document = 1;
CREATE TABLE state (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL);
INSERT INTO files VALUES ('a', 3, x'abab', 'k', 'set', 1, 0, NULL);
PRAGMA user_version = 1;
"""


def test_a_table_of_the_older_layout_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "files.db"
    old = sqlite3.connect(path)
    old.executescript(FIRST_LAYOUT)
    old.close()
    for _ in range(2):
        table = FileTable(path)
        assert list(table.rows()) == [FileRow("a", 3, "abab", "k", None, "set", 1)]
        with table.write() as view:
            view.drop(["k"], 5.0)
            assert (list(view.dropped_since(5.0)), list(view.dropped_since(6.0))) == (["k"], [])
        table.close()


def test_a_snapshot_has_no_word_for_what_a_row_lacks() -> None:
    """Format 2 stays as it is: a row of one object is written as before there were others."""
    plain = FileRow("a", 3, "ab" * 32, "k", None, "set", 1)
    assert line_of(plain) == b'["a",3,"' + b"ab" * 32 + b'","k",null,"set",1]\n'
    rows = [plain, FILE]
    assert list(snapshot.decode(snapshot.encode(1, "d" * 64, rows), name="x")[1]) == rows


def test_a_difference_in_a_later_object_is_one() -> None:
    other = FileRow("store/p/k.bin", len(WHOLE), "", "k1", None, None, 3, (("k2", 0), ("k5", 5), ("k4", 2)), True)
    assert [entry.path for entry in diff(MemoryTable([FILE]), MemoryTable([other]))] == ["store/p/k.bin"]
