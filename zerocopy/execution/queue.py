"""What a replica takes over from the log to do. `perform` does it.

Taking over is one multi: the entries come into the queue and the pointer goes past them, or neither; of two processes
of one replica the second finds the pointer moved. An entry leaves the queue in the multi that says what was done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from oplog.errors import AlreadyExists, Conflict, Transient
from tiering.table.part import PartName
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import Create, Set, portions
from zerocopy.replica import entries, history, quorum
from zerocopy.replica.entries import Entry, Get
from zerocopy.replica.nodes import number_of
from zerocopy.replica.replica import Replica

_AT_ONCE = 200
"""Entries that are taken over in one multi, at most."""
CLONED = "clone-"
"""How the name of what another replica had already begins; it comes before what is to do."""


@dataclass(frozen=True, slots=True)
class Queued:
    """An entry of the queue."""

    node: str
    number: int
    entry: Entry

    @property
    def is_cloned(self) -> bool:
        """Whether it was taken over from another replica, not from the log."""
        return f"/{CLONED}" in self.node


class FellBehind(Transient):
    """Entries of the log are gone that the replica never took over."""


def pull(replica: Replica) -> int:
    """Take over what is new in the log; returns how many entries that were. Raises `Damaged` for what cannot be
    read."""
    keeper, pulled = replica.keeper, 0
    while True:
        pointer = keeper.get(replica.own.log_pointer)
        begin = int(pointer.data or b"0")
        numbers = {number_of(name): name for name in keeper.children(replica.table.log)}
        if min(numbers, default=begin) > begin:
            keeper.set(replica.own.is_lost, b"1")
            raise FellBehind(
                f"replica {replica.name} of {replica.definition.full_name} fell behind what the log keeps",
                hint="'frostline replica sync' takes over what the other replicas have",
            )
        new = sorted(number for number in numbers if number >= begin)[:_AT_ONCE]
        if not new:
            return pulled
        copies: list[Create] = []
        by: set[str] = set()
        for number in new:
            path = f"{replica.table.log}/{numbers[number]}"
            data = keeper.get(path).data
            by.add(entries.decode(data, path=path).replica)
            copies.append(Create(replica.own.queued(number), data))
        following = str(new[-1] + 1).encode()
        moved = Set(replica.own.log_pointer, following, pointer.version)
        first = next(portions([[*copies[:1], moved], *([copy] for copy in copies[1:])]))
        taken = len(first) - 1
        if taken < len(copies):
            following = str(new[taken - 1] + 1).encode()
            first = [*copies[:taken], Set(replica.own.log_pointer, following, pointer.version)]
        with suppress(Conflict, AlreadyExists):  # another process of this replica was first
            keeper.multi(first, witness=Witness(replica.own.log_pointer, following))
            pulled += taken
            history.note(replica.context, replica.definition, new[taken - 1], copies[taken - 1].data, by)
            if taken == len(copies) < _AT_ONCE:  # what came since then is told by the next look
                return pulled


def queue(replica: Replica) -> list[Queued]:
    """What is taken over and not done, in order."""
    found = []
    for name in replica.keeper.children(replica.own.queue):
        path = f"{replica.own.queue}/{name}"
        node = replica.keeper.find(path)
        if node is not None:
            found.append(Queued(path, number_of(name), entries.decode(node.data, path=path)))
    return sorted(found, key=lambda queued: (not queued.is_cloned, queued.number))


def missing(replica: Replica) -> Iterator[Queued]:
    """Of what waits, what was inserted with a quorum, or may have been, and is not here."""
    own = replica.parts()
    for queued in queue(replica):
        if isinstance(queued.entry, Get):
            name = PartName.parse(queued.entry.part)
            if name in own or any(part.covers(name) for part in own):
                continue
            if queued.entry.quorum or queued.is_cloned or quorum.holders(replica, name) > 1:
                yield queued
