"""gc of a disk of 100,000 files with 100 pinned revisions, against the same with one: at most 1.3 x.

What is measured is the report, which reads all that proves a blob to be in use and deletes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
from datetime import UTC, datetime, timedelta

from benchmarks.measure import Figure, paired, ratio_figure, report, scratch, timed
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from oplog import pins
from oplog.kinds import Inserted

FILES = 100_000
COMMITS = 1_000
PINS = 100


def fill(disk: ObjectDisk) -> None:
    """Half the files at once, as a first load leaves them; the rest in small commits, each of which also takes some of
    the files before away."""
    body = b"x" * 100
    digest = hashlib.sha256(body).hexdigest()
    each = FILES // 2 // COMMITS
    for commit in range(COMMITS + 1):
        with disk.transaction(Inserted(), reason="benchmark") as transaction:
            for number in range(FILES // 2 if commit == 0 else each):
                transaction.create(f"store/abc/table/{commit}_{number}/data-0000.parquet", body, sha256=digest)
            if commit > 1:
                transaction.remove(f"store/abc/table/{commit - 1}_0")
            transaction.commit()


def figure(*, rounds: int = 5) -> Figure:
    """Measured in turn on one disk."""
    with scratch() as directory:
        store = MemoryStore("collect")
        disk = ObjectDisk("s3", store, directory / "state")
        fill(disk)
        later = datetime.now(UTC) + timedelta(days=3)

        def seconds(count: int) -> float:
            """With so many pins, over the log's length."""
            names = [f"backup-{number}" for number in range(count)]
            for number, name in enumerate(names, 1):
                pins.create(store, name, number * COMMITS // (count + 1), holder="benchmark")
            spent = timed(lambda: collected(count))
            for name in names:
                pins.release(store, name)
            return spent

        def collected(count: int) -> None:
            found = collect(disk, GcRules(retention=timedelta(hours=1)), now=later)
            assert found.refused is None, found.refused
            assert found.oldest_revision == disk.revision
            assert found.orphaned == COMMITS - 1 - kept(count), found.orphaned

        many, one = paired(lambda: seconds(PINS), lambda: seconds(1), rounds=rounds)
        disk.close()
        return ratio_figure(
            f"gc of {FILES:,} files with {PINS} pinned revisions",
            many,
            one,
            at_most=1.3,
            baseline_name="the same with one",
            detail=f"({COMMITS:,} commits)",
        )


def kept(count: int) -> int:
    """How many of the removed files a pinned revision names: each of these names one that is gone by the next."""
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    report([figure()])


if __name__ == "__main__":
    main()
