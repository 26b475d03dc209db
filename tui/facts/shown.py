"""Which rows of a listing are shown, in which order, and what is new.

Pure: done beside the event loop, for a hundred thousand rows take a moment.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tui.facts.filters import matcher
from tui.facts.listing import Listing, Row


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
