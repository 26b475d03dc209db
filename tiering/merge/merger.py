"""Merges: several adjacent parts of a partition become one, in one transaction.

What is worth merging, `tiering.merge.planning` says; `merge` does it. The parts are claimed, checked against their
SHA-256, streamed through a sorted merge into the scratch directory of the target disk and counted; then one transaction
creates the new part and removes the inputs on that disk. Inputs on other disks follow in transactions of their own: the
new part covers them, so a crash in between leaves outdated copies and never a wrong answer. Merging never moves data to
a hotter volume.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from msgspec.structs import replace

from disks.effects import op
from disks.stores.base import ByteRange
from oplog.errors import Conflict, Damaged, FrostlineError, Locked, UsageError
from oplog.kinds import Merged
from tiering.catalog import blocks
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.catalog.insertion_order import InsertionOrder
from tiering.catalog.lineage import inputs_of
from tiering.catalog.new_parts import INSERT_CLAIM, first_block_on_its_way, stage_part
from tiering.config.units import counted
from tiering.merge.adoption import AdoptionPlan
from tiering.merge.output import (
    MergeResult,
    check_active,
    check_counts,
    check_range,
    kept_rows,
    merged_part,
    next_name,
    output_name,
    recompression_level,
    recorded,
)
from tiering.merge.planning import holds_everything
from tiering.merge.stream import RowMerge, merge_files
from tiering.parquet.sorted_input import SortedFile
from tiering.query.checked_parts import open_file, read_schema
from tiering.table.columns.types import field_ids
from tiering.table.merge_modes import depends_on_order
from tiering.table.part import RANGE_BLOCKS, DataFile, Part, PartName, range_of
from tiering.table.schema import TableDefinition

_FETCH_LIMIT_BYTES = 2 * 1024**3
"""Inputs in a bucket up to this size together are fetched and verified first; beyond it they are streamed."""
_FETCH_BYTES = 16 * 1024 * 1024


def merge(
    context: Context,
    definition: TableDefinition,
    parts: Sequence[StoredPart],
    *,
    reason: str,
    drop_deleted: bool = False,
    clock_doubt: str = "",
    agreed: Agreed | None = None,
) -> MergeResult:
    """Merge the parts, which are adjacent in their partition, into one. One part alone is rewritten. `drop_deleted`
    forgets deleted keys where the parts are all that there is of their partition. `clock_doubt`: why the clock may be
    wrong; rows past their TTL stay then. `agreed`: what several machines that make the same merge have in common.

    Raises `Locked` when a part is in use or an insert may still land between them, `Conflict` when the parts are not
    what is stored any more, `Damaged` for an input whose bytes are not what was written, `NoSpace`; nothing changes.
    """
    if not parts:
        raise UsageError("nothing to merge", hint="name at least one part")
    started = time.monotonic()
    inputs = sorted(parts, key=lambda stored: stored.name)
    output = next_name(context, definition, inputs) if agreed is None else agreed.output
    approve = agreed.approve if agreed is not None else None
    with context.journal.claim(definition.uuid, [stored.facts.name for stored in inputs], "merge"):
        check_range(context, definition, inputs, output)
        on = agreed.on if agreed is not None else ""
        merge = _Merge(
            context,
            definition,
            inputs,
            output,
            reason,
            drop_deleted=drop_deleted,
            clock_doubt=clock_doubt,
            approve=approve,
            on=on,
        )
        return merge.run(started)


def adopt(
    context: Context, definition: TableDefinition, plans: Sequence[AdoptionPlan], *, clock_doubt: str = ""
) -> list[MergeResult]:
    """Rewrite the parts of each plan as one part under a block number of this machine. The plans are all of one
    partition, and in the order of inserts. The last comes first, so that what is older never gets the higher number.

    Safe whether those machines are gone or not: one transaction takes the parts away and brings their rows back, the
    new part names exactly what it replaces, and covers no number that a part elsewhere may have. Raises as `merge`.
    """
    inputs = [stored for plan in plans for stored in plan.parts]
    with ExitStack() as stack:
        names = [stored.facts.name for stored in inputs]
        stack.enter_context(context.journal.claim(definition.uuid, names, "merge"))
        floor = _first_after(context, definition, inputs)
        on_its_way = f"{INSERT_CLAIM}{floor}-{uuid.uuid4().hex[:12]}"
        stack.enter_context(context.journal.claim(definition.uuid, [on_its_way], "merge"))
        number = blocks.allocate(context, definition, floor, len(plans))
        _check_later(context, definition, inputs, check_active(context, definition, inputs))
        results = []
        for plan, block in reversed(list(zip(plans, range(number, number + len(plans)), strict=True))):
            started, members = time.monotonic(), list(plan.parts)
            output = replace(output_name(members), min_block=block, max_block=block)
            inserted = (block, block) if plan.as_newest else plan.inserted
            merge = _Merge(
                context,
                definition,
                members,
                output,
                plan.reason,
                replacing_on=members[0].disk,
                inserted=inserted,
                clock_doubt=clock_doubt,
            )
            results.append(merge.run(started))
    return results[::-1]


def _first_after(context: Context, definition: TableDefinition, inputs: Sequence[StoredPart]) -> int:
    """The first number for what is rewritten. Where the order of inserts counts its range is one that was taken after
    all of that was inserted: so this machine's later inserts come after it, too."""
    floor, own = blocks.first_free(context, definition), blocks.owned(context, definition)
    order = InsertionOrder(context, definition)
    foreign = [stored for stored in inputs if range_of(stored.name.max_block) not in own]
    if not depends_on_order(definition) or all(order.came_before(stored, range_of(floor)) for stored in foreign):
        return floor
    return blocks.take_range(context, definition) * RANGE_BLOCKS + 1


