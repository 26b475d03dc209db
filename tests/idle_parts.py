"""For tests of the policy: what the index of parts says of parts together, by a plain reading of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import msgspec

from tiering.config.settings import PolicyConfig
from tiering.policy.due import dues_of
from tiering.policy.idle import IdleParts
from tiering.policy.plan import PlacedPart


class Totals(msgspec.Struct):
    """Of the parts of one partition on a disk."""

    parts: int = 0
    bytes: int = 0


def together(
    parts: Sequence[PlacedPart], policies: Mapping[str, PolicyConfig], now: datetime, policy: str | None = None
) -> list[IdleParts]:
    """The parts of each table on each disk. `policy`: the name of all tables' policy."""
    totals: dict[tuple[str, str, str], dict[str, Totals]] = {}
    for part in parts:
        key = part.definition.uuid, policy or part.definition.policy, part.disk
        one = totals.setdefault(key, {}).setdefault(part.name.partition, Totals())
        one.parts, one.bytes = one.parts + 1, one.bytes + part.part.size_bytes
    found = []
    for (uuid, name, disk), partitions in totals.items():
        own = [part for part in parts if part.definition.uuid == uuid]
        times = {part.part.name: dues_of(part.definition, part.part, part.disk, policies[name]) for part in own}
        due = {one.name.partition for one in own if (at := times[one.part.name].acting) is not None and at <= now}
        between = {
            one.name.partition for one in own if (told := times[one.part.name].told) and min(told) <= now < max(told)
        }
        newest = max(part.part.created for part in own)
        found.append(IdleParts(uuid, name, disk, partitions, newest, due, between))
    return found


def first_due(
    parts: Sequence[PlacedPart],
    seen: Collection[tuple[str, str]],
    policies: Mapping[str, PolicyConfig],
    now: datetime,
    policy: str | None = None,
) -> datetime | None:
    """When a rule is due next for a part that is in none of these partitions."""
    times = []
    for part in parts:
        if (part.definition.uuid, part.name.partition) not in seen:
            name = policy or part.definition.policy
            acting, told = dues_of(part.definition, part.part, part.disk, policies[name])
            times += [at for at in (acting, min(told, default=None)) if at is not None and at > now]
    return min(times, default=None)
