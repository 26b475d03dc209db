"""Columns as Arrow fields, and casting what comes in to what the table says.

Field ids ride in the Arrow field metadata as `PARQUET:field_id`, which Parquet writers store, so a column, and a field
within one, keeps its identity through renames.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

import pyarrow as pa

from oplog.errors import UsageError
from tiering.table.columns.kept_values import check_kept
from tiering.table.columns.nested import cast_nested
from tiering.table.columns.nested_ids import FIELD_ID, column_type
from tiering.table.columns.sound_values import first_failing, shown_value, sound_column
from tiering.table.columns.type_texts import arrow_type
from tiering.table.names import folded, listed, name_text
from tiering.table.schema import Column, TableDefinition

_EPOCH = date(1970, 1, 1)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MOST_NANOSECONDS = (1 << 63) - 1


def arrow_field(column: Column) -> pa.Field:
    """The column as an Arrow field that carries the field id, and those of the fields within it."""
    return pa.field(column.name, column_type(column), column.nullable, {FIELD_ID: str(column.id).encode()})


def arrow_schema(definition: TableDefinition) -> pa.Schema:
    """The table's columns as an Arrow schema with field ids."""
    return pa.schema([arrow_field(column) for column in definition.columns])


def plain_schema(definition: TableDefinition) -> pa.Schema:
    """The table's columns as answers have them: without ids, and any may be null."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in definition.columns])


def field_ids(schema: pa.Schema) -> dict[int, str]:
    """Field id -> name of a schema read from Parquet; fields without an id are left out."""
    found: dict[int, str] = {}
    for field in schema:
        text = (field.metadata or {}).get(FIELD_ID)
        if text is not None:
            found[int(text)] = field.name
    return found


def default_scalar(column: Column) -> pa.Scalar:
    """The column's default as an Arrow scalar; a null when there is none. Raises `UsageError` if it does not fit."""
    kind = arrow_type(column.type)
    if column.default is None:
        return pa.scalar(None, kind)
    try:
        if isinstance(column.default, str) and not pa.types.is_string(kind):
            return _cast(pa.array([column.default], pa.string()), kind)[0]
        return pa.scalar(column.default, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"default {column.default!r} does not fit column {column.name} of type {column.type}",
            hint=f"{str(error) or 'it is out of range'}; use a value of the type",
        ) from error


def default_array(column: Column, rows: int) -> pa.Array:
    """The column's default, `rows` times."""
    value = default_scalar(column)
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def cast_batch(
    batch: pa.RecordBatch,
    definition: TableDefinition,
    *,
    source: str = "",
    first_row: int = 0,
) -> pa.RecordBatch:
    """The batch with exactly the table's columns and types, matched by name.

    Missing nullable columns become their default or null. Raises `UsageError` that names the source, the column and
    where possible the row (counted from 1, after `first_row` earlier ones) and the value: for values that do not fit,
    missing columns without a default, nulls in a column that takes none, and unknown columns.
    """
    import pyarrow.compute as pc

    where = f"{source}: " if source else ""
    check_names(batch.schema.names, definition, where=where)
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = []
    for column in definition.columns:
        if column.name in given:
            array = cast_column(given[column.name], column, where=where, first_row=first_row)
        else:
            array = default_array(column, batch.num_rows)
        if not column.nullable and array.null_count:
            row = first_row + 1 + (pc.index(array.is_null(), True).as_py() or 0)
            raise UsageError(
                f"{where}column {column.name} is null in row {row}, but the table does not allow it",
                hint="fill the value in, or leave the row out",
            )
        if (far := first_far(array)) is not None:
            row = first_row + far + 1
            raise UsageError(
                f"{where}column {column.name} is {FAR} in row {row}",
                hint="make it null there, or set the row aside with --skip-bad-rows",
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(definition))


FAR = "before the year 1, after 9999 or infinite"
"""What `first_far` finds. A duration is infinite above 292 years."""


