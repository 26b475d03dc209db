"""What a statement reads of files of buckets: known before it runs, by the plan and `part.json`, without a request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from tiering.parquet.checked_file import CheckedFile
from tiering.parquet.sections import Section
from tiering.query.selection import SelectedFile
from tiering.query.sql.file_places import FilePlace, leaves_read
from tiering.query.sql.plan import Access
from tiering.query.sql.read_ahead import chosen_sections, footer_groups, joined_ranges
from tiering.table.pruning import columns_of, matching_groups
from tiering.table.schema import TableDefinition

_FOOTER_BYTES = 1024 * 1024
"""Less of the columns of a file is fetched without a look at its footer: that takes another request first."""
FooterSays = Callable[[bytes], Collection[int] | None]
"""The end of a file, with its footer -> the row groups that can match; None for all."""


class ColdRead(msgspec.Struct, frozen=True):
    """What a statement reads of a file of a bucket."""

    selected: SelectedFile
    file: CheckedFile
    ranges: Sequence[tuple[int, int]]
    column_bytes: int
    groups: Collection[int] | None
    """The row groups that can match, by their places; None for all."""
    leaves: Collection[int] = ()
    footer_says: FooterSays | None = None
    """Where the footer is fetched first, which row groups can match: what is said here is the most then."""

    @property
    def requests(self) -> int:
        """So many at most."""
        return len(self.ranges) + (self.footer_says is not None)

    @property
    def size_bytes(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


def cold_reads(
    files: Iterable[SelectedFile],
    opened: Callable[[SelectedFile], CheckedFile],
    definition: TableDefinition,
    access: Access,
    places: Mapping[int, FilePlace],
    first: Mapping[int, Collection[int]],
) -> list[ColdRead]:
    """What is read of files that have the columns at these `places`. `first`: by the `id` of a file, the row groups of
    which nothing else is needed."""
    leaves = leaves_read(definition, access, places)
    filtered = columns_of(access.predicate)
    by_footer = partial(footer_groups, predicate=access.predicate, definition=definition, places=places)
    reads = []
    for file in files:
        groups = first.get(id(file))
        if groups is None and filtered:
            groups = matching_groups(access.predicate, file.file, definition)
        footer_says = by_footer if filtered and groups is None else None
        reads.append(cold_read(file, opened(file), leaves, groups, footer_says))
    return reads


def fitting(reads: Sequence[ColdRead], room_bytes: int, most: int) -> list[ColdRead]:
    """The first ones, `most` at most, for which there is room."""
    sums = itertools.accumulate(read.size_bytes for read in reads)
    return [read for read, size_bytes in zip(reads[:most], sums, strict=False) if size_bytes <= room_bytes]


def cold_read(
    selected: SelectedFile,
    file: CheckedFile,
    leaves: Collection[int],
    groups: Collection[int] | None,
    footer_says: FooterSays | None = None,
) -> ColdRead:
    """What is read of a file: these leaves of these row groups, or of all, and the footer; all of it where `part.json`
    does not say where they lie. `footer_says` is asked where it may leave enough out."""
    if not file.sections:
        size_bytes = selected.file.size_bytes
        return ColdRead(selected, file, [(0, size_bytes)], size_bytes, None)
    chosen = chosen_sections(file.sections, leaves, groups)
    if footer_says is not None and (len(selected.file.row_groups) < 2 or _bytes_of(chosen) < _FOOTER_BYTES):
        footer_says = None
    ranges = joined_ranges(chosen if footer_says is not None else (*chosen, file.sections[-1]))
    return ColdRead(selected, file, ranges, _bytes_of(chosen), _fewer(selected, groups), leaves, footer_says)


def told(read: ColdRead, tail: bytes) -> ColdRead:
    """What is left to read, now that the end of the file was."""
    assert read.footer_says is not None
    groups = read.footer_says(tail)
    chosen = chosen_sections(read.file.sections, read.leaves, groups)
    return ColdRead(read.selected, read.file, joined_ranges(chosen), _bytes_of(chosen), _fewer(read.selected, groups))


def tail_of(read: ColdRead) -> tuple[int, int]:
    """Where the footer and what belongs to it begin and end."""
    return read.file.sections[-1].start, read.selected.file.size_bytes


def _fewer(selected: SelectedFile, groups: Collection[int] | None) -> Collection[int] | None:
    """The row groups; None for all."""
    return None if groups is not None and len(groups) == len(selected.file.row_groups) else groups


def _bytes_of(chosen: Sequence[Section]) -> int:
    return sum(section.stop - section.start for section in chosen)
