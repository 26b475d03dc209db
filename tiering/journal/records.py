"""What the journal holds: the records, and as data the table of which state may follow which. No I/O."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from oplog.errors import UsageError

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


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One move, finished or not. `attempts` counts the tries of this part to this target since the last success."""

    id: int
    table: str
    table_uuid: str
    part: str
    source: str
    target: str
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


class MoveFailures(msgspec.Struct, frozen=True, kw_only=True):
    """The last tries of moving a part to a target all failed: how many, when the last one, and why."""

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
    """Automatic work of this kind waits, for one table or (None) for all. Verbs given by hand still work."""

    table_uuid: str | None
    kind: PauseKind
    created: datetime
    actor: str = ""


class UnfinishedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation over several disks that was begun; recovery finishes it from the payload."""

    id: int
    kind: str
    payload: dict[str, str]
    created: datetime


def check_transition(table: dict[str, frozenset[str]], what: str, current: str, following: str) -> None:
    """Raise `UsageError` unless `following` may come after `current`; the same state again is allowed."""
    if following not in table:
        raise UsageError(f"{what}: no such state {following!r}", hint=f"states are: {', '.join(table)}")
    if current != following and following not in table[current]:
        allowed = ", ".join(sorted(table[current])) or "nothing, it is final"
        raise UsageError(f"{what} is {current}; it cannot become {following}", hint=f"what may follow: {allowed}")
