"""Why a part goes or stays: what `decide` says of it, with every rule that bears on it. Pure, as the decision is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

from tiering.config.settings import PolicyConfig
from tiering.policy import ttl
from tiering.policy.decide import decide
from tiering.policy.placement import DiskState, ordered_volumes, volume_index
from tiering.policy.plan import Explanation, Options, PlacedPart, Reason, RuleState


def explain(
    part: PlacedPart,
    parts: Iterable[PlacedPart],
    disks: Mapping[str, DiskState],
    policies: Mapping[str, PolicyConfig],
    now: datetime,
    options: Options | None = None,
) -> Explanation:
    """The decision for one part, seen among all `parts`, with every rule that bears on it."""
    plan = decide(parts, disks, policies, now, options)
    key = (part.definition.uuid, part.part.name, part.disk)
    dues = ttl.due_times(part.definition, part.part)
    upcoming = ttl.next_due(dues, now)
    decision: Literal["move", "delete", "stay"] = "stay"
    target, next_due = None, upcoming.due if upcoming else None
    reason = Reason("unknown", "the part is not active")
    for move in plan.moves:
        if (move.table_uuid, move.part, move.source) == key:
            decision, target, reason, next_due = "move", move.target, move.reason, now
    for delete in plan.deletes:
        if (delete.table_uuid, delete.part, delete.disk) == key:
            decision, reason, next_due = "delete", delete.reason, now
    for stay in plan.stays:
        if (stay.table_uuid, stay.part, stay.disk) == key:
            reason, next_due = stay.reason, stay.next_due
    policy = policies.get(part.definition.policy)
    index = volume_index(policy, part.disk) if policy else None
    return Explanation(
        table=part.definition.full_name,
        part=part.part.name,
        disk=part.disk,
        volume=ordered_volumes(policy)[index].name if policy and index is not None else None,
        bytes=part.part.size_bytes,
        decision=decision,
        target=target,
        reason=reason,
        rules=tuple(RuleState(rule=ttl.rule_text(due.rule), due=due.due, detail=due.describe(now)) for due in dues),
        next_due=next_due,
    )
