"""The parts of a disk whose rows are in other active parts, or went for good: what keeps a disk that comes back from
doubling rows, and from bringing back what was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.entry import Create
from oplog.errors import FrostlineError, Transient
from oplog.kinds import SetAside
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.catalog.copies.copying import moved_from
from tiering.catalog.copies.source_copies import copy_history, last_of
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import directory_of, free_path, level_mark, part_name
from tiering.table.same_rows import same_rows, went_into
from tiering.table.schema import TABLE_FILE, TableDefinition

Reason = Literal["duplicate", "partly", "unexpected", "dropped"]


class DoubledPart(msgspec.Struct, frozen=True):
    """An active part that cannot stay where it is."""

    part: StoredPart
    reason: Reason
    """Its rows are in other parts, some of them are, a part of its name has other rows, or they went for good."""
    other: str
    """Which part, and on which disk; or what took its rows away, and in which revision."""

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
                return f"{rows} is gone: {self.other}"


class Compared(msgspec.Struct, frozen=True):
    """The parts of a disk beside those of all others. A part is identified by the uuid of its table and its name."""

    doubled: list[DoubledPart] = []
    copies: list[tuple[str, str]] = []
    """Those that another disk has as well, and that stay: the source of a move that is still to go."""
    own: list[tuple[str, str]] = []
    """Those whose rows nobody else has."""


def compare_parts(catalog: Catalog, disks: Mapping[str, Disk], name: str) -> Compared:
    """Those on the disk `name`. What replicas agree on is theirs to compare. Raises what reading a log raises."""
    found = Compared()
    for definition in catalog.tables():
        if definition.is_replicated:
            continue
        parts = catalog.parts(definition, include_outdated=True)
        others = [stored for stored in parts if stored.disk != name and stored.state != "outdated"]
        same = {other.name: other for other in others}
        alone: list[StoredPart] = []
        for stored in parts:
            if stored.disk != name or stored.state == "outdated":
                continue
            if (other := same.get(stored.name)) is not None:
                one = _of_same_name(stored, other, disks)
            elif (one := _elsewhere(stored, others)) is None:
                alone.append(stored)
                continue
            if one is not None and one.reason == "unexpected" and disks[name].capabilities.shared:
                continue  # another machine's, of the name of one that is here: both answer
            if one is not None:
                found.doubled.append(one)
            else:
                found.copies.append((definition.uuid, stored.label))
        gone = list(_gone(definition, alone, disks))
        found.doubled.extend(gone)
        names = {one.part.label for one in gone}
        found.own.extend((definition.uuid, stored.label) for stored in alone if stored.label not in names)
    return found


def _of_same_name(stored: StoredPart, other: StoredPart, disks: Mapping[str, Disk]) -> DoubledPart | None:
    """None for the source of a move: opening the store ends that move, or keeps the copy that somebody wanted."""
    if other.part != stored.part:
        return DoubledPart(stored, "unexpected", f"the one on disk {other.disk}")
    origin = moved_from(disks[other.disk], other)
    if origin is not None and origin[0] == stored.disk:
        return None
    return DoubledPart(stored, "duplicate", f"the same part on disk {other.disk}")


def _elsewhere(stored: StoredPart, others: Sequence[StoredPart]) -> DoubledPart | None:
    window = stored.definition.settings.deduplication_window
    found = same_rows(stored.part, [other.part for other in others], window=window)
    if found is None:
        return None
    sharing = [others[at] for at in found.where[:3]]
    where = ", ".join(f"{other.facts.name} on disk {other.disk}" for other in sharing)
    return DoubledPart(stored, "duplicate" if found.how_many == "all" else "partly", f"part {where}")


def _gone(definition: TableDefinition, alone: Sequence[StoredPart], disks: Mapping[str, Disk]) -> Iterator[DoubledPart]:
    """Those of the parts, which nobody else has, whose rows left a bucket for good by its log: as the part itself, or
    in one that it was merged into. A merge alone takes no row away: what it made may have lain on the disk that is
    gone, and then the part has the rows."""
    if not alone:
        return
    buckets = [
        logged
        for disk in disks.values()
        if (logged := as_disk(disk, LoggedDisk)) is not None and logged.broken is None and disk.name != alone[0].disk
    ]
    places = {stored.directory: {stored.directory} for stored in alone}
    for bucket in buckets:
        for directory, made in _made_of(definition, alone, bucket):
            places[directory].add(made)

    def is_shared(disk: str) -> bool | None:
        return disks[disk].capabilities.shared if disk in disks else None

    for stored in alone:
        accounts = [
            account
            for bucket in buckets
            for directory in places[stored.directory]
            if (account := copy_history(bucket, directory, is_shared, kept=True)) is not None
            and not account.state.is_merged
        ]
        if accounts and (last := last_of(accounts)).kind == "outdated":
            yield DoubledPart(stored, "dropped", last.why)


def _made_of(definition: TableDefinition, parts: Sequence[StoredPart], bucket: LoggedDisk) -> Iterator[tuple[str, str]]:
    """Directory of a part, and that of one that was made from it and has been in the bucket, as far as its log is
    kept."""
    window = definition.settings.deduplication_window
    for entry in bucket.commits().touching(definition.directory, until=bucket.revision):
        for operation in entry.commit.operations:
            if not isinstance(operation, Create) or not operation.path.endswith(f"/{PART_FILE}"):
                continue
            directory, _, label = operation.path.removesuffix(f"/{PART_FILE}").rpartition("/")
            if directory == definition.directory and part_name(label) is not None:
                made = _described(bucket, entry.commit.revision, operation)
                sources = [one for one in parts if made is not None and went_into(one.part, made, window=window)]
                yield from ((one.directory, definition.part_directory(label)) for one in sources)


def _described(bucket: LoggedDisk, revision: int, operation: Create) -> Part | None:
    """What a `part.json` of then says; None where it is no more to be read. A large one is an object of its own."""
    path = f"{bucket.name}:{operation.path}"
    try:
        data = operation.inline or bucket.at(revision, briefly=True).read(operation.path)
        return part_format.decode(data, path=path)
    except Transient:
        raise
    except FrostlineError:
        return None


def set_aside(disk: Disk, doubled: Sequence[DoubledPart], levels: Mapping[str, int], actor: str) -> list[str]:
    """Rename them into `detached/` of their tables, in one transaction, and note the levels of merged parts that were
    given. Nothing is deleted. Where each of them is now."""
    marks = [path for uuid, level in levels.items() if _is_new(disk, uuid, path := level_mark(uuid, level))]
    targets = [
        free_path(
            directory_of(one.part.definition.uuid, f"{DETACHED_DIRECTORY}/{one.reason}_{one.part.facts.name}"),
            disk.exists,
        )
        for one in doubled
    ]
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


def levels_given(outputs: Iterable[str]) -> int:
    """The highest level of these merged parts; 0 for none."""
    return max((name.level for text in outputs if (name := part_name(text)) is not None), default=0)
