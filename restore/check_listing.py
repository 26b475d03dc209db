"""The listing that a check compares a bucket with: made here while the log is replayed, or in ranges by others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from disks.file_table import FileTable, TableReader
from disks.history import Past, past_at
from disks.listing import ComparedBlobs, cut_ranges, in_key_order, list_ranges
from disks.object_disk import ObjectDisk
from disks.references import Inventory, inventory, retained_from
from disks.runner import Remote
from oplog.errors import Damaged, NotFound
from tiering.progress import Progress
from tiering.runner import ShownRunner


class Listing(Protocol):
    """One listing of a disk's prefix, taken after the entries of its log were listed."""

    def at_base(self, past: Past) -> None:
        """`past` stands where the retention begins, and is to go on from there: what its table names belongs to
        `past.named` from now on, if the listing does not show it."""

    def result(self, table: FileTable | TableReader, past: Past | None) -> Inventory:
        """What is there. `table` is the newest one; `past`, where there is one, has `table`, and knows what came and
        went within the retention."""

    def close(self) -> None:
        """Let go of what it holds."""


def listing_of(disk: ObjectDisk, remote: Remote | None, progress: Progress) -> Listing:
    """Begins the listing where that can begin at once."""
    return WholeListing(disk) if remote is None else RangedListing(disk, remote, progress)


class WholeListing:
    """Comes in while the log is replayed, and is kept whole."""

    def __init__(self, disk: ObjectDisk) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="listing")
        self._found = self._pool.submit(lambda: inventory(disk.store.list()))

    def at_base(self, past: Past) -> None:
        blobs = self._found.result().blobs
        with past.table.read() as view:
            past.named.update(key for key, size_bytes in view.blobs() if blobs.size_of(key, size_bytes) is None)

    def result(self, table: FileTable | TableReader, past: Past | None) -> Inventory:
        return self._found.result()

    def close(self) -> None:
        self._pool.shutdown()


class RangedListing:
    """Begins when the log was replayed, for then it is known what to expect."""

    def __init__(self, disk: ObjectDisk, remote: Remote, progress: Progress) -> None:
        self._disk = disk
        self._remote = Remote(ShownRunner(remote.runner, progress), remote.store)
        self._base: FileTable | None = None

    def at_base(self, past: Past) -> None:
        self.close()
        self._base = past.table.copy()

    def result(self, table: FileTable | TableReader, past: Past | None) -> Inventory:
        head = past.revision if past is not None else 0
        with ExitStack() as stack:
            tables = [stack.enter_context(_reading(one)) for one in (self._base, table) if one is not None]
            expected = in_key_order(tables, past.named if past is not None else ())
            ranges = list(cut_ranges(self._remote.store, expected, head=head))
        found, _ = list_ranges(self._remote, ranges, what=f"listing disk {self._disk.name}")
        assert isinstance(found.blobs, ComparedBlobs)
        if past is not None:
            past.named.update(found.blobs.missing)
        return found

    def close(self) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None


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
def _reading(table: FileTable | TableReader) -> Iterator[TableReader]:
    if isinstance(table, TableReader):
        yield table
    else:
        with table.read() as view:
            yield view
