"""Checks of a table's parts against each other, over all disks: one place each, no overlap, nothing hidden (I1, I2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from disks.base import Disk
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import Damaged, FrostlineError, NotFound
from oplog.kinds import CommitKind, Moved
from restore.check.findings import FileTree, Findings, Problem
from restore.check.parts import PartCopy, Survey, copy_of, read_part
from tiering.catalog.catalog import StoredPart
from tiering.catalog.lineage import Lineage, claims
from tiering.table.part import PART_FILE, PartName
from tiering.table.schema import TableDefinition

_NAME = itemgetter(0, 1, 2, 3, 4)


def check_copies(
    survey: Survey,
    trees: Mapping[str, FileTree],
    findings: Findings,
    disks: Mapping[str, Disk],
    *,
    lineage: Lineage,
    moving: Collection[tuple[str, str]] = (),
) -> None:
    """No part on two disks unless it is being moved, or `move --keep-source` left it there (I1), no two active parts of
    a table that overlap (I2), no part whose place another one claims that was not made from it, and no block in two:
    rows would be in no answer, or twice (I1)."""
    under_way, arrivals = set(moving), _Arrivals(disks)
    for uuid, copies in survey.copies.items():
        copies.sort()
        parts: list[PartCopy] = []
        for _, group in groupby(copies, _NAME):
            first, *others = group
            parts.append(next((copy for copy in (first, *others) if copy.readable), first))
            if others and (uuid, str(first.name)) not in under_way:
                _check_same_name(uuid, (first, *others), survey, trees, findings, arrivals)
        active: list[PartCopy] = []
        for part, cover in _covered(parts):
            if cover is None:
                active.append(part)
            elif part.readable and cover.readable:
                _check_hidden(uuid, part, cover, survey, trees, findings, lineage)
        named = {name: by for by in parts if by.readable for name in survey.replaces.get((uuid, by), ())}
        for part in parts:
            if part.readable and (by := named.get(str(part.name))) is not None:
                _check_hidden(uuid, part, by, survey, trees, findings, lineage)
        for overlapping, other in _overlaps(active):
            message = f"active parts {overlapping.name} and {other.name} overlap: their rows would count twice"
            findings.add(Problem("I2", message, other.disk, table=uuid, part=str(other.name)))
        if len(set(survey.digests[uuid])) < len(survey.digests[uuid]):
            _check_doubled(uuid, [part for part in active if str(part.name) not in named], survey, trees, findings)


class _Arrivals:
    """How parts came to the buckets that have them; each entry of a log is read once."""

    def __init__(self, disks: Mapping[str, Disk]) -> None:
        self._disks = disks
        self._kinds: dict[tuple[str, int | None], CommitKind | None] = {}

    def explain(self, copies: Collection[StoredPart]) -> bool:
        """Whether the copies, of one part, are those that `move --keep-source` leaves. One on a local disk is, unless
        the log of a bucket says that it was to go. Of a bucket's part the log says so, as far as it goes back: a copy
        outlives the entry that tells of it."""
        buckets = [copy for copy in copies if as_disk(self._disks[copy.disk], LoggedDisk) is not None]
        local = {copy.disk for copy in copies} - {copy.disk for copy in buckets}
        unexplained = 0
        for copy in buckets:
            kind, name = self._kind(copy), copy.part.name
            if kind is None or (isinstance(kind, Moved) and name in kind.kept):
                continue
            if isinstance(kind, Moved) and kind.source_of(name) in local:
                return False
            unexplained += 1
        return bool(buckets) and unexplained < 2

    def _kind(self, copy: StoredPart) -> CommitKind | None:
        """What brought the part to the bucket; None where its log does not go back that far, or cannot be read: that is
        a fault of its own."""
        key, logged = (copy.disk, copy.revision), as_disk(self._disks[copy.disk], LoggedDisk)
        if key not in self._kinds:
            self._kinds[key] = None
            if logged is not None and copy.revision is not None:
                with suppress(FrostlineError):
                    for entry in logged.entries(copy.revision - 1, copy.revision):
                        self._kinds[key] = entry.commit.kind
        return self._kinds[key]


def _check_same_name(
    uuid: str,
    copies: Collection[PartCopy],
    survey: Survey,
    trees: Mapping[str, FileTree],
    findings: Findings,
    arrivals: _Arrivals,
) -> None:
    first = next(iter(copies))
    places = " and ".join(copy.disk for copy in copies)
    definition = survey.newest(uuid)
    stored = [
        part for copy in copies if definition is not None and (part := _part(definition, copy, trees)) is not None
    ]
    if any(not part.is_copy_of(stored[0]) for part in stored):
        message = f"two parts have the name {first.name}, on {places}, and queries return both: 'frostline"
        message += " disk adopt' of a local disk sets the one there aside, and 'frostline partition attach' of its"
        message += " files attaches it under another name"
    elif len(stored) == len(copies) and arrivals.explain(stored):
        return
    else:
        message = f"part {first.name} is on {places}, and no move is running: its rows count once, and 'frostline move'"
        message += " of the part, without --keep-source, leaves it on one of them"
    findings.add(Problem("I1", message, first.disk, table=uuid, part=str(first.name)))


def _check_doubled(
    uuid: str, active: Iterable[PartCopy], survey: Survey, trees: Mapping[str, FileTree], findings: Findings
) -> None:
    """No block that deduplication would have skipped is in two active parts of a partition (I1): a disk that was given
    up and came back may have brought it again. Equal inserts are no fault where the table does not deduplicate, or
    where as many others came between them as it remembers. Parts of replicas are compared with what Keeper says of
    blocks."""
    definition = survey.newest(uuid)
    if definition is None or definition.is_replicated:
        return
    window = definition.settings.deduplication_window
    latest: dict[tuple[str, str], tuple[int, PartCopy]] = {}
    counts: Counter[str] = Counter()
    for copy in active:
        if not copy.readable or (stored := _part(definition, copy, trees)) is None:
            continue
        digests, start = stored.part.digests, counts[copy.partition]
        earlier = next(
            (
                before
                for at, digest in enumerate(digests, start)
                if (before := latest.get((copy.partition, digest))) is not None and at - before[0] <= window
            ),
            None,
        )
        if earlier is not None:
            _, other = earlier
            message = f"rows of part {copy.name} on {copy.disk} are in part {other.name} on {other.disk} as well: "
            message += (
                f"they count twice; 'frostline disk adopt {copy.disk}' sets a part aside whose rows are on other disks"
            )
            findings.add(Problem("I1", message, copy.disk, table=uuid, part=str(copy.name)))
        latest.update(((copy.partition, digest), (at, copy)) for at, digest in enumerate(digests, start))
        counts[copy.partition] += len(digests)


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
    survey: Survey,
    trees: Mapping[str, FileTree],
    findings: Findings,
    lineage: Lineage,
) -> None:
    definition = survey.newest(uuid)
    if definition is None:
        return
    small, large = _part(definition, hidden, trees), _part(definition, cover, trees)
    if small is None or large is None:
        return
    if not claims(large, small):
        return
    if not lineage.hides(large, small):
        message = (
            f"part {cover.name} on {cover.disk} takes the place of {hidden.name} on {hidden.disk}, and neither the "
        )
        message += "journal nor the log shows that it was made from it: queries return both"
        findings.add(Problem("I1", message, cover.disk, table=uuid, part=str(cover.name)))


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
