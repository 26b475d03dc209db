"""Whether a cast kept the values: what it bent is refused, with the first such value. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_INFINITE = r"^\s*[+-]?(?i:inf(inity)?)\s*$"
_HEXADECIMAL = r"^\s*[+-]?0[xX]"


def check_kept(given: pa.Array, converted: pa.Array) -> None:
    """Raise `pa.ArrowInvalid` for a value that is another one in its new type: a fraction with more places than a
    decimal has, a number that became infinite, a moment that became a day, a number in another base."""
    bent = _bent(given, converted)
    if bent is not None and pc.any(bent).as_py():
        shown = given.filter(pc.fill_null(bent, False)).slice(0, 1).to_string()
        raise pa.ArrowInvalid(f"{' '.join(shown.split()).strip('[] ')} is not the same as {converted.type}")


def _bent(given: pa.Array, converted: pa.Array) -> pa.Array | None:
    """Which values are not what they were; None where no value can be."""
    old, new = given.type, converted.type
    if pa.types.is_floating(old) and pa.types.is_decimal(new):
        return pc.not_equal(converted.cast(old), given)
    if pa.types.is_floating(new):
        return _became_infinite(given, converted)
    if pa.types.is_timestamp(old) and pa.types.is_date(new):
        local = pc.local_timestamp(given) if old.tz else given
        return pc.not_equal(pc.floor_temporal(local, unit="day"), local)
    if is_text(old) and pa.types.is_integer(new):
        return pc.match_substring_regex(given, _HEXADECIMAL)
    return None


def _became_infinite(given: pa.Array, converted: pa.Array) -> pa.Array | None:
    old = given.type
    if pa.types.is_floating(old):
        if old.bit_width <= converted.type.bit_width:
            return None
        return pc.and_not(pc.is_inf(converted), pc.is_inf(given))
    infinite = pc.is_inf(converted)
    return pc.and_not(infinite, pc.match_substring_regex(given, _INFINITE)) if is_text(old) else infinite


def is_text(kind: pa.DataType) -> bool:
    """Whether the values are texts, in whichever layout."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
