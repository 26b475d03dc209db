"""Writes what one task of Spark holds, or an insert that replaces partitions: sorted parts, uploaded under fresh keys,
which nothing names until the commit.

Rows are taken in blocks, each sorted and written to a scratch directory; at the end the blocks of a partition are
merged into one part. Memory is that of a block, however much a task holds. A task that fails, or runs twice, leaves
objects that gc collects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from disks.effects import op
from disks.host.scratch import task_scratch
from disks.stores.address import StoreAddress
from disks.stores.base import ObjectStore
from tiering.insert.row_blocks import row_blocks, row_digest
from tiering.parquet.encodings import choose_encodings
from tiering.parquet.part_files import write_part_files
from tiering.parquet.sorted_input import SortedFile
from tiering.parquet.sorted_merge import merged
from tiering.parquet.sorting import sorted_partitions
from tiering.parquet.uploads import UploadedFile, upload_files
from tiering.table.columns.types import cast_batch
from tiering.table.part import DataFile
from tiering.table.schema import TableDefinition
from tiering.table.transforms import Partition

_BLOCK_BYTES = 64 * 1024 * 1024
"""A block ends at this size in memory; sorting and writing it takes some four times as much."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What every task of a job needs."""

    store: StoreAddress
    disk: str
    definition: TableDefinition = field(repr=False)
    token: str
    """Names the job's uploads until its parts have names."""
    revision: int
    began: float
    """When, in seconds as `time.time`: no blob of the job is older."""


class WrittenPart(msgspec.Struct, frozen=True):
    """The rows of a partition that one task wrote."""

    partition: Partition
    rows: int
    files: tuple[UploadedFile, ...]
    directory: str
    """Where the files are said to lie until the part has its name: each blob carries it."""
    digests: tuple[str, ...] = ()
    """Of the blocks inside, by which an insert of the same rows knows them; none of what a task of Spark wrote."""


def write_parts(batches: Iterable[pa.RecordBatch], job: WriteJob, task: int, attempt: int) -> list[WrittenPart]:
    """Write and upload all rows. Raises `UsageError` naming the column and row of a value that does not fit."""
    return _write(_blocks(batches, job.definition, task), job, f"{task}-{attempt}", has_digests=False)


def write_insert(batches: Iterable[pa.RecordBatch], job: WriteJob) -> list[WrittenPart]:
    """The same in the blocks of an insert, whose digests the parts have."""
    return _write(row_blocks(batches, job.definition), job, "0-0", has_digests=True)


def _write(blocks: Iterable[pa.Table], job: WriteJob, task: str, *, has_digests: bool) -> list[WrittenPart]:
    scratch = task_scratch("frostline-write")
    try:
        runs: dict[str, list[_SortedFiles]] = defaultdict(list)
        for number, block in enumerate(blocks):
            for run in _written(block, job.definition, scratch.path / f"block-{number}", has_digests):
                runs[run.partition.id].append(run)
        found = (_merged(runs[name], job.definition, scratch.path / f"part-{name}") for name in sorted(runs))
        return [_uploaded(job.store.open(), job, run, task) for run in found]
    finally:
        scratch.remove()


class _SortedFiles(msgspec.Struct, frozen=True):
    """Sorted files of one partition in a directory."""

    partition: Partition
    files: tuple[DataFile, ...]
    directory: Path
    digests: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def _blocks(batches: Iterable[pa.RecordBatch], definition: TableDefinition, task: int) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    rows = held_rows = held_bytes = 0
    for batch in batches:
        pending.append(cast_batch(batch, definition, source=f"task {task}", first_row=rows))
        rows += batch.num_rows
        held_rows += batch.num_rows
        held_bytes += pending[-1].nbytes
        if held_rows >= definition.settings.insert_block_rows or held_bytes >= _BLOCK_BYTES:
            yield pa.Table.from_batches(pending)
            pending, held_rows, held_bytes = [], 0, 0
    if held_rows:
        yield pa.Table.from_batches(pending)


def _written(
    block: pa.Table, definition: TableDefinition, directory: Path, has_digests: bool
) -> Iterator[_SortedFiles]:
    """The block's rows by partition, below the directory, which is made here."""
    encodings = choose_encodings(block, definition)
    with op("fs.mkdir", directory):
        directory.mkdir()
    for partition, rows in sorted_partitions(block, definition):
        below = directory / partition.id
        with op("fs.mkdir", below):
            below.mkdir()
        files = write_part_files([rows], definition, below, encodings=encodings)
        yield _SortedFiles(partition, files, below, (row_digest(rows, definition),) if has_digests else ())


def _merged(runs: list[_SortedFiles], definition: TableDefinition, directory: Path) -> _SortedFiles:
    """All runs of a partition as one."""
    if len(runs) == 1:
        return runs[0]
    with op("fs.mkdir", directory):
        directory.mkdir()
    names = {column.id: column.name for column in definition.columns}
    sources = [
        SortedFile(run.directory / file.name, file, names, order, str(run.directory / file.name))
        for order, run in enumerate(runs)
        for file in run.files
    ]
    files = write_part_files(merged(sources, definition, directory), definition, directory)
    digests = tuple(digest for run in runs for digest in run.digests)
    return _SortedFiles(runs[0].partition, files, directory, digests)


def _uploaded(store: ObjectStore, job: WriteJob, run: _SortedFiles, task: str) -> WrittenPart:
    directory = f"{job.definition.directory}/incoming-{job.token}/{task}-{run.partition.id}"
    files = upload_files(store, run.files, run.directory, directory, revision=job.revision)
    return WrittenPart(run.partition, run.rows, files, directory, run.digests)
