"""A replica that fell behind what the log keeps, or whose disks were set back, becomes whole again: it takes over what
another one has.

    lost        `is_lost` is 1: nothing is taken over or done until all of this is done
    altered     the newest definition is written here
    aside       parts here that neither the other one nor the log knows: first Keeper no longer says that this
                replica has them, then they go to `detached/`
    queue       what the other one has to do, and a part to get for each that it has and this one has not
    whole       one multi: the log from where the other one had taken it over, `is_lost` is 0       <- the commit point

After a crash it starts again: every step may be repeated. What the other one has is read after what it has to do, and
that after how far it is in the log: so an entry that it took over waits, or its part is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.errors import NotFound, Transient
from oplog.kinds import SetAside
from tiering.catalog.catalog import StoredPart
from tiering.catalog.lineage import content_digest
from tiering.table.part import PartName
from zerocopy.execution import altering
from zerocopy.execution.queue import CLONED, coming, queue
from zerocopy.keeper.client import Witness
from zerocopy.keeper.operations import CreateNode, DeleteNode, Operation, Set, portions
from zerocopy.rebuilding import agreement
from zerocopy.replica import entries, shared
from zerocopy.replica.entries import Get, Merge
from zerocopy.replica.inserts import staged_parts
from zerocopy.replica.nodes import number_of, place_in
from zerocopy.replica.replica import Replica


class _Other(msgspec.Struct):
    """What another replica has, and has to do."""

    name: str
    pointer: int
    queue: dict[int, bytes] = msgspec.field(default_factory=dict)
    parts: dict[str, str] = msgspec.field(default_factory=dict)
    """part -> digest"""


def is_lost(replica: Replica) -> bool:
    """Whether the replica was given up, or has found out that entries are gone which it never took over."""
    kept = replica.kept
    if kept.is_lost is None or kept.is_lost.data == b"1":
        kept.is_lost = replica.keeper.get(replica.own.is_lost)
    return kept.is_lost.data == b"1"


def compare(replica: Replica) -> None:
    """Once a session: where the disks here are not those that Keeper speaks of, as when yesterday's copy of one was
    brought back, the replica is lost. Raises `Locked` while another process is at the queue."""
    context, definition, kept = replica.context, replica.definition, replica.kept
    disks = [context.disk(name) for name in context.catalog.policy_disks(definition)]
    if kept.is_compared or any(disk.broken is not None or disk.unreachable for disk in disks) or not replica.others():
        return
    with context.journal.claim(definition.uuid, ["replica-queue"], "replica"):
        # What is gone in one look and there in the other was on its way from disk to disk, or into the table.
        if not is_lost(replica) and (found := _set_back(replica)) and found & _set_back(replica):
            replica.keeper.set(replica.own.is_lost, b"1")
            kept.forget_place()
    kept.is_compared = True


def _set_back(replica: Replica) -> set[PartName]:
    """The parts that Keeper says are here and are not, and those that are here and Keeper says nothing of."""
    context, definition = replica.context, replica.definition
    said, here, own = _all_parts(replica, looked_since=replica.kept.begun)
    if not agreement.without_place(said, here, ()) and not agreement.without_place(own, said, ()):
        return set()  # nobody needs to be asked for unfinished entries: a new replica reads a whole log
    said = replica.parts()
    half_done = [name for queued in queue(replica) for name in queued.entry.touches]
    # What others dropped from, or merged on, a disk that all share is gone before it is taken over here.
    half_done += [name for entry in coming(replica) if not isinstance(entry, Get) for name in entry.touches]
    half_done += map(PartName.parse, staged_parts.arriving(context, definition))
    _, here, own = _all_parts(replica)
    return {*agreement.without_place(said, here, half_done), *agreement.without_place(own, said, half_done)}


def _all_parts(
    replica: Replica, *, looked_since: float = math.inf
) -> tuple[set[PartName], set[PartName], set[PartName]]:
    """What Keeper says that is here, then what is here, and of that what is on no shared disk. A log of this machine's
    own that was looked at since then is not asked again."""
    said = replica.parts()
    shared.refresh(replica.context, looked_since=looked_since)
    here = {stored.name for stored in replica.context.catalog.parts(replica.definition, include_outdated=True)}
    return said, here, {stored.name for stored in _own_parts(replica)}


def recover(replica: Replica) -> tuple[str, list[str]]:
    """Make the lost replica whole, as the one with the least lag is; returns its name, and the parts that were set
    aside. What it lacks is in its queue then. Raises `Transient` where no other one is whole."""
    with replica.context.journal.claim(replica.definition.uuid, ["replica-queue"], "replica"):
        replica.keeper.sync(replica.table.path)
        other = _best(replica)
        altering.catch_up(replica, f"replica {replica.name} becomes whole")  # the entry may have gone with the log
        replica.context.catalog.refresh()
        here = list(_own_parts(replica))
        known = {**_waiting(replica, other), **other.parts}
        kept = {stored.facts.name for stored in here if _is_known(replica, stored, known)}
        _forget(replica, kept)
        unknown = [stored for stored in here if stored.facts.name not in kept]
        _set_aside(replica, unknown)
        _take_over(replica, other, {stored.facts.name: content_digest(stored.part) for stored in here}, kept)
    return other.name, [stored.facts.name for stored in unknown]


def _best(replica: Replica) -> _Other:
    keeper, candidates = replica.keeper, []
    for name in replica.others():
        nodes = replica.table.replica(name)
        try:
            if keeper.get(nodes.is_lost).data != b"1":
                candidates.append(_Other(name, place_in(keeper.get(nodes.log_pointer).data, nodes.log_pointer)))
        except NotFound:  # it is going
            continue
    if not candidates:
        raise Transient(
            f"replica {replica.name} of {replica.definition.full_name} fell behind what the log keeps, and no "
            "other one is whole",
            hint="queries still work; 'frostline replica status' shows the others",
        )
    other = max(candidates, key=lambda candidate: candidate.pointer)
    nodes = replica.table.replica(other.name)
    for name in keeper.children(nodes.queue):
        node = keeper.find(f"{nodes.queue}/{name}")
        if node is not None and number_of(name) < other.pointer:
            other.queue[number_of(name)] = node.data
    for name in keeper.children(nodes.parts):
        node = keeper.find(nodes.part(name))
        if node is not None:
            other.parts[name] = node.data.decode(errors="replace")
    return other


def _own_parts(replica: Replica) -> Iterable[StoredPart]:
    context = replica.context
    parts = context.catalog.parts(replica.definition, include_outdated=True)
    return (stored for stored in parts if not context.disk(stored.disk).capabilities.shared)


def _waiting(replica: Replica, other: _Other) -> dict[str, str]:
    """The parts that were inserted, or merged, and that the other one has not got yet, with their digests: this replica
    may be the only one that has them."""
    keeper, table = replica.keeper, replica.table
    waiting = list(other.queue.values())
    later = [name for name in keeper.children(table.log) if number_of(name) >= other.pointer]
    waiting += [node.data for node in keeper.find_all([f"{table.log}/{name}" for name in later]) if node is not None]
    decoded = [entries.decode(data, path=table.log) for data in waiting]
    found = {entry.part: entry.digest for entry in decoded if isinstance(entry, Get)}
    merged = [entry.output for entry in decoded if isinstance(entry, Merge)]
    for name, made in zip(merged, keeper.find_all([table.output(name) for name in merged]), strict=True):
        if made is not None and made.data:
            found[name] = made.data.decode(errors="replace")
    return found


def _is_known(replica: Replica, stored: StoredPart, digests: dict[str, str]) -> bool:
    """Whether the part may stay: others have it, or will; or one that was made of it is to be fetched, and replaces it
    then. One in the bucket replaces nothing: the rows would count twice."""
    if stored.facts.name in digests:
        return digests[stored.facts.name] == content_digest(stored.part)
    if shared.covering(replica, stored.name) is not None:
        return False
    return any(PartName.parse(name).covers(stored.name) for name in digests)


def _forget(replica: Replica, kept: set[str]) -> None:
    """Keeper no longer says that this replica has the other parts."""
    keeper, own = replica.keeper, replica.own
    gone: list[list[Operation]] = [
        [DeleteNode(own.part(name))] for name in keeper.children(own.parts) if name not in kept
    ]
    gone += [[DeleteNode(f"{own.queue}/{name}")] for name in keeper.children(own.queue)]
    for portion in portions(gone):
        keeper.multi(portion)


def _set_aside(replica: Replica, parts: list[StoredPart]) -> None:
    """Nothing is deleted: the parts stay in `detached/`, where no query looks."""
    context, definition = replica.context, replica.definition
    for stored in parts:
        disk, place = (
            context.disk(stored.disk),
            f"{definition.directory}/{DETACHED_DIRECTORY}/unknown_{stored.facts.name}",
        )
        attempt = 1
        target = place
        while disk.exists(target):
            attempt += 1
            target = f"{place}_try{attempt}"
        reason = f"neither the other replicas of {definition.full_name} nor its log know the part {stored.facts.name}"
        with (
            context.journal.claim(definition.uuid, [stored.facts.name], "recovery"),
            disk.transaction(SetAside(), reason=reason, actor=context.actor) as transaction,
        ):
            transaction.rename(stored.directory, target)
            transaction.commit()
    if parts:
        context.catalog.refresh(disks=())


def _take_over(replica: Replica, other: _Other, digests: dict[str, str], kept: set[str]) -> None:
    """Say what is here, and what is to do; then that the replica is whole."""
    keeper, own = replica.keeper, replica.own
    registered = set(keeper.children(own.parts))
    words: list[list[Operation]] = [
        [CreateNode(own.part(name), digests[name].encode())]
        for name in sorted(kept - registered)
        if name in other.parts
    ]
    now = replica.context.clock()
    lacking = sorted(other.parts.keys() - kept)
    for number, name in enumerate(lacking):
        entry = Get(time=now, replica=other.name, part=name, digest=other.parts[name])
        words.append([CreateNode(f"{own.queue}/{CLONED}{number:010d}", entries.encode(entry))])
    words += [[CreateNode(own.queued(number), data)] for number, data in sorted(other.queue.items())]
    for portion in portions(words):
        keeper.multi(portion)
    pointer = str(other.pointer).encode()
    replica.kept.forget_place()
    keeper.multi([Set(own.log_pointer, pointer), Set(own.is_lost, b"0")], witness=Witness(own.is_lost, b"0"))
