"""Writing the data files of a part: sorted Arrow in, Parquet files and what `part.json` says about them out.

Files are zstd Parquet with statistics, page index, page checksums, sorting columns and field ids; encodings are chosen
from the first rows. Row groups hold `row_group_rows` rows, fewer when rows are wide: about `_ROW_GROUP_BYTES`
compressed, so that reading one from a bucket is one request and merging many parts needs little memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from disks.effects import op
from tiering.parquet.column_ranges import FileRanges, group_ranges, key_json
from tiering.parquet.dictionaries import decoded, joined, laid_out, schema_note, with_dictionaries
from tiering.parquet.encodings import Encodings, choose_encodings
from tiering.parquet.sections import MAGIC, chunk_sums, crc32_of
from tiering.parquet.writer import ParquetFileWriter
from tiering.table.columns.type_texts import leaf_ranges
from tiering.table.columns.types import arrow_schema
from tiering.table.part import ColumnRange, DataFile, RowGroup
from tiering.table.schema import TableDefinition

NULLS = "at_end"
"""Where nulls sort, in inserts, merges and the sorting columns of the files: last, as DuckDB and Arrow do."""

_ROW_GROUP_BYTES = 8 * 1024 * 1024
_MIN_ROW_GROUP_ROWS = 4096
_HASHED_BYTES = 1024 * 1024


class PartWriter:
    """Writes the data files of one part below a directory, in sort order.

    `write` takes tables in ascending key order; `finish` closes the files and returns them. `abandon` closes without
    a result; what was written is the directory owner's to remove. A full disk raises `NoSpace`.
    """

    def __init__(
        self,
        directory: Path,
        definition: TableDefinition,
        *,
        compression_level: int | None = None,
        encodings: Encodings | None = None,
        prefix: str = "data",
    ) -> None:
        self._prefix = prefix
        self._directory = directory
        self._definition = definition
        self._schema = arrow_schema(definition)
        self._level = compression_level or definition.settings.compression_level
        self._row_group_rows = definition.settings.row_group_rows
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._encodings = encodings
        self._options: Encodings | None = None
        self._file_schema = self._schema
        self._open: _OpenFile | None = None
        self._files: list[DataFile] = []
        self._last: pa.Table | None = None

    def write(self, table: pa.Table) -> None:
        """Append rows; they follow all earlier ones in sort order and have the table's schema."""
        if table.num_rows == 0:
            return
        self._pending.append(table)
        self._pending_rows += table.num_rows
        while self._pending_rows >= self._row_group_rows:
            self._write_row_group(self._next_row_group())

    def finish(self) -> tuple[DataFile, ...]:
        """Write what is left and close; at least one file, even without rows."""
        while self._pending_rows:
            self._write_row_group(self._next_row_group())
        if self._open is None and not self._files:
            self._write_row_group(self._next_row_group())
        self._close_file()
        return tuple(self._files)

    def abandon(self) -> None:
        """Close the open file without recording it."""
        if self._open is not None:
            self._open.abandon()
            self._open = None

    def _next_row_group(self) -> pa.Table:
        if self._options is None:
            self._choose_layout(self._take_pending(self._row_group_rows))
        return self._take_pending(self._row_group_rows)

    def _choose_layout(self, sample: pa.Table) -> None:
        """Decide encodings and, for wide rows, fewer rows a group; the sample goes back to the pending rows."""
        texts = decoded(sample)
        self._options = self._encodings or choose_encodings(texts, self._definition)
        kept = {field.name for field in sample.schema if pa.types.is_dictionary(field.type)}
        kept &= set(self._options["use_dictionary"] or ())
        self._file_schema = with_dictionaries(self._schema, kept) if kept else self._schema
        width = texts.nbytes / max(sample.num_rows, 1)
        # A guess of 4:1 compression, until the first row group is measured.
        narrower = int(4 * _ROW_GROUP_BYTES / max(width, 1))
        self._row_group_rows = max(min(self._row_group_rows, narrower), min(self._row_group_rows, _MIN_ROW_GROUP_ROWS))
        self._pending.insert(0, sample)
        self._pending_rows += sample.num_rows

    def _take_pending(self, rows: int) -> pa.Table:
        """Up to `rows` of the pending rows."""
        if len(self._pending) == 1 and self._pending_rows <= rows:
            taken = self._pending[0]
            self._pending, self._pending_rows = [], 0
            return taken
        pending = joined(self._pending) if self._pending else self._schema.empty_table()
        rest = pending.slice(rows)
        self._pending = [rest] if rest.num_rows else []
        self._pending_rows = rest.num_rows
        return pending.slice(0, rows)

    def _write_row_group(self, rows: pa.Table) -> None:
        assert self._options is not None
        if self._open is not None and self._open.size_bytes >= self._definition.settings.target_file_size_bytes:
            rows = self._start_next_file(rows)
            if rows.num_rows == 0:
                return
        if self._open is None:
            path = self._directory / f"{self._prefix}-{len(self._files):04d}.parquet"
            self._open = _OpenFile(path, self._definition, self._file_schema, self._options, self._level)
        self._open.write(rows)
        self._last = rows
        self._adapt()

    def _adapt(self) -> None:
        assert self._open is not None
        per_row = self._open.size_bytes / max(self._open.rows, 1)
        if per_row * self._row_group_rows > 1.5 * _ROW_GROUP_BYTES:
            fewer = max(int(_ROW_GROUP_BYTES / per_row), _MIN_ROW_GROUP_ROWS)
            self._row_group_rows = min(self._row_group_rows, fewer)

    def _start_next_file(self, rows: pa.Table) -> pa.Table:
        """Close the file where the key changes, so that files of a part hold disjoint key ranges."""
        assert self._open is not None
        assert self._last is not None
        keys = self._definition.order_by
        end = decoded(self._last.select(keys).slice(self._last.num_rows - 1))
        last = [end.column(name)[0] for name in keys]
        same = _leading_equal_rows(decoded(rows.select(keys)), keys, last)
        if same:
            self._open.write(rows.slice(0, same))
            self._last = rows.slice(0, same)
        if same == rows.num_rows:
            return rows.slice(same)
        self._close_file()
        return rows.slice(same)

    def _close_file(self) -> None:
        if self._open is not None:
            self._files.append(self._open.close())
            self._open = None


