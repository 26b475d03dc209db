"""From the columns of an input to those of the table: chosen, renamed, filled in. Pure; no I/O.

What is not asked for stays as it is: a column goes to the table's column of its name. Paths such as `b.c` lead into
structs (JSON objects); a name that has a dot itself is found first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from oplog.errors import UsageError
from tiering.table.columns.nested import without_unknown
from tiering.table.columns.type_texts import arrow_type, split_outside
from tiering.table.columns.types import cast_column, default_array, default_scalar
from tiering.table.definitions import typed_default
from tiering.table.names import NAME, listed, split_pair, unquoted
from tiering.table.schema import Column, TableDefinition

_EMPTY = '""'
_ITEM = re.compile(r'\s*(.+?)(?:\s+as\s+("(?:[^"]|"")+"|\S+))?\s*\Z', re.IGNORECASE)


NULLS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N")
"""What an empty field of CSV looks like, where nobody says otherwise."""


class Reshaping(msgspec.Struct, frozen=True):
    """What becomes of an input's columns."""

    definition: TableDefinition
    select: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Path in the input -> the table's column. Nothing given: every column under its own name."""
    renames: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Column of the input -> the table's column."""
    ignore_unknown: bool = False
    """Columns that the table does not have are left out, and not refused."""
    defaults: Mapping[str, Column] = msgspec.field(default_factory=dict)
    """The table's columns that get a value, their `default`, where the input has none."""
    flatten: bool = False
    """Fields of structs are columns called `struct.field`, as deep as they go, unless the table has the struct."""
    nulls: tuple[str, ...] = NULLS
    """What stands for no value in CSV, in every column, unless it is quoted."""
    hive: bool = True
    """Directories `key=value` of an input's path are columns of it."""

    def columns(self) -> dict[str, Column]:
        """Path in the input -> the table's column, as far as that is known before the input is."""
        by_name = {column.name: column for column in self.definition.columns}
        if self.select:
            return {path: by_name[name] for path, name in self.select.items() if name in by_name}
        taken = set(self.renames.values())
        named = {name: by_name[new] for name, new in self.renames.items() if new in by_name}
        return {name: column for name, column in by_name.items() if name not in taken} | named

    def required_paths(self) -> list[str]:
        """The paths that the input must have, because somebody named them; those with a default need not be there."""
        named = self.select or self.renames
        return [path for path, name in named.items() if name not in self.defaults]

    def apply(self, batch: pa.RecordBatch, *, where: str, seen: set[str] | None = None) -> pa.RecordBatch:
        """The batch with the table's names, and the defaults filled in. Raises `UsageError` for what is not there.

        `seen`: of an input whose rows need not have all columns; gets the paths that this batch has.
        """
        if self.flatten:
            batch = flattened(batch, {column.name for column in self.definition.columns})
        batch = self._picked(batch, where, seen) if self.select else self._renamed(batch, where, seen)
        if self.ignore_unknown:
            known = {column.name: arrow_type(column.type) for column in self.definition.columns}
            named = zip(batch.schema.names, batch.columns, strict=True)
            kept = [(name, without_unknown(array, known[name])) for name, array in named if name in known]
            batch = pa.RecordBatch.from_arrays([array for _, array in kept], [name for name, _ in kept])
        for name, column in self.defaults.items():
            if name not in batch.schema.names:
                batch = batch.append_column(name, default_array(column, batch.num_rows))
            elif batch.column(name).null_count:
                index = batch.schema.names.index(name)
                typed = cast_column(batch.column(index), column, where=where, first_row=0)
                batch = batch.set_column(index, name, pc.coalesce(typed, default_scalar(column)))
        return batch

    def _picked(self, batch: pa.RecordBatch, where: str, seen: set[str] | None) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        names: list[str] = []
        for path, name in self.select.items():
            array = _at(batch, path, where)
            if array is None and seen is None and name not in self.defaults:
                raise _missing(path, batch.schema.names, where)
            if array is not None:
                arrays.append(array)
                names.append(name)
                if seen is not None:
                    seen.add(path)
        if not arrays:
            raise _missing(listed(list(self.select)), batch.schema.names, where)
        return pa.RecordBatch.from_arrays(arrays, names)

    def _renamed(self, batch: pa.RecordBatch, where: str, seen: set[str] | None) -> pa.RecordBatch:
        there = batch.schema.names
        for name, new in self.renames.items():
            if name in there and seen is not None:
                seen.add(name)
            elif name not in there and seen is None and new not in self.defaults:
                raise _missing(name, there, where)
        return batch.rename_columns([self.renames.get(name, name) for name in there]) if self.renames else batch


