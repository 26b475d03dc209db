"""What a policy may become, and the moves a person asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from oplog.errors import NotFound, Refused, UsageError
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.policy import placement
from tiering.policy.placement import DiskState, ordered_volumes
from tiering.policy.plan import Move, PlacedPart, Reason


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
    what: str,
    policy: PolicyConfig,
    disks: Mapping[str, DiskState],
    *,
    to_volume: str | None = None,
    to_disk: str | None = None,
    keep_source: bool = False,
) -> list[Move]:
    """Moves of one table's parts to a volume or disk, in ascending size; parts already there are left out.

    `what` names them in errors: `partition '202601'`, `part '202601_1_5_1'`. Size limits of volumes are obeyed for a
    volume and not for a disk; space is checked. Raises `NotFound`, `UsageError` or, without space, `Refused`. Empty
    when all are there already: asking twice is no error, `already_there` says it in words.
    """
    chosen = sorted(parts, key=lambda part: (part.part.size_bytes, part.name))
    if not chosen:
        raise NotFound(f"there is no {what}", hint="'frostline parts' lists them")
    volume, place = _target(policy, disks, to_volume, to_disk)
    moving = [part for part in chosen if part.disk not in volume.disks]
    model = dict(disks)
    moves = []
    for turn, part in enumerate(moving):
        size = part.part.size_bytes
        choice = placement.choose_disk(volume, model, size, turn=turn, obey_limit=to_disk is None)
        if choice.disk is None:
            raise Refused(f"part {part.part.name} cannot move to {place}: {choice.why}", hint="nothing was moved")
        model[choice.disk] = _less(model[choice.disk], size)
        moves.append(
            Move(
                table=part.definition.full_name,
                table_uuid=part.definition.uuid,
                part=part.part.name,
                source=part.disk,
                target=choice.disk,
                bytes=size,
                reason=Reason("manual", f"asked for: {what} to {place}"),
                keep_source=keep_source,
            )
        )
    return moves


def already_there(
    *, partition: str | None = None, part: str | None = None, to_volume: str | None = None, to_disk: str | None = None
) -> str:
    """What to say when nothing has to move."""
    place = f"disk '{to_disk}'" if to_disk is not None else f"volume '{to_volume}'"
    if partition is not None:
        return f"All parts of partition '{partition}' are already on {place}"
    return f"Part '{part}' is already on {place}"


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


def _less(state: DiskState, size: int) -> DiskState:
    if state.free_bytes is None:
        return state
    return replace(state, free_bytes=state.free_bytes - size)
