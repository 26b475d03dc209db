"""Where the files of a table have its columns: by the schema version that they were written in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tiering.catalog.context import Context
from tiering.parquet.read_cache import ReadCache
from tiering.query.checked_parts import StoreReads, read_schema
from tiering.query.selection import SelectedFile
from tiering.query.sql.column_types import engine_names, is_flat
from tiering.query.sql.plan import Access
from tiering.table.names import folded
from tiering.table.schema import TableDefinition


class FilePlace(msgspec.Struct, frozen=True):
    """Where a file has a column."""

    column: int
    """Among its columns."""
    leaves: range
    """Among what it keeps values of: of one that is nested, there are several."""
    held: Any = None
    """The type that the file has, with ids, where the fields within the column are other ones today."""


def file_places(
    context: Context,
    definition: TableDefinition,
    version: int,
    file: SelectedFile,
    *,
    cache: ReadCache | None = None,
    counted: StoreReads | None = None,
) -> dict[int, FilePlace]:
    """Column id -> where the files of this schema version have it; `file` is one of them."""
    current = version == definition.schema_version
    if current and all(is_flat(column.type) for column in definition.columns):
        places = enumerate(definition.columns)
        return {column.id: FilePlace(place, range(place, place + 1)) for place, column in places}
    from tiering.table.columns.nested_ids import held_type, is_current
    from tiering.table.columns.type_texts import leaf_ranges
    from tiering.table.columns.types import arrow_schema, field_ids

    if current:
        schema = arrow_schema(definition)
    else:
        schema = read_schema(context, file.stored, file.file, cache=cache, counted=counted)
    columns = {column.id: column for column in definition.columns}
    names = {name: number for number, name in field_ids(schema).items()}
    leaves = leaf_ranges(schema.types)
    found = {}
    for place, field in enumerate(schema):
        if (number := names.get(field.name)) is None:
            continue
        column = columns.get(number)
        is_other = not current and column is not None and not is_current(field.type, column, definition)
        held = held_type(field.type, column, definition) if is_other and column is not None else None
        found[number] = FilePlace(place, leaves[place], held)
    return found


def leaves_read(definition: TableDefinition, access: Access, places: Mapping[int, FilePlace]) -> list[int]:
    """What is read of a file that has the columns at these places, in order."""
    ids = (definition.columns[column].id for column in access.columns)
    return sorted(leaf for number in ids if number in places for leaf in places[number].leaves)


def by_version(files: Iterable[SelectedFile]) -> dict[int, list[SelectedFile]]:
    found: dict[int, list[SelectedFile]] = {}
    for file in files:
        found.setdefault(file.schema_version, []).append(file)
    return found


def file_names(definition: TableDefinition, places: Mapping[int, FilePlace]) -> list[str]:
    """What the columns of a file are called, as far as it needs them: by their names of today, which plans show."""
    names = engine_names(definition)
    today = {places[column.id].column: names[column.name] for column in definition.columns if column.id in places}
    taken = {folded(name) for name in today.values()}
    found = []
    for place in range(max(known.column for known in places.values()) + 1):
        name = today.get(place, f"c{place}")
        while place not in today and folded(name) in taken:
            name += "_"
        taken.add(folded(name))
        found.append(name)
    return found
