"""Reads a share of a scan: in a task of Spark, straight from the bucket, as Arrow batches.

What a task needs is in its share: the table's definition, where the files are, and how to reach the bucket. Row groups
come one after the other, the next being fetched while one is decoded, so that memory is a few row groups. Small files
are fetched many at once, and their rows cross to the JVM together.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from disks.stores.base import ObjectStore
from disks.system_errors import of_the_system
from oplog.errors import Damaged, FrostlineError, NotFound, Refused
from spark_tiering.arrow_types import conform
from spark_tiering.reading.blob_file import DAMAGE_HINT, WHOLE_BYTES, BlobFile, column_ranges, whole_file
from spark_tiering.reading.scan_planning import Piece
from tiering.parquet.checked_local import LocalRead, check_local
from tiering.parquet.column_ranges import leaf_keys, stated_ranges
from tiering.query.row_masks import row_mask
from tiering.table.columns.current_shape import current_values
from tiering.table.columns.type_texts import leaf_ranges
from tiering.table.columns.types import default_array, field_ids
from tiering.table.pruning import TRUE, Predicate, columns_of, rows_may_match
from tiering.table.schema import TableDefinition

BATCH_ROWS = 65_536
"""Rows that cross to the JVM at once: measured, smaller ones cost more there and larger ones gain nothing."""
_GROUP_BYTES = 8 * 1024 * 1024
"""Small row groups are fetched together, up to about this size; so are small files."""
_FILES_AT_ONCE = 16
"""That are fetched from a bucket while others are decoded."""


class Projection(msgspec.Struct, frozen=True):
    """What of the rows is wanted, and how Spark is to get it."""

    definition: TableDefinition
    columns: tuple[str, ...]
    schema: pa.Schema
    predicate: Predicate = TRUE
    truncate_nanoseconds: bool = False

    @property
    def needed(self) -> list[str]:
        """Columns to decode: those wanted and those that decide."""
        also = columns_of(self.predicate)
        return [column.name for column in self.definition.columns if column.name in also or column.name in self.columns]


def read_share(share: Sequence[Piece], projection: Projection, until: datetime) -> Iterator[pa.RecordBatch]:
    """The selected rows of the pieces. Raises `Damaged` or `NotFound` in the middle rather than leave rows out."""
    _spare_collections()
    yield from in_larger_batches(_of_pieces(share, projection, until))


def in_larger_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order; those of small neighbours in one batch, up to `BATCH_ROWS`: each has
    costs of its own, whatever it holds."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if pending and rows + batch.num_rows > BATCH_ROWS:
            yield _one(pending)
            pending, rows = [], 0
        pending.append(batch)
        rows += batch.num_rows
    if pending:
        yield _one(pending)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _of_pieces(share: Sequence[Piece], projection: Projection, until: datetime) -> Iterator[pa.RecordBatch]:
    with _Ahead(share, projection) as ahead:
        for piece in share:
            if datetime.now(UTC) >= until:
                raise Refused(
                    f"this data frame shows the table as it was, and that was kept until {until.isoformat()}",
                    hint="load it again; option('lease', '2d') keeps it longer",
                )
            try:
                yield from _read_piece(piece, projection, ahead)
            except NotFound as error:
                raise Damaged(f"{piece.label} is gone: {error.message}", hint="run 'frostline fsck'") from error
            except FileNotFoundError as error:
                raise NotFound(f"{piece.label} is gone from this machine", hint="load the data frame again") from error
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, FrostlineError):
                    raise
                raise of_the_system(error, piece.label) or Damaged(
                    f"{piece.label} cannot be read: {error}", hint="run 'frostline fsck --read-data'"
                ) from error


class _Ahead:
    """Small files of a share that are read whole, fetched from a bucket before their turn: each is a request, whose
    answer takes longer than its bytes."""

    def __init__(self, share: Sequence[Piece], projection: Projection) -> None:
        self._projection = projection
        self._waiting = deque(piece for piece in share if self._is_small(piece)) if len(share) > 1 else deque()
        self._coming: deque[tuple[Piece, Future[pa.BufferReader]]] = deque()
        self._bytes = 0
        self._pool = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="files-ahead") if self._waiting else None

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _is_small(self, piece: Piece) -> bool:
        remote = piece.store is not None and not piece.store.config.url.startswith("file:")
        return remote and piece.size_bytes <= _GROUP_BYTES and _wants_all(piece, self._projection)

    def file(self, piece: Piece) -> pa.BufferReader:
        """The whole file, whose turn it is."""
        if self._pool is None or not self._is_small(piece):
            return _whole(piece, self._projection)
        while self._waiting and len(self._coming) < _FILES_AT_ONCE and self._bytes < _GROUP_BYTES:
            following = self._waiting.popleft()
            self._bytes += following.size_bytes
            self._coming.append((following, self._pool.submit(_whole, following, self._projection)))
        expected, coming = self._coming.popleft()
        assert expected is piece
        self._bytes -= piece.size_bytes
        return coming.result()


def _whole(piece: Piece, projection: Projection) -> pa.BufferReader:
    assert piece.store is not None
    return whole_file(piece.store.open(), piece.key, piece.sha256, _label(piece, projection))


@cache
def _spare_collections() -> None:
    """Spark's workers look for garbage after every task. In what has been imported there is none: 30 ms each time."""
    gc.freeze()


