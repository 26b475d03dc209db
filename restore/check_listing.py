"""The listing that a check compares a bucket with: made here or by others, while everything else is looked at."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from disks.file_table import FileTable, TableReader
from disks.history import past_at
from disks.listing import KeyRange, cut_ranges, in_key_order, list_ranges
from disks.object_disk import ObjectDisk
from disks.references import Inventory, inventory, retained_from
from disks.runner import Remote
from oplog.errors import Damaged, NotFound
from restore.check_cache import CachedTable
from tiering.progress import Progress
from tiering.runner import ShownRunner


class Listing(Protocol):
    """One listing of a disk's prefix, taken after the entries of its log were listed."""

    def result(self) -> Inventory:
        """What is there, when it is complete."""

    def close(self) -> None:
        """Let go of what it holds."""


def listing_of(disk: ObjectDisk, remote: Remote | None, progress: Progress, *, head: int) -> Listing:
    """Begins the listing. `head` is about where the log ends."""
    return WholeListing(disk) if remote is None else RangedListing(disk, remote, progress, head=head)


class WholeListing:
    """Comes in while the check does something else, and is kept whole."""

    def __init__(self, disk: ObjectDisk) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="listing")
        self._found = self._pool.submit(lambda: inventory(disk.store.list()))

    def result(self) -> Inventory:
        return self._found.result()

    def close(self) -> None:
        self._pool.shutdown()


class RangedListing:
    """Comes in meanwhile, too: others list ranges of keys. What they compare them with is what the cache names, which
    only keeps their answers small; a cache that cannot be read names nothing."""

    def __init__(self, disk: ObjectDisk, remote: Remote, progress: Progress, *, head: int) -> None:
        self._disk = disk
        self._remote = Remote(ShownRunner(remote.runner, progress), remote.store)
        self._head = head
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="listing")
        self._found = self._pool.submit(self._list)

    def result(self) -> Inventory:
        return self._found.result()

    def close(self) -> None:
        self._pool.shutdown()

    def _list(self) -> Inventory:
        found, _ = list_ranges(self._remote, self._ranges(), what=f"listing disk {self._disk.name}")
        return found

    def _ranges(self) -> list[KeyRange]:
        with closing(CachedTable(self._disk)) as cache:
            expected = in_key_order(cache.table) if cache.table is not None else ()
            try:
                return list(cut_ranges(self._remote.store, expected, head=self._head))
            except (sqlite3.Error, ValueError, TypeError):  # which the check of the cache tells
                return list(cut_ranges(self._remote.store, (), head=self._head))


def still_kept(disk: ObjectDisk, found: Inventory, lost: set[str]) -> set[str]:
    """Those that a revision names which is within the retention now: the listing of a large bucket takes its time, in
    which a collection may have taken what others name."""
    base = retained_from(found.commits, now=datetime.now(UTC), retention=timedelta(seconds=disk.retention_seconds))
    try:
        with closing(past_at(disk.log, found, base)) as past:
            kept = past.keys(lost)
            past.named.clear()
            past.advance(found.head)
            return kept | (past.named & lost)
    except (Damaged, NotFound):
        return lost


@contextmanager
def reading(table: FileTable | TableReader) -> Iterator[TableReader]:
    """One consistent view of a table."""
    if isinstance(table, TableReader):
        yield table
    else:
        with table.read() as view:
            yield view
