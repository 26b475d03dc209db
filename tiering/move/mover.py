"""Carrying out moves. The order of a move, and what a crash at each point leaves:

    journal: planned        nothing
    journal: copying        staged files on the target, which its own recovery or gc removes
    target: one commit      the part on both disks; the target's commit names the source      <- the commit point
    journal: committed      the same
    source: one commit      the part on the target
    journal: done           done

Parts of one table with one target share a batch: one commit on the target, one a source. A part that fails leaves its
batch; the others go on. `recover` finishes what has its commit on the target and abandons what has not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack

from disks.base import Disk, Transaction
from disks.workers.progress import Task
from oplog.errors import Conflict, FrostlineError, Locked, NotFound
from tiering.catalog import copying
from tiering.catalog.context import Context
from tiering.journal.records import MoveState
from tiering.move.items import MoveItem, Queue, Reserved, Stopped, details_of, new_move, part_of, reason_of
from tiering.move.recovery import recover
from tiering.move.report import FailedMove, MovedPart, MoveReport, SkippedMove
from tiering.policy import cost
from tiering.policy.plan import Move
from tiering.table.part import PART_FILE

__all__ = ["FailedMove", "MoveReport", "MovedPart", "SkippedMove", "execute", "recover"]

_CANCEL_POLL_SECONDS = 0.5


def execute(context: Context, moves: Sequence[Move]) -> MoveReport:
    """Carry out the moves, as batches of one table and target, in the order given within each.

    Never raises for a single part: the report says what moved, failed (with the error) and was skipped (and why).
    """
    return _Run(context).execute(moves) if moves else MoveReport()


class _Run:
    """One call of `execute`."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.journal = context.journal
        self.outcomes: dict[int, MovedPart | FailedMove | SkippedMove] = {}
        self.pool: ThreadPoolExecutor | None = None
        self.remote: dict[str, bool] = {}
        self.cancelled: set[int] = set()
        self.cancel_read = 0.0
        self.aborted = False
        self.task: Task

    def execute(self, moves: Sequence[Move]) -> MoveReport:
        tables = {table.uuid: table for table in self.context.catalog.tables()}
        ids = self.journal.plan_moves(new_move(move, self.context.actor) for move in moves)
        items = [MoveItem(move_id, move, tables.get(move.table_uuid)) for move_id, move in zip(ids, moves, strict=True)]
        batches = cost.batches(items, lambda item: item.move)
        workers = max(1, self.context.workers)
        total = sum(move.bytes for move in moves)
        with ExitStack() as stack:
            self.task = stack.enter_context(
                self.context.progress.task("moving parts", items=len(moves), size_bytes=total)
            )
            if workers > 1:  # one worker stays in this thread: the order of effects is then always the same
                self.pool = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="move-file"))
            try:
                self._all_batches(batches, stack, side_by_side=workers > 1 and len(batches) > 1 and _independent(moves))
            except BaseException:
                self.aborted = True  # the pools wait for their queues when they close: let these empty at once
                raise
        self.context.catalog.outdate()
        return MoveReport.of(self.outcomes[move_id] for move_id in ids)

    def _all_batches(self, batches: list[list[MoveItem]], stack: ExitStack, *, side_by_side: bool) -> None:
        """Three at a time, where no batch waits for another's space: one copies while another commits and a third is
        taken off its source."""
        if side_by_side:
            lanes = stack.enter_context(ThreadPoolExecutor(3, thread_name_prefix="move-batch"))
            _wait_for([lanes.submit(self._batch, batch) for batch in batches])
            return
        for batch in batches:
            self._batch(batch)

    # One batch

    def _batch(self, items: list[MoveItem]) -> None:
        items = [item for item in items if self._may_start(item)]
        if not items:
            return
        uuid = items[0].move.table_uuid
        busy = self.journal.claimed(uuid)
        for item in items:
            if item.move.part in busy:
                self._skip(item, "abandoned", f"in use by a {busy[item.move.part]}; the next pass tries again")
        items = self._open_items(items)
        with ExitStack() as stack:
            try:
                stack.enter_context(self.journal.claim(uuid, [item.move.part for item in items], "move"))
            except Locked as error:
                for item in items:
                    self._skip(item, "abandoned", error.message)
                return
            self._look_at(self._open_items(items))
            copied = self._copy_and_commit(self._open_items(items))
            self._finish(copied)

    def _may_start(self, item: MoveItem) -> bool:
        try:
            if item.definition is None:
                raise Stopped("abandoned", f"table {item.move.table} is gone")
            if item.move.source == item.move.target:
                raise Stopped("abandoned", f"the part is on {item.move.target} already")
            self._checkpoint(item)
            for name in (item.move.source, item.move.target):
                if self.context.disk(name).read_only and not (item.move.keep_source and name == item.move.source):
                    raise Stopped("abandoned", f"disk {name} is read-only")
        except Stopped as stopped:
            self._skip(item, stopped.state, stopped.why)
            return False
        except NotFound as error:
            self._fail(item, error)
            return False
        return True

    def _look_at(self, items: list[MoveItem]) -> None:
        if not items:
            return
        with ExitStack() as views:
            for name in sorted({item.move.source for item in items}):
                views.enter_context(self.context.disk(name).steady())
            try:
                there = self.context.disk(items[0].move.target).existing(item.directory for item in items)
            except (FrostlineError, OSError) as error:
                for item in items:
                    self._fail(item, error)
                return
            for item in items:
                self._guarded(item, lambda item: self._look(item, on_target=item.directory in there))

    def _look(self, item: MoveItem, *, on_target: bool = True) -> None:
        """Read where the part is now: the plan may be old. `on_target`: whether the target may have it too."""
        source, target = self.context.disk(item.move.source), self.context.disk(item.move.target)
        try:
            item.part, item.part_bytes = copying.read_part(source, item.directory)
        except NotFound:
            why = f"the part is not on {source.name} any more: merged, moved or dropped meanwhile"
            raise Stopped("abandoned", why) from None
        item.on_target = on_target and copying.is_complete(target, item.directory, item.part_bytes, proof=True)
        if not item.on_target:
            item.local = copying.local_directory(source, item.directory)
            if item.local is None:
                copying.check_files(source, item.directory, item.part)
            else:  # sizes and digests are checked as the files are read
                copying.check_names(source, item.directory, item.part, source.list(item.directory))

    def _copy_and_commit(self, items: list[MoveItem]) -> list[MoveItem]:
        """Bring the parts to the target; returns those that are there, durably."""
        there = [item for item in items if item.on_target]
        missing = [item for item in items if not item.on_target]
        self._commit_in_journal(there, None)
        for group in self._with_space(missing):
            with group as fitting:
                there += self._transfer(fitting)
        return there

    def _with_space(self, items: list[MoveItem]) -> Iterator[Reserved]:
        """The batch with space promised for it; part by part when it does not fit as a whole."""
        if not items:
            return
        whole = Reserved(self.context, items)
        if whole.take() is None:
            yield whole
            return
        for item in items:
            single = Reserved(self.context, [item])
            problem = single.take()
            if problem is None:
                yield single
            else:
                self._skip(item, "abandoned", problem)

    def _transfer(self, items: list[MoveItem]) -> list[MoveItem]:
        move = items[0].move
        target = self.context.disk(move.target)
        self.journal.set_moves([item.id for item in items], "copying")
        try:
            with target.transaction(
                "move", reason=reason_of(items), actor=self.context.actor, details=details_of(items)
            ) as transaction:
                self._copy_files(items, transaction)
                copied = self._open_items(items)
                if not copied:
                    return []
                definition = copied[0].definition
                assert definition is not None
                transaction.require(present=(definition.path,), absent=tuple(item.directory for item in copied))
                revision = self._commit(transaction, target, copied)
        except Conflict as error:
            return self._one_by_one(items, error)
        except (FrostlineError, OSError) as error:
            for item in self._open_items(items):
                self._fail(item, error)
            return []
        self._commit_in_journal(copied, revision)
        return copied

    def _one_by_one(self, items: list[MoveItem], error: Conflict) -> list[MoveItem]:
        """Somebody else created one of the parts on the target: find out which by moving each alone."""
        done = []
        for item in self._open_items(items):
            if len(items) == 1:
                self._fail(item, error)
                continue
            item.created = []
            self._guarded(item, self._look)
            if self._open_items([item]):
                done += self._copy_and_commit([item])
        return done

    def _commit(self, transaction: Transaction, target: Disk, items: list[MoveItem]) -> int | None:
        """Commit; when the answer is an error, the target itself says whether it happened."""
        try:
            return transaction.commit()
        except Conflict:
            raise
        except (FrostlineError, OSError):
            target.refresh()
            if all(copying.is_complete(target, item.directory, item.part_bytes) for item in items):
                return target.revision
            raise

    def _commit_in_journal(self, items: list[MoveItem], revision: int | None) -> None:
        changes = [
            (item.id, {"revision": revision, "seconds": item.seconds, "requests": item.requests}) for item in items
        ]
        self.journal.set_moves_each(changes, "committed")

    def _finish(self, items: list[MoveItem]) -> None:
        """Take the parts off their sources: each is on the target, whole and durable."""
        done = [item for item in items if item.move.keep_source]
        by_source: dict[str, list[MoveItem]] = {}
        for item in items:
            if not item.move.keep_source:
                by_source.setdefault(item.move.source, []).append(item)
        for name, group in by_source.items():
            try:
                _remove_from(self.context.disk(name), group, self.context.actor)
            except (FrostlineError, OSError) as error:
                for item in group:
                    self._report_failure(
                        item, f"copied, but still on {name} as well: {error}; the next start removes it"
                    )
                continue
            done += group
        self.journal.set_moves([item.id for item in done], "done")
        for item in done:
            self._note(item, MovedPart.of(item.move, item.seconds, item.requests))

    # Files

    def _copy_files(self, items: list[MoveItem], transaction: Transaction) -> None:
        """Stage every file of every part, side by side; what fails is taken out of the transaction again.

        Without a read lease: the claims keep the files in place, and one that a drop of its table takes away fails its
        part. A lease would make the removals of every other batch wait for this one.
        """
        work = [(item, number) for item in items for number in range(len(part_of(item).files))]
        queue = Queue(work)
        if self.pool is None:
            self._copy_from(queue, transaction)
        else:  # one job a worker, not one a file: handing over a small file would cost as much as sending it
            hands = min(len(work), self.context.workers)
            _wait_for([self.pool.submit(self._copy_from, queue, transaction) for _ in range(hands)])
        for item in items:
            if item.problem is None:
                self._guarded(item, lambda item: self._stage_part_file(item, transaction))
            if item.problem is not None:
                for path in item.created:
                    transaction.remove(path)
                self._resolve(item, item.problem)

    def _copy_from(self, queue: Queue, transaction: Transaction) -> None:
        with queue.stopped_by_errors():
            while (work := queue.take()) is not None:
                self._copy_file(*work, transaction)

    def _copy_file(self, item: MoveItem, number: int, transaction: Transaction) -> None:
        if item.problem is not None:
            return
        file = part_of(item).files[number]
        path = f"{item.directory}/{file.name}"
        source = self.context.disk(item.move.source)
        try:
            self._checkpoint(item)
            with item.lock:
                item.started = item.started or time.monotonic()
            reads = copying.copy_file(source, path, file, transaction, lambda: self._checkpoint(item), item.local)
            with item.lock:
                item.created.append(path)
                item.ended = time.monotonic()
                item.requests += reads * self._is_remote(item.move.source) + self._is_remote(item.move.target)
            self.task.advance(size_bytes=file.size_bytes)
        except (FrostlineError, OSError, Stopped) as error:
            with item.lock:
                item.problem = item.problem or error

    def _is_remote(self, disk: str) -> bool:
        """Remembered: asking a disk for its capabilities may cost it a look at the file system."""
        if disk not in self.remote:
            self.remote[disk] = self.context.disk(disk).capabilities.remote
        return self.remote[disk]

    def _stage_part_file(self, item: MoveItem, transaction: Transaction) -> None:
        path = f"{item.directory}/{PART_FILE}"
        transaction.create(path, item.part_bytes)
        item.created.append(path)

    def _checkpoint(self, item: MoveItem) -> None:
        """Between steps: stop when the process is to stop or this move was cancelled."""
        if self.aborted or self.context.stop.is_set():
            raise Stopped("abandoned", "stopped; the next pass continues")
        now = time.monotonic()
        if now - self.cancel_read >= _CANCEL_POLL_SECONDS:
            self.cancel_read = now
            self.cancelled = self.journal.cancel_requests()
        if item.id in self.cancelled:
            raise Stopped("cancelled", "cancelled")

    # Outcomes

    def _guarded(self, item: MoveItem, step: Callable[[MoveItem], None]) -> None:
        """Run a step for one part; its failure is the part's alone."""
        try:
            step(item)
        except (FrostlineError, OSError, Stopped) as error:
            item.problem = error
            self._resolve(item, error)

    def _resolve(self, item: MoveItem, problem: Exception) -> None:
        if isinstance(problem, Stopped):
            self._skip(item, problem.state, problem.why)
        else:
            self._fail(item, problem)

    def _open_items(self, items: Iterable[MoveItem]) -> list[MoveItem]:
        return [item for item in items if item.id not in self.outcomes]

    def _skip(self, item: MoveItem, state: MoveState, reason: str) -> None:
        if item.id not in self.outcomes:
            self.journal.set_move(item.id, state, error=reason)
            self._note(item, SkippedMove.of(item.move, reason))

    def _fail(self, item: MoveItem, error: Exception) -> None:
        if item.id not in self.outcomes:
            text = error.message if isinstance(error, FrostlineError) else str(error)
            self.journal.set_move(item.id, "failed", error=text)
            self._report_failure(item, text)

    def _report_failure(self, item: MoveItem, text: str) -> None:
        self._note(item, FailedMove.of(item.move, text))

    def _note(self, item: MoveItem, outcome: MovedPart | FailedMove | SkippedMove) -> None:
        self.outcomes[item.id] = outcome
        self.task.advance(items=1)
        self.task.note(f"{item.move.table} {item.move.part}")


def _remove_from(disk: Disk, items: list[MoveItem], actor: str) -> None:
    """One transaction that removes the parts; what somebody else removed already is left out."""
    target = items[0].move.target
    reason = f"moved to {target}"
    present = [item.directory for item in items]
    for _ in range(3):
        try:
            with disk.transaction("move", reason=reason, actor=actor, details={"moved_to": target}) as transaction:
                for directory in present:
                    transaction.remove(directory)
                transaction.commit()
                return
        except Conflict:
            disk.refresh()
        present = [item.directory for item in items if disk.list(item.directory)]
        if not present:
            return
    raise Conflict(f"the parts on {disk.name} keep changing", hint="run the command again")


def _independent(moves: Sequence[Move]) -> bool:
    """Whether batches may run side by side: no move waits for the space another one frees."""
    return not {move.source for move in moves} & {move.target for move in moves}


def _wait_for(futures: list[Future[None]]) -> None:
    """Wait for all; the first unexpected error cancels what has not begun and is raised."""
    _, waiting = wait(futures, return_when=FIRST_EXCEPTION)
    for future in waiting:
        future.cancel()
    wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()
