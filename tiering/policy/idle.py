"""Which parts a plan has to look at, told by what they are together; and why nothing may be done at all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tiering.config.settings import PolicyConfig
from tiering.policy import placement, ttl
from tiering.policy.placement import DiskState, ordered_volumes, volume_index
from tiering.policy.plan import Options, Reason, Unseen
from tiering.table.part import PartName

Partition = tuple[str, str]
"""A table's uuid and the name."""


class Totals(Protocol):
    """The parts of a partition on a disk, together."""

    @property
    def parts(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class IdleParts(msgspec.Struct, frozen=True):
    """The parts of a table on a disk, as a whole."""

    table: str
    """The uuid."""
    policy: str
    disk: str
    partitions: Mapping[str, Totals]
    newest: datetime | None = None
    """When the last part of the table was written."""
    due: Collection[str] = frozenset()
    """The partitions of the table with a part on which a rule acts now."""
    between_told: Collection[str] = frozenset()
    """Those with a part of which a rule that plans only tell of was due, and another one will be."""


def to_look_at(
    places: Sequence[IdleParts],
    disks: Mapping[str, DiskState],
    policies: Mapping[str, PolicyConfig],
    now: datetime,
    options: Options,
) -> Collection[Partition] | None:
    """The partitions that `decide` has to know the parts of: with them, and `unseen` for all others, it says what it
    would of all. None where only all of them tell: what a rule does not ask for may move too, or nothing may."""
    if options.rest == "each" or any(pause.kind == "moves" for pause in options.pauses):
        return None
    for place in places:
        if why_blocked(place.policy, policies.get(place.policy), place.disk, disks.get(place.disk)) is not None:
            return None
    if clock_problem(filter(None, (place.newest for place in places)), now, options):
        return None
    found = {(pin.table_uuid, _partition_of(pin.name, pin.scope)) for pin in options.pins}
    for place in places:
        found.update((place.table, name) for name in place.due)
    if options.rest == "next":
        for uuid, part in options.claimed:
            found.add((uuid, _partition_of(part)))
        for place in places:
            found.update((place.table, name) for name in place.between_told)
    return None if _may_lack_room(places, found, disks, policies, options) else found


def unseen(places: Iterable[IdleParts], seen: Collection[Partition], first_due: datetime | None) -> Unseen:
    """The parts that are not in these partitions, none of which is due before that."""
    by_disk: Counter[str] = Counter()
    for place in places:
        for name, totals in place.partitions.items():
            if (place.table, name) not in seen:
                by_disk[place.disk] += totals.parts
    return Unseen(by_disk, first_due)


def _partition_of(name: str, scope: str = "part") -> str:
    return name if scope == "partition" else PartName.parse(name).partition


def _may_lack_room(
    places: Iterable[IdleParts],
    moving: Collection[Partition],
    disks: Mapping[str, DiskState],
    policies: Mapping[str, PolicyConfig],
    options: Options,
) -> bool:
    """Whether a disk, but for those of the last volume, has less room than the policy wants, or may have when these
    have moved: then parts leave it that no rule asks for."""
    arriving: Counter[str] = Counter()
    for place in places:
        policy = policies[place.policy]
        here = volume_index(policy, place.disk)
        names = place.partitions
        size_bytes = (
            sum(totals.bytes for name, totals in names.items() if (place.table, name) in moving) if moving else 0
        )
        for index, volume in enumerate(ordered_volumes(policy)):
            if size_bytes and (options.pins or here is None or index >= here):
                arriving.update({disk: size_bytes for disk in volume.disks if disk != place.disk})
    return any(_lacks_room(policy, disks, arriving) for policy in policies.values())


def _lacks_room(policy: PolicyConfig, disks: Mapping[str, DiskState], arriving: Mapping[str, int]) -> bool:
    for volume in ordered_volumes(policy)[:-1]:
        for disk in volume.disks:
            if placement.lacks_room(policy, disks.get(disk), arriving.get(disk, 0)):
                return True
    return False


def why_blocked(name: str, policy: PolicyConfig | None, disk: str, state: DiskState | None) -> Reason | None:
    """Why no part of the policy on this disk may be touched."""
    if policy is None:
        return Reason("no_policy", f"the configuration has no policy {name}")
    if volume_index(policy, disk) is None:
        return Reason(
            "not_in_policy",
            f"disk {disk} is not in policy {name}: move the part to one that is",
        )
    if state is None or state.broken or state.unreachable:
        return Reason("unusable_disk", placement.unusable(disk, state))
    if state.read_only:
        return Reason("read_only", f"disk {disk} is read-only: the part cannot leave it")
    return None


def clock_problem(created: Iterable[datetime], now: datetime, options: Options) -> str:
    """Why the clock cannot be believed, given when the parts were written and another clock; empty when it can."""
    newest = max(created, default=None)
    known = options.written_ahead
    if newest is not None and newest - now > options.max_skew and (known is None or newest > known):
        return (
            f"the clock shows {ttl.short_time(now)}, but a part was written at {ttl.short_time(newest)}: nothing "
            "moves by itself until the clock is right; if it is right, the part's time is wrong: "
            "'frostline tick --believe-clock'"
        )
    reference = options.reference_time
    if reference is not None and abs(reference - now) > options.max_skew:
        return (
            f"the clock shows {ttl.short_time(now)}, {options.reference_source} {ttl.short_time(reference)}: "
            "automatic moves stop until they agree"
        )
    return ""