def _read_piece(piece: Piece, projection: Projection, ahead: _Ahead) -> Iterator[pa.RecordBatch]:
    if piece.store is None:
        yield from _from_local_file(piece, projection)
    elif _wants_all(piece, projection):
        with _opened(ahead.file(piece), projection) as file:
            yield from _batches(file, _numbers(file, piece, projection), projection)
    else:
        yield from _by_row_groups(piece.store.open(), piece, projection)


def _from_local_file(piece: Piece, projection: Projection) -> Iterator[pa.RecordBatch]:
    """Footer, then the columns of the row groups are compared with what was written before they are decoded."""
    _check_local(piece, projection, (), ())
    with _opened(pa.memory_map(piece.path), projection) as file:
        numbers = _numbers(file, piece, projection)
        names = _stored_names(file, projection).values()
        leaves = leaf_ranges(file.schema_arrow.types)
        columns = [leaf for name in names for leaf in leaves[file.schema_arrow.get_field_index(name)]]
        _check_local(piece, projection, columns, numbers)
        yield from _batches(file, numbers, projection)


def _check_local(piece: Piece, projection: Projection, columns: Collection[int], groups: Collection[int]) -> None:
    assert piece.file is not None
    check_local([LocalRead(Path(piece.path), piece.file, _label(piece, projection), DAMAGE_HINT, columns, groups)])


def _label(piece: Piece, projection: Projection) -> str:
    return f"{piece.label} of {projection.definition.full_name}"


