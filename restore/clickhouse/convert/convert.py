"""Take the rows of a MergeTree table over into a table of ours, all of them or with an error.

The bucket is only read. Its parts come down in batches to a temporary directory, where a process with chdb attaches
copies of them one by one and writes their rows as Parquet, which one insert takes. Each part must give as many rows as
its `count.txt` says, and the insert as many as the parts gave.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from disks.stores.base import ByteRange, ObjectStore
from disks.workers.progress import SILENT, Progress
from oplog.clickhouse.checksums import FILE_NAME as CHECKSUMS
from oplog.clickhouse.columns import SourceColumn
from oplog.clickhouse.quoting import quoted_name, quoted_text
from oplog.errors import Damaged, FrostlineError, Refused, UsageError
from restore.clickhouse.convert.columns import declared_type, mapping_of, text_condition
from restore.clickhouse.convert.engine import Json
from restore.clickhouse.convert.process import ask_engine
from restore.clickhouse.convert.source import SourcePart, SourceTable
from restore.clickhouse.parts import ClickHousePart
from tiering.config.units import counted
from tiering.engine.table import Table
from tiering.table.schema import TableDefinition

_BATCH_PARTS = 64
_BATCH_BYTES = 512 << 20
_PIECE_BYTES = 64 << 20
_NOT_NEEDED = re.compile(r"(?:minmax_.*\.idx|partition\.dat|primary\.c?idx|skp_idx_.*|ttl\.txt|.*_version\.txt)\Z")
"""Files that belong to the keys, the indexes and the projections of a table, and so not to the copy's."""


class ConversionPlan(msgspec.Struct, frozen=True):
    """Which columns the rows have, and how each part gives them."""

    columns: tuple[SourceColumn, ...]
    defaults: Mapping[str, str]
    """Column -> what the rows of parts without it say, as text."""

    def schema(self) -> pa.Schema:
        """The columns as Arrow's, for a new table."""
        fields = []
        for column in self.columns:
            mapping = mapping_of(column)
            fields.append(pa.field(column.name, mapping.arrow, mapping.nullable))
        return pa.schema(fields)

    def request(self, directory: Path, parts: Sequence[tuple[SourcePart, Path, Path]]) -> Json:
        """What is asked of the engine for parts with the same columns, each with its directory and its target.
        Statements are written here alone: no text of a part is in them but between quotes."""
        there = parts[0][0].columns
        names = {column.name for column in there}
        select, texts = [], []
        for column in self.columns:
            cast = mapping_of(column).cast
            name = quoted_name(column.name)
            value = name if column.name in names else quoted_text(self.defaults[column.name])
            expression = f"CAST({value}, {quoted_text(cast)})"
            select.append(f"{expression} AS {name}")
            if (condition := text_condition(expression, cast)) is not None:
                texts.append((column.name, condition))
        return {
            "place": str(directory),
            "columns": ", ".join(f"{quoted_name(column.name)} {declared_type(column)}" for column in there),
            "select": ", ".join(select),
            "texts": texts,
            "parts": [(str(directory), quoted_text(str(target))) for _, directory, target in parts],
        }


class Converted(msgspec.Struct):
    """What a conversion did."""

    rows: int = 0
    deleted_rows: int = 0
    """Rows that lie in the parts and that a lightweight DELETE had marked: they are not taken."""
    parts: list[str] = msgspec.field(default_factory=list)
    """Of the table here."""
    bytes: int = 0


def plan_columns(source: SourceTable, defaults: Mapping[str, str]) -> ConversionPlan:
    """The columns of all parts together. Raises `UsageError` for types that have no mapping, for one column with two
    types, and for one that parts lack and nobody says what they would say."""
    columns: dict[str, SourceColumn] = {}
    for part in source.parts:
        for column in part.columns:
            known = columns.setdefault(column.name, column)
            if known.kind != column.kind:
                raise UsageError(
                    f"column {column.name} is {known.kind} in some parts and {column.kind} in {part.part.name}",
                    hint="a server rewrites the older ones: OPTIMIZE TABLE … FINAL",
                )
            mapping_of(column)
    if unknown := sorted(defaults.keys() - columns.keys()):
        raise UsageError(f"no part has a column {unknown[0]}", hint=f"they have: {', '.join(columns)}")
    for name in columns:
        lacking = [part for part in source.parts if name not in {column.name for column in part.columns}]
        if lacking and name not in defaults:
            raise UsageError(
                f"{counted(len(lacking), 'part')}, such as {lacking[0].part.name}, came before column {name}, "
                "and its default value is only in the table's definition, which is not in the bucket",
                hint=f"set it: --default {name}=VALUE",
            )
    return ConversionPlan(tuple(columns.values()), defaults)


