"""Brings the parts of a table to their disks before the table exists there: nothing shows until `table.json` does.

A batch of parts is one transaction of one disk. What a killed restore had brought is there whole, and is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from backup.format.lists import FileEntry, InBucket
from backup.recover.plan import PlacedEntry, TablePlan
from backup.recover.reading import BackupReader
from disks.base import Disk, Transaction
from disks.contracts.bucket_disk import BucketTransaction, LoggedDisk
from disks.kinds import as_disk
from disks.stores.wrappers.wrapped import unwrapped
from disks.workers.parallel import in_parallel
from disks.workers.progress import Task
from oplog.errors import Damaged
from oplog.kinds import Restored
from oplog.replay import FileRow
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part
from tiering.table.schema import TableDefinition

_BATCH_BYTES = 1 << 30
_BATCH_PARTS = 500
_IN_MEMORY_BYTES = 16 * 1024 * 1024


class StagedPart(msgspec.Struct, frozen=True):
    """A part as it will be here."""

    placed: PlacedEntry
    directory: str
    part_bytes: bytes


def bring(
    context: Context, reader: BackupReader, plan: TablePlan, definition: TableDefinition, source: str, task: Task
) -> None:
    """Bring all parts of the plan to their disks. `source` names the backup, for the logs."""
    for disk_name in sorted({placed.disk for placed in plan.parts}):
        disk = context.disk(disk_name)
        for batch in _batches([placed for placed in plan.parts if placed.disk == disk_name]):
            staged = _all_staged(reader, batch, definition, context.workers)
            _bring_batch(context, reader, disk, staged, source, task)


def _all_staged(
    reader: BackupReader, batch: Sequence[PlacedEntry], definition: TableDefinition, workers: int
) -> list[StagedPart]:
    staged: dict[int, StagedPart] = {}

    def prepare(number: int) -> None:
        staged[number] = _staged(reader, batch[number], definition)

    in_parallel(prepare, len(batch), workers)
    return [staged[number] for number in range(len(batch))]


def _batches(parts: Sequence[PlacedEntry]) -> Iterator[list[PlacedEntry]]:
    batch: list[PlacedEntry] = []
    size_bytes = 0
    for placed in parts:
        batch.append(placed)
        size_bytes += placed.entry.size_bytes
        if size_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_PARTS:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _staged(reader: BackupReader, placed: PlacedEntry, definition: TableDefinition) -> StagedPart:
    """The part's `part.json`, which must say the same as the list; under the table's uuid here."""
    entry = placed.entry
    own = next(file for file in entry.files if file.name == PART_FILE)
    data = reader.read(placed.header, placed.partition, own)
    part = part_format.decode(data, path=f"{PART_FILE} of {entry.name} in the backup")
    named = {(file.name, file.size_bytes, file.sha256) for file in part.files}
    if part.name != entry.name or named != {
        (file.name, file.size_bytes, file.sha256) for file in entry.files if file is not own
    }:
        raise Damaged(
            f"{PART_FILE} of {entry.name} in the backup describes other files than the backup's list",
            hint="'frostline backup verify --read-data' shows more",
        )
    if part.table != definition.uuid:
        data = part_format.encode(_of_table(part, definition))
    return StagedPart(placed, definition.part_directory(entry.name), data)


def _of_table(part: Part, definition: TableDefinition) -> Part:
    return msgspec.structs.replace(part, table=definition.uuid)


def _bring_batch(
    context: Context, reader: BackupReader, disk: Disk, batch: list[StagedPart], source: str, task: Task
) -> None:
    wanted = [item for item in batch if not copying.is_complete(disk, item.directory, item.part_bytes)]
    there = len(batch) - len(wanted)
    if there:
        task.advance(items=there, size_bytes=sum(item.placed.entry.size_bytes for item in batch if item not in wanted))
    if not wanted:
        return
    files = [(item, file) for item in wanted for file in item.placed.entry.files]
    kind = Restored(source=source)
    with disk.transaction(kind, reason=f"restore from {source}", actor=context.actor) as transaction:
        if isinstance(transaction, BucketTransaction):
            here = ((item, file) for item, file in files if not _is_in_this_bucket(reader, disk, item.placed, file))
            transaction.reserve({f"{item.directory}/{file.name}": file.size_bytes for item, file in here})

        def work(number: int) -> None:
            item, file = files[number]
            _create(reader, disk, transaction, item, file, number)
            if file.name == PART_FILE:
                task.advance(items=1, size_bytes=item.placed.entry.size_bytes)

        in_parallel(work, len(files), context.workers)
        transaction.commit()


def _create(
    reader: BackupReader, disk: Disk, transaction: Transaction, staged: StagedPart, file: FileEntry, number: int
) -> None:
    path = f"{staged.directory}/{file.name}"
    placed = staged.placed
    if file.name == PART_FILE:
        transaction.create(path, staged.part_bytes)
    elif _is_in_this_bucket(reader, disk, placed, file):
        assert isinstance(file.at, InBucket)
        assert isinstance(transaction, BucketTransaction)
        transaction.adopt(FileRow(path, file.size_bytes, file.sha256, file.at.key, None, None, 0))
    elif file.size_bytes <= _IN_MEMORY_BYTES:
        transaction.create(path, reader.read(placed.header, placed.partition, file), sha256=file.sha256)
    elif (there := reader.path_of(file)) is not None:
        transaction.create(path, there, sha256=file.sha256)
    else:
        scratch = transaction.scratch() / str(number)
        reader.download(placed.header, placed.partition, file, scratch)
        transaction.create(path, scratch, sha256=file.sha256)


def _is_in_this_bucket(reader: BackupReader, disk: Disk, placed: PlacedEntry, file: FileEntry) -> bool:
    """Whether the object of a pinned file is one of the disk's own bucket, there and kept: then nothing is copied."""
    bucket = reader.bucket_of(placed.header, file)
    logged = as_disk(disk, LoggedDisk)
    if bucket is None or logged is None:
        return False
    return unwrapped(bucket).name == unwrapped(logged.store).name and reader.is_kept(placed.header, file)
