"""Sorted files in, the sorted data files of one part out: the engine of every merge, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from disks.effects import op
from tiering.merge.rows import combine_rows, live_rows
from tiering.parquet.dictionaries import decoded
from tiering.parquet.part_files import PartWriter
from tiering.parquet.sort_keys import EVERYTHING, SortKeyRange
from tiering.parquet.sorted_input import SortedFile
from tiering.parquet.sorted_merge import merged
from tiering.table.part import DataFile
from tiering.table.schema import TableDefinition


class MergedFiles(msgspec.Struct, frozen=True):
    """What was written, and how many rows were read for it."""

    files: tuple[DataFile, ...]
    rows_read: int


@dataclass(frozen=True, slots=True)
class RowMerge:
    """What the merged rows are and how they are written: the same for every file and shard of a part."""

    definition: TableDefinition = field(repr=False)
    now: datetime | None
    """Rows past their TTL then are left out; None keeps them all."""
    level: int = 0
    """The zstd level; 0 is the table's own."""
    drop_deleted: bool = False
    """Drop keys whose last word is that they are deleted: only where no other part can hold them."""


def merge_files(
    files: Sequence[SortedFile],
    how: RowMerge,
    directory: Path,
    *,
    scratch: Path,
    within: SortKeyRange = EVERYTHING,
    prefix: str = "data",
    on_rows: Callable[[int], None] = lambda rows: None,
) -> MergedFiles:
    """Merge the files' rows within the key range into `directory`, which is made, as files `<prefix>-0000.parquet` ….

    The table's merge mode is applied. `on_rows` gets the number of rows written so far; what it raises ends the merge.
    Memory is bounded whatever the size of the inputs. Raises `Damaged`, `NoSpace`.
    """
    definition = how.definition
    with op("fs.mkdir", directory):
        directory.mkdir(parents=True)
    count = _Counted()
    rows = live_rows(count.through(merged(files, definition, scratch, within)), definition, how.now)
    if definition.merge_mode != "ordinary":  # rows of a key are compared with those of the next table
        rows = map(decoded, rows)
    output = PartWriter(directory, definition, compression_level=how.level or None, prefix=prefix)
    try:
        for table in combine_rows(rows, definition, drop_deleted=how.drop_deleted):
            output.write(table)
            on_rows(table.num_rows)
        written = output.finish()
    except BaseException:
        output.abandon()
        raise
    return MergedFiles(written, count.rows)


class _Counted:
    """Counts the rows that pass."""

    def __init__(self) -> None:
        self.rows = 0

    def through(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self.rows += table.num_rows
            yield table
