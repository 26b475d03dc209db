"""A write whose parts are uploaded before anybody knows of them, by one process or by the tasks of a cluster: where it
goes, and the one commit that brings all of its parts, or none.

What is to go in once (`once`) is marked by the same commit, whichever machine or session tries it again. Parts get
their block numbers at the commit, under the claim that keeps merges off numbers that are still on their way, as those
of an insert do. What the parts replace goes with it (`replaced`).
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk, with_commits
from disks.stores.address import StoreAddress
from oplog.errors import Conflict, NotFound, Refused
from oplog.kinds import Inserted
from tiering.catalog import blocks, reachability
from tiering.catalog.context import Context
from tiering.catalog.new_parts import INSERT_CLAIM, digests_claimed
from tiering.engine import replication
from tiering.engine.recovery import begin_disks
from tiering.insert.uploaded.once import OnceABatch, OnceAJob
from tiering.insert.uploaded.once_files import OnceFiles
from tiering.insert.uploaded.part_writer import WriteJob, WrittenPart, write_insert
from tiering.insert.uploaded.replaced import ATTEMPTS, check_replaceable, held_to_replace, parts_to_replace
from tiering.parquet.column_ranges import combine_ranges
from tiering.policy.placement import ordered_volumes
from tiering.table import part as parts_format
from tiering.table.columns.types import cast_batch
from tiering.table.part import PART_FILE, Part, PartName
from tiering.table.schema import TableDefinition
from tiering.table.transforms import partition_rows, partition_values_json

logger = logging.getLogger(__name__)


class WriteOptions(msgspec.Struct, frozen=True):
    """What a user asked for. Holds no secret."""

    table: str
    config: Path | None = None
    once: OnceAJob | OnceABatch | OnceFiles | None = None
    """None: to write it again appends it again."""
    replaces: Literal["nothing", "partitions", "table"] = "nothing"
    """What goes with the commit: the partitions that the rows are in, or all that there is."""
    gathers: int = 0
    """After the commit, so many small parts of a partition are merged; 0: none ever."""
    by: str = "Spark"
    """Who writes, for messages and the log."""


class WriteResult(msgspec.Struct, frozen=True):
    """What a commit did."""

    rows: int = 0
    parts: tuple[str, ...] = ()
    done_before: bool = False
    """The job is in the table already; nothing was committed."""
    replaced: tuple[str, ...] = ()
    """The parts that went."""
    bytes: int = 0
    disk: str = ""
    revision: int | None = None
    """The commit; None when there was none."""


def replacing(definition: TableDefinition) -> WriteOptions:
    """An insert of this process that takes the place of partitions."""
    return WriteOptions(definition.full_name, replaces="partitions", by="insert")


def begin(context: Context, options: WriteOptions) -> tuple[TableDefinition, WriteJob | None]:
    """The table and what the tasks need; None when the job is in the table already. Before the rows are read: what
    comes later is not replaced.

    Raises `Refused` when the table's policy has no bucket: tasks reach nothing else, and no undo does.
    """
    definition = context.catalog.table(options.table)
    _check(context, definition, options)
    disk = target(context, definition, options)
    if options.replaces != "nothing":
        disk.refresh()  # what is there now is to go, and what comes later is not
    if _is_done(disk, definition, options):
        return definition, None
    limits = context.config.limits
    shared = StoreAddress.of(
        context.config.bucket(disk.name),
        bytes_per_second=limits.bytes_per_second,
        requests_per_second=limits.requests_per_second,
    )
    return definition, WriteJob(
        store=shared,
        disk=disk.name,
        definition=definition,
        token=secrets.token_hex(8),
        revision=disk.revision or 0,
        began=time.time(),
    )


def is_nothing(options: WriteOptions, parts: Sequence[WrittenPart]) -> bool:
    """Whether there is nothing to commit: no rows, no mark, and nothing that goes."""
    has_mark = options.once is not None and not isinstance(options.once, OnceABatch)
    return not parts and not has_mark and options.replaces != "table"


def commit(context: Context, options: WriteOptions, job: WriteJob | None, parts: Sequence[WrittenPart]) -> WriteResult:
    """Commit the parts of all tasks at once. Raises `NotFound` when the table was dropped meanwhile, `Refused` when the
    uploads are so old that gc may have taken them, or what they replace is not what it was; nothing is committed then.
    """
    if job is None:
        return _told_done(options)
    if is_nothing(options, parts):
        return WriteResult()
    with ExitStack() as stack:
        definition = _same_table(context, job)
        _check(context, definition, options)
        begin_disks(context)
        disk = with_commits(context.disk(job.disk))
        if _is_done(disk, definition, options):
            return _told_done(options)
        size_bytes = sum(item.file.size_bytes for part in parts for item in part.files)
        stack.enter_context(context.reservations.reserve(disk.name, size_bytes))
        floor = blocks.first_free(context, definition)
        claim = f"{INSERT_CLAIM}{floor}-{secrets.token_hex(6)}"
        stack.enter_context(context.journal.claim(definition.uuid, [claim], "insert"))
        described = _described(context, definition, job, parts, floor)
        stack.enter_context(digests_claimed(context, definition, [(part.partition.id, part.digests) for part in parts]))
        for left in reversed(range(1 if options.replaces == "nothing" and options.once is None else ATTEMPTS)):
            try:
                revision, gone = _commit(context, disk, definition, options, job, described)
                break
            except Conflict:
                disk.refresh()
                if _is_done(disk, definition, options):
                    return _told_done(options)
                if not left:
                    raise
                _same_table(context, job)
        rows, names = sum(part.rows for part in parts), tuple(part.name for _, part in described)
        logger.info("%s rows in %s parts went into %s", rows, len(names), definition.full_name)
        return WriteResult(rows, names, False, gone, size_bytes, disk.name, revision)


def replace_partitions(
    context: Context,
    options: WriteOptions,
    job: WriteJob,
    batches: Iterable[pa.RecordBatch],
    *,
    dry_run: bool = False,
) -> WriteResult:
    """Write the rows in this process, and put them in the place of the partitions that they are in. A dry run reads
    them, and says what would go; it raises what would stop the write now."""
    if not dry_run:
        return commit(context, options, job, write_insert(batches, job))
    rows, partitions = 0, set[str]()
    for batch in batches:
        table = pa.Table.from_batches([cast_batch(batch, job.definition, first_row=rows)])
        partitions |= {found.id for found in partition_rows(table, job.definition)[1]} if table.num_rows else set()
        rows += table.num_rows
    context.catalog.refresh()
    found = parts_to_replace(context, job.definition, partitions)
    check_replaceable(with_commits(context.disk(job.disk)), job.definition, found, since=job.revision)
    return WriteResult(rows, replaced=tuple(sorted({stored.facts.name for stored in found})), disk=job.disk)


def _check(context: Context, definition: TableDefinition, options: WriteOptions) -> None:
    reachability.check_whole(context, definition, f"writing to {definition.full_name}")
    what = f"a write of {options.by} to" if options.replaces == "nothing" else "replacing partitions of"
    replication.refuse(definition, what, "insert the rows with 'frostline insert'")


def target(context: Context, definition: TableDefinition, options: WriteOptions) -> LoggedDisk:
    """The hottest bucket of the table's policy that can be written to. Raises `Refused` where there is none, and
    `DiskUnreachable` where there is one that does not answer now."""
    problems, silent = [], []
    for volume in ordered_volumes(context.config.policy(definition.policy)):
        for name in volume.disks:
            disk = as_disk(context.disk(name), LoggedDisk)
            if disk is None:
                problems.append(f"{name} is no bucket with a log of ours")
            elif disk.read_only:
                problems.append(f"{name} is read-only")
            elif disk.unreachable:
                silent.append(context.disk(name))
            else:
                return disk
    reachability.require(silent, f"a write of {options.by} to {definition.full_name}")
    what = f"{options.by} cannot write to" if options.replaces == "nothing" else "no undo would bring back rows of"
    raise Refused(
        f"{what} {definition.full_name}: policy {definition.policy} has no bucket for it: {'; '.join(problems)}",
        hint="add a volume with an object_disk, or use 'frostline insert', which writes to local disks",
    )


def _same_table(context: Context, job: WriteJob) -> TableDefinition:
    """The table as it is now, which must still be the one that the tasks wrote for."""
    try:
        return context.catalog.table(job.definition.uuid)
    except NotFound as error:
        raise NotFound(
            f"table {job.definition.full_name} was dropped while it was written to", hint="nothing was committed"
        ) from error


def _described(
    context: Context, definition: TableDefinition, job: WriteJob, parts: Sequence[WrittenPart], floor: int
) -> list[tuple[WrittenPart, Part]]:
    """The parts with their names: as many block numbers as the partition with most parts needs."""
    turns: Counter[str] = Counter()
    numbered = []
    for part in parts:
        numbered.append((part, turns[part.partition.id]))
        turns[part.partition.id] += 1
    first = blocks.allocate(context, definition, floor, max(turns.values(), default=1))
    found = []
    for part, turn in numbered:
        files = tuple(item.file for item in part.files)
        bytes_of = "".join(file.sha256 for file in files)
        made = Part(
            table=definition.uuid,
            name=str(PartName(part.partition.id, first + turn, first + turn, 0)),
            rows=part.rows,
            size_bytes=sum(file.size_bytes for file in files),
            created=context.clock(),
            partition_values=partition_values_json(part.partition.values),
            schema_version=job.definition.schema_version,
            files=files,
            columns=combine_ranges(files, job.definition),
            digests=_remembered(part, f"{job.token}{part.directory}{bytes_of}", definition),
        )
        found.append((part, made))
    return found


def _remembered(part: WrittenPart, own: str, definition: TableDefinition) -> tuple[str, ...]:
    """The digests of an insert's blocks, and where they are not all of the part's, one of this job alone: so nobody
    takes a part that has these for one that has all rows. A task of Spark that appends the same rows makes no mistake.
    """
    window = definition.settings.deduplication_window
    if 0 < len(part.digests) <= window:
        return part.digests
    alone = hashlib.sha256(own.encode()).hexdigest()
    return (alone, *part.digests[-window + 1 :]) if window > 1 else (alone,)


def _commit(
    context: Context,
    disk: LoggedDisk,
    definition: TableDefinition,
    options: WriteOptions,
    job: WriteJob,
    described: Sequence[tuple[WrittenPart, Part]],
) -> tuple[int | None, tuple[str, ...]]:
    """The revision, and the parts that it replaced. Raises `Conflict` when others changed what it was made from."""
    kind = Inserted(table=definition.full_name, tasks_began=int(job.began), job=options.once.id if options.once else "")
    with (
        ExitStack() as stack,
        disk.transaction(kind, reason=_reason(definition, options), actor=context.actor) as transaction,
    ):
        transaction.require(present=(definition.path,), absent=definition.barred_by)
        for written, part in described:
            for item in written.files:
                path = f"{written.directory}/{item.file.name}"
                transaction.uploaded(path, item.key, item.file.size_bytes, item.file.sha256, since=job.began)
            target = definition.part_directory(part.name)
            transaction.rename(written.directory, target)
            transaction.create(f"{target}/{PART_FILE}", parts_format.encode(part))
        if options.once is not None:
            rows = sum(part.rows for _, part in described)
            options.once.mark(transaction, disk, definition, rows, context.clock())
        gone: tuple[str, ...] = ()
        if options.replaces != "nothing":
            partitions = (
                {written.partition.id for written, _ in described} if options.replaces == "partitions" else None
            )
            held = held_to_replace(context, disk, definition, partitions, since=job.revision)
            old = stack.enter_context(held)
            for directory in old.directories:
                transaction.remove(directory)
            transaction.made_from(old.revision, [definition.directory])
            gone = old.names
        return transaction.commit(), gone


def _reason(definition: TableDefinition, options: WriteOptions) -> str:
    match options.replaces:
        case "partitions":
            return f"{options.by} replaced partitions of {definition.full_name}"
        case "table":
            return f"{options.by} replaced the rows of {definition.full_name}"
    return f"{options.by} wrote to {definition.full_name}"


def _is_done(disk: LoggedDisk, definition: TableDefinition, options: WriteOptions) -> bool:
    return options.once is not None and options.once.is_done(disk, definition)


def _told_done(options: WriteOptions) -> WriteResult:
    assert options.once is not None
    logger.warning("%s is in %s already: nothing was written", options.once.label, options.table)
    return WriteResult(done_before=True)
