"""Doing what is in a replica's queue, in its order.

What cannot be done now stays with its reason, and so does what comes after it and meets its blocks; after another
definition, all parts. A drop waits for nothing before it: what brings parts that it takes away is not done any more.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from disks.base import LoggedDisk
from oplog.errors import AlreadyExists, Conflict, FrostlineError, Locked, Transient
from tiering.catalog.catalog import StoredPart
from tiering.catalog.lineage import content_digest
from tiering.merge import merger
from tiering.merge.merger import Agreed
from tiering.merge.output import MergeResult
from tiering.table.part import Part, PartName, apart
from zerocopy.execution import altering, dropping, giving_up, sharing_moves
from zerocopy.execution.queue import Queued, pull, queue
from zerocopy.replica import entries, shared
from zerocopy.replica.entries import Alter, DropRange, Entry, Get, Merge
from zerocopy.replica.fetching import Fetcher, part_here
from zerocopy.replica.replica import Replica
from zerocopy.replica.sharing import AT_ONCE


@dataclass(frozen=True, slots=True)
class Postponed:
    """An entry that could not be done now, and why."""

    queued: Queued
    reason: str


@dataclass(slots=True)
class Done:
    """What one run over the queue did."""

    pulled: int = 0
    fetched: list[str] = field(default_factory=list)
    merged: list[MergeResult] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    altered: int = 0
    """The version of the definition that came; 0 for none."""
    skipped: int = 0
    """Entries that needed nothing: the part was there, or in a larger one."""
    postponed: list[Postponed] = field(default_factory=list)
    adopted: list[str] = field(default_factory=list)
    """Those of the fetched parts that came without their bytes: their objects are shared."""
    whole: dict[str, str] = field(default_factory=dict)
    """Those that came with them though this machine shares objects with others, and why."""
    cloned: str = ""
    """The replica whose parts this one, which was lost, took over."""
    freed: list[str] = field(default_factory=list)
    """Parts that went off this machine's disks: they are on the shared one."""


class _Differs(Conflict):
    """A merge made other bytes here than elsewhere."""


def execute(replica: Replica, *, stopped: Callable[[], bool], log: Sequence[str] | None = None) -> Done:
    """Do what is in the queue, as far as it can be done now; `log` as of `pull`. Raises `Locked` when another process
    is at it."""
    with replica.context.journal.claim(replica.definition.uuid, ["replica-queue"], "replica"):
        done = Done(pulled=pull(replica, log))
        if waiting := queue(replica):
            fetcher = Fetcher(replica)
            try:
                _QueueRun(replica, fetcher, replica.parts(), done).all(waiting, stopped)
            finally:
                done.adopted = fetcher.adopted
                done.whole = {part: why for part, why in fetcher.whole.items() if part in done.fetched}
        replica.say_lag()
        _note(replica, done)
        return done


