"""What the store knows of itself, as tables of a query: `system.tables`, `columns`, `parts`, `disks`, `log`, `moves`.

They are made when a statement names them, from what is known then: a revision's, when the past is asked. The moves are
those of this machine's journal, which has no past: always of now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin

import msgspec
import pyarrow as pa

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from tiering.catalog.context import Context
from tiering.catalog.rows import DiskRow, PartRow, TableRow, disk_rows, part_rows, table_rows
from tiering.journal.records import MoveRecord

_ROWS_AT_ONCE = 10_000
_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
    float: pa.float64(),
    datetime: pa.timestamp("us", "UTC"),
}
_PIECES = {"database": 0, "name": 2}
"""Of the full name of a table, split at its point."""


class _ColumnRow(msgspec.Struct, frozen=True):
    table: str
    position: int
    name: str
    type: str
    nullable: bool


class _LogRow(msgspec.Struct, frozen=True):
    disk: str
    revision: int
    time: datetime
    kind: str
    actor: str
    reason: str
    operations: int
    bytes: int


class _SystemTable(msgspec.Struct, frozen=True):
    """`columns` name fields of a row: `called:field` where the column is called otherwise, `field?` where an empty text
    is null."""

    row: type[msgspec.Struct]
    columns: str
    rows: Callable[[Context], Iterable[Any]]


def system_table(context: Context, name: str) -> pa.RecordBatch:
    """The rows of the table of this name, one of `NAMES`. Raises what reading a log raises."""
    table = _TABLES[name]
    types = {field.name: field.type for field in msgspec.structs.fields(table.row)}
    columns = [_Column(word, types) for word in table.columns.split()]
    schema = pa.schema([(column.name, column.type) for column in columns])
    rows = iter(table.rows(context))
    pieces = [pa.RecordBatch.from_pylist([], schema=schema)]
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        arrays = [pa.array(map(column.value, some), column.type) for column in columns]
        pieces.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([piece.column(index) for piece in pieces]) for index in range(len(columns))], schema=schema
    )


class _Column:
    def __init__(self, word: str, types: dict[str, Any]) -> None:
        self.name, _, field = word.removesuffix("?").partition(":")
        field, _, piece = (field or self.name).partition(".")
        read = attrgetter(field)
        self.type = _type(types[field])
        self.value: Callable[[Any], Any] = read
        if piece:
            place = _PIECES[piece]
            self.value = lambda row: read(row).partition(".")[place]
        elif word.endswith("?"):
            self.value = lambda row: read(row) or None
        elif self.type == _TYPES[datetime]:
            self.value = lambda row: _moment(read(row))


def _type(annotation: Any) -> pa.DataType:
    if get_origin(annotation) is Literal:
        return pa.string()
    kinds = (annotation, *get_args(annotation))
    return next(_TYPES[kind] for kind in kinds if kind in _TYPES)


def _columns(context: Context) -> Iterator[_ColumnRow]:
    for definition in context.catalog.tables():
        for position, column in enumerate(definition.columns, 1):
            yield _ColumnRow(definition.full_name, position, column.name, column.type, column.nullable)


def _log(context: Context) -> Iterator[_LogRow]:
    """As far as the disk is looked at."""
    for name, disk in context.disks.items():
        if (logged := as_disk(disk, LoggedDisk)) is None:
            continue
        for entry in logged.commits().between(until=disk.revision):
            commit = entry.commit
            said = (commit.revision, commit.time, commit.kind.word, commit.actor, commit.reason)
            yield _LogRow(name, *said, len(commit.operations), commit.size_bytes)


def _moment(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


_TABLES = {
    "system.tables": _SystemTable(
        TableRow,
        "database:table.database name:table.name uuid policy parts rows bytes",
        lambda context: table_rows(context.catalog),
    ),
    "system.columns": _SystemTable(
        _ColumnRow, "database:table.database table:table.name position name type nullable", _columns
    ),
    "system.parts": _SystemTable(
        PartRow,
        "database:table.database table:table.name part partition disk volume rows bytes level state created revision",
        part_rows,
    ),
    "system.disks": _SystemTable(
        DiskRow,
        "name kind total_bytes free_bytes parts revision read_only problem",
        lambda context: disk_rows(context, for_query=True),
    ),
    "system.log": _SystemTable(_LogRow, "disk revision time kind actor reason operations bytes", _log),
    "system.moves": _SystemTable(
        MoveRecord,
        "id database:table.database table:table.name part source target state reason:reason_kind detail:reason_detail"
        " actor bytes bytes_done seconds requests attempts error? revision created updated",
        lambda context: context.journal.work.moves(),
    ),
}
"""By name. Finished moves are among them, too, as long as the journal keeps them."""
NAMES = tuple(_TABLES)
