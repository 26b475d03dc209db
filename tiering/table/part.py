"""Parts: names, the block ranges they cover, and `part.json`.

A part is named `<partition>_<min block>_<max block>_<level>[_<mutation>]`, as in ClickHouse's MergeTree. A part covers
the parts of its partition whose block range lies within its own; a covered part is outdated.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from oplog import bounds, paths
from oplog.documents import Document
from oplog.errors import Damaged, UsageError

PART_FILE = "part.json"
FORMAT = 1

RANGE_BLOCKS = 1_000_000
"""Block numbers are given to machines in ranges of so many."""

LARGEST_BLOCK = 10**18 - 1
"""Names have no more digits."""

_NAME = re.compile(
    r"(?P<partition>[A-Za-z0-9.=-]+)_(?P<min>\d{1,18})_(?P<max>\d{1,18})_(?P<level>\d{1,18})(?:_(?P<mutation>\d{1,18}))?\Z",
    re.ASCII,
)


class PartName(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Orders by partition, then block range. `partition` is an id of `[A-Za-z0-9.=-]+`, `all` if unpartitioned."""

    partition: str
    min_block: int
    max_block: int
    level: int
    mutation: int = 0

    def __str__(self) -> str:
        base = f"{self.partition}_{self.min_block}_{self.max_block}_{self.level}"
        return f"{base}_{self.mutation}" if self.mutation else base

    @staticmethod
    @lru_cache(maxsize=1024)  # who lists parts parses each name several times in a row
    def parse(text: str) -> PartName:
        """The name's parts. Raises `UsageError`."""
        match = _NAME.match(text)
        if not match:
            raise UsageError(
                f"not a part name: {text!r}", hint="part names look like 202601_1_5_1; 'frostline parts' lists them"
            )
        return PartName(
            match["partition"], int(match["min"]), int(match["max"]), int(match["level"]), int(match["mutation"] or 0)
        )

    def covers(self, other: PartName) -> bool:
        """Whether this part replaces the other: same partition, block range within, not older. Not itself."""
        return (
            self != other
            and self.partition == other.partition
            and self.min_block <= other.min_block
            and self.max_block >= other.max_block
            and (self.level, self.mutation) >= (other.level, other.mutation)
        )


