"""Moves, merges and plans as documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiering.engine.store import Store
    from tiering.journal.records import MoveRecord
    from tiering.policy.cost import PlanCost
    from tiering.policy.plan import Move, Plan


def move_record_document(record: MoveRecord) -> dict[str, Any]:
    """One line of `moves list --json`."""
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(record)
    document["from"], document["to"] = document.pop("source"), document.pop("target")
    return document


def plan_document(store: Store, planned: Plan) -> dict[str, Any]:
    """`plan --json`, and the file that `apply` reads. Of the parts that stay, the plan need not say why,
    but of those that are due and kept from moving (`held`)."""
    import msgspec

    from tiering.policy.plan import WAITING

    plain = msgspec.to_builtins(planned)
    estimate = plan_cost(store, planned.moves)
    costs: list[dict[str, int]] = msgspec.to_builtins(estimate.moves)
    return {
        "at": plain["now"],
        "moves": [{**item, "cost": cost} for item, cost in zip(plain["moves"], costs, strict=True)],
        "deletes": plain["deletes"],
        "stays": planned.staying,
        "held": [one for one in plain["stays"] if one["reason"]["kind"] in WAITING],
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
        return f"Nothing moves: {paused[0]} ({counted(len(paused), 'part')}); 'frostline resume' ends a pause."
    if failed:
        return (
            f"Nothing moves: {counted(failed, 'part')} wait after moves that failed; 'frostline moves list --failed'."
        )
    stuck = [stay.reason.detail for stay in planned.stays if stay.reason.kind in NO_DISK]
    if stuck:
        return f"Nothing moves: {counted(len(stuck), 'part')} cannot for want of a disk: {stuck[0]}."
    if any(stay.reason.kind in HELD for stay in planned.stays):
        return "Nothing moves: what is due is held back; 'frostline explain' says of each part until when."
    away = sorted({*store.unreachable(), *(fault.disk for fault in store.faults())})
    if away:
        return f"Nothing is known to be due; disk {', '.join(away)} is away and cannot be asked: 'frostline doctor'."
    return "Nothing is due."


def would_move(moves: Iterable[Move]) -> dict[str, Any]:
    """What `move --dry-run --json` says of planned moves."""
    import msgspec

    moved = [{**msgspec.to_builtins(item), "seconds": 0, "requests": 0} for item in moves]
    return {"moved": moved, "failed": [], "skipped": []}


def plan_cost(store: Store, moves: Sequence[Move]) -> PlanCost:
    """Requests and bytes of planned moves: one PUT a data file going to a bucket, one commit a batch."""
    from tiering.policy import cost
    from tiering.table.part import PartName

    catalog = store.context.catalog
    partitions: dict[str, set[str]] = {}
    for move in moves:
        partitions.setdefault(move.table_uuid, set()).add(PartName.parse(move.part).partition)
    known = {
        (definition.uuid, stored.facts.name, stored.disk): stored
        for definition in store.definitions()
        for stored in catalog.partitions(definition, partitions.get(definition.uuid, ()))
    }
    return cost.estimate(
        moves,
        lambda move: stored.part if (stored := known.get((move.table_uuid, move.part, move.source))) else None,
        {disk.name for disk in store.object_disks()},
    )