class _OpenFile:
    """One Parquet file being written, with the ranges of its columns."""

    def __init__(
        self, path: Path, definition: TableDefinition, schema: pa.Schema, options: Encodings, level: int
    ) -> None:
        self._path = path
        self._definition = definition
        self._footer: list[pq.FileMetaData] = []
        self._first_keys: list[tuple[Any, ...]] = []
        self._group_ranges: list[dict[str, ColumnRange]] = []
        self._ranges = FileRanges(definition)
        self._digest = hashlib.sha256()
        self._schema = schema
        self.rows = 0
        leaves = leaf_ranges([field.type for field in schema])
        with op("fs.create", path):
            self._writer = ParquetFileWriter(
                path,
                schema,
                compression="zstd",
                compression_level=level,
                write_statistics=True,
                write_page_index=True,
                write_page_checksum=True,
                sorting_columns=[
                    pq.SortingColumn(leaves[schema.get_field_index(name)].start, nulls_first=False)
                    for name in definition.order_by
                ],
                metadata_collector=self._footer,
                store_schema=False,
                **options,
            )
            self._writer.add_key_value_metadata(schema_note(arrow_schema(definition)))
        self._reader: BinaryIO = path.open("rb")

    @property
    def size_bytes(self) -> int:
        return self._path.stat().st_size

    def write(self, rows: pa.Table) -> None:
        """One row group."""
        if rows.num_rows == 0:
            return
        rows = laid_out(rows, self._schema)
        self._first_keys.append(tuple(key_json(rows.column(name)[0]) for name in self._definition.order_by))
        self._group_ranges.append(group_ranges(rows, self._definition))
        self._ranges.add(rows)
        with op("fs.write", self._path):
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        self._hash_written()

    def close(self) -> DataFile:
        """Close the file and describe it."""
        with op("fs.write", self._path):
            self._writer.close()
        metadata = self._footer[0]
        self._hash_written()
        groups, tail_crc32 = self._row_groups(metadata)
        self._reader.close()
        return DataFile(
            name=self._path.name,
            rows=self.rows,
            size_bytes=self.size_bytes,
            sha256=self._digest.hexdigest(),
            row_groups=groups,
            columns=self._ranges.result(),
            tail_crc32=tail_crc32,
        )

    def _row_groups(self, metadata: pq.FileMetaData) -> tuple[tuple[RowGroup, ...], int]:
        """What `part.json` says of the row groups, and the CRC32 of what follows them."""
        groups = tuple(
            row_group_of(metadata.row_group(number), self._first_keys[number], self._group_ranges[number], self._reader)
            for number in range(metadata.num_row_groups)
        )
        end = groups[-1].offset_bytes + groups[-1].size_bytes if groups else len(MAGIC)
        return groups, crc32_of(self._reader, end, self.size_bytes - end)

    def _hash_written(self) -> None:
        """Go on with the digest over what the writer has appended: while the next rows are being prepared."""
        while piece := self._reader.read(_HASHED_BYTES):
            self._digest.update(piece)

    def abandon(self) -> None:
        self._reader.close()
        try:
            self._writer.close()
        except (OSError, RuntimeError, pa.ArrowException):
            # The file is thrown away; the error that made us abandon it is the one to report. A writer that could not
            # write its footer, as on a full disk, has no metadata and says so by a RuntimeError.
            return


def write_part_files(
    tables: Iterable[pa.Table],
    definition: TableDefinition,
    directory: Path,
    *,
    encodings: Encodings | None = None,
) -> tuple[DataFile, ...]:
    """Write tables in sort order as the data files of one part in the directory."""
    files = PartWriter(directory, definition, encodings=encodings)
    try:
        for table in tables:
            files.write(table)
        return files.finish()
    except BaseException:
        files.abandon()
        raise


def row_group_of(
    group: pq.RowGroupMetaData, first_key: tuple[Any, ...], ranges: dict[str, ColumnRange], file: BinaryIO
) -> RowGroup:
    """What `part.json` says of the row group of a file."""
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [
        min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0) for column in columns
    ]
    sizes = [column.total_compressed_size for column in columns]
    return RowGroup(
        rows=group.num_rows,
        offset_bytes=min(starts, default=0),
        size_bytes=sum(sizes),
        first_key=first_key,
        chunk_sums=chunk_sums(file, starts, sizes),
        columns=ranges,
    )


def _leading_equal_rows(rows: pa.Table, keys: tuple[str, ...], last: list[pa.Scalar]) -> int:
    """How many rows at the front have the key `last`."""
    equal: Any = None
    for name, value in zip(keys, last, strict=True):
        column = rows.column(name)
        same = pc.fill_null(pc.equal(column, value), False) if value.is_valid else pc.is_null(column)
        equal = same if equal is None else pc.and_(equal, same)
    first_other = pc.index(equal, False).as_py()
    return rows.num_rows if first_other < 0 else int(first_other)
