"""Rebuild from snapshot + log. 100,000 files: at most 5 s beyond the listing, requests bounded. With `--million`:
1,000,000 files in at most 60 s and 1 GiB."""

from __future__ import annotations

import argparse
import hashlib
import math
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from benchmarks.measure import Figure, bound_figure, peak_bytes, report, scratch
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.metered import MeteredStore
from oplog.kinds import Inserted
from oplog.replay import FileRow
from oplog.revision import BLOBS_PREFIX
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
        if prefix == BLOBS_PREFIX:
            modified = datetime.now(UTC)
            yield from (ObjectInfo(blob(number), 1_000_000, modified) for number in range(self._parts))
        yield from super().list(prefix, start_after=start_after)


def blob(number: int) -> str:
    """The key of a part's data; their order is that of the numbers."""
    name = f"{number:032}".translate(str.maketrans("0123456789", "abcdefghij"))
    return f"r{1:064b}-file-{name}"


def million(directory: Path) -> list[Figure]:
    parts = MILLION // 2
    store = SyntheticStore(parts)
    disk = ObjectDisk("s3", store, directory / "state", snapshot_every_commits=0)
    rows = synthetic_rows(parts)
    while batch := list(islice(rows, FILES_A_LARGE_COMMIT)):
        with disk.transaction(Inserted()) as transaction:
            for row in batch:
                transaction.adopt(row)
            transaction.commit()
    disk.write_snapshot()
    for number in range(LATE_COMMITS):
        with disk.transaction(Inserted()) as transaction:
            for part in range(10):
                transaction.create(f"store/abc/late/{number}_{part}/part.json", b'{"name":"%d"}' % part)
            transaction.commit()
    disk.close()
    shutil.rmtree(directory / "state")
    before = peak_bytes()
    seconds, requests = rebuild(store, directory / "state", files=MILLION + LATE_COMMITS * 10)
    return [
        bound_figure(
            "rebuild of 1,000,000 files",
            seconds,
            at_most=60,
            unit="s",
            detail=f"({LATE_COMMITS} commits after the snapshot, {parts} objects listed, {requests})",
        ),
        bound_figure(
            "peak memory of that rebuild",
            peak_bytes() / 2**20,
            at_most=1024,
            unit="MiB",
            detail=f"(with the synthetic bucket; {before / 2**20:.0f} MiB before it began)",
        ),
    ]


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
    parser.add_argument("--million", action="store_true", help="the large table instead (half a minute)")
    with scratch() as directory:
        report(million(directory) if parser.parse_args().million else hundred_thousand(directory))


if __name__ == "__main__":
    main()