def _note(replica: Replica, done: Done) -> None:
    """For whoever looks at the replica: what waits and why, and what came whole."""
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

    replica: Replica
    fetcher: Fetcher
    own: set[PartName]
    done: Done
    came: set[str] = field(default_factory=set)
    """The entries whose parts were taken over with others at once."""

    def all(self, waiting: list[Queued], stopped: Callable[[], bool]) -> None:
        """Each entry in turn; one that cannot be done does not keep those of other blocks back."""
        self.replica.context.catalog.refresh()
        held: list[PartName] = []
        is_older = False
        drops = [(place, one.entry) for place, one in enumerate(waiting) if isinstance(one.entry, DropRange)]
        asked = 0
        for place, queued in enumerate(waiting):
            if stopped():
                return
            if place >= asked and isinstance(queued.entry, Get) and not is_older:
                run = list(itertools.takewhile(lambda one: isinstance(one.entry, Get), waiting[place:]))
                asked = place + len(run)
                later = [drop for at, drop in drops if at > place]
                self._together([one for one in run if not any(_drops(drop, one.name) for drop in later)], held, stopped)
            if queued.node in self.came:
                continue
            if isinstance(queued.entry, DropRange):
                held += self._drop(queued, queued.entry)
                continue
            if isinstance(queued.entry, Alter):
                is_older = not self._alter(queued, queued.entry) or is_older
                continue
            name = queued.name
            later_on = [drop for at, drop in drops if at > place]
            if any(_drops(later, name) for later in later_on) or giving_up.is_void(queued.entry, later_on):
                self._finish(queued)
                continue
            if is_older or any(_meet(name, other) for other in held):
                what = "definition of the table" if is_older else "entry of the same blocks"
                self.done.postponed.append(Postponed(queued, f"it waits for an earlier {what}"))
                held.append(name)
                continue
            try:
                self._one(queued, name)
            except (FrostlineError, OSError) as error:
                if self._came_to_nothing(name, waiting[place + 1 :]):
                    self._finish(queued)
                    continue
                self.done.postponed.append(Postponed(queued, getattr(error, "message", str(error))))
                held.append(name)

    def _together(self, run: list[Queued], held: list[PartName], stopped: Callable[[], bool]) -> None:
        """Take over what lies in a bucket that this machine shares, many parts at once: those of which nothing is here
        or waits. What does not come so is left to be fetched one by one."""
        if shared.disk_of(self.replica.context, self.replica.definition) is not None:
            return
        stored = self.replica.context.catalog.parts(self.replica.definition, include_outdated=True)
        free = apart((one.name for one in run), [*self.own, *held, *(one.name for one in stored)])
        by_replica: dict[str, list[Queued]] = defaultdict(list)
        for queued in run:
            if isinstance(queued.entry, Get) and queued.name in free:
                by_replica[queued.entry.replica].append(queued)
        for name, some in by_replica.items():
            if stopped():
                return
            portion = {str(one.name): one for one in some}
            digests = {part: one.entry.digest for part, one in portion.items() if isinstance(one.entry, Get)}
            parts = list(digests)
            groups = [parts[begin : begin + AT_ONCE] for begin in range(0, len(parts), AT_ONCE)]
            with closing(
                self.fetcher.adopt(name, [{part: digests[part] for part in group} for group in groups])
            ) as taken:
                for came in taken:
                    self.replica.register_all({part: (digests[part], portion[part].node) for part in came})
                    self.own |= {portion[part].name for part in came}
                    self.came |= {portion[part].node for part in came}
                    self.done.fetched += came
                    if stopped():
                        return

    def _came_to_nothing(self, name: PartName, later: list[Queued]) -> bool:
        """Whether a merge takes the part of which no row was left elsewhere: nobody has it, and nobody will."""
        merges = (one.entry for one in later if isinstance(one.entry, Merge))
        taking = (entry.output for entry in merges if PartName.parse(entry.output).covers(name))
        return any(is_empty(self.replica, output) for output in taking)

    def _one(self, queued: Queued, name: PartName) -> None:
        if name in self.own or any(part.covers(name) for part in self.own):
            self._finish(queued)
            return
        here = part_here(self.replica, name) or shared.covering(self.replica, name)
        if here is not None:  # on the shared disk, or killed between the commit and the word
            self._check(here, queued.entry)
            self._register(here.name, content_digest(here.part), queued.node)
            self.done.skipped += 1
        elif isinstance(queued.entry, Merge) and self._can_merge(queued.entry):
            disk = self._bucket_of(queued.entry)
            if disk is None and self._is_large(queued.entry):
                self._merge_for_all(queued, queued.entry, name)
            elif disk is None:
                self._merge(queued, queued.entry, name)
            else:
                self._merge_in_bucket(queued, queued.entry, name, disk)
        else:
            self._fetch(queued, name)

    def _alter(self, queued: Queued, entry: Alter) -> bool:
        """Whether this machine's disks have the definition now."""
        try:
            altering.catch_up(self.replica, entry.reason)
        except (FrostlineError, OSError) as error:
            self.done.postponed.append(Postponed(queued, getattr(error, "message", str(error))))
            return False
        self.replica.finish(queued.node)
        self.done.altered = self.replica.definition.version
        return True

    def _drop(self, queued: Queued, entry: DropRange) -> tuple[PartName, ...]:
        """What meets these blocks waits, when it could not be done."""
        try:
            gone = dropping.execute(self.replica, entry)
        except (FrostlineError, OSError) as error:
            self.done.postponed.append(Postponed(queued, getattr(error, "message", str(error))))
            return entry.touches
        self.own -= gone
        self.replica.finish(queued.node)
        self.done.dropped += map(str, sorted(gone))
        return ()

    def _finish(self, queued: Queued) -> None:
        self.replica.finish(queued.node)
        self.done.skipped += 1

    def _check(self, here: StoredPart, entry: Entry) -> None:
        """Raise `Conflict` where the part is not the one that was inserted, or on the shared disk not the one that
        Keeper knows."""
        if isinstance(entry, Get) and entry.part == here.facts.name and entry.digest != content_digest(here.part):
            raise Conflict(
                f"part {here.facts.name} is another one here than the one that was inserted on {entry.replica}",
                hint="'frostline replica restore' sets this one aside and fetches that one",
            )
        if not self.replica.context.disk(here.disk).capabilities.shared:
            return
        known = {source.digest for source in self.fetcher.registered(here.name)}
        known |= {entry.digest} if isinstance(entry, Get) and entry.part == here.facts.name else set()
        if known != {content_digest(here.part)}:
            raise Conflict(
                f"part {here.facts.name} on {here.disk} is not the one that the replicas agreed upon",
                hint="run 'frostline fsck --read-data'; who wrote to the bucket besides?",
            )

    def _fetch(self, queued: Queued, name: PartName) -> None:
        if isinstance(queued.entry, Merge) and is_empty(self.replica, str(name)):
            self._vanish(queued, queued.entry, name)
            return
        entry = queued.entry
        came = self.fetcher.fetch(name, (entry.replica, entry.digest) if isinstance(entry, Get) else None)
        here = part_here(self.replica, came)
        assert here is not None
        self._register(came, content_digest(here.part), queued.node)
        self.done.fetched.append(str(came))

    def _can_merge(self, entry: Merge) -> bool:
        """Whether this machine merges, all inputs are here, and Keeper knows that they are."""
        if not self.replica.context.config.replicas.merges and self.replica.others():
            return False
        names = [PartName.parse(name) for name in entry.inputs]
        return all(name in self.own and part_here(self.replica, name) is not None for name in names)

    def _is_large(self, entry: Merge) -> bool:
        inputs = [part_here(self.replica, PartName.parse(text)) for text in entry.inputs]
        size_bytes = sum(stored.part.size_bytes for stored in inputs if stored is not None)
        return size_bytes > self.replica.context.config.replicas.merge_once_bytes

    def _merge_for_all(self, queued: Queued, entry: Merge, name: PartName) -> None:
        """One replica makes the part, the others fetch it; when its session ends before it is done, or nobody gives the
        part, another one makes it. Raises `Locked` while one is at it."""
        keeper, table = self.replica.keeper, self.replica.table
        if keeper.exists(table.output(str(name))):
            with suppress(Transient):
                self._fetch(queued, name)
                return
        node = table.merging(str(name))
        keeper.make_path(table.all_merging)
        try:
            keeper.create(node, self.replica.token.encode(), ephemeral=True)
        except AlreadyExists:
            raise Locked("another replica makes it, once for all", hint="the next pass fetches it") from None
        try:
            self._merge(queued, entry, name)
        finally:
            with suppress(FrostlineError):  # it goes with the session
                keeper.delete(node)

    def _bucket_of(self, entry: Merge) -> LoggedDisk | None:
        """The disk on which all inputs are, if others share its objects."""
        inputs = [part_here(self.replica, PartName.parse(text)) for text in entry.inputs]
        names = {stored.disk for stored in inputs if stored is not None}
        logged = self.replica.context.disk(names.pop()).logged if len(names) == 1 else None
        return logged if logged is not None and logged.marks is not None else None

    def _merge_in_bucket(self, queued: Queued, entry: Merge, name: PartName, disk: LoggedDisk) -> None:
        """One replica makes the part there, the others take its objects over. Raises `Locked` while another one is at
        it."""
        place = sharing_moves.SharedPlace.of(self.replica, disk)
        claimed, words = sharing_moves.claim(self.replica, place, [str(name)])
        if claimed:
            try:
                self._merge(queued, entry, name, on=disk.name)
            finally:
                there = disk.exists(self.replica.definition.part_directory(str(name)))
                sharing_moves.say(self.replica, place, claimed, claimed if there else set())
            return
        word = words.get(str(name))
        if word is None or not word.done:
            who = f"replica {word.replica} merges" if word is not None else "somebody has merged"
            raise Locked(f"{who} it in the bucket, once for all", hint="the next pass takes it over")
        try:
            self._fetch(queued, name)
        except Transient:
            if word.replica not in self.replica.others():  # it was dropped, and so nobody may have it
                self.replica.keeper.delete(place.part(str(name)))
            raise

    def _merge(self, queued: Queued, entry: Merge, name: PartName, *, on: str = "") -> None:
        """Make the part as every replica makes it: by the entry's time and name. Where other bytes come out, what was
        made is thrown away, and the part is fetched."""
        replica = self.replica
        context = dataclasses.replace(replica.context, clock=lambda: entry.time)
        inputs = [stored for text in entry.inputs if (stored := part_here(replica, PartName.parse(text))) is not None]
        digests: list[str] = []

        def approve(part: Part) -> None:
            digest = content_digest(part) if part.rows else ""
            if not agree(replica, part.name, digest):
                raise _Differs(f"{part.name} has other bytes here than where it was made first", hint="it is fetched")
            digests.append(digest)

        agreed = Agreed(name, approve, on)
        try:
            result = merger.merge(context, replica.definition, inputs, reason=entry.reason, agreed=agreed)
        except _Differs:
            self._fetch(queued, name)
            return
        replica.context.catalog.refresh()
        if result.output is None:
            self._vanish(queued, entry, name)
        else:
            self._register(name, digests[0], queued.node)
        self.done.merged.append(result)

    def _vanish(self, queued: Queued, entry: Merge, name: PartName) -> None:
        """No row is left in what a merge makes: what goes into it goes."""
        blocks = (entries.whole_range(name.partition, name.min_block, name.max_block),)
        drop = DropRange(time=entry.time, replica=entry.replica, ranges=blocks, reason=entry.reason, by_ttl=True)
        self.own -= dropping.execute(self.replica, drop)
        self._finish(queued)

    def _register(self, name: PartName, digest: str, queued: str) -> None:
        covered = {part for part in self.own if name.covers(part)}
        self.replica.register(name, digest, covered, queued)
        self.own = (self.own - covered) | {name}


def agree(replica: Replica, part: str, digest: str) -> bool:
    """Whether the output of a merge is what whoever made it first has; who is first says what it is. Without rows it is
    nothing, and its digest is empty."""
    path = replica.table.output(part)
    try:
        replica.keeper.create(path, digest.encode())
    except AlreadyExists:
        return replica.keeper.get(path).data == digest.encode()
    return True


def is_empty(replica: Replica, part: str) -> bool:
    """Whether somebody has made this merge, and no row was left."""
    made = replica.keeper.find(replica.table.output(part))
    return made is not None and not made.data


def _meet(one: PartName, other: PartName) -> bool:
    return one.partition == other.partition and one.min_block <= other.max_block and other.min_block <= one.max_block


def _drops(entry: Entry, name: PartName) -> bool:
    return isinstance(entry, DropRange) and entry.drops(name)
