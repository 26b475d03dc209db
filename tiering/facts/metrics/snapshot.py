"""What the numbers are made of, as plain values, and how few names they may have. Pure; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from tiering.config.settings import PolicyConfig
from tiering.policy import ttl
from tiering.policy.placement import ordered_volumes, volume_index
from tiering.policy.plan import Budget, PlacedPart
from tiering.table.schema import MoveToDisk, MoveToVolume

MOST_NAMES = 500
"""So many tables, and so many other words that come from outside, have numbers of their own."""
OTHERS = "(others)"
"""What the rest is summed up under. No table can have the name."""

K = TypeVar("K")


class PartsSeen(msgspec.Struct, frozen=True):
    """Parts of one table on one disk in one state."""

    table: str
    disk: str
    volume: str
    state: str


class Amount(msgspec.Struct):
    """How many parts, and what is in them."""

    parts: int = 0
    rows: int = 0
    bytes: int = 0

    def add(self, rows: int, size_bytes: int, parts: int = 1) -> None:
        """Count more."""
        self.parts += parts
        self.rows += rows
        self.bytes += size_bytes


class Overdue(msgspec.Struct):
    """Parts of one table that a TTL rule wants elsewhere, or gone, and that are still where they were."""

    parts: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    """When the one that waits longest came due."""

    def add(self, other: Overdue) -> None:
        """Take the other's in."""
        self.parts += other.parts
        self.bytes += other.bytes
        times = [time for time in (self.oldest, other.oldest) if time is not None]
        self.oldest = min(times, default=None)


class DiskSeen(msgspec.Struct, frozen=True):
    """One disk. `up`: it is what its name stands for, and answers."""

    name: str
    kind: str
    up: bool
    free_bytes: int | None = None
    total_bytes: int | None = None
    revision: int | None = None
    looked: float | None = None
    """When, in seconds since 1970, what others committed was seen last."""


class ReplicaSeen(msgspec.Struct, frozen=True):
    """This machine's replica of one table: when it last took in what the others did, and what of it is not done."""

    synced: datetime
    waiting: int


class WorkSeen(msgspec.Struct, frozen=True):
    """What the journal remembers of one kind of work: in one state, for one reason."""

    state: str
    reason: str
    count: int
    bytes: int


class InboxSeen(msgspec.Struct, frozen=True):
    """What lies in the inbox for one table. `oldest`: when the file that waits longest was written."""

    waiting: int = 0
    bytes: int = 0
    failed: int = 0
    oldest: float | None = None


class Seen(msgspec.Struct, frozen=True):
    """The store at one moment."""

    at: datetime
    places: Mapping[PartsSeen, Amount]
    overdue: Mapping[str, Overdue]
    """By table."""
    disks: tuple[DiskSeen, ...]
    moves: tuple[WorkSeen, ...] = ()
    merges: tuple[WorkSeen, ...] = ()
    failing_moves: int = 0
    pins: int = 0
    paused: Mapping[str, int] = msgspec.field(default_factory=dict)
    broken: int = 0
    set_aside: int = 0
    backups: Mapping[str, Mapping[str, datetime]] | None = None
    """By table: when the newest backup was taken, verified, drilled. None where no repository is configured."""
    failed_proofs: int = 0
    """Tables whose last verification or drill found something."""
    inbox: Mapping[str, InboxSeen] = msgspec.field(default_factory=dict)
    """By table, or what is called like one."""
    crowded: Mapping[str, int] = msgspec.field(default_factory=dict)
    """By table: the small parts of the partitions in buckets that have very many."""
    replicas: Mapping[str, ReplicaSeen] = msgspec.field(default_factory=dict)
    """By table."""
    budgets: tuple[Budget, ...] = ()
    day_money: float | None = None
    """What moves cost in the last 24 hours."""
    currency: str = ""


def overdue(parts: Iterable[PlacedPart], policies: Mapping[str, PolicyConfig], now: datetime) -> dict[str, Overdue]:
    """By table, what is due and not done: whatever holds it back. A part on a colder volume than its rule names is at
    its place, and so is one whose rule names what is not in the policy. Nothing waits for longer than it is there: rows
    that come late were due before they came."""
    found: dict[str, Overdue] = {}
    for stored in parts:
        if not stored.definition.ttl:
            continue
        since = _due_since(stored, policies, now)
        if since is not None:
            name = stored.definition.full_name
            since = max(since, stored.part.created)
            found.setdefault(name, Overdue()).add(Overdue(1, stored.part.size_bytes, since))
    return found


def _due_since(stored: PlacedPart, policies: Mapping[str, PolicyConfig], now: datetime) -> datetime | None:
    dues = ttl.due_times(stored.definition, stored.part)
    if (gone := ttl.due_delete(dues, now) or ttl.due_in_part(dues, now)) is not None:
        return gone.due
    moving = ttl.winning_move(dues, now)
    policy = policies.get(stored.definition.policy)
    if moving is None or policy is None:
        return None
    here, there = volume_index(policy, stored.disk), None
    match moving.rule.action:
        case MoveToVolume(volume=name):
            names = [volume.name for volume in ordered_volumes(policy)]
            there = names.index(name) if name in names else None
        case MoveToDisk(disk=name):
            there = volume_index(policy, name) if name != stored.disk else None
            if there is not None and there == here:
                return moving.due
        case _:
            pass
    return moving.due if here is not None and there is not None and there > here else None


def bounded(names: Mapping[K, int], name_of: Callable[[K], str], most: int = MOST_NAMES) -> Callable[[str], str]:
    """What each name is called: itself when it is among the `most` of the greatest weight, else `OTHERS`. Whatever a
    bucket or a journal holds, the numbers have so many names at most."""
    weights: Counter[str] = Counter()
    for key, weight in names.items():
        weights[name_of(key)] += weight
    if len(weights) <= most:
        return lambda name: name
    kept = {name for name, _ in sorted(weights.items(), key=lambda entry: (-entry[1], entry[0]))[:most]}
    return lambda name: name if name in kept else OTHERS
