"""Rebuild the disk of a ClickHouse server from its bucket, against one HEAD an object and nothing else.

The bucket has 20,000 objects: parts of 18 files with their renames, and hard links as a mutation leaves them. The limit
is what the same client reaches with HEADs alone at its best of several concurrencies, on the same server in the same
run; the rebuild lists, asks for every object, replays the log, and reads and compares the checksums of every part.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from benchmarks.measure import Figure, paired, report
from disks.stores.s3.store import S3Store
from disks.stores.wrappers.metered import Meter
from disks.workers.parallel import in_parallel
from restore.clickhouse.bucket import read_bucket
from tests.compat.buckets import TABLE, ClickHouse
from tests.servers import Server, ceph, ministack

OBJECTS = 20_000
CONCURRENCY = (16, 32, 64)
PART_FILES = (*(f"{column}.{kind}" for column in "abcdefg" for kind in ("bin", "cmrk2")), "count.txt")
LINKED = PART_FILES[:6]


def history(objects: int) -> ClickHouse:
    """Inserts, and after every tenth a mutation that links six files of the part and writes the others anew."""
    server = ClickHouse()
    number = 0
    while len(server.objects) < objects:
        number += 1
        server.insert(f"all_{number}_{number}_0", *PART_FILES)
        if number % 10 == 0:
            source, target = f"{TABLE}/all_{number}_{number}_0", f"{TABLE}/tmp_mut_all_{number}_{number}_0_{number + 1}"
            for name in LINKED:
                server.link(f"{source}/{name}", f"{target}/{name}")
            server.part(target, *PART_FILES[6:], checksums=dict.fromkeys(PART_FILES, 10))
            server.rename(f"{target}/", f"{TABLE}/all_{number}_{number}_0_{number + 1}/")
    return server


def open_store(server: Server, url: str) -> S3Store:
    config = server.disk(url, read_only=True)
    parts = urlsplit(url)
    return S3Store.from_config(config, parts.netloc, parts.path.lstrip("/"), Meter())


def fill(store: S3Store, made: ClickHouse) -> None:
    """Past `put`, which refuses metadata names with `_`."""

    def put(item: object) -> None:
        body = memoryview(made.objects[str(item)].data)
        headers = {f"x-amz-meta-{name}": value for name, value in made.objects[str(item)].metadata.items()}
        store._s3.requests.put(str(item), body, hashlib.sha256(body).digest(), headers)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, made.objects))


def head_all(store: S3Store, keys: Sequence[str], concurrency: int) -> float:
    """Seconds of one HEAD for every key, `concurrency` at a time."""
    start = time.perf_counter()
    in_parallel(lambda number: store.head(keys[number]), len(keys), concurrency)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--server", choices=("ministack", "ceph"), default="ministack")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    made = history(options.objects)
    keys = [key for key in made.objects if key != ".SCHEMA_VERSION"]
    with (ministack if options.server == "ministack" else ceph)() as server:
        store = open_store(server, f"s3://{server.new_bucket()}/{uuid.uuid4().hex}/")
        fill(store, made)
        # A server's bucket is not in the memory of who rebuilds it: the garbage collector need not walk through it.
        del made
        gc.collect()
        best = min(CONCURRENCY, key=lambda concurrency: head_all(store, keys[:2000], concurrency))

        def rebuild() -> float:
            start = time.perf_counter()
            tree = read_bucket(store)
            seconds = time.perf_counter() - start
            assert len(tree.order.runs[0]) == len(keys)
            assert not tree.findings
            assert not tree.replayed.without_source
            return seconds

        ours, limit = paired(rebuild, lambda: head_all(store, keys, best), rounds=options.rounds)
    rate, bound = len(keys) / ours, len(keys) / limit
    report(
        [
            Figure(
                "rebuild of a ClickHouse bucket",
                rate,
                "objects/s",
                "at least 0.8 x",
                rate >= 0.8 * bound,
                bound,
                f"one HEAD an object, {best} at a time",
                f"({len(keys):,} objects, {options.server})",
            )
        ]
    )


if __name__ == "__main__":
    main()
