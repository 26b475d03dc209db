"""Backups as rows: what `--json` prints and the dashboard shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from backup.format.header import LeftOut, NotHeld
from backup.format.names import parse_header_key
from tiering.config.units import counted

if TYPE_CHECKING:
    from backup.repository import Listed


class VerifiedRow(msgspec.Struct, frozen=True):
    """The newest verification of a backup."""

    time: str
    depth: str
    """`quick`, `subset` or `data`."""
    slice: str
    """Of a subset: `3 of 20`."""
    read_bytes: int
    problems: int
    ok: bool


class DrilledRow(msgspec.Struct, frozen=True):
    """The newest drill of a backup."""

    time: str
    whole: bool
    parts: int
    rows: int
    bytes: int
    problems: int
    ok: bool


class BackupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `backup list`. Of a backup that is incomplete or damaged, what only its header has is None or empty."""

    name: str
    id: str
    machine: str
    state: str
    taken: str | None
    tables: list[str] = []
    clickhouse: list[str] = []
    parts: int | None = None
    files: int | None = None
    bytes: int | None = None
    new_bytes: int | None = None
    cold: str | None = None
    tags: Sequence[str] = ()
    scope: Sequence[str] = ()
    left_out: Sequence[LeftOut] = ()
    """Tables that could not be read when it was made."""
    verified: VerifiedRow | None = None
    drilled: DrilledRow | None = None


class BackupPartition(msgspec.Struct, frozen=True):
    """A partition of a table in a backup."""

    partition: str
    parts: int
    rows: int
    bytes: int


class ShownTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table in a backup."""

    table: str
    uuid: str
    policy: str
    parts: int
    rows: int
    files: int
    bytes: int
    partitions: list[BackupPartition]


class BackupTree(msgspec.Struct, frozen=True):
    """A directory of ClickHouse's in a backup."""

    disk: str
    directory: str
    parts: int
    files: int
    bytes: int


class BackupDisk(msgspec.Struct, frozen=True):
    """A disk that parts of a backup were on."""

    name: str
    remote: bool
    parts: int


class BackupPin(msgspec.Struct, frozen=True):
    """A revision of a bucket that a backup keeps."""

    disk: str
    url: str
    revision: int


class ShownBackup(BackupRow, frozen=True, kw_only=True):
    """A backup in `backup show`."""

    tables: list[ShownTable]  # type: ignore[assignment]  # more of each than in the list
    host: str
    actor: str
    completed: str
    trees: list[BackupTree]
    disks: list[BackupDisk]
    pinned: list[BackupPin]
    not_held: Sequence[NotHeld]


def backup_row(listed: Listed) -> BackupRow:
    """Of a backup in whatever state it is."""
    if listed.header is not None:
        made = listed.header
        return BackupRow(
            name=made.name,
            id=made.id,
            machine=made.machine,
            state="complete",
            taken=time_text(made.taken),
            tables=[table.name for table in made.tables],
            clickhouse=[tree.name for tree in made.trees],
            parts=made.parts,
            files=made.files,
            bytes=made.size_bytes,
            new_bytes=made.new_bytes,
            cold=made.cold,
            tags=made.tags,
            scope=made.scope,
            left_out=made.left_out,
            verified=_verified(listed),
            drilled=_drilled(listed),
        )
    if listed.unfinished is not None:
        name, machine, backup_id = listed.unfinished.name, listed.unfinished.machine, listed.unfinished.id
        state, taken = "incomplete", time_text(listed.unfinished.started)
    else:
        assert listed.broken is not None
        name, machine, backup_id = parse_header_key(listed.broken.key) or (listed.broken.key, "", "")
        state, taken = f"damaged: {listed.broken.error.message}", None
    return BackupRow(name=name, id=backup_id, machine=machine, state=state, taken=taken)


def _verified(listed: Listed) -> VerifiedRow | None:
    record = listed.verified
    if record is None:
        return None
    share = f"{record.slice + 1} of {record.slices}" if record.slices > 1 else ""
    problems = record.problem_count
    return VerifiedRow(time_text(record.time), record.depth, share, record.read_bytes, problems, not problems)


def _drilled(listed: Listed) -> DrilledRow | None:
    record = listed.drilled
    if record is None:
        return None
    sizes = (record.parts, record.rows, record.size_bytes)
    return DrilledRow(time_text(record.time), record.whole, *sizes, record.problem_count, not record.problem_count)


def verified_text(verified: VerifiedRow | None) -> str:
    """When it was verified, how deep, and what was found."""
    if verified is None:
        return "never"
    how = {"quick": "quick", "subset": f"share {verified.slice}", "data": "all data"}[verified.depth]
    return f"{verified.time} {how}: {_outcome(verified)}"


def drilled_text(drilled: DrilledRow | None) -> str:
    """When it was drilled, how much of it, and what was found."""
    if drilled is None:
        return "never"
    return f"{drilled.time} {'whole' if drilled.whole else 'a share'}: {_outcome(drilled)}"


def _outcome(record: VerifiedRow | DrilledRow) -> str:
    return "ok" if record.ok else counted(record.problems, "problem").upper()


def time_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
