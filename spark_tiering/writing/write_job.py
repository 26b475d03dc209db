"""A write of Spark on the driver's side: where it goes, and the one commit that brings all of its parts, or none.

What is to go in once (`once`) is marked by the same commit, whichever machine or session tries it again. Parts get
their block numbers at the commit, under the claim that keeps merges off numbers that are still on their way, as those
of an insert do.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Literal

from disks.base import LoggedDisk
from disks.stores.address import StoreAddress
from oplog.errors import Conflict, NotFound, Refused, UsageError
from oplog.kinds import Inserted
from restore.history import partitions
from spark_tiering.writing.gathering import gather
from spark_tiering.writing.once import Once, OnceAJob
from spark_tiering.writing.part_writer import WriteJob, WrittenPart
from spark_tiering.writing.replaced import ATTEMPTS, held_to_replace
from tiering.catalog import blocks, reachability
from tiering.catalog.context import Context
from tiering.catalog.new_parts import INSERT_CLAIM
from tiering.config.reading import load
from tiering.engine import replicated
from tiering.engine.recovery import begin_disks
from tiering.engine.store import Store
from tiering.parquet.column_ranges import combine_ranges
from tiering.policy.placement import ordered_volumes
from tiering.table import part as parts_format
from tiering.table.part import PART_FILE, Part, PartName
from tiering.table.schema import TableDefinition
from tiering.table.transforms import partition_values_json

logger = logging.getLogger(__name__)

_ACTOR = "spark"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a user asked for. Holds no secret."""

    table: str
    config: Path | None = None
    once: Once | None = None
    """None: to write it again appends it again."""
    replaces: Literal["nothing", "partitions", "table"] = "nothing"
    """What goes with the commit: the partitions that the rows are in, or all that there is."""
    gathers: int = 0
    """After the commit, so many small parts of a partition are merged; 0: none ever."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a commit did."""

    rows: int = 0
    parts: tuple[str, ...] = ()
    done_before: bool = False
    """The job is in the table already; nothing was committed."""
    replaced: tuple[str, ...] = ()
    """The parts that went."""


