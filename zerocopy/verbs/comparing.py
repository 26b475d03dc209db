"""What `fsck` compares of replicated tables: what Keeper says of this machine's replica, with what is here (I9 to I11).

Changes nothing. Daemons go on meanwhile, so only what two looks find is a difference.
What an entry of the queue is about may be half done, and is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from oplog.errors import FrostlineError, ReadOnly, Transient
from restore.check.compared import Comparison
from restore.check.findings import Problem
from tiering.catalog import reachability
from tiering.catalog.context import Context
from tiering.catalog.lineage import content_digest
from tiering.config.settings import Config
from tiering.engine.store import Store
from tiering.table.part import PartName
from tiering.table.schema import TableDefinition
from zerocopy.execution import giving_up
from zerocopy.execution.queue import queue
from zerocopy.rebuilding import agreement
from zerocopy.replica import shared
from zerocopy.replica.replica import Replica


def compare(config: Config, *, everywhere: bool) -> Comparison:
    """Compare every replicated table here. `everywhere`: also with what Keeper says of the other replicas."""
    done = Comparison([], [])
    try:
        with Store.open(config, recover=False) as store:
            for definition in store.definitions():
                if definition.is_replicated:
                    _compare(store.context, definition, done, everywhere=everywhere)
    except FrostlineError as error:  # of the store, which is said elsewhere, or of a Keeper that does not answer
        done.skipped.append(f"replicas were not compared with Keeper: {error.message}")
    return done


def _compare(context: Context, definition: TableDefinition, done: Comparison, *, everywhere: bool) -> None:
    try:
        done.problems += _differences(context, definition, everywhere=everywhere)
    except ReadOnly:  # this machine is no replica: Keeper says nothing of it
        return
    except Transient:
        raise
    except FrostlineError as error:
        done.skipped.append(f"{definition.full_name} was not compared with Keeper: {error.message}")


def _differences(context: Context, definition: TableDefinition, *, everywhere: bool) -> list[Problem]:
    replica = Replica.open(context, definition)
    found = list(_look(replica, everywhere=everywhere))
    if not found:
        return []
    context.catalog.refresh()
    again = set(_look(replica, everywhere=everywhere))
    return [one for one in found if one in again]


def _look(replica: Replica, *, everywhere: bool) -> Iterator[Problem]:
    keeper, context, table = replica.keeper, replica.context, replica.definition.full_name
    disk = shared.disk_of(context, replica.definition)
    if disk is not None:
        reachability.require([disk], f"comparing {table} with Keeper")
    keeper.sync(replica.table.path)
    said = dict(_said(replica, replica.name))
    half_done = [name for queued in queue(replica) for name in queued.entry.touches]
    everything = context.catalog.parts(replica.definition, include_outdated=True)
    here = {stored.name: stored for stored in everything}
    for name, stored in here.items():
        if name in said and content_digest(stored.part) != said[name]:
            yield _problem("I9", table, name, f"on {stored.disk} it is not the part that Keeper knows")
    for name in agreement.without_place(said, here, half_done):
        what = f"Keeper says that replica {replica.name} has it: it is not here"
        yield _problem("I9", table, name, what)
    own = {name: stored for name, stored in here.items() if not context.disk(stored.disk).capabilities.shared}
    for name in agreement.without_place(own, said, half_done):
        what = f"it is on {own[name].disk}, and Keeper does not know that replica {replica.name} has it"
        yield _problem("I9", table, name, what)
    yield from _counted_twice(table, said)
    yield from _lost(replica)
    for other in replica.others() if everywhere else ():
        for name, digest in _said(replica, other):
            if said.get(name, digest) != digest:
                yield _problem("I10", table, name, f"replicas {replica.name} and {other} have other bytes of it")


def _lost(replica: Replica) -> Iterator[Problem]:
    for name in giving_up.lost(replica):
        what = "the log brings it, and no replica has it: all of them wait for it"
        yield _problem("I9", replica.definition.full_name, name, what)


def _said(replica: Replica, name: str) -> Iterator[tuple[PartName, str]]:
    """The parts of a replica with their digests, as Keeper has them."""
    nodes = replica.table.replica(name)
    for part in replica.keeper.children(nodes.parts):
        node = replica.keeper.find(nodes.part(part))
        if node is not None:
            yield PartName.parse(part), node.data.decode(errors="replace")


def _counted_twice(table: str, said: dict[PartName, str]) -> Iterator[Problem]:
    """Parts of the same blocks, neither of which went into the other."""
    last: PartName | None = None
    for name in sorted(said, key=lambda name: (name.partition, name.min_block, -name.max_block)):
        if last is None or last.partition != name.partition or last.max_block < name.min_block:
            last = name
        elif not last.covers(name):
            yield _problem("I11", table, name, f"Keeper says that rows of it are in {last}, too")


def _problem(invariant: str, table: str, part: PartName, message: str) -> Problem:
    return Problem(invariant, message, "keeper", table, str(part))
