"""Rows as a screen lists them: columns that sort, filter and show; which rows are shown, in which order, what is new.

Pure: done beside the event loop, for a hundred thousand rows take a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tiering.config.units import format_duration, format_size
from tui.facts.filters import matcher

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


def of(key: str) -> Callable[[Row], Any]:
    """The value of a row that is a document."""
    return lambda row: row[key]


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


class Order(msgspec.Struct, frozen=True):
    """Which rows a user wants to see, in which order."""

    filter: str = ""
    sort: str | None = None
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """A listing as it is shown."""

    listing: Listing
    rows: Sequence[Row]
    cursor: int
    """Where the row is now that the cursor was on."""
    changed: frozenset[str]
    """Keys of rows that came or changed since the last time."""
    states: Mapping[str, Hashable] = field(repr=False)
    order: Order


def arrange(listing: Listing, order: Order, *, before: Shown | None = None, cursor: str = "", at: int = 0) -> Shown:
    """The rows to show. `cursor` is the key of the row that the cursor is on, `at` where it is if that row is gone.

    Raises `UsageError` for a filter that cannot be read, with what can be written.
    """
    rows: Sequence[Row] = listing.rows
    if order.filter.strip():
        wanted = matcher(order.filter, listing.columns)
        rows = [row for row in rows if wanted(row)]
    if order.sort is not None:
        value = next(column.value for column in listing.columns if column.key == order.sort)
        rows = sorted(rows, key=lambda row: _sortable(value(row)), reverse=order.descending)
    states = {listing.key(row): listing.state(row) for row in listing.rows}
    changed: frozenset[str] = frozenset()
    if before is not None and before.listing.kind == listing.kind:
        old = before.states
        changed = frozenset(key for key, state in states.items() if old.get(key, _NEVER) != state)
    found = next((index for index, row in enumerate(rows) if listing.key(row) == cursor), None) if cursor else None
    place = min(at, len(rows) - 1) if found is None else found
    return Shown(listing, rows, max(place, 0), changed, states, order)


_NEVER = object()


def _sortable(value: Any) -> tuple[int, Any]:
    """Missing values come first; values of one column are of one kind."""
    return (0, 0) if value is None else (1, value.lower() if isinstance(value, str) else value)
