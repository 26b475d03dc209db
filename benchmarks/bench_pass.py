"""What a pass of the daemon and an insert cost where there are many parts, against few; and that passes cost no more
and leave no more behind the longer they go on.

    python -m benchmarks.bench_pass [--parts 100000] [--few 5000] [--passes 1000] [--partitions 1000]

What is compared has as many partitions here as there: sums are kept by partition, so they cost what partitions do, not
parts. With `--partitions 0` each part has one of its own. The parts are descriptions without data, none of them due,
and are not merged. Processor time decides, for other programs may be busy too.
The bucket is a directory; it is given the `look_seconds` that a bucket of S3 has, for a look costs nothing there.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from benchmarks.bench_catalog import COLUMNS, FIRST, TABLE, fill, part
from benchmarks.bench_daemon import resident_bytes
from benchmarks.measure import Figure, bound_figure, ratio_figure, report, scratch
from disks.config import ObjectDiskConfig
from disks.contracts.bucket_disk import BucketDisk
from disks.registry import LOOK_SECONDS
from disks.stores.wrappers.metered import MeteredStore
from oplog.kinds import Inserted
from tiering.catalog.freshness import Freshness
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.table import part as part_format
from tiering.table.part import PART_FILE

TABLES = 10
ROUNDS = 15
WARM = 3
"""Passes after which the disks' own files say all that there is."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=100_000)
    parser.add_argument("--few", type=int, default=5_000)
    parser.add_argument("--passes", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1_000, help="0: as many as parts")
    options = parser.parse_args()
    figures = []
    with scratch() as base:
        fill(base / "few", options.few, days=options.partitions or options.few)
        fill(base / "many", options.parts, days=options.partitions or options.parts)
        figures += _against_few(base, options.parts, options.few)
    with scratch() as base:
        _fill_tables(base, options.parts)
        figures += _nothing_to_do(base, options.parts, options.passes)  # each part has a partition of its own
    report(figures)


def _opened(home: Path) -> Store:
    return Store.open(_config(home))


def _config(home: Path) -> Config:
    config = embedded(home)
    bucket = config.disks["s3"]
    assert isinstance(bucket, ObjectDiskConfig)
    seldom = msgspec.structs.replace(bucket, look_seconds=LOOK_SECONDS)
    return msgspec.structs.replace(config, disks={**config.disks, "s3": seldom})


def _pass(store: Store) -> None:
    """As the daemon makes it."""
    store.refresh(Freshness.LAST_ANSWER)
    done = store.tick(merges=False)  # of parts without data: nothing to read
    assert [*done.merges, *done.moves.moved, *done.problems] == []


def _against_few(base: Path, many_parts: int, few_parts: int) -> list[Figure]:
    """Both in turn, so that a machine whose speed drifts treats both alike."""
    with _opened(base / "many") as many, _opened(base / "few") as few:
        for store in (many, few):
            _pass(store)
            _insert(store, 0)
            _pass(store)
        passes = [[_processor(lambda store=store: _pass(store)) for store in (many, few)] for _ in range(ROUNDS)]  # type: ignore[misc]
        inserts = [
            [_processor(lambda store=store, turn=turn: _insert(store, turn)) for store in (many, few)]  # type: ignore[misc]
            for turn in range(1, ROUNDS + 1)
        ]
        both = [
            [_processor(lambda store=store, turn=turn: _insert_and_pass(store, turn)) for store in (many, few)]  # type: ignore[misc]
            for turn in range(ROUNDS + 1, 2 * ROUNDS + 1)
        ]
    name, against = f"{many_parts} parts", f"{few_parts} parts"
    figures = []
    for what, seconds in (("a pass", passes), ("an insert", inserts), ("an insert and the pass after it", both)):
        ours, theirs = (statistics.median(column) * 1000 for column in zip(*seconds, strict=True))
        figures.append(ratio_figure(f"{what}, {name}", ours, theirs, at_most=2, baseline_name=against, unit="ms"))
    return figures


def _insert_and_pass(store: Store, turn: int) -> None:
    _insert(store, turn)
    _pass(store)


def _insert(store: Store, turn: int) -> None:
    """A row of a day that has no part yet."""
    day = FIRST - timedelta(days=turn + 1)
    columns = {f"c{i}": pa.array([turn], pa.int64()) for i in range(1, COLUMNS)}
    rows = pa.table({"c0": pa.array([day], pa.timestamp("us", "UTC")), **columns})
    store.table(TABLE.full_name).insert(rows.to_batches())


def _processor(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _fill_tables(home: Path, parts: int) -> None:
    with Store.open(embedded(home)) as store:
        disk = store.disk("ssd")
        for number in range(TABLES):
            uuid = f"{TABLE.uuid[:-2]}{10 + number}"
            table = msgspec.structs.replace(TABLE, uuid=uuid, name=f"many{number}")
            store.create_table(table)
            with disk.transaction(Inserted()) as transaction:
                for one in (part(index, parts) for index in range(1, parts // TABLES + 1)):
                    path = f"{table.part_directory(one.name)}/{PART_FILE}"
                    transaction.create(path, part_format.encode(msgspec.structs.replace(one, table=uuid)))
                transaction.commit()


def _nothing_to_do(home: Path, parts: int, passes: int) -> list[Figure]:
    opened: list[str] = []

    def noted(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(str(home)):
            opened.append(str(arguments[0]))

    sys.addaudithook(noted)
    with _opened(home) as store:
        for _ in range(WARM):
            _pass(store)
        opened.clear()
        began, asked = time.perf_counter(), _requests(store)
        _pass(store)
        seconds, requests = time.perf_counter() - began, _requests(store) - asked
        of_parts = [path for path in opened if path.endswith((PART_FILE, ".parquet"))]
        others = f"(and {len(opened) - len(of_parts)} of what disks keep of themselves)"
        first: list[float] = []
        memory: list[int] = []
        tenth = max(passes // 10, 1)
        for number in range(passes):
            first.append(_processor(lambda: _pass(store)))
            if number % tenth == tenth - 1:
                gc.collect()
                memory.append(resident_bytes(os.getpid()))
    name = f"a pass over {parts} parts in {TABLES} tables"
    early, late = statistics.median(first[:tenth]) * 1000, statistics.median(first[-tenth:]) * 1000
    seen = f"(MB after each tenth: {', '.join(f'{size / 1e6:.0f}' for size in memory)})"
    megabytes = memory[-1] / 1e6, memory[0] / 1e6
    return [
        bound_figure(name, seconds, at_most=1, unit="s"),
        bound_figure(f"{name}: requests of the bucket", requests, at_most=0, unit="requests"),
        bound_figure(f"{name}: files of parts opened", len(of_parts), at_most=0, unit="files", detail=others),
        ratio_figure(
            f"pass {passes}",
            late,
            early,
            at_most=1.1,
            baseline_name="the first tenth",
            unit="ms",
            detail="of processor",
        ),
        ratio_figure(
            f"memory after {passes} passes",
            *megabytes,
            at_most=1.1,
            baseline_name="after a tenth",
            unit="MB",
            detail=seen,
        ),
    ]


def _requests(store: Store) -> int:
    stores = [disk.store for disk in store.context.disks.values() if isinstance(disk, BucketDisk)]
    assert stores
    assert all(isinstance(one, MeteredStore) for one in stores)
    return sum(sum(one.counts().values()) for one in stores if isinstance(one, MeteredStore))


if __name__ == "__main__":
    main()
