"""Hive directories: the directories `key=value` of a path are columns of the files below them, as DuckDB reads them.

Each file goes by its own path alone. Pure; no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from oplog.errors import UsageError
from tiering.insert.inputs.path_steps import NO_HIVE, path_steps, value_of
from tiering.insert.inputs.source_files import InputSource
from tiering.insert.reshaping import Reshaping
from tiering.table.columns.types import cast_column
from tiering.table.names import folded, name_text
from tiering.table.schema import Column

_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,18})\Z", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(Z?)\Z", re.ASCII)


class PathColumn(msgspec.Struct, frozen=True):
    """What each row of a file has in a column, by a directory of its path."""

    column: Column
    """The table's."""
    step: str
    """The directory, for messages."""
    value: pa.Scalar
    """Of the column's type."""


def path_columns(source: InputSource, reshaping: Reshaping) -> dict[str, PathColumn]:
    """Column of the input -> what the path says of it, as far as the table takes it. Raises `UsageError` for a value
    that does not fit, for two values of one key, and for a key that differs from a column in case alone."""
    steps = path_steps(source.named or source.label) if reshaping.hive else {}
    if not steps:
        return {}
    columns = reshaping.columns()
    similar = {folded(name): name for name in columns}
    found: dict[str, PathColumn] = {}
    for key, same in steps.items():
        column = columns.get(key)
        if column is None:
            if folded(key) in similar and key not in reshaping.renames and not reshaping.select:
                raise UsageError(
                    f"{source.label}: the directory {same[0]} differs in case alone from column {similar[folded(key)]} "
                    f"of {reshaping.definition.full_name}",
                    hint=f"map it with --rename-column '{name_text(key)}:COLUMN'; or {NO_HIVE}",
                )
            continue
        if len({value_of(step, source.label) for step in same}) > 1:
            raise UsageError(f"{source.label}: {' and '.join(same)} are two values of one column", hint=NO_HIVE)
        text = value_of(same[0], source.label)
        try:
            typed = cast_column(pa.array([text], pa.string()), column, where="", first_row=0)
        except UsageError as error:
            raise UsageError(
                f"{source.label}: the directory {same[0]} holds no {column.type}, as column {column.name} is",
                hint=f"rename the directory; or {NO_HIVE}",
            ) from error
        found[key] = PathColumn(column, same[0], typed[0])
    return found


def with_path_columns(
    batch: pa.RecordBatch, columns: dict[str, PathColumn], *, label: str, first_row: int, nulls_are_absent: bool
) -> pa.RecordBatch:
    """The batch with these columns. `nulls_are_absent`: of a format whose rows need not have all columns. Raises
    `UsageError` where the file has such a column with another value."""
    for name, said in columns.items():
        value = said.value
        values = pa.repeat(value, batch.num_rows) if value.is_valid else pa.nulls(batch.num_rows, value.type)
        if name not in batch.schema.names:
            batch = batch.append_column(name, values)
            continue
        index = batch.schema.names.index(name)
        typed = cast_column(batch.column(index), said.column, where=f"{label}: ", first_row=first_row)
        typed = pc.coalesce(typed, value) if nulls_are_absent and value.is_valid else typed
        same = pc.equal(typed, value) if value.is_valid else typed.is_null()
        if (row := pc.index(pc.fill_null(same, False), False).as_py()) >= 0:
            raise UsageError(
                f"{label}: row {first_row + row + 1} has {typed[row].as_py()!r} in column {name}, and the file is in "
                f"{said.step}",
                hint=f"move the file; or {NO_HIVE}",
            )
        batch = batch.set_column(index, name, typed)
    return batch


def with_path_fields(schema: pa.Schema, paths: Sequence[str]) -> pa.Schema:
    """The schema of a sample with the columns that its paths have, where all have the same ones, in types that hold
    the values of all."""
    steps = [path_steps(path) for path in paths]
    if any(one.keys() != steps[0].keys() for one in steps):
        return schema
    for key in steps[0]:
        if key not in schema.names:
            texts = [value_of(one[key][0], path) for one, path in zip(steps, paths, strict=True)]
            schema = schema.append(pa.field(key, _guessed([text for text in texts if text is not None])))
    return schema


def _guessed(values: Sequence[str]) -> pa.DataType:
    """A whole number, a date or a time where all are one and are written as such; else a text."""
    if values and all(_WHOLE.match(value) and -(2**63) <= int(value) < 2**63 for value in values):
        return pa.int64()
    try:
        if values and all(_DATE.match(value) and date.fromisoformat(value) for value in values):
            return pa.date32()
        times = [_TIME.match(value) for value in values]
        if values and all(time and datetime.fromisoformat(time[0]) for time in times):
            return pa.timestamp("us", "UTC" if all(time and time[1] for time in times) else None)
    except ValueError:
        pass
    return pa.string()
