"""Being alone with a table on this machine while it is converted: nothing inserts, merges, moves or drops parts of it.

What another process begins with the older definition is refused where it commits (`TableDefinition.barred_by`), or by
Keeper.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oplog.errors import Locked, ReadOnly, Refused
from tiering.catalog import blocks, reachability
from tiering.catalog.context import Context
from tiering.table.merge_modes import depends_on_order
from tiering.table.part import range_of
from tiering.table.schema import TableDefinition
from zerocopy.execution.moving import MOVER
from zerocopy.keeper.client import Keeper
from zerocopy.replica.nodes import TableNodes

_QUEUE = "replica-queue"


def check_disks(context: Context, definition: TableDefinition, operation: str) -> None:
    """Raise what is wrong with a disk that has to know what the table is by then."""
    reachability.check_whole(context, definition, operation)
    disks = [context.disk(name) for name in context.catalog.policy_disks(definition)]
    reachability.require(disks, operation)
    for disk in disks:
        if disk.read_only:
            raise ReadOnly(
                f"{operation}: disk {disk.name} is read-only and would not learn of it",
                hint="set read_only: false in its configuration; nothing was changed",
            )


def check_unused(context: Context, definition: TableDefinition) -> None:
    """Raise `Locked` where somebody on this machine is at parts of the table."""
    for name, kind in sorted(context.journal.claimed(definition.uuid).items()):
        raise Locked(
            f"{definition.full_name} is in use on this machine: {kind} ({name})",
            hint="wait for it to finish, or 'frostline pause' the table; 'frostline moves list --active' shows moves",
        )


def check_order(context: Context, definition: TableDefinition) -> None:
    """Raise `Refused` where merges go by the order of inserts, and a part is of another machine: replicas merge by the
    numbers, and those of two machines say nothing of it."""
    own = blocks.owned(context, definition)
    for stored in context.catalog.parts(definition) if depends_on_order(definition) else ():
        if range_of(stored.name.max_block) not in own:
            raise Refused(
                f"{stored.facts.name} of {definition.full_name} on {stored.disk} was inserted by another machine: "
                "replicas could not determine which rows are older",
                hint=f"make it this machine's own first: frostline merge {definition.full_name} --adopt",
            )


@contextmanager
def alone(context: Context, definition: TableDefinition) -> Iterator[None]:
    """Hold every part of the table. Raises `Locked` where somebody is at one."""
    check_unused(context, definition)
    context.catalog.refresh()
    parts = context.catalog.parts(definition, include_outdated=True)
    names = {_QUEUE, MOVER, *(stored.facts.name for stored in parts)}
    with context.journal.claim(definition.uuid, names, "conversion"):
        yield


def replicas(keeper: Keeper, nodes: TableNodes) -> list[str]:
    """Those that Keeper knows at this place; none where there is no table."""
    return keeper.children(nodes.replicas) if keeper.exists(nodes.replicas) else []


def held_by_others(context: Context, definition: TableDefinition) -> str:
    """What another process does with the table while this one holds its parts; empty: nothing."""
    kinds = {kind for kind in context.journal.claimed(definition.uuid).values() if kind != "conversion"}
    return ", ".join(sorted(kinds))
