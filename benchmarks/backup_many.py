"""Backups of many files, and many backups: made by hand, for what is measured is what reads them."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from backup import records
from backup.create.known import StoredBlob, StoredInPack
from backup.create.tree import PlacedFile, TreePart, partition_lists, totals
from backup.format import encoding, names, packs
from backup.format.header import BackupHeader, TableEntry, VerificationRecord
from backup.format.lists import PartitionEntry, TableList
from backup.storage import Storage
from benchmarks import bench_check
from benchmarks.backup_home import Home
from benchmarks.measure import Figure, Run, bound_figure, python, ratio_figure, scratch
from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
from tests.servers import Server, ceph
from tiering.table import schema
from tiering.table.part import PART_FILE

WRITERS = 16
_PARTS_A_PACK = 10_000

LISTING = """
import sys
from disks.config import ObjectDiskConfig
from disks.stores.open import open_store
store = open_store(ObjectDiskConfig(url=sys.argv[1]))
print(sum(1 for _ in store.list()))
"""
"""The bare listing, by the same client."""


def pin(parts: int, rounds: int) -> list[Figure]:
    """`--cold pin` of a disk with two files a part. Its objects are left out: nothing of a pinned backup reads them."""
    with scratch() as directory, ceph() as server:
        bucket = server.new_bucket()
        home = Home(directory / "home", f"s3://{bucket}/cold/", server.environment())
        store = open_store(_config(server, home.bucket_url))
        for key, data in bench_check.bucket(parts):
            if data is not bench_check.BODY:
                store.put(key, data, sha256=hashlib.sha256(data).digest())
        store.close()
        home.frostline("parts")
        runs = []
        for number in range(rounds):
            url = f"s3://{bucket}/repository-{number}"
            home.backup("init", url)
            runs.append(_pinned(home, url, parts))
        again = _pinned(home, url, parts)
    label = f"--cold pin of {2 * parts:,} files"
    seconds, cpu = min(run.seconds for run in runs), min(run.cpu_seconds for run in runs)
    return [
        bound_figure(label, seconds, at_most=2, unit="s", detail=f"(processor {cpu:.2f} s)"),
        bound_figure(
            f"{label}, again", again.seconds, at_most=2, unit="s", detail=f"(processor {again.cpu_seconds:.2f} s)"
        ),
    ]


def _pinned(home: Home, url: str, parts: int) -> Run:
    done = home.backup("create", "--cold", "pin", "--to", url)
    assert json.loads(done.output)["parts"] == parts, done.output
    return done


def quick_verify(parts: int, rounds: int) -> list[Figure]:
    """A quick verification of a backup with two files a part, of which one is an object of its own."""
    with scratch() as directory, ceph() as server:
        home = Home(directory / "home", environment=server.environment())
        url = f"s3://{server.new_bucket()}/repository"
        home.backup("init", url)
        store = open_store(_config(server, url))
        _made_by_hand(Storage.open(store), parts)
        store.close()
        seconds: dict[str, list[Run]] = {"verify": [], "listing": []}
        for _ in range(rounds):
            seconds["verify"].append(home.backup("verify", "latest", "--to", url))
            seconds["listing"].append(python(LISTING, f"{url}/", environment=home.environment))
        assert json.loads(seconds["verify"][0].output)["files"] == 2 * parts
    ours, bare = (min(run.seconds for run in seconds[name]) for name in ("verify", "listing"))
    detail = f"(processor {min(run.cpu_seconds for run in seconds['verify']):.2f} s)"
    return [
        ratio_figure(
            f"quick verify of {2 * parts:,} files", ours, bare, at_most=1.5, baseline_name="the listing", detail=detail
        )
    ]


def _made_by_hand(storage: Storage, parts: int) -> None:
    """A backup of so many parts in a hundred partitions, each with a blob and a `part.json` in a pack."""
    placed: list[TreePart] = []
    with ThreadPoolExecutor(WRITERS) as pool:
        for first in range(0, parts, _PARTS_A_PACK):
            numbers = range(first, min(first + _PARTS_A_PACK, parts))
            described = [b'{"part": %d}' % number for number in numbers]
            data, entries = packs.build(described)
            pack = storage.put_content(names.PACKS_PREFIX, data)
            blobs = list(pool.map(lambda number: _blob(storage, number), numbers))
            for number, entry, (sha256, nonce, size_bytes) in zip(numbers, entries, blobs, strict=True):
                files = (
                    PlacedFile("data-0000.parquet", size_bytes, sha256, StoredBlob(nonce)),
                    PlacedFile(
                        PART_FILE,
                        entry.size_bytes,
                        entry.sha256,
                        StoredInPack(pack, entry.offset, entry.length, entry.compressed),
                    ),
                )
                partition = str(number % 100)
                placed.append(TreePart(f"{partition}_{number}_{number}_0", partition, "ssd", 1, files))
    table = _table(storage, placed)
    storage.put_header(_header(0, (table,)))


def _blob(storage: Storage, number: int) -> tuple[str, str, int]:
    data = b"%064d" % number
    digest, nonce = hashlib.sha256(data), names.fresh_nonce()
    key = names.content_key(names.BLOBS_PREFIX, digest.hexdigest(), nonce)
    storage.store.put(key, data, sha256=digest.digest())
    return digest.hexdigest(), nonce, len(data)


def _table(storage: Storage, placed: list[TreePart]) -> TableEntry:
    listed = list(partition_lists(placed))
    entries = tuple(
        PartitionEntry(
            one.partition, storage.put_content(names.LISTS_PREFIX, encoding.packed_list(one)), *totals(one.parts)
        )
        for one in listed
    )
    definition = bench_check.TABLE
    whole = TableList(definition=schema.encode(definition).decode(), partitions=entries)
    return TableEntry(
        name=definition.full_name,
        uuid=definition.uuid,
        list=storage.put_content(names.LISTS_PREFIX, encoding.packed_list(whole)),
        partitions=len(entries),
        parts=sum(entry.parts for entry in entries),
        rows=sum(entry.rows for entry in entries),
        files=sum(entry.files for entry in entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
    )


def _header(number: int, tables: tuple[TableEntry, ...]) -> BackupHeader:
    taken = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    return BackupHeader(
        id=names.fresh_nonce(),
        name=f"backup-{number:05d}",
        machine="bench-000000",
        host="bench",
        actor="bench",
        tool="0.1",
        taken=taken,
        completed=taken,
        tables=tables,
    )


def list_backups(count: int, rounds: int) -> list[Figure]:
    """`backup list` of so many backups, each verified once: the first time on a machine, and again."""
    with scratch() as directory, ceph() as server:
        home = Home(directory / "home", environment=server.environment())
        url = f"s3://{server.new_bucket()}/repository"
        home.backup("init", url)
        store = open_store(_config(server, url))
        storage = Storage.open(store)
        table = _table(storage, [])
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda number: _listed(storage, number, (table,) * 3), range(count)))
        store.close()
        runs: dict[str, list[Run]] = {"first": [], "again": []}
        for _ in range(rounds):
            shutil.rmtree(home.root / "state" / "backup", ignore_errors=True)
            for name, found in runs.items():
                found.append(home.backup("list", "--to", url))
                assert len(json.loads(found[-1].output)["backups"]) == count, name
    figures = []
    for name, at_most in (("first", 2.0), ("again", 0.5)):
        best = min(run.seconds for run in runs[name])
        processor = min(run.cpu_seconds for run in runs[name])
        label = f"backup list, {count:,} backups, {'the first time' if name == 'first' else 'again'}"
        figures.append(bound_figure(label, best, at_most=at_most, unit="s", detail=f"(processor {processor:.2f} s)"))
    return figures


def _listed(storage: Storage, number: int, tables: tuple[TableEntry, ...]) -> None:
    header = _header(number, tables)
    storage.put_header(header)
    time = header.taken + timedelta(hours=1)
    records.put(
        storage, VerificationRecord(backup=header.id, time=time, actor="bench", depth="quick", files=0, size_bytes=0)
    )


def _config(server: Server, url: str) -> ObjectDiskConfig:
    return server.disk(url if url.endswith("/") else f"{url}/")
