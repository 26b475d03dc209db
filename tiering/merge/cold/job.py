"""Merges of parts that lie in a bucket, in shards that run wherever a runner puts them.

The driver, which is an ordinary open store, claims the inputs, cuts the merge into shards, hands them to the runner and
adds up what comes back. Then one commit, which the bucket refuses when an input is not there any more, brings the
output and takes the inputs away. So an insert, a move, a drop or a second job at the same time costs at most the work
of one group; the inputs stay until their output is committed, and their objects until gc collects them. The order, for
each group, and what a crash at each point leaves:

    journal: claims, running    a record that recovery calls failed; the claims end with the process
    shards: uploads             objects that nothing names, for gc; a shard that died alone runs again
    driver: sums and HEADs      the same
    bucket: one commit          the output, and no inputs                                      <- the commit point
    journal: done               done

Groups are independent: each is committed as soon as it is done, and one that fails keeps no other from its end.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec

from disks.contracts.bucket_disk import BucketTransaction, LoggedDisk
from disks.kinds import as_disk
from disks.stores.base import ObjectStore
from disks.workers.progress import Task
from disks.workers.runner import OpensStore, Runner, threads
from oplog.errors import Conflict, Damaged, FrostlineError, NotFound, UsageError
from oplog.kinds import Merged
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.lineage import inputs_of
from tiering.config.units import counted
from tiering.merge.cold.shard_merge import MergeTask, ShardResult, merge_shard
from tiering.merge.cold.shards import InputFile, Shard, cut_shards
from tiering.merge.output import (
    MergeResult,
    check_counts,
    check_range,
    kept_rows,
    merged_part,
    next_name,
    recompression_level,
    recorded,
)
from tiering.merge.planning import holds_everything
from tiering.merge.request import SHARD_BYTES, ColdOptions, MergeRequest
from tiering.merge.selection import FailedGroup, MergePlan
from tiering.merge.stream import RowMerge
from tiering.parquet.sort_keys import stored_key
from tiering.table import part as parts_format
from tiering.table.part import PART_FILE, PartName
from tiering.table.schema import TableDefinition


class Workers(msgspec.Struct, frozen=True):
    """Who merges the shards."""

    runner: Runner
    store_of: Callable[[LoggedDisk], OpensStore]
    """How the shards reach a disk's bucket."""
    groups_in_flight: int = 2
    """Groups that are worked on at once: their inputs are claimed, and their outputs garbage until the commit."""
    merge: Callable[[MergeTask], ShardResult] = merge_shard

    @classmethod
    def of_this_process(cls, context: Context) -> Workers:
        """Merges in threads of this process, which `context.stop` ends."""

        def merge(task: MergeTask) -> ShardResult:
            return merge_shard(task, stop=context.stop)

        return cls(threads(2), _OpenStore, groups_in_flight=2, merge=merge)


class _OpenStore:
    """A disk's own store, with the limits that all of this process shares."""

    def __init__(self, disk: LoggedDisk) -> None:
        self._store = disk.store

    def open(self) -> ObjectStore:
        return self._store


class ColdMergeReport(msgspec.Struct):
    """What a job did, group by group."""

    merges: list[MergeResult] = msgspec.field(default_factory=list)
    failures: list[FailedGroup] = msgspec.field(default_factory=list)
    not_begun: list[MergePlan] = msgspec.field(default_factory=list)
    """Groups that were left when the job ended early: too many failed, or it was stopped."""
    shards: int = 0
    cpu_seconds: float = 0.0
    """Of the shards together."""
    peak_memory_bytes: int = 0
    """Of the process that needed most."""

    def left(self) -> list[MergePlan]:
        """The groups that were not merged."""
        return [*(failure.plan for failure in self.failures), *self.not_begun]


