"""How fast moves bring bytes to and from each disk just now, by what the journal has of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tiering.journal.records import MoveRecord

WINDOW_SECONDS = 10


class Throughput(msgspec.Struct):
    """Of one disk: the mean of the last ten seconds."""

    written_per_second: float = 0.0
    read_per_second: float = 0.0
    requests_per_second: float = 0.0
    """Of moves that are done: one that is copying has not told its own yet."""


def throughput(records: Iterable[MoveRecord], now: datetime) -> dict[str, Throughput]:
    """By disk, also for moves of other processes. A copy's bytes are taken to have gone evenly over its time."""
    found: dict[str, Throughput] = {}
    for record in records:
        if record.state == "copying":
            began, ended, size_bytes = record.updated, now, record.bytes_done
        elif record.state in ("committed", "done"):
            ended, size_bytes = record.updated, record.bytes
            began = ended - timedelta(seconds=record.seconds)
        else:
            continue
        since = now - timedelta(seconds=WINDOW_SECONDS)
        within = (min(ended, now) - max(began, since)).total_seconds()
        if ended < since or within < 0:
            continue
        lasted = (ended - began).total_seconds()
        share = min(within / lasted, 1.0) if lasted > 0 else 1.0
        target = found.setdefault(record.target, Throughput())
        target.written_per_second += size_bytes * share / WINDOW_SECONDS
        target.requests_per_second += record.requests * share / WINDOW_SECONDS
        found.setdefault(record.source, Throughput()).read_per_second += size_bytes * share / WINDOW_SECONDS
    return found
