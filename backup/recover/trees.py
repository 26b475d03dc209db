"""Directories that ClickHouse wrote come back as they were: every file with its bytes, on the disk of their name.

One transaction a directory: it is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from backup.format.header import BackupHeader, TreeEntry
from backup.format.lists import FileEntry, TreeList
from backup.recover.reading import BackupReader
from backup.recover.request import RestoredTable, RestoreRequest
from backup.storage import Storage
from disks.base import Disk, Transaction
from disks.contracts.bucket_disk import BucketDisk
from disks.kinds import as_disk
from disks.workers.parallel import in_parallel
from oplog.errors import AlreadyExists, NotFound
from oplog.kinds import Restored
from tiering.catalog.context import Context

_IN_MEMORY_BYTES = 16 * 1024 * 1024


def newest_trees(headers: Sequence[BackupHeader]) -> list[tuple[BackupHeader, TreeEntry]]:
    """Each directory once: what several machines saw of one bucket is in the backup of each."""
    found = {
        (tree.disk, tree.directory): (header, tree)
        for header in sorted(headers, key=lambda header: header.taken)
        for tree in header.trees
    }
    return [found[one] for one in sorted(found)]


def chosen_trees(
    headers: Sequence[BackupHeader], request: RestoreRequest
) -> tuple[list[tuple[BackupHeader, TreeEntry]], list[str]]:
    """Those that are meant, and a sentence where some are left out."""
    trees = newest_trees(headers)
    if trees and (request.schema_only or request.scope.partitions):
        what = "without their files" if request.schema_only else "by partitions"
        return [], [f"tables of ClickHouse are not restored {what}: they are left out"]
    return [(header, tree) for header, tree in trees if request.scope.has_tree(tree.name)], []


def check_trees(context: Context, trees: Sequence[tuple[BackupHeader, TreeEntry]]) -> None:
    """Raise `NotFound` for a disk that is not configured, `AlreadyExists` for a directory that is there."""
    for _, tree in trees:
        disk = context.disks.get(tree.disk)
        if disk is None or as_disk(disk, BucketDisk) is None:
            raise NotFound(
                f"{tree.directory} is ClickHouse's and was on disk {tree.disk}, which is no bucket here",
                hint=f"configure an empty bucket as disk {tree.disk} (log_format: 1), or leave it out (-t)",
            )
        if disk.list(tree.directory):
            raise AlreadyExists(
                f"disk {tree.disk} has {tree.directory} already",
                hint="nothing of ClickHouse's is replaced: restore it into an empty bucket, or leave it out (-t)",
            )


def restore_tree(
    storage: Storage, context: Context, reader: BackupReader, disk: Disk, header: BackupHeader, tree: TreeEntry
) -> None:
    """Bring one directory to the disk."""
    listed = storage.tree(tree)
    files = [file for part in listed.parts for file in part.files]
    source = f"backup {header.name} in {storage.name}"
    title = f"restoring {tree.directory}"
    with (
        context.journal.claim("tables", [tree.name], "restore table"),
        context.progress.task(title, items=len(files), size_bytes=tree.size_bytes) as task,
        disk.transaction(Restored(source=source), reason=f"restore from {source}", actor=context.actor) as transaction,
    ):

        def work(number: int) -> None:
            _create(reader, transaction, header, listed, files[number], number)
            task.advance(items=1, size_bytes=files[number].size_bytes)

        in_parallel(work, len(files), context.workers)
        transaction.commit()


def _create(
    reader: BackupReader, transaction: Transaction, header: BackupHeader, listed: TreeList, file: FileEntry, number: int
) -> None:
    path = f"{listed.directory}/{file.name}"
    if file.size_bytes <= _IN_MEMORY_BYTES:
        transaction.create(path, reader.read(header, listed, file), sha256=file.sha256)
    elif (there := reader.path_of(file)) is not None:
        transaction.create(path, there, sha256=file.sha256)
    else:
        scratch = transaction.scratch() / str(number)
        reader.download(header, listed, file, scratch)
        transaction.create(path, scratch, sha256=file.sha256)


def restored_tree(tree: TreeEntry) -> RestoredTable:
    """As the report shows it."""
    return RestoredTable(
        table=tree.name,
        source=tree.name,
        uuid=tree.name,
        parts=tree.parts,
        rows=0,
        files=tree.files,
        bytes=tree.size_bytes,
        disks={tree.disk: tree.parts},
        replaced=False,
    )
