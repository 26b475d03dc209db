"""Where the parts would lie if another policy had put them where they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from tiering.config.settings import PacingConfig, PolicyConfig
from tiering.policy.decide import decide
from tiering.policy.placement import DiskState, choose_disk, ordered_volumes
from tiering.policy.plan import Move, Options, PlacedPart, Reason
from tiering.table.part import Part, PartFacts, PartName
from tiering.table.schema import TableDefinition

_FOR_ANOTHER_PLACE = ("no_such_volume", "no_such_disk", "no_space", "size_limit", "too_young", "clock")
"""Kinds of reasons of parts that do not lie where a rule of their table wants them."""


class WhatIf(msgspec.Struct, frozen=True):
    """The parts by where they would lie."""

    bytes_by_disk: Mapping[str, int]
    parts_by_disk: Mapping[str, int]
    moves: tuple[Move, ...]
    """What would bring them there from where they lie."""
    expired: int
    """Parts past their TTL, which lie nowhere."""
    expired_bytes: int
    kept: Mapping[str, int]
    """Parts that the policy does not bring where a rule of their table wants them, by the kind of reason."""


class _Placed(msgspec.Struct, frozen=True):
    definition: TableDefinition
    part: Part | PartFacts
    name: PartName
    disk: str


def what_if(
    parts: Iterable[PlacedPart], disks: Mapping[str, DiskState], name: str, policy: PolicyConfig, now: datetime
) -> WhatIf:
    """Where the parts of every table lay, had the tables that policy: each was written to its hottest volume that takes
    a part of this size, and went on as TTL rules and the room on its disks want it. That is the end of it: neither
    pins, pauses and pacing nor a disk that is away or broken now are heeded. Pure."""
    where = list(parts)
    states = {disk: DiskState(state.total_bytes, state.free_bytes) for disk, state in disks.items()}
    for part in where:
        _take(states, part.disk, -part.part.size_bytes)
    written = [_written(part, states, name, policy, turn) for turn, part in enumerate(where)]
    unpaced = msgspec.structs.replace(policy, pacing=PacingConfig())
    plan = decide(written, states, {name: unpaced}, now, Options(rest="none"))
    ends = {(move.table_uuid, move.part): move.target for move in plan.moves}
    gone = {(delete.table_uuid, delete.part) for delete in plan.deletes}
    bytes_by_disk: Counter[str] = Counter()
    parts_by_disk: Counter[str] = Counter()
    moves = []
    for was, put in zip(where, written, strict=True):
        key = (was.definition.uuid, was.part.name)
        if key in gone:
            continue
        disk = ends.get(key, put.disk)
        bytes_by_disk[disk] += was.part.size_bytes
        parts_by_disk[disk] += 1
        if disk != was.disk:
            moves.append(_move(was, disk, name))
    return WhatIf(
        bytes_by_disk=bytes_by_disk,
        parts_by_disk=parts_by_disk,
        moves=tuple(moves),
        expired=len(gone),
        expired_bytes=sum(delete.bytes for delete in plan.deletes),
        kept=Counter(stay.reason.kind for stay in plan.stays if stay.reason.kind in _FOR_ANOTHER_PLACE),
    )


def _written(part: PlacedPart, states: dict[str, DiskState], name: str, policy: PolicyConfig, turn: int) -> _Placed:
    """The part where an insert would have put it. Room is not asked for: what is too much goes on afterwards."""
    roomy = {disk: DiskState(state.total_bytes, None) for disk, state in states.items()}
    volumes = ordered_volumes(policy)
    chosen = (choose_disk(volume, roomy, part.part.size_bytes, turn=turn).disk for volume in volumes)
    disk = next((disk for disk in chosen if disk is not None), volumes[-1].disks[0])
    _take(states, disk, part.part.size_bytes)
    definition = msgspec.structs.replace(part.definition, policy=name)
    return _Placed(definition, part.part, part.name, disk)


def _take(states: dict[str, DiskState], disk: str, size: int) -> None:
    state = states.get(disk)
    if state is not None and state.free_bytes is not None:
        states[disk] = msgspec.structs.replace(state, free_bytes=state.free_bytes - size)


def _move(part: PlacedPart, target: str, policy: str) -> Move:
    return Move(
        table=part.definition.full_name,
        table_uuid=part.definition.uuid,
        part=part.part.name,
        source=part.disk,
        target=target,
        bytes=part.part.size_bytes,
        reason=Reason("what_if", f"policy {policy}"),
    )
