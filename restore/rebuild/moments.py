"""The state of a disk at a time. What a slip of the pen may mean is refused: the empty disk, or the newest state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from disks.object_disk.history import TableAsOf, committed_at, past_before
from disks.object_disk.references import Inventory
from oplog.errors import Refused, UsageError
from oplog.log import OperationsLog

_AHEAD = timedelta(days=1)
"""Somebody who means the newest state may name a time that is not over yet, no more."""


def past_at_time(log: OperationsLog, inventory: Inventory, moment: datetime) -> TableAsOf:
    """The table as it was at the moment, from the log's own objects alone; the empty one before the first revision.
    Raises `Refused` for a time far ahead, with the times that the log has; `NotFound` where it is not kept."""
    if moment.tzinfo is None:
        raise UsageError(f"the time {moment.isoformat()} has no time zone", hint="write it like 2026-01-31T12:00:00Z")
    if inventory.commits:
        newest = committed_at(inventory, log.read(inventory.head).commit)
        if moment > max(newest, datetime.now(UTC)) + _AHEAD:
            raise Refused(f"{moment:%Y-%m-%d %H:%M:%S} UTC is in the future", hint=_reach(log, inventory))
    return past_before(log, inventory, moment)


def nothing_yet(log: OperationsLog, inventory: Inventory, moment: datetime, of: str) -> Refused:
    """What to say where there was no revision yet at the moment: nobody means the empty disk."""
    return Refused(
        f"{of} had no revision yet at {moment:%Y-%m-%d %H:%M:%S} UTC",
        hint=f"{_reach(log, inventory)}; --revision 0 means the empty disk",
    )


def _reach(log: OperationsLog, inventory: Inventory) -> str:
    """From when to when the log goes."""
    if not inventory.commits:
        return "its log is empty"
    ends = [
        f"{committed_at(inventory, log.read(revision).commit):%Y-%m-%dT%H:%M:%SZ} (revision {revision})"
        for revision in (min(inventory.commits), inventory.head)
    ]
    return f"its log has the times from {ends[0]} to {ends[1]}"
