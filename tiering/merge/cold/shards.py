"""Cuts a merge into shards: ranges of keys that can be merged apart, anywhere, each from a share of the inputs' bytes.

Pure. The cuts are first keys of row groups (the sparse index in `part.json`), so that planning reads nothing and the
shards hold about the same number of rows. A key is never in two shards, and the outputs of the shards, put one after
the other, are the output of the whole merge. Row groups on a cut are read by both neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from disks.stores.base import ByteRange
from tiering.parquet.sort_keys import EVERYTHING, Key, SortKeyRange, row_groups_within, stored_key
from tiering.policy.cost import RANGE_BYTES, Cost, uploads
from tiering.table.part import DataFile
from tiering.table.schema import TableDefinition

_MOST_READ_TWICE = 0.25
"""The share of the bytes that may be read twice for the sake of more shards."""


class InputFile(msgspec.Struct, frozen=True):
    """One data file of an input: the object that holds it, and its part's place in the order of inserts."""

    key: str
    label: str
    """For messages: disk and path."""
    file: DataFile
    order: int
    current: bool
    """Whether it has the names and types of the table's columns of today."""


class ShardFile(msgspec.Struct, frozen=True):
    """What a shard reads of an input. Bounds of its columns stay in `file`; its row groups do not."""

    key: str
    label: str
    file: DataFile
    order: int
    current: bool
    row_groups: tuple[int, ...] | None
    """None: all, so the whole object is read and its SHA-256 is checked."""
    ranges: tuple[ByteRange, ...]
    """The bytes that are read: row groups, then the footer."""

    @property
    def size_bytes(self) -> int:
        return sum(piece.stop - piece.start for piece in self.ranges)


@dataclass(frozen=True, slots=True)
class Shard:
    """One range of keys of one merge, with what is read for it."""

    number: int
    within: SortKeyRange
    files: tuple[ShardFile, ...] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


_NEAR_BYTES = 1024 * 1024
"""Ranges of an object that are closer than this are read as one: a request costs more than the bytes between them."""


def cut_shards(inputs: Sequence[InputFile], definition: TableDefinition, *, shard_bytes: int) -> list[Shard]:
    """The shards of a merge in key order: so many that each reads about `shard_bytes` where that costs little. One
    shard for keys that cannot be told apart."""
    size_bytes = sum(item.file.size_bytes for item in inputs)
    groups = sum(len(item.file.row_groups) for item in inputs)
    wanted = -(-size_bytes // max(shard_bytes, 1))
    # Each cut goes through about half a row group of every input.
    affordable = int(_MOST_READ_TWICE * 2 * groups / max(len(inputs), 1))
    # Beyond what is affordable, memory and scratch space decide: a shard must fit.
    count = max(min(wanted, affordable), -(-size_bytes // (4 * max(shard_bytes, 1))), 1)
    ranges = key_ranges([item.file for item in inputs], definition, count)
    return [
        Shard(number, within, tuple(_shard_files(inputs, definition, within))) for number, within in enumerate(ranges)
    ]


def key_ranges(files: Sequence[DataFile], definition: TableDefinition, count: int) -> list[SortKeyRange]:
    """At most `count` ranges that together hold every key, with about the same number of rows each."""
    weighed: list[tuple[Key, int]] = []
    total = 0
    for file in files:
        for group in file.row_groups:
            total += group.rows
            key = stored_key(group.first_key, definition)
            if key is not None:
                weighed.append((key, group.rows))
    weighed.sort(key=lambda pair: pair[0])
    cuts: list[Key] = []
    rows = 0
    for key, group_rows in weighed:
        # The rows of groups that begin before this key: at most those below it.
        if rows >= (len(cuts) + 1) * total / count and (not cuts or key > cuts[-1]) and key > weighed[0][0]:
            cuts.append(key)
        rows += group_rows
    ends = [None, *cuts[: count - 1], None]
    return [SortKeyRange(low, high) for low, high in pairwise(ends)]


def _shard_files(inputs: Sequence[InputFile], definition: TableDefinition, within: SortKeyRange) -> list[ShardFile]:
    found = []
    for item in inputs:
        file = item.file
        whole = within == EVERYTHING or not file.row_groups
        chosen = None if whole else row_groups_within(file, definition, within)
        if chosen == ():
            continue
        if chosen is not None and len(chosen) == len(file.row_groups):
            chosen = None
        trimmed = msgspec.structs.replace(file, row_groups=())
        ranges = byte_ranges(file, chosen)
        found.append(ShardFile(item.key, item.label, trimmed, item.order, item.current, chosen, ranges))
    return found


def byte_ranges(file: DataFile, row_groups: Sequence[int] | None) -> tuple[ByteRange, ...]:
    """What must be read of a file for some of its row groups, which are neighbours: those, and all behind the last row
    group of the file (page indexes and footer)."""
    if row_groups is None:
        return (ByteRange(0, file.size_bytes),)
    first, last, end = (file.row_groups[number] for number in (row_groups[0], row_groups[-1], -1))
    data = ByteRange(first.offset_bytes, last.offset_bytes + last.size_bytes)
    tail = ByteRange(min(end.offset_bytes + end.size_bytes, file.size_bytes), file.size_bytes)
    if tail.start - data.stop <= _NEAR_BYTES:
        return (ByteRange(data.start, file.size_bytes),)
    return (data, tail)


def estimate_merge(shards: Sequence[Shard], *, target_file_bytes: int) -> Cost:
    """What a merge in these shards costs. Its output is taken to be as large as its input."""
    ranges = [piece.stop - piece.start for shard in shards for file in shard.files for piece in file.ranges]
    sent: list[int] = []
    for shard in shards:
        files = -(-shard.size_bytes // max(target_file_bytes, 1))
        sent += [shard.size_bytes // files] * files if files else []
    return Cost(
        # A HEAD for each output before the commit counts as a read.
        get=sum(-(-size // RANGE_BYTES) for size in ranges) + len(sent),
        put=sum(map(uploads, sent)) + 1,
        bytes_down=sum(ranges),
        bytes_up=sum(sent),
    )
