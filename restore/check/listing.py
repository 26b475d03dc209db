"""The listing that a check compares a bucket with: made here or by others, while everything else is looked at."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

from disks.contracts.bucket_disk import LoggedDisk
from disks.garbage.listing import ObjectKeyRange, cut_ranges, in_key_order, list_ranges
from disks.object_disk.history import past_at
from disks.object_disk.references import Inventory, inventory, retained_from
from disks.stores.base import ObjectInfo
from disks.workers.progress import Progress
from disks.workers.runner import OpensStore, Remote, check_stop, shown
from oplog.errors import Damaged, NotFound
from restore.check.cache import CachedTable


class PrefixListing:
    """One listing of a disk's prefix. It begins at once and comes in while the check does something else, so it must be
    made after the entries of the log were listed.

    With `remote` others list ranges of keys. What they compare them with is what the cache names, which only keeps
    their answers small; a cache that cannot be read names nothing.
    """

    def __init__(self, disk: LoggedDisk, remote: Remote | None, progress: Progress, *, head: int) -> None:
        """`head` is about where the log ends."""
        self._disk = disk
        self._head = head
        self._title = f"listing disk {disk.name}"
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="listing")
        if remote is None:
            self._future = self._pool.submit(self._here)
        else:
            others = Remote(remote.runner.hooked(shown(progress)), remote.store)
            # Here, not in the thread: two threads that read SQLite's rows hold each other up, row by row.
            self._future = self._pool.submit(self._by_others, others, self._ranges(remote.store))

    def result(self) -> Inventory:
        """What is there, when it is complete."""
        return self._future.result()

    def close(self) -> None:
        """Give up what nobody waits for any more; returns when no request is under way."""
        self._closed.set()
        self._pool.shutdown()

    def _here(self) -> Inventory:
        def infos() -> Iterator[ObjectInfo]:
            for info in self._disk.store.list():
                check_stop(self._closed, self._title)
                yield info

        return inventory(infos())

    def _by_others(self, remote: Remote, ranges: list[ObjectKeyRange]) -> Inventory:
        found, _ = list_ranges(remote, ranges, title=self._title, stop=self._closed)
        return found

    def _ranges(self, store: OpensStore) -> list[ObjectKeyRange]:
        with closing(CachedTable(self._disk)) as cache:
            expected = in_key_order(cache.table) if cache.table is not None else ()
            try:
                return list(cut_ranges(store, expected, head=self._head))
            except (sqlite3.Error, ValueError, TypeError):  # which the check of the cache tells
                return list(cut_ranges(store, (), head=self._head))


def still_kept(disk: LoggedDisk, inventory: Inventory, lost: set[str]) -> set[str]:
    """Those that a revision names which is within the retention now: the listing of a large bucket takes its time, in
    which a collection may have taken what others name."""
    base = retained_from(inventory.commits, now=datetime.now(UTC), retention=timedelta(seconds=disk.retention_seconds))
    try:
        with closing(past_at(disk.log, inventory, base)) as past:
            kept = past.keys(lost)
            past.named.clear()
            past.advance(inventory.head)
            return kept | (past.named & lost)
    except (Damaged, NotFound):
        return lost