def _opened(source: Any, projection: Projection, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """The file. Texts that it holds as dictionaries are read as such: to decode them a batch at a time takes a third
    less than to read them one by one. Its bytes are compared by the source that gives them."""
    first = pq.ParquetFile(source, metadata=metadata)
    names = set(_stored_names(first, projection).values())
    groups = [first.metadata.row_group(number) for number in range(first.metadata.num_row_groups)]
    encoded = [
        field.name
        for field in first.schema_arrow
        if field.name in names
        and (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
        and all(_has_dictionary(group, field.name) for group in groups)
    ]
    return pq.ParquetFile(source, metadata=first.metadata, read_dictionary=encoded)


def _has_dictionary(group: pq.RowGroupMetaData, name: str) -> bool:
    columns = (group.column(number) for number in range(group.num_columns))
    return any(column.path_in_schema == name and column.has_dictionary_page for column in columns)


def _wants_all(piece: Piece, projection: Projection) -> bool:
    """Whether one request for the whole file is the least work."""
    share = len(projection.needed) / max(len(projection.definition.columns), 1)
    return piece.size_bytes <= WHOLE_BYTES and piece.wanted_bytes * share >= piece.size_bytes * 0.6


def _by_row_groups(store: ObjectStore, piece: Piece, projection: Projection) -> Iterator[pa.RecordBatch]:
    """Only the selected columns of the row groups that may match; the next ones are fetched while some are decoded."""
    assert piece.file is not None
    source = BlobFile(store, piece.key, piece.file, _label(piece, projection))
    with (
        _opened(pa.PythonFile(source, mode="r"), projection, source.metadata()) as file,
        ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead,
    ):
        names = set(_stored_names(file, projection).values())
        leaves = leaf_ranges(file.schema_arrow.types)
        columns = {leaf for name in names for leaf in leaves[file.schema_arrow.get_field_index(name)]}
        ranges = {number: column_ranges(file.metadata, number, columns) for number in _numbers(file, piece, projection)}
        sizes = {number: sum(chunk.size_bytes for chunk in chunks) for number, chunks in ranges.items()}
        waiting = _together(sizes)

        def fetch(numbers: list[int]) -> Future[Any]:
            return ahead.submit(source.fetch, [chunk for number in numbers for chunk in ranges[number]])

        coming = fetch(waiting[0]) if waiting else None
        for position, numbers in enumerate(waiting):
            assert coming is not None
            fetched = coming.result()
            coming = fetch(waiting[position + 1]) if position + 1 < len(waiting) else None
            source.hold(fetched)
            yield from _batches(file, numbers, projection)


def _together(sizes: dict[int, int]) -> list[list[int]]:
    """Neighbouring row groups in groups of about `_GROUP_BYTES`."""
    groups: list[list[int]] = []
    filled = 0
    for number, size in sizes.items():
        if groups and filled + size <= _GROUP_BYTES:
            groups[-1].append(number)
            filled += size
        else:
            groups.append([number])
            filled = size
    return groups


def _numbers(file: pq.ParquetFile, piece: Piece, projection: Projection) -> list[int]:
    """The row groups of the piece that can hold selected rows, by the statistics of the file."""
    numbers = range(file.metadata.num_row_groups) if piece.row_groups is None else piece.row_groups
    deciding = columns_of(projection.predicate)
    if not deciding:
        return list(numbers)
    leaves = leaf_ranges(file.schema_arrow.types)
    held = {
        column_id: leaves[file.schema_arrow.get_field_index(name)]
        for column_id, name in field_ids(file.schema_arrow).items()
        if any(column.id == column_id and column.name in deciding for column in projection.definition.columns)
    }
    keys = leaf_keys(file.metadata.schema, held, projection.definition)
    return [
        number
        for number in numbers
        if rows_may_match(
            projection.predicate,
            file.metadata.row_group(number).num_rows,
            stated_ranges(file.metadata.row_group(number), keys),
            projection.definition,
        )
    ]


# -- rows ----------------------------------------------------------------------------------------------------------


def _batches(file: pq.ParquetFile, numbers: list[int], projection: Projection) -> Iterator[pa.RecordBatch]:
    if not numbers:
        return
    names = _stored_names(file, projection)
    if not names:  # no column of the file is wanted: only how many rows there are, and what newer columns default to
        for number in numbers:
            yield from _counted(file.metadata.row_group(number).num_rows, projection)
        return
    decoded = file.iter_batches(BATCH_ROWS, row_groups=numbers, columns=list(names.values()), use_threads=False)
    for batch in decoded:
        selected = _selected(_as_defined(batch, names, projection), projection)
        if selected.num_rows:
            yield conform(selected, projection.schema, truncate_nanoseconds=projection.truncate_nanoseconds)


def _counted(rows: int, projection: Projection) -> Iterator[pa.RecordBatch]:
    empty = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""])
    selected = _selected(_as_defined(empty, {}, projection), projection)
    for start in range(0, selected.num_rows, BATCH_ROWS):
        piece = selected.slice(start, BATCH_ROWS)
        yield conform(piece, projection.schema, truncate_nanoseconds=projection.truncate_nanoseconds)


def _stored_names(file: pq.ParquetFile, projection: Projection) -> dict[int, str]:
    """Field id -> name in the file, of the columns that are needed and that the file has."""
    held = field_ids(file.schema_arrow)
    needed = set(projection.needed)
    return {
        column.id: held[column.id]
        for column in projection.definition.columns
        if column.name in needed and column.id in held
    }


def _as_defined(batch: pa.RecordBatch, names: dict[int, str], projection: Projection) -> pa.RecordBatch:
    """The batch with today's names and types; defaults for columns that the file does not have."""
    needed = set(projection.needed)
    arrays, fields = [], []
    for column in projection.definition.columns:
        if column.name not in needed:
            continue
        if column.id in names:
            array = current_values(batch.column(names[column.id]), column, projection.definition)
            if not column.nullable and array.null_count:
                raise pa.ArrowInvalid(f"column {column.name} takes no nulls, and it holds some")
        else:
            array = default_array(column, batch.num_rows)
            array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        arrays.append(array)
        fields.append(column.name)
    return pa.RecordBatch.from_arrays(arrays, names=fields)


def _selected(batch: pa.RecordBatch, projection: Projection) -> pa.RecordBatch:
    if not columns_of(projection.predicate) and projection.predicate == TRUE:
        return batch.select(list(projection.columns))
    mask = row_mask(projection.predicate, batch, projection.definition)
    return batch.select(list(projection.columns)).filter(mask)
