"""Which copies of parts answer queries: active, outdated, or a duplicate of one on a hotter disk.

Names say which parts another one may replace, lineage which it does replace (`tiering.catalog.lineage`), and of copies
of a bucket's parts on this machine the bucket's log says whether they are valid (`tiering.catalog.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tiering.catalog.copies.source_copies import SourceCopies
from tiering.catalog.lineage import Lineage, claims
from tiering.catalog.stored import PartState, StoredPart
from tiering.config.settings import Config
from tiering.policy.placement import ordered_volumes
from tiering.table import part as parts_format
from tiering.table.schema import TableDefinition

Unproved = dict[tuple[str, str], list[StoredPart]]
"""Disk and directory of a part -> the parts that it claims to replace without a proof; itself first."""


class Doubts(msgspec.Struct, frozen=True):
    """What nothing proves about the parts of a table. All of these parts count."""

    unproved: Unproved = {}
    unexplained: list[str] = []
    """Copies of a bucket's part of which no log says why the bucket lacks it: one sentence each."""


class States(msgspec.Struct):
    """Computes the states of the parts of a table, or of some of its partitions."""

    config: Config
    lineage: Lineage
    copies: SourceCopies

    def heat(self, definition: TableDefinition) -> dict[str, int]:
        """The disks of the table's policy, hottest first, with their ranks."""
        policy = self.config.policies.get(definition.policy)
        disks = [disk for volume in ordered_volumes(policy) for disk in volume.disks] if policy else []
        return {name: rank for rank, name in enumerate(disks)}

    def of(
        self, definition: TableDefinition, parts: Sequence[StoredPart], copies: frozenset[str], doubts: Doubts
    ) -> tuple[list[StoredPart], bool]:
        """The parts in name order, each with its state; and whether that follows from these parts alone. What nothing
        proves is added to the doubts."""
        heat = self.heat(definition)
        ordered = sorted(parts, key=lambda stored: (stored.name, heat.get(stored.disk, len(heat)), stored.disk))
        hidden = may_be_hidden(ordered)
        outdated = self._outdated_among(hidden, ordered, doubts.unproved) if hidden else set()
        alone = self._without_original(ordered, copies) if copies else []
        outdated |= self._outdated_copies(definition, alone, doubts.unexplained)
        last: StoredPart | None = None
        result: list[StoredPart] = []
        for stored in ordered:
            state: PartState = "outdated" if outdated and (stored.disk, stored.directory) in outdated else "active"
            if state == "active" and last is not None and stored.is_copy_of(last):
                state = "duplicate"
            last = stored
            result.append(stored if state == stored.state else msgspec.structs.replace(stored, state=state))
        return result, not (hidden or alone)

    def _without_original(self, parts: list[StoredPart], copies: frozenset[str]) -> list[StoredPart]:
        """The parts that may be copies of a bucket's, which no bucket has."""
        in_buckets = {stored.name for stored in parts if not self.copies.is_local(stored.disk)}
        return [stored for stored in parts if stored.label in copies and stored.name not in in_buckets]

    def _outdated_copies(
        self, definition: TableDefinition, alone: list[StoredPart], unexplained: list[str]
    ) -> set[tuple[str, str]]:
        """Disk and directory of those whose original a commit took away for good."""
        outdated: set[tuple[str, str]] = set()
        for stored in alone:
            state = self.copies.state(definition, stored.label)
            if state.kind == "outdated":
                outdated.add((stored.disk, stored.directory))
            elif state.kind == "unexplained":
                unexplained.append(
                    f"{stored.label} of {definition.full_name} on {stored.disk} is a copy of a part that its "
                    f"bucket lacks ({state.why}): it is kept and counts; if its rows are to go, drop its partition"
                )
        return outdated

    def _outdated_among(
        self, hidden: list[StoredPart], parts: list[StoredPart], unproved: Unproved
    ) -> set[tuple[str, str]]:
        """Disk and directory of the parts that another one replaces: names say which may be, lineage which are."""
        covers = [part for part in parts if _reaches_beyond_itself(part)]
        outdated: set[tuple[str, str]] = set()
        for stored in hidden:
            above = [cover for cover in covers if claims(cover, stored)]
            if any(self.lineage.hides(cover, stored) for cover in above):
                outdated.add((stored.disk, stored.directory))
            elif above:
                for cover in above:
                    unproved.setdefault((cover.disk, cover.directory), [cover]).append(stored)
        return outdated


def may_be_hidden(parts: list[StoredPart]) -> list[StoredPart]:
    """Those that another one may replace, by the names. `parts` is in name order."""
    replaced = {name for stored in parts for name in stored.replaces}
    names = [stored.name for stored in parts]
    active = parts_format.active(names) if parts_format.meet(names) else None
    if not replaced and active is None:
        return []
    return [
        stored
        for stored in parts
        if (active is not None and stored.name not in active) or (replaced and stored.facts.name in replaced)
    ]


def _reaches_beyond_itself(stored: StoredPart) -> bool:
    """Whether it can replace another part: few of a table's parts can."""
    name = stored.name
    return name.max_block > name.min_block or bool(name.level or name.mutation or stored.replaces)