def first_far(array: pa.Array) -> int | None:
    """The first row with a moment that Python or a query does not have, also within structs: bounds are kept of these.
    So of a duration: answers hold nanoseconds."""
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_struct(kind):
        return min((row for row in map(first_far, array.flatten()) if row is not None), default=None)
    if pa.types.is_duration(kind) and kind.unit == "us":
        least, most = -_MOST_NANOSECONDS // 1000 + 1, _MOST_NANOSECONDS // 1000
    elif pa.types.is_timestamp(kind) and kind.unit == "ns":
        least, most = 1 - _MOST_NANOSECONDS, _MOST_NANOSECONDS - 1  # a query reads the last ones as infinite
    elif pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        a_day = 1 if pa.types.is_date32(kind) else 86_400 * _PER_SECOND[kind.unit]
        least, last = (a_day * (day.toordinal() - _EPOCH.toordinal()) for day in (date.min, date.max))
        most = last + a_day - 1
    else:
        return None
    numbers = array.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    bounds = pc.min_max(numbers)
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    if lowest is None or least <= lowest <= highest <= most:
        return None
    return int(pc.index(pc.or_(pc.less(numbers, least), pc.greater(numbers, most)), True).as_py())


def check_names(names: list[str], definition: TableDefinition, *, where: str) -> None:
    """Raise `UsageError` for columns that occur twice, that the table does not have, or that it needs."""
    counts = Counter(names)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise UsageError(f"{where}column {listed(twice)} occurs twice", hint="give every column its own name")
    known = {column.name for column in definition.columns}
    unknown = [name for name in names if name not in known]
    similar = {folded(column.name): column.name for column in definition.columns}
    if name := next((name for name in unknown if folded(name) in similar), None):
        raise UsageError(
            f"{where}column {name} differs in case alone from column {similar[folded(name)]} of {definition.full_name}",
            hint=f"map it with --rename-column '{name_text(name)}:COLUMN', or leave it out with --select",
        )
    if unknown:
        raise UsageError(
            f"{where}unknown columns: {listed(unknown)}",
            hint=f"table {definition.full_name} has: {listed([column.name for column in definition.columns])}; "
            "add the columns with 'frostline table alter --add-column', or rename (--rename-column A:B) or leave out "
            "(--select) those of the input",
        )
    for column in definition.columns:
        needed = column.name in definition.order_by or (not column.nullable and column.default is None)
        if column.name not in counts and needed:
            role = "sort column" if column.name in definition.order_by else "column"
            raise UsageError(
                f"{where}the {role} {column.name} is missing",
                hint=f"the input has: {listed(names) or 'no columns'}",
            )


def cast_column(array: pa.Array, column: Column, *, where: str, first_row: int) -> pa.Array:
    """The array as the column's type. Raises `UsageError` as `cast_batch` does."""
    kind = arrow_type(column.type)
    array = sound_column(array, column.name, where=where, first_row=first_row)
    if array.type == kind:
        return array
    array = _as_stored(array)
    if _loses_meaning(array.type, kind):
        raise UsageError(
            f"{where}column {column.name} is {array.type} in the input, but {column.type} in the table",
            hint="convert the column before inserting it",
        )
    try:
        return _cast(array, kind)
    except UsageError as error:
        raise UsageError(f"{where}column {column.name}: {error.message}", hint=error.hint) from error
    except pa.ArrowException as error:
        row = first_failing(array, lambda some: _cast(some, kind))
        shown = (
            f"row {first_row + row + 1} has {shown_value(array[row : row + 1])!r}" if row is not None else str(error)
        )
        raise UsageError(
            f"{where}column {column.name} must be {column.type}, but {shown}", hint=str(error).splitlines()[0]
        ) from error


def _as_stored(array: pa.Array) -> pa.Array:
    """The values of runs, and of types that only say what their values are, such as JSON; but for UUIDs. Structs
    without fields are the text that JSON has for them."""
    if pa.types.is_run_end_encoded(array.type):
        import pyarrow.compute as pc

        array = pc.run_end_decode(array)
    if pa.types.is_struct(array.type) and not array.type.num_fields:
        texts = [None if is_null else "{}" for is_null in array.is_null().to_pylist()]
        return pa.array(texts, pa.string())
    return array.storage if isinstance(array, pa.ExtensionArray) and array.type != pa.uuid() else array


