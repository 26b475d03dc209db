"""What verbs of this package answer with `--json`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from disks.garbage.report import GcRow
from restore.check.findings import Checked, Problem, ShareRead


class GcDocument(GcRow, kw_only=True):
    """`gc --json` of one disk."""

    dry_run: bool


class GcSum(msgspec.Struct, frozen=True, kw_only=True):
    """`gc --json` of several disks."""

    referenced: int
    pending: int
    orphaned: int
    orphaned_bytes: int
    deleted: int
    deleted_bytes: int
    refused: str | None
    disks: list[GcRow]
    dry_run: bool


class PartitionRow(msgspec.Struct):
    """A partition of a table, or what of it is detached."""

    partition: str
    parts: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_by_disk: dict[str, int] = {}
    min_time: Any = UNSET
    """Of the column that tells the age of parts, as `max_time`. Not of detached parts."""
    max_time: Any = UNSET

    def add(self, disk: str, rows: int, size_bytes: int) -> None:
        """A part of it."""
        self.parts += 1
        self.rows += rows
        self.bytes += size_bytes
        self.bytes_by_disk[disk] = self.bytes_by_disk.get(disk, 0) + size_bytes

    def widen(self, first: Any, last: Any) -> None:
        """By the range of time of a part, which may have none."""
        self.min_time = min((time for time in (self.min_time or None, first) if time is not None), default=None)
        self.max_time = max((time for time in (self.max_time or None, last) if time is not None), default=None)


class PartitionsDocument(msgspec.Struct, frozen=True):
    """`partition list --json`."""

    table: str
    partitions: list[PartitionRow]
    detached: list[PartitionRow]


class AttachablePart(msgspec.Struct, frozen=True):
    """A part that was set aside and can be attached again."""

    path: str
    table: str
    partition: str


class CheckDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`fsck --json`."""

    checked: Checked
    problems: list[Problem]
    repaired: list[str]
    set_aside: list[str]
    attachable: list[AttachablePart]
    shares: list[ShareRead]
    ok: bool
    dry_run: bool
