"""When a rule acts on a part where it lies, so that a pass looks at no part before; and where it brings it. Pure.

A rule that brings parts to where this one is, or to somewhere hotter, does nothing to it, however long it has been due.
Of some rules plans say when they are due, though it is not they that carry them out: merges compress again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from datetime import datetime
from typing import NamedTuple

import msgspec

from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.policy import ttl
from tiering.policy.placement import ordered_volumes, volume_index
from tiering.table.part import Part, PartFacts
from tiering.table.schema import MoveToDisk, MoveToVolume, TableDefinition, TtlRule


class Dues(NamedTuple):
    """When rules are due for one part."""

    acting: datetime | None
    """Before this `decide` neither moves nor deletes the part by a rule; None where it never does."""
    told: list[datetime]
    """When the rules are due of which plans only say so."""


def rules_digest(definition: TableDefinition, policy: PolicyConfig | None) -> str:
    """Tells all that `dues_of` goes by but the part: other rules, columns or volumes, another digest."""
    columns = sorted((column.name, column.id, column.type) for column in definition.columns)
    return hashlib.sha256(msgspec.json.encode((definition.ttl, columns, policy))).hexdigest()


def timed_columns(definition: TableDefinition) -> list[str]:
    """The ids of the columns that tell how old rows are, of which each part's range is asked."""
    rules = {rule.column for rule in definition.ttl}
    return [
        str(column.id)
        for column in definition.columns
        if column.type.startswith(("timestamp", "date")) or column.name in rules
    ]


def dues_of(definition: TableDefinition, part: Part | PartFacts, disk: str, policy: PolicyConfig | None) -> Dues:
    """Of the part on this disk."""
    acting: datetime | None = None
    told: list[datetime] = []
    for due in ttl.due_times(definition, part):
        if due.due is None:
            continue
        if acts(due, disk, policy):
            acting = due.due if acting is None else min(acting, due.due)
        elif is_told(due, disk, policy):
            told.append(due.due)
    return Dues(acting, told)


def is_told(due: ttl.Due, disk: str, policy: PolicyConfig | None) -> bool:
    """Whether the rule does something to a part on this disk when it is due: no move is to a hotter volume, or to where
    the part is. What cannot be told counts: a volume that the policy does not have, a disk that is not in it."""
    if policy is None:
        return True
    volumes = ordered_volumes(policy)
    here = volume_index(policy, disk)
    match due.rule.action:
        case MoveToVolume(volume=name):
            wanted = [index for index, volume in enumerate(volumes) if volume.name == name]
            return here is None or not wanted or wanted[0] > here
        case MoveToDisk(disk=name):
            wanted = [index for index, volume in enumerate(volumes) if name in volume.disks and name != disk]
            return bool(wanted) and (here is None or wanted[0] >= here)
        case _:
            return True


def acts(due: ttl.Due, disk: str, policy: PolicyConfig | None) -> bool:
    """Whether the rule deletes or moves a part on this disk when it is due."""
    if due.deletes:
        return True
    if policy is None or not due.moves:
        return False
    here = volume_index(policy, disk)
    match due.rule.action:
        case MoveToVolume(volume=name):
            volumes = [volume.name for volume in ordered_volumes(policy)]
            there = volumes.index(name) if name in volumes else None
            return here is not None and there is not None and there > here
        case MoveToDisk(disk=name):
            there = volume_index(policy, name)
            return here is not None and there is not None and there >= here and name != disk
        case _:
            return False


def earlier(first: datetime | None, other: datetime | None) -> datetime | None:
    """Of two times of which each may not be."""
    return other if first is None or (other is not None and other < first) else first


class Goal(NamedTuple):
    """Where a rule brings the parts of a policy."""

    rule: str
    """The text of the rule."""
    volume: VolumeConfig | None
    """With the disks that the rule names."""
    coldness: int = 0
    """How cold the volume is: its index."""
    nowhere: tuple[str, str] = ("", "")
    """Where there is no volume: the kind of reason and the reason."""


def goal_of(rule: TtlRule, name: str, policy: PolicyConfig, disks: Container[str]) -> Goal:
    """Of a rule that moves, in the policy of this name, where there are these disks."""
    text, volumes = f"rule '{ttl.rule_text(rule)}'", ordered_volumes(policy)
    match rule.action:
        case MoveToVolume(volume=wanted):
            for index, volume in enumerate(volumes):
                if volume.name == wanted:
                    return Goal(text, volume, index)
            return Goal(text, None, nowhere=("no_such_volume", f"{text}: no volume {wanted} in policy {name}"))
        case MoveToDisk(disk=disk, if_exists=if_exists):
            there = volume_index(policy, disk)
            if there is not None and disk in disks:
                return Goal(text, msgspec.structs.replace(volumes[there], disks=(disk,)), there)
            falls_back = "the rule has IF EXISTS, so the part stays" if if_exists else "the part stays"
            return Goal(text, None, nowhere=("no_such_disk", f"{text}: policy {name} has no disk {disk}; {falls_back}"))
    raise AssertionError(f"{text} moves nothing")
