"""Carrying out moves. The order of a move, and what a crash at each point leaves:

    journal: planned        nothing
    journal: copying        staged files on the target, which its own recovery or gc removes
    target: one commit      the part on both disks; the target's commit names the source      <- the commit point
    journal: committed      the same
    source: one commit      the part on the target
    journal: done           done

Parts of one table with one target share a batch: one commit on the target, one a source. A part that fails leaves its
batch; the others go on. `recover` finishes what has its commit on the target and abandons what has not. The journal's
states are `Outcomes`' to set, the staged files are `FileCopies`', the two commits are made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from disks.base import Disk, Transaction, existing
from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
from disks.kinds import as_disk
from oplog.errors import Conflict, FrostlineError, LeaseExpired, Locked, NotFound, Refused
from oplog.kinds import Moved
from tiering.catalog import blocks, reachability
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.move.file_copies import FileCopies, wait_for
from tiering.move.items import Checkpoint, MoveItem, Reserved, Stopped, arrival_of, new_move, reason_of
from tiering.move.outcomes import Outcomes
from tiering.move.recovery import finish_earlier, recover, still_on
from tiering.move.report import FailedMove, MovedPart, MoveReport, SkippedMove
from tiering.policy import cost
from tiering.policy.plan import Move
from tiering.table.part import PartName

__all__ = ["FailedMove", "MoveReport", "MovedPart", "SkippedMove", "execute", "recover"]


Barred = Callable[[Collection[str]], Mapping[str, str]]
"""Of parts that are about to be committed to their target, by name: why of those that must not be."""


def execute(
    context: Context, moves: Sequence[Move], *, required: Sequence[str] = (), barred: Barred | None = None
) -> MoveReport:
    """Carry out the moves, as batches of one table and target, in the order given within each. `required`: files that
    must be on the target when parts are committed to it; where one is gone, they fail. `barred` is asked right before:
    what it names is skipped.

    Never raises for a single part: the report says what moved, failed (with the error) and was skipped (and why).
    """
    if not moves:
        return MoveReport()
    with context.journal.file.rescue():
        to_do, ended = finish_earlier(context, moves)
        report = MoveReport.of(ended)
        for once in _each_once(to_do):
            report += _execute(context, once, required, barred)
        if not to_do:
            context.catalog.refresh_later()
    return report


def _each_once(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """The moves in turns, in none of which a part is twice: its copies go one after the other."""
    turns: list[list[Move]] = []
    counts: Counter[tuple[str, str]] = Counter()
    for move in moves:
        key = move.table_uuid, move.part
        if counts[key] == len(turns):
            turns.append([])
        turns[counts[key]].append(move)
        counts[key] += 1
    yield from turns


def _execute(context: Context, moves: Sequence[Move], required: Sequence[str], barred: Barred | None) -> MoveReport:
    tables = {table.uuid: table for table in context.catalog.tables()}
    ids = context.journal.work.plan_moves(new_move(move, context.actor) for move in moves)
    items = [MoveItem(move_id, move, tables.get(move.table_uuid)) for move_id, move in zip(ids, moves, strict=True)]
    batches = cost.batches(items, lambda moving: moving.move)
    workers = max(1, context.workers)
    total = sum(move.bytes for move in moves)
    with ExitStack() as stack:
        task = stack.enter_context(context.progress.task("moving parts", items=len(moves), size_bytes=total))
        pool = None  # one worker stays in this thread: the order of effects is then always the same
        if workers > 1:
            pool = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="move-file"))
        outcomes, checkpoint = Outcomes(context.journal.work, task), Checkpoint(context)
        copies = FileCopies(context, outcomes, checkpoint, pool)
        mover = _BatchMover(context, outcomes, checkpoint, copies, required, barred)
        try:
            if pool is not None and len(batches) > 1 and _independent(moves):
                # One copies while another commits and a third is taken off its source.
                lanes = stack.enter_context(ThreadPoolExecutor(3, thread_name_prefix="move-batch"))
                wait_for([lanes.submit(mover.move, batch) for batch in batches])
            else:
                for batch in batches:
                    mover.move(batch)
        except BaseException:
            checkpoint.close()  # the pools wait for their queues when they close: let these empty at once
            raise
    context.catalog.refresh_later()
    return outcomes.report(ids)


class _BatchMover:
    """Brings batches to their target and takes them off their sources: claims, looks and the two commits."""

    def __init__(
        self,
        context: Context,
        outcomes: Outcomes,
        checkpoint: Checkpoint,
        copies: FileCopies,
        required: Sequence[str],
        barred: Barred | None,
    ) -> None:
        self.context = context
        self.outcomes = outcomes
        self.checkpoint = checkpoint
        self.copies = copies
        self.required = tuple(required)
        self.barred = barred

    def move(self, items: list[MoveItem]) -> None:
        """Carry out one batch. Only what no part can be blamed for is raised."""
        items = [item for item in items if self._may_start(item)]
        if not items:
            return
        uuid = items[0].move.table_uuid
        busy = self.context.journal.claimed(uuid)
        for item in items:
            if item.move.part in busy:
                self.outcomes.skip(item, "abandoned", f"in use by a {busy[item.move.part]}; the next pass tries again")
        items = self.outcomes.pending(items)
        with ExitStack() as stack:
            try:
                stack.enter_context(self.context.journal.claim(uuid, [item.move.part for item in items], "move"))
            except Locked as error:
                for item in items:
                    self.outcomes.skip(item, "abandoned", error.message)
                return
            self._look_at(self.outcomes.pending(items))
            copied = self._copy_and_commit(self.outcomes.pending(items))
            self._finish(copied)

    def _may_start(self, moving: MoveItem) -> bool:
        try:
            if moving.definition is None:
                raise Stopped("abandoned", f"table {moving.move.table} is gone")
            if (fault := reachability.fault_of(self.context, moving.definition)) is not None:
                raise Stopped("abandoned", fault.error.message)
            if moving.move.source == moving.move.target:
                raise Stopped("abandoned", f"the part is on {moving.move.target} already")
            part, move = PartName.parse(moving.move.part), moving.move
            if why := blocks.why_bound(self.context, moving.definition, part, move.source, move.target):
                raise Stopped("abandoned", why)
            self.checkpoint.check(moving)
            for name in (moving.move.source, moving.move.target):
                if self.context.disk(name).read_only and not (moving.move.keep_source and name == moving.move.source):
                    raise Stopped("abandoned", f"disk {name} is read-only")
        except Stopped as stopped:
            self.outcomes.skip(moving, stopped.state, stopped.why)
            return False
        except NotFound as error:
            self.outcomes.fail(moving, error)
            return False
        return True

    def _look_at(self, items: list[MoveItem]) -> None:
        if not items:
            return
        with ExitStack() as views:
            for name in sorted({moving.move.source for moving in items}):
                views.enter_context(self.context.disk(name).steady())
            try:
                there = existing(self.context.disk(items[0].move.target), (moving.directory for moving in items))
            except (FrostlineError, OSError) as error:
                for moving in items:
                    self.outcomes.fail(moving, error)
                return
            for moving in items:
                self.outcomes.guarded(moving, lambda moving: self._look(moving, on_target=moving.directory in there))

    def _look(self, moving: MoveItem, *, on_target: bool = True) -> None:
        """Read where the part is now: the plan may be old. `on_target`: whether the target may have it too."""
        source, target = self.context.disk(moving.move.source), self.context.disk(moving.move.target)
        try:
            moving.part, moving.part_bytes = copying.read_part(source, moving.directory)
        except NotFound:
            why = f"the part is not on {source.name} any more: merged, moved or dropped meanwhile"
            raise Stopped("abandoned", why) from None
        claim = self.context.catalog.claims_unproved(source.name, moving.directory)
        if claim is not None and as_disk(target, BucketDisk) is None:
            raise Refused(f"on {target.name} its claim would be believed: {claim}", hint="it stays where it is")
        moving.on_target = on_target and copying.is_complete(target, moving.directory, moving.part_bytes, proof=True)
        if not moving.on_target:
            moving.local = copying.local_directory(source, moving.directory)
            if moving.local is None:
                copying.check_files(source, moving.directory, moving.part)
            else:  # sizes and digests are checked as the files are read
                names = [file.name for file in moving.part.files]
                copying.check_names(source, moving.directory, names, source.list(moving.directory))

    def _copy_and_commit(self, items: list[MoveItem]) -> list[MoveItem]:
        """Bring the parts to the target; returns those that are there, durably."""
        there = [item for item in items if item.on_target]
        missing = [item for item in items if not item.on_target]
        self.outcomes.committed(there, None)
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
                self.outcomes.skip(item, "abandoned", problem)

    def _transfer(self, items: list[MoveItem]) -> list[MoveItem]:
        move = items[0].move
        target = self.context.disk(move.target)
        self.outcomes.copying(items)
        try:
            with target.transaction(
                arrival_of(items), reason=reason_of(items), actor=self.context.actor
            ) as transaction:
                self.copies.stage(items, transaction)
                self._bar(self.outcomes.pending(items), transaction)
                copied = self.outcomes.pending(items)
                if not copied:
                    return []
                definition = copied[0].definition
                assert definition is not None
                present = (definition.path, *self.required)
                absent = (*definition.barred_by, *(item.directory for item in copied))
                transaction.require(present=present, absent=absent)
                revision = self._commit(transaction, target, copied)
        except Conflict as error:
            return self._one_by_one(items, error)
        except (FrostlineError, OSError) as error:
            for item in self.outcomes.pending(items):
                self.outcomes.fail(item, error)
            return []
        self.outcomes.committed(copied, revision)
        return copied

    def _bar(self, items: list[MoveItem], transaction: Transaction) -> None:
        """Take out of the transaction what must not be committed any more."""
        reasons = self.barred([item.move.part for item in items]) if self.barred is not None and items else {}
        for item in items:
            if item.move.part in reasons:
                for path in item.created:
                    transaction.remove(path)
                self.outcomes.skip(item, "abandoned", reasons[item.move.part])

    def _one_by_one(self, items: list[MoveItem], error: Conflict) -> list[MoveItem]:
        """Somebody else created one of the parts on the target: find out which by moving each alone."""
        done = []
        for item in self.outcomes.pending(items):
            if len(items) == 1:
                self.outcomes.fail(item, self._why_refused(item, error))
                continue
            item.created = []
            self.outcomes.guarded(item, self._look)
            if self.outcomes.pending([item]):
                done += self._copy_and_commit([item])
        return done

    def _why_refused(self, moving: MoveItem, error: Conflict) -> FrostlineError:
        """Of a part whose table is another one by now, that it is."""
        definition, move = moving.definition, moving.move
        if definition is None or not any(map(self.context.disk(move.target).exists, definition.barred_by)):
            return error
        return Conflict(
            f"part {move.part} was not moved to {move.target}: {definition.full_name} was made a replicated table "
            f"meanwhile, and its replicas move its parts; run 'frostline replica sync {definition.full_name}', then the"
            " move again",
            hint="the replicas agree on who moves a part",
        )

    def _commit(self, transaction: Transaction, target: Disk, items: list[MoveItem]) -> int | None:
        """Commit; when the answer is an error, the target itself says whether it happened. Not when that wrote over
        what another machine has read: the source stays, and so does the error."""
        try:
            return transaction.commit()
        except (Conflict, LeaseExpired):
            raise
        except (FrostlineError, OSError):
            target.refresh()
            if (logged := as_disk(target, LoggedDisk)) is not None:
                logged.remember()
            if all(copying.is_complete(target, item.directory, item.part_bytes) for item in items):
                return target.revision
            raise

    def _finish(self, items: list[MoveItem]) -> None:
        """Take the parts off their sources: each is on the target, whole and durable."""
        done = [item for item in items if item.move.keep_source]
        self._list_copies(done)
        by_source: dict[str, list[MoveItem]] = {}
        for item in items:
            if not item.move.keep_source:
                by_source.setdefault(item.move.source, []).append(item)
        for name, group in by_source.items():
            try:
                gone = _remove_from(self.context.disk(name), group, self.context.actor)
                self._list_copies(gone)  # of a bucket: they did not come here for good, its log decides
            except (FrostlineError, OSError) as error:
                for item in group:
                    self.outcomes.fail_committed(item, error, still_on(name, error))
                continue
            done += group
        self.outcomes.done(done)

    def _list_copies(self, items: list[MoveItem]) -> None:
        """Of these this machine has copies that may become outdated, if the part is in a bucket."""
        self.context.journal.source_copies.add(
            (item.move.table_uuid, item.move.part)
            for item in items
            if any(self.context.disk(name).capabilities.shared for name in (item.move.source, item.move.target))
        )


def _remove_from(disk: Disk, items: list[MoveItem], actor: str) -> list[MoveItem]:
    """One transaction that removes the parts. Returns those that somebody else had removed already."""
    target = items[0].move.target
    reason = f"moved to {target}"
    present = items
    for _ in range(3):
        try:
            with disk.transaction(Moved(moved_to=target), reason=reason, actor=actor) as transaction:
                for item in present:
                    transaction.remove(item.directory)
                transaction.commit()
                return [item for item in items if item not in present]
        except Conflict:
            disk.refresh()
        present = [item for item in items if disk.list(item.directory)]
        if not present:
            return items
    raise Conflict(f"the parts on {disk.name} keep changing", hint="run the command again")


def _independent(moves: Sequence[Move]) -> bool:
    """Whether batches may run side by side: no move waits for the space another one frees."""
    return not {move.source for move in moves} & {move.target for move in moves}
