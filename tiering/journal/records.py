"""What the journal holds: the records, and as data the table of which state may follow which. No I/O."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from oplog.documents import Document
from oplog.errors import Damaged, UsageError

MoveState = Literal["planned", "copying", "committed", "done", "abandoned", "failed", "cancelled"]
MergeState = Literal["running", "done", "abandoned", "failed"]
PauseKind = Literal["moves", "merges", "gc"]

PAUSE_KINDS: tuple[PauseKind, ...] = ("moves", "merges", "gc")

MOVE_TRANSITIONS: dict[str, frozenset[str]] = {
    "planned": frozenset({"copying", "committed", "abandoned", "failed", "cancelled"}),
    "copying": frozenset({"committed", "abandoned", "failed", "cancelled"}),
    "committed": frozenset({"done"}),
    "done": frozenset(),
    "abandoned": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
"""A committed move can only be finished: the target holds the part and nothing may undo that."""

MERGE_TRANSITIONS: dict[str, frozenset[str]] = {
    "running": frozenset({"done", "abandoned", "failed"}),
    "done": frozenset(),
    "abandoned": frozenset(),
    "failed": frozenset(),
}

ACTIVE_MOVES = ("planned", "copying", "committed")
ACTIVE_MERGES = ("running",)


class NewMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move to be recorded as planned. `table` is the name for people, `table_uuid` the identity."""

    table: str
    table_uuid: str
    part: str
    source: str
    target: str
    bytes: int
    reason_kind: str
    reason_detail: str
    actor: str = ""
    keep_source: bool = False


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One move, finished or not: a row of `moves list`. `attempts` counts the tries of this part to this target since
    the last success."""

    id: int
    table: str
    table_uuid: str
    part: str
    bytes: int
    reason_kind: str
    reason_detail: str
    actor: str
    keep_source: bool
    state: MoveState
    attempts: int
    error: str
    seconds: float
    requests: int
    revision: int | None
    cancel_requested: bool
    created: datetime
    updated: datetime
    bytes_done: int = 0
    """While it is copying: how much of it is on the target, as last noted."""
    source: str
    target: str


class MergeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One merge, finished or not."""

    id: int
    table: str
    table_uuid: str
    partition: str
    inputs: tuple[str, ...]
    output: str
    reason: str
    actor: str
    state: MergeState
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    seconds: float
    error: str
    created: datetime
    updated: datetime


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The last tries of one move, or of one merge, all failed: how many, when the last one, and why."""

    attempts: int
    error: str
    at: datetime


class PartPin(msgspec.Struct, frozen=True, kw_only=True):
    """A part or partition that the policy keeps where it is, or brings to `volume` and keeps there."""

    table_uuid: str
    scope: Literal["partition", "part"]
    name: str
    volume: str | None = None
    created: datetime
    actor: str = ""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Automatic work of this kind waits, for one table or (None) for all. Verbs still work when you run them."""

    table_uuid: str | None
    kind: PauseKind
    created: datetime
    actor: str = ""


class _Drop(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    table_uuid: str
    reason: str
    directories: tuple[str, ...]
    """What goes, on every disk."""
    here_only: bool = False
    """It stays on the disks that other machines have as well."""
    barred_by: tuple[str, ...] = ()
    """On a disk where one of these is by now, all stays: `TableDefinition.barred_by` when it was decided."""


class TableDrop(_Drop, frozen=True, kw_only=True, tag="drop_table"):
    """A table is to go, with its name."""

    version: int = 0
    """Of its definition: a newer one, which was brought back meanwhile, stays. 0 when an older version began this."""


class PartsDrop(_Drop, frozen=True, kw_only=True, tag="drop_parts"):
    """Parts of a table are to go."""

    by_ttl: bool = False
    """Because a TTL rule says so."""
    kept: tuple[str, ...] = ()
    """Of these directories the ones that local disks keep in `detached/` for a while."""


Drop: TypeAlias = TableDrop | PartsDrop


class UnfinishedDrop(msgspec.Struct, frozen=True, kw_only=True):
    """A drop that was begun; recovery finishes it."""

    id: int
    drop: Drop


class _Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A drop as the journal holds it, beside its kind."""

    table: str
    uuid: str
    reason: str
    directories: str
    """A line each."""
    name: str | None = None
    """Of a table: the name it frees."""
    by_ttl: bool = False
    version: int = 0
    here_only: bool = False
    barred_by: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


_document = Document("intent of a drop", _Payload)


def encode_drop(drop: Drop) -> tuple[str, str]:
    """The kind and the payload of a drop, for the journal."""
    payload = _Payload(
        table=drop.table,
        uuid=drop.table_uuid,
        reason=drop.reason,
        directories="\n".join(drop.directories),
        name=drop.table if isinstance(drop, TableDrop) else None,
        by_ttl=isinstance(drop, PartsDrop) and drop.by_ttl,
        version=drop.version if isinstance(drop, TableDrop) else 0,
        here_only=drop.here_only,
        barred_by=drop.barred_by,
        kept=drop.kept if isinstance(drop, PartsDrop) else (),
    )
    return str(drop.__struct_config__.tag), _document.encode(payload).decode()


def decode_drop(kind: str, payload: str, *, journal: str) -> Drop | None:
    """The drop of a row of the journal's `intents`; None for a kind that is none known here. Raises `Damaged`."""
    if kind not in ("drop_table", "drop_parts"):
        return None
    try:
        read = _document.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Damaged(
            f"the journal {journal} holds a {kind.replace('_', ' ')} that cannot be read: {error}",
            hint="bring the file back from a copy; or move it away and drop again what was being dropped",
        ) from error
    directories = tuple(read.directories.split("\n"))
    if kind == "drop_table":
        return TableDrop(
            table=read.table,
            table_uuid=read.uuid,
            reason=read.reason,
            directories=directories,
            version=read.version,
            here_only=read.here_only,
            barred_by=read.barred_by,
        )
    return PartsDrop(
        table=read.table,
        table_uuid=read.uuid,
        reason=read.reason,
        directories=directories,
        by_ttl=read.by_ttl,
        here_only=read.here_only,
        barred_by=read.barred_by,
        kept=read.kept,
    )


def check_transition(table: dict[str, frozenset[str]], subject: str, current: str, following: str) -> None:
    """Raise `UsageError` unless `following` may come after `current`; the same state again is allowed."""
    if following not in table:
        raise UsageError(f"{subject}: no such state {following!r}", hint=f"states are: {', '.join(table)}")
    if current != following and following not in table[current]:
        allowed = ", ".join(sorted(table[current])) or "nothing, it is final"
        raise UsageError(f"{subject} is {current}; it cannot become {following}", hint=f"what may follow: {allowed}")
