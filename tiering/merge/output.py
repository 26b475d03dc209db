"""What every merge has in common: the name and description of its output, what must hold before it begins and ends, and
its record in the journal. How the rows get there is in `tiering.merge.merger` and `tiering.merge.cold.job`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from oplog.errors import Conflict, Damaged, Locked, Refused, UsageError
from tiering.catalog import blocks
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.insertion_order import Followers
from tiering.catalog.lineage import is_lossless
from tiering.catalog.new_parts import first_block_on_its_way
from tiering.config.units import counted
from tiering.merge.planning import due_level, may_come_back, out_of_line
from tiering.parquet.column_ranges import combine_ranges
from tiering.policy import ttl
from tiering.table.part import DataFile, Part, PartName
from tiering.table.paths import highest_level
from tiering.table.schema import TableDefinition
from tiering.table.transforms import mended_values


class MergeResult(msgspec.Struct, frozen=True):
    """What a merge did. `output` is None when every row was past its TTL."""

    table: str
    partition: str
    inputs: tuple[str, ...]
    output: str | None
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    seconds: float
    disk: str = ""
    reason: str = ""
    shards: int = 1
    requests: dict[str, int] = msgspec.field(default_factory=dict)
    """To the bucket, by verb; empty where they were not counted."""
    bytes_read: int = 0
    """From the bucket; 0 where that was not counted."""
    kept: str = ""
    """Why rows that may be past their TTL stay; empty if none do."""


def kept_rows(definition: TableDefinition, inputs: Sequence[StoredPart], now: datetime, clock_doubt: str) -> str:
    """Why a merge keeps rows that may be past their TTL (`MergeResult.kept`). `clock_doubt`: why it deletes none."""
    if clock_doubt and any(ttl.may_have_due_rows(ttl.due_times(definition, stored.facts), now) for stored in inputs):
        return f"rows that may be past their TTL stay: {clock_doubt}"
    return ""


def next_name(context: Context, definition: TableDefinition, inputs: Sequence[StoredPart]) -> PartName:
    """The name of the part that covers the inputs, and that no part had before. Raises as `output_name`.

    The inputs of a merge come back only by an undo, a restore or an adopted disk, and these leave the level of what was
    made of them.
    """
    marks = (
        highest_level(disk.files_in(definition.directory, "levels-"))
        for disk in map(context.disk, context.catalog.policy_disks(definition))
    )
    name = output_name(inputs)
    return replace(name, level=max(name.level, 1 + max(marks, default=-1)))


def output_name(inputs: Sequence[StoredPart]) -> PartName:
    """The name of the part that covers the inputs. Raises `UsageError` for parts of several partitions."""
    names = [stored.name for stored in inputs]
    if len({name.partition for name in names}) != 1:
        raise UsageError(f"parts of several partitions cannot be merged: {', '.join(map(str, names))}")
    return PartName(
        names[0].partition,
        min(name.min_block for name in names),
        max(name.max_block for name in names),
        max(name.level for name in names) + 1,
        max(name.mutation for name in names),
    )


def check_range(context: Context, definition: TableDefinition, inputs: Sequence[StoredPart], output: PartName) -> None:
    """That the output will cover the inputs and nothing else, else `Locked`, `Refused` or `Conflict`.

    First the claims, then the disks: an insert that commits in between is seen by one of the two.
    """
    first = first_block_on_its_way(context.journal.claimed(definition.uuid))
    if first is not None and first <= output.max_block:
        raise Locked(
            f"an insert into {definition.full_name} may still bring block {first}, inside {output}",
            hint="try again when the insert is done",
        )
    wanted = {(stored.name, stored.disk) for stored in inputs}
    active = check_active(context, definition, inputs)
    between = [
        stored.facts.name
        for stored in active
        if (stored.name, stored.disk) not in wanted
        and stored.name.max_block >= output.min_block
        and stored.name.min_block <= output.max_block
    ]
    own = blocks.owned(context, definition)
    if not all(blocks.may_join(left.name, right.name, own) for left, right in pairwise(inputs)):
        raise Refused(
            f"parts between {inputs[0].part.name} and {inputs[-1].part.name} may be on another machine",
            hint="the machine that wrote them can merge them",
        )
    vanished = blocks.Vanished(context, definition)
    for left, right in pairwise(inputs):
        if (gone := vanished.between(left.name, right.name)) is not None:
            raise Refused(may_come_back(left, right, gone), hint="merge the parts on either side of it")
    if between:
        raise Conflict(
            f"the parts are not adjacent: {', '.join(between)} is between them",
            hint="merge adjacent parts only, else the rows in between would be lost",
        )
    followers = Followers.of(definition, active)
    for left, right in pairwise(inputs):
        if not followers.follows(left.name, right.name):
            raise Refused(out_of_line(left, right), hint=f"'frostline merge {definition.full_name} --adopt'")


def check_active(context: Context, definition: TableDefinition, inputs: Sequence[StoredPart]) -> list[StoredPart]:
    """The originals of the partition, as the disks have them now. Raises `Conflict` unless the inputs are among
    them."""
    context.catalog.refresh()
    partition = inputs[0].name.partition
    active = [stored for stored in context.catalog.originals(definition) if stored.name.partition == partition]
    missing = {(stored.name, stored.disk) for stored in inputs} - {(stored.name, stored.disk) for stored in active}
    if missing:
        gone = ", ".join(f"{name} on {disk}" for name, disk in sorted(missing))
        raise Conflict(f"not an active part any more: {gone}", hint="check 'frostline parts' and plan again")
    return active


@contextmanager
def recorded(
    context: Context, definition: TableDefinition, inputs: Sequence[StoredPart], output: PartName, reason: str
) -> Iterator[list[MergeResult]]:
    """Keeps the merge's record in the journal. The body puts its result into the list."""
    journal = context.journal
    record = journal.work.begin_merge(
        table=definition.full_name,
        table_uuid=definition.uuid,
        partition=output.partition,
        inputs=[stored.facts.name for stored in inputs],
        output=str(output),
        reason=reason,
        actor=context.actor,
        rows_in=sum(stored.facts.rows for stored in inputs),
    )
    results: list[MergeResult] = []
    try:
        yield results
        (result,) = results
    except BaseException as error:
        journal.work.set_merge(record, "failed", error=str(error) or type(error).__name__)
        raise
    journal.work.set_merge(
        record,
        "done",
        rows_in=result.rows_in,
        rows_out=result.rows_out,
        bytes_in=result.bytes_in,
        bytes_out=result.bytes_out,
        seconds=result.seconds,
    )


