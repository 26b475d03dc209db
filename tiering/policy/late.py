"""Rows that come late: small parts whose rows a rule wants elsewhere when they are written wait on the hot volume, are
merged into one, and that moves. Pure.

The wait is reckoned from when the oldest of a partition's waiting parts was written. What is merged of them waits no
more: it is no part that was inserted, whenever it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from tiering.config.settings import PolicyConfig
from tiering.policy import ttl
from tiering.policy.backoff import AHEAD
from tiering.policy.due import acts
from tiering.policy.placement import ordered_volumes, volume_index
from tiering.table.part import Part, PartFacts, PartName

MOST_PARTS = 32
"""So many in a partition wait no longer, however short they have waited."""

_NEVER = datetime.max.replace(tzinfo=UTC)


def came_late(
    name: PartName, facts: Part | PartFacts, dues: Iterable[ttl.Due], disk: str, policy: PolicyConfig, now: datetime
) -> bool:
    """Whether the part is one that waits: as it was inserted, small, and due when it was written. One that is dated by
    a clock that was ahead is none: it would wait for years."""
    pacing, here = policy.pacing, volume_index(policy, disk)
    if not pacing.late_seconds or here is None or ordered_volumes(policy)[here].prefer_not_to_merge:
        return False
    if name.level or name.mutation or facts.size_bytes > pacing.late_bytes or facts.created - now > AHEAD:
        return False
    due = ttl.winning_move(dues, min(facts.created, now))
    return due is not None and acts(due, disk, policy)


class LateParts(msgspec.Struct):
    """Those of one partition on one volume."""

    policy: PolicyConfig
    parts: int = 0
    oldest: datetime = _NEVER
    """When the first of them was written."""
    is_alone: bool = True
    """Whether nothing else of the partition is due to leave the volume."""

    def ends(self) -> datetime:
        """When the oldest has waited long enough."""
        return self.oldest + timedelta(seconds=self.policy.pacing.late_seconds)

    def gives_up(self) -> datetime:
        """Until when they are kept for the merge that takes them all. One part needs none."""
        return self.ends() + timedelta(seconds=self.policy.pacing.late_seconds if self.parts > 1 else 0)

    def is_over(self, now: datetime) -> bool:
        """Whether they wait no longer, but are merged and move."""
        return self.parts >= MOST_PARTS or not self.is_alone or self.ends() <= now


class LatePartitions:
    """The parts that wait, by partition and volume."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._found: dict[tuple[str, str, int | None], LateParts] = {}
        self._late: set[tuple[str, PartName, str]] = set()

    def add(
        self,
        table: str,
        name: PartName,
        facts: Part | PartFacts,
        dues: Sequence[ttl.Due],
        disk: str,
        policy: PolicyConfig,
    ) -> None:
        """A part of the table with this uuid."""
        due = ttl.winning_move(dues, self._now)
        if not policy.pacing.late_seconds or due is None or not acts(due, disk, policy):
            return
        found = self._found.setdefault(_place(table, name, disk, policy), LateParts(policy))
        if came_late(name, facts, dues, disk, policy, self._now):
            found.parts, found.oldest = found.parts + 1, min(found.oldest, facts.created)
            self._late.add((table, name, disk))
        else:
            found.is_alone = False

    def of(self, table: str, name: PartName, disk: str, policy: PolicyConfig) -> LateParts | None:
        """Those that the part is one of; None for one that does not wait."""
        return self._found[_place(table, name, disk, policy)] if (table, name, disk) in self._late else None


def _place(table: str, name: PartName, disk: str, policy: PolicyConfig) -> tuple[str, str, int | None]:
    return table, name.partition, volume_index(policy, disk)
