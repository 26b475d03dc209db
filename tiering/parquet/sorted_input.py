"""A sorted Parquet file as it is read into a merge: piece by piece, with the table's columns of today, and whatever the
reader says of it names the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from oplog.errors import Damaged, FrostlineError
from tiering.config.units import counted
from tiering.parquet.sort_keys import Key, SortKeyRange, row_key, rows_below
from tiering.table.columns.current_shape import current_values
from tiering.table.columns.types import arrow_schema, default_array
from tiering.table.part import DataFile
from tiering.table.schema import TableDefinition

_READ_BYTES = 32 * 1024


class SortedFile(msgspec.Struct, frozen=True):
    """A file to merge. `names` maps field ids to the names of its columns; `order` says which part came first."""

    source: Path | Callable[[], Any]
    """A local path, or what opens a file object whose reads are requests."""
    file: DataFile
    names: dict[int, str]
    order: int
    label: str
    """For messages: disk and path."""
    row_groups: tuple[int, ...] | None = None
    """The row groups to read, neighbours of one another; None for all."""


class SortedInput:
    """One file being read, with the rows that are decoded and not yet taken."""

    def __init__(self, sorted_file: SortedFile, definition: TableDefinition, within: SortKeyRange) -> None:
        self._item = sorted_file
        self._definition = definition
        self._within = within
        self._schema = arrow_schema(definition)
        self._ready = self._schema.empty_table()
        self._encoded: list[str] = []
        self._below = within.low
        """The range's lower end while rows below it may still come."""
        self._file: pq.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._decoded_rows = 0
        self.exhausted = False

    @property
    def ready_rows(self) -> int:
        return int(self._ready.num_rows)

    def dictionary_columns(self) -> set[int]:
        """The field ids of texts that the file holds as dictionaries. They stay so through the merge: a number is moved
        and compared faster than a text, and a third of the memory."""
        with self._reading():
            found = self._opened().metadata
            groups = [found.row_group(number) for number in range(found.num_row_groups)]
        places = {found.schema.column(number).path: number for number in range(found.num_columns)}
        return {
            column.id
            for column in self._definition.columns
            if column.type in ("string", "binary")
            and (place := places.get(self._item.names.get(column.id, ""))) is not None
            and all(group.column(place).has_dictionary_page for group in groups)
        }

    def dictionary_sizes(self, columns: Collection[int]) -> dict[int, int]:
        """How many texts the first dictionary of each column holds."""
        names = {column: self._item.names[column] for column in columns}
        if not names:
            return {}
        with self._reading():
            self._encoded = list(names.values())
            self._close_file()
            groups = self._item.row_groups
            first = self._opened().iter_batches(
                1, row_groups=None if groups is None else groups[:1], columns=list(names.values()), use_threads=False
            )
            batch = next(first, None)
        self._encoded = []
        self._close_file()
        return {column: 0 if batch is None else len(batch.column(name).dictionary) for column, name in names.items()}

    def begin(self, encoded: set[int]) -> None:
        """Read the texts of these field ids as dictionaries."""
        self._encoded = [self._item.names[column] for column in encoded]
        for column in encoded:
            place = [known.id for known in self._definition.columns].index(column)
            field = self._schema.field(place)
            self._schema = self._schema.set(place, field.with_type(pa.dictionary(pa.int32(), field.type)))
        self._ready = self._schema.empty_table()
        if encoded:
            self._close_file()

    def row_bytes(self, sample_rows: int) -> float:
        """The decoded size of a row, from the first few of the file."""
        with self._reading():
            batch = next(self._batches_of(sample_rows), None)
        return batch.nbytes / batch.num_rows if batch is not None and batch.num_rows else 1.0

    def fill(self, rows: int) -> None:
        """Decode until `rows` rows are ready, or the file has no more."""
        added: list[pa.Table] = []
        with self._reading():
            if self._batches is None and not self.exhausted:
                self._batches = self._batches_of(rows)
            while self._batches is not None and self.ready_rows + sum(table.num_rows for table in added) < rows:
                batch = next(self._batches, None)
                if batch is None:
                    self._check_complete()
                    self.close()
                else:
                    self._decoded_rows += batch.num_rows
                    added.append(self._clipped(self._as_defined(batch)))
        if added:
            self._ready = pa.concat_tables([self._ready, *added])

    def _check_complete(self) -> None:
        """That every row of the row groups was decoded: a page whose header has become one of another kind is passed
        over without a word."""
        metadata = self._opened().metadata
        groups = range(metadata.num_row_groups) if self._item.row_groups is None else self._item.row_groups
        expected = sum(metadata.row_group(number).num_rows for number in groups)
        if self._decoded_rows != expected:
            raise OSError(f"{self._decoded_rows} of {counted(expected, 'row')} could be read")

    def take(self, rows: int) -> pa.Table:
        """The first so many ready rows, which are no longer ready then."""
        taken = self._ready.slice(0, rows)
        self._ready = self._ready.slice(rows)
        return taken

    def last_key(self) -> Key:
        """The sort key of the last ready row."""
        return row_key(self._ready, self.ready_rows - 1, self._definition.order_by)

    def count_up_to(self, bound: Key, *, inclusive: bool) -> int:
        """How many of the ready rows have keys below the bound, or equal to it when `inclusive`."""
        return rows_below(self._ready, bound, self._definition.order_by, inclusive=inclusive)

    def close(self) -> None:
        """Close the file; what is ready stays."""
        self._batches = None
        self.exhausted = True
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close(force=True)
            self._file = None

    def _batches_of(self, rows: int) -> Iterator[pa.RecordBatch]:
        return cast(
            Iterator[pa.RecordBatch],
            self._opened().iter_batches(
                rows, row_groups=self._item.row_groups, columns=self._wanted(), use_threads=False
            ),
        )

    def _clipped(self, table: pa.Table) -> pa.Table:
        """The rows within the range. What is above it ends the file: nothing below follows."""
        keys = self._definition.order_by
        if self._below:
            outside = rows_below(table, self._below, keys)
            table = table.slice(outside)
            self._below = None if table.num_rows else self._below
        if self._within.high is not None and table.num_rows and not row_key(table, -1, keys) < self._within.high:
            table = table.slice(0, rows_below(table, self._within.high, keys))
            self.close()
        return table

    def _opened(self) -> pq.ParquetFile:
        if self._file is None:
            source = self._item.source
            if isinstance(source, Path):
                # Read piece by piece: whole column chunks of many files would be most of the memory.
                reading = {"buffer_size": _READ_BYTES, "pre_buffer": False}
            else:
                source, reading = source(), {"pre_buffer": True}
            # What is read as a whole from a local file was compared with its SHA-256 before.
            unverified = self._item.row_groups is not None or not isinstance(self._item.source, Path)
            self._file = pq.ParquetFile(
                source, read_dictionary=self._encoded, page_checksum_verification=unverified, **reading
            )
        return self._file

    def _wanted(self) -> list[str]:
        names = self._item.names
        return [names[column.id] for column in self._definition.columns if column.id in names]

    def _as_defined(self, batch: pa.RecordBatch) -> pa.Table:
        """The batch with the table's columns of today: renamed, widened, defaults where the file has none."""
        columns = []
        for column, field in zip(self._definition.columns, self._schema, strict=True):
            stored = self._item.names.get(column.id)
            if stored is None:
                columns.append(default_array(column, batch.num_rows))
            else:
                held = batch.column(stored)
                texts = pa.types.is_dictionary(field.type)
                columns.append(held.cast(field.type) if texts else current_values(held, column, self._definition))
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _reading(self) -> _Reading:
        return _Reading(self._item.label)


class _Reading:
    """Turns what the Parquet reader raises into `Damaged` naming the file."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | pa.ArrowException) and not isinstance(error, FrostlineError):
            raise Damaged(
                f"cannot read a part that is being merged ({self._label}): {error}",
                hint="run 'frostline fsck'; the parts are unchanged",
            ) from error
