"""Merges: several adjacent parts of a partition become one, in one transaction.

What is worth merging, `tiering.merge_planning` says; `merge` does it. The parts are claimed, checked against their
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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from disks.effects import op
from disks.stores.base import ByteRange
from oplog.errors import Conflict, Damaged, FrostlineError, Locked, NotFound, Refused, UsageError
from tiering import blocks
from tiering.catalog import StoredPart
from tiering.column_ranges import combine_ranges
from tiering.context import Context
from tiering.filesystem import open_file, read_schema
from tiering.merge_planning import due_level
from tiering.merge_rows import combine_rows, live_rows
from tiering.new_parts import INSERT_CLAIM, first_block_on_its_way, stage_part
from tiering.parquet_file import PartFiles
from tiering.part import DataFile, Part, PartName
from tiering.schema import Delete, TableDefinition
from tiering.sorted_merge import SortedFile, merged
from tiering.types import field_ids

_FETCH_LIMIT_BYTES = 2 * 1024**3
"""Inputs in a bucket up to this size together are fetched and verified first; beyond it they are streamed."""
_FETCH_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MergeResult:
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


def merge(context: Context, definition: TableDefinition, parts: Sequence[StoredPart], *, reason: str) -> MergeResult:
    """Merge the parts, which are adjacent in their partition, into one. One part alone is rewritten.

    Raises `Locked` when a part is in use or an insert may still land between them, `Conflict` when the parts are not
    what is stored any more, `Damaged` for an input whose bytes are not what was written, `NoSpace`; nothing changes.
    """
    if not parts:
        raise UsageError("nothing to merge", hint="name at least one part")
    started = time.monotonic()
    inputs = sorted(parts, key=lambda stored: stored.name)
    output = _output_name(inputs)
    with context.journal.claim(definition.uuid, [stored.part.name for stored in inputs], "merge"):
        _check_range(context, definition, inputs, output)
        return _recorded(_Merge(context, definition, inputs, output, reason), started)


def adopt(context: Context, definition: TableDefinition, parts: Sequence[StoredPart], *, reason: str) -> MergeResult:
    """Rewrite parts of other machines, which lie on one disk, as one part under a block number of this machine.

    Safe whether those machines are gone or not: one transaction takes the parts away and brings their rows back, the
    new part names exactly what it replaces, and covers no number that a part elsewhere may have. Raises as `merge`.
    """
    (disk,) = {stored.disk for stored in parts}
    started = time.monotonic()
    inputs = sorted(parts, key=lambda stored: stored.name)
    with ExitStack() as stack:
        names = [stored.part.name for stored in inputs]
        stack.enter_context(context.journal.claim(definition.uuid, names, "merge"))
        floor = blocks.first_free(context, definition)
        on_its_way = f"{INSERT_CLAIM}{floor}-{uuid.uuid4().hex[:12]}"
        stack.enter_context(context.journal.claim(definition.uuid, [on_its_way], "merge"))
        number = blocks.allocate(context, definition, floor)
        _check_active(context, definition, inputs)
        output = replace(_output_name(inputs), min_block=number, max_block=number)
        return _recorded(_Merge(context, definition, inputs, output, reason, replacing_on=disk), started)


def _recorded(work: _Merge, started: float) -> MergeResult:
    """Carry the merge out, with its record in the journal."""
    journal = work.context.journal
    record = journal.begin_merge(
        table=work.definition.full_name,
        table_uuid=work.definition.uuid,
        partition=work.output.partition,
        inputs=[stored.part.name for stored in work.inputs],
        output=str(work.output),
        reason=work.reason,
        actor=work.context.actor,
    )
    try:
        result = work.run(started)
    except BaseException as error:
        journal.set_merge(record, "failed", error=str(error) or type(error).__name__)
        raise
    journal.set_merge(
        record,
        "done",
        rows_in=result.rows_in,
        rows_out=result.rows_out,
        bytes_in=result.bytes_in,
        bytes_out=result.bytes_out,
        seconds=result.seconds,
    )
    return result


def _output_name(inputs: Sequence[StoredPart]) -> PartName:
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


def _check_range(context: Context, definition: TableDefinition, inputs: Sequence[StoredPart], output: PartName) -> None:
    """That the output will cover the inputs and nothing else. First the claims, then the disks: an insert that commits
    in between is seen by one of the two."""
    first = first_block_on_its_way(context.journal.claimed(definition.uuid))
    if first is not None and first <= output.max_block:
        raise Locked(
            f"an insert into {definition.full_name} may still bring block {first}, inside {output}",
            hint="try again when the insert is done",
        )
    wanted = {(stored.name, stored.disk) for stored in inputs}
    between = [
        stored.part.name
        for stored in _check_active(context, definition, inputs)
        if (stored.name, stored.disk) not in wanted
        and stored.name.max_block >= output.min_block
        and stored.name.min_block <= output.max_block
    ]
    own = blocks.owned(context, definition)
    if not all(blocks.may_join(left.name, right.name, own) for left, right in pairwise(inputs)):
        raise Refused(
            f"parts between {inputs[0].part.name} and {inputs[-1].part.name} may lie on another machine",
            hint="the machine that wrote them can merge them",
        )
    if between:
        raise Conflict(
            f"the parts are not adjacent: {', '.join(between)} lies between them",
            hint="merge adjacent parts only, else the rows in between would be lost",
        )


def _check_active(context: Context, definition: TableDefinition, inputs: Sequence[StoredPart]) -> list[StoredPart]:
    """The active parts of the partition, as the disks have them now. Raises `Conflict` unless the inputs are among
    them."""
    context.catalog.refresh()
    partition = inputs[0].name.partition
    active = [stored for stored in context.catalog.parts(definition) if stored.name.partition == partition]
    missing = {(stored.name, stored.disk) for stored in inputs} - {(stored.name, stored.disk) for stored in active}
    if missing:
        gone = ", ".join(f"{name} on {disk}" for name, disk in sorted(missing))
        raise Conflict(f"not an active part any more: {gone}", hint="look at 'frostline parts' and plan again")
    return active


@dataclass(slots=True)
class _Merge:
    """One merge in progress."""

    context: Context
    definition: TableDefinition
    inputs: list[StoredPart]
    output: PartName
    reason: str
    replacing_on: str = ""
    """The disk on which the output, whose range does not cover the inputs, takes their place; else empty."""

    def run(self, started: float) -> MergeResult:
        context, definition = self.context, self.definition
        bytes_in = sum(stored.part.size_bytes for stored in self.inputs)
        rows_in = sum(stored.part.rows for stored in self.inputs)
        sources = {stored.disk for stored in self.inputs}
        with ExitStack() as stack:
            disk = self.replacing_on
            if disk:  # the inputs leave and the output comes in one transaction, so on one disk
                stack.enter_context(context.reservations.reserve(disk, bytes_in))
            else:
                disk = stack.enter_context(context.reservations.for_merge(definition, sources, bytes_in))
            what = f"merging {len(self.inputs)} parts of {definition.full_name}"
            task = stack.enter_context(context.progress.task(what, items=rows_in, size_bytes=bytes_in))
            for name in sorted(sources):
                stack.enter_context(context.disk(name).read_lease())
            transaction = stack.enter_context(
                context.disk(disk).transaction("merge", reason=self.reason, actor=context.actor)
            )
            scratch = transaction.scratch()
            directory = scratch / "merged"
            with op("fs.mkdir", directory):
                directory.mkdir(parents=True)
            count = _Counted()
            rows = live_rows(
                count.through(merged(self._files(scratch / "fetched"), definition, scratch)),
                definition,
                context.clock(),
            )
            level = self._level()
            files = PartFiles(directory, definition, compression_level=level or None)
            try:
                for table in combine_rows(rows, definition):
                    files.write(table)
                    task.advance(items=table.num_rows)
                    if context.stop.is_set():
                        raise Conflict(f"the merge into {self.output} was stopped", hint="it starts again later")
                written = files.finish()
            except BaseException:
                files.abandon()
                raise
            self._check_counts(rows_in, count.rows, written)
            part = self._part(written, level)
            if part.rows:
                stage_part(transaction, definition, part, directory)
            for stored in self.inputs:
                if stored.disk == disk:
                    transaction.remove(stored.directory)
            transaction.commit()
        self._remove_elsewhere(disk)
        return MergeResult(
            table=definition.full_name,
            partition=self.output.partition,
            inputs=tuple(stored.part.name for stored in self.inputs),
            output=part.name if part.rows else None,
            rows_in=rows_in,
            rows_out=part.rows,
            bytes_in=bytes_in,
            bytes_out=part.size_bytes if part.rows else 0,
            seconds=round(time.monotonic() - started, 3),
            disk=disk,
            reason=self.reason,
        )

    def _check_counts(self, expected: int, read: int, written: Sequence[DataFile]) -> None:
        out = sum(file.rows for file in written)
        deletes = any(isinstance(rule.action, Delete) for rule in self.definition.ttl)
        lossless = self.definition.merge_mode == "ordinary" and not deletes
        if read != expected or out > read or (lossless and out != read):
            raise Damaged(
                f"the merge into {self.output} read {read} of {expected} rows and wrote {out}",
                hint="run 'frostline fsck'; the parts are kept as they are",
            )

    def _level(self) -> int:
        """The zstd level of the recompression rule that is due for everything here; 0 for the table's own."""
        columns = combine_ranges([file for stored in self.inputs for file in stored.part.files], self.definition)
        rows = sum(stored.part.rows for stored in self.inputs)
        whole = Part(
            table=self.definition.uuid,
            name=str(self.output),
            rows=rows,
            size_bytes=0,
            created=self.context.clock(),
            columns=columns,
        )
        return due_level(self.definition, whole, self.context.clock())[0]

    def _part(self, files: tuple[DataFile, ...], level: int) -> Part:
        window = self.definition.settings.deduplication_window
        digests = [digest for stored in self.inputs for digest in stored.part.digests]
        replaced = [name for stored in self.inputs for name in stored.part.replaces]
        if self.replacing_on:
            replaced += [stored.part.name for stored in self.inputs]
        return Part(
            table=self.definition.uuid,
            name=str(self.output),
            rows=sum(file.rows for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            created=self.context.clock(),
            partition_values=self.inputs[0].part.partition_values,
            schema_version=self.definition.schema_version,
            files=files,
            columns=combine_ranges(files, self.definition),
            digests=tuple(digests[-window:] if window else ()),
            sources=tuple(stored.part.name for stored in self.inputs),
            replaces=tuple(replaced),
            compression_level=level,
        )

    def _remove_elsewhere(self, disk: str) -> None:
        """Remove the inputs on other disks. What fails stays as an outdated copy that recovery removes."""
        elsewhere: dict[str, list[StoredPart]] = defaultdict(list)
        for stored in self.inputs:
            if stored.disk != disk:
                elsewhere[stored.disk].append(stored)
        for name, group in elsewhere.items():
            with self.context.disk(name).transaction(
                "merge", reason=f"merged into {self.output} on {disk}", actor=self.context.actor
            ) as transaction:
                for stored in group:
                    transaction.remove(stored.directory)
                transaction.commit()

    # -- inputs

    def _files(self, fetched: Path) -> list[SortedFile]:
        """Every data file of the inputs, verified where its bytes are near, in the order of their blocks."""
        wanted = [(number, stored, file) for number, stored in enumerate(self.inputs) for file in stored.part.files]
        paths = [self._local_path(stored, file) for _, stored, file in wanted]
        far = sum(file.size_bytes for (_, _, file), path in zip(wanted, paths, strict=True) if path is None)
        fetch_all = far <= _FETCH_LIMIT_BYTES

        def prepared(item: tuple[int, StoredPart, DataFile], path: Path | None) -> SortedFile:
            number, stored, file = item
            if path is not None:
                self._verify(path, stored, file)
            elif fetch_all:
                path = self._fetched(stored, file, fetched / f"{number}-{file.name}")
            source = path or partial(open_file, self.context, stored, file)
            return SortedFile(source, file, self._names(stored, file, path), number, _label(stored, file))

        with op("fs.mkdir", fetched):
            fetched.mkdir(parents=True)
        with ThreadPoolExecutor(max(2, min(self.context.workers, 8)), "merge-input") as pool:
            return list(pool.map(prepared, wanted, paths))

    def _local_path(self, stored: StoredPart, file: DataFile) -> Path | None:
        """Where the file lies on this machine; None when only its disk can read it."""
        disk, path = self.context.disk(stored.disk), stored.path(file.name)
        try:
            place = disk.location(path)
        except NotFound:
            disk.stat(path)
            return None
        scheme, _, rest = place.url.partition("://")
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


class _Counted:
    """Counts the rows that pass."""

    def __init__(self) -> None:
        self.rows = 0

    def through(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self.rows += table.num_rows
            yield table


def _label(stored: StoredPart, file: DataFile) -> str:
    return f"{stored.disk}:{stored.path(file.name)}"


def _altered(stored: StoredPart, file: DataFile) -> FrostlineError:
    return Damaged(
        f"{_label(stored, file)} is not what was written: its SHA-256 differs from part.json",
        hint="run 'frostline fsck'; the part is kept as it is and not merged",
    )
