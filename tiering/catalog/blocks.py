"""Block numbers: what makes a part's name its own, also where several machines write to one bucket.

Each machine takes a range of a million numbers a table; whoever creates the table begins with the first. The bucket is
the arbiter: the machine whose transaction creates `blocks-<range>.json` in the table's directory owns the range. Its
own disks and its journal remember that: losing one of them costs nothing, losing both costs the rest of a range, and
the next insert takes another one.

Parts of different ranges are never merged, and parts of a range that another machine owns only when no number is
between them: a number that is missing here may be a part on the other machine's SSD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator

from disks.base import Disk
from oplog.errors import Conflict
from oplog.kinds import BlocksAllocated
from tiering.catalog.context import Context
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition

RANGE_BLOCKS = 1_000_000
_MARK = re.compile(r"blocks-(\d+)\.json\Z", re.ASCII)


def range_of(block: int) -> int:
    """The range a block number belongs to."""
    return block // RANGE_BLOCKS


def mark_path(definition: TableDefinition, index: int) -> str:
    """Where the owner of a range is written down, on every disk that knows it."""
    return f"{definition.directory}/blocks-{index}.json"


def mark(context: Context, index: int) -> bytes:
    """What is written there."""
    return json.dumps({"first_block": index * RANGE_BLOCKS, "owner": context.actor}).encode()


def first_free(context: Context, definition: TableDefinition) -> int:
    """A number that every later `allocate` of this machine reaches at least. Takes a range when there is none yet."""
    current = max(owned(context, definition), default=None)
    if current is None:
        current = _take_range(context, definition)
    used = [
        stored.name.max_block
        for stored in context.catalog.parts(definition, include_outdated=True)
        if range_of(stored.name.max_block) == current
    ]
    return max(used, default=current * RANGE_BLOCKS) + 1


def allocate(context: Context, definition: TableDefinition, floor: int, count: int = 1) -> int:
    """The first of the next `count` block numbers of this machine, at least `floor`; nobody else ever gets them."""
    number = context.journal.allocate_blocks(definition.uuid, count, floor)
    if range_of(number) in owned(context, definition) and range_of(number) == range_of(number + count - 1):
        return number
    start = _take_range(context, definition) * RANGE_BLOCKS
    return context.journal.allocate_blocks(definition.uuid, count, start + 1)


def owned(context: Context, definition: TableDefinition) -> set[int]:
    """The ranges of this machine: from the journal, or from its local disks when the journal is new."""
    known = context.journal.block_ranges(definition.uuid)
    if not known:
        for disk in _disks(context, definition):
            if not disk.capabilities.shared:
                known |= _marks(disk, definition)
        for index in known:
            context.journal.add_block_range(definition.uuid, index)
    return known


def foreign(context: Context, definition: TableDefinition, disk: Disk) -> set[int]:
    """The ranges that other machines own, as the disk's marks and the parts on it tell."""
    parts = context.catalog.parts(definition, include_outdated=True)
    used = {range_of(stored.name.max_block) for stored in parts if stored.disk == disk.name}
    return (_marks(disk, definition) | used) - owned(context, definition)


def may_join(left: PartName, right: PartName, own: Collection[int]) -> bool:
    """Whether two neighbours may be merged: same range, and nothing of another machine can lie between them."""
    if range_of(left.min_block) != range_of(right.max_block):
        return False
    return range_of(right.min_block) in own or right.min_block == left.max_block + 1


def _take_range(context: Context, definition: TableDefinition) -> int:
    shared = [disk for disk in _disks(context, definition) if disk.capabilities.shared]
    index = max(owned(context, definition), default=-1) + 1
    if shared:
        index = _reserve(context, definition, shared[0])
    for disk in _disks(context, definition):
        if not disk.capabilities.shared and index not in _marks(disk, definition):
            _write_mark(context, definition, disk, index)
    context.journal.add_block_range(definition.uuid, index)
    return index


def _reserve(context: Context, definition: TableDefinition, disk: Disk) -> int:
    """Take the lowest free range in the bucket; of several racing machines each gets another one."""
    while True:
        index = max(_marks(disk, definition) | owned(context, definition), default=-1) + 1
        try:
            _write_mark(context, definition, disk, index)
        except Conflict:
            disk.refresh()
            if not disk.exists(definition.path):
                raise
            continue
        return index


def _write_mark(context: Context, definition: TableDefinition, disk: Disk, index: int) -> None:
    path = mark_path(definition, index)
    reason = f"block numbers of {definition.full_name} from {index * RANGE_BLOCKS} on belong to {context.actor}"
    with disk.transaction(BlocksAllocated(), reason=reason, actor=context.actor) as transaction:
        transaction.require(present=(definition.path,), absent=(path,))
        transaction.create(path, mark(context, index))
        transaction.commit()


def _marks(disk: Disk, definition: TableDefinition) -> set[int]:
    return {int(match[1]) for name in disk.list(definition.directory) if (match := _MARK.match(name))}


def _disks(context: Context, definition: TableDefinition) -> Iterator[Disk]:
    for name in context.catalog.policy_disks(definition):
        disk = context.disk(name)
        if not disk.read_only:
            yield disk
