"""What a replica takes over from the log to do. `perform` does it.

Taking over is one multi: the entries come into the queue and the pointer goes past them, or neither; of two processes
of one replica the second finds the pointer moved. An entry leaves the queue in the multi that says what was done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from oplog.errors import AlreadyExists, Conflict, Transient
from tiering.table.part import PartName
from zerocopy.keeper.client import Node, Witness
from zerocopy.keeper.operations import CheckNode, CreateNode, Operation, Set, portions
from zerocopy.replica import entries, history, lag
from zerocopy.replica.entries import Entry, Get
from zerocopy.replica.inserts import quorum
from zerocopy.replica.nodes import changed_by_hand, number_of, place_in
from zerocopy.replica.replica import Replica

_AT_ONCE = 400
"""Entries that are taken over in one multi, at most."""
CLONED = "clone-"
"""How the name of what another replica had already begins; it comes before what is to do."""


class Queued(msgspec.Struct, frozen=True):
    """An entry of the queue."""

    node: str
    number: int
    entry: Entry

    @property
    def name(self) -> PartName:
        """The part that it brings."""
        return PartName.parse(self.entry.brings)

    @property
    def is_cloned(self) -> bool:
        """Whether it was taken over from another replica, not from the log."""
        return f"/{CLONED}" in self.node


class FellBehind(Transient):
    """Entries of the log are gone that the replica never took over."""


def pull(replica: Replica, log: Sequence[str] | None = None) -> int:
    """Take over the new entries of the log; returns how many. `log`: its nodes, as the thread that follows it
    just heard. Raises `Damaged` for what cannot be read."""
    keeper, kept, pulled, follows = replica.keeper, replica.kept, 0, log is not None
    refused = beyond = -1
    rest: dict[int, str] = {}
    while True:
        numbers, rest = rest, {}
        if not numbers:
            names = keeper.children(replica.table.log) if log is None else log
            numbers, log = {number_of(name): name for name in names}, None
            kept.log_length = len(numbers)
            is_new = kept.pointer is None or max(numbers, default=-1) >= _begin(replica, kept.pointer)
            if is_new and not follows:  # another process of this machine may have taken them over
                kept.forget_place()
        if kept.pointer is None or kept.is_lost is None:
            kept.pointer, kept.is_lost = keeper.get(replica.own.log_pointer), keeper.get(replica.own.is_lost)
        pointer, begin, follows = kept.pointer, _begin(replica, kept.pointer), False
        new = sorted(number for number in numbers if number >= begin)[:_AT_ONCE]
        if kept.is_lost.data == b"1" or not _is_whole(new, begin):
            if pointer.version != keeper.get(replica.own.log_pointer).version:
                kept.forget_place()
                continue
            kept.forget_place()
            keeper.set(replica.own.is_lost, b"1")
            raise FellBehind(
                f"replica {replica.name} of {replica.definition.full_name} fell behind what the log keeps",
                hint="'frostline replica sync' takes over what the other replicas have",
            )
        if numbers and begin > max(numbers) + 1 and beyond != pointer.version:
            beyond = pointer.version  # what was there before may have been older than the pointer
            kept.forget_place()
            continue
        if numbers and begin > max(numbers) + 1:
            raise changed_by_hand(replica.own.log_pointer, f"it says {begin}, and the log ends with {max(numbers)}")
        if not new:
            return pulled
        paths = [f"{replica.table.log}/{numbers[number]}" for number in new]
        found = keeper.find_all(paths)
        if None in found:  # cleaned just now
            kept.forget_place()
            continue
        data = [node.data for node in found if node is not None]
        by = {entries.decode(one, path=path).replica for one, path in zip(data, paths, strict=True)}
        copies = [CreateNode(replica.own.queued(number), one) for number, one in zip(new, data, strict=True)]
        taken = _take(replica, pointer, kept.is_lost, new, copies)
        if not taken and refused == pointer.version:
            raise changed_by_hand(replica.own.log_pointer, f"it says {begin}, which is in the queue already")
        refused = pointer.version if not taken else -1
        if taken:
            pulled += taken
            history.note(replica.context, replica.definition, new[taken - 1], copies[taken - 1].data, by)
            if taken == len(copies) < _AT_ONCE:  # the next pass finds what arrived since then
                return pulled
            rest = {number: name for number, name in numbers.items() if number >= begin + taken}


def _is_whole(new: Sequence[int], begin: int) -> bool:
    """Whether nothing is gone of what is new: numbers have no gaps."""
    return list(new) == list(range(begin, begin + len(new)))


def _begin(replica: Replica, pointer: Node) -> int:
    return place_in(pointer.data, replica.own.log_pointer)


def _take(replica: Replica, pointer: Node, is_lost: Node, new: Sequence[int], copies: list[CreateNode]) -> int:
    """Take over the first of the entries, as many as go into one request; 0 where another process of this machine was
    first, or others gave this replica up."""
    kept, own = replica.kept, replica.own
    is_whole = CheckNode(own.is_lost, is_lost.version)
    come = lag.inserted(replica.name, {copy.path: copy.data for copy in copies})
    said = lag.told(own, kept, come=come)
    following = str(new[-1] + 1).encode()
    head: list[Operation] = [is_whole, Set(own.log_pointer, following, pointer.version), *said]
    first = next(portions([[*head, *copies[:1]], *([copy] for copy in copies[1:])]))
    taken = len(first) - len(head)
    following = str(new[taken - 1] + 1).encode()
    moved = Set(own.log_pointer, following, pointer.version)
    try:
        replica.keeper.multi([is_whole, *copies[:taken], moved, *said], witness=Witness(own.log_pointer, following))
    except (Conflict, AlreadyExists):
        kept.forget_place()
        return 0
    kept.pointer = msgspec.structs.replace(pointer, data=following, version=pointer.version + 1)
    kept.entries.update((copy.path, copy.data) for copy in copies[:taken])
    kept.inserted.update((copy.path, come[copy.path]) for copy in copies[:taken] if copy.path in come)
    lag.believe(kept, said)
    return taken


def queue(replica: Replica) -> list[Queued]:
    """What is taken over and not done, in order."""
    kept = replica.kept
    paths = [f"{replica.own.queue}/{name}" for name in replica.keeper.children(replica.own.queue)]
    known = {path: kept.entries[path] for path in paths if path in kept.entries}
    unknown = [path for path in paths if path not in known]
    for path, node in zip(unknown, replica.keeper.find_all(unknown), strict=True):
        if node is not None:
            known[path] = node.data
    kept.entries = known
    kept.inserted = lag.inserted(replica.name, known)
    found = [Queued(path, number_of(path), entries.decode(data, path=path)) for path, data in known.items()]
    return sorted(found, key=lambda queued: (not queued.is_cloned, queued.number))


def coming(replica: Replica) -> list[entries.Entry]:
    """What is in the log and not taken over, in order; what the log no longer keeps is not among it."""
    keeper, begin = replica.keeper, _begin(replica, replica.keeper.get(replica.own.log_pointer))
    numbers = {number_of(name): name for name in keeper.children(replica.table.log)}
    paths = [f"{replica.table.log}/{numbers[number]}" for number in sorted(numbers) if number >= begin]
    found = zip(paths, keeper.find_all(paths), strict=True)
    return [entries.decode(node.data, path=path) for path, node in found if node is not None]


def missing(replica: Replica) -> Iterator[Queued]:
    """Of what waits, what was inserted with a quorum, or may have been, and is not here."""
    own = replica.parts()
    for queued in queue(replica):
        if isinstance(queued.entry, Get):
            name = PartName.parse(queued.entry.part)
            if name in own or any(part.covers(name) for part in own):
                continue
            if queued.entry.quorum or queued.is_cloned or quorum.holders(replica, name, replica.others()) > 1:
                yield queued
