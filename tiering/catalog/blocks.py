"""Block numbers: what makes a part's name its own, also where several machines write to one bucket.

Each machine takes a range of a million numbers a table; the machine that creates the table begins with the first. The
bucket is the arbiter: the machine whose transaction creates `blocks-<range>.json` in the table's directory owns the
range, and such a file is never removed, not even by a drop or a restore. The machine's journal and its own disks
remember which are its own.

A number is never given twice. Which ones were given only the journal knows: parts go without a trace. So numbers come
from a range that this journal itself has taken; a journal that is new, or older than the parts in sight, takes another
range.

Parts of different machines' ranges are never merged, and parts of a range that another machine owns only when no number
is between them: a number that is missing here may be a part on the other machine's SSD. Nor is a part that there was,
and that went into no other one, merged over: it may come back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from disks.base import Disk, existing
from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk, identity_of
from oplog import bounds
from oplog.documents import Document
from oplog.entry import Create, Remove
from oplog.errors import Conflict, NotFound, Transient
from oplog.kinds import BlocksAllocated, Merged, Tidied
from tiering.catalog.context import Context
from tiering.catalog.new_parts import check_plain
from tiering.table.part import RANGE_BLOCKS, PartName, range_of
from tiering.table.paths import part_name
from tiering.table.schema import TableDefinition

_NEXT_RANGES = 64
_MARK = re.compile(r"blocks-(\d+)\.json\Z", re.ASCII)


def mark_path(definition: TableDefinition, index: int) -> str:
    """Where the owner of a range is written down, on every disk that knows it."""
    return f"{definition.directory}/blocks-{index}.json"


class RangeMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """`blocks-<n>.json`: who took the range."""

    first_block: int
    owner: str
    seen: dict[str, int] = {}
    """The revision of each bucket, by the id of the disk, whose commits the owner had seen when it took the range: what
    they brought was inserted before everything in the range. Each bucket's own mark speaks of that bucket."""
    journal: str = ""
    """The id of the owner's journal."""


_document = Document("mark of a block range", RangeMark)


def mark(context: Context, index: int) -> bytes:
    """What is written there for this machine where nobody can tell what came before the range."""
    return mark_of(index, context.actor, journal=context.journal.generation()[0])


def mark_of(index: int, owner: str, seen: Mapping[str, int] | None = None, *, journal: str = "") -> bytes:
    """What is written there for an owner."""
    return _document.encode(RangeMark(index * RANGE_BLOCKS, owner, dict(seen or {}), journal))


def read_mark(disk: Disk, definition: TableDefinition, index: int) -> RangeMark | None:
    """What is written there; None where nothing is that can be read."""
    try:
        return _document.decode(disk.read(mark_path(definition, index)))
    except (NotFound, *bounds.UNREADABLE):
        return None


def first_free(context: Context, definition: TableDefinition) -> int:
    """A number that every later `allocate` of this machine reaches at least. Takes a range unless the journal knows
    which numbers of one were given."""
    in_sight = set(_in_sight(context, definition))
    following = context.journal.known_block(definition.uuid)
    if following is not None and range_of(following) in context.journal.block_ranges(definition.uuid):
        used = max((number for number in in_sight if range_of(number) == range_of(following)), default=0)
        if used < following:
            return following
    return take_range(context, definition) * RANGE_BLOCKS + 1


def allocate(context: Context, definition: TableDefinition, floor: int, count: int = 1) -> int:
    """The first of the next `count` block numbers of this machine, at least `floor`; nobody else ever gets them."""
    journal = context.journal
    number = journal.allocate_blocks(definition.uuid, count, floor)
    if range_of(number) in journal.block_ranges(definition.uuid) and range_of(number) == range_of(number + count - 1):
        return number
    start = take_range(context, definition) * RANGE_BLOCKS
    return journal.allocate_blocks(definition.uuid, count, start + 1)


def take(context: Context, definition: TableDefinition, index: int) -> None:
    """Note that the range is this machine's, and that no number of it was given yet."""
    context.journal.add_block_range(definition.uuid, index, first_block=index * RANGE_BLOCKS + 1)


def unused(context: Context, definition: TableDefinition) -> int:
    """The first range of which nobody has given a number, as far as is known here."""
    taken = context.journal.block_ranges(definition.uuid) | {range_of(context.journal.next_block(definition.uuid))}
    return max(_first_unused(context, definition), 1 + max(taken))


