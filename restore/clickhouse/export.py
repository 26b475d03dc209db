"""Export a disk as the local metadata that a ClickHouse server keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import BucketDisk, ClickHouseLogDisk, LoggedDisk
from disks.file_table.row_bytes import read_row
from disks.kinds import as_disk
from disks.workers.parallel import HERE, Askers
from oplog.clickhouse.metadata import VERSIONS
from oplog.clickhouse.replay import LogProblem
from oplog.errors import NotFound, UsageError
from oplog.log import UnknownLogFormat
from oplog.replay import FileRow
from restore.clickhouse.bucket import read_tree_of_bucket
from restore.clickhouse.findings import losses, sentences
from restore.clickhouse.lost import detach_lost
from restore.clickhouse.tree import is_plain, key_prefix, rows_of, write_tree

USUAL_VERSION = 3
"""What ClickHouse 22 to 25.8 write; all later ones read it."""
INLINE_VERSION = 4


class LostPartRow(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A whole part that has lost its name."""

    table: str
    source: str
    target: str


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    disk: str
    directory: str
    metadata_version: int
    revision: int | None
    files: int
    bytes: int
    written: int
    links: int
    unchanged: int
    lost_parts: list[LostPartRow]
    deleted_at_start: Sequence[str]
    losses: int
    notes: Sequence[str]


class ExportDocument(Exported, frozen=True, kw_only=True):
    """`clickhouse export --json`."""

    dry_run: bool


def export(
    disk: Disk,
    directory: Path,
    *,
    version: int | None = None,
    revision: int | None = None,
    prefix: str | None = None,
    dry_run: bool = False,
    askers: Askers = HERE,
) -> Exported:
    """Write the tree of the disk's files; what was done, as the command line shows it. Whole parts that have lost their
    name go to `detached/`: a server deletes what has a temporary one.

    A disk of ours gives its file table, or that of the revision; a bucket of ClickHouse's without local metadata here
    is read as its log tells. Raises `UsageError` for disks without objects and versions that do not exist, and what
    `write_tree` does.
    """
    if version is not None and version not in VERSIONS:
        raise UsageError(f"there is no metadata version {version}", hint="versions are 1 to 5")
    bucket = as_disk(disk, BucketDisk)
    if bucket is None:
        raise UsageError(f"disk {disk.name} is {disk.kind}: its files are no objects", hint="name a disk in a bucket")
    rows, at, findings = _rows(bucket, revision, askers)
    rows, lost, to_delete = detach_lost(rows, lambda row: read_row(bucket.store, row, disk=disk.name))
    inline = any(row.inline and not is_plain(row) for row in rows)
    chosen = version or (INLINE_VERSION if inline else USUAL_VERSION)
    before = key_prefix(bucket.store) if prefix is None else prefix
    written = write_tree(directory, rows, version=chosen, key_prefix=before, dry_run=dry_run, progress=askers.progress)
    return Exported(
        disk=disk.name,
        directory=str(directory),
        metadata_version=chosen,
        revision=at,
        files=written.files,
        bytes=written.bytes,
        written=written.written,
        links=written.linked,
        unchanged=written.unchanged,
        lost_parts=[LostPartRow(part.table, part.source, part.target) for part in lost],
        deleted_at_start=to_delete,
        losses=len(losses(findings)),
        notes=sentences(findings),
    )


def _rows(disk: BucketDisk, revision: int | None, askers: Askers) -> tuple[list[FileRow], int | None, list[LogProblem]]:
    """The files, their revision, and what is wrong with them."""
    clickhouse, logged = as_disk(disk, ClickHouseLogDisk), as_disk(disk, LoggedDisk)
    if logged is not None:
        try:
            if revision is None:
                return list(logged.file_table.rows()), logged.revision, []
            with closing(logged.table_at(revision)) as past:
                return list(past.rows()), revision, []
        except UnknownLogFormat:
            if not disk.read_only:
                raise
    elif clickhouse is not None and revision is None:
        known = clickhouse.known_rows()
        if known is not None:
            return [known[path] for path in sorted(known)], disk.revision, []
    tree = read_tree_of_bucket(disk.store, revision=revision, askers=askers)
    if not tree.files and tree.contents.objects == 0:
        raise NotFound(f"{disk.store.name} has no objects", hint="check the URL of the disk")
    return list(rows_of(tree.files.values())), tree.revision, tree.findings
