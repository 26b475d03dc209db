"""What became of moves: the shape that `move`, `apply` and `tick` print."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oplog.errors import FrostlineError
from tiering.policy.plan import Move

_JSON_NAMES = {"source": "from", "target": "to"}


class MovedPart(msgspec.Struct, frozen=True, kw_only=True, rename=_JSON_NAMES, omit_defaults=True):
    """A part that moved. `requests` counts those to remote stores, the batch's commit not among them."""

    table: str
    part: str
    source: str
    target: str
    bytes: int
    seconds: float
    requests: int
    copied: bool = True
    """False: the target had the part already, and no byte was copied."""

    @classmethod
    def of(cls, move: Move, seconds: float, requests: int, *, copied: bool = True) -> MovedPart:
        return cls(
            copied=copied,
            table=move.table,
            part=move.part,
            source=move.source,
            target=move.target,
            bytes=move.bytes,
            seconds=seconds,
            requests=requests,
        )


class FailedMove(msgspec.Struct, frozen=True, kw_only=True, rename=_JSON_NAMES):
    """A part that did not move, or not wholly; it can be read as before."""

    table: str
    part: str
    source: str
    target: str
    bytes: int
    error: str
    kind: str = FrostlineError.kind
    """The kind of the error, as in the document of a verb that fails."""
    hint: str = ""
    """The next step, where it is known."""

    @classmethod
    def of(cls, move: Move, error: Exception | str, *, text: str = "") -> FailedMove:
        """`text` instead of the error's own message."""
        return cls(
            table=move.table,
            part=move.part,
            source=move.source,
            target=move.target,
            bytes=move.bytes,
            error=text or (error.message if isinstance(error, FrostlineError) else str(error)),
            kind=error.kind if isinstance(error, FrostlineError) else FrostlineError.kind,
            hint=error.hint if isinstance(error, FrostlineError) else "",
        )


class SkippedMove(msgspec.Struct, frozen=True, kw_only=True, rename=_JSON_NAMES):
    """A move that did not fit any more, was cancelled or has to wait."""

    table: str
    part: str
    source: str
    target: str
    bytes: int
    reason: str

    @classmethod
    def of(cls, move: Move, reason: str) -> SkippedMove:
        return cls(
            table=move.table, part=move.part, source=move.source, target=move.target, bytes=move.bytes, reason=reason
        )


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What moved, failed and was skipped, each in the order of the plan."""

    moved: tuple[MovedPart, ...] = ()
    failed: tuple[FailedMove, ...] = ()
    skipped: tuple[SkippedMove, ...] = ()

    @classmethod
    def of(cls, outcomes: Iterable[MovedPart | FailedMove | SkippedMove]) -> MoveReport:
        every = list(outcomes)
        return cls(
            moved=tuple(outcome for outcome in every if isinstance(outcome, MovedPart)),
            failed=tuple(outcome for outcome in every if isinstance(outcome, FailedMove)),
            skipped=tuple(outcome for outcome in every if isinstance(outcome, SkippedMove)),
        )

    def __add__(self, other: MoveReport) -> MoveReport:
        return MoveReport(
            moved=self.moved + other.moved, failed=self.failed + other.failed, skipped=self.skipped + other.skipped
        )

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.moved)
