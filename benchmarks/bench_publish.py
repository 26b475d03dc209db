"""What a publication costs: the first of many parts, one after a commit, and commits of a published table.

    python -m benchmarks.bench_publish [--parts 10000] [--few 1000] [--commits 30]

Real parts of one row and 18 columns in a bucket that is a directory; the meter counts the requests that S3 would need.
The time of a publication is processor time of this process, its requests to the directory included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import pyarrow as pa
from msgspec.structs import replace

from benchmarks.measure import Figure, bound_figure, ratio_figure, report, scratch
from disks.stores.wrappers.metered import MeteredStore
from tiering.config.settings import embedded
from tiering.engine.store import Store
from tiering.iceberg import manifests  # noqa: F401 - the library that it needs is imported before the clock starts
from tiering.iceberg.publication import Publication
from tiering.table.definitions import define_table
from tiering.table.schema import Publish

TABLE = "bench.published"
COLUMNS = ["k:int64", "p:int32", "ts:timestamp[us, UTC]", *(f"c{number}:int64" for number in range(15))]
BATCH = 2_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--commits", type=int, default=30)
    options = parser.parse_args()
    figures: list[Figure] = []
    seconds: dict[int, float] = {}
    for parts in (options.few, options.parts):
        with scratch() as base, Store.open(embedded(base)) as store:
            fill(store, parts)
            plain = commits_a_second(store, options.commits)
            first, _ = publish(store)
            times, counts = [], []
            for number in range(9):
                insert(store, 10**7 + number, 1)
                taken, sent = publish(store)
                times.append(taken)
                counts.append(sent)
            seconds[parts], each = statistics.median(times), statistics.median(counts)
            published = commits_a_second(store, options.commits, publishing=True)
        figures.append(Figure(f"first publication of {parts:,} parts", first, "s", "20 s of 100,000", first < 20))
        figures.append(bound_figure(f"requests after one commit, {parts:,} parts", each, at_most=5, unit="requests"))
        figures.append(bound_figure(f"publication after one commit, {parts:,}", seconds[parts], at_most=0.1, unit="s"))
        figures.append(
            Figure(
                f"commits a second, published at once, {parts:,} parts",
                published,
                "1/s",
                "0.5 x unpublished",
                published >= 0.5 * plain,
                plain,
                "unpublished",
            )
        )
    many, few = seconds[options.parts], seconds[options.few]
    figures.append(ratio_figure("one publication of many parts", many, few, at_most=1.5, baseline_name="of few"))
    report(figures)
    sys.exit(0)


def fill(store: Store, parts: int) -> None:
    """So many parts of one row, all in the bucket."""
    rule = "0d on ts to volume cold"
    table = define_table(TABLE, columns=COLUMNS, order_by="k", partition_by="p", policy="hot_cold", ttl=[rule])
    store.create_table(table)
    for first in range(0, parts, BATCH):
        insert(store, first, min(BATCH, parts - first))


def insert(store: Store, first: int, rows: int) -> None:
    numbers = list(range(first, first + rows))
    data = {
        "k": numbers,
        "p": pa.array(numbers, pa.int32()),
        "ts": pa.array([0] * rows, pa.timestamp("us", "UTC")),
        **{f"c{number}": numbers for number in range(15)},
    }
    store.table(TABLE).insert(pa.table(data).to_batches())


def requests_so_far(store: Store) -> int:
    inner = store.object_disk("s3").store
    while not isinstance(inner, MeteredStore):
        inner = inner.inner  # type: ignore[attr-defined]
    return sum(inner.counts().values())


def publish(store: Store) -> tuple[float, int]:
    """Seconds of processor time, and requests."""
    definition = store.definition(TABLE)
    if not definition.is_published:
        store.alter_table(definition, replace(definition, version=definition.version + 1, publish=Publish()))
    publication = Publication(store, store.definition(TABLE))
    requests, start = requests_so_far(store), time.process_time()
    assert publication.publish() is not None
    return time.process_time() - start, requests_so_far(store) - requests


def commits_a_second(store: Store, commits: int, *, publishing: bool = False) -> float:
    start = time.perf_counter()
    for number in range(commits):
        insert(store, 2 * 10**7 + number + (10**6 if publishing else 0), 1)
        if publishing:
            publish(store)
    return commits / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
