"""A job as `daemon status`, the numbers and the screens show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the daemon's jobs, with its last run and the next."""

    job: str
    state: str
    schedule: str
    last_run: datetime | None
    """When it began."""
    last_end: datetime | None
    result: str | None
    said: str
    figures: dict[str, int]
    """What the last run that was done counted."""
    runs: int
    failures_in_a_row: int
    wanted: bool
    next_run: datetime | None

    @property
    def is_troubled(self) -> bool:
        """Whether its last run failed, or found something wrong."""
        return self.result in ("failed", "found")


def in_trouble(rows: Iterable[JobRow]) -> list[str]:
    """A sentence for each job whose last run failed, or found something wrong. Of passes the
    daemon's own status tells."""
    return [f"{row.job}: {row.said}" for row in rows if row.job != "policy" and row.is_troubled]