class ColumnRange(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Smallest and largest value of a column, as JSON values (times RFC 3339 UTC); None if unknown or all null."""

    min: Any = None
    max: Any = None
    nulls: int = 0


class RowGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row group: its rows, where it starts, and the sort key of its first row (the sparse index)."""

    rows: int
    offset_bytes: int
    size_bytes: int
    first_key: tuple[Any, ...] = ()
    chunk_sums: bytes = b""
    """Of each column chunk in the file's order: its bytes, and the CRC32 of each 256 KiB of it, as little-endian
    numbers of 32 bits; so a reader of some columns can tell that they are what was written. Empty: not known."""
    columns: dict[str, ColumnRange] = {}
    """Ranges of the columns by which rows are chosen most: those of sort key and partitions, and times."""


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file of a part. Files of a part hold disjoint, ascending sort-key ranges."""

    name: str
    rows: int
    size_bytes: int
    sha256: str
    row_groups: tuple[RowGroup, ...] = ()
    columns: dict[str, ColumnRange] = {}
    tail_crc32: int | None = None
    """Of everything after the last column chunk: page index and footer. None where it is not known."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """`part.json`: everything that planning needs, so that pruning and merging read no data file first."""

    format: int = FORMAT
    table: str
    """uuid of the table"""
    name: str
    rows: int
    size_bytes: int
    """Sum of the data files."""
    created: datetime
    partition_values: tuple[Any, ...] = ()
    schema_version: int = 1
    files: tuple[DataFile, ...] = ()
    columns: dict[str, ColumnRange] = {}
    """Over all files; keys are field ids as text, so that renames need no rewrite."""
    digests: tuple[str, ...] = ()
    """Content digests of the inserted blocks inside, for idempotent inserts; the newest of a bounded window."""
    sources: tuple[str, ...] = ()
    """Parts merged into this one."""
    replaces: tuple[str, ...] = ()
    """Parts of other machines whose rows are in here, by their exact names: a copy of one that turns up is outdated,
    though this part's block range does not cover it."""
    compression_level: int = 0
    """zstd level that a recompression rule gave it; 0 for the table's own."""
    inserted: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """The first and the last block number under which its rows were inserted, where those are not its name's: the order
    in which merges take rows of equal keys."""

    @property
    def part_name(self) -> PartName:
        return PartName.parse(self.name)

    def was_made_from(self, other: PartName) -> bool:
        """Whether a part within this one's block range went into it, by the parts that this one was merged from: a
        range may span numbers of parts that were not there. One that names no source says nothing else than its range.
        """
        sources = [PartName.parse(source) for source in self.sources]
        return not sources or any(source == other or source.covers(other) for source in sources)

    def remembers_all(self, *, window: int) -> bool:
        """Whether its digests are those of all blocks that were ever inserted into it. A merge keeps the newest
        `window` of them, and each part that was merged had one at least."""
        return max(1, len(self.sources)) <= len(self.digests) and (not self.sources or len(self.digests) < window)

    def may_hold(self, other: Part, *, window: int) -> bool:
        """Whether the other part's rows went into this one, by the digests of the inserted blocks. Only a part that
        remembers all of them can say no: another one has forgotten the oldest."""
        return not self.remembers_all(window=window) or set(other.digests) <= set(self.digests)


class PartFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As much of a `part.json` as is asked of every part of a store. The fields are those of `Part`."""

    part_name: PartName
    name: str
    rows: int
    size_bytes: int
    created: datetime
    replaces: tuple[str, ...]
    columns: dict[str, ColumnRange]
    """Only those that the maker of the facts chose."""
    partition_values: tuple[Any, ...] = ()
    inserted: tuple[int, int] | None = None


def inserted_blocks(part: Part | PartFacts) -> tuple[int, int]:
    """The first and the last block number under which its rows were inserted."""
    if part.inserted is None or isinstance(part.inserted, msgspec.UnsetType):
        return part.part_name.min_block, part.part_name.max_block
    return part.inserted


def facts_of(part: Part, columns: Iterable[str]) -> PartFacts:
    """The part's facts, with the ranges of these columns, by their ids, where it has them."""
    ranges = {column: part.columns[column] for column in columns if column in part.columns}
    known = part.part_name, part.name, part.rows, part.size_bytes, part.created, part.replaces
    inserted = None if isinstance(part.inserted, msgspec.UnsetType) else part.inserted
    return PartFacts(*known, ranges, part.partition_values, inserted)


def encode(part: Part) -> bytes:
    """The bytes of `part.json`. Raises `Refused` for a part that could not be read back."""
    return _document.encode(part)


def decode(data: bytes, *, path: str) -> Part:
    """The part of a `part.json`, with every field within its bounds. Raises `Damaged` naming the path."""
    try:
        if len(data) > bounds.LARGEST_DOCUMENT_BYTES:
            raise UsageError(f"it has {len(data)} bytes")
        part = _document.decode(data)
    except (UsageError, *bounds.UNREADABLE) as error:
        raise Damaged(
            f"{path} cannot be read: {error}" if data else f"{path} is empty",
            hint="run 'frostline fsck'; the part is left unchanged and not read",
        ) from error
    if part.format != FORMAT:
        raise Damaged(f"{path} has format {part.format}; this version reads {FORMAT}", hint="upgrade frostline")
    return part


def _fault_in(part: Part) -> str | None:
    PartName.parse(part.name)
    if part.format != FORMAT:  # of a later version, which may say more
        return None
    names = [file.name for file in part.files]
    if len(set(names)) != len(names):
        return "it names a file twice"
    return (
        bounds.fault_in_count("rows", part.rows)
        or bounds.fault_in_count("size_bytes", part.size_bytes)
        or bounds.fault_in_count("schema_version", part.schema_version)
        or bounds.fault_in_count("compression_level", part.compression_level)
        or bounds.fault_in_time("created", part.created)
        or _fault_in_order(part)
        or next(filter(None, map(_fault_in_file, part.files)), None)
        or _fault_in_columns(part.columns)
    )


def _fault_in_order(part: Part) -> str | None:
    first, last = inserted_blocks(part)
    return None if -LARGEST_BLOCK <= first <= last <= LARGEST_BLOCK else f"inserted is {first} to {last}"


def _fault_in_file(file: DataFile) -> str | None:
    if "/" in file.name or not paths.is_safe(file.name):
        return f"{file.name[:80]!r} is no name of a file"
    return (
        bounds.fault_in_count(f"the rows of {file.name}", file.rows)
        or bounds.fault_in_size(f"the size of {file.name}", file.size_bytes)
        or bounds.fault_in_digest(f"the SHA-256 of {file.name}", file.sha256)
        or _fault_in_columns(file.columns)
        or next(filter(None, map(_fault_in_group, file.row_groups)), None)
    )


def _fault_in_group(group: RowGroup) -> str | None:
    return (
        bounds.fault_in_count("the rows of a row group", group.rows)
        or bounds.fault_in_size("the start of a row group", group.offset_bytes)
        or bounds.fault_in_size("the size of a row group", group.size_bytes)
    )


def _fault_in_columns(columns: dict[str, ColumnRange]) -> str | None:
    return next(
        filter(None, (bounds.fault_in_count(f"the nulls of {name!r}", found.nulls) for name, found in columns.items())),
        None,
    )


_document = Document("part.json", Part, fault=_fault_in, order="deterministic")


class PartFile(msgspec.Struct, frozen=True, gc=False):
    """What tells a file of a part. The fields are those of `DataFile`."""

    name: str
    size_bytes: int
    sha256: str


class PartFiles(msgspec.Struct, frozen=True, gc=False):
    """As much of a `part.json` as tells its files. The fields are those of `Part`."""

    name: str
    rows: int
    files: tuple[PartFile, ...]


_files_decoder = msgspec.json.Decoder(PartFiles)


def files_of(data: bytes, *, path: str) -> PartFiles:
    """The files of a `part.json` that was decoded before: nothing else of it is looked at. Raises `Damaged`."""
    try:
        return _files_decoder.decode(data)
    except bounds.UNREADABLE as error:
        raise Damaged(f"{path} cannot be read: {error}", hint="run 'frostline fsck'") from error


def range_of(block: int) -> int:
    """The range a block number belongs to."""
    return block // RANGE_BLOCKS


def meet(names: Iterable[PartName]) -> bool:
    """Whether the block ranges of two different ones of them meet. The names come in order."""
    last: PartName | None = None
    highest = 0
    for name in names:
        if last is not None and last.partition == name.partition:
            if name.min_block <= highest and name != last:
                return True
            highest = max(highest, name.max_block)
        else:
            highest = name.max_block
        last = name
    return False


def apart(names: Iterable[PartName], others: Iterable[PartName]) -> set[PartName]:
    """Those of the names whose block range meets that of no other one, of theirs or of the others. O(n log n)."""
    wanted = set(names)
    ordered = sorted([*wanted, *others])
    found: set[PartName] = set()
    partition, highest = "", -1
    for name, following in itertools.zip_longest(ordered, ordered[1:]):
        if name.partition != partition:
            partition, highest = name.partition, -1
        meets_next = following is not None and (following.partition, following.min_block) <= (partition, name.max_block)
        if name in wanted and name.min_block > highest and not meets_next:
            found.add(name)
        highest = max(highest, name.max_block)
    return found


def active(names: list[PartName]) -> set[PartName]:
    """The parts not covered by another one. O(n log n)."""
    result: set[PartName] = set()
    ordered = sorted(
        names, key=lambda name: (name.partition, name.min_block, -name.max_block, -name.level, -name.mutation)
    )
    current: PartName | None = None
    for name in ordered:
        if current is not None and current.covers(name):
            continue
        current = name
        result.add(name)
    return result
