"""fsck (quick) and the gc report over 100,000 objects, against the bare listing of the same prefix by the same client.

100,000 parts of one file each, written in 1,000 commits: a snapshot of the first 950, and the 50 that gc has not taken
yet. In a bucket on a real S3 server, which processes list as they do for the verbs, and in a directory; with --large
also 1,000,000 files in a directory, for the memory. The listing, fsck and gc run in turn; medians of three rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import Figure, bound_figure, python, ratio_figure, report, scratch, timed
from disks.config import ObjectDiskConfig
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.address import StoreAddress
from disks.stores.base import ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.open import open_store
from disks.workers.process_runner import processes
from disks.workers.runner import Remote
from oplog import entry, snapshot
from oplog.entry import GENESIS_DIGEST, Commit, Create
from oplog.kinds import Inserted
from oplog.replay import FileRow
from oplog.revision import SCHEMA_VERSION_KEY, blob_key, commit_key, snapshot_key
from restore.check.check import CheckOptions, check
from tests.servers import SERVERS, ceph_missing
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import ColumnRange, DataFile, Part, RowGroup

OBJECTS = 100_000
COMMITS = 1_000
SNAPSHOT_AT = 950
ROUNDS = 3
GOAL = 2.0
BODY = b"x" * 100
TABLE = schema.TableDefinition(
    uuid="5f0e8b1c-0000-4000-8000-000000000002",
    database="bench",
    name="checks",
    columns=(schema.Column(1, "k", "int64", nullable=False),),
    order_by=("k",),
    policy="hot_cold",
    last_column_id=1,
)

ONE_RUN = """
import sys
from pathlib import Path
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.workers.process_runner import processes
from disks.workers.runner import Remote
from disks.stores.directory import DirectoryStore
from restore.check.check import CheckOptions, check
root, what = Path(sys.argv[1]), sys.argv[2]
disk = ObjectDisk("s3", DirectoryStore(root / "bucket"), root / "state", retention_seconds=0)
if what == "fsck":
    result = check({"s3": disk})
    assert result.ok, result.problems[:3]
else:
    disk.refresh()
    report = collect(disk, GcRules())
    assert report.refused is None, report.refused
