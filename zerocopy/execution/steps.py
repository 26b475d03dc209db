"""Doing one entry of the queue that brings a part: it is here already, is merged here, or is fetched.

Several are done side by side. What each of them looks at and says, here and in Keeper, it does in its turn; bytes come,
and merges are made, meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.kinds import as_disk
from oplog.errors import AlreadyExists, Conflict, FrostlineError, Locked, Transient
from tiering.catalog.catalog import StoredPart
from tiering.catalog.lineage import content_digest
from tiering.merge import merger
from tiering.merge.merger import Agreed
from tiering.merge.output import MergeResult
from tiering.table.part import Part, PartName
from zerocopy.execution import dropping, sharing_moves
from zerocopy.execution.order import QueueOrder
from zerocopy.execution.queue import Queued
from zerocopy.replica import entries, shared
from zerocopy.replica.bringing import landing
from zerocopy.replica.bringing.fetching import Fetcher, part_here
from zerocopy.replica.bringing.landing import Landed
from zerocopy.replica.connections import connections
from zerocopy.replica.entries import DropRange, Entry, Get, Merge, MergeKeeping
from zerocopy.replica.nodes import changed_by_hand
from zerocopy.replica.replica import Replica

_MERGES_AT_ONCE = 2
"""Each takes memory."""


class LeftToAnother(Locked):
    """Another replica does it for all: nothing is wrong."""


class Postponed(msgspec.Struct, frozen=True):
    """An entry that could not be done now, and why."""

    queued: Queued
    reason: str
    kind: Literal["failed", "held", "left"] = "failed"
    """`held`: for an earlier entry, which says what is wrong, if anything is. `left`: for another replica's work."""


class Done(msgspec.Struct):
    """What one run over the queue did."""

    pulled: int = 0
    fetched: list[str] = msgspec.field(default_factory=list)
    merged: list[MergeResult] = msgspec.field(default_factory=list)
    dropped: list[str] = msgspec.field(default_factory=list)
    altered: int = 0
    """The version of the definition that came; 0 for none."""
    skipped: int = 0
    """Entries that needed nothing: the part was there, or in a larger one."""
    postponed: list[Postponed] = msgspec.field(default_factory=list)
    adopted: list[str] = msgspec.field(default_factory=list)
    """Those of the fetched parts that came without their bytes: their objects are shared."""
    whole: dict[str, str] = msgspec.field(default_factory=dict)
    """Those that came with them though this machine shares objects with others, and why."""
    cloned: str = ""
    """The replica whose parts this one, which was lost, took over."""
    set_aside: list[str] = msgspec.field(default_factory=list)
    """The parts that went to `detached/` then: no other replica knows them."""
    freed: list[str] = msgspec.field(default_factory=list)
    """Parts that went off this machine's disks: they are on the shared one."""

    def sort(self, waiting: Sequence[Queued]) -> None:
        """As the queue has them, whichever was done first."""
        position = {queued.node: number for number, queued in enumerate(waiting)}
        self.postponed.sort(key=lambda postponed: position[postponed.queued.node])
        self.fetched.sort(key=PartName.parse)
        self.merged.sort(key=lambda merge: PartName.parse(merge.inputs[0]))


class _Differs(Conflict):
    """A merge made other bytes here than elsewhere."""