def _check_later(
    context: Context, definition: TableDefinition, inputs: Sequence[StoredPart], active: Sequence[StoredPart]
) -> None:
    """That nothing came since the plan whose place it does not know: else `Locked` or `Conflict`. First the claims,
    then the disks."""
    if not depends_on_order(definition):
        return
    first = first_block_on_its_way(context.journal.claimed(definition.uuid))
    if first is not None and range_of(first) < max(range_of(stored.inserted[1]) for stored in inputs):
        raise Locked(
            f"an insert into {definition.full_name} is running, and its position in the order is not known yet",
            hint="try again when the insert is done",
        )
    oldest, known = min(stored.inserted for stored in inputs), {(stored.name, stored.disk) for stored in inputs}
    for stored in active:
        if (stored.name, stored.disk) not in known and stored.inserted > oldest:
            raise Conflict(f"{stored.facts.name} came meanwhile", hint="run it again")


class Agreed(msgspec.Struct, frozen=True):
    """A merge that others make as well, by the same clock: the context's stands still."""

    output: PartName
    approve: Callable[[Part], None]
    """Called with the output before it is committed; raises when it is not what the others have."""
    on: str = ""
    """The disk on which the output takes the place of the inputs, which all lie there; else where merges go."""


class _Merge(msgspec.Struct):
    """One merge in progress."""

    context: Context
    definition: TableDefinition
    inputs: list[StoredPart]
    output: PartName
    reason: str
    inserted: tuple[int, int] | None = None
    """The blocks that the rows count as inserted under; None: those of the inputs."""
    replacing_on: str = ""
    """The disk on which the output, whose range does not cover the inputs, takes their place; else empty."""
    drop_deleted: bool = False
    clock_doubt: str = ""
    """Why the clock may be wrong: rows past their TTL stay then."""
    approve: Callable[[Part], None] | None = None
    on: str = ""
    """The disk for the output, whatever disk merges go to."""

    def run(self, started: float) -> MergeResult:
        """Carry the merge out, with its record in the journal."""
        with recorded(self.context, self.definition, self.inputs, self.output, self.reason) as results:
            results.append(self._run(started))
        return results[0]

    def _run(self, started: float) -> MergeResult:
        context, definition = self.context, self.definition
        bytes_in = sum(stored.facts.size_bytes for stored in self.inputs)
        rows_in = sum(stored.facts.rows for stored in self.inputs)
        sources = {stored.disk for stored in self.inputs}
        with ExitStack() as stack:
            disk = self.replacing_on or self.on
            if disk:  # the inputs leave and the output comes in one transaction, so on one disk
                stack.enter_context(context.reservations.reserve(disk, bytes_in))
            else:
                disk = stack.enter_context(context.reservations.for_merge(definition, sources, bytes_in))
            what = f"merging {counted(len(self.inputs), 'part')} of {definition.full_name}"
            task = stack.enter_context(context.progress.task(what, items=rows_in, size_bytes=bytes_in))
            for name in sorted(sources):
                stack.enter_context(context.disk(name).read_lease())
            kind = Merged(inputs=inputs_of(stored.part for stored in self.inputs))
            transaction = stack.enter_context(
                context.disk(disk).transaction(kind, reason=self.reason, actor=context.actor)
            )
            scratch = transaction.scratch()
            directory = scratch / "merged"
            level = recompression_level(context, definition, self.inputs, self.output)

            def on_rows(rows: int) -> None:
                task.advance(items=rows)
                if context.stop.is_set():
                    raise Conflict(f"the merge into {self.output} was stopped", hint="it starts again later")

            forget = self.drop_deleted and holds_everything(context, definition, self.inputs)
            now = context.clock()
            how = RowMerge(definition, None if self.clock_doubt else now, level, forget)
            merged = merge_files(self._files(scratch / "fetched"), how, directory, scratch=scratch, on_rows=on_rows)
            check_counts(definition, self.output, expected=rows_in, read=merged.rows_read, files=merged.files)
            part = merged_part(
                context,
                definition,
                self.inputs,
                self.output,
                merged.files,
                level=level,
                replacing=bool(self.replacing_on),
                inserted=self.inserted,
            )
            if self.approve is not None:
                self.approve(part)
            if part.rows:
                stage_part(transaction, definition, part, directory)
            for stored in self.inputs:
                if stored.disk == disk:
                    transaction.remove(stored.directory)
            transaction.commit()
        self._remove_elsewhere(disk, part.name if part.rows else "")
        return MergeResult(
            table=definition.full_name,
            partition=self.output.partition,
            inputs=tuple(stored.facts.name for stored in self.inputs),
            output=part.name if part.rows else None,
            rows_in=rows_in,
            rows_out=part.rows,
            bytes_in=bytes_in,
            bytes_out=part.size_bytes if part.rows else 0,
            seconds=round(time.monotonic() - started, 3),
            disk=disk,
            reason=self.reason,
            kept=kept_rows(definition, self.inputs, now, self.clock_doubt),
        )

    def _remove_elsewhere(self, disk: str, output: str) -> None:
        """Remove the inputs on other disks. What fails stays as an outdated copy that recovery removes."""
        elsewhere: dict[str, list[StoredPart]] = defaultdict(list)
        for stored in self.inputs:
            if stored.disk != disk:
                elsewhere[stored.disk].append(stored)
        for name, group in elsewhere.items():
            with self.context.disk(name).transaction(
                Merged(merged_into=output), reason=f"merged into {self.output} on {disk}", actor=self.context.actor
            ) as transaction:
                for stored in group:
                    transaction.remove(stored.directory)
                transaction.commit()

    # -- inputs

    def _files(self, fetched: Path) -> list[SortedFile]:
        """Every data file of the inputs, verified where its bytes are near, in the order of their blocks."""
        files = [(number, stored, file) for number, stored in enumerate(self.inputs) for file in stored.part.files]
        paths = [self._local_path(stored, file) for _, stored, file in files]
        far = sum(file.size_bytes for (_, _, file), path in zip(files, paths, strict=True) if path is None)
        fetch_all = far <= _FETCH_LIMIT_BYTES

        def prepared(entry: tuple[int, StoredPart, DataFile], path: Path | None) -> SortedFile:
            number, stored, file = entry
            if path is not None:
                self._verify(path, stored, file)
            elif fetch_all:
                path = self._fetched(stored, file, fetched / f"{number}-{file.name}")
            source = path or partial(open_file, self.context, stored, file)
            return SortedFile(source, file, self._names(stored, file, path), number, _label(stored, file))

        with op("fs.mkdir", fetched):
            fetched.mkdir(parents=True)
        with ThreadPoolExecutor(max(2, min(self.context.workers, 8)), "merge-input") as pool:
            return list(pool.map(prepared, files, paths))

    def _local_path(self, stored: StoredPart, file: DataFile) -> Path | None:
        """Where the file lies on this machine; None when only its disk can read it."""
        location = self.context.disk(stored.disk).location(stored.path(file.name))
        scheme, _, rest = location.url.partition("://") if location is not None else ("", "", "")
        return Path(rest) if scheme == "file" else None

    def _fetched(self, stored: StoredPart, file: DataFile, target: Path) -> Path:
        """A verified copy of the file in the scratch directory."""
        disk, path = self.context.disk(stored.disk), stored.path(file.name)
        digest = hashlib.sha256()
        with op("fs.write", target), target.open("wb") as copy:
            for start in range(0, file.size_bytes, _FETCH_BYTES):
                piece = disk.read(path, ByteRange(start, min(start + _FETCH_BYTES, file.size_bytes)))
                digest.update(piece)
                copy.write(piece)
        if digest.hexdigest() != file.sha256:
            raise _altered(stored, file)
        return target

    def _verify(self, path: Path, stored: StoredPart, file: DataFile) -> None:
        with path.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
                raise _altered(stored, file)

    def _names(self, stored: StoredPart, file: DataFile, path: Path | None) -> dict[int, str]:
        """The file's columns by field id; parts of today's schema have today's names."""
        if stored.part.schema_version == self.definition.schema_version:
            return {column.id: column.name for column in self.definition.columns}
        return field_ids(pq.read_schema(path) if path is not None else read_schema(self.context, stored, file))


def _label(stored: StoredPart, file: DataFile) -> str:
    return f"{stored.disk}:{stored.path(file.name)}"


def _altered(stored: StoredPart, file: DataFile) -> FrostlineError:
    return Damaged(
        f"{_label(stored, file)} is not what was written: its SHA-256 differs from part.json",
        hint="run 'frostline fsck --read-data'; the part is left unchanged and not merged",
    )
