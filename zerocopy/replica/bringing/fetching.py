"""Bringing a part that another replica has to this one.

    the part's files   in the scratch directory of a transaction, compared with the digest in Keeper    nothing
    one commit         the part comes, and others that landed meanwhile: `landing`                      the part, unsaid
    word               one multi: parts/<part> comes, parts/<covered> and the queued entry go           done

A fetch that was killed after its commit finds the part here, and only says the word. Where the source has the part in a
store whose objects this machine shares, no bytes come: `sharing`.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from disks.base import Transaction
from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import make_directory
from disks.stores.wrappers.limit import Limiter
from oplog.errors import Conflict, Damaged, NotFound, Transient
from oplog.kinds import Inserted, Merged
from tiering.catalog.catalog import StoredPart
from tiering.catalog.copies import copying
from tiering.catalog.lineage import content_digest
from tiering.table.part import Part, PartName
from zerocopy.interserver import offer
from zerocopy.replica import sharing
from zerocopy.replica.bringing.landing import Landed
from zerocopy.replica.connections import peers_of
from zerocopy.replica.replica import Replica
from zerocopy.replica.sharing import Offered, PartHolder

logger = logging.getLogger(__name__)


class Wider(Exception):
    """A part that covers the one which is wanted would come, and meets what is being done."""


class Fetcher(msgspec.Struct):
    """Fetches for one replica, several parts side by side; remembers for one run what the others have."""

    replica: Replica
    turn: threading.RLock = msgspec.field(default_factory=threading.RLock)
    """The lock for reading or changing the state here or in Keeper; not held while bytes arrive."""
    adopted: list[str] = msgspec.field(default_factory=list)
    """Parts that came without their bytes."""
    whole: dict[str, str] = msgspec.field(default_factory=dict)
    """Parts that came with them though this machine shares objects with others, and why."""
    _declined: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Of which replica it is known that a part does not come without its bytes from there."""
    _addresses: dict[str, str] = msgspec.field(default_factory=dict)
    """Where others serve parts, of peers that are asked for many; empty where they do not answer."""
    _names: list[str] | None = None
    """The other replicas."""
    _parts: dict[str, list[PartName]] = msgspec.field(default_factory=dict)
    _stores: dict[str, LoggedDisk] | None = None

    def registered(self, part: PartName) -> list[PartHolder]:
        """Who says of itself that it has this very part, wherever it can be reached."""
        return [source for source in self._holders(part) if source.part == part]

    def digests(self, parts: Sequence[PartName]) -> dict[PartName, set[str]]:
        """The same of many parts at once: which digests the others say."""
        found: dict[PartName, set[str]] = {part: set() for part in parts}
        for name in self._others():
            nodes = self.replica.table.replica(name)
            has = found.keys() & set(self._parts_of(name))
            paths = [nodes.part(str(part)) for part in has]
            for part, node in zip(has, self.replica.keeper.find_all(paths), strict=True):
                if node is not None:
                    found[part].add(node.data.decode(errors="replace"))
        return found

    def sources(self, target: PartName) -> list[PartHolder]:
        """Who has the part itself, then who has one that covers it, and can be asked for it."""
        return [source for source in self._holders(target) if source.address]

    def _holders(self, target: PartName) -> list[PartHolder]:
        exact: list[tuple[str, PartName]] = []
        covering: list[tuple[str, PartName]] = []
        for name in self._others():
            for part in self._parts_of(name):
                if part == target or part.covers(target):
                    (exact if part == target else covering).append((name, part))
        return self._said([*exact, *covering])

    def _others(self) -> list[str]:
        if self._names is None:
            self._names = self.replica.others()
        return self._names

    def _parts_of(self, name: str) -> list[PartName]:
        if name not in self._parts:
            nodes = self.replica.table.replica(name)
            self._parts[name] = [PartName.parse(part) for part in self.replica.keeper.children(nodes.parts)]
        return self._parts[name]

    def _said(self, having: Sequence[tuple[str, PartName]]) -> list[PartHolder]:
        """What these replicas say now of the parts, where they still have them."""
        nodes = [self.replica.table.replica(name) for name, _ in having]
        parts = [of.part(str(part)) for of, (_, part) in zip(nodes, having, strict=True)]
        told = self.replica.keeper.find_all([*parts, *(of.host for of in nodes)])
        found = zip(having, told[: len(parts)], told[len(parts) :], strict=True)
        return [
            PartHolder(name, part, said.data.decode(errors="replace"), host.data.decode(errors="replace"))
            for (name, part), said, host in found
            if said is not None and host is not None
        ]

    def fetch(
        self,
        target: PartName,
        inserted: tuple[str, str] | None = None,
        *,
        widen: Callable[[PartName], bool] = lambda name: True,
    ) -> Landed | PartHolder:
        """Bring the bytes of the part, or of one that covers it, from any replica that has it, to be committed; or say
        which of these is in the table by now. `inserted`: on which replica, with which digest; that one is asked first.
        `widen` says whether one that covers it may come now. Raises `Wider` where it may not, `Transient` when nobody
        can give it now, with every reason."""
        reasons: list[str] = []
        with self.turn:
            first = self._first(target, inserted)
            for source in () if first else self.sources(target):
                if self._is_here(source):
                    return source
                if self.shares():
                    _check_width(source.part, target, widen)
                    if self._is_adopted(source):
                        return source
        for source in self._candidates(target, first):
            with self.turn:
                if first and self._is_here(source):
                    return source
                _check_width(source.part, target, widen)
            try:
                return self._fetch(source)
            except (Transient, NotFound, Damaged) as error:
                self.replica.kept.hosts.pop(source.replica, None)
                reasons.append(f"{source.replica}: {error.message}")
        raise Transient(
            f"part {target} of {self.replica.definition.full_name} is not to be had now: "
            + ("; ".join(reasons) or "no reachable replica has it"),
            hint="is a daemon running on a replica that has it? 'frostline replica status' shows",
        )

    def _is_here(self, source: PartHolder) -> bool:
        """Whether the part is here already. Raises `Conflict` where it is another one than there."""
        here = part_here(self.replica, source.part)
        if here is not None and content_digest(here.part) != source.digest:
            raise Conflict(
                f"part {source.part} of {self.replica.definition.full_name} is another one here than on "
                f"{source.replica}",
                hint="run 'frostline fsck --read-data' on both machines",
            )
        return here is not None

    def _is_adopted(self, source: PartHolder) -> bool:
        """Whether the part is here now, by its objects; else it is noted why not."""
        context, definition = self.replica.context, self.replica.definition
        assert self._stores is not None
        name = str(source.part)
        if (source.replica, name) in self._declined:
            return False
        try:
            offered = sharing.asked(self.replica, source.replica, source.address, {name: source.digest}, self._stores)
            if isinstance(found := offered[name], str):
                self._declines(source.replica, name, found)
                return False
            disk = self._stores[found.offer.store]
            covered = covered_here(self.replica, source.part)
            kind = Merged() if covered else Inserted()
            with context.journal.claim(definition.uuid, [name, *(old.facts.name for old in covered)], "fetch"):
                refused = sharing.take(
                    self.replica,
                    disk,
                    [found],
                    kind=lambda names: kind,
                    reason=f"shared with replica {source.replica}",
                    covered=[old for old in covered if old.disk == disk.name],
                )
                if not refused:
                    elsewhere = [old for old in covered if old.disk != disk.name]
                    copying.remove_copies(context, elsewhere, reason="replaced by a merge")
        except (Transient, NotFound, Damaged) as error:
            refused = {name: error.message}
        if refused:
            self._declines(source.replica, name, refused[name])
            return False
        context.catalog.refresh(disks=())
        self._has_come(name)
        return True

    def adopt(self, replica: str, portions: Sequence[Mapping[str, str]]) -> Generator[list[str], None, None]:
        """Take over, without their bytes, what that replica offers of the parts with these digests, of which nothing is
        here; gives of each portion which are here now. Of the others it is noted why not: a fetch of each comes to it.
        While one portion is taken over, the next one is asked for: an offer that is old by then does not pass."""
        if not portions or not self.shares() or replica == self.replica.name:
            return
        assert self._stores is not None
        if replica not in self._addresses:
            self._addresses[replica] = self.replica.address_of(replica)
        if not (address := self._addresses[replica]):
            return
        ask = partial(sharing.asked, self.replica, replica, address, stores_=self._stores)
        with ThreadPoolExecutor(1, thread_name_prefix="ask-ahead") as ahead:
            asked = ahead.submit(ask, portions[0])
            for number in range(1, len(portions) + 1):
                try:
                    offered = asked.result()
                except (Transient, NotFound, Damaged):
                    self._addresses[replica] = ""  # one wait is enough
                    return
                if number < len(portions):
                    asked = ahead.submit(ask, portions[number])
                yield self._take(replica, offered)

    def _take(self, replica: str, offered: Mapping[str, Offered | str]) -> list[str]:
        """Which of the parts that it offers are here now."""
        assert self._stores is not None
        context, definition = self.replica.context, self.replica.definition
        by_store: dict[str, list[Offered]] = defaultdict(list)
        for name, found in offered.items():
            if isinstance(found, str):
                self._declines(replica, name, found)
            else:
                by_store[found.offer.store].append(found)
        came: list[str] = []
        for store, parts in by_store.items():
            names, disk, reason = (
                [one.part.name for one in parts],
                self._stores[store],
                f"shared with replica {replica}",
            )
            try:
                with context.journal.claim(definition.uuid, names, "fetch"):
                    refused = sharing.take(self.replica, disk, parts, kind=lambda names: Inserted(), reason=reason)
            except (Conflict, Transient, NotFound, Damaged):  # told of each of them, when it is fetched
                continue
            for name, why in refused.items():
                self._declines(replica, name, why)
            came += [name for name in names if name not in refused]
        if came:
            context.catalog.refresh_later()
            for name in came:
                self._has_come(name)
        return came

    def _declines(self, replica: str, name: str, why: str) -> None:
        """The part does not come without its bytes from there."""
        self._declined.add((replica, name))
        if why == offer.ON_OWN_DISK:  # as every new part: nobody has to be told
            return
        logger.info("%s of %s is fetched whole: %s", name, self.replica.definition.full_name, why)
        self.whole.setdefault(name, f"{replica}: {why}")

    def _has_come(self, name: str) -> None:
        self.whole.pop(name, None)
        self.adopted.append(name)

    def _candidates(self, target: PartName, first: list[PartHolder]) -> Iterator[PartHolder]:
        """Whom to ask, in order; the others are looked for when who is first does not do."""
        yield from first
        with self.turn:
            others = [source for source in self.sources(target) if source not in first]
        yield from others

    def shares(self) -> bool:
        """Whether this machine shares objects with others, so that a part may come without its bytes."""
        if self._stores is None:
            self._stores = sharing.stores(self.replica.context, self.replica.definition)
        return bool(self._stores)

    def _first(self, target: PartName, inserted: tuple[str, str] | None) -> list[PartHolder]:
        """Who inserted the part, without asking whether it has it still. Nobody where it may come without its bytes."""
        if inserted is None or inserted[0] == self.replica.name or self.shares():
            return []
        name, digest = inserted
        hosts = self.replica.kept.hosts
        if not hosts.get(name):
            hosts[name] = self.replica.address_of(name)
        return [PartHolder(name, target, digest, hosts[name])] if hosts[name] else []

    def _fetch(self, source: PartHolder) -> Landed:
        context, definition = self.replica.context, self.replica.definition
        with self.turn:
            covered = covered_here(self.replica, source.part)
        why = self.whole.get(str(source.part))
        reason = f"fetched from replica {source.replica}" + (f", whole: {why}" if why else "")
        with ExitStack() as stack:
            chosen: list[tuple[str, Transaction]] = []

            def place(part: Part) -> Path:
                space = context.reservations.for_insert(definition, part.size_bytes, part, context.clock())
                disk = stack.enter_context(space)
                kind = Merged() if covered else Inserted()
                transaction = context.disk(disk).transaction(kind, reason=reason, actor=context.actor)
                chosen.append((disk, stack.enter_context(transaction)))
                directory = transaction.scratch() / "fetched"
                make_directory(directory)
                return directory

            peers, limiter = peers_of(context), context.limiter or Limiter()
            name = str(source.part)
            part, directory = peers.fetch(source.address, definition, name, source.digest, place, limiter)
            ((disk, transaction),) = chosen
            return Landed(source, part, directory, disk, covered, reason, transaction, stack.pop_all())


def _check_width(part: PartName, target: PartName, widen: Callable[[PartName], bool]) -> None:
    if part != target and not widen(part):
        raise Wider(str(part))


def part_here(replica: Replica, name: PartName) -> StoredPart | None:
    """The part, if it is in the table here: its original, which is what a merge takes."""
    parts = replica.context.catalog.originals(replica.definition, name.partition)
    return next((stored for stored in parts if stored.name == name), None)


def covered_here(replica: Replica, name: PartName) -> list[StoredPart]:
    """The parts of this machine alone that this one takes the place of, every copy."""
    context = replica.context
    parts = context.catalog.partition(replica.definition, name.partition, include_outdated=True)
    return [
        stored for stored in parts if name.covers(stored.name) and not context.disk(stored.disk).capabilities.shared
    ]
