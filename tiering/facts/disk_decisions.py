"""What `disk drain`, `disk adopt` and their siblings answer with `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType

from tiering.engine.draining import DetachedThere, StaysThere
from tiering.facts.moves import WouldMove
from tiering.move.report import FailedMove, MovedPart, SkippedMove


class DetachedRow(msgspec.Struct, frozen=True, rename={"target": "to"}):
    """A detached part, and the disk that takes it."""

    table: str
    part: str
    bytes: int
    target: str


class DrainDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`disk drain --json`."""

    disk: str
    moved: Sequence[MovedPart | WouldMove]
    failed: Sequence[FailedMove] = ()
    skipped: Sequence[SkippedMove] = ()
    detached: list[DetachedRow]
    left: list[StaysThere]
    empty: bool
    drained: bool
    dry_run: bool


def detached_rows(detached: Sequence[DetachedThere]) -> list[DetachedRow]:
    """One row each."""
    return [
        DetachedRow(there.definition.full_name, there.part.name, there.part.size_bytes, there.target)
        for there in detached
    ]


class LoggedTable(msgspec.Struct, frozen=True):
    """What only one log holds of a table."""

    table: str
    parts: list[str]
    rows: int
    bytes: int


class RetiredLog(msgspec.Struct, frozen=True, kw_only=True):
    """`disk retire-log --json`."""

    disk: str
    log: str
    holder: str | None
    last_sign: datetime | None
    alone: list[LoggedTable]
    objects: int
    bytes: int
    pins: Sequence[str]
    unreadable: str | None
    refused: str | None
    retired_since: datetime | None
    changed: bool
    dry_run: bool


class HeldTable(msgspec.Struct, frozen=True):
    """A table with parts on a disk."""

    table: str
    uuid: str
    parts: int
    rows: int


class RecordedDisk(msgspec.Struct, frozen=True):
    """A disk as this machine's journal has it."""

    id: str | None
    place: str
    tables: list[HeldTable]
    counted: bool
    """Whether the disk has not been written to since."""


class DiskThere(msgspec.Struct, frozen=True):
    """What is at the configured path."""

    id: str | None
    place: str
    tables: list[HeldTable] | UnsetType = UNSET


class SetAsideRow(msgspec.Struct, frozen=True):
    """A part that cannot stay where it is."""

    table: str
    part: str
    reason: str
    what: str


class DiskDecision(msgspec.Struct, frozen=True, kw_only=True):
    """`disk adopt --json`, and that of `replace` and `forget`."""

    disk: str
    known: RecordedDisk
    found: DiskThere
    changed: bool
    dry_run: bool
    set_aside: list[SetAsideRow] | UnsetType = UNSET
    """Only of `adopt`."""
