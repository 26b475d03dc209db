"""Whether the rows of a part that a way back would bring are there already, and which names of tables are taken. Pure.

The same questions for restores and undos, and for their previews: a row that is on another disk, in a merged part or
was inserted again would be there twice, and a log knows its own disk only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from tiering.table.part import Part, PartName
from tiering.table.same_rows import same_rows
from tiering.table.schema import TableDefinition, TableSettings


class PresentPart(msgspec.Struct, frozen=True):
    """A part that stays where it is, on this disk or another."""

    table_uuid: str
    part: Part
    disk: str
    active: bool = True
    window: int = TableSettings().deduplication_window
    """Of its table: how many digests of blocks a merged part remembers."""

    @property
    def name(self) -> PartName:
        return self.part.part_name


class Elsewhere(msgspec.Struct, frozen=True):
    """What the disks of this machine hold, in the eyes of a way back of one of them."""

    parts: Mapping[str, Sequence[PresentPart]] = msgspec.field(default_factory=dict)
    """By the table's uuid; those of the disk itself, too."""
    tables: Sequence[TableDefinition] = ()
    notes: Sequence[str] = ()
    """What of it is not known."""
    ways_back: Mapping[str, Mapping[str, int]] = msgspec.field(default_factory=dict)
    """By the uuid of a hidden table: the disks that a way back took it from, with the version that it had there."""

    def hiding(self, disk: str, table: TableDefinition) -> list[str]:
        """The other disks whose ways back hide what this disk would say of the table."""
        stones = self.ways_back.get(table.uuid, {})
        return sorted(other for other, version in stones.items() if other != disk and version >= table.version)


Look = Callable[[], Elsewhere]


def nothing_known() -> Elsewhere:
    """Of a disk that is looked at by itself."""
    return Elsewhere()


class Presence(msgspec.Struct, frozen=True):
    """Where rows of a part that would come are."""

    kind: Literal["copy", "merged", "again", "partly", "instead"]
    """The part itself; one that was made of it; its rows, inserted again; some of them; one that it was made of, and
    whose place it would take."""
    part: Part
    """The one that would come."""
    other: PresentPart

    @property
    def has_all_rows(self) -> bool:
        """Whether nothing is missing without the part."""
        return self.kind in ("copy", "merged", "again")

    def text(self, table: str) -> str:
        """What speaks against the part, in a sentence."""
        part, where = f"part {self.part.name} of {table}", f"part {self.other.part.name} on disk {self.other.disk}"
        match self.kind:
            case "copy":
                return f"{part} is on disk {self.other.disk}: it would be on two"
            case "merged":
                return f"the rows of {part} are in {where}, which it was merged into"
            case "instead":
                return f"{part} would take the place of {where}"
            case "again":
                return f"the rows of {part} were inserted again since: they are in {where}"
            case "partly":
                return f"some rows of {part} were inserted again since: they are in {where}"


def presence(part: Part, staying: Sequence[PresentPart]) -> Presence | None:
    """Where rows of the part are, among the parts of its table that stay; None when it may come."""
    name = part.part_name
    for other in staying:
        if other.name == name:
            return Presence("copy", part, other)
        if (other.name.covers(name) and other.part.was_made_from(name)) or part.name in other.part.replaces:
            return Presence("merged", part, other)
        replaces = (name.covers(other.name) and part.was_made_from(other.name)) or other.part.name in part.replaces
        if replaces and other.active:
            return Presence("instead", part, other)
    return _again(part, staying)


def _again(part: Part, staying: Sequence[PresentPart]) -> Presence | None:
    """By the digests of the blocks."""
    others = [other for other in staying if other.active]
    if not others or (found := same_rows(part, [other.part for other in others], window=others[0].window)) is None:
        return None
    return Presence("again" if found.how_many == "all" else "partly", part, others[found.where[0]])


def name_taken(coming: Iterable[TableDefinition], staying: Iterable[TableDefinition]) -> TableDefinition | None:
    """The first table that would come under the name of another one; nobody could tell them apart."""
    owners: dict[str, set[str]] = {}
    for table in staying:
        owners.setdefault(table.full_name, set()).add(table.uuid)
    return next((table for table in coming if owners.get(table.full_name, set()) - {table.uuid}), None)
