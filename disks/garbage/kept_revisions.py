"""The tables of many revisions that must stay restorable, in as few passes over the log as it takes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise

from disks.object_disk.history import TableAsOf, past_at
from disks.object_disk.references import Inventory, newest_at_or_below
from oplog.log import OperationsLog

_ENTRY_BYTES = 10_000
"""What fetching one entry costs, in bytes of a snapshot: about a hundred of its rows."""
_EXPANSION = 3
"""A snapshot is compressed by about so much; entries are not."""


def tables_at(
    log: OperationsLog, inventory: Inventory, revisions: Sequence[int], *, open_end: bool = False
) -> Generator[TableAsOf]:
    """The table at each of the revisions, which ascend: the same one gone on, or another one where the log has a gap or
    a snapshot is cheaper to read than the entries before it. So an entry is read once, however many revisions follow.

    Each is good until the next is asked for. With `open_end` the last one can go on to the head. A snapshot that is
    damaged is not passed over. Raises as `past_at` does.
    """
    passes = _passes(inventory, revisions)
    for group in passes:
        until = None if open_end and group is passes[-1] else group[-1]
        past = past_at(log, inventory, group[0], until=until, strict=True, moves=False)
        try:
            for revision in group:
                past.advance(revision)
                yield past
        finally:
            past.close()


def _passes(inventory: Inventory, revisions: Sequence[int]) -> list[list[int]]:
    """The revisions, cut where starting over is better or necessary."""
    passes = [[revision] for revision in revisions[:1]]
    for before, revision in pairwise(revisions):
        if _goes_on(inventory, before, revision):
            passes[-1].append(revision)
        else:
            passes.append([revision])
    return passes


def _goes_on(inventory: Inventory, before: int, revision: int) -> bool:
    if not all(between in inventory.commits for between in range(before + 1, revision + 1)):
        return False
    start = newest_at_or_below(inventory.snapshots, revision)
    if start <= before:
        return True
    entries_bytes = sum(
        inventory.commits[between].size_bytes + _ENTRY_BYTES for between in range(before + 1, start + 1)
    )
    return entries_bytes <= _EXPANSION * inventory.snapshots[start].size_bytes