def merge_groups(
    context: Context,
    definition: TableDefinition,
    plans: Sequence[MergePlan],
    workers: Workers,
    request: MergeRequest,
    report: ColdMergeReport,
    *,
    clock_doubt: str = "",
) -> None:
    """Merge each group of parts into one part, largest first, and add to the report what happened. Never raises for a
    group: see `ColdMergeReport.failures`. `clock_doubt`: why the clock may be wrong; rows past their TTL stay then."""
    options = request.cold or ColdOptions()
    work = _ColdMerge(context, definition, workers, options, request.drop_deleted, report, clock_doubt)
    waiting = sorted(plans, key=lambda plan: -plan.size_bytes)
    what = f"merging {counted(len(waiting), 'group')} of {definition.full_name}"
    rows = sum(stored.facts.rows for plan in waiting for stored in plan.parts)
    most = options.max_failed_groups
    lock = threading.Lock()

    def begin(plan: MergePlan) -> None:
        with lock:
            over = most is not None and len(report.failures) > most
            if over or context.stop.is_set():
                report.not_begun.append(plan)
                return
        try:
            result = work.merge(plan, task)
        except (FrostlineError, OSError) as error:
            with lock:
                report.failures.append(FailedGroup(plan, _told(error, plan)))
            return
        with lock:
            report.merges.append(result)

    with (
        context.progress.task(what, items=rows, size_bytes=sum(plan.size_bytes for plan in waiting)) as task,
        ThreadPoolExecutor(max(1, workers.groups_in_flight), "merge-group") as pool,
    ):
        try:
            list(pool.map(begin, waiting))
        except BaseException:  # Ctrl-C, SIGTERM: what runs ends soon, and nothing of it is committed
            context.stop.set()
            raise
    context.catalog.refresh()


def _told(error: FrostlineError | OSError, plan: MergePlan) -> FrostlineError:
    """The error for the user: of a local disk that fails, what was being done."""
    if isinstance(error, FrostlineError):
        return error
    return FrostlineError(f"merging {counted(len(plan.parts), 'part')} of partition {plan.partition}: {error}")


def shards_of(
    context: Context, definition: TableDefinition, plan: MergePlan, *, shard_bytes: int = SHARD_BYTES
) -> list[Shard]:
    """How a group is cut, for any kind of workers. Reads no object."""
    return cut_shards(_input_files(context, definition, plan.parts), definition, shard_bytes=shard_bytes)


class _ColdMerge(msgspec.Struct):
    """What the groups of one job share."""

    context: Context
    definition: TableDefinition
    workers: Workers
    options: ColdOptions
    drop_deleted: bool
    report: ColdMergeReport
    clock_doubt: str = ""
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def merge(self, plan: MergePlan, task: Task) -> MergeResult:
        """One group, from its claim to its commit."""
        context, definition = self.context, self.definition
        started = time.monotonic()
        inputs = sorted(plan.parts, key=lambda stored: stored.name)
        output = next_name(context, definition, inputs)
        disk = _disk_of(context, inputs)
        with ExitStack() as stack:
            stack.enter_context(
                context.journal.claim(definition.uuid, [stored.facts.name for stored in inputs], "merge")
            )
            check_range(context, definition, inputs, output)
            results = stack.enter_context(recorded(context, definition, inputs, output, plan.reason))
            kind = Merged(inputs=inputs_of(stored.part for stored in inputs))
            transaction = stack.enter_context(disk.transaction(kind, reason=plan.reason, actor=context.actor))
            level = recompression_level(context, definition, inputs, output)
            shards = self._merged(plan, inputs, output, disk, level, task)
            results.append(self._committed(plan, inputs, output, transaction, shards, level, started))
        return results[0]

    def _merged(
        self,
        plan: MergePlan,
        inputs: list[StoredPart],
        output: PartName,
        disk: LoggedDisk,
        level: int,
        progress: Task,
    ) -> list[ShardResult]:
        """The results of all shards, in key order."""
        context, definition = self.context, self.definition
        store = self.workers.store_of(disk)
        shards = shards_of(context, definition, plan, shard_bytes=self.options.shard_bytes)
        forget = self.drop_deleted and holds_everything(context, definition, inputs)
        how = RowMerge(definition, None if self.clock_doubt else context.clock(), level, forget)
        tasks = [
            MergeTask(
                store=store,
                how=how,
                shard=shard,
                target=definition.part_directory(str(output)),
                revision=disk.revision,
            )
            for shard in shards
        ]
        results: dict[int, ShardResult] = {}

        def on_done(index: int, result: ShardResult) -> None:
            results[index] = result
            progress.advance(items=result.rows_read, size_bytes=shards[index].size_bytes)

        what = f"merge {counted(len(inputs), 'part')} of {definition.full_name} into {output}"
        self.workers.runner.run(self.workers.merge, tasks, title=what, on_done=on_done, stop=self.context.stop)
        ordered = [results[index] for index in range(len(tasks))]
        _check_keys(definition, shards, ordered, output)
        with self._lock:
            self.report.shards += len(ordered)
            self.report.cpu_seconds += sum(result.cpu_seconds for result in ordered)
            peak = max(result.peak_memory_bytes for result in ordered)
            self.report.peak_memory_bytes = max(self.report.peak_memory_bytes, peak)
        return ordered

    def _committed(
        self,
        plan: MergePlan,
        inputs: list[StoredPart],
        output: PartName,
        transaction: BucketTransaction,
        shards: list[ShardResult],
        level: int,
        started: float,
    ) -> MergeResult:
        """The one commit that brings the output and takes the inputs away. Raises `Conflict` when it cannot."""
        context, definition = self.context, self.definition
        if context.stop.is_set():
            raise Conflict(f"the merge into {output} was stopped", hint="it starts again later")
        uploaded = [item for shard in shards for item in shard.files]
        files = tuple(item.file for item in uploaded)
        rows_in = sum(stored.facts.rows for stored in inputs)
        read = sum(shard.rows_read for shard in shards)
        check_counts(definition, output, expected=rows_in, read=read, files=files)
        part = merged_part(context, definition, inputs, output, files, level=level)
        if part.rows:
            target = definition.part_directory(part.name)
            transaction.require(present=(definition.path,), absent=definition.barred_by)
            for item in uploaded:
                transaction.uploaded(f"{target}/{item.file.name}", item.key, item.file.size_bytes, item.file.sha256)
            transaction.create(f"{target}/{PART_FILE}", parts_format.encode(part))
        for stored in inputs:
            transaction.remove(stored.directory)
        transaction.commit()
        requests: Counter[str] = Counter()
        for shard in shards:
            requests.update(shard.requests)
        requests.update(HEAD=len(uploaded), PUT=1)
        return MergeResult(
            table=definition.full_name,
            partition=output.partition,
            inputs=tuple(stored.facts.name for stored in inputs),
            output=part.name if part.rows else None,
            rows_in=rows_in,
            rows_out=part.rows,
            bytes_in=sum(stored.facts.size_bytes for stored in inputs),
            bytes_out=part.size_bytes if part.rows else 0,
            seconds=round(time.monotonic() - started, 3),
            disk=inputs[0].disk,
            reason=plan.reason,
            shards=len(shards),
            requests=dict(requests),
            bytes_read=sum(shard.bytes_read for shard in shards),
            kept=kept_rows(definition, inputs, context.clock(), self.clock_doubt),
        )