class Steps(msgspec.Struct):
    """What one run over the queue does for its entries."""

    replica: Replica
    fetcher: Fetcher
    order: QueueOrder
    own: set[PartName]
    """What Keeper says that this replica has."""
    done: Done
    _merging: threading.Semaphore = msgspec.field(default_factory=lambda: threading.Semaphore(_MERGES_AT_ONCE))

    @property
    def turn(self) -> threading.RLock:
        """The lock for reading or changing the state."""
        return self.fetcher.turn

    def bring(self, queued: Queued, name: PartName) -> Landed | None:
        """Let this replica have the part, or one that covers it; what came of it and is to be committed, if anything.
        Raises `Wider` where that is to wait for others which are being done, and what else keeps it."""
        entry = queued.entry
        with self.turn:
            if self._is_here(queued, name):
                return None
            merge = entry if isinstance(entry, Merge) and self._can_merge(entry) else None
            disk = self._bucket_of(merge) if merge is not None else None
        if merge is None:
            return self._receive(queued, name)
        if self._is_left(queued, merge, name, is_shared=disk is not None):
            return None
        if disk is not None:
            with self.turn:
                self._merge_in_bucket(queued, merge, name, disk)
        elif self._is_large(merge):
            self._merge_for_all(queued, merge, name)
        else:
            self._merge(queued, merge, name)
        return None

    def commit(self, group: Sequence[tuple[Queued, Landed]]) -> None:
        """Bring what landed into the table, and say that this replica has it. Where that fails nothing is done of any
        entry, in the order of work: starting it again finds what is here by then."""
        landing.commit(self.replica, [landed for _, landed in group])
        with self.turn:
            if len(group) == 1:
                ((queued, landed),) = group
                self._register(landed.source.part, landed.source.digest, queued)
            else:
                self._register_all(group)
            self.done.fetched += [landed.part.name for _, landed in group]

    def finish(self, queued: Queued) -> None:
        """It needs not be done."""
        self.replica.finish(queued.node)
        self.order.end(queued)
        self.done.skipped += 1

    def finish_all(self, ended: Sequence[Queued]) -> None:
        """The same of entries that are ended in the order already."""
        self.replica.finish_all([one.node for one in ended])
        self.done.skipped += len(ended)

    def has(self, name: PartName) -> bool:
        """Whether Keeper says that this replica has the part, or one that covers it."""
        return name in self.own or any(part.covers(name) for part in self.own)

    def postpone(self, queued: Queued, reason: str, kind: Literal["failed", "held", "left"] = "failed") -> None:
        """It cannot be done now."""
        self.order.postpone(queued)
        self.done.postponed.append(Postponed(queued, reason, kind))

    def _is_here(self, queued: Queued, name: PartName) -> bool:
        if self.has(name):
            self.finish(queued)
            return True
        here = part_here(self.replica, name) or shared.covering(self.replica, name)
        if here is None:
            return False
        self._check(here, queued.entry)  # on the shared disk, or killed between the commit and the word
        self._register(here.name, content_digest(here.part), queued)
        self.done.skipped += 1
        return True

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
                hint="run 'frostline fsck --read-data'; something other than Frostline may have written to the bucket",
            )

    def _fetch(self, queued: Queued, name: PartName) -> None:
        """Fetch the part, which others may wait for: by a commit of its own."""
        if (landed := self._receive(queued, name)) is not None:
            self.commit([(queued, landed)])

    def _receive(self, queued: Queued, name: PartName) -> Landed | None:
        entry = queued.entry
        with self.turn:
            if isinstance(entry, Merge) and is_empty(self.replica, str(name)):
                self._vanish(queued, entry, name)
                return None
        inserted = (entry.replica, entry.digest) if isinstance(entry, Get) else None
        came = self.fetcher.fetch(name, inserted, widen=partial(self.order.widen, queued))
        if isinstance(came, Landed):
            return came
        with self.turn:
            self._register(came.part, came.digest, queued)
            self.done.fetched.append(str(came.part))
        return None

    def _can_merge(self, entry: Merge) -> bool:
        """Whether this machine merges, all inputs are here, and Keeper knows that they are."""
        if not self.replica.context.config.replicas.merges and self.replica.others():
            return False
        names = [PartName.parse(name) for name in entry.inputs]
        return all(name in self.own and part_here(self.replica, name) is not None for name in names)

    def _inputs(self, entry: Merge) -> list[StoredPart]:
        found = (part_here(self.replica, PartName.parse(text)) for text in entry.inputs)
        return [stored for stored in found if stored is not None]

    def _is_large(self, entry: Merge) -> bool:
        with self.turn:
            size_bytes = sum(stored.part.size_bytes for stored in self._inputs(entry))
        return size_bytes > self.replica.context.config.replicas.merge_once_bytes

    def _is_left(self, queued: Queued, entry: Merge, name: PartName, *, is_shared: bool) -> bool:
        """Leave a large merge to the replicas that are named for it while one of them lives; whether its part came from
        there. Raises `LeftToAnother` until it is made, `Transient` where it was made and is not to be had now: it is
        not made here for that. What is made in a bucket that is shared is taken over as ever."""
        table = self.replica.table
        workers = self.replica.context.config.replicas.merge_workers
        if not workers or self.replica.name in workers or not self._is_large(entry):
            return False
        is_made = self._await(table.output(str(name)))
        living = next((one for one in workers if self._await(table.replica(one).is_active)), None)
        if living is None or (is_made and is_shared):
            return False
        left = LeftToAnother(
            f"replica {living} is to make it (replicas.merge_workers)", hint="this replica fetches it then"
        )
        if not is_made:
            raise left
        being_made = self._await(table.merging(str(name)))  # before the fetch: what ends meanwhile is heard of
        try:
            self._fetch(queued, name)
        except Transient:
            if being_made:
                raise left from None
            raise
        return True

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
            if not self._await(node):
                self._woken()
            raise LeftToAnother("another replica makes it, once for all", hint="the next pass fetches it") from None
        try:
            self._merge(queued, entry, name)
        finally:
            with suppress(FrostlineError):  # it goes with the session
                keeper.delete(node)

    def _await(self, node: str) -> bool:
        """Let the daemon look again when the node comes or goes, or says something else; whether it is there."""
        return self.replica.keeper.await_node(node, self._woken)

    def _woken(self) -> None:
        connections(self.replica.context).woken(self.replica.table.path)

    def _bucket_of(self, entry: Merge) -> LoggedDisk | None:
        """The disk on which all inputs are, if others share its objects."""
        names = {stored.disk for stored in self._inputs(entry)}
        logged = as_disk(self.replica.context.disk(names.pop()), LoggedDisk) if len(names) == 1 else None
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
            if word is not None and not self._await(place.part(str(name))):
                self._woken()
            who = f"replica {word.replica} merges" if word is not None else "another replica has merged"
            raise LeftToAnother(f"{who} it in the bucket, once for all", hint="the next pass takes it over")
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
        context = msgspec.structs.replace(replica.context, clock=lambda: entry.time)
        with self.turn:
            inputs = self._inputs(entry)
        digests: list[str] = []

        def approve(part: Part) -> None:
            digest = content_digest(part) if part.rows else ""
            if not agree(replica, part.name, digest):
                raise _Differs(f"{part.name} has other bytes here than where it was made first", hint="it is fetched")
            digests.append(digest)

        agreed = Agreed(name, approve, on)
        try:
            with self._merging:
                doubt = entry.clock_doubt if isinstance(entry, MergeKeeping) else ""
                result = merger.merge(
                    context, replica.definition, inputs, reason=entry.reason, clock_doubt=doubt, agreed=agreed
                )
        except _Differs:
            self._fetch(queued, name)
            return
        with self.turn:
            replica.context.catalog.refresh()
            if result.output is None:
                self._vanish(queued, entry, name)
            else:
                self._register(name, digests[0], queued)
            self.done.merged.append(result)

    def _vanish(self, queued: Queued, entry: Merge, name: PartName) -> None:
        """No row is left in what a merge makes: what goes into it goes."""
        blocks = (entries.whole_range(name.partition, name.min_block, name.max_block),)
        drop = DropRange(time=entry.time, replica=entry.replica, ranges=blocks, reason=entry.reason, by_ttl=True)
        self.own -= dropping.execute(self.replica, drop)
        self.finish(queued)

    def _register(self, name: PartName, digest: str, queued: Queued) -> None:
        covered = self._covered(name)
        self.replica.register(name, digest, covered, queued.node)
        self.order.end(queued)
        self.own = (self.own - covered) | {name}

    def _register_all(self, group: Sequence[tuple[Queued, Landed]]) -> None:
        covered = {landed.part.name: self._covered(landed.source.part) for _, landed in group}
        parts = {landed.part.name: (landed.source.digest, queued.node) for queued, landed in group}
        self.replica.register_all(parts, covered)
        self.replica.say_lag()
        for queued, landed in group:
            self.order.end(queued)
            self.own = (self.own - covered[landed.part.name]) | {landed.source.part}

    def _covered(self, name: PartName) -> set[PartName]:
        return {part for part in self.own if name.covers(part)}


def agree(replica: Replica, part: str, digest: str) -> bool:
    """Whether the output of a merge equals that of the first replica to make it; the first one records it. An output
    without rows is nothing, and its digest is empty."""
    path = replica.table.output(part)
    try:
        replica.keeper.create(path, digest.encode())
    except AlreadyExists:
        return replica.keeper.get(path).data == digest.encode()
    return True


def is_empty(replica: Replica, part: str) -> bool:
    """Whether somebody has made this merge, and no row was left. Raises `Damaged` where a replica has rows of it: what
    it was to be made of would be dropped for nothing."""
    path, name = replica.table.output(part), PartName.parse(part)
    made = replica.keeper.find(path)
    if made is None or made.data:
        return False
    others = replica.others()
    for other, parts in zip(
        others, replica.keeper.children_of_all([replica.table.replica(o).parts for o in others]), strict=True
    ):
        if any(one == part or PartName.parse(one).covers(name) for one in parts or ()):
            raise changed_by_hand(path, f"it says that {part} has no rows, and replica {other} has it")
    return True
