"""Data files of parts from somewhere else come into a table unchanged: none of their rows is sorted or written
again. Each becomes one part, by the steps of an insert.

What part.json says of a file is found by reading it whole. Which files fit is narrow, for who reads parts trusts it:
the columns of the table by name, field id and type, rows in the table's order and of one partition, as in every file
that this program wrote for the table. Whatever else holds rows is inserted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from disks.effects import make_directory
from disks.local.copied import copy_file
from disks.system_errors import of_the_system
from oplog.errors import Conflict, NotFound, UsageError
from tiering.catalog.context import Context
from tiering.insert.inputs.source_parquet import BUFFER_BYTES, parquet_batches, runs_alike
from tiering.insert.insert import How, Inserting, InsertResult, NewPart, make_ready
from tiering.insert.row_blocks import row_digest
from tiering.parquet.column_ranges import FileRanges, grouped_columns, key_json
from tiering.parquet.part_files import row_group_of
from tiering.parquet.sections import MAGIC, crc32_of
from tiering.parquet.sorting import is_sorted
from tiering.table.columns.nested_ids import has_ids_of
from tiering.table.columns.sound_values import unreadable_rows
from tiering.table.columns.types import arrow_schema, field_ids
from tiering.table.part import DataFile, Part, PartName, RowGroup
from tiering.table.schema import TableDefinition
from tiering.table.transforms import Partition, partition_rows

_FILE_NAME = "data-0000.parquet"
_HASHED_BYTES = 1024 * 1024


class FittingFile(msgspec.Struct, frozen=True):
    """A file that becomes a part as it is."""

    path: Path
    partition: Partition
    file: DataFile
    digest: str
    """Of its rows, where an insert could have made one block of them; else of its bytes."""
    of: Part | None = None
    """The part that a drop took away, of which this is a file."""


def attach_files(
    context: Context, definition: TableDefinition, files: Sequence[FittingFile], how: How | None = None
) -> InsertResult:
    """Take in files that were looked at, one after the other; the files themselves stay. What is in the table already,
    by its rows or as the same file of a part, is counted as a duplicate.

    Raises what an insert does, and `Conflict` for a file that is another one than was looked at.
    """
    company = make_ready(context, definition, how)
    with context.progress.task(f"attaching files to {definition.full_name}") as task:
        run = (how or Inserting)(context, definition, task, company)
        for file in files:
            with ExitStack() as claimed:
                _take_in(run, file, run.take_number(claimed))
        run.finish()
        return run.result()


def taken_back(fitting: FittingFile, part: Part, number: int) -> FittingFile:
    """The file, the `number`-th of a part that was dropped, known by that: what was inserted with the same rows before
    the drop does not keep it out, and another copy of the part does."""
    digest = hashlib.sha256(f"{number} {fitting.file.sha256} of {part.name} {part.created.isoformat()}".encode())
    return msgspec.structs.replace(fitting, digest=digest.hexdigest(), of=part)


def to_attach(definition: TableDefinition, files: Sequence[FittingFile]) -> InsertResult:
    """What would go in, if nothing of it is there."""
    rows, size_bytes = sum(one.file.rows for one in files), sum(one.file.size_bytes for one in files)
    return InsertResult(definition.full_name, rows=rows, bytes=size_bytes)


def look_at(path: Path, definition: TableDefinition, most_decoded_bytes: int) -> FittingFile:
    """What part.json would say of the file. Raises `NotFound`, and `UsageError` for one that does not fit, or whose
    pages take more memory than that."""
    try:
        with (
            path.open("rb") as opened,
            pq.ParquetFile(opened, page_checksum_verification=True, pre_buffer=False, buffer_size=BUFFER_BYTES) as file,
        ):
            return _looked_at(path, definition, opened, file, most_decoded_bytes)
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}", hint="give the data files of parts, or a partition") from error
    except (pa.ArrowException, OSError) as error:
        raise of_the_system(error, path) or UsageError(
            f"{path} cannot be read as Parquet: {error}", hint="nothing was changed"
        ) from error


def _looked_at(
    path: Path, definition: TableDefinition, opened: BinaryIO, file: pq.ParquetFile, most_decoded_bytes: int
) -> FittingFile:
    _check_columns(path, definition, file.schema_arrow)
    metadata, keys = file.metadata, definition.order_by
    if not metadata.num_rows:
        raise UsageError(f"{path} has no rows", hint="there is nothing to attach")
    groups: list[RowGroup] = []
    found, last = None, arrow_schema(definition).empty_table().select(keys)
    ranges, kept = FileRanges(definition), metadata.num_rows <= definition.settings.insert_block_rows
    held: list[pa.Table] = []
    held_bytes = 0
    for number in filter(lambda number: metadata.row_group(number).num_rows, range(metadata.num_row_groups)):
        first_key, of_group = None, FileRanges(definition, grouped_columns(definition))
        for rows in _rows(path, opened, file, number, most_decoded_bytes):
            _check_texts(path, rows)
            _, partitions = partition_rows(rows, definition)
            if len({one.id for one in partitions} | ({found.id} if found else set())) > 1:
                raise _unfit(path, definition, "holds rows of several partitions")
            found = partitions[0]
            if not is_sorted(pa.concat_tables([last, rows.select(keys)]), keys):
                raise _unfit(path, definition, f"is not sorted by {', '.join(keys)}")
            last = rows.select(keys).slice(rows.num_rows - 1)
            ranges.add(rows)
            of_group.add(rows)
            held_bytes += rows.nbytes
            kept = kept and held_bytes <= most_decoded_bytes
            held = [*held, rows] if kept else []
            if first_key is None:
                first_key = tuple(key_json(rows.column(name)[0]) for name in keys)
        assert first_key is not None
        groups.append(row_group_of(metadata.row_group(number), first_key, of_group.result(), opened))
    _check_layout(path, definition, groups)
    end, size_bytes = groups[-1].offset_bytes + groups[-1].size_bytes, os.fstat(opened.fileno()).st_size
    sha256 = _sha256(opened)
    described = DataFile(
        name=_FILE_NAME,
        rows=metadata.num_rows,
        size_bytes=size_bytes,
        sha256=sha256,
        row_groups=tuple(groups),
        columns=ranges.result(),
        tail_crc32=crc32_of(opened, end, size_bytes - end),
    )
    assert found is not None
    partition = Partition(found.id, found.values, metadata.num_rows)
    digest = row_digest(pa.concat_tables(held), definition) if kept else sha256
    return FittingFile(path, partition, described, digest)


def _rows(
    path: Path, opened: BinaryIO, file: pq.ParquetFile, number: int, most_decoded_bytes: int
) -> Iterator[pa.Table]:
    """Of a row group, which may unpack to any size, in pieces that fit into memory."""
    for run in runs_alike(str(path), file, opened, range(number, number + 1), most_decoded_bytes):
        for batch in parquet_batches(file, opened, run):
            yield pa.Table.from_batches([batch])


def _check_columns(path: Path, definition: TableDefinition, schema: pa.Schema) -> None:
    wanted = arrow_schema(definition)
    if not field_ids(schema):
        raise _unfit(path, definition, "has no field ids: it was not written as a part")
    for field, column, defined in zip(schema, wanted, definition.columns, strict=False):
        if not field.equals(column):
            raise _unfit(path, definition, f"has {field.name} {field.type} where the table has {_text(column)}")
        if not has_ids_of(field.type, defined, definition):
            raise _unfit(path, definition, f"has other field ids within {field.name} than the table")
    if field_ids(schema) != field_ids(wanted) or len(schema) != len(wanted):
        raise _unfit(path, definition, "has other columns than the table")


def _check_texts(path: Path, rows: pa.Table) -> None:
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for chunk in column.chunks:
            if unreadable_rows(chunk, name, where=f"{path}: ", first_row=0):
                raise UsageError(
                    f"{path} has bytes in column {name} that are no UTF-8 text",
                    hint="'frostline insert' takes the other rows with --skip-bad-rows; nothing was changed",
                )


def _text(field: pa.Field) -> str:
    return f"{field.name} {field.type}{'' if field.nullable else ' not null'}"


def _check_layout(path: Path, definition: TableDefinition, groups: Sequence[RowGroup]) -> None:
    """Column chunks follow one another from the beginning on: so part.json says where each is."""
    place = len(MAGIC)
    for group in groups:
        if group.offset_bytes != place:
            raise _unfit(path, definition, "has something between its row groups")
        place += group.size_bytes


def _unfit(path: Path, definition: TableDefinition, why: str) -> UsageError:
    return UsageError(
        f"{path} {why}: it cannot become a part of {definition.full_name} unchanged",
        hint=f"'frostline insert {definition.full_name} FILE' takes its rows, with --rename-column A:B where a column "
        "has another name since; nothing was changed",
    )


def _sha256(opened: BinaryIO) -> str:
    opened.seek(0)
    digest = hashlib.sha256()
    while piece := opened.read(_HASHED_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def _take_in(run: Inserting, fitting: FittingFile, number: int) -> None:
    context, definition, size_bytes = run.context, run.definition, fitting.file.size_bytes
    outline = Part(
        table=definition.uuid,
        name=str(PartName("new", 0, 0, 0)),
        rows=fitting.file.rows,
        size_bytes=size_bytes,
        created=context.clock(),
        columns=dict(fitting.file.columns),
    )
    with ExitStack() as stack:
        reserved = context.reservations.for_insert(definition, size_bytes, outline, outline.created, first_turn=number)
        disk = stack.enter_context(reserved)
        transaction = stack.enter_context(run.begin_on(disk))
        directory = transaction.scratch() / f"{number}-0"
        new = NewPart(
            fitting.partition, fitting.file.rows, (fitting.file,), directory, disk, fitting.digest, _all_of(fitting)
        )
        if _is_there(run, fitting):
            run.count_duplicate(new)
            return
        make_directory(directory)
        descriptor, _, sha256 = copy_file(fitting.path, directory / _FILE_NAME)
        os.close(descriptor)
        if sha256 != fitting.file.sha256:
            raise Conflict(
                f"{fitting.path} was changed while it was attached", hint="attach it again when nothing writes to it"
            )
        run.put_in([new], {disk: transaction}, number)


def _all_of(fitting: FittingFile) -> Part | None:
    """The part that is back when this file is: its last one says so."""
    return fitting.of if fitting.of is not None and fitting.of.files[-1].sha256 == fitting.file.sha256 else None


def _is_there(run: Inserting, fitting: FittingFile) -> bool:
    """Whether a part of the table has this very file."""
    if fitting.of is not None:  # the same rows may have been inserted twice, each time as a part
        parts = run.context.catalog.partition(run.definition, fitting.partition.id)
        return any(fitting.digest in stored.part.digests for stored in parts)
    if not run.definition.settings.deduplication_window:
        return False
    parts = run.context.catalog.partition(run.definition, fitting.partition.id)
    return any(file.sha256 == fitting.file.sha256 for stored in parts for file in stored.part.files)
