"""What tests do to files behind the back of whoever owns them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from oplog.documents import Document


@contextmanager
def unchecked_documents() -> Iterator[None]:
    """Within it documents are encoded that their own readers refuse, as somebody else may write them."""

    def encode(self: Document[Any], value: Any) -> bytes:
        return self._write(value)

    with mock.patch.object(Document, "encode", encode):
        yield


def break_pages(table: Path, *, first: int = 8) -> None:
    """Overwrite the beginning of every page of a SQLite file from page `first` on. Nobody may have it open."""
    with closing(sqlite3.connect(table)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(table.read_bytes())
    assert len(data) > (first + 1) * page_bytes, "the file is too small to be broken there"
    for start in range(first * page_bytes, len(data), page_bytes):
        data[start : start + 100] = b"\xff" * 100
    table.write_bytes(bytes(data))
