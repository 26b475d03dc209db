"""Doing what is in a replica's queue, as far as it can be done now.

Entries whose blocks do not meet are done side by side, the others in their order (`order`). What cannot be done now
stays with its reason, and so does what comes after it and meets its blocks; after another definition, all parts. A drop
waits for nothing that was not begun: what brings parts that it takes away is not done any more.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import FrostlineError
from tiering.catalog.catalog import StoredPart
from tiering.catalog.freshness import Freshness
from tiering.catalog.lineage import content_digest
from tiering.table.part import PartName, apart
from zerocopy.execution import altering, dropping, giving_up
from zerocopy.execution.order import QueueOrder
from zerocopy.execution.queue import Queued, pull, queue
from zerocopy.execution.steps import Done, LeftToAnother, Steps, is_empty
from zerocopy.replica import shared
from zerocopy.replica.bringing.fetching import Fetcher, Wider
from zerocopy.replica.bringing.landing import GroupCommit, Landed
from zerocopy.replica.entries import Alter, DropRange, Get, Merge
from zerocopy.replica.replica import Replica
from zerocopy.replica.sharing import AT_ONCE


def execute(replica: Replica, *, stopped: Callable[[], bool], log: Sequence[str] | None = None) -> Done:
    """Do what is in the queue, as far as it can be done now; `log` as of `pull`. Raises `Locked` when another process
    is at it."""
    with replica.context.journal.claim(replica.definition.uuid, ["replica-queue"], "replica"):
        done = Done(pulled=pull(replica, log))
        if waiting := queue(replica):
            fetcher = Fetcher(replica)
            order = QueueOrder(waiting, min(replica.context.config.replicas.entries_at_once, replica.context.workers))
            try:
                is_known = log is not None and all(map(_brings_what_is_new, waiting))
                _QueueRun(Steps(replica, fetcher, order, replica.parts(), done), stopped).all(is_read=is_known)
            finally:
                done.sort(waiting)
                done.adopted = fetcher.adopted
                done.whole = {part: why for part, why in fetcher.whole.items() if part in done.fetched}
        replica.say_lag()
        _note(replica, done)
        return done


def _brings_what_is_new(queued: Queued) -> bool:
    """Whether nothing that is here goes for the part that comes."""
    return isinstance(queued.entry, Get) and queued.name.level == 0


def _note(replica: Replica, done: Done) -> None:
    """Record the state of the replica: what waits and why, and what arrived whole."""
    journal, inserted = replica.context.journal.replicas, replica.kept.inserted
    waiting = [(one.queued, one.reason) for one in done.postponed]
    journal.note_failures(
        replica.definition.uuid,
        [(queued.node, queued.entry.brings, reason, inserted.get(queued.node)) for queued, reason in waiting],
    )
    journal.note_whole(replica.definition.uuid, done.whole)


@dataclass(slots=True)
class _QueueRun:
    """One run over the queue."""

    steps: Steps
    stopped: Callable[[], bool]
    _asked: set[str] = field(default_factory=set)
    """The entries that were asked for together with others."""
    _came: set[str] = field(default_factory=set)
    """The entries whose parts were taken over with others at once."""
    _being_done: set[Future[None]] = field(default_factory=set)
    _needless: list[Queued] = field(default_factory=list)
    """Entries that need not be done, and of which Keeper does not know that yet."""
    _alone: set[str] = field(default_factory=set)
    """The entries whose parts could not be committed with those of others."""
    _commits: GroupCommit[Queued] = field(init=False)

    def __post_init__(self) -> None:
        self._commits = GroupCommit(self._commit)

    def all(self, *, is_read: bool) -> None:
        """Each entry as soon as those it waits for are done; one that fails does not hold back entries of other blocks.
        Work in progress is finished when the process stops. `is_read`: the thread that follows the log has just
        read the disks, and an unchanged disk is not scanned."""
        replica = self.steps.replica
        if not is_read or shared.disk_of(replica.context, replica.definition) is not None:
            shared.refresh(replica.context, freshness=Freshness.CHANGES if is_read else Freshness.EVERY_FILE)
        with closing(self._commits), ThreadPoolExecutor(self.steps.order.at_once, "replica-queue") as pool:
            while True:
                ready = list(self._ready())
                alone = len(ready) == 1 and not self._being_done
                for queued in ready:
                    if alone:  # as most often: an insert has come
                        self._bring(queued)
                    else:
                        self._being_done.add(pool.submit(self._bring, queued))
                if not self._being_done:
                    if not ready:
                        return
                    continue
                done, self._being_done = wait(self._being_done, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()

    def _ready(self) -> list[Queued]:
        """What is to be begun now; what takes no time is done."""
        found: list[Queued] = []
        with self.steps.turn:
            while not self.stopped() and (queued := self.steps.order.take()) is not None:
                if queued.node in self._came:  # with an earlier one, and Keeper has the answer
                    self.steps.order.end(queued)
                elif self._is_needless(queued):
                    self.steps.order.end(queued)
                    self._needless.append(queued)
                elif self._is_to_be_brought(queued):
                    found.append(queued)
            self._finish_needless()
        return found

    def _is_needless(self, queued: Queued) -> bool:
        """Whether a later drop takes what it brings away, or it is here already, in a larger part too."""
        order = self.steps.order
        if isinstance(queued.entry, DropRange | Alter):
            return False
        return self._is_void(queued, order.drops_after(queued)) or (
            not order.why_held(queued) and self.steps.has(queued.name)
        )

    def _finish_needless(self) -> None:
        """Say of those found so far that they need not be done, together: before what makes them needless may go."""
        self.steps.finish_all(self._needless)
        self._needless.clear()

    def _is_to_be_brought(self, queued: Queued) -> bool:
        steps, order, entry = self.steps, self.steps.order, queued.entry
        if isinstance(entry, DropRange):
            self._drop(queued, entry)
        elif isinstance(entry, Alter):
            self._alter(queued, entry)
        elif why := order.why_held(queued):
            steps.postpone(queued, why, "held")
        else:
            if isinstance(entry, Get):
                self._together(queued)
            if queued.node not in self._came:
                return True
            order.end(queued)
        return False

    def _is_void(self, queued: Queued, later: Sequence[DropRange]) -> bool:
        return any(drop.drops(queued.name) for drop in later) or giving_up.is_void(queued.entry, later)

    def _bring(self, queued: Queued) -> None:
        steps = self.steps
        try:
            landed = steps.bring(queued, queued.name)
        except Wider:
            with steps.turn:
                steps.order.put_back(queued)
        except (FrostlineError, OSError) as error:
            self._fail(queued, error)
        else:
            if landed is not None:
                self._land(queued, landed)

    def _land(self, queued: Queued, landed: Landed) -> None:
        with self.steps.turn:
            self.steps.order.land(queued)
        # What goes to a bucket goes up while it is staged: side by side, each by a commit of its own.
        is_local = as_disk(self.steps.replica.context.disk(landed.disk), LoggedDisk) is None
        self._commits.add(queued, landed, alone=not is_local or queued.node in self._alone)

    def _commit(self, group: list[tuple[Queued, Landed]]) -> None:
        steps = self.steps
        try:
            steps.commit(group)
        except (FrostlineError, OSError) as error:
            if len(group) == 1:
                self._fail(group[0][0], error)
                return
            with steps.turn:  # one may be what is wrong: each is brought by itself
                for queued, _ in group:
                    self._alone.add(queued.node)
                    steps.order.put_back(queued)

    def _fail(self, queued: Queued, error: FrostlineError | OSError) -> None:
        steps = self.steps
        reason, is_over = getattr(error, "message", str(error)), False
        kind: Literal["failed", "left"] = "left" if isinstance(error, LeftToAnother) else "failed"
        with steps.turn:
            try:
                is_over = self._came_to_nothing(queued)
            except FrostlineError as more:
                reason, kind = f"{reason}; {more.message}", "failed"
            if is_over:
                steps.finish(queued)
            else:
                steps.postpone(queued, reason, kind)

    def _together(self, first: Queued) -> None:
        """Take over what lies in a bucket that this machine shares, of this entry and those like it that follow, many
        parts at once: those of which nothing is here or waits. What does not come so is left to be brought one by
        one."""
        steps, replica = self.steps, self.steps.replica
        disk = shared.disk_of(replica.context, replica.definition)
        if first.node in self._asked or (disk is None and not steps.fetcher.shares()):
            return
        run = [first, *itertools.takewhile(lambda queued: isinstance(queued.entry, Get), steps.order.later(first))]
        self._asked.update(queued.node for queued in run)
        drops = steps.order.drops_after(first)
        remaining = [queued for queued in run if not any(drop.drops(queued.name) for drop in drops)]
        stored = replica.context.catalog.parts(replica.definition, include_outdated=True)
        elsewhere = [part.name for part in stored if disk is None or part.disk != disk.name]
        free = apart((queued.name for queued in remaining), [*steps.own, *steps.order.busy_beside(first), *elsewhere])
        remaining = [queued for queued in remaining if queued.name in free]
        if disk is not None:
            self._say_shared(remaining, {part.name: part for part in stored if part.disk == disk.name})
            return
        by_replica: dict[str, list[Queued]] = defaultdict(list)
        for queued in remaining:
            if isinstance(queued.entry, Get):
                by_replica[queued.entry.replica].append(queued)
        for name, some in by_replica.items():
            if self.stopped():
                return
            self._adopt(name, some)

    def _say_shared(self, waiting: Sequence[Queued], there: Mapping[PartName, StoredPart]) -> None:
        """Say of the parts on the shared disk that this replica has them, where they are those that were agreed upon:
        another version of a part waits for its turn."""
        steps = self.steps
        present = [queued for queued in waiting if queued.name in there]
        said = steps.fetcher.digests([queued.name for queued in present])
        parts: dict[str, tuple[str, str]] = {}
        for queued in present:
            digest = content_digest(there[queued.name].part)
            if isinstance(queued.entry, Get) and said[queued.name] | {queued.entry.digest} == {digest}:
                parts[str(queued.name)] = (digest, queued.node)
        steps.replica.register_all(parts)
        steps.own |= set(map(PartName.parse, parts))
        self._came |= {node for _, node in parts.values()}
        steps.done.skipped += len(parts)

    def _adopt(self, name: str, some: Sequence[Queued]) -> None:
        steps = self.steps
        portion = {str(one.name): one for one in some}
        digests = {part: one.entry.digest for part, one in portion.items() if isinstance(one.entry, Get)}
        parts = list(digests)
        groups = [parts[begin : begin + AT_ONCE] for begin in range(0, len(parts), AT_ONCE)]
        with closing(steps.fetcher.adopt(name, [{part: digests[part] for part in group} for group in groups])) as taken:
            for came in taken:
                steps.replica.register_all({part: (digests[part], portion[part].node) for part in came})
                steps.own |= {portion[part].name for part in came}
                self._came |= {portion[part].node for part in came}
                steps.done.fetched += came
                if self.stopped():
                    return

    def _came_to_nothing(self, queued: Queued) -> bool:
        """Whether a merge takes the part of which no row was left elsewhere: nobody has it, and nobody will."""
        merges = (one.entry for one in self.steps.order.later(queued) if isinstance(one.entry, Merge))
        taking = (entry.output for entry in merges if PartName.parse(entry.output).covers(queued.name))
        return any(is_empty(self.steps.replica, output) for output in taking)

    def _alter(self, queued: Queued, entry: Alter) -> None:
        """Nothing else is done meanwhile."""
        steps = self.steps
        try:
            altering.catch_up(steps.replica, entry.reason)
        except (FrostlineError, OSError) as error:
            steps.postpone(queued, getattr(error, "message", str(error)))
            return
        steps.replica.finish(queued.node)
        steps.order.end(queued)
        steps.done.altered = steps.replica.definition.version

    def _drop(self, queued: Queued, entry: DropRange) -> None:
        steps = self.steps
        self._finish_needless()
        try:
            gone = dropping.execute(steps.replica, entry)
        except (FrostlineError, OSError) as error:
            steps.postpone(queued, getattr(error, "message", str(error)))
            return
        steps.own -= gone
        steps.replica.finish(queued.node)
        steps.order.end(queued)
        steps.done.dropped += map(str, sorted(gone))
