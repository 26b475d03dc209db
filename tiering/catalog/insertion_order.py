"""In which order the rows of a table were inserted: by which merges take rows of equal keys.

Within a range of block numbers the numbers say it: one machine gave them. Between ranges the log of a bucket does, and
no clock: what had appeared there when a machine took a range was inserted before everything in the range. Numbers
never contradict that, for each range is taken after those that there are; but where the log does not say it, they say
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import FrostlineError
from oplog.kinds import BlocksAllocated
from tiering.catalog import blocks
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.table.part import PartName, range_of
from tiering.table.schema import TableDefinition


def in_order(parts: Iterable[StoredPart]) -> list[StoredPart]:
    """The parts as they were inserted; those that meet by the first of their rows."""
    return sorted(parts, key=lambda stored: (stored.inserted, stored.name))


def meet(left: StoredPart, right: StoredPart) -> bool:
    """Whether rows of the one may have been inserted between rows of the other."""
    return left.inserted[0] <= right.inserted[1] and right.inserted[0] <= left.inserted[1]


def _is_in_line(stored: StoredPart) -> bool:
    return stored.inserted == (stored.name.min_block, stored.name.max_block)


class Followers(msgspec.Struct, frozen=True):
    """Which parts come right after one another, in the order of inserts as in that of their names. The places are those
    of the parts of a partition where the two differ; None: no other part may be merged with this one."""

    places: dict[PartName, int | None]

    @classmethod
    def of(cls, definition: TableDefinition, parts: Sequence[StoredPart]) -> Followers:
        """Of these, which are all active parts of their partitions."""
        if all(map(_is_in_line, parts)):
            return cls({})
        from tiering.table.merge_modes import depends_on_order  # loads Arrow, which a pass at rest does without

        if not depends_on_order(definition):
            return cls({})
        places: dict[PartName, int | None] = {}
        for _, group in groupby(sorted(parts, key=_partition), key=_partition):
            members = list(group)
            if all(map(_is_in_line, members)):
                continue
            furthest: StoredPart | None = None
            for place, stored in enumerate(in_order(members)):
                places[stored.name] = place
                if furthest is not None and meet(furthest, stored):
                    places[furthest.name] = places[stored.name] = None
                if furthest is None or stored.inserted[1] > furthest.inserted[1]:
                    furthest = stored
        return cls(places)

    def follows(self, left: PartName, right: PartName) -> bool:
        """Whether the right one was inserted after the left one, no part between them. By name they are neighbours."""
        if left not in self.places and right not in self.places:
            return True
        first, second = self.places.get(left), self.places.get(right)
        return first is not None and second is not None and second == first + 1


class InsertionOrder:
    """What is known of the order of the parts of a table."""

    def __init__(self, context: Context, definition: TableDefinition) -> None:
        self._context = context
        self._definition = definition
        self._seen: dict[int, dict[str, int]] = {}

    def came_first(self, earlier: StoredPart, later: StoredPart) -> bool:
        """Whether every row of the one was inserted before every row of the other, for certain."""
        last, first = earlier.inserted[1], later.inserted[0]
        if last >= first:
            return False
        return last < 0 or range_of(last) == range_of(first) or self.came_before(earlier, range_of(first))

    def came_before(self, stored: StoredPart, index: int) -> bool:
        """Whether the part was in a bucket already when somebody took this range of numbers, for certain."""
        disk = as_disk(self._context.disk(stored.disk), LoggedDisk)
        if disk is None or stored.revision is None or (seen := self._seen_by(index).get(disk.name)) is None:
            return False
        return stored.revision <= seen or _appeared(disk, stored.directory, stored.revision) <= seen

    def _seen_by(self, index: int) -> dict[str, int]:
        """The revision of each disk that the machine had seen when it took the range."""
        if index not in self._seen:
            self._seen[index] = self._read(index)
        return self._seen[index]

    def _read(self, index: int) -> dict[str, int]:
        """Each bucket's own mark speaks of that bucket, and of no other: where a bucket was set back, the marks that
        are elsewhere name revisions of what it lost."""
        found: dict[str, int] = {}
        path = blocks.mark_path(self._definition, index)
        for disk in map(self._context.disk, self._context.catalog.policy_disks(self._definition)):
            logged = as_disk(disk, LoggedDisk)
            if logged is None or (said := blocks.read_mark(logged, self._definition, index)) is None:
                continue
            revision = _seen_here(logged, said, path) if said.seen else _taken(logged, path)
            if revision is not None:
                found[disk.name] = revision
        return found


def _appeared(disk: LoggedDisk, directory: str, revision: int) -> int:
    """The first revision that the log has of the part: it may have gone and come back since. A name is given once."""
    try:
        first = next(iter(disk.commits().touching(directory)), None)
    except FrostlineError:  # an entry that is gone, or altered, says nothing
        return revision
    return revision if first is None else min(revision, first.commit.revision)


def _seen_here(disk: LoggedDisk, said: blocks.RangeMark, path: str) -> int | None:
    """The revision of this bucket that the mark names, where it is one from before the mark came."""
    seen, came = said.seen.get(disk.identity() or ""), disk.stat(path).revision
    return seen if seen is not None and (came is None or seen < came) else None


def _taken(disk: LoggedDisk, path: str) -> int | None:
    """The revision before the commit that took the range of a mark that does not say it: one of an older version. None
    where the log has it no more, or the mark came by something else."""
    try:
        revision = disk.stat(path).revision
        entry = disk.commits().read([revision]).get(revision) if revision is not None else None
    except FrostlineError:
        return None
    taken = entry is not None and isinstance(entry.commit.kind, BlocksAllocated)
    return revision - 1 if taken and revision is not None else None


def _partition(stored: StoredPart) -> str:
    return stored.name.partition
