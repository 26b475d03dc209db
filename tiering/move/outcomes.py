"""The outcome of each move of one call: noted in the journal, then passed to observers, and kept for the report."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from disks.workers.progress import Task
from oplog.errors import FrostlineError
from tiering.journal.records import MoveState
from tiering.journal.work import WorkRecords
from tiering.move.items import MoveItem, Stopped
from tiering.move.report import FailedMove, MovedPart, MoveReport, SkippedMove

NOTE_BYTES, NOTE_SECONDS = 4 * 1024 * 1024, 0.25
"""Every so many bytes, and not more often than that, the journal gets the progress of copies: often enough to draw."""


class Outcomes:
    """Where the moves of one call stand. Each ends once; what comes after its end is not heard. Thread-safe."""

    def __init__(self, work: WorkRecords, task: Task) -> None:
        self._work = work
        self._task = task
        self._ended: dict[int, MovedPart | FailedMove | SkippedMove] = {}
        self._lock = threading.Lock()
        self._bytes: Counter[int] = Counter()
        self._untold: set[int] = set()
        self._untold_bytes, self._told = 0, 0.0

    def report(self, ids: Iterable[int]) -> MoveReport:
        """How these moves ended, in this order."""
        return MoveReport.of(self._ended[move_id] for move_id in ids)

    def pending(self, items: Iterable[MoveItem]) -> list[MoveItem]:
        """Those that have not ended."""
        return [item for item in items if item.id not in self._ended]

    # Steps

    def copying(self, items: Sequence[MoveItem]) -> None:
        """Files are staged on the target from here on."""
        self._work.set_moves([item.id for item in items], "copying")

    def copied(self, moving: MoveItem, size_bytes: int) -> None:
        """So much more of it is staged. The journal gets it now and then; a failure to note it does not matter."""
        self._task.advance(size_bytes=size_bytes)
        with self._lock:
            self._bytes[moving.id] += size_bytes
            self._untold.add(moving.id)
            self._untold_bytes += size_bytes
            if self._untold_bytes < NOTE_BYTES or time.monotonic() - self._told < NOTE_SECONDS:
                return
            news = {number: self._bytes[number] for number in self._untold}
            self._untold.clear()
            self._untold_bytes, self._told = 0, time.monotonic()
        with suppress(FrostlineError):
            self._work.note_bytes(news)

    def committed(self, items: Sequence[MoveItem], revision: int | None) -> None:
        """The target has the parts, durably: nothing may undo these moves any more."""
        changes = [
            (item.id, {"revision": revision, "seconds": item.seconds, "requests": item.requests}) for item in items
        ]
        self._work.set_moves_each(changes, "committed")

    # Ends

    def done(self, items: Sequence[MoveItem]) -> None:
        """The parts are off their sources, or stay there because somebody asked for it."""
        self._work.set_moves([item.id for item in items], "done")
        for item in items:
            self._end(item, MovedPart.of(item.move, item.seconds, item.requests, copied=not item.on_target))

    def skip(self, moving: MoveItem, state: MoveState, reason: str) -> None:
        """The move does not fit any more, was cancelled or has to wait."""
        if moving.id not in self._ended:
            self._work.set_move(moving.id, state, error=reason)
            self._end(moving, SkippedMove.of(moving.move, reason))

    def fail(self, moving: MoveItem, error: Exception) -> None:
        """The part stays where it was."""
        if moving.id not in self._ended:
            text = error.message if isinstance(error, FrostlineError) else str(error)
            self._work.set_move(moving.id, "failed", error=text)
            self._end(moving, FailedMove.of(moving.move, error))

    def fail_committed(self, moving: MoveItem, error: Exception, text: str) -> None:
        """The part is on both disks. The journal goes on saying committed: the next start finishes the move."""
        self._end(moving, FailedMove.of(moving.move, error, text=text))

    def guarded(self, moving: MoveItem, step: Callable[[MoveItem], None]) -> None:
        """Run a step for one part; its failure is the part's alone."""
        try:
            step(moving)
        except (FrostlineError, OSError, Stopped) as error:
            moving.problem = error
            self.end_by(moving, error)

    def end_by(self, moving: MoveItem, problem: Exception) -> None:
        """Skip or fail the move, as the problem is."""
        if isinstance(problem, Stopped):
            self.skip(moving, problem.state, problem.why)
        else:
            self.fail(moving, problem)

    def _end(self, moving: MoveItem, outcome: MovedPart | FailedMove | SkippedMove) -> None:
        self._ended[moving.id] = outcome
        self._task.advance(items=1)
        self._task.note(f"{moving.move.table} {moving.move.part}")
