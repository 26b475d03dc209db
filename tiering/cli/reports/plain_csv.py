"""CSV of answers whose values came without Arrow: byte for byte what Arrow's own writer makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from math import isfinite
from typing import BinaryIO

_POSITIONAL = range(-6, 10)
"""Exponents of floats that are written without one."""


def write_plain_csv(
    columns: Sequence[tuple[str, str]], batches: Iterable[Sequence[Sequence[object]]], stream: BinaryIO
) -> int:
    """Write the rows, JSON values of columns of these names and types; how many there were."""
    stream.write((",".join(_quoted(name) for name, _ in columns) + "\n").encode())
    formats = [_FORMATS.get(kind.partition("[")[0].partition("(")[0], str) for _, kind in columns]
    count = 0
    for rows in batches:
        lines = (
            ",".join("" if value is None else form(value) for form, value in zip(formats, row, strict=True))
            for row in rows
        )
        stream.write("".join(f"{line}\n" for line in lines).encode())
        count += len(rows)
    stream.flush()
    return count


def _quoted(value: object) -> str:
    return '"' + str(value).replace('"', '""') + '"'


def _flag(value: object) -> str:
    return "true" if value else "false"


def _float(value: object) -> str:
    number = float(str(value))
    if not isfinite(number):
        return str(number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    if not number:
        return "-0" if sign else "0"
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0")
    place = len(digits) + exponent
    minus = "-" if sign else ""
    if place - 1 not in _POSITIONAL:
        fraction = f".{text[1:]}" if text[1:] else ""
        return f"{minus}{text[0]}{fraction}e{place - 1:+}"
    if place <= 0:
        return f"{minus}0.{'0' * -place}{text}"
    whole, rest = text[:place].ljust(place, "0"), text[place:]
    return f"{minus}{whole}.{rest}" if rest else minus + whole


def _moment(value: object) -> str:
    """With a space, and all six digits of the microseconds."""
    text = str(value).replace("T", " ")
    if ":" not in text or ")" in text:
        return text
    zone = "Z" if text.endswith("Z") else ""
    text = text.removesuffix("Z")
    return (text if "." in text else f"{text}.000000") + zone


_FORMATS: dict[str, Callable[[object], str]] = {
    "string": _quoted,
    "binary": _quoted,
    "bool": _flag,
    "float64": _float,
    "timestamp": _moment,
    "time": _moment,
}
