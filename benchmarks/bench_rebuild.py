"""Rebuild of 100,000 files from snapshot + log: at most 5 s beyond the listing, requests bounded."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from pathlib import Path

from benchmarks.measure import bound_figure, report, scratch
from disks.object_disk import ObjectDisk
from disks.stores.memory import MemoryStore
from disks.stores.metered import MeteredStore
from restore.rebuild import restore

FILES = 100_000
FILES_A_COMMIT = 50
SNAPSHOT_EVERY = 1500
"""2,000 commits with a snapshot at 1,500: the rebuild reads the snapshot and 500 commits."""


def fill(disk: ObjectDisk) -> None:
    """100,000 small objects under 50,000 parts' worth of directories, as inserts and moves would leave them."""
    body = b"x" * 100
    digest = hashlib.sha256(body).hexdigest()
    for first in range(0, FILES, FILES_A_COMMIT):
        with disk.transaction("insert", reason="benchmark") as transaction:
            for number in range(first, first + FILES_A_COMMIT, 2):
                directory = f"store/abc/table/202601_{number}_{number}_0"
                transaction.create(f"{directory}/data-0000.parquet", body, sha256=digest)
                transaction.create(f"{directory}/part.json", b'{"name":"%d"}' % number)
            transaction.commit()


def main() -> None:
    with scratch() as directory:
        store = MemoryStore("rebuild")
        disk = ObjectDisk("s3", store, directory / "state", snapshot_every_commits=SNAPSHOT_EVERY)
        fill(disk)
        revision = disk.revision
        disk.close()
        shutil.rmtree(directory / "state")
        start = time.perf_counter()
        objects = sum(1 for _ in store.list(""))
        listing = time.perf_counter() - start
        seconds, requests = rebuild(store, directory / "state")
    allowed = math.ceil(objects / 1000) + (revision - SNAPSHOT_EVERY) + 5
    report(
        [
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
    )


def rebuild(store: MemoryStore, state: Path) -> tuple[float, dict[str, int]]:
    """Rebuild an empty local state; seconds and requests by verb."""
    metered = MeteredStore(store)
    disk = ObjectDisk("s3", metered, state, snapshot_every_commits=SNAPSHOT_EVERY)
    start = time.perf_counter()
    result = restore(disk, apply=True)
    seconds = time.perf_counter() - start
    assert result.files == FILES
    assert not result.missing_objects
    disk.close()
    return seconds, {verb: count for verb, count in metered.counts().items() if count}


if __name__ == "__main__":
    main()
