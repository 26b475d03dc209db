"""From what a file holds to the rows of the table: reshaped, cast, and without the rows that cannot be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from oplog.errors import UsageError
from tiering.insert.bad_rows import BadRows, salvage
from tiering.insert.inputs.hive import PathColumn, path_columns, with_path_columns
from tiering.insert.inputs.source_files import InputSource
from tiering.insert.reshaping import Reshaping
from tiering.table.columns.sound_values import shown_value, unreadable_rows
from tiering.table.columns.types import cast_batch, check_names
from tiering.table.schema import TableDefinition


class TextRecord(msgspec.Struct, frozen=True):
    """A record of a text format, as it stands in the file."""

    line: int
    text: bytes


class RowReader(msgspec.Struct):
    """What every format's reader hands its rows to, one for each file."""

    source: InputSource
    reshaping: Reshaping
    bad: BadRows | None = None
    seen: set[str] | None = None
    """Of formats whose rows need not have all columns: the paths that were met."""
    rows: int = 0
    """Read so far, with those that could not be taken."""
    path_columns: dict[str, PathColumn] = msgspec.field(default_factory=dict)
    """What the file's path says of its rows."""

    def __post_init__(self) -> None:
        self.path_columns = path_columns(self.source, self.reshaping)

    @property
    def definition(self) -> TableDefinition:
        return self.reshaping.definition

    def batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a batch of a format without lines. Raises `UsageError` for columns that do not fit, and unless
        bad rows are kept, for values."""
        first = self.rows
        if self.bad is None:
            yield self._taken(batch, first)
            self.rows += batch.num_rows
            return
        self.check_columns(batch.schema)

        def take(numbers: Sequence[int]) -> pa.RecordBatch:
            return self._taken(batch.slice(numbers[0], len(numbers)), first + numbers[0])

        def tell(number: int, problem: str) -> None:
            assert self.bad is not None
            row = batch.slice(number, 1)
            values = {name: shown_value(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
            self.bad.add(self.source.label, {"row": first + number + 1}, problem, {"values": values})

        yield from salvage(range(batch.num_rows), take, tell) if batch.num_rows else ()
        self.rows += batch.num_rows

    def records(
        self, records: Sequence[TextRecord], parse: Callable[[Sequence[TextRecord]], pa.Table]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of records of a text format, without those that cannot be parsed or taken: these are kept."""

        def take(some: Sequence[TextRecord]) -> list[pa.RecordBatch]:
            return self.taken(parse(some))

        def tell(record: TextRecord, problem: str) -> None:
            assert self.bad is not None
            text = record.text.rstrip(b"\r\n").decode(errors="replace")
            self.bad.add(self.source.label, {"line": record.line}, problem, {"text": text})

        for batches in salvage(records, take, tell) if records else ():
            yield from batches

    def taken(self, table: pa.Table) -> list[pa.RecordBatch]:
        """The rows of the table. Raises `UsageError` for what does not fit."""
        found = []
        for batch in table.combine_chunks().to_batches():
            found.append(self._taken(batch, self.rows))
            self.rows += batch.num_rows
        return found

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise `UsageError` for columns that do not fit: no row is to blame for that."""
        none = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema.names)
        check_names(self._shaped(none, 0).schema.names, self.definition, where=self._where)

    def check_seen(self) -> None:
        """Raise `UsageError` for a path that somebody named and that no row so far had."""
        if missing := [path for path in self.reshaping.required_paths() if path not in (self.seen or ())]:
            raise UsageError(
                f"{self.source.label} has no {missing[0]} in its first rows",
                hint="is it misspelt? If few rows have it, add --default COLUMN=VALUE for it",
            )

    @property
    def _where(self) -> str:
        return f"{self.source.label}: "

    def _shaped(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        if self.source.format == "arrow":  # others are decoded: their offsets are those of the reader
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                unreadable_rows(array, name, where=self._where, first_row=first_row)
        if self.path_columns:
            is_json = self.seen is not None
            batch = with_path_columns(
                batch, self.path_columns, label=self.source.label, first_row=first_row, nulls_are_absent=is_json
            )
        return self.reshaping.apply(batch, where=self._where, seen=self.seen)

    def _taken(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        return cast_batch(
            self._shaped(batch, first_row), self.definition, source=self.source.label, first_row=first_row
        )
