"""What is killed of conversions: a plain table with parts on both kinds of disks becomes a replicated one, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from oplog.errors import AlreadyExists
from tests.crash.harness import Failpoints, Mode, hooked
from tests.replicas import killing
from tests.replicas.killing import BEFORE, LATER, NEW, TABLE, Pair
from tests.replicas.machines import Machine
from tiering.engine import replication
from tiering.engine.store import Store
from tiering.table.part import PartName
from tiering.table.schema import is_of_replicas
from zerocopy.execution import following
from zerocopy.replica import lifecycle
from zerocopy.replica.connections import connections


def _prepare(store: Store) -> None:
    """A part in the bucket, three on the SSD."""
    store.create_table(msgspec.structs.replace(killing.definition(), policy="cold"))
    killing.insert(store, BEFORE)
    assert store.apply(store.plan_manual_move(TABLE, part="1_1_1_0", to_disk="s3")).moved
    killing.insert(store, NEW)


def _prepare_back(store: Store) -> None:
    _prepare(store)
    _there(store)
    killing.insert(store, LATER)


def _there(store: Store) -> None:
    try:
        replication.work().to_replicated(store.context, store.definition(TABLE), None, None, dry_run=False)
    except AlreadyExists:  # an earlier try got there
        assert store.definition(TABLE).is_replicated


def _back(store: Store) -> None:
    definition = store.definition(TABLE)
    if definition.is_replicated or connections(store.context).keeper.exists("/tables/01/d.t"):
        replication.work().to_plain(store.context, definition, None, None, dry_run=False)


CONVERSIONS: Mapping[str, tuple[Callable[[Store], None], Callable[[Store], None]]] = {
    "there": (_prepare, _there),
    "back": (_prepare_back, _back),
}


def act(operation: str, pair: Pair, mode: Mode, at: int) -> list[str]:
    """What it begins with, then the conversion with the hook on; its effects."""
    hook = Failpoints(mode, at)
    prepare, convert = CONVERSIONS[operation]
    with pair.open("a") as store:
        prepare(store)
        with hooked(hook):
            convert(store)
    return hook.names


def examine(operation: str, pair: Pair) -> list[str]:
    """What is wrong after the next start, and after the conversion was repeated."""
    before = sorted(BEFORE + NEW + (LATER if operation == "back" else []))
    with pair.open("a") as store:
        wrong = [] if killing.rows(store) == before else [f"after the start: {killing.rows(store)}"]
        parts = {stored.name for stored in store.parts(TABLE)}
        CONVERSIONS[operation][1](store)
        now = {stored.name for stored in store.parts(TABLE)}
        if killing.rows(store) != before or now != parts:
            wrong.append(f"after the conversion: {killing.rows(store)}, {now ^ parts} came or went")
        killing.insert(store, NEW)
        killing.insert(store, [(1, 99)])
        fresh = {stored.name for stored in store.parts(TABLE)} - parts
        wrong += list(_numbers_again(parts, fresh))
        before = sorted([*before, (1, 99)])
        wrong += _not_there(pair, store, before) if operation == "there" else _not_back(store, before)
    return wrong


def _numbers_again(parts: set[PartName], fresh: set[PartName]) -> Iterator[str]:
    """One part came, above all that were there."""
    if len(fresh) != 1:
        yield f"the same block again made {fresh}"
    highest = max(name.max_block for name in parts)
    yield from (f"{name} was given after {highest}" for name in fresh if name.min_block <= highest)


def _not_there(pair: Pair, store: Store, rows: list[tuple[int, int]]) -> Iterator[str]:
    killing.sync(store)
    yield from killing.faults(store, rows)
    following.serve(store.context)
    with pair.open("b") as other:
        lifecycle.create(other.context, TABLE, None, "cold", None, None, if_not_exists=False)
        following.serve(other.context)
        done = killing.sync(other)
        yield from (f"postponed: {one.reason}" for one in done.postponed)
        yield from (f"the other replica: {line}" for line in killing.faults(other, rows))


def _not_back(store: Store, rows: list[tuple[int, int]]) -> Iterator[str]:
    if killing.rows(store) != rows:
        yield f"rows {killing.rows(store)}"
    table = store.definition(TABLE)
    if table.is_replicated or table.first_block is not msgspec.UNSET:
        yield f"still a replicated table: {table.keeper}, {table.first_block}"
    if store.context.catalog.disks_lacking_definition(table):
        yield "a disk has another definition"
    for name in ("ssd", "s3"):
        left = [file for file in store.disk(name).files_in(table.directory) if is_of_replicas(file)]
        yield from (f"{name} has {file}" for file in left)
    if connections(store.context).keeper.exists("/tables/01/d.t"):
        yield "Keeper still has the table"


def plain(machine: Machine, policy: str = "cold") -> Machine:
    """With three inserts, two of which are merged."""
    machine("table", "create", "d.t", "--column", "k:int64", "--order-by", "k", "--policy", policy)
    machine.insert(1)
    machine.insert(2)
    machine("merge", "d.t", "--final")
    machine.insert(3)
    return machine
