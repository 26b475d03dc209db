"""Which disk of a volume can take a part. Pure; shared by the policy, which moves, and by the reservations."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.config.units import format_size


class DiskState(msgspec.Struct, frozen=True):
    """What is known of a disk when a decision is made. Totals are None where there is no limit."""

    total_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int = 0
    read_only: bool = False
    broken: str = ""
    """Why the disk cannot be used; empty when it can."""
    unreachable: str = ""
    """Why the disk cannot be reached now; empty when it can."""
    drained: bool = False
    """Somebody empties the disk: what is there may go, and nothing comes."""

    @property
    def unreserved_bytes(self) -> int | None:
        """Free space that nobody has asked for yet."""
        return None if self.free_bytes is None else max(0, self.free_bytes - self.reserved_bytes)


class DiskChoice(msgspec.Struct, frozen=True):
    """A disk, or the reason why none was found (`kind` is the stable word, `why` is for people)."""

    disk: str | None
    kind: str = ""
    why: str = ""


def ordered_volumes(policy: PolicyConfig) -> tuple[VolumeConfig, ...]:
    """The volumes, hottest first: by `volume_priority` where it is given, else as listed."""
    return tuple(sorted(policy.volumes, key=lambda volume: volume.volume_priority or 0))


def volume_index(policy: PolicyConfig, disk: str) -> int | None:
    """How cold the disk is in the policy: 0 is the hottest volume; None when it is not in the policy."""
    for index, volume in enumerate(ordered_volumes(policy)):
        if disk in volume.disks:
            return index
    return None


def move_factor(policy: PolicyConfig) -> float:
    """The share of a disk that should stay free: default 0.1 with several volumes, else 0."""
    if policy.move_factor is not None:
        return policy.move_factor
    return 0.1 if len(policy.volumes) > 1 else 0.0


def move_until(policy: PolicyConfig) -> float:
    """The share that is free when moves that make room end; never less than where they begin."""
    return max(move_factor(policy), policy.move_until or 0.0)


def lacks_room(policy: PolicyConfig, state: DiskState | None, more_bytes: int = 0) -> bool:
    """Whether less is free than the policy wants, with so many more bytes on the disk; not where it has no size."""
    if state is None or state.total_bytes is None or state.unreserved_bytes is None:
        return False
    return state.unreserved_bytes - more_bytes < int(state.total_bytes * move_factor(policy))


def size_limit(volume: VolumeConfig, disks: Mapping[str, DiskState]) -> int | None:
    """The largest part the volume takes, in bytes; None without a limit or where the disks have no size."""
    limits = [] if volume.max_data_part_size_bytes is None else [volume.max_data_part_size_bytes]
    if volume.max_data_part_size_ratio is not None:
        totals = [disks[name].total_bytes if name in disks else 0 for name in volume.disks]
        known = [total for total in totals if total is not None]
        if len(known) == len(totals):
            limits.append(int(sum(known) * volume.max_data_part_size_ratio / len(totals)))
    return min((limit for limit in limits if limit), default=None)


def unusable(name: str, state: DiskState | None) -> str:
    """Why nothing can be written to the disk; empty when it can."""
    if state is None:
        return f"there is no disk {name}"
    if state.broken:
        return f"disk {name} is broken: {state.broken}"
    if state.unreachable:
        return state.unreachable
    if state.read_only:
        return f"disk {name} is read-only"
    return f"disk {name} is drained ('frostline disk drain {name} --stop' ends that)" if state.drained else ""


def fits(name: str, state: DiskState, size_bytes: int) -> str:
    """Why the bytes do not fit on the disk; empty when they do."""
    free = state.unreserved_bytes
    if free is None or free >= size_bytes:
        return ""
    return f"disk {name} has {format_size(free)} free, the part needs {format_size(size_bytes)}"


def choose_disk(
    volume: VolumeConfig,
    disks: Mapping[str, DiskState],
    size_bytes: int,
    *,
    turn: int = 0,
    obey_limit: bool = True,
    skip: Mapping[str, tuple[str, str]] | None = None,
) -> DiskChoice:
    """The volume's disk for a part of this size. `turn` counts earlier choices, for round robin; `skip` names disks
    that are not to be taken, with the kind of reason and the reason."""
    limit = size_limit(volume, disks)
    if obey_limit and limit is not None and size_bytes > limit:
        why = f"volume {volume.name} takes parts up to {format_size(limit)}, this one has {format_size(size_bytes)}"
        return DiskChoice(None, "size_limit", why)
    reasons: list[tuple[str, str]] = []
    skipped = skip or {}
    for name in _in_order(volume, disks, turn):
        if name in skipped:
            reasons.append(skipped[name])
        elif problem := unusable(name, disks.get(name)):
            reasons.append(("unusable_disk", problem))
        elif problem := fits(name, disks[name], size_bytes):
            reasons.append(("no_space", problem))
        else:
            return DiskChoice(name)
    kinds = {kind for kind, _ in reasons}
    kind = next(
        (kind for kind in (*sorted(kind for kind, _ in skipped.values()), "no_space") if kind in kinds), "unusable_disk"
    )
    return DiskChoice(None, kind, "; ".join(why for _, why in reasons))


def _in_order(volume: VolumeConfig, disks: Mapping[str, DiskState], turn: int) -> list[str]:
    names = list(volume.disks)
    if volume.load_balancing == "least_used":
        return sorted(names, key=lambda name: (-_free(disks.get(name)), name))
    start = turn % len(names)
    return names[start:] + names[:start]


def _free(state: DiskState | None) -> float:
    if state is None:
        return -1
    return float("inf") if state.unreserved_bytes is None else state.unreserved_bytes