def check_target(definition: TableDefinition, plan: ConversionPlan, rows_there: int) -> None:
    """Raise `Refused` for a table that has rows, `UsageError` for one whose columns are others."""
    if rows_there:
        raise Refused(
            f"table {definition.full_name} has {counted(rows_there, 'row')} already: whether a row came over "
            "could not be said",
            hint="convert into a new table; INSERT … SELECT is not needed, queries can read both",
        )
    names = [column.name for column in definition.columns]
    if sorted(names) != sorted(column.name for column in plan.columns):
        raise UsageError(
            f"table {definition.full_name} has the columns {', '.join(names)}, and the parts have "
            f"{', '.join(column.name for column in plan.columns)}",
            hint="name a table that does not exist yet: it is made with the right columns",
        )


def convert(
    store: ObjectStore,
    source: SourceTable,
    plan: ConversionPlan,
    target: Table,
    python: str,
    *,
    progress: Progress = SILENT,
) -> Converted:
    """Insert the rows of the table. Raises `FrostlineError` when they are not those that its parts count: what has been
    inserted until then is in the table."""
    result = Converted()
    with progress.task("converting parts", items=len(source.parts)) as task:

        def batches() -> Iterator[pa.RecordBatch]:
            for group in _groups(source.parts):
                with tempfile.TemporaryDirectory(prefix="frostline-convert-") as place:
                    yield from _rows(store, plan, group, python, Path(place), result)
                task.advance(items=len(group))

        inserted = target.insert(batches())
    result.parts, result.bytes = list(inserted.parts), inserted.bytes
    wanted = source.rows - result.deleted_rows
    there = sum(stored.facts.rows for stored in target.parts())
    if (inserted.rows, result.rows, there) != (wanted, wanted, wanted):
        raise FrostlineError(
            f"the parts count {counted(wanted, 'row')}, ClickHouse gave {result.rows:,}, {inserted.rows:,} were "
            f"inserted and {there:,} are in {target.definition.full_name}",
            hint="the table is not a copy: drop it. Blocks that are the same count once unless it has the setting "
            "deduplication_window=0, and TTL rules and merge modes take rows away",
        )
    return result


def _groups(parts: Sequence[SourcePart]) -> Iterator[list[SourcePart]]:
    """Parts that go to the engine together: of the same columns, and not too much for a temporary directory."""
    by_columns: dict[tuple[SourceColumn, ...], list[SourcePart]] = {}
    for part in parts:
        if part.rows:
            by_columns.setdefault(part.columns, []).append(part)
    for same in by_columns.values():
        group: list[SourcePart] = []
        size_bytes = 0
        for part in same:
            if group and (len(group) == _BATCH_PARTS or size_bytes + part.part.size_bytes > _BATCH_BYTES):
                yield group
                group, size_bytes = [], 0
            group.append(part)
            size_bytes += part.part.size_bytes
        yield group


def _rows(
    store: ObjectStore, plan: ConversionPlan, group: Sequence[SourcePart], python: str, scratch: Path, result: Converted
) -> Iterator[pa.RecordBatch]:
    parts = [(part, scratch / f"part-{number}", scratch / f"{number}.parquet") for number, part in enumerate(group)]
    for part, directory, _ in parts:
        _bring(store, part.part, directory)
    answers = ask_engine(python, plan.request(scratch, parts))
    for (part, _, rows), answer in zip(parts, answers, strict=True):
        if answer["bad"]:
            raise UsageError(
                f"column {answer['bad'][0]} of part {part.part.name} has texts that are no UTF-8, as strings here are",
                hint="ClickHouse can rewrite it, as hex(…) or base64Encode(…), into another column",
            )
        if answer["all"] != part.rows:
            raise Damaged(
                f"part {part.part.name} has {counted(answer['all'], 'row')}, and its count.txt says {part.rows:,}"
            )
        result.deleted_rows += answer["all"] - answer["rows"]
        with pq.ParquetFile(rows) as file:
            if file.metadata.num_rows != answer["rows"]:
                raise Damaged(
                    f"of the {counted(answer['rows'], 'row')} of part {part.part.name}, {file.metadata.num_rows:,} came"
                )
            for batch in file.iter_batches():
                result.rows += batch.num_rows
                yield batch


def _bring(store: ObjectStore, part: ClickHousePart, directory: Path) -> None:
    """A copy of the files that hold the part's columns. It is temporary: a crash leaves nothing that counts."""
    directory.mkdir()
    for name, file in part.files.items():
        if name == CHECKSUMS or "/" in name or _NOT_NEEDED.match(name):
            continue
        with (directory / name).open("wb") as out:
            for key, size in file.blobs:
                for start in range(0, size, _PIECE_BYTES):
                    out.write(store.get(key, ByteRange(start, min(size, start + _PIECE_BYTES))))
