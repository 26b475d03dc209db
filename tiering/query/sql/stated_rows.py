"""Files of which `part.json` says all that a statement wants: how many rows they have, their smallest and largest
values. The engine gets rows that it computes the same from, and nobody asks the bucket.

A file's filter must be true for all of its rows, by its ranges, and the values must be those that are in it: not of
floats, whose NaNs the ranges leave out, nor of texts that may be shortened, nor of a type that the column had before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from tiering.query.selection import SelectedFile
from tiering.query.sql.column_types import column_sql_type, text
from tiering.query.sql.file_places import by_version
from tiering.query.sql.plan import Access, is_exact
from tiering.query.sql.plan_shapes import Summary
from tiering.query.sql.planning import HeldColumn
from tiering.table.part import ColumnRange
from tiering.table.pruning import all_match, columns_of, domain_value, range_key
from tiering.table.schema import Column, TableDefinition

_SHORT = 64
"""Texts of this length or more may be shortened ones."""


class StatedRows(msgspec.Struct, frozen=True):
    """Rows of files that are not read."""

    rows: int
    ranges: dict[int, ColumnRange]
    """Of the columns that are wanted, by their places in the table."""

    def source(self, definition: TableDefinition, *, counts: bool) -> tuple[str, dict[int, HeldColumn | None]]:
        """Rows with these columns, and what each column id is called there; None for those that are not there."""
        most = self.rows if counts else min(self.rows, 2)
        columns = []
        for place, known in self.ranges.items():
            column, valued = definition.columns[place], min(self.rows - known.nulls, most)
            low, high = (_literal(column, bound) for bound in (known.min, known.max))
            value = f"CASE WHEN i = 0 THEN {low} WHEN i < {valued} THEN {high} END" if valued else "NULL"
            columns.append(f"{value} AS c{place}")
        names = {
            column.id: HeldColumn(f"c{place}") if place in self.ranges else None
            for place, column in enumerate(definition.columns)
        }
        return f"(SELECT {', '.join(columns)} FROM range({most}) AS stated(i))", names


def stated_rows(
    files: Sequence[SelectedFile], definition: TableDefinition, access: Access, summary: Summary
) -> tuple[Sequence[SelectedFile], StatedRows | None]:
    """The files that have to be read, and what is known of the others."""
    places = sorted(access.columns)
    columns = [definition.columns[place] for place in places]
    if not is_exact(access.predicate) or not places or not summary.columns <= access.columns:
        return files, None
    if not all(map(_is_plain, columns)) or not columns_of(access.predicate) <= {column.name for column in columns}:
        return files, None
    stated = [file for file in files if _is_stated(file, definition, access, summary)]
    rows = sum(file.file.rows for file in stated)
    if not rows:
        return files, None
    ranges = {place: _over(stated, definition.columns[place]) for place in places}
    by_key = {range_key(definition.columns[place]): known for place, known in ranges.items()}
    if not all_match(access.predicate, rows, by_key, definition):  # for any two values of different files, too
        return files, None
    left = set(map(id, stated))
    return [file for file in files if id(file) not in left], StatedRows(rows, ranges)


def first_files(
    files: Sequence[SelectedFile], definition: TableDefinition, access: Access, enough: int
) -> tuple[Sequence[SelectedFile], dict[int, Collection[int]]] | None:
    """The first files, in the order in which they are read, that have so many rows of the answer; and of each, by its
    `id`, the row groups of it that do. None where `part.json` does not say."""
    if not is_exact(access.predicate):
        return None
    chosen: list[SelectedFile] = []
    groups: dict[int, Collection[int]] = {}
    for members in by_version(files).values():
        for file in members:
            if enough <= 0:
                return chosen, groups
            if not all_match(access.predicate, file.file.rows, file.file.columns, definition):
                return None
            chosen.append(file)
            if file.local_path is not None:
                enough -= file.file.rows
                continue
            taken = 0
            while enough > 0 and taken < len(file.file.row_groups):
                enough -= file.file.row_groups[taken].rows
                taken += 1
            groups[id(file)] = range(taken)
    return chosen, groups


def _is_plain(column: Column) -> bool:
    kind = column.type
    return (
        kind in ("bool", "date", "string")
        or kind.removeprefix("u").startswith("int")
        or kind.startswith("decimal")
        or (kind.startswith("timestamp") and not kind.startswith("timestamp[ns"))
    )


def _is_stated(file: SelectedFile, definition: TableDefinition, access: Access, summary: Summary) -> bool:
    if file.local_path is not None or not file.file.rows or file.schema_version != definition.schema_version:
        return False
    columns = {place: definition.columns[place] for place in access.columns}
    known = {place: file.file.columns.get(range_key(column)) for place, column in columns.items()}
    return all(
        one is not None and _is_known(one, columns[place], file.file.rows, exactly=place in summary.columns)
        for place, one in known.items()
    ) and all_match(access.predicate, file.file.rows, file.file.columns, definition)


def _is_known(values: ColumnRange, column: Column, rows: int, *, exactly: bool) -> bool:
    if values.nulls >= rows:
        return values.nulls == rows
    bounds = domain_value(column.type, values.min), domain_value(column.type, values.max)
    if None in bounds:
        return False
    return not exactly or column.type != "string" or all(len(bound) < _SHORT for bound in bounds)


def _over(files: Sequence[SelectedFile], column: Column) -> ColumnRange:
    """The range over all of them."""
    found = [(file.file.columns[range_key(column)], file.file.rows) for file in files]
    valued = [known for known, rows in found if known.nulls < rows]

    def bound(value: Any) -> Any:
        return domain_value(column.type, value)

    low = min((known.min for known in valued), key=bound, default=None)
    high = max((known.max for known in valued), key=bound, default=None)
    return ColumnRange(low, high, sum(known.nulls for known, _ in found))


def _literal(column: Column, stored: Any) -> str:
    """A bound as a constant of the engine."""
    value = domain_value(column.type, stored)
    if value is None:
        return "NULL"
    if column.type == "string":
        return text(value)
    if column.type == "date":
        return f"(DATE '1970-01-01' + {value})"
    if column.type.startswith("timestamp"):
        return f"make_timestamp{'tz' if ',' in column.type else ''}({value // 1000})"
    return str(value).lower() if column.type == "bool" else f"CAST('{value}' AS {column_sql_type(column.type)})"