def _loses_meaning(source: pa.DataType, target: pa.DataType) -> bool:
    """Casts that Arrow would do but nobody means: numbers to times or text, times to numbers, numbers to truth, moments
    to times of a day."""
    if pa.types.is_time(target) and pa.types.is_timestamp(source):
        return True
    numeric = pa.types.is_integer(source) or pa.types.is_floating(source) or pa.types.is_decimal(source)
    if pa.types.is_duration(target):
        return not (pa.types.is_integer(source) or pa.types.is_duration(source) or pa.types.is_string(source))
    if pa.types.is_temporal(target):
        return bool(numeric or pa.types.is_boolean(source))
    if pa.types.is_string(target):
        return not (
            pa.types.is_string(source)
            or pa.types.is_large_string(source)
            or pa.types.is_string_view(source)
            or pa.types.is_null(source)
            or pa.types.is_dictionary(source)
        )
    if pa.types.is_temporal(source):
        return bool(not pa.types.is_temporal(target))
    if pa.types.is_boolean(target):
        return bool(numeric)
    return False


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as the type. Raises `pa.ArrowException` for values that it does not have."""
    if pa.types.is_dictionary(array.type):
        array = _without_dictionary(array)
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    if pa.types.is_nested(kind):
        return cast_nested(array, kind, _cast_inner)
    found = _cast_plain(array, kind)
    check_kept(array, found)
    return found


def _cast_plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.uuid():
        return _as_uuids(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_timestamp(kind) and pa.types.is_date(array.type):
        return array.cast(pa.timestamp(kind.unit)).cast(kind)
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type) and array.type.tz is None and kind.tz:
        # A time without a zone is UTC everywhere in Frostline.
        return array.cast(pa.timestamp(kind.unit)).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    if pa.types.is_timestamp(kind) and pa.types.is_string(array.type):
        return _parse_times(array, kind)
    if pa.types.is_time(kind) and pa.types.is_string(array.type):
        return pa.array([_time_of_day(text) for text in array.to_pylist()], kind)
    if pa.types.is_duration(kind) and pa.types.is_string(array.type):
        return pa.array([_microseconds(text) for text in array.to_pylist()], pa.int64()).cast(kind)
    if pa.types.is_decimal(kind) and pa.types.is_integer(array.type):
        # Arrow judges by the type, not by the values: go through a decimal that holds any whole number.
        return array.cast(pa.decimal128(38, kind.scale)).cast(kind)
    return array.cast(kind)


def _without_dictionary(array: pa.DictionaryArray) -> pa.Array:
    values = array.dictionary
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):  # Arrow takes nothing out of these
        plain = pa.string() if pa.types.is_string_view(values.type) else pa.binary()
        array = pa.DictionaryArray.from_arrays(array.indices, values.cast(plain))
    return array.dictionary_decode()


def widened(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What a part holds that is older than the column's type, as that."""
    return array if array.type.equals(kind) else _cast(array, kind)


def _cast_inner(array: pa.Array, kind: pa.DataType) -> pa.Array:
    array = _as_stored(array)
    if array.type != kind and _loses_meaning(array.type, kind):
        raise pa.ArrowInvalid(f"{array.type} is no {kind}")
    return _cast(array, kind)