"""


def bucket(parts: int) -> Iterator[tuple[str, bytes]]:
    """Keys and bytes of a disk with one table, as inserts and gc would have left it."""
    sha256, previous = hashlib.sha256(BODY).hexdigest(), GENESIS_DIGEST
    rows: list[FileRow] = []
    yield SCHEMA_VERSION_KEY, b"2"
    for revision in range(1, COMMITS + 1):
        operations = [_inline(TABLE.path, schema.encode(TABLE))] if revision == 1 else []
        for number in range((revision - 1) * parts // COMMITS, revision * parts // COMMITS):
            key = blob_key(revision)
            yield key, BODY
            directory = TABLE.part_directory(f"202601_{number}_{number}_0")
            operations.append(Create(f"{directory}/data-0000.parquet", len(BODY), sha256, key=key))
            operations.append(_inline(f"{directory}/part.json", _part_json(number, sha256)))
        commit = Commit(
            revision=revision,
            previous=previous,
            writer="benchmark",
            time=datetime.now(UTC),
            kind=Inserted(),
            operations=tuple(operations),
        )
        data = entry.encode(commit)
        previous = entry.digest(data)
        if revision >= SNAPSHOT_AT:
            yield commit_key(revision), data
        if revision <= SNAPSHOT_AT:
            rows += [
                FileRow(one.path, one.size_bytes, one.sha256, one.key, one.inline, None, revision) for one in operations
            ]
        if revision == SNAPSHOT_AT:
            rows.sort(key=lambda row: row.path)
            yield snapshot_key(revision), snapshot.encode(revision, previous, rows)
            rows.clear()


def _part_json(number: int, sha256: str) -> bytes:
    ranges = {"1": ColumnRange(number, number + 87)}
    group = RowGroup(88, 4, 90, (number,))
    return part_format.encode(
        Part(
            table=TABLE.uuid,
            name=f"202601_{number}_{number}_0",
            rows=88,
            size_bytes=len(BODY),
            created=datetime.now(UTC),
            files=(DataFile("data-0000.parquet", 88, len(BODY), sha256, (group,), ranges),),
            columns=ranges,
            digests=(sha256,),
        )
    )


def _inline(path: str, data: bytes) -> Create:
    return Create(path, len(data), hashlib.sha256(data).hexdigest(), inline=data)


def fill_directory(root: Path, parts: int) -> None:
    """Without syncing: what is measured is reading."""
    for name in ("operations", "snapshots"):
        (root / name).mkdir(parents=True)
    for key, data in bucket(parts):
        (root / key).write_bytes(data)


def compare(store: ObjectStore, state: Path, what: str, config: ObjectDiskConfig | None = None) -> list[Figure]:
    """fsck and gc against the listing, in turn. With `config`, processes list its bucket."""
    disk = ObjectDisk("s3", store, state, retention_seconds=0)
    disk.refresh()
    seconds: dict[str, list[float]] = {"listing": [], "fsck": [], "gc": []}
    for _ in range(ROUNDS):
        seconds["listing"].append(timed(lambda: _list(store)))
        seconds["fsck"].append(timed(lambda: _fsck(disk, _lister(config))))
        seconds["gc"].append(timed(lambda: _gc(disk, _lister(config))))
    listing = statistics.median(seconds["listing"])
    return [
        ratio_figure(
            f"{verb}, {OBJECTS:,} objects, {what}",
            statistics.median(seconds[verb]),
            listing,
            at_most=GOAL,
            baseline_name="the bare listing",
        )
        for verb in ("fsck", "gc")
    ]


def _list(store: ObjectStore) -> None:
    assert sum(1 for _ in store.list()) > OBJECTS


def _lister(config: ObjectDiskConfig | None) -> Remote | None:
    return Remote(processes(os.cpu_count() or 1), StoreAddress.of(config)) if config is not None else None


def _fsck(disk: ObjectDisk, lister: Remote | None) -> None:
    result = check({"s3": disk}, CheckOptions(listers={"s3": lister} if lister else {}))
    assert result.ok, result.problems[:3]
    assert result.checked.objects == OBJECTS


def _gc(disk: ObjectDisk, lister: Remote | None) -> None:
    found = collect(disk, GcRules(), remote=lister)
    assert found.refused is None, found.refused
    assert found.referenced == OBJECTS


def on_server(directory: Path) -> list[Figure]:
    """On Ceph, or on a server in memory where Ceph is not installed."""
    kind = "ministack" if ceph_missing() else "ceph"
    with SERVERS[kind]() as server:
        name = server.new_bucket()
        config = server.disk(f"s3://{name}/{uuid.uuid4().hex}/")
        store = open_store(config)
        print(f"filling a bucket on {kind} with {OBJECTS:,} objects", file=sys.stderr)
        with ThreadPoolExecutor(16) as pool:
            for _ in pool.map(lambda item: _put(store, *item), bucket(OBJECTS)):
                pass
        figures = compare(store, directory / "on-server", f"S3 ({kind})", config)
        store.close()
    return figures


def _put(store: ObjectStore, key: str, data: bytes) -> None:
    store.put(key, data, sha256=hashlib.sha256(data).digest())


def memory(directory: Path) -> list[Figure]:
    """Peak memory with 1,000,000 files: 500,000 parts of a data file and a `part.json`."""
    fill_directory(directory / "bucket", 500_000)
    figures = []
    for verb in ("gc", "fsck"):
        done = python(ONE_RUN, str(directory), verb)
        detail = f"({done.seconds:.0f} s)"
        figures.append(
            bound_figure(
                f"{verb}, 1,000,000 files, memory", done.peak_bytes / 2**30, at_most=1, unit="GiB", detail=detail
            )
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also 1,000,000 files: minutes, and 3 GB of disk")
    parser.add_argument("--no-server", action="store_true", help="only the directory")
    options = parser.parse_args()
    with scratch() as directory:
        fill_directory(directory / "bucket", OBJECTS)
        store = DirectoryStore(directory / "bucket")
        report(compare(store, directory / "on-directory", "directory"))
        if not options.no_server:
            report(on_server(directory))
    if options.large:
        with scratch() as directory:
            report(memory(directory))


if __name__ == "__main__":
    main()