def _check_keys(
    definition: TableDefinition, shards: Sequence[Shard], results: Sequence[ShardResult], output: PartName
) -> None:
    """That what each shard wrote lies within its range of keys, so that the files together are in order."""
    for shard, result in zip(shards, results, strict=True):
        for item in result.files:
            for group in item.file.row_groups:
                key = stored_key(group.first_key, definition)
                if key is not None and key not in shard.within:
                    raise Damaged(
                        f"shard {shard.number} of the merge into {output} returned {item.file.name}, which has keys "
                        "of another shard",
                        hint="the parts are unchanged; run the merge again",
                    )


def _disk_of(context: Context, inputs: Sequence[StoredPart]) -> LoggedDisk:
    names = {stored.disk for stored in inputs}
    disk = as_disk(context.disk(min(names)), LoggedDisk)
    if len(names) > 1 or disk is None:
        raise UsageError(
            f"not all in one bucket: the parts are on {', '.join(sorted(names))}",
            hint="move them to one object disk first, or merge them without --cold and --spark",
        )
    return disk


def _input_files(context: Context, definition: TableDefinition, parts: Sequence[StoredPart]) -> list[InputFile]:
    ordered = sorted(parts, key=lambda stored: stored.name)
    disk = _disk_of(context, ordered)
    found = []
    for order, stored in enumerate(ordered):
        for file in stored.part.files:
            path = stored.path(file.name)
            try:
                info = disk.stat(path)
            except NotFound as error:
                raise Conflict(
                    f"{stored.facts.name} is not on {disk.name} any more",
                    hint="check 'frostline parts' and plan again",
                ) from error
            if info.key is None:
                raise Damaged(f"{disk.name}:{path} has no object", hint="run 'frostline fsck'")
            current = stored.part.schema_version == definition.schema_version
            found.append(InputFile(info.key, f"{disk.name}:{path}", file, order, current))
    return found
