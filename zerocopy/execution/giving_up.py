"""Parts that no replica has any more: who waits for them, and agreeing that nobody does.

What was inserted on a machine that died before another one fetched it is in the log, and every queue waits for it; so
does each merge that takes it. Giving up is an entry as a drop is, of these blocks alone: what brings them is not done
any more, nor are merges that were agreed upon before and reach across them. Their digests go with it, so the same
blocks inserted again are new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from oplog.errors import Conflict, Refused
from tiering.table.part import PartName
from zerocopy.execution import dropping
from zerocopy.execution.queue import queue
from zerocopy.keeper.operations import DeleteNode, Operation
from zerocopy.replica import entries, shared
from zerocopy.replica.entries import DropRange, Entry, Get, Merge
from zerocopy.replica.nodes import number_of, place_in
from zerocopy.replica.replica import Replica


def lost(replica: Replica, *, without: str = "") -> list[PartName]:
    """The parts that are waited for and that no replica has; `without`: that none but this one has."""
    waiting = [queued.entry for queued in queue(replica)] + list(_later(replica))
    has = _held(replica, without)
    merges = {entry.output: entry for entry in waiting if isinstance(entry, Merge)}
    wanted = [entry.brings for entry in waiting if isinstance(entry, Get | Merge)]
    if without:
        wanted += replica.keeper.children(replica.table.replica(without).parts)
    found = {name for text in wanted for name in _missing(PartName.parse(text), has, merges)}
    drops = [entry for entry in waiting if isinstance(entry, DropRange)]
    return sorted(name for name in found if not any(drop.drops(name) for drop in drops))


def assign(replica: Replica, names: Collection[PartName], reason: str, *, without: str = "") -> None:
    """Agree that nobody waits for these parts. Raises `Refused` where others have a share of one, `Conflict` when the
    replicas agree upon something else just now."""
    keeper, table = replica.keeper, replica.table
    version = keeper.get(table.log).version
    for name in names:
        for part in _held(replica, without):
            if part.partition == name.partition and name.min_block <= part.min_block <= name.max_block:
                raise Refused(
                    f"part {name} was merged of what other replicas have a share of, such as {part}",
                    hint="bring its machine back, or drop the partition",
                )
    entry = DropRange(
        time=replica.context.clock(),
        replica=replica.name,
        ranges=tuple(entries.whole_range(name.partition, name.min_block, name.max_block) for name in names),
        reason=reason,
        gives_up=True,
    )
    if not dropping.say(replica, entry, version, list(_digests(replica, set(map(str, names))))):
        raise Conflict(f"what the replicas of {replica.definition.full_name} agree upon changed", hint="run it again")


def is_void(entry: Entry, later: Collection[Entry]) -> bool:
    """Whether a merge takes what was given up after it was agreed upon."""
    if not isinstance(entry, Merge):
        return False
    output = PartName.parse(entry.output)
    given_up = (one for drop in later if isinstance(drop, DropRange) and drop.gives_up for one in drop.touches)
    return any(
        one.partition == output.partition and output.min_block <= one.min_block and one.max_block <= output.max_block
        for one in given_up
    )


def _missing(name: PartName, has: Collection[PartName], merges: dict[str, Merge]) -> Iterator[PartName]:
    if name in has or any(part.covers(name) for part in has):
        return
    merge = merges.get(str(name))
    if merge is None:
        yield name
        return
    for text in merge.inputs:
        yield from _missing(PartName.parse(text), has, merges)


def _held(replica: Replica, without: str) -> set[PartName]:
    """What the replicas have, and what lies on the disk that they share."""
    context, definition = replica.context, replica.definition
    disk = shared.disk_of(context, definition)
    stored = context.catalog.parts(definition, include_outdated=True) if disk is not None else []
    found = {one.name for one in stored if disk is not None and one.disk == disk.name}
    for name in {replica.name, *replica.others()} - {without}:
        found |= {PartName.parse(part) for part in replica.keeper.children(replica.table.replica(name).parts)}
    return found


def _later(replica: Replica) -> Iterator[Entry]:
    """What this replica has not taken over yet."""
    keeper, log = replica.keeper, replica.table.log
    begin = place_in(keeper.get(replica.own.log_pointer).data, replica.own.log_pointer)
    for name in keeper.children(log):
        if number_of(name) >= begin and (node := keeper.find(f"{log}/{name}")) is not None:
            yield entries.decode(node.data, path=f"{log}/{name}")


def _digests(replica: Replica, names: Collection[str]) -> Iterator[Operation]:
    blocks = f"{replica.table.path}/blocks"
    for name in replica.keeper.children(blocks):
        node = replica.keeper.find(f"{blocks}/{name}")
        if node is not None and node.data.decode(errors="replace") in names:
            yield DeleteNode(f"{blocks}/{name}")
