"""When a rule acts on a part where it lies, so that a pass looks at no part before. Pure.

A rule that brings parts to where this one is, or to somewhere hotter, does nothing to it, however long it has been due.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from tiering.config.settings import PolicyConfig
from tiering.policy import ttl
from tiering.policy.placement import ordered_volumes, volume_index
from tiering.table.part import Part, PartFacts
from tiering.table.schema import MoveToDisk, MoveToVolume, TableDefinition


def rules_digest(definition: TableDefinition, policy: PolicyConfig | None) -> str:
    """Tells all that `first_due` goes by but the part: other rules, columns or volumes, another digest."""
    columns = sorted((column.name, column.id, column.type) for column in definition.columns)
    return hashlib.sha256(msgspec.json.encode((definition.ttl, columns, policy))).hexdigest()


def first_due(
    definition: TableDefinition, part: Part | PartFacts, disk: str, policy: PolicyConfig | None
) -> datetime | None:
    """Before this `decide` neither moves nor deletes the part by a rule; None where it never does."""
    dues = ttl.due_times(definition, part)
    times = (due.due for due in dues if due.due is not None and _acts(due, disk, policy))
    return min(times, default=None)


def _acts(due: ttl.Due, disk: str, policy: PolicyConfig | None) -> bool:
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
