"""Parts: names, the block ranges they cover, and `part.json`.

A part is named `<partition>_<min block>_<max block>_<level>[_<mutation>]`, as in ClickHouse's MergeTree. A part covers
the parts of its partition whose block range lies within its own; a covered part is outdated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from oplog.errors import Damaged, UsageError

PART_FILE = "part.json"
FORMAT = 1

_NAME = re.compile(
    r"(?P<partition>[A-Za-z0-9.=-]+)_(?P<min>\d+)_(?P<max>\d+)_(?P<level>\d+)(?:_(?P<mutation>\d+))?\Z", re.ASCII
)


@dataclass(frozen=True, slots=True, order=True)
class PartName:
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


class ColumnRange(msgspec.Struct, frozen=True, omit_defaults=True):
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
    numbers of 32 bits; so whoever reads some columns can tell that they are what was written. Empty: not known."""


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

    @property
    def part_name(self) -> PartName:
        return PartName.parse(self.name)

    def may_hold(self, other: Part, *, window: int) -> bool:
        """Whether the other part's rows went into this one, by the digests of the inserted blocks. Only a part that
        remembers fewer of them than the window can say no: from a fuller one the oldest were dropped."""
        return len(self.digests) >= window or set(other.digests) <= set(self.digests)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Part)


def encode(part: Part) -> bytes:
    """The bytes of `part.json`."""
    return _encoder.encode(part)


def decode(data: bytes, *, path: str) -> Part:
    """The part of a `part.json`. Raises `Damaged` naming the path."""
    try:
        part = _decoder.decode(data)
        PartName.parse(part.name)
    except (msgspec.DecodeError, UsageError, UnicodeDecodeError) as error:
        raise Damaged(
            f"{path} cannot be read: {error}" if data else f"{path} is empty",
            hint="run 'frostline fsck'; the part is kept as it is and not read",
        ) from error
    if part.format != FORMAT:
        raise Damaged(f"{path} has format {part.format}; this version reads {FORMAT}", hint="upgrade frostline")
    return part


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
