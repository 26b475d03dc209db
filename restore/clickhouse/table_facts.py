"""What the parts of a ClickHouse table tell of it: its rows and columns, and a draft of the statement that attaches it.

Its name, its keys and its engine are not in the bucket: the draft has places for them, which no server takes as they
are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from disks.stores.base import ObjectStore
from disks.workers.parallel import Askers, in_parallel
from oplog.clickhouse import columns
from oplog.clickhouse.columns import SourceColumn
from oplog.clickhouse.quoting import quoted_name
from oplog.clickhouse.types import NotAType, parse, written
from oplog.errors import Damaged, NotFound
from restore.clickhouse.parts import ClickHousePart, ClickHouseTable, State
from tiering.config.units import counted

_COUNT = "count.txt"
_KEY_COLUMN = re.compile(r"minmax_(.+)\.idx\Z")


class TableFacts(msgspec.Struct, frozen=True):
    """A table as its active parts have it."""

    parts: int
    rows: int | None
    """The sum of their counts; None when one of them cannot be read, or the table is one of ours."""
    columns: tuple[SourceColumn, ...]
    """Of all of them, each with the type that it has in the part that was written last."""
    partition_columns: tuple[str, ...]
    """Those that the partition key uses."""


def read_facts(store: ObjectStore, tables: Sequence[ClickHouseTable], askers: Askers) -> dict[str, TableFacts]:
    """The facts of each table, by its directory. Two GETs for each active part; what cannot be read is not told."""
    parts = [part for table in tables for part in table.parts if part.state is State.ACTIVE and not part.is_ours]
    found: dict[str, tuple[int | None, list[SourceColumn]]] = {}
    with askers.progress.task("reading counts and columns of parts", items=len(parts)) as task:

        def read(index: int) -> None:
            found[parts[index].directory] = _read(store, parts[index])
            task.advance(items=1)

        in_parallel(read, len(parts), askers.workers)
    return {
        table.directory: _facts([part for part in parts if part.table == table.directory], found) for table in tables
    }


def count_in(store: ObjectStore, part: ClickHousePart) -> int:
    """The rows of the part, as it counts them itself. Raises `Damaged`, `NotFound`."""
    text = read_file(store, part, _COUNT).strip()
    if not text.isdigit() or len(text) > 20:
        raise Damaged(f"{part.directory}/{_COUNT} is no number: {text[:40]!r}")
    return int(text)


def read_file(store: ObjectStore, part: ClickHousePart, name: str) -> bytes:
    """A small file of the part. Raises `Damaged` when it is not there, `NotFound` when its object is gone."""
    file = part.files.get(name)
    if file is None:
        raise Damaged(f"part {part.name} has no {name} ({part.directory})")
    return b"".join(store.get(key) for key, _ in file.blobs)


def draft_of(table: ClickHouseTable, facts: TableFacts) -> str:
    """A statement that attaches the table, once somebody has put in what stands between `<` and `>`."""
    rows = "an unknown number of rows" if facts.rows is None else counted(facts.rows, "row")
    place = f" UUID '{table.uuid}'" if table.directory.startswith("store/") else ""
    width = ",\n".join(f"    {quoted_name(column.name)} {_type_text(column)}" for column in facts.columns)
    keys = ", ".join(map(quoted_name, facts.partition_columns))
    partition = [f"PARTITION BY <an expression of {keys}>"] if keys else []
    return "\n".join(
        [
            f"-- {rows} in {counted(facts.parts, 'active part')}: compare with SELECT count() FROM <database>.<table>",
            "-- not known here: defaults, columns that no part has, codecs, TTL, indexes, projections, the engine",
            f"ATTACH TABLE <database>.<table>{place}",
            f"(\n{width}\n)",
            "ENGINE = <MergeTree, or what it was>",
            *partition,
            "ORDER BY <the sort order it was made with>",
            "SETTINGS storage_policy = '<policy>'",
        ]
    )


def _type_text(column: SourceColumn) -> str:
    try:
        return written(parse(column.kind))
    except NotAType:
        return "<a type that is not understood here>"


def _read(store: ObjectStore, part: ClickHousePart) -> tuple[int | None, list[SourceColumn]]:
    rows: int | None = None
    found: list[SourceColumn] = []
    try:
        rows = count_in(store, part)
        name = columns.FILE_NAME
        found = columns.parse(read_file(store, part, name), name=f"{part.directory}/{name}")
    except (Damaged, NotFound):
        pass  # the part's own findings say what it lacks
    return rows, found


def _facts(parts: Sequence[ClickHousePart], facts: dict[str, tuple[int | None, list[SourceColumn]]]) -> TableFacts:
    counts = [facts[part.directory][0] for part in parts]
    counted = [count for count in counts if count is not None]
    kinds: dict[str, SourceColumn] = {}
    for part in sorted(parts, key=lambda part: max(file.revision for file in part.files.values())):
        kinds.update({column.name: column for column in facts[part.directory][1]})
    keys = {match[1] for part in parts for name in part.files if (match := _KEY_COLUMN.match(name))}
    rows = sum(counted) if len(counted) == len(counts) and parts else None
    return TableFacts(len(parts), rows, tuple(kinds.values()), tuple(sorted(keys)))