def check_counts(
    definition: TableDefinition, output: PartName, *, expected: int, read: int, files: Sequence[DataFile]
) -> None:
    """That every input row was read, and none was lost or invented. Raises `Damaged`."""
    out = sum(file.rows for file in files)
    if read != expected or out > read or (is_lossless(definition) and out != read):
        raise Damaged(
            f"the merge into {output} read {read} of {counted(expected, 'row')} and wrote {out}",
            hint="run 'frostline fsck'; the parts are unchanged",
        )


def recompression_level(
    context: Context, definition: TableDefinition, inputs: Sequence[StoredPart], output: PartName
) -> int:
    """The zstd level of the recompression rule that is due for everything here; 0 for the table's own."""
    columns = combine_ranges([file for stored in inputs for file in stored.part.files], definition)
    rows = sum(stored.facts.rows for stored in inputs)
    whole = Part(
        table=definition.uuid,
        name=str(output),
        rows=rows,
        size_bytes=0,
        created=context.clock(),
        columns=columns,
    )
    return due_level(definition, whole, context.clock())[0]


def merged_part(
    context: Context,
    definition: TableDefinition,
    inputs: Sequence[StoredPart],
    output: PartName,
    files: tuple[DataFile, ...],
    *,
    level: int,
    replacing: bool = False,
    inserted: tuple[int, int] | None = None,
) -> Part:
    """The description of the output. `replacing`: it names its inputs, which its block range does not cover.
    `inserted`: the blocks that its rows count as inserted under; None: those of the inputs."""
    window = definition.settings.deduplication_window
    digests = [digest for stored in inputs for digest in stored.part.digests]
    replaced = [name for stored in inputs for name in stored.facts.replaces]
    columns = combine_ranges(files, definition)
    if replacing:
        replaced += [stored.facts.name for stored in inputs]
    first, last = zip(*(stored.inserted for stored in inputs), strict=True)
    inserted = inserted or (min(first), max(last))
    return Part(
        table=definition.uuid,
        name=str(output),
        rows=sum(file.rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        created=context.clock(),
        partition_values=mended_values(inputs[0].part.partition_values, columns, definition),
        schema_version=definition.schema_version,
        files=files,
        columns=columns,
        digests=tuple(digests[-window:] if window else ()),
        sources=tuple(stored.facts.name for stored in inputs),
        replaces=tuple(replaced),
        compression_level=level,
        inserted=msgspec.UNSET if inserted == (output.min_block, output.max_block) else inserted,
    )
