"""The parts a mover has in hand: one move under way, what stops it, the files that threads take, the promised space."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from oplog.errors import FrostlineError, NoSpace
from oplog.kinds import Moved
from tiering.catalog.context import Context
from tiering.journal.records import MoveState, NewMove
from tiering.policy.plan import Move
from tiering.table.part import Part
from tiering.table.schema import TableDefinition

_CANCEL_POLL_SECONDS = 0.5


class Stopped(Exception):
    """The part gives up between two steps: cancelled, or the process is to stop."""

    def __init__(self, state: MoveState, why: str) -> None:
        super().__init__(why)
        self.state = state
        self.why = why


class MoveItem:
    """One move under way."""

    def __init__(self, move_id: int, move: Move, definition: TableDefinition | None) -> None:
        self.id = move_id
        self.move = move
        self.definition = definition
        self.directory = "" if definition is None else definition.part_directory(move.part)
        self.part: Part | None = None
        self.part_bytes = b""
        self.local: str | None = None
        self.created: list[str] = []
        self.problem: Exception | None = None
        self.on_target = False
        self.requests = 0
        self.started = self.ended = 0.0
        self.lock = threading.Lock()

    @property
    def seconds(self) -> float:
        return round(max(0.0, self.ended - self.started), 3)


class Checkpoint:
    """Where moves stop between two steps: all of them, or those that somebody cancelled. Thread-safe."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._closed = False
        self._cancelled: set[int] = set()
        self._cancel_read = 0.0

    def close(self) -> None:
        """Let nothing pass any more."""
        self._closed = True

    def check(self, moving: MoveItem) -> None:
        """Raise `Stopped` when the process is to stop or this move was cancelled."""
        if self._closed or self._context.stop.is_set():
            raise Stopped("abandoned", "stopped; the next pass continues")
        now = time.monotonic()
        if now - self._cancel_read >= _CANCEL_POLL_SECONDS:
            self._cancel_read = now
            self._cancelled = self._context.journal.work.cancel_requests()
        if moving.id in self._cancelled:
            raise Stopped("cancelled", "cancelled")


class Queue:
    """Files that several threads copy: each takes the next one. An unexpected error leaves nothing to take."""

    def __init__(self, work: Sequence[tuple[MoveItem, int]]) -> None:
        self._work = iter(work)
        self._lock = threading.Lock()

    def take(self) -> tuple[MoveItem, int] | None:
        with self._lock:
            return next(self._work, None)

    @contextmanager
    def stopped_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self._lock:
                self._work = iter(())
            raise


class Reserved:
    """Space promised on the target for some parts, while the context lasts."""

    def __init__(self, context: Context, items: list[MoveItem]) -> None:
        self._context = context
        self._items = items
        self._stack = ExitStack()

    def take(self) -> str | None:
        """Why there is no space; None when it is promised."""
        target = self._items[0].move.target
        try:
            size = sum(part_of(item).size_bytes for item in self._items)
            self._stack.enter_context(self._context.reservations.reserve(target, size))
        except FrostlineError as error:
            if isinstance(error, NoSpace) or error.exit_code == 13:
                return error.message
            raise
        return None

    def __enter__(self) -> list[MoveItem]:
        return self._items

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def new_move(move: Move, actor: str) -> NewMove:
    return NewMove(
        table=move.table,
        table_uuid=move.table_uuid,
        part=move.part,
        source=move.source,
        target=move.target,
        bytes=move.bytes,
        reason_kind=move.reason.kind,
        reason_detail=move.reason.detail,
        actor=actor,
        keep_source=move.keep_source,
    )


def part_of(moving: MoveItem) -> Part:
    assert moving.part is not None
    return moving.part


def reason_of(items: list[MoveItem]) -> str:
    first = items[0].move.reason
    text = f"{first.kind}: {first.detail}"
    return text if len(items) == 1 else f"{text} (and {len(items) - 1} more)"


def arrival_of(items: list[MoveItem]) -> Moved:
    """What recovery needs when the journal is lost: where each part came from, and which sources stay."""
    sources: dict[str, list[str]] = {}
    for item in items:
        sources.setdefault(item.move.source, []).append(item.move.part)
    return Moved(
        table=items[0].move.table,
        sources={source: tuple(parts) for source, parts in sources.items()},
        kept=tuple(sorted(item.move.part for item in items if item.move.keep_source)),
    )
