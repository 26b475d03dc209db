"""Keeping what Keeper holds of a table bounded: the log, and the digests of inserted blocks.

An entry of the log goes when every replica that is not lost has taken it over. A replica is given up as lost only when
its daemon is not heard of and more than `KEEP_MOST` entries wait for it; one that is active is never passed. Who finds
entries gone that it has not taken over is lost, whatever was said of it: numbers have no gaps (`recovering`).
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress

from oplog.errors import Conflict, NotFound
from tiering.table.part import PartName
from zerocopy.keeper.operations import CheckNode, DeleteNode, Operation, Set, portions
from zerocopy.replica.nodes import number_of, place_in
from zerocopy.replica.replica import Replica

KEEP_FEWEST = 100
"""Entries that stay though everybody has them; as many again are waited for before any go."""
KEEP_MOST = 1000
"""Entries that wait for a replica which is not heard of."""


def clean(replica: Replica) -> int:
    """Take away what nobody needs any more; returns how many entries of the log that were."""
    keeper, table = replica.keeper, replica.table
    numbers = sorted(map(number_of, keeper.children(table.log)))
    if len(numbers) < 2 * KEEP_FEWEST:
        return 0
    keeper.sync(table.path)
    end = numbers[-1] + 1
    floor = min([_needed_from(replica, name, end) for name in keeper.children(table.replicas)], default=0)
    to_delete = [number for number in numbers if number < min(floor, end - KEEP_FEWEST)]
    deletes: list[list[Operation]] = [[DeleteNode(f"{table.log}/log-{number:010d}")] for number in to_delete]
    try:
        for portion in portions(deletes):
            keeper.multi(portion)
    except NotFound:  # another replica is at it
        return 0
    if to_delete:
        _clean_blocks(replica)
        _clean_cold(replica)
    return len(to_delete)


def _needed_from(replica: Replica, name: str, end: int) -> int:
    """The first entry that the replica still needs: all are past one that is lost."""
    keeper, nodes = replica.keeper, replica.table.replica(name)
    try:
        pointer, lost = keeper.get(nodes.log_pointer), keeper.get(nodes.is_lost)
    except NotFound:  # it comes or goes just now; who comes finds out by itself
        return end
    begin = place_in(pointer.data, nodes.log_pointer)
    if lost.data == b"1":
        return end
    if end - begin <= KEEP_MOST or name == replica.name or keeper.exists(nodes.is_active):
        return begin
    try:
        keeper.multi([CheckNode(nodes.log_pointer, pointer.version), Set(nodes.is_lost, b"1", lost.version)])
    except (Conflict, NotFound):  # it is back
        return begin
    return end


def _clean_blocks(replica: Replica) -> None:
    """Of each partition forget the oldest digests beyond the table's window, when they are as many again."""
    keeper, window = replica.keeper, replica.definition.settings.deduplication_window
    by_partition: dict[str, list[str]] = defaultdict(list)
    for name in keeper.children(f"{replica.table.path}/blocks"):
        by_partition[name.rpartition("_")[0]].append(f"{replica.table.path}/blocks/{name}")
    for paths in by_partition.values():
        if len(paths) < 2 * max(window, 1):
            continue
        known = [
            (PartName.parse(node.data.decode()), path) for path in paths if (node := keeper.find(path)) is not None
        ]
        oldest = sorted(known)[: max(len(known) - window, 0)]
        with suppress(NotFound):
            for portion in portions([[DeleteNode(path)] for _, path in oldest]):
                keeper.multi(portion)


def _clean_cold(replica: Replica) -> None:
    """Forget who had parts in a bucket that no replica has any more. A claim goes with its session."""
    keeper, table = replica.keeper, replica.table
    known: set[str] | None = None
    for store in keeper.children(table.all_cold) if keeper.exists(table.all_cold) else ():
        names = keeper.children(table.cold(store))
        if known is None:
            parts = [table.replica(name).parts for name in keeper.children(table.replicas)]
            known = {part for found in keeper.children_of_all(parts) for part in found or ()}
        gone = [name for name in names if name not in known]
        nodes = zip(gone, keeper.find_all([f"{table.cold(store)}/{name}" for name in gone]), strict=True)
        deletes: list[list[Operation]] = [
            [DeleteNode(f"{table.cold(store)}/{name}", node.version)] for name, node in nodes if node and not node.owner
        ]
        with suppress(NotFound, Conflict):
            for portion in portions(deletes):
                keeper.multi(portion)