def take_all(context: Context, definition: TableDefinition, index: int) -> None:
    """Take this range, and every one that a part or a mark tells of: the table is this machine's alone from now on."""
    disks = list(_disks(context, definition))
    marks = {disk.name: _marks(disk, definition) for disk in disks}
    known = set(map(range_of, _in_sight(context, definition))).union(*marks.values())
    for one in known:
        context.journal.add_block_range(definition.uuid, one)
    take(context, definition, index)
    journal = context.journal.generation()[0]
    for disk in disks:
        for one in sorted(known | {index}):
            said = read_mark(disk, definition, one) if one in marks[disk.name] else None
            if said is None or said.journal != journal:
                _write_mark(context, definition, disk, one, instead=one in marks[disk.name])


def owned(context: Context, definition: TableDefinition) -> set[int]:
    """The ranges of this machine: from the journal, or from its local disks when the journal is new. Of a replicated
    table all: its numbers come from Keeper, and the replica that plans its merges knows what is still to come."""
    if definition.is_replicated:
        return set(range(1 + max(map(range_of, _in_sight(context, definition)), default=0)))
    known = context.journal.block_ranges(definition.uuid)
    if not known:
        for disk in _disks(context, definition):
            if not disk.capabilities.shared:
                known |= _marks(disk, definition)
        arbiter = _arbiter(context, definition)
        known = {index for index in known if arbiter is None or _is_own(context, definition, arbiter, index)}
        for index in known:
            context.journal.add_block_range(definition.uuid, index)
    return known


def owners(context: Context, definition: TableDefinition) -> dict[int, str]:
    """Every range that a mark or a part tells of, and who took it; "" where nobody says."""
    used = {range_of(stored.name.max_block) for stored in context.catalog.parts(definition, include_outdated=True)}
    found = dict.fromkeys(sorted(used), "")
    for disk in map(context.disk, context.catalog.policy_disks(definition)):
        for index in _marks(disk, definition):
            if (said := read_mark(disk, definition, index)) is not None:
                found[index] = said.owner
            found.setdefault(index, "")
    return found


def foreign(context: Context, definition: TableDefinition, disk: Disk) -> set[int]:
    """The ranges that other machines own, as the disk's marks and the parts on it tell."""
    everything = context.catalog.parts(definition, include_outdated=True)
    used = {range_of(stored.name.max_block) for stored in everything if stored.disk == disk.name}
    return (_marks(disk, definition) | used) - owned(context, definition)


def may_join(left: PartName, right: PartName, own: Collection[int]) -> bool:
    """Whether two neighbours may be merged: nothing of another machine can lie between them."""
    ranges = range(range_of(left.min_block), range_of(right.max_block) + 1)
    if len(ranges) == 1 and right.min_block == left.max_block + 1:
        return True
    return all(index in own for index in ranges)


def overlapping(names: Iterable[PartName]) -> set[PartName]:
    """Of the active parts of a table those whose ranges meet: one was merged by an older version over a number that is
    there after all. No merge takes them, for it could not tell which rows come first."""
    result: set[PartName] = set()
    furthest: PartName | None = None
    for name in sorted(names):
        if furthest is None or furthest.partition != name.partition or name.min_block > furthest.max_block:
            furthest = name
            continue
        result |= {furthest, name}
        furthest = max(furthest, name, key=lambda name: name.max_block)
    return result


def why_bound(context: Context, definition: TableDefinition, part: PartName, source: str, target: str) -> str:
    """Why the part must not leave the one disk for the other; empty when it may. What another machine inserted is not
    taken off a disk that both have: that machine could not tell it from a part that is gone."""
    here, there = context.disks.get(source), context.disks.get(target)
    if here is None or there is None or not here.capabilities.shared or there.capabilities.shared:
        return ""
    if range_of(part.max_block) not in taken_by_others(context, definition, here):
        return ""
    return bound_to(part, source, target)


def bound_to(part: PartName, source: str, target: str) -> str:
    """That the part is another machine's."""
    return f"another machine inserted {part}, and would miss it if it left {source} for {target}"


def taken_by_others(context: Context, definition: TableDefinition, disk: Disk) -> set[int]:
    """The ranges that marks on the disk say are another machine's."""
    return _marks(disk, definition) - owned(context, definition)


