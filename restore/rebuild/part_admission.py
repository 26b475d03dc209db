"""Which of the parts that a restore would bring come, which are there already and stay away, and which forbid it.

A part whose rows other parts have does not come, and that is said: the answer has each row once. Where some of its rows
are there and some are not, or where it would hide a part of another disk, neither would be right: the restore is
refused. Parts on the disk itself that lie within what is asked for go back with it, and are in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from restore.rebuild.duplicates import Elsewhere, Presence, PresentPart, presence
from restore.rebuild.plan import TableDifference, in_scope
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import directory_of, locate, name_at


class StaysAway(msgspec.Struct, frozen=True):
    """A part that a restore does not bring, or is refused for."""

    table: str
    presence: Presence

    @property
    def text(self) -> str:
        return self.presence.text(self.table)

    def hint(self, disk: str) -> str:
        """How to have it all the same."""
        other = self.presence.other
        if other.disk == disk:
            return f"restore the table or the partition instead of a path: then {other.part.name} is restored too"
        return (
            f"to have disk {disk} as it was, bring there what is elsewhere, and restore again: "
            f"frostline move {self.table} --part {other.part.name} --to-disk {disk}"
        )

    def document(self) -> dict[str, object]:
        """The JSON of the command line."""
        part, other = self.presence.part, self.presence.other
        return {
            "table": self.table,
            "part": part.name,
            "rows": part.rows,
            "why": self.presence.kind,
            "in": other.part.name,
            "disk": other.disk,
        }


class Arrivals(msgspec.Struct, frozen=True):
    """The difference without what does not come."""

    difference: TableDifference
    stay_away: list[StaysAway]
    forbid: list[StaysAway]
    parts: int
    """How many parts would come, those among them."""

    def keeps_out(self, path: str) -> bool:
        """Whether the file belongs to a part that does not come."""
        place = name_at(path)
        return place is not None and any(
            (place[0], str(place[1])) == (one.presence.part.table, one.presence.part.name) for one in self.stay_away
        )


def sort_arrivals(
    disk: str,
    difference: TableDifference,
    scope: Sequence[str] | None,
    elsewhere: Elsewhere,
    *,
    read: Callable[[str], Part | None],
    name: Callable[[str], str],
) -> Arrivals:
    """Decide about each part of the difference. `read` gives what a `part.json` says, None where it cannot be read;
    `name` a table's name by its uuid."""
    stay_away: list[StaysAway] = []
    forbid: list[StaysAway] = []
    here = set(difference.removed)
    staying: dict[str, list[PresentPart]] = {}
    parts = 0
    for path in difference.created:
        place = name_at(path)
        if place is None or path in here or path != f"{directory_of(place[0], str(place[1]))}/{PART_FILE}":
            continue
        uuid, parts = place[0], parts + 1
        if uuid not in staying:
            staying[uuid] = [
                other
                for other in elsewhere.parts.get(uuid, ())
                if other.disk != disk or not in_scope(f"{directory_of(uuid, other.part.name)}/{PART_FILE}", scope)
            ]
        part = read(path) if staying[uuid] else None
        if part is not None and (found := presence(part, staying[uuid])) is not None:
            (stay_away if found.has_all_rows else forbid).append(StaysAway(name(uuid), found))
    return _without(Arrivals(difference, stay_away, forbid, parts))


def _without(arrivals: Arrivals) -> Arrivals:
    if not arrivals.stay_away:
        return arrivals
    names = {(one.presence.part.table, one.presence.part.name) for one in arrivals.stay_away}
    created = tuple(
        path
        for path in arrivals.difference.created
        if (place := locate(path)) is None or (place.uuid, place.part) not in names
    )
    return replace(arrivals, difference=replace(arrivals.difference, created=created, created_files=len(created)))
