"""Where the files of tables and parts lie on any disk."""

from __future__ import annotations

from dataclasses import dataclass

from oplog.errors import UsageError
from tiering.table.part import PartName

STORE_DIRECTORY = "store"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path belongs: `store/<3>/<uuid>/<part>/<file>`. `part` is None for files of the table itself."""

    uuid: str
    part: str | None
    file: str


def locate(path: str) -> Place | None:
    """The table and part a path belongs to; None for paths outside of tables."""
    segments = path.split("/")
    if len(segments) < 4 or segments[0] != STORE_DIRECTORY or not segments[2].startswith(segments[1]):
        return None
    if len(segments) == 4:
        return Place(segments[2], None, segments[3])
    return Place(segments[2], segments[3], "/".join(segments[4:]))


def directory_of(uuid: str, part: str) -> str:
    """Where a part of a table lies on any disk."""
    return f"{STORE_DIRECTORY}/{uuid[:3]}/{uuid}/{part}"


def part_name(name: str) -> PartName | None:
    """The directory's name as a part's; None when it is not one."""
    try:
        return PartName.parse(name)
    except UsageError:
        return None
