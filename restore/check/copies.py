"""Checks of a table's parts against each other, over all disks: one place each, no overlap, nothing hidden (I1, I2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from oplog.errors import Damaged, NotFound
from restore.check.findings import FileTree, Findings, Problem
from restore.check.parts import PartCopy, Survey, copy_of, read_part
from tiering.catalog.catalog import StoredPart
from tiering.catalog.lineage import Lineage, claims
from tiering.table.part import PART_FILE, PartName
from tiering.table.schema import TableDefinition

_NAME = itemgetter(0, 1, 2, 3, 4)


def check_copies(
    found: Survey,
    trees: Mapping[str, FileTree],
    findings: Findings,
    *,
    lineage: Lineage,
    moving: Collection[tuple[str, str]] = (),
) -> None:
    """No part on two disks unless it is being moved (I1), no two active parts of a table that overlap (I2), and no part
    whose place another one claims that was not made from it, and no block in two: rows would be in no answer, or twice
    (I1)."""
    under_way = set(moving)
    for uuid, copies in found.copies.items():
        copies.sort()
        parts: list[PartCopy] = []
        for _, group in groupby(copies, _NAME):
            first, *others = group
            parts.append(next((copy for copy in (first, *others) if copy.readable), first))
            if others and (uuid, str(first.name)) not in under_way:
                disks = " and ".join(copy.disk for copy in (first, *others))
                what = f"part {first.name} is on {disks}, and no move is under way"
                if _differ(uuid, (first, *others), found, trees):
                    what = f"two parts bear the name {first.name}, on {disks}, and both are in every answer: 'frostline"
                    what += (
                        " disk adopt' of a local disk sets the one there aside, and 'frostline partition attach' of its"
                    )
                    what += " files brings it back under another name"
                findings.add(Problem("I1", what, first.disk, table=uuid, part=str(first.name)))
        active: list[PartCopy] = []
        for part, cover in _covered(parts):
            if cover is None:
                active.append(part)
            elif part.readable and cover.readable:
                _check_hidden(uuid, part, cover, found, trees, findings, lineage)
        named = {name: by for by in parts if by.readable for name in found.replaces.get((uuid, by), ())}
        for part in parts:
            if part.readable and (by := named.get(str(part.name))) is not None:
                _check_hidden(uuid, part, by, found, trees, findings, lineage)
        for one, other in _overlaps(active):
            what = f"active parts {one.name} and {other.name} overlap: their rows would count twice"
            findings.add(Problem("I2", what, other.disk, table=uuid, part=str(other.name)))
        if len(set(found.digests[uuid])) < len(found.digests[uuid]):
            _check_doubled(uuid, [part for part in active if str(part.name) not in named], found, trees, findings)


def _differ(uuid: str, copies: Iterable[PartCopy], found: Survey, trees: Mapping[str, FileTree]) -> bool:
    """Whether the parts, of one name, are not copies of one part, as far as they can be read."""
    definition = found.newest(uuid)
    if definition is None:
        return False
    stored = [one for copy in copies if (one := _part(definition, copy, trees)) is not None]
    return any(not one.is_copy_of(stored[0]) for one in stored)


def _check_doubled(
    uuid: str, active: Iterable[PartCopy], found: Survey, trees: Mapping[str, FileTree], findings: Findings
) -> None:
    """No block is in two active parts (I1): a disk that was given up and came back may have brought it again. Parts of
    replicas are compared with what Keeper says of blocks."""
    definition = found.newest(uuid)
    if definition is None or definition.is_replicated:
        return
    first: dict[str, PartCopy] = {}
    for copy in active:
        if not copy.readable or (stored := _part(definition, copy, trees)) is None:
            continue
        known = next((first[digest] for digest in stored.part.digests if digest in first), None)
        if known is not None:
            what = (
                f"rows of part {copy.name} on {copy.disk} are in part {known.name} on {known.disk} as well: they count "
            )
            what += f"twice; 'frostline disk adopt {copy.disk}' sets a part aside whose rows are on other disks"
            findings.add(Problem("I1", what, copy.disk, table=uuid, part=str(copy.name)))
        first.update((digest, copy) for digest in stored.part.digests if digest not in first)


def _covered(parts: Iterable[PartCopy]) -> Iterator[tuple[PartCopy, PartCopy | None]]:
    """Each part, in order, with the active one that covers it: the rule of `part.active`."""
    active: PartCopy | None = None
    for part in parts:
        covered = (
            active is not None
            and active.partition == part.partition
            and active.minus_max_block <= part.minus_max_block
            and (active.minus_level, active.minus_mutation) <= (part.minus_level, part.minus_mutation)
        )
        if covered:
            yield part, active
        else:
            active = part
            yield part, None


def _check_hidden(
    uuid: str,
    hidden: PartCopy,
    cover: PartCopy,
    found: Survey,
    trees: Mapping[str, FileTree],
    findings: Findings,
    lineage: Lineage,
) -> None:
    definition = found.newest(uuid)
    if definition is None:
        return
    small, large = _part(definition, hidden, trees), _part(definition, cover, trees)
    if small is None or large is None:
        return
    if not claims(large, small):
        return
    if not lineage.hides(large, small):
        what = f"part {cover.name} on {cover.disk} takes the place of {hidden.name} on {hidden.disk}, and neither the "
        what += "journal nor the log shows that it was made from it: both are in every answer"
        findings.add(Problem("I1", what, cover.disk, table=uuid, part=str(cover.name)))


def _part(definition: TableDefinition, copy: PartCopy, trees: Mapping[str, FileTree]) -> StoredPart | None:
    """Read again: few parts are covered at any time, so none is kept for this."""
    tree, name = trees[copy.disk], str(copy.name)
    try:
        row = tree.find(f"{definition.part_directory(name)}/{PART_FILE}")
        if row is None:
            return None
        part = read_part(tree, row, definition.uuid, name)
    except (Damaged, NotFound):
        return None
    return StoredPart(definition, part, copy.name, copy.disk, None, row.revision)


def overlaps(active: Iterable[PartName]) -> list[tuple[PartName, PartName]]:
    """Pairs of active parts with common blocks; each part is paired with the one that reaches furthest before it."""
    copies = sorted(copy_of(name, "") for name in active)
    return [(one.name, other.name) for one, other in _overlaps(copies)]


def _overlaps(active: Iterable[PartCopy]) -> Iterator[tuple[PartCopy, PartCopy]]:
    furthest: PartCopy | None = None
    for part in active:
        if furthest is None or furthest.partition != part.partition:
            furthest = part
            continue
        if part.min_block <= -furthest.minus_max_block:
            yield furthest, part
        if part.minus_max_block < furthest.minus_max_block:
            furthest = part
