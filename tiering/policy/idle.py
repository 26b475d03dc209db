"""Whether a pass has anything to do, told without looking at parts; and why it may do nothing at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tiering.config.settings import PolicyConfig
from tiering.policy import placement, ttl
from tiering.policy.placement import DiskState, ordered_volumes, volume_index
from tiering.policy.plan import Options, Reason


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of a table on a disk, as a whole."""

    policy: str
    disk: str
    due: datetime | None
    """Before this no rule acts on any of them (`tiering.policy.due`)."""
    newest: datetime | None
    """When the last of them was written."""


def nothing_acts(
    places: Iterable[Place | None],
    disks: Mapping[str, DiskState],
    policies: Mapping[str, PolicyConfig],
    now: datetime,
    options: Options,
) -> bool:
    """Whether `decide` surely moves and deletes nothing, and has no part that something holds back: told without
    looking at a part. None among the places stands for parts that have to be looked at."""
    if options.pins or options.pauses:
        return False
    if any(_lacks_room(policy, disks) for policy in policies.values()):
        return False
    newest: list[datetime] = []
    for place in places:
        if place is None or (place.due is not None and place.due <= now):
            return False
        if why_blocked(place.policy, policies.get(place.policy), place.disk, disks.get(place.disk)) is not None:
            return False
        newest += [place.newest] if place.newest is not None else []
    return not clock_problem(newest, now, options)


def _lacks_room(policy: PolicyConfig, disks: Mapping[str, DiskState]) -> bool:
    """Whether a disk, but for those of the last volume, has less room than the policy wants."""
    return any(
        state.unreserved_bytes < int(state.total_bytes * placement.move_factor(policy))
        for volume in ordered_volumes(policy)[:-1]
        for state in map(disks.get, volume.disks)
        if state is not None and state.total_bytes is not None and state.unreserved_bytes is not None
    )


def why_blocked(name: str, policy: PolicyConfig | None, disk: str, state: DiskState | None) -> Reason | None:
    """Why no part of the policy on this disk may be touched."""
    if policy is None:
        return Reason("no_policy", f"the configuration has no policy {name}")
    if volume_index(policy, disk) is None:
        return Reason(
            "not_in_policy",
            f"disk {disk} is not in policy {name}: move the part by hand to one that is",
        )
    if state is None or state.broken or state.unreachable:
        return Reason("unusable_disk", placement.unusable(disk, state))
    if state.read_only:
        return Reason("read_only", f"disk {disk} is read-only: the part cannot leave it")
    return None


def clock_problem(created: Iterable[datetime], now: datetime, options: Options) -> str:
    """Why the clock cannot be believed, given when the parts were written and another clock; empty when it can."""
    newest = max(created, default=None)
    if newest is not None and newest - now > options.max_skew:
        return (
            f"the clock says {ttl.short_time(now)}, but a part was written at {ttl.short_time(newest)}: "
            "nothing moves by itself until the clock is right"
        )
    reference = options.reference_time
    if reference is not None and abs(reference - now) > options.max_skew:
        return (
            f"the clock says {ttl.short_time(now)}, {options.reference_source} {ttl.short_time(reference)}: "
            "nothing moves by itself until they agree"
        )
    return ""