def is_shared(context: Context, definition: TableDefinition) -> bool:
    """Whether another machine is known to insert into the table: one took numbers in a bucket, or a part has some. Asks
    for the marks of the next ranges by name: each is taken after those that are there."""
    own = owned(context, definition)
    others = {range_of(number) for number in _in_sight(context, definition)} - own
    following = range(max(own, default=0) + _NEXT_RANGES)
    marks = [mark_path(definition, index) for index in following if index not in own]
    shared = (disk for disk in _disks(context, definition) if disk.capabilities.shared)
    return bool(others) or any(existing(disk, marks) for disk in shared)


class Vanished:
    """The parts of a table that there were and that are on no disk here, without having gone into another one, as far
    as the journal and the logs know. They may come back (by an undo or a restore), or lie on another machine's SSD."""

    def __init__(self, context: Context, definition: TableDefinition) -> None:
        self._context = context
        self._definition = definition
        self._suspects: dict[str, list[PartName]] = {}
        self._fate: dict[PartName, bool] = {}

    def between(self, left: PartName, right: PartName) -> PartName | None:
        """One whose blocks lie between these two neighbours of a partition; None when there is none."""
        if right.min_block <= left.max_block + 1 or self._definition.is_replicated:
            return None
        if left.partition not in self._suspects:
            self._suspects[left.partition] = self._missing(left.partition)
        for name in self._suspects[left.partition]:
            if name.max_block > left.max_block and name.min_block < right.min_block and not self._was_merged(name):
                return name
        return None

    def _missing(self, partition: str) -> list[PartName]:
        """Every part of the partition that ever was, as this machine knows, that is not here and that no merge of this
        machine took."""
        work, prefix = self._context.journal.work, f"{self._definition.directory}/"
        inputs, outputs = work.merged_parts(self._definition.uuid)
        found = work.moved_parts(self._definition.uuid) | outputs
        for disk in self._logs():
            try:
                found.update(path[len(prefix) :] for path in disk.commits().directories(f"{prefix}{partition}_"))
            except Transient:  # what it holds is not known now: the journal's word has to do
                continue
        named = {name for text in found - inputs if (name := part_name(text)) is not None}
        stored = self._context.catalog.parts(self._definition, include_outdated=True)
        here = {one.name for one in stored}
        return sorted(name for name in named - here if name.partition == partition)

    def _was_merged(self, name: PartName) -> bool:
        """Whether the last that a log says of the part is that a merge took it."""
        if name not in self._fate:
            self._fate[name] = self._look_for_merge(name)
        return self._fate[name]

    def _look_for_merge(self, name: PartName) -> bool:
        directory = self._definition.part_directory(str(name))
        for disk in self._logs():
            last: object = None
            try:
                for entry in disk.commits().touching(directory):
                    for operation in entry.commit.operations:
                        if isinstance(operation, Remove) and operation.path == directory:
                            last = entry.commit.kind
                        elif isinstance(operation, Create) and operation.path.startswith(f"{directory}/"):
                            last = None
            except Transient:
                continue
            if isinstance(last, Merged | Tidied):
                return True
        return False

    def _logs(self) -> Iterator[LoggedDisk]:
        for disk in _disks(self._context, self._definition):
            if (logged := as_disk(disk, LoggedDisk)) is not None and disk.broken is None:
                yield logged


def take_range(context: Context, definition: TableDefinition) -> int:
    """Take another range: this machine's next numbers are of it, and come after all that it sees in the buckets."""
    shared = [disk for disk in _disks(context, definition) if disk.capabilities.shared]
    seen = _seen(context, definition)
    index = _first_unused(context, definition)
    if shared:
        index = _reserve(context, definition, shared[0], seen)
    take(context, definition, index)
    for disk in shared[1:]:
        with suppress(Transient, Conflict):  # then that bucket says nothing of the range
            if disk.exists(definition.path) and index not in _marks(disk, definition):
                _write_mark(context, definition, disk, index, seen)
    for disk in _disks(context, definition):
        if disk.capabilities.shared or index in _marks(disk, definition):
            continue
        if disk.exists(definition.path):  # else the table was made elsewhere: the journal alone remembers the range
            _write_mark(context, definition, disk, index, seen)
    return index