def write_options(given: Mapping[str, str], *, overwrite: bool = False) -> WriteOptions:
    """The options as Spark hands them over. Raises `UsageError` naming an unknown one, `Refused` to overwrite without
    being told what."""
    options = {name.lower(): value for name, value in given.items()}
    mode = options.pop("partitionoverwritemode", "")
    table = options.pop("path", "")
    if not table:
        raise UsageError("which table?", hint="df.write.format('frostline').mode('append').save('db.table')")
    known = ("config", "job_id")
    for name in options:
        if name not in known:
            nearest = get_close_matches(name, known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"the options are: {', '.join(known)}"
            raise UsageError(f"no such option: {name}", hint=hint)
    config = Path(options["config"]).expanduser() if options.get("config") else None
    job_id = options.get("job_id", "")
    return WriteOptions(
        table, config, OnceAJob(job_id) if job_id else None, _replaces(table, mode) if overwrite else "nothing"
    )


def _replaces(table: str, mode: str) -> Literal["partitions", "table"]:
    match mode.lower():
        case "dynamic":
            return "partitions"
        case "static":
            return "table"
        case "":
            raise Refused(
                f"mode 'overwrite' does not say which rows of {table} go",
                hint="option('partitionOverwriteMode', 'dynamic') replaces the partitions that the rows are in, "
                "'static' the whole table",
            )
    raise UsageError(f"option partitionOverwriteMode: expected dynamic or static, got {mode!r}")


def begin_job(options: WriteOptions) -> tuple[TableDefinition, WriteJob | None]:
    """The table and what the tasks need; None when the job is in the table already.

    Raises `Refused` when the table's policy has no bucket: executors reach nothing else.
    """
    with Store.open(load(options.config), actor=_ACTOR, recover=False) as store:
        return begin_in(store, options)


def begin_in(store: Store, options: WriteOptions) -> tuple[TableDefinition, WriteJob | None]:
    """The same in a store that is open."""
    definition = store.definition(options.table)
    reachability.check_whole(store.context, definition, f"writing to {definition.full_name}")
    replicated.refuse(definition, "a write of Spark to", "insert the rows with 'frostline insert'")
    disk = _target(store.context, definition)
    if options.replaces != "nothing":
        disk.refresh()  # what is there now is to go, and what comes later is not
    if _is_done(disk, definition, options):
        return definition, None
    limits = store.context.config.limits
    shared = StoreAddress.of(
        store.context.config.bucket(disk.name),
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


def commit_job(options: WriteOptions, job: WriteJob | None, parts: Sequence[WrittenPart]) -> WriteResult:
    """Commit the parts of all tasks at once. Raises `NotFound` when the table was dropped meanwhile, `Refused` when the
    uploads are so old that gc may have taken them, or what they replace is not what it was; nothing is committed then.
    """
    if job is None:
        return _told_done(options)
    if not parts and not isinstance(options.once, OnceAJob) and options.replaces != "table":
        return WriteResult()
    with Store.open(load(options.config), actor=_ACTOR) as store:
        result = commit_in(store, options, job, parts)
        if options.gathers:
            gather(store, options.table, result.parts, options.gathers)
        return result


def commit_in(store: Store, options: WriteOptions, job: WriteJob, parts: Sequence[WrittenPart]) -> WriteResult:
    """The same in a store that is open."""
    with ExitStack() as stack:
        definition = _same_table(store, job)
        reachability.check_whole(store.context, definition, f"writing to {definition.full_name}")
        replicated.refuse(definition, "a write of Spark to", "insert the rows with 'frostline insert'")
        begin_disks(store.context)
        disk = store.object_disk(job.disk)
        if _is_done(disk, definition, options):
            return _told_done(options)
        size_bytes = sum(item.file.size_bytes for part in parts for item in part.files)
        stack.enter_context(store.context.reservations.reserve(disk.name, size_bytes))
        floor = blocks.first_free(store.context, definition)
        claim = f"{INSERT_CLAIM}{floor}-{secrets.token_hex(6)}"
        stack.enter_context(store.context.journal.claim(definition.uuid, [claim], "insert"))
        described = _described(store.context, definition, job, parts, floor)
        for left in reversed(range(1 if options.replaces == "nothing" else ATTEMPTS)):
            try:
                gone = _commit(store.context, disk, definition, options, job, described)
                break
            except Conflict:
                disk.refresh()
                if _is_done(disk, definition, options):
                    return _told_done(options)
                if not left:
                    raise
                _same_table(store, job)
        result = WriteResult(sum(part.rows for part in parts), tuple(part.name for _, part in described), replaced=gone)
        logger.info("%s rows in %s parts went into %s", result.rows, len(result.parts), definition.full_name)
        return result


def drop_partition(table: str, partition: str, *, config: str | PathLike[str] | None = None) -> dict[str, int]:
    """As `restore.history.partitions.drop`: the revisions that did it, by disk."""
    with Store.open(load(Path(config).expanduser() if config else None), actor=_ACTOR) as store:
        return dict(partitions.drop(store.context, store.definition(table), partition).revisions)


def _target(context: Context, definition: TableDefinition) -> LoggedDisk:
    """The hottest bucket of the table's policy that can be written to."""
    problems = []
    for volume in ordered_volumes(context.config.policy(definition.policy)):
        for name in volume.disks:
            disk = context.disk(name).logged
            if disk is None:
                problems.append(f"{name} is no bucket with a log of ours")
            elif disk.read_only:
                problems.append(f"{name} is read-only")
            elif disk.unreachable:
                problems.append(disk.unreachable)
            else:
                return disk
    raise Refused(
        f"Spark cannot write to {definition.full_name}: policy {definition.policy} has no bucket for it: "
        f"{'; '.join(problems)}",
        hint="add a volume with an object_disk, or use 'frostline insert', which writes to local disks",
    )


def _same_table(store: Store, job: WriteJob) -> TableDefinition:
    """The table as it is now, which must still be the one that the tasks wrote for."""
    try:
        return store.definition(job.definition.uuid)
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
            # Of this job alone: to append the same rows again is no mistake here.
            digests=(hashlib.sha256(f"{job.token}{part.directory}{bytes_of}".encode()).hexdigest(),),
        )
        found.append((part, made))
    return found


def _commit(
    context: Context,
    disk: LoggedDisk,
    definition: TableDefinition,
    options: WriteOptions,
    job: WriteJob,
    described: Sequence[tuple[WrittenPart, Part]],
) -> tuple[str, ...]:
    """The parts that it replaced. Raises `Conflict` when others changed what it was made from."""
    kind = Inserted(table=definition.full_name, tasks_began=int(job.began), job=options.once.id if options.once else "")
    with (
        ExitStack() as stack,
        disk.transaction(kind, reason=_reason(definition, options), actor=context.actor) as transaction,
    ):
        transaction.require(present=(definition.path,))
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
        transaction.commit()
    return gone


def _reason(definition: TableDefinition, options: WriteOptions) -> str:
    match options.replaces:
        case "partitions":
            return f"Spark replaced partitions of {definition.full_name}"
        case "table":
            return f"Spark replaced the rows of {definition.full_name}"
    return f"Spark wrote to {definition.full_name}"


def _is_done(disk: LoggedDisk, definition: TableDefinition, options: WriteOptions) -> bool:
    return options.once is not None and options.once.is_done(disk, definition)


def _told_done(options: WriteOptions) -> WriteResult:
    assert options.once is not None
    logger.warning("%s is in %s already: nothing was written", options.once.label, options.table)
    return WriteResult(done_before=True)
