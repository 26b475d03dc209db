"""The cached file table of an object disk as it lies there, read without touching it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec

from disks.bucket_disk import LoggedDisk
from disks.file_table.views import TableReader
from disks.host.database_copy import for_reading

UNREADABLE = (sqlite3.Error, ValueError, TypeError, AttributeError, msgspec.MsgspecError)
"""What reading a damaged file may raise, at any row."""


class Cache(msgspec.Struct):
    """What is known of the cached table."""

    exists: bool = False
    revision: int = 0
    digest: str = ""
    problem: str | None = None
    """Why it cannot be used."""


@contextmanager
def opened_cache(disk: LoggedDisk) -> Iterator[tuple[Cache, TableReader | None]]:
    """The table and a view of its rows; None when there is none that can be used.

    Damage may show at any row: it raises one of `UNREADABLE`, and `unreadable()` says it in a sentence.
    """
    if not disk.local_state_exists():
        yield Cache(), None
        return
    with closing(for_reading(disk.table_path)) as connection:
        connection.execute("BEGIN")
        view = TableReader(connection)
        store = view.state().get("store", disk.store.name)
        if store != disk.store.name:
            yield Cache(True, problem=f"the local file table is that of {store}, not of {disk.store.name}"), None
            return
        revision, digest = view.head()
        yield Cache(True, revision, digest), view


def unreadable(disk: LoggedDisk, error: BaseException) -> Cache:
    """A table that turned out to be damaged."""
    return Cache(True, problem=f"the local file table {disk.table_path} cannot be read: {error}")
