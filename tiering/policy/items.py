"""A part in the model of `tiering.policy.decide`, and what is said about it in the end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from tiering.config.settings import PolicyConfig
from tiering.policy import placement, ttl
from tiering.policy.due import earlier, is_told
from tiering.policy.placement import DiskState, volume_index
from tiering.policy.plan import Move, PlacedPart, Plan, Reason, Stay, TtlDelete
from tiering.table.part import PartName
from tiering.table.schema import MoveToDisk, MoveToVolume, Recompress


class PolicyItem:
    """One part in the model: where it is now and where it would be."""

    __slots__ = ("at", "deleted", "dues", "move", "name", "part", "policy", "source", "stay", "table", "uuid")

    def __init__(self, placed: PlacedPart, policy: PolicyConfig | None) -> None:
        self.table = placed.definition
        self.part = placed.part
        self.name = placed.name
        self.uuid = placed.definition.uuid
        self.source = self.at = placed.disk
        self.policy = policy
        self.dues = ttl.due_times(placed.definition, placed.part)
        self.move: Reason | None = None
        self.deleted: Reason | None = None
        self.stay: tuple[Reason, datetime | None] | None = None

    @property
    def size(self) -> int:
        return self.part.size_bytes

    @property
    def key(self) -> tuple[str, PartName, str]:
        return (self.table.full_name, self.name, self.source)


def explain_rest(items: Iterable[PolicyItem], disks: Mapping[str, DiskState], now: datetime) -> None:
    """Give each part that does not move its reason, and when a rule acts on it next."""
    for item in items:
        if item.move is not None:
            continue
        upcoming = _upcoming(item, now)
        if item.stay is not None:
            reason, until = item.stay
            item.stay = (reason, until or (upcoming.due if upcoming else None))
        else:
            item.stay = (_why_nothing(item, upcoming, disks, now), upcoming.due if upcoming else None)


def count_rest(items: Iterable[PolicyItem], now: datetime) -> tuple[int, datetime | None]:
    """How many of the parts nothing concerns, and when a rule acts on the first of them. Those that something holds
    get the same as by `explain_rest`."""
    count, first = 0, None
    for item in items:
        if item.move is not None:
            continue
        due = next_due(item, now)
        if item.stay is not None:
            reason, until = item.stay
            item.stay = (reason, until or due)
        else:
            count, first = count + 1, earlier(first, due)
    return count, first


def next_due(candidate: PolicyItem, now: datetime) -> datetime | None:
    """When a rule acts on the part next, where it is."""
    upcoming = _upcoming(candidate, now)
    return upcoming.due if upcoming else None


def next_goal(candidate: PolicyItem, now: datetime) -> str:
    """Where the rule brings it that acts on it next, or that is due and waits: a disk, or a volume that has several;
    or what else the rule does. Empty where none does."""
    deleting = ttl.due_delete(candidate.dues, now) or ttl.due_in_part(candidate.dues, now)
    waiting = deleting or ttl.winning_move(candidate.dues, now)
    acts = waiting is not None and is_told(waiting, candidate.at, candidate.policy)
    upcoming = waiting if acts else _upcoming(candidate, now)
    if upcoming is None:
        return ""
    match upcoming.rule.action:
        case MoveToVolume(volume=name):
            volumes = candidate.policy.volumes if candidate.policy is not None else ()
            disks = next((volume.disks for volume in volumes if volume.name == name), ())
            return disks[0] if len(disks) == 1 else name
        case MoveToDisk(disk=name):
            return name
        case Recompress():
            return "recompress"
        case _:
            return "delete"


def _upcoming(candidate: PolicyItem, now: datetime) -> ttl.Due | None:
    """The rule that acts on the part next, where it is."""
    waiting = [due for due in candidate.dues if due.due is not None and due.due > now]
    return (
        ttl.next_due((due for due in waiting if is_told(due, candidate.at, candidate.policy)), now) if waiting else None
    )


def _why_nothing(
    candidate: PolicyItem, upcoming: ttl.Due | None, disks: Mapping[str, DiskState], now: datetime
) -> Reason:
    missing = [due.describe(now) for due in candidate.dues if due.due is None]
    space = _space_note(candidate, disks)
    if upcoming is not None:
        text = f"{upcoming.describe(now)} ({ttl.action_text(upcoming.rule)}); {space}"
        return Reason("not_due", "; ".join([text, *missing]))
    if missing:
        return Reason("no_statistics", "; ".join([*missing, space]))
    none = "no TTL rule applies to it any more" if candidate.dues else "the table has no TTL rule"
    return Reason("no_rule", f"{none}; {space}")


def _space_note(candidate: PolicyItem, disks: Mapping[str, DiskState]) -> str:
    state, policy = disks.get(candidate.at), candidate.policy
    if policy is None or state is None:
        return ""
    if volume_index(policy, candidate.at) == len(policy.volumes) - 1:
        return f"disk {candidate.at} is on the last volume"
    if state.total_bytes is None or state.unreserved_bytes is None:
        return f"disk {candidate.at} has no size limit"
    share = state.unreserved_bytes / state.total_bytes if state.total_bytes else 0
    factor = placement.move_factor(policy)
    if share < factor:
        return (
            f"disk {candidate.at} has only {share:.0%} free (move_factor asks for {factor:.0%}), but no part can leave"
        )
    return f"disk {candidate.at} has {share:.0%} free, move_factor asks for {factor:.0%}"


def plan_of(items: Sequence[PolicyItem], now: datetime) -> Plan:
    """What was decided about the parts, as a plan in the order to carry it out."""
    moving = [item for item in items if item.move is not None and item.at != item.source]
    return Plan(
        now=now,
        moves=tuple(_move(item, item.move) for item in sorted(moving, key=_order) if item.move is not None),
        deletes=tuple(
            TtlDelete(
                table=item.table.full_name,
                table_uuid=item.uuid,
                part=item.part.name,
                disk=item.source,
                bytes=item.size,
                reason=item.deleted,
            )
            for item in items
            if item.deleted is not None
        ),
        stays=tuple(
            Stay(
                table=item.table.full_name,
                table_uuid=item.uuid,
                part=item.part.name,
                disk=item.source,
                bytes=item.size,
                reason=item.stay[0],
                next_due=item.stay[1],
            )
            for item in items
            if item.stay is not None and item.move is None and item.deleted is None
        ),
    )


def _order(candidate: PolicyItem) -> tuple[object, ...]:
    """Coldest sources first, so that they make room; rules before space; then ascending size."""
    heat = volume_index(candidate.policy, candidate.source) if candidate.policy is not None else None
    kind = candidate.move.kind if candidate.move is not None else ""
    return (-(heat or 0), {"pin": 0, "ttl": 1}.get(kind, 2), candidate.size, candidate.key)


def _move(candidate: PolicyItem, reason: Reason) -> Move:
    return Move(
        table=candidate.table.full_name,
        table_uuid=candidate.uuid,
        part=candidate.part.name,
        source=candidate.source,
        target=candidate.at,
        bytes=candidate.size,
        reason=reason,
    )
