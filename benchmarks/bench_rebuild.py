"""Rebuild from snapshot + log. 100,000 files: at most 5 s beyond the listing, requests bounded. With `--files N` so
many instead, in at most 60 s for a million and 1 GiB; and what a snapshot of them costs, and the report of gc."""

from __future__ import annotations

import argparse
import hashlib
import heapq
import math
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from benchmarks.measure import Figure, bound_figure, peak_bytes, report, reset_peak, scratch, timed
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.metered import MeteredStore
from oplog.kinds import Inserted
from oplog.replay import FileRow
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest

FILES = 100_000
FILES_A_COMMIT = 50
SNAPSHOT_EVERY = 1500
"""2,000 commits with a snapshot at 1,500: the rebuild reads the snapshot and 500 commits."""
MILLION = 1_000_000
FILES_A_LARGE_COMMIT = 10_000
LATE_COMMITS = 900
"""Commits after the snapshot of the large table: nearly as many as there are between two snapshots."""
_LISTED = datetime.now(UTC)


def fill(disk: ObjectDisk) -> None:
    """100,000 small objects under 50,000 parts' worth of directories, as inserts and moves would leave them."""
    body = b"x" * 100
    digest = hashlib.sha256(body).hexdigest()
    for first in range(0, FILES, FILES_A_COMMIT):
        with disk.transaction(Inserted(), reason="benchmark") as transaction:
            for number in range(first, first + FILES_A_COMMIT, 2):
                directory = f"store/abc/table/202601_{number}_{number}_0"
                transaction.create(f"{directory}/data-0000.parquet", body, sha256=digest)
                transaction.create(f"{directory}/part.json", b'{"name":"%d"}' % number)
            transaction.commit()


def hundred_thousand(directory: Path) -> list[Figure]:
    store = MemoryStore("rebuild")
    disk = ObjectDisk("s3", store, directory / "state", snapshot_every_commits=SNAPSHOT_EVERY)
    fill(disk)
    revision = disk.revision
    disk.close()
    shutil.rmtree(directory / "state")
    start = time.perf_counter()
    objects = sum(1 for _ in store.list(""))
    listing = time.perf_counter() - start
    seconds, requests = rebuild(store, directory / "state", files=FILES)
    allowed = math.ceil(objects / 1000) + (revision - SNAPSHOT_EVERY) + 5
    return [
        bound_figure(
            "rebuild of 100,000 files beyond the listing",
            seconds - listing,
            at_most=5,
            unit="s",
            detail=f"({revision} commits, {objects} objects, listing {listing:.2f} s)",
        ),
        bound_figure(
            "rebuild requests", sum(requests.values()), at_most=allowed, unit="requests", detail=f"{requests}"
        ),
    ]


class SyntheticStore(MemoryStore):
    """A bucket whose blobs are made up while they are listed, so that what is measured is not the store's memory."""

    def __init__(self, parts: int) -> None:
        super().__init__("synthetic")
        self._parts = parts

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        keys = map(blob, range(self._parts)) if blob(0).startswith(prefix) else iter(())
        blobs = (ObjectInfo(key, 1_000_000, _LISTED) for key in keys if key > start_after)
        others = super().list(prefix, start_after=start_after)
        yield from heapq.merge(blobs, others, key=lambda found: found.key)


def blob(number: int) -> str:
    """The key of a part's data; their order is that of the numbers."""
    name = f"{number:032}".translate(str.maketrans("0123456789", "abcdefghij"))
    return f"r{1:064b}-file-{name}"


def many(directory: Path, files: int) -> Iterator[Figure]:
    """A disk of so many files: its snapshot, the rebuild from it, a report of what gc would delete."""
    parts = files // 2
    store = SyntheticStore(parts)
    disk = ObjectDisk("s3", store, directory / "state", snapshot_every_commits=0)
    rows = synthetic_rows(parts)
    while batch := list(islice(rows, FILES_A_LARGE_COMMIT)):
        with disk.transaction(Inserted()) as transaction:
            for row in batch:
                transaction.adopt(row)
            transaction.commit()
    yield _bound(f"a snapshot of {files:,} files", timed(disk.write_snapshot), files, goal_seconds=30)
    for number in range(LATE_COMMITS):
        with disk.transaction(Inserted()) as transaction:
            for part in range(10):
                transaction.create(f"store/abc/late/{number}_{part}/part.json", b'{"name":"%d"}' % part)
            transaction.commit()
    disk.close()
    shutil.rmtree(directory / "state")
    before = reset_peak()
    all_files = files + LATE_COMMITS * 10
    seconds, requests = rebuild(store, directory / "state", files=all_files)
    detail = f"({LATE_COMMITS} commits after the snapshot, {parts} objects listed, {requests})"
    yield _bound(f"rebuild of {files:,} files", seconds, files, goal_seconds=60, detail=detail)
    yield bound_figure(
        "peak memory of that rebuild",
        (peak_bytes() - before) / 2**20,
        at_most=1024,
        unit="MiB",
        detail=f"(beyond the {before / 2**20:.0f} MiB that the synthetic bucket takes)",
    )
    before = reset_peak()
    metered = MeteredStore(store)
    disk = ObjectDisk("s3", metered, directory / "state", snapshot_every_commits=0)
    start = time.perf_counter()
    found = collect(disk, GcRules(retention=timedelta(hours=1)), now=datetime.now(UTC) + timedelta(days=3))
    seconds = time.perf_counter() - start
    disk.close()
    assert found.refused is None, found.refused
    assert (found.referenced, found.orphaned) == (parts, 0), found
    detail = f"({sum(metered.counts().values())} requests; {(peak_bytes() - before) / 2**20:.0f} MiB)"
    yield _bound(f"gc's report of {files:,} files", seconds, files, goal_seconds=60, detail=detail)


def _bound(name: str, seconds: float, files: int, *, goal_seconds: float, detail: str = "") -> Figure:
    """The goal is that of a million files, or of fewer."""
    return bound_figure(name, seconds, at_most=goal_seconds * max(1.0, files / MILLION), unit="s", detail=detail)


def synthetic_rows(parts: int) -> Iterator[FileRow]:
    index = b'{"name":"%d","rows":1000000,"row_groups":[[0,"2026-01-01T00:00:00Z"],[1,"2026-01-02T00:00:00Z"]]}'
    for number in range(parts):
        directory = f"store/abc/abcdef01-2345-6789-abcd-ef0123456789/202601_{number:07}_{number:07}_0"
        document = index % number
        digest = hashlib.sha256(document).hexdigest()
        yield FileRow(f"{directory}/data-0000.parquet", 1_000_000, digest, blob(number), None, None, 1)
        yield FileRow(f"{directory}/part.json", len(document), digest, None, document, None, 1)


def rebuild(store: MemoryStore, state: Path, *, files: int) -> tuple[float, dict[str, int]]:
    """Rebuild an empty local state; seconds and requests by verb."""
    metered = MeteredStore(store)
    disk = ObjectDisk("s3", metered, state, snapshot_every_commits=SNAPSHOT_EVERY)
    start = time.perf_counter()
    result = restore(disk, RebuildRequest(apply=True))
    seconds = time.perf_counter() - start
    assert result.files == files, result.files
    assert not result.missing_objects
    disk.close()
    return seconds, {verb: count for verb, count in metered.counts().items() if count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, help="a table of so many instead (two minutes a million)")
    files = parser.parse_args().files
    with scratch() as directory:
        for figure in many(directory, files) if files else hundred_thousand(directory):
            report([figure])


if __name__ == "__main__":
    main()
