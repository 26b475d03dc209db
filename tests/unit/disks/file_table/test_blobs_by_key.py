"""The objects that rows name, in the order of their keys, without a table of the rows."""

import sqlite3
from contextlib import closing

import pytest

from disks.file_table.blobs_by_key import BlobsByKey
from oplog.errors import NoSpace
from oplog.replay import FileRow


def row(path: str, key: str | None, size_bytes: int = 1, more: tuple[tuple[str, int], ...] = ()) -> FileRow:
    return FileRow(path, size_bytes, "", key, None, None, 1, more)


ROWS = [row("a", "k9"), row("b", None), row("c", "k1", 7, (("k5", 4), ("k0", 2))), row("d", "k1"), row("u/e", "k2")]


def test_rows_go_by_and_their_objects_are_in_the_order_of_keys() -> None:
    with closing(BlobsByKey()) as blobs:
        assert list(blobs.noting(ROWS, lambda path: True)) == ROWS
        assert list(blobs) == [("k0", 2), ("k1", 1), ("k1", 1), ("k2", 1), ("k5", 4), ("k9", 1)]


def test_what_is_outside_goes_by_and_is_not_noted() -> None:
    with closing(BlobsByKey()) as blobs:
        assert list(blobs.noting(ROWS, lambda path: path.startswith("u/"))) == ROWS
        assert list(blobs) == [("k2", 1)]


def test_rows_that_broke_off_are_forgotten_when_they_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that turns out to be damaged while it is compared begins the reading anew."""
    monkeypatch.setattr("disks.file_table.blobs_by_key._BLOBS_AT_ONCE", 1)
    with closing(BlobsByKey()) as blobs:
        begun = blobs.noting(ROWS, lambda path: True)
        assert [next(begun), next(begun)] == ROWS[:2]
        assert list(blobs.noting(ROWS[3:], lambda path: True)) == ROWS[3:]
        assert list(blobs) == [("k1", 1), ("k2", 1)]


def test_a_full_disk_is_told() -> None:
    with closing(BlobsByKey()) as blobs:
        blobs._database.execute("PRAGMA max_page_count = 2")
        with pytest.raises(NoSpace, match="temporary table"):
            list(blobs.noting((row(f"{number:04}", "k" * 100) for number in range(1000)), lambda path: True))
    with closing(BlobsByKey()) as blobs:
        blobs._database.execute("DROP TABLE blobs")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            list(blobs)