def parse_reshaping(
    definition: TableDefinition,
    *,
    select: str | None = None,
    rename: Sequence[str] = (),
    ignore_unknown: bool = False,
    default: Sequence[str] = (),
    flatten: bool = False,
    null: Sequence[str] | None = None,
    hive: bool = True,
) -> Reshaping:
    """The reshaping of the words of `insert`, where no `null` is `NULLS`. Raises `UsageError` or `NotFound` for what
    does not fit the table."""
    if select is not None and rename:
        raise UsageError(
            "--select and --rename-column do not go together", hint="write the new name as 'a as b' in --select"
        )
    chosen = _parse_select(select) if select is not None else {}
    renames = parse_renames(rename)
    for name in (*chosen.values(), *renames.values()):
        definition.column(name)
    _check_once([*chosen.values()] or [*renames.values()])
    defaults: dict[str, Column] = {}
    for text in default:
        name, value = _pair(text, "=", "--default COLUMN=VALUE")
        column = definition.column(name)
        if name in defaults:
            raise UsageError(f"--default names column {name} twice", hint="name each column once")
        defaults[name] = msgspec.structs.replace(column, default=typed_default(column, value))
    nulls = NULLS if null is None else tuple(null)
    return Reshaping(definition, chosen, renames, ignore_unknown, defaults, flatten, nulls, hive)


def parse_renames(texts: Sequence[str]) -> dict[str, str]:
    """Column of the input -> the table's column, of the words of `--rename-column`. Raises `UsageError`."""
    return dict(_pair(text, ":", "--rename-column A:B") for text in texts)


def renamed_schema(schema: pa.Schema, renames: Mapping[str, str], label: str) -> pa.Schema:
    """The schema of a sample with the table's names. Raises `UsageError` for a column that it does not have, and for
    two of one name."""
    if missing := [name for name in renames if name not in schema.names]:
        raise _missing(missing[0], schema.names, f"{label}: ")
    names = [renames.get(name, name) for name in schema.names]
    _check_once(names)
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def flattened(batch: pa.RecordBatch, kept: Collection[str] = ()) -> pa.RecordBatch:
    """The batch with the fields of structs as columns, but for the structs that are kept."""
    arrays: list[pa.Array] = []
    names: list[str] = []

    def add(name: str, array: pa.Array) -> None:
        if name in kept or not pa.types.is_struct(array.type):
            arrays.append(array)
            names.append(name)
            return
        for number, inner in enumerate(array.type):
            add(f"{name}.{inner.name}", pc.struct_field(array, [number]))

    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        add(name, array)
    return pa.RecordBatch.from_arrays(arrays, names) if names else batch


def _parse_select(text: str) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for item in split_outside(text):
        match = _ITEM.match(item)
        if match is None:
            raise UsageError(f"not a list of columns: {text!r}", hint="write --select 'a,b.c as d'")
        path = "" if match[1] == _EMPTY else NAME.sub(lambda quoted: unquoted(quoted[0]), match[1])
        last = path if NAME.fullmatch(match[1]) else path.rpartition(".")[2]
        name = unquoted(match[2]) if match[2] else last
        if path in chosen:
            raise UsageError(f"--select names {path} twice", hint="name each column of the input once")
        chosen[path] = name
    return chosen


def _pair(text: str, between: str, how: str) -> tuple[str, str]:
    """A name, which may be empty in an input, and what stands behind it."""
    name, value = split_pair(text, between) or ("", "")
    if not (value if between == ":" else name):
        raise UsageError(f"not understood: {text!r}", hint=f"write {how}")
    return name, unquoted(value.strip()) if between == ":" else value


def _check_once(names: Iterable[str]) -> None:
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise UsageError(
            f"column {listed(twice)} would be filled twice", hint="give each one a name of its own: 'a as b'"
        )


def _at(batch: pa.RecordBatch, path: str, where: str) -> pa.Array | None:
    """What lies at the path; None when nothing does."""
    names = batch.schema.names
    steps = path.split(".")
    for count in range(len(steps), 0, -1):
        name = ".".join(steps[:count])
        if name in names:
            return _inside(batch.column(names.index(name)), steps[count:], path, where)
    return None


def _inside(array: pa.Array, steps: Sequence[str], path: str, where: str) -> pa.Array | None:
    for step in steps:
        if pa.types.is_null(array.type):
            return None
        if not pa.types.is_struct(array.type):
            raise UsageError(
                f"{where}{path}: {step} cannot be taken out of {array.type}", hint="a path leads through structs only"
            )
        if array.type.get_field_index(step) < 0:
            return None
        array = pc.struct_field(array, step)
    return array


def _missing(path: str, names: Sequence[str], where: str) -> UsageError:
    return UsageError(f"{where}there is no column {path}", hint=f"the input has: {listed(names) or 'no columns'}")


def explicit_type(paths: Mapping[tuple[str, ...], pa.DataType]) -> dict[str, pa.DataType]:
    """The types of columns that hold these paths: structs of what lies in them."""
    found: dict[str, pa.DataType] = {}
    inside: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for steps, kind in paths.items():
        if len(steps) == 1:
            found[steps[0]] = kind
        else:
            inside.setdefault(steps[0], {})[steps[1:]] = kind
    for name, rest in inside.items():
        if name not in found:
            found[name] = pa.struct(list(explicit_type(rest).items()))
    return found


def source_types(reshaping: Reshaping) -> dict[str, pa.DataType]:
    """Path in the input -> the type that its values are for."""
    return {path: arrow_type(column.type) for path, column in reshaping.columns().items()}
