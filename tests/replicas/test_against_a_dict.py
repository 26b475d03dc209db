"""Random histories of three replicas that act without waiting for one another: when all have come to rest, each of them
has what a dict has to which the same was done, in the same parts (I1, I9 to I11). What fails is made short.

A block counts once, whoever inserts it, until its partition is dropped; a drop takes what was there when it was agreed
upon. Moves bring parts to the bucket that all share."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from oplog.errors import Conflict, Locked, NotFound, Refused, Transient
from tests.replicas.killing import TABLE, Pair, definition, insert, rows, sync
from tests.turns import histories
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from zerocopy.execution import work
from zerocopy.keeper.client import Keeper
from zerocopy.replica import lifecycle

NAMES = ("a", "b", "c")
EXAMPLES, STEPS = 24, 14
ROUNDS = 12
"""Of passes on all replicas, until none has anything to do."""
WAITS = (Locked, Conflict, Refused, Transient)
"""What may be answered to who acts on something that another one works on: nothing was done."""

names = st.sampled_from(NAMES)
partitions = st.sampled_from([1, 2])
blocks = st.sets(st.integers(1, 6), min_size=1, max_size=3)


class Replicas(RuleBasedStateMachine):
    """Three machines in one process, each with a home of its own."""

    def __init__(self, keeper: KeeperConfig) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="frostline-replicas-"))
        self.closing = ExitStack()
        self.closing.callback(shutil.rmtree, self.root)
        self.pair = Pair(self.root, msgspec.structs.replace(keeper, root=f"{keeper.root}/{self.root.name}"))
        with Keeper(self.pair.keeper) as session:
            session.make_path("/")
        self.stores: dict[str, Store] = {}
        self.model: dict[tuple[int, int], int] = {}
        """Partition and key -> how often."""
        self.inserted: set[tuple[int, frozenset[int]]] = set()
        """The blocks that are known since the last drop of their partition."""
        for name in NAMES:
            with Store.open(self.pair.config(name), actor="test", workers=1) as store:
                lifecycle.create(store.context, TABLE, definition(), "cold", None, None, if_not_exists=True)
            self.stores[name] = self.closing.enter_context(self.pair.open(name))

    @rule(name=names, partition=partitions, keys=blocks)
    def insert(self, name: str, partition: int, keys: set[int]) -> None:
        insert(self.stores[name], [(partition, key) for key in sorted(keys)])
        block = (partition, frozenset(keys))
        if block not in self.inserted:
            self.inserted.add(block)
            for key in keys:
                self.model[partition, key] = self.model.get((partition, key), 0) + 1

    @rule(name=names)
    def sync(self, name: str) -> None:
        sync(self.stores[name])

    @precondition(lambda self: self.model)
    @rule(name=names)
    def merge(self, name: str) -> None:
        store = self.stores[name]
        work.merge(store.context, store.definition(TABLE), MergeRequest(final=True))

    @precondition(lambda self: self.model)
    @rule(name=names, partition=partitions)
    def move(self, name: str, partition: int) -> None:
        store = self.stores[name]
        moving = [
            move
            for stored in store.parts(TABLE)
            if stored.name.partition == str(partition) and stored.disk == "ssd"
            for move in store.plan_manual_move(TABLE, part=stored.part.name, to_disk="s3")
        ]
        assert not store.apply(moving).failed

    @precondition(lambda self: self.model)
    @rule(name=names, partition=partitions)
    def drop(self, name: str, partition: int) -> None:
        store = self.stores[name]
        try:
            work.drop_partition(store.context, store.definition(TABLE), str(partition), "drop it")
        except NotFound:  # no replica ever inserted into it
            assert not any(row[0] == partition for row in self.model)
            return
        except Refused:
            return  # somebody moves parts of it: nothing was agreed upon
        except WAITS:
            pass  # agreed upon, and done by a pass
        self.model = {row: count for row, count in self.model.items() if row[0] != partition}
        self.inserted = {block for block in self.inserted if block[0] != partition}

    @rule(name=names)
    def restart(self, name: str) -> None:
        self.stores[name].close()
        self.stores[name] = self.closing.enter_context(self.pair.open(name))

    def teardown(self) -> None:
        try:
            self.come_to_rest()
            expected = sorted(row for row, count in self.model.items() for _ in range(count))
            seen: dict[str, Any] = {name: rows(store) for name, store in self.stores.items()}
            assert seen == dict.fromkeys(NAMES, expected)
            parts = {name: [stored.part.name for stored in store.parts(TABLE)] for name, store in self.stores.items()}
            assert len(set(map(tuple, parts.values()))) == 1, parts
        finally:
            self.closing.close()

    def come_to_rest(self) -> None:
        """Until a whole round finds nothing to do."""
        for _ in range(ROUNDS):
            done = [sync(store) for store in self.stores.values()]
            if not any(one.pulled or one.postponed or one.fetched or one.merged or one.dropped for one in done):
                return
        raise AssertionError(f"the replicas do not come to rest: {[one.postponed for one in done]}")


@pytest.mark.in_turn
def test_replicas_are_a_dict(settings: KeeperConfig, keeper: Keeper) -> None:
    """Bounded; a failure prints the steps that lead to it."""
    run_state_machine_as_test(lambda: Replicas(settings), settings=histories(EXAMPLES, STEPS))
