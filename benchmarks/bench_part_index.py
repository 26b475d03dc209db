"""What the index of parts costs by itself: with 100,000 parts, or as many as are said, on a disk that costs nothing.

python -m benchmarks.bench_part_index [PARTS]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.bench_catalog import DAYS, DUE, FIRST, PARTITION, TABLE, part
from benchmarks.measure import scratch
from disks.base import Fingerprint, SmallFile
from disks.memory import MemoryDisk
from tiering.catalog.index import scan
from tiering.catalog.index.index import PartIndex, unsettled
from tiering.catalog.index.scan import ScanTarget
from tiering.config.settings import Config, embedded
from tiering.table import part as part_format


class Generated(MemoryDisk):
    """Parts that nobody wrote: each is made when it is read. `size_parts` of them."""

    def __init__(self, size_parts: int) -> None:
        super().__init__("ssd")
        self.size_parts = size_parts
        self.making_seconds = 0.0

    def directories(self, directory: str) -> list[str]:
        return [self._name(number) for number in range(1, self.size_parts + 1)]

    def _name(self, number: int) -> str:
        return f"{FIRST + timedelta(days=number % DAYS):%Y%m%d}_{number}_{number}_0"

    def state_of(self, directory: str) -> Fingerprint | None:
        return ("generated", self.size_parts)

    def changed_between(self, directory: str, before: Fingerprint, after: Fingerprint) -> set[str] | None:
        return {self._name(number) for number in range(int(before[1]) + 1, int(after[1]) + 1)}

    def look_over(
        self, directory: str, name: str, fingerprints: Mapping[str, Fingerprint], among: Collection[str] | None = None
    ) -> list[SmallFile]:
        begin = time.process_time()
        found = []
        for child in self.directories(directory) if among is None else among:
            path, fingerprint = f"{directory}/{child}/{name}", (int(child.split("_")[1]), 1000, 1, 1)
            data = None if fingerprints.get(path) == fingerprint else part_format.encode(part(int(child.split("_")[1])))
            found.append(SmallFile(path, fingerprint, data, None))
        self.making_seconds += time.process_time() - begin
        return found


@contextmanager
def measured(what: str, disk: Generated) -> Iterator[None]:
    begin, making = time.process_time(), disk.making_seconds
    yield
    seconds = time.process_time() - begin - (disk.making_seconds - making)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<45} {seconds:9.4f} s   peak {peak:.0f} MB", flush=True)


def main(parts: int) -> None:
    with scratch() as home:
        config: Config = embedded(home)
        policy = config.policies["hot_cold"]
        path, disk = Path(home) / "index.db", Generated(parts)
        target = ScanTarget(disk, TABLE, policy)
        index = PartIndex(path)
        with measured("first scan", disk):
            table = scan.scan(index, target, every_file=True)
        with measured("states of all", disk):
            mixed = index.mixed([table])
            (table,) = index.settle([table], unsettled([table]) - mixed, {})
        print(f"{sum(file.stat().st_size for file in Path(home).glob('index.db*')) / 1e6:.0f} MB, mixed: {len(mixed)}")
        for what, act in acts(index, target, disk):
            with measured(what, disk):
                act()
        index.close()


def acts(index: PartIndex, target: ScanTarget, disk: Generated) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is asked of the index, by name."""
    table = index.table("ssd", TABLE.directory)

    def another_process() -> None:
        other = PartIndex(index.path)
        seen = scan.scan(other, target, every_file=False)
        assert seen.rows
        other.close()

    def one_more() -> None:
        nonlocal table
        disk.size_parts += 1
        table = scan.scan(index, target, every_file=False)
        index.settle([table], unsettled([table]), {})

    yield "another process: open, look, sums", another_process
    yield "a look at what shows no change", lambda: scan.scan(index, target, every_file=False)
    yield "one part more: look, states", one_more
    yield "one part more, again", one_more
    yield "one partition", lambda: index.parts([table], lambda _, row: row, PARTITION)
    yield "next due", lambda: index.next_due(table, FIRST)
    yield "partitions due", lambda: index.due(table, DUE)
    yield "newest", lambda: index.newest(table)
    yield "all parts", lambda: index.parts([table], lambda _, row: row)
    yield "a scan of all files, nothing new", lambda: scan.scan(index, target, every_file=True)
    altered = ScanTarget(disk, msgspec.structs.replace(TABLE, ttl=()), target.policy)
    yield "a scan after an alter of rules", lambda: scan.scan(index, altered, every_file=False)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
