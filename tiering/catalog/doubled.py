"""The parts of a disk whose rows are in other active parts, or went for good: what keeps a disk that comes back from
doubling rows, and from bringing back what was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from disks.base import Disk
from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.entry import Create, Remove, Rename
from oplog.kinds import Dropped, SetAside
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.table.places import directory_of, level_mark, part_name
from tiering.table.schema import TABLE_FILE

Reason = Literal["duplicate", "partly", "unexpected", "dropped"]


class DoubledPart(msgspec.Struct, frozen=True):
    """An active part that cannot stay where it is."""

    part: StoredPart
    reason: Reason
    """Its rows are in other parts, some of them are, a part of its name has other rows, or it was dropped elsewhere."""
    other: str
    """Which part, and on which disk; or the revision that dropped it."""

    def text(self) -> str:
        """What speaks against it, in a sentence."""
        rows = f"part {self.part.facts.name} of {self.part.definition.full_name}"
        match self.reason:
            case "duplicate":
                return f"the rows of {rows} are in {self.other}"
            case "partly":
                return f"some rows of {rows} are in {self.other}"
            case "unexpected":
                return f"{rows} is not {self.other}, which has its name"
            case "dropped":
                return f"{rows} was dropped by {self.other}"


def doubled_parts(catalog: Catalog, disks: Mapping[str, Disk], name: str) -> list[DoubledPart]:
    """Those on the disk `name`. What replicas agree on is theirs to compare. Raises what reading a log raises."""
    found: list[DoubledPart] = []
    for definition in catalog.tables():
        if definition.is_replicated:
            continue
        parts = catalog.parts(definition, include_outdated=True)
        others = [stored for stored in parts if stored.disk != name and stored.state != "outdated"]
        for stored in parts:
            if stored.disk == name and stored.state != "outdated":
                one = _doubled(stored, others) or _dropped(stored, others, disks)
                if one is not None and one.reason == "unexpected" and disks[name].capabilities.shared:
                    continue  # another machine's, of the name of one that is here: both answer
                found += [one] if one is not None else []
    return found


def _doubled(stored: StoredPart, others: Sequence[StoredPart]) -> DoubledPart | None:
    mine = set(stored.part.digests)
    sharing: list[StoredPart] = []
    for other in others:
        if other.name == stored.name:
            where = f"the one on disk {other.disk}"
            return None if other.part == stored.part else DoubledPart(stored, "unexpected", where)
        if not mine.isdisjoint(other.part.digests):
            sharing.append(other)
    if not sharing:
        return None
    whole = mine <= {digest for other in sharing for digest in other.part.digests}
    adds_up = not stored.part.sources or stored.part.rows <= sum(other.part.rows for other in sharing)
    where = ", ".join(f"{other.facts.name} on disk {other.disk}" for other in sharing[:3])
    return DoubledPart(stored, "duplicate" if whole and adds_up else "partly", f"part {where}")


def _dropped(stored: StoredPart, others: Sequence[StoredPart], disks: Mapping[str, Disk]) -> DoubledPart | None:
    """Whether the last that a bucket's log says of the part is that it was dropped there."""
    if any(other.name == stored.name for other in others):
        return None
    directory = stored.directory
    for disk in disks.values():
        logged = disk.logged
        if logged is None or disk.broken is not None or disk.name == stored.disk:
            continue
        last: tuple[int, object] | None = None
        for entry in logged.commits().touching(directory):
            for operation in entry.commit.operations:
                match operation:
                    case Remove(path=path) | Rename(source=path) if f"{directory}/".startswith(f"{path}/"):
                        last = entry.commit.revision, entry.commit.kind
                    case Create(path=path) if path.startswith(f"{directory}/"):
                        last = None
                    case Rename(target=path) if f"{directory}/".startswith(f"{path}/"):
                        last = None
        if last is not None and isinstance(last[1], Dropped):
            return DoubledPart(stored, "dropped", f"revision {last[0]} of disk {disk.name}")
    return None


def set_aside(disk: Disk, doubled: Sequence[DoubledPart], levels: Mapping[str, int], actor: str) -> list[str]:
    """Rename them into `detached/` of their tables, in one transaction, and note the levels of merged parts that were
    given. Nothing is deleted. Where each of them is now."""
    marks = [path for uuid, level in levels.items() if _is_new(disk, uuid, path := level_mark(uuid, level))]
    targets = [_free_place(disk, one) for one in doubled]
    if not doubled and not marks:
        return []
    reason = f"disk {disk.name} is adopted: parts whose rows are elsewhere, or were dropped"
    with disk.transaction(SetAside(), reason=reason, actor=actor) as transaction:
        for one, target in zip(doubled, targets, strict=True):
            transaction.rename(one.part.directory, target)
        for path in marks:
            transaction.create(path, b"{}")
        transaction.commit()
    return targets


def _is_new(disk: Disk, uuid: str, path: str) -> bool:
    return disk.exists(directory_of(uuid, TABLE_FILE)) and not disk.exists(path)


def _free_place(disk: Disk, one: DoubledPart) -> str:
    """A name below `detached/` that nothing has."""
    name, attempt = f"{one.reason}_{one.part.facts.name}", 1
    place = directory_of(one.part.definition.uuid, f"{DETACHED_DIRECTORY}/{name}")
    while disk.exists(place):
        attempt += 1
        place = directory_of(one.part.definition.uuid, f"{DETACHED_DIRECTORY}/{name}_try{attempt}")
    return place


def levels_given(outputs: Iterable[str]) -> int:
    """The highest level of these merged parts; 0 for none."""
    return max((name.level for text in outputs if (name := part_name(text)) is not None), default=0)
