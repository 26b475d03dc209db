"""Plans and their moves as documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tiering.policy.cost import PlanCost
    from tiering.policy.plan import Move, Plan
    from tiering.table.part import Part, PartFiles


def plan_document(store: Store, planned: Plan) -> dict[str, Any]:
    """`plan --json`, and the file that `apply` reads. Of the parts that stay, the plan need not say why,
    but of those that are due and kept from moving (`held`)."""
    import msgspec

    from tiering.policy.plan import WAITING

    estimate = plan_cost(store, planned.moves)
    moves, costs = msgspec.to_builtins((planned.moves, estimate.moves))
    return {
        "at": msgspec.to_builtins(planned.now),
        "moves": [{**item, "cost": cost} for item, cost in zip(moves, costs, strict=True)],
        "deletes": msgspec.to_builtins(planned.deletes),
        "stays": planned.staying,
        "held": msgspec.to_builtins([one for one in planned.stays if one.reason.kind in WAITING]),
        "bytes": planned.bytes,
        "requests": estimate.total.requests,
    }


def why_nothing_moves(store: Store, planned: Plan) -> str:
    """A sentence about a plan without moves and deletes. Not the same: nothing is due, what is due is held back, and
    nobody knows, as a disk is away."""
    from tiering.config.units import counted
    from tiering.policy.plan import HELD, NO_DISK

    held = next((stay.reason for stay in planned.stays if stay.reason.kind == "clock"), None)
    if held is not None:
        return f"Nothing moves: {held.detail}."
    paused = [stay.reason.detail for stay in planned.stays if stay.reason.kind == "paused"]
    failed = sum(stay.reason.kind in ("gave_up", "backoff") for stay in planned.stays)
    if paused:
        return f"Nothing moves: {paused[0]} ({counted(len(paused), 'part')}); 'frostline resume' continues."
    if failed:
        return f"Nothing moves: {counted(failed, 'part')} wait after failed moves; 'frostline moves list --failed'."
    stuck = [stay.reason.detail for stay in planned.stays if stay.reason.kind in NO_DISK]
    if stuck:
        return f"Nothing moves: {counted(len(stuck), 'part')} cannot move: {stuck[0]}."
    if any(stay.reason.kind in HELD for stay in planned.stays):
        return "Nothing moves: due moves are postponed; 'frostline explain' shows until when."
    away = sorted({*store.unreachable(), *(fault.disk for fault in store.faults())})
    if away:
        return f"Nothing seems due; disk {', '.join(away)} is unavailable: 'frostline doctor'."
    return "Nothing is due."


def would_move(moves: Iterable[Move]) -> dict[str, Any]:
    """What `move --dry-run --json` says of planned moves."""
    import msgspec

    moved = [{**msgspec.to_builtins(item), "seconds": 0, "requests": 0} for item in moves]
    return {"moved": moved, "failed": [], "skipped": []}


def plan_cost(store: Store, moves: Sequence[Move]) -> PlanCost:
    """Requests and bytes of planned moves: one PUT a data file going to a bucket, one commit a batch. Of each part only
    its files are read."""
    from tiering.catalog.stored import LazyPart
    from tiering.policy import cost
    from tiering.table.part import PartName

    partitions: dict[str, set[str]] = {}
    for move in moves:
        partitions.setdefault(move.table_uuid, set()).add(PartName.parse(move.part).partition)
    asked = {_place_of(move) for move in moves}
    parts: dict[tuple[str, str, str], Part | PartFiles] = {}
    kept: dict[tuple[str, str, str], LazyPart] = {}
    for definition in store.definitions():
        for stored in store.context.catalog.partitions(definition, partitions.get(definition.uuid, ())):
            place, described = (definition.uuid, stored.label, stored.disk), stored.described
            if place not in asked:
                continue
            if isinstance(described, LazyPart):
                kept[place] = described
            else:
                parts[place] = described
    parts |= zip(kept, (files for _, files in LazyPart.documents([*kept.values()])), strict=True)
    return cost.estimate(moves, lambda move: parts.get(_place_of(move)), {disk.name for disk in store.object_disks()})


def _place_of(move: Move) -> tuple[str, str, str]:
    return move.table_uuid, move.part, move.source
