"""Whether values that come from outside can be read at all: texts are UTF-8, and offsets stay in their buffers. Pure.

Arrow takes both on trust, and nothing else may touch an array before it was looked at: an offset that leads out of its
buffer ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy
import pyarrow as pa

from oplog.errors import UsageError
from tiering.table.columns.kept_values import is_text

_BYTES_OF = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def is_sound(array: pa.Array) -> bool:
    """Whether all that the array holds can be read: a quick look, also at values that no row of a slice has."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def holds_text(kind: pa.DataType) -> bool:
    """Whether there are texts anywhere in the type."""
    if pa.types.is_nested(kind):
        return any(holds_text(kind.field(number).type) for number in range(kind.num_fields))
    return is_text(kind)


def rows_without_text(array: pa.Array) -> list[int]:
    """The rows with bytes that are no UTF-8 where texts should be, at any depth. Raises `pa.ArrowInvalid` for an array
    whose values cannot be told apart."""
    return sorted(_rows(array))


def unreadable_rows(array: pa.Array, name: str, *, where: str, first_row: int) -> list[int] | None:
    """The rows whose texts are no UTF-8; None where all that there is can be read. Raises `UsageError` for values that
    cannot be told apart: nothing else may touch these."""
    if is_sound(array):
        return None
    try:
        return rows_without_text(array)
    except pa.ArrowException as error:
        row = first_failing(array, rows_without_text)
        place = f" in row {first_row + row + 1}" if row is not None else ""
        raise UsageError(
            f"{where}column {name} is damaged{place}: {str(error).splitlines()[0]}", hint="write the file again"
        ) from error


def sound_column(array: pa.Array, name: str, *, where: str, first_row: int) -> pa.Array:
    """The array, without what no row of it has. Raises `UsageError` for a row with bytes that are no text, too."""
    rows = unreadable_rows(array, name, where=where, first_row=first_row)
    if rows is None:
        return array
    if not rows:
        return array.take(pa.array(range(len(array)), pa.int64()))
    raise UsageError(
        f"{where}column {name} is not UTF-8 text in row {first_row + rows[0] + 1}",
        hint="convert the text, or let --skip-bad-rows keep the row apart; a column of type binary takes any bytes",
    )


def shown_value(column: pa.Array) -> Any:
    """A column's only value; Arrow's text of what Python has no value for, or would cut to microseconds. Of bytes that
    are no text what can be read of them, where that is known."""
    if not is_sound(column):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return None
        plain = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
        return plain[0].as_py().decode(errors="backslashreplace") if is_sound(plain) else None
    try:
        is_fine = pa.types.is_temporal(column.type) and getattr(column.type, "unit", "") == "ns"
        return column[0].as_py() if not is_fine else _text_of(column)
    except (OverflowError, ValueError, LookupError):  # the last, of a zone that nobody knows
        return _text_of(column)


def _text_of(column: pa.Array) -> str:
    return " ".join(column.to_string().split()).removeprefix("[ ").removesuffix(" ]")


def first_failing(array: pa.Array, read: Callable[[pa.Array], object]) -> int | None:
    """The first row that cannot be read or cast, found by halving; None when no single row is to blame."""

    def fails(low: int, high: int) -> bool:
        try:
            read(array.slice(low, high - low))
        except pa.ArrowException:
            return True
        return False

    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if fails(low, middle):
            high = middle
        elif fails(middle, high):
            low = middle
        else:
            return None
    return low if high > low and fails(low, high) else None


def _rows(array: pa.Array) -> set[int]:
    kind = array.type
    array.validate()
    if isinstance(array, pa.ExtensionArray):
        return _rows(array.storage)
    if pa.types.is_struct(kind):
        return set[int]().union(*(_rows(array.field(number)) for number in range(kind.num_fields)))
    if pa.types.is_dictionary(kind):
        return _dictionary_rows(array)
    if pa.types.is_map(kind):
        return _list_rows(array, pa.list_(pa.null()), (array.keys, array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        empty = pa.list_(pa.null()) if pa.types.is_list(kind) else pa.large_list(pa.null())
        return _list_rows(array, empty, (array.values,))
    if pa.types.is_fixed_size_list(kind) and kind.list_size:
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return {row // kind.list_size for row in _rows(values)}
    return set(_without_text(array))


def _dictionary_rows(array: pa.DictionaryArray) -> set[int]:
    indices = array.indices.cast(pa.int64())
    numbers = indices.to_numpy(zero_copy_only=False)
    is_valid = indices.is_valid().to_numpy(zero_copy_only=False)
    if ((numbers[is_valid] < 0) | (numbers[is_valid] >= len(array.dictionary))).any():
        raise pa.ArrowInvalid("an index is not in the dictionary")
    return set(numpy.flatnonzero(is_valid & numpy.isin(numbers, list(_rows(array.dictionary)))).tolist())


def _list_rows(array: Any, empty: pa.DataType, inner: Iterable[pa.Array]) -> set[int]:
    """Of lists and maps: `empty` is the type of such lists of nulls, of which the offsets alone are checked."""
    buffers, found = array.buffers()[:2], set[int]()
    for values in inner:
        nulls = [pa.nulls(len(values))]
        pa.Array.from_buffers(empty, len(array), buffers, offset=array.offset, children=nulls).validate(full=True)
        if not len(array):
            continue
        offsets = array.offsets.to_numpy()
        first, end = int(offsets[0]), int(offsets[-1])
        places = [first + place for place in _rows(values.slice(first, end - first))]
        found.update((numpy.searchsorted(offsets, places, side="right") - 1).tolist())
    return found


def _without_text(array: pa.Array) -> Iterable[int]:
    if array.type not in _BYTES_OF:
        array.validate(full=True)
        return ()
    plain = array.view(_BYTES_OF[array.type])
    plain.validate(full=True)
    return [row for row, value in enumerate(plain.to_pylist()) if not _is_text(value)]


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
