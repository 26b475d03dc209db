"""Rows as a screen lists them, and the columns that sort, filter and show them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from tiering.config.units import format_duration, format_size

Row = Any
"""Whatever the columns of its listing know to read."""


_DAYS = timedelta(days=3)


def plain(value: Any) -> str:
    """A value as text; nothing for None."""
    return "" if value is None else str(value)


def number(value: int | None) -> str:
    """With separators."""
    return "" if value is None else f"{value:,}"


def size(value: float | None) -> str:
    """Bytes for people."""
    return "" if value is None else format_size(value)


def minute(value: datetime | str | None) -> str:
    """A time to the minute."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return plain(value)[:16].replace("T", " ")


def age(value: timedelta | None) -> str:
    """How long ago, in days once it is days; what is to come has a sign."""
    if value is None:
        return ""
    return f"{value.days:,}d" if abs(value) >= _DAYS else format_duration(value)


class ListColumn(msgspec.Struct, frozen=True):
    """One column. `value` is what it sorts and filters by, `text` how that is shown."""

    key: str
    title: str
    width: int
    value: Callable[[Row], Any]
    text: Callable[[Any], str] = plain
    right: bool = False
    grows: bool = False
    """Takes what is left of the line; several share it."""
    least: int = 0
    """Of the last one: it takes what the others leave, if that is so much."""


def field(name: str) -> Callable[[Row], Any]:
    """The value of a row that is a struct."""
    return attrgetter(name)


class Listing(msgspec.Struct, frozen=True):
    """What one screen lists. `key` tells rows apart, `state` what of a row counts as a change."""

    columns: tuple[ListColumn, ...]
    rows: Sequence[Row]
    key: Callable[[Row], str]
    document: Callable[[Row], Mapping[str, Any]]
    """The row as a verb's `--json` has it."""
    state: Callable[[Row], Hashable] = id
    summary: str = ""
    empty: str = "Nothing here."
    until: datetime | None = None
    """When the clock alone changes what is listed next, as far as that is known."""
    sideways: bool = False
    """All columns are shown, and looked at sideways; else only those, from the first, that there is room for."""

    @property
    def kind(self) -> frozenset[str]:
        """Of what it lists: beside rows of another kind no row is new."""
        return frozenset(column.key for column in self.columns)
