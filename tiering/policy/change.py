"""What a policy may become, and the moves a person asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from oplog.errors import NotFound, Refused, UsageError
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.config.units import counted, format_size
from tiering.policy import placement
from tiering.policy.placement import DiskState, ordered_volumes, volume_index
from tiering.policy.plan import Move, PlacedPart, Reason
from tiering.table.part import PartName


def check_change(name: str, old: PolicyConfig, new: PolicyConfig) -> None:
    """A changed policy must contain the volumes and disks of the old one, so that no part is left out: `Refused`."""
    known = {volume.name: volume for volume in new.volumes}
    for volume in old.volumes:
        if volume.name not in known:
            raise Refused(
                f"policy {name} would lose its volume {volume.name}",
                hint="a new policy must contain the volumes of the old one; move the parts away first",
            )
        lost = sorted(set(volume.disks) - set(known[volume.name].disks))
        if lost:
            raise Refused(
                f"volume {volume.name} of policy {name} would lose the disk {', '.join(lost)}",
                hint="a new policy must contain the disks of the old one; move the parts away first",
            )


def manual_moves(
    parts: Iterable[PlacedPart],
    subject: str,
    policy: PolicyConfig,
    disks: Mapping[str, DiskState],
    *,
    to_volume: str | None = None,
    to_disk: str | None = None,
    keep_source: bool = False,
) -> list[Move]:
    """Moves of one table's parts to a volume or disk, in ascending size; parts already there are left out.

    `parts` are all copies, of a part the hottest first. All of them go to the target; of a part that has a copy there,
    the others. With `keep_source` they stay. `subject` names them in errors: `partition '202601'`, or
    `part '202601_1_5_1'`. Size limits of volumes are obeyed for a volume and not for a disk; space is checked. Raises
    `NotFound`, `UsageError` or, without space, `Refused`. Empty when all are there already: asking twice is no error,
    and `already_there` has the message for it.
    """
    chosen = sorted(parts, key=lambda part: (part.part.size_bytes, part.name))
    if not chosen:
        raise NotFound(f"there is no {subject}", hint="'frostline parts' lists them")
    volume, destination = _target(policy, disks, to_volume, to_disk)
    model = dict(disks)
    moves: list[Move] = []
    turn = 0
    for _, group in groupby(chosen, key=lambda part: part.name):
        copies = list(group)
        size = copies[0].part.size_bytes
        target = next((copy.disk for copy in reversed(copies) if copy.disk in volume.disks), None)
        if target is not None and keep_source:
            continue
        if target is None:
            choice = placement.choose_disk(volume, model, size, turn=turn, obey_limit=to_disk is None)
            turn += 1
            if choice.disk is None:
                raise Refused(
                    f"part {copies[0].part.name} cannot move to {destination}: {choice.why}",
                    hint="nothing was moved; free space there, or choose another disk",
                )
            target = choice.disk
            model[target] = less(model[target], size)
        moves += [
            Move(
                table=copy.definition.full_name,
                table_uuid=copy.definition.uuid,
                part=copy.part.name,
                source=copy.disk,
                target=target,
                bytes=size,
                reason=Reason("manual", f"requested: {subject} to {destination}"),
                keep_source=keep_source,
            )
            for copy in (copies[:1] if keep_source else copies)
            if copy.disk != target
        ]
    return moves


class NoPlace(msgspec.Struct, frozen=True):
    """Why no other disk of its policy takes a part."""

    policy: str
    why: str


def drain_moves(
    parts: Iterable[PlacedPart],
    disk: str,
    policies: Mapping[str, PolicyConfig],
    disks: Mapping[str, DiskState],
    bound: Mapping[tuple[str, PartName, str], str],
) -> tuple[list[Move], dict[str, DiskState]]:
    """Moves of everything off the disk, each to the nearest disk of its table's policy that takes it, the smallest
    first; and the disks after them. `bound`: (table uuid, part, target) -> why it may not go there. Raises
    `Refused` where some of them have no place."""
    model = dict(disks)
    moves: list[Move] = []
    homeless: list[tuple[str, int, NoPlace]] = []
    for part in sorted(parts, key=lambda part: (part.part.size_bytes, part.definition.full_name, part.name)):
        size, table = part.part.size_bytes, part.definition
        barred = {name: why for name in disks if (why := bound.get((table.uuid, part.name, name)))}
        target = drain_target(disk, table.policy, size, policies, model, barred, turn=len(moves))
        if isinstance(target, NoPlace):
            homeless.append((table.full_name, size, target))
            continue
        model[target] = less(model[target], size)
        moves.append(
            Move(
                table=table.full_name,
                table_uuid=table.uuid,
                part=part.part.name,
                source=disk,
                target=target,
                bytes=size,
                reason=Reason("drain", f"requested: drain disk '{disk}'"),
            )
        )
    if homeless:
        raise no_place(disk, homeless)
    return moves, model


def drain_target(
    disk: str,
    policy: str,
    size_bytes: int,
    policies: Mapping[str, PolicyConfig],
    disks: Mapping[str, DiskState],
    barred: Mapping[str, str] | None = None,
    *,
    turn: int = 0,
) -> str | NoPlace:
    """Where a part of this size goes: within the volume of the disk, else to a colder one, else to a hotter one, the
    nearest first."""
    config = policies.get(policy)
    if config is None:
        return NoPlace(policy, f"the configuration has no policy {policy}")
    volumes = ordered_volumes(config)
    here = volume_index(config, disk) or 0
    skip = {name: ("bound", why) for name, why in (barred or {}).items()}
    reasons: list[str] = []
    for volume in (*volumes[here:], *reversed(volumes[:here])):
        names = tuple(name for name in volume.disks if name != disk)
        if not names:
            continue
        others = msgspec.structs.replace(volume, disks=names)
        choice = placement.choose_disk(others, disks, size_bytes, turn=turn, skip=skip)
        if choice.disk is not None:
            return choice.disk
        reasons.append(choice.why)
    return NoPlace(policy, "; ".join(reasons) or "it has no other disk")


def no_place(disk: str, homeless: Sequence[tuple[str, int, NoPlace]]) -> Refused:
    """The refusal of a drain, by (table, bytes, why) of the parts that have no place; there is one."""
    tables = ", ".join(sorted({table for table, _, _ in homeless}))
    size = format_size(sum(size for _, size, _ in homeless))
    _, _, first = homeless[0]
    parts = counted(len(homeless), "part")
    return Refused(
        f"disk {disk} cannot be drained: {parts} of {tables} ({size}) do not fit anywhere: {first.why}",
        hint=f"free space, or give policy {first.policy} another disk in the configuration; nothing was moved",
    )


def already_there(
    *,
    partition: str | None = None,
    part: str | None = None,
    to_volume: str | None = None,
    to_disk: str | None = None,
    keep_source: bool = False,
) -> str:
    """What to say when nothing has to move."""
    place = f"disk '{to_disk}'" if to_disk is not None else f"volume '{to_volume}'"
    more = "; without --keep-source copies on other disks are removed" if keep_source else ""
    if partition is not None:
        return f"All parts of partition '{partition}' are already on {place}{more}"
    return f"Part '{part}' is already on {place}{more}"


def _target(
    policy: PolicyConfig, disks: Mapping[str, DiskState], to_volume: str | None, to_disk: str | None
) -> tuple[VolumeConfig, str]:
    volumes = ordered_volumes(policy)
    match (to_volume, to_disk):
        case (str(name), None):
            for volume in volumes:
                if volume.name == name:
                    return volume, f"volume '{name}'"
            known = ", ".join(volume.name for volume in volumes)
            raise NotFound(f"No such volume: {name}", hint=f"the policy's volumes are: {known}")
        case (None, str(name)):
            in_policy = [disk for volume in volumes for disk in volume.disks]
            if name not in disks or name not in in_policy:
                raise NotFound(f"No such disk: {name}", hint=f"the policy's disks are: {', '.join(in_policy)}")
            return VolumeConfig(name=name, disks=(name,)), f"disk '{name}'"
        case _:
            raise UsageError("name either a volume or a disk to move to", hint="--to-volume V or --to-disk D")


def less(state: DiskState, size: int) -> DiskState:
    """The disk with so many bytes more on it."""
    if state.free_bytes is None:
        return state
    return msgspec.structs.replace(state, free_bytes=state.free_bytes - size)
