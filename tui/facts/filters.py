"""The language of the filter line: `disk:s3 age>30d size>=1M -state:failed text`. Every term must hold. Pure."""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from oplog.errors import UsageError
from tiering.config.units import parse_duration, parse_size, parse_time
from tui.facts.listing import ListColumn

Test = Callable[[Any], bool]

_TERM = re.compile(r"(?P<not>-?)(?:(?P<key>[a-z_]+)(?P<sign>>=|<=|[:=<>]))?(?P<text>.*)\Z", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
EXAMPLE = "disk:s3 age>30d size>1M -state:failed"


def matcher(text: str, columns: Sequence[ListColumn]) -> Test:
    """Whether a row is wanted. `key:text` contains, `key=text` is, `key>value` compares; a word alone is looked for in
    every column; `-` before a term turns it round. Raises `UsageError`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the filter {text!r} has an open quote", hint=f"such as: {EXAMPLE}") from error
    tests = [_test(word, columns) for word in words]
    return lambda row: all(test(row) for test in tests)


def _test(word: str, columns: Sequence[ListColumn]) -> Test:
    match = _TERM.match(word)
    assert match is not None
    known = {column.key: column for column in columns}
    key, sign, wanted = match["key"], match["sign"], match["text"]
    if key is None:
        found = _anywhere(wanted, columns)
    elif key not in known:
        raise UsageError(f"there is no column {key!r} to filter by", hint=f"there are: {', '.join(known)}")
    else:
        found = _of_column(known[key], sign, wanted)
    return (lambda row: not found(row)) if match["not"] else found


def _anywhere(needle: str, columns: Sequence[ListColumn]) -> Test:
    low = needle.lower()
    return lambda row: any(low in column.text(column.value(row)).lower() for column in columns)


def _of_column(column: ListColumn, sign: str, operand: str) -> Test:
    value, text, low = column.value, column.text, operand.lower()
    if sign == ":":
        return lambda row: low in text(value(row)).lower() or low in str(value(row)).lower()
    if sign == "=":
        return lambda row: low in (text(value(row)).lower(), str(value(row)).lower())
    compare, read = _COMPARE[sign], _Reader(operand)

    def holds(row: Any) -> bool:
        here = value(row)
        return here is not None and compare(_plain_time(here), read(here))

    return holds


class _Reader:
    """Reads the text of a comparison as what the column holds: a size, a duration, a time, a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._read: dict[type, Any] = {}

    def __call__(self, like: Any) -> Any:
        kind = type(like)
        if kind not in self._read:
            self._read[kind] = self._parse(like)
        return self._read[kind]

    def _parse(self, like: Any) -> Any:
        if isinstance(like, bool | str):
            return self._text
        if isinstance(like, timedelta):
            return parse_duration(self._text)
        if isinstance(like, datetime):
            return parse_time(self._text)
        if isinstance(like, float):
            return float(parse_size(self._text))
        return parse_size(self._text)


def _plain_time(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
