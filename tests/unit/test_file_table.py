"""A file table compared with the one in a file, column by column (I7)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disks.file_table import FileTable
from oplog.replay import FileRow

DIGEST = "ab" * 32
ROWS = (
    FileRow("a/data", 5, "00" * 32, "r1-file-a", None, None, 1),
    FileRow("a/part.json", 2, "01" * 32, None, b"{}", None, 1),
    FileRow("b/data", 9, "02" * 32, "r2-file-b", None, "a", 2, (("r2-file-c", 4),), read_only=True),
)


def fill(table: FileTable, rows: tuple[FileRow, ...], revision: int = 2) -> None:
    with table.write() as view:
        view.clear()
        view.insert(rows)
        view.set_head(revision, DIGEST)


def compared(path: Path, rows: tuple[FileRow, ...], revision: int = 2) -> bool | None:
    """What a table of these rows says of the file; it can be asked again."""
    with closing(FileTable(None)) as table:
        fill(table, rows, revision)
        said = table.same_as(path, revision, DIGEST)
        assert table.same_as(path, revision, DIGEST) is said
        assert list(table.rows()) == list(rows)
        return said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "odd 100% ?name#.db"
    with closing(FileTable(place)) as table:
        fill(table, ROWS)
    return place


def test_the_same_rows(path: Path) -> None:
    assert compared(path, ROWS) is True


@pytest.mark.parametrize(
    "change",
    [
        {"path": "a/other"},
        {"size_bytes": 6},
        {"sha256": "03" * 32},
        {"key": None},
        {"key": "r1-file-z"},
        {"inline": b""},
        {"blob_set": ""},
        {"revision": 2},
        {"more": (("r9-file-x", 1),)},
        {"read_only": True},
    ],
    ids=str,
)
def test_every_column_counts(path: Path, change: dict[str, Any]) -> None:
    assert compared(path, (msgspec.structs.replace(ROWS[0], **change), *ROWS[1:])) is False


def test_a_row_more_or_less_counts(path: Path) -> None:
    assert compared(path, ROWS[1:]) is False
    assert compared(path, (*ROWS, FileRow("c", 0, "", None, b"", None, 1))) is False


def test_of_another_revision_nothing_is_said(path: Path) -> None:
    assert compared(path, ROWS, revision=3) is None


def test_a_damaged_file_is_an_error_and_stays_as_it_is(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)
    before = path.read_bytes()
    with closing(FileTable(None)) as table:
        fill(table, ROWS)
        for _ in range(2):
            with pytest.raises(sqlite3.Error):
                table.same_as(path, 2, DIGEST)
        assert list(table.rows()) == list(ROWS)
    assert path.read_bytes() == before


def test_a_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with closing(FileTable(None)) as table:
        fill(table, ROWS)
        with pytest.raises(sqlite3.Error):
            table.same_as(tmp_path / "none.db", 2, DIGEST)
    assert not (tmp_path / "none.db").exists()
