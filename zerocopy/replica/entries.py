"""Entries of a replicated table's log, as JSON. They come from Keeper: hostile until they are decoded. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias, cast

import msgspec

from oplog import bounds
from oplog.documents import Document
from oplog.errors import Damaged, UsageError
from tiering.table.part import PartName

_MOST_INPUTS = 1000
MOST_RANGES = 1000
_MOST_SPARED = 10_000
_ABOVE_ALL = 999_999_999
"""The level of a range: what lies within it is older, whatever was merged."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    time: datetime
    """When it was agreed upon; what is made by it has this as its time, on every replica."""
    replica: str
    """Who said so."""


class Get(_Entry, frozen=True, kw_only=True, tag="get", omit_defaults=True):
    """A part came; every replica is to have it."""

    part: str
    digest: str
    """Of what its `part.json` says, which names the SHA-256 of every file."""
    quorum: int = 0
    """How many replicas must have it before the insert is acknowledged; 0: nobody asked."""

    @property
    def brings(self) -> str:
        return self.part

    @property
    def touches(self) -> tuple[PartName, ...]:
        """The blocks that it is about, as names of parts."""
        return (PartName.parse(self.part),)


class Merge(_Entry, frozen=True, kw_only=True, tag="merge"):
    """Adjacent parts become one."""

    output: str
    inputs: tuple[str, ...]
    reason: str

    @property
    def brings(self) -> str:
        return self.output

    @property
    def touches(self) -> tuple[PartName, ...]:
        """The blocks that it is about, as names of parts."""
        return (PartName.parse(self.output),)


class MergeKeeping(Merge, frozen=True, kw_only=True, tag="merge_keeping"):
    """The same by a clock that may be wrong: rows past their TTL stay. A version that does not know it waits for its
    upgrade, for it would delete them."""

    clock_doubt: str


class DropRange(_Entry, frozen=True, kw_only=True, tag="drop_range"):
    """All parts whose blocks lie within these ranges go. What was inserted before it in the log is in no part of
    other blocks, so no part lies across."""

    ranges: tuple[str, ...]
    """As names of parts, of a level above all."""
    spared: tuple[int, ...] = ()
    """Blocks within the range of a partition that were on their way when it was agreed upon: they stay."""
    reason: str
    by_ttl: bool = False
    """A TTL rule says so."""
    gives_up: bool = False
    """No replica has what lies in them: nobody waits for it any more, nor for a merge that takes it."""

    @property
    def brings(self) -> str:
        return self.ranges[0]

    @property
    def touches(self) -> tuple[PartName, ...]:
        """The blocks that it is about, as names of parts."""
        return tuple(map(PartName.parse, self.ranges))

    def drops(self, name: PartName) -> bool:
        """Whether the part goes."""
        if any(name.min_block <= number <= name.max_block for number in self.spared):
            return False
        return any(one.covers(name) for one in self.touches)


class Alter(_Entry, frozen=True, kw_only=True, tag="alter"):
    """The table has another definition: `metadata` has it, or a newer one. What comes after it waits for it."""

    version: int
    reason: str

    @property
    def brings(self) -> str:
        return f"version {self.version}"

    @property
    def touches(self) -> tuple[PartName, ...]:
        """The blocks that it is about, as names of parts."""
        return ()


Entry: TypeAlias = Get | Merge | MergeKeeping | DropRange | Alter


def encode(entry: Entry) -> bytes:
    """The bytes of the entry. Raises `Refused` for one that could not be read back."""
    return _document.encode(entry)


def whole_range(partition: str, first: int, last: int) -> str:
    """The name of a range of blocks that covers every part within it."""
    return str(PartName(partition, first, last, _ABOVE_ALL))


def decode(data: bytes, *, path: str) -> Entry:
    """The entry of a node, with every name a part's name. Raises `Damaged` naming the node."""
    try:
        return _document.decode(data)
    except (UsageError, *bounds.UNREADABLE) as error:
        raise Damaged(
            f"the entry {path} in Keeper cannot be read: {error}",
            hint="a newer version may have written it: upgrade frostline; else something else changed the node",
        ) from error


def _fault_in(entry: Entry) -> str | None:
    fault = bounds.fault_in_time("time", entry.time)
    if isinstance(entry, Get):
        PartName.parse(entry.part)
        return fault or bounds.fault_in_digest("digest", entry.digest)
    if isinstance(entry, DropRange):
        return fault or _fault_in_ranges(entry)
    if isinstance(entry, Alter):
        return fault or bounds.fault_in_count("version", entry.version)
    output = PartName.parse(entry.output)
    inputs = [PartName.parse(name) for name in entry.inputs]
    if not 0 < len(inputs) <= _MOST_INPUTS or not all(output.covers(name) for name in inputs):
        return fault or "its output does not cover its inputs"
    return fault


def _fault_in_ranges(entry: DropRange) -> str | None:
    if not 0 < len(entry.ranges) <= MOST_RANGES or len(entry.spared) > _MOST_SPARED:
        return "it drops nothing, or too much at once"
    if any(name.level != _ABOVE_ALL or name.mutation for name in entry.touches):
        return "what it drops is no range"
    if entry.spared and len(entry.ranges) > 1:
        return "it spares blocks of more than one range"
    return None


_document: Document[Entry] = Document(
    "entry of the log of a replicated table", cast("type[Entry]", Entry), fault=_fault_in, order="deterministic"
)
