"""Where a new part goes, and the space promised to parts that are being written. In-process, thread-safe.

Insert: volumes in order, the first disk that takes the part; rows that are already past a TTL rule go straight to its
target (`perform_ttl_move_on_insert`), or wait for company (`tiering.policy.late`). Merge: from the coldest source
volume on, so that a merge never warms data up.
New parts of a replicated table come to disks of this machine alone: to a shared one they are moved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from disks.base import Disk
from oplog.errors import DiskUnreachable, FrostlineError, NoSpace, Refused
from tiering.catalog import retained_drops
from tiering.config.settings import Config, PolicyConfig, VolumeConfig
from tiering.config.units import format_size
from tiering.policy import placement
from tiering.policy.placement import DiskState, ordered_volumes, volume_index
from tiering.table.part import Part
from tiering.table.schema import MoveToDisk, MoveToVolume, TableDefinition

if TYPE_CHECKING:
    from tiering.policy.ttl import Due


class Reservations(msgspec.Struct):
    """The ledger of space promised to work in progress, and the choice of disks that honours it."""

    config: Config
    disks: Mapping[str, Disk]
    drained: Callable[[], Collection[str]] = frozenset
    """The disks that nothing new goes to, asked for each choice."""
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _reserved: dict[str, int] = {}
    _turns: dict[tuple[str, str], int] = {}

    def reserved(self, disk: str) -> int:
        """Bytes promised on the disk."""
        with self._lock:
            return self._reserved.get(disk, 0)

    def states(self) -> dict[str, DiskState]:
        """Every disk as the policy wants it, promised space included. A disk that cannot answer counts as broken."""
        with self._lock:
            return self._states(self.disks)

    @contextmanager
    def for_insert(
        self, definition: TableDefinition, size_bytes: int, part: Part | None, now: datetime, *, first_turn: int = 0
    ) -> Iterator[str]:
        """Promise space for a new part while the context lasts; gives the disk's name.

        `part` carries the column ranges that decide whether a TTL rule is due already; None skips that. `first_turn`
        says where round robin begins in this process: short ones would all begin with the first disk. Raises `NoSpace`
        when no volume takes the part.
        """
        policy = self.config.policy(definition.policy)
        with self._lock:
            for volume in policy.volumes:
                self._turns.setdefault((definition.policy, volume.name), first_turn)
            disk = self._insert_disk(definition, policy, size_bytes, part, now)
            self._add(disk, size_bytes)
        try:
            yield disk
        finally:
            self._give_back(disk, size_bytes)

    @contextmanager
    def for_merge(self, definition: TableDefinition, sources: Iterable[str], size_bytes: int) -> Iterator[str]:
        """Promise space for a merge of parts on the `sources` disks; gives the disk's name. Raises `NoSpace`."""
        policy = self.config.policy(definition.policy)
        if (
            definition.is_replicated
        ):  # what lies in a bucket here may lie on disks elsewhere: the merge is made on disks
            sources = [disk for disk in sources if not self._is_remote(disk)]
        known = [index for disk in sources if (index := volume_index(policy, disk)) is not None]
        with self._lock:
            disk = self._first_fit(definition, list(ordered_volumes(policy)[max(known, default=0) :]), size_bytes)
            self._add(disk, size_bytes)
        try:
            yield disk
        finally:
            self._give_back(disk, size_bytes)

    @contextmanager
    def reserve(self, disk: str, size_bytes: int) -> Iterator[None]:
        """Promise space on this very disk while the context lasts. Raises `NoSpace` or `Refused`."""
        with self._lock:
            state = self._with_room([disk], size_bytes)[disk]
            if problem := placement.unusable(disk, state):
                raise Refused(problem, hint="name another disk")
            if problem := placement.fits(disk, state, size_bytes):
                raise NoSpace(problem, hint="move parts to a colder volume or lower keep_free_space_bytes")
            self._add(disk, size_bytes)
        try:
            yield
        finally:
            self._give_back(disk, size_bytes)

    def _insert_disk(
        self, definition: TableDefinition, policy: PolicyConfig, size_bytes: int, part: Part | None, now: datetime
    ) -> str:
        from tiering.policy import ttl

        dues = ttl.due_times(definition, part) if part is not None else ()
        due = ttl.winning_move(dues, now)
        target = _ttl_volume(policy, due)
        if target is not None and target.perform_ttl_move_on_insert:
            if part is not None and (waits := self._waiting_disk(definition, policy, part, dues, now)) is not None:
                return waits
            to_disk = due is not None and isinstance(due.rule.action, MoveToDisk)
            choice = self._choose(definition, target, size_bytes, obey_limit=not to_disk)
            if choice.disk is not None:
                return choice.disk
        return self._first_fit(definition, list(ordered_volumes(policy)), size_bytes)

    def _waiting_disk(
        self, definition: TableDefinition, policy: PolicyConfig, part: Part, dues: Sequence[Due], now: datetime
    ) -> str | None:
        """Where a small part waits whose rows came late; None where it goes to its volume at once, as it does when
        room has to be made where it would wait."""
        from tiering.policy import late

        hottest = ordered_volumes(policy)[0]
        roomy = [
            name
            for name, state in self._states(hottest.disks).items()
            if late.came_late(part.part_name, part, dues, name, policy, now)
            and not placement.lacks_room(policy, state, part.size_bytes)
        ]
        if not roomy:
            return None
        return self._choose(definition, msgspec.structs.replace(hottest, disks=tuple(roomy)), part.size_bytes).disk

    def _first_fit(self, definition: TableDefinition, volumes: list[VolumeConfig], size_bytes: int) -> str:
        problems = []
        for volume in volumes:
            choice = self._choose(definition, volume, size_bytes)
            if choice.disk is not None:
                return choice.disk
            problems.append(choice.why)
        for name in {disk for volume in volumes for disk in volume.disks}:
            if name in self.disks and self.disks[name].unreachable:
                raise DiskUnreachable(
                    f"no disk that can be reached takes a part of {format_size(size_bytes)}: {'; '.join(problems)}",
                    hint="nothing was changed; try again when the bucket answers",
                )
        raise NoSpace(
            f"no disk of policy {definition.policy} takes a part of {format_size(size_bytes)}: {'; '.join(problems)}",
            hint="free space, raise the volume's size limit or add a disk; nothing was changed",
        )

    def _choose(
        self, definition: TableDefinition, volume: VolumeConfig, size_bytes: int, *, obey_limit: bool = True
    ) -> placement.DiskChoice:
        key = (definition.policy, volume.name)
        states = self._with_room(volume.disks, size_bytes)
        turn, skip = self._turns.get(key, 0), self._shared(volume) if definition.is_replicated else None
        choice = placement.choose_disk(volume, states, size_bytes, turn=turn, obey_limit=obey_limit, skip=skip)
        if choice.disk is not None:
            self._turns[key] = turn + 1
        return choice

    def _with_room(self, names: Iterable[str], size_bytes: int) -> dict[str, placement.DiskState]:
        """The states of these disks. Where nothing of that size fits, what drops had kept there goes first, as far as
        it has to."""
        states = self._states(names)
        usable = [name for name, state in states.items() if not placement.unusable(name, state)]
        if any(not placement.fits(name, states[name], size_bytes) for name in usable):
            return states
        for name in usable:
            disk = self.disks[name]
            while placement.fits(name, states[name], size_bytes) and retained_drops.give_way(disk):
                states[name] = self._states([name])[name]
        return states

    def _shared(self, volume: VolumeConfig) -> dict[str, tuple[str, str]]:
        why = "replicas of the table share it, or its objects: parts are moved there"
        return {name: ("shared", f"disk {name}: {why}") for name in volume.disks if self._is_remote(name)}

    def _is_remote(self, name: str) -> bool:
        return name in self.disks and self.disks[name].capabilities.remote

    def _states(self, names: Iterable[str]) -> dict[str, DiskState]:
        drained = self.drained()
        found = {name: _state(name, self.disks.get(name), self._reserved.get(name, 0)) for name in names}
        return {name: msgspec.structs.replace(state, drained=name in drained) for name, state in found.items()}

    def _add(self, disk: str, size_bytes: int) -> None:
        self._reserved[disk] = self._reserved.get(disk, 0) + size_bytes

    def _give_back(self, disk: str, size_bytes: int) -> None:
        with self._lock:
            self._reserved[disk] -= size_bytes


def _state(name: str, disk: Disk | None, reserved_bytes: int) -> DiskState:
    if disk is None:
        return DiskState(None, None, broken="it is not configured")
    try:
        usage = disk.usage()
    except (FrostlineError, OSError) as error:
        return DiskState(None, None, reserved_bytes, disk.read_only, broken=f"{name}: {error}")
    return DiskState(usage.total_bytes, usage.free_bytes, reserved_bytes, disk.read_only, unreachable=disk.unreachable)


def _ttl_volume(policy: PolicyConfig, due: Due | None) -> VolumeConfig | None:
    """Where a rule that is due already wants a new part; None when the target does not exist."""
    if due is None:
        return None
    match due.rule.action:
        case MoveToVolume(volume=name):
            return next((volume for volume in policy.volumes if volume.name == name), None)
        case MoveToDisk(disk=name):
            for volume in policy.volumes:
                if name in volume.disks:
                    return msgspec.structs.replace(volume, disks=(name,))
    return None
