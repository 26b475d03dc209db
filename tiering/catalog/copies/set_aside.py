"""The gaps that a repair left: parts that `fsck --repair` set aside, because they could not be read.

Their rows are in no answer, and every answer says so. A gap is closed when the rows are back: the part itself, on any
disk, or everything that was once inserted into it, in other parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from disks.base import Disk, read_each
from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.errors import FrostlineError
from tiering.catalog.catalog import StoredPart
from tiering.table import part as parts_format
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import part_name
from tiering.table.same_rows import same_rows
from tiering.table.schema import TableDefinition

_NAME = re.compile(r"(missing|altered|broken|incomplete|unexpected|partly)_(.+?)(?:_try[0-9]+)?/?\Z")
"""What a repair calls a part that it sets aside, and an adoption one of which only some rows are in other parts (or of
whose name there is another one). Whatever else lies there is missed by nobody, or somebody put it there."""


class SetAsidePart(msgspec.Struct, frozen=True):
    """One part that lies in `detached/`. `rows` is None where its `part.json` cannot be read."""

    table: str
    disk: str
    part: str
    reason: str
    path: str
    rows: int | None


def part_aside(name: str) -> str | None:
    """The part that a directory in `detached/` holds by the name that a repair gave it; None for any other name."""
    match = _NAME.fullmatch(name)
    return match[2] if match and part_name(match[2]) is not None else None


def find_set_aside(
    disks: Mapping[str, Disk], definition: TableDefinition, active: Callable[[], Iterable[StoredPart]]
) -> list[SetAsidePart]:
    """The parts of the table that were set aside and whose rows are not in the `active` ones, which are asked for only
    where there are such. One listing a disk."""
    found: list[tuple[SetAsidePart, Part | None]] = []
    place = f"{definition.directory}/{DETACHED_DIRECTORY}"
    for disk in disks.values():
        names = [match for child in disk.list(place) if (match := _NAME.fullmatch(child)) and part_aside(child)]
        readable = _readable(disk, place) if names else {}
        for match in names:
            path = f"{place}/{match[0].rstrip('/')}"
            part = readable.get(path)
            rows = part.rows if part is not None else None
            found.append((SetAsidePart(definition.full_name, disk.name, match[2], match[1], path, rows), part))
    if not found:
        return []
    there = list(active())
    same = {stored.facts.name: stored.part for stored in there}
    parts, window = list(same.values()), definition.settings.deduplication_window
    return [aside for aside, part in found if not _is_back(part, same.get(aside.part), parts, window=window)]


def _is_back(part: Part | None, same: Part | None, parts: Sequence[Part], *, window: int) -> bool:
    """Whether the part is there (`same` has its name), or all that was ever inserted into it, in others."""
    if part is None:
        return same is not None
    if same is not None and (same.rows, same.digests) == (part.rows, part.digests):
        return True
    found = same_rows(part, parts, window=window)
    return found is not None and found.how_many == "all"


def _readable(disk: Disk, directory: str) -> dict[str, Part]:
    """The `part.json` of those that have one that can be read, by the part's directory."""
    parts: dict[str, Part] = {}
    try:
        for path, data in read_each(disk, directory, PART_FILE).items():
            try:
                parts[path.rpartition("/")[0]] = parts_format.decode(data, path=f"{disk.name}:{path}")
            except FrostlineError:
                continue
    except FrostlineError:  # an object that is gone; the rest is reported
        pass
    return parts
