"""Merges one shard, from bucket to bucket: in this process, in a task of a Spark job, on whatever machine.

What it needs is in the item; it opens no configuration, keeps no state and commits nothing. The result says which
objects hold the rows; until the driver's commit names them they are garbage, and so is what a shard leaves that fails,
is killed or runs twice. Rows flow through a scratch directory on the local disk: memory is bounded whatever the size.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from disks.effects import op
from disks.host.scratch import task_scratch
from disks.stores.base import ByteRange, ObjectStore
from disks.stores.wrappers.metered import MeteredStore
from disks.system_errors import of_the_system
from disks.workers.runner import OpensStore
from oplog.errors import Conflict, Damaged
from tiering.merge.cold.shards import Shard, ShardFile
from tiering.merge.stream import RowMerge, merge_files
from tiering.parquet.sorted_input import SortedFile
from tiering.parquet.uploads import TRANSFERS, UploadedFile, upload_files
from tiering.policy.cost import RANGE_BYTES
from tiering.table.columns.types import field_ids


class MergeTask(msgspec.Struct, frozen=True):
    """One shard and all that its merge depends on: the same task gives the same rows wherever and whenever it runs."""

    store: OpensStore
    how: RowMerge
    shard: Shard
    target: str
    """The output's directory on the disk."""
    revision: int


class ShardResult(msgspec.Struct, frozen=True):
    """What a shard did. Times in seconds, memory as the highest of the process so far."""

    files: tuple[UploadedFile, ...]
    rows_read: int
    bytes_read: int
    requests: dict[str, int]
    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int


def merge_shard(task: MergeTask, *, stop: threading.Event | None = None) -> ShardResult:
    """Merge one shard. Setting `stop` ends it with `Conflict`.

    Raises `Damaged` for an input that is not what was written, `NotFound` for one that is gone, `NoSpace`.
    """
    started, cpu_started = time.monotonic(), time.process_time()
    store = MeteredStore(task.store.open())
    scratch = task_scratch("frostline-merge")

    def on_rows(rows: int) -> None:
        if stop is not None and stop.is_set():
            raise Conflict("the merge was stopped", hint="it starts again later")

    try:
        merged = merge_files(
            _fetched(store, task, scratch.path / "inputs"),
            task.how,
            scratch.path / "merged",
            scratch=scratch.path,
            within=task.shard.within,
            prefix=f"data-{task.shard.number:04d}",
            on_rows=on_rows,
        )
        on_rows(0)
        written = [file for file in merged.files if file.rows]
        uploaded = upload_files(store, written, scratch.path / "merged", task.target, revision=task.revision)
    finally:
        scratch.remove()
    return ShardResult(
        files=uploaded,
        rows_read=merged.rows_read,
        bytes_read=store.bytes_received,
        requests={verb: count for verb, count in store.counts().items() if count},
        seconds=time.monotonic() - started,
        cpu_seconds=time.process_time() - cpu_started,
        peak_memory_bytes=_peak_memory_bytes(),
    )


def _fetched(store: ObjectStore, task: MergeTask, directory: Path) -> list[SortedFile]:
    """Local copies of what the shard reads. A file of which only some row groups are read keeps its size, with a hole
    for the rest, so that its footer is right."""
    with op("fs.mkdir", directory):
        directory.mkdir(parents=True)
    columns = task.how.definition.columns

    def fetch(number: int) -> SortedFile:
        item = task.shard.files[number]
        path = directory / f"{number:05d}.parquet"
        _fetch(store, item, path)
        names = {column.id: column.name for column in columns} if item.current else _names(item, path)
        return SortedFile(path, item.file, names, item.order, item.label, item.row_groups)

    with ThreadPoolExecutor(TRANSFERS, "merge-fetch") as pool:
        return list(pool.map(fetch, range(len(task.shard.files))))


def _fetch(store: ObjectStore, shard_file: ShardFile, path: Path) -> None:
    digest = hashlib.sha256()
    with op("fs.write", path), path.open("wb") as copy:
        for byte_range in shard_file.ranges:
            copy.seek(byte_range.start)
            for start in range(byte_range.start, byte_range.stop, RANGE_BYTES):
                piece = store.get(shard_file.key, ByteRange(start, min(start + RANGE_BYTES, byte_range.stop)))
                digest.update(piece)
                copy.write(piece)
    if shard_file.row_groups is None and digest.hexdigest() != shard_file.file.sha256:
        raise Damaged(
            f"{shard_file.label} is not what was written: its SHA-256 differs from part.json",
            hint="run 'frostline fsck --read-data'; the part is left unchanged and not merged",
        )


def _names(shard_file: ShardFile, path: Path) -> dict[int, str]:
    """The columns of a file of an older schema, by field id."""
    try:
        return field_ids(pq.read_schema(path))
    except (OSError, ValueError) as error:
        raise of_the_system(error, path) or Damaged(
            f"{shard_file.label} cannot be read: {error}", hint="run 'frostline fsck'"
        ) from error


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