def prove_own(context: Context, definition: TableDefinition) -> list[str]:
    """Compare the ranges that the journal has for this machine's with the marks in the bucket that decides; that may
    have been set back. A mark that it lacks is written again, and says that nobody knows what came before the range. A
    range that another machine took is that machine's. In sentences, what was done; nothing the second time."""
    own = context.journal.block_ranges(definition.uuid)
    disk = _arbiter(context, definition)
    if not own or disk is None or disk.unreachable or not disk.exists(definition.path):
        return []
    done, there = [], _marks(disk, definition)
    for index in sorted(own):
        begins = f"block numbers of {definition.full_name} from {index * RANGE_BLOCKS} on"
        if index in there:
            if not _is_own(context, definition, disk, index):
                context.journal.forget_block_range(definition.uuid, index)
                done.append(f"{begins} are another machine's: disk {disk.name} was set back, and they were taken again")
        elif (identity := identity_of(disk)) is not None:
            try:
                _write_mark(context, definition, disk, index, {identity: 0})
            except Conflict:  # somebody was faster, or the table goes: the next opening looks again
                continue
            done.append(f"noted on disk {disk.name} again that {begins} are this machine's")
    return done


def _is_own(context: Context, definition: TableDefinition, disk: Disk, index: int) -> bool:
    """Whether the mark on the disk is this machine's. One of an earlier version, which names no journal, is, unless a
    local disk has another one."""
    said = read_mark(disk, definition, index)
    if said is None or (said.journal and said.journal == context.journal.generation()[0]):
        return True
    local = [one for one in _disks(context, definition) if not one.capabilities.shared]
    marks = [kept for one in local if (kept := read_mark(one, definition, index)) is not None]
    return (not marks and not said.journal) or any(
        (kept.owner, kept.journal) == (said.owner, said.journal) for kept in marks
    )


def _reserve(context: Context, definition: TableDefinition, disk: Disk, seen: Mapping[str, int]) -> int:
    """Take the lowest free range in the bucket; of several racing machines each gets another one."""
    while True:
        index = max(_first_unused(context, definition), max(_marks(disk, definition), default=-1) + 1)
        try:
            _write_mark(context, definition, disk, index, seen)
        except Conflict:
            disk.refresh()
            check_plain(disk, definition)
            if not disk.exists(definition.path):
                raise
            continue
        return index


def _first_unused(context: Context, definition: TableDefinition) -> int:
    """The range after all that this machine owns or sees parts or marks of. A journal that is an older copy of itself
    does not know the last that it took, and parts of it may be gone."""
    used = {range_of(number) for number in _in_sight(context, definition)}
    for disk in _disks(context, definition):
        used |= _marks(disk, definition)
    return max(used | owned(context, definition), default=-1) + 1


def _in_sight(context: Context, definition: TableDefinition) -> Iterator[int]:
    """Of every range that a part has a number of, the highest that one has or had."""
    sums = context.catalog.sums(definition)
    if sums is not None:
        for whole in sums.values():
            for totals in whole.partitions.values():
                yield from totals.highest.values()
        return
    for stored in context.catalog.parts(definition, include_outdated=True):
        yield stored.name.max_block


def _write_mark(
    context: Context,
    definition: TableDefinition,
    disk: Disk,
    index: int,
    seen: Mapping[str, int] | None = None,
    *,
    instead: bool = False,
) -> None:
    """`instead`: of one that is there."""
    path = mark_path(definition, index)
    reason = f"block numbers of {definition.full_name} from {index * RANGE_BLOCKS} on belong to {context.actor}"
    with disk.transaction(BlocksAllocated(), reason=reason, actor=context.actor) as transaction:
        transaction.require(present=(definition.path,), absent=definition.barred_by)
        if instead:
            transaction.remove(path)
        else:
            transaction.require(absent=(path,))
        transaction.create(path, mark_of(index, context.actor, seen, journal=context.journal.generation()[0]))
        transaction.commit()


def _seen(context: Context, definition: TableDefinition) -> dict[str, int]:
    """Up to which revision this machine has seen each bucket of the table now."""
    seen = {}
    for disk in _disks(context, definition):
        if (logged := as_disk(disk, LoggedDisk)) is not None and disk.broken is None:
            with suppress(Transient):  # then nothing is said of it
                logged.refresh()
                if (identity := logged.identity()) is not None:
                    seen[identity] = logged.revision
    return seen


def _arbiter(context: Context, definition: TableDefinition) -> Disk | None:
    """The disk that decides who has a range."""
    return next((disk for disk in _disks(context, definition) if disk.capabilities.shared), None)


def _marks(disk: Disk, definition: TableDefinition) -> set[int]:
    names = disk.files_in(definition.directory, "blocks-")
    return {int(match[1]) for name in names if (match := _MARK.match(name))}


def _disks(context: Context, definition: TableDefinition) -> Iterator[Disk]:
    for name in context.catalog.policy_disks(definition):
        disk = context.disk(name)
        if not disk.read_only:
            yield disk
