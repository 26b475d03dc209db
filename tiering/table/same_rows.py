"""Whether the rows of a part are in other parts: the one way of telling that they are here already. Pure; no I/O.

Digests of inserted blocks tell it where a part remembers all of its own. A merged part may have forgotten the oldest,
by the table's `deduplication_window`: then names tell what it was made from, and the other part must not deny it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tiering.table.part import Part


class SameRows(NamedTuple):
    """Where rows of a part are."""

    how_many: Literal["all", "some"]
    where: tuple[int, ...]
    """Which of the other parts have rows of it, by their places in the sequence."""


def same_rows(part: Part, others: Sequence[Part], *, window: int) -> SameRows | None:
    """Which of the others, all active parts of the same table, have rows of the part. None: no one is known to.

    `window`: the table's `deduplication_window`.
    """
    mine = set(part.digests)
    if (
        made := next((at for at, other in enumerate(others) if went_into(part, other, window=window)), None)
    ) is not None:
        return SameRows("all", (made,))
    inputs = [at for at, other in enumerate(others) if went_into(other, part, window=window)]
    if inputs and {others[at].name for at in inputs}.issuperset(part.sources) and _adds_up(part, others, inputs):
        return SameRows("all", tuple(inputs))
    sharing = [at for at, other in enumerate(others) if at in inputs or not mine.isdisjoint(other.digests)]
    if not sharing:
        return None
    are_there = mine.issubset(digest for at in sharing for digest in others[at].digests)
    is_whole = are_there and part.remembers_all(window=window) and (not part.sources or _adds_up(part, others, sharing))
    return SameRows("all" if is_whole else "some", tuple(sharing))


def went_into(part: Part, other: Part, *, window: int) -> bool:
    """Whether the other part says that it was made from this one, and its digests do not deny it."""
    name = part.part_name
    is_source = bool(other.sources) and other.part_name.covers(name) and other.was_made_from(name)
    return (is_source or part.name in other.replaces) and other.may_hold(part, window=window)


def _adds_up(part: Part, others: Sequence[Part], places: Sequence[int]) -> bool:
    return part.rows <= sum(others[at].rows for at in places)
