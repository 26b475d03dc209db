"""Checks of a table's parts against each other, over all disks: one place each, no overlap, nothing hidden (I1, I2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from oplog.errors import Damaged, NotFound
from restore.check.findings import FileTree, Findings, Problem
from restore.check.parts import Copy, Survey, copy_of, read_part
from tiering.table.part import PART_FILE, Part, PartName
from tiering.table.places import directory_of

_NAME = itemgetter(0, 1, 2, 3, 4)


def check_copies(
    found: Survey, trees: Mapping[str, FileTree], findings: Findings, *, moving: Collection[tuple[str, str]] = ()
) -> None:
    """No part on two disks unless it is being moved (I1), no two active parts of a table that overlap (I2), and no part
    hidden by one that was not made from it: its rows would be in no answer (I1)."""
    under_way = set(moving)
    for uuid, copies in found.copies.items():
        copies.sort()
        parts: list[Copy] = []
        for _, group in groupby(copies, _NAME):
            first, *others = group
            parts.append(next((copy for copy in (first, *others) if copy.readable), first))
            if others and (uuid, str(first.name)) not in under_way:
                disks = " and ".join(copy.disk for copy in (first, *others))
                what = f"part {first.name} is on {disks}, and no move is under way"
                findings.add(Problem("I1", what, first.disk, table=uuid, part=str(first.name)))
        active: list[Copy] = []
        for part, cover in _covered(parts):
            if cover is None:
                active.append(part)
            elif part.readable and cover.readable:
                _check_hidden(uuid, part, cover, found, trees, findings)
        for one, other in _overlaps(active):
            what = f"active parts {one.name} and {other.name} overlap: their rows would count twice"
            findings.add(Problem("I2", what, other.disk, table=uuid, part=str(other.name)))


def _covered(parts: Iterable[Copy]) -> Iterator[tuple[Copy, Copy | None]]:
    """Each part, in order, with the active one that covers it: the rule of `part.active`."""
    active: Copy | None = None
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
    uuid: str, hidden: Copy, cover: Copy, found: Survey, trees: Mapping[str, FileTree], findings: Findings
) -> None:
    small, large = _part(uuid, hidden, trees), _part(uuid, cover, trees)
    definition = found.newest(uuid)
    window = definition.settings.deduplication_window if definition is not None else 0
    if small is None or large is None or large.may_hold(small, window=window):
        return
    what = f"part {hidden.name} is hidden by {cover.name}, which was not made from it: its rows are in no answer"
    findings.add(Problem("I1", what, hidden.disk, table=uuid, part=str(hidden.name)))


def _part(uuid: str, copy: Copy, trees: Mapping[str, FileTree]) -> Part | None:
    """Read again: few parts are covered at any time, so none is kept for this."""
    tree, name = trees[copy.disk], str(copy.name)
    try:
        row = tree.find(f"{directory_of(uuid, name)}/{PART_FILE}")
        return read_part(tree, row, uuid, name) if row is not None else None
    except (Damaged, NotFound):
        return None


def overlaps(active: Iterable[PartName]) -> list[tuple[PartName, PartName]]:
    """Pairs of active parts with common blocks; each part is paired with the one that reaches furthest before it."""
    copies = sorted(copy_of(name, "") for name in active)
    return [(one.name, other.name) for one, other in _overlaps(copies)]


def _overlaps(active: Iterable[Copy]) -> Iterator[tuple[Copy, Copy]]:
    furthest: Copy | None = None
    for part in active:
        if furthest is None or furthest.partition != part.partition:
            furthest = part
            continue
        if part.min_block <= -furthest.minus_max_block:
            yield furthest, part
        if part.minus_max_block < furthest.minus_max_block:
            furthest = part
