"""gc of 100,000 objects of three logs, with 30,000 marks, against one log that has them to itself: at most 1.6 x.

What is measured is the report, which reads all that proves an object to be in use and deletes nothing. Most objects are
named by every log, as those of replicas are.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.bench_gc import COMMITS, FILES, fill
from benchmarks.measure import Figure, paired, ratio_figure, report, scratch, timed
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.sharing.recorded_keeper import say
from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.named_log import NamedLogStore
from oplog.kinds import Inserted

MARKS = 30_000
KEEPER = "5" * 32
RULES = GcRules(retention=timedelta(hours=1))


class Sorted(MemoryStore):
    """A bucket that is no longer written: a listing costs what it shows, not what lies beside it."""

    _keys: tuple[str, ...] = ()

    def freeze(self) -> None:
        """From now on nothing is written."""
        self._keys = tuple(sorted(self._objects))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        if not self._keys:
            yield from super().list(prefix, start_after=start_after)
            return
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after) if start_after else 0)
        for key in self._keys[first : bisect_left(self._keys, f"{prefix}\U0010ffff")]:
            yield self._objects[key][1]


class Marks:
    """Of a third of the objects."""

    def __init__(self, keys: Collection[str]) -> None:
        self._keys = keys

    def objection(self) -> str | None:
        return None

    def keeper(self) -> str:
        return KEEPER

    def held(self) -> Collection[str]:
        return set(self._keys)

    def release(self, keys: Collection[str]) -> Collection[str]:
        return keys


def figure(*, rounds: int = 5) -> Figure:
    """Measured in turn on two stores."""
    with scratch() as directory:
        store = Sorted("alone")
        alone = ObjectDisk("s3", store, directory / "alone")
        fill(alone)
        store.freeze()
        shared = filled(directory)
        with shared.file_table.read() as view:
            marks = Marks([key for key, _ in view.blobs()][:MARKS])
        later = datetime.now(UTC) + timedelta(days=3)

        def run(disk: ObjectDisk, references: Marks | None) -> None:
            found = collect(disk, RULES, now=later, references=references)
            assert found.refused is None, found.refused

        run(shared, marks)  # which makes the caches of the other logs
        several, one = paired(
            lambda: timed(lambda: run(shared, marks)), lambda: timed(lambda: run(alone, None)), rounds=rounds
        )
        alone.close()
        shared.close()
        return ratio_figure(
            f"gc of {FILES:,} objects, 3 logs and {MARKS:,} marks",
            several,
            one,
            at_most=1.6,
            baseline_name="one log without",
        )


def filled(directory: Path) -> ObjectDisk:
    """The disk of the first of three logs; the others have adopted what it has."""
    store = Sorted("shared")
    say(store, KEEPER, "zk:2181/frostline")
    first = ObjectDisk("a", NamedLogStore(store, "a"), directory / "a")
    fill(first)
    rows = list(first.file_table.rows())
    for name in ("b", "c"):
        disk = ObjectDisk(name, NamedLogStore(store, name), directory / name)
        half = FILES // 2
        each = (len(rows) - half) // COMMITS  # as many commits as the first has, and so its snapshots
        for start, stop in [(0, half), *((one, one + each) for one in range(half, len(rows), each))]:
            with disk.transaction(Inserted(), reason="benchmark") as transaction:
                for row in rows[start:stop]:
                    transaction.adopt(row)
                transaction.commit()
        disk.close()
    store.freeze()
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    report([figure(rounds=parser.parse_args().rounds)])


if __name__ == "__main__":
    main()