def _as_uuids(array: pa.Array) -> pa.Array:
    """Of texts, as everybody writes them, or of sixteen bytes."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        try:
            values = [None if text is None else UUID(text).bytes for text in array.to_pylist()]
        except ValueError as error:
            raise pa.ArrowInvalid(f"a text is no UUID: {error}") from error
        return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    return pa.ExtensionArray.from_storage(pa.uuid(), storage.cast(pa.binary(16)))


def _microseconds(text: str | None) -> int | None:
    """Of `1.5 seconds`, as a query answers it; of a whole number, itself."""
    try:
        if text is None or not text.rstrip().endswith(" seconds"):
            return None if text is None else int(text)
        count = Decimal(text.rstrip().removesuffix(" seconds")).scaleb(6)
        if count != int(count):
            raise ValueError("finer than microseconds")
        return int(count)
    except (ValueError, ArithmeticError) as error:
        raise pa.ArrowInvalid(f"a text is no duration: {text!r}; write '1.5 seconds'") from error


def _time_of_day(text: str | None) -> time | None:
    try:
        found = None if text is None else time.fromisoformat(text.strip())
    except ValueError as error:
        raise pa.ArrowInvalid(f"a text is no time of a day: {text!r}") from error
    if found is not None and found.tzinfo is not None:
        raise pa.ArrowInvalid(f"a time of a day has no zone: {text!r}")
    return found


def _parse_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts that all have a zone or all have none; the latter are UTC, and so are times of a column without a zone."""
    zoned, bare = pa.timestamp(kind.unit, "UTC"), pa.timestamp(kind.unit)
    try:
        return texts.cast(zoned).cast(kind if kind.tz else bare)
    except pa.ArrowInvalid:
        try:
            return texts.cast(bare) if kind.tz is None else texts.cast(bare).cast(zoned).cast(kind)
        except pa.ArrowInvalid:
            if kind.unit != "ns":
                raise
            return _parse_nanoseconds(texts, kind)


_FRACTION = r"^(.{10}[T ]\d\d:\d\d:\d\d)\.(\d{1,9})(.*)$"


def _parse_nanoseconds(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same of nanoseconds, also in the first second that they reach, of which Arrow reads no text."""
    import pyarrow.compute as pc

    has_fraction = pc.match_substring_regex(texts, _FRACTION)
    digits = pc.replace_substring_regex(texts, _FRACTION, r"\2")
    fraction = pc.utf8_rpad(pc.if_else(has_fraction, digits, "0"), 9, "0").cast(pa.int64())
    whole = pc.replace_substring_regex(texts, _FRACTION, r"\1\3")
    seconds = _parse_times(whole, pa.timestamp("s", "UTC")).cast(pa.int64())
    before = pc.if_else(pc.less(seconds, 0), 1, 0)  # from the second after it, which has a number, back to it
    start = pc.multiply_checked(pc.add(seconds, before), _PER_SECOND["ns"])
    counted = pc.add_checked(start, pc.subtract(fraction, pc.multiply(before, _PER_SECOND["ns"])))
    return counted.cast(pa.timestamp("ns", kind.tz))


def moment_text(count: int, unit: str) -> str:
    """A moment, so many units after 1970-01-01 UTC, as `part.json` holds it: nine digits of a second where six are too
    few. The years are those that Python has."""
    seconds, fraction = divmod(count, _PER_SECOND[unit])
    nanoseconds = fraction * (_PER_SECOND["ns"] // _PER_SECOND[unit])
    text = (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat()
    if nanoseconds % 1000:
        return f"{text}.{nanoseconds:09d}Z"
    return f"{text}.{nanoseconds // 1000:06d}Z" if nanoseconds else f"{text}Z"


def as_json(value: Any) -> Any:
    """A Python value of a column as `part.json` holds it: times in RFC 3339 UTC, decimals and binary as text.

    Binary is hexadecimal. Not-a-number and infinities are None: they bound nothing.
    """
    match value:
        case datetime():
            utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
            return utc.replace(tzinfo=None).isoformat() + "Z"
        case date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case float():
            return value if isfinite(value) else None
        case _:
            return value


def from_json(value: Any, kind: pa.DataType) -> Any:
    """The Python value of what `as_json` wrote for a column of this type. Times with a zone come back in UTC."""
    if value is None or pa.types.is_nested(kind):
        return value
    if pa.types.is_time(kind):
        return time.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(value)  # of a column that was of dates, a day
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) if kind.tz else moment.replace(tzinfo=None)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_binary(kind):
        return bytes.fromhex(value)
    return value
