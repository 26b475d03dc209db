"""The whole store against a dict, with crashes, errors, restarts, gc and a moving clock (I1 to I3, I6, I14; P15, P18).

The dict knows which rows each partition holds; the store must show exactly these after every step, wherever they lie. A
step that dies or fails may have happened or not, and nothing in between. What is kept of parts is compared after each
step, too: for who opens the store then, and for two who have it open since before. One of these looks after each step,
the other now and then.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Literal

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from oplog.errors import Refused
from tests.crash import invariants
from tests.crash.as_read import catalog_is_as_read, index_is_as_read, watching
from tests.crash.harness import Failpoints, ForkServer, Mode, hooked
from tests.crash.site import FEBRUARY, JANUARY, TABLE, Site, collect, events, rows, temporary_site
from tests.keeping import keeping
from tests.turns import histories
from tiering.catalog import tables
from tiering.catalog.freshness import Freshness
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.schema import MoveToVolume, TtlRule

EXAMPLES, STEPS = 30, 16
ROWS = 6
FIRST = 3
"""The number of the insert that every example begins with: rows of both months, or few rules are altered over any."""
MONTHS = {JANUARY: 1, FEBRUARY: 2}

Verb = Literal["insert", "merge", "move", "keep", "move back", "alter", "drop", "gc"]
Model = dict[str, frozenset[int]]
"""Partition -> keys of its rows."""


def carry_out(store: Store, verb: Verb, partition: str, number: int) -> None:
    """One step. `number` makes the keys of an insert: the same number is the same insert. And an altered rule."""
    if verb in ("merge", "move", "keep", "move back") and partition not in {
        p.name.partition for p in store.parts(TABLE)
    }:
        return
    match verb:
        case "insert":
            months = tuple(MONTHS.values()) if number % 3 == 0 else (MONTHS[partition],)
            store.table(TABLE).insert([rows(number * 100, months=months, count=ROWS)])
        case "merge":
            store.merge(TABLE, MergeRequest(partition=partition, final=True))
        case "move" | "keep" | "move back":
            volume, keep = "hot" if verb == "move back" else "cold", verb == "keep"
            with suppress(Refused):  # all parts are there already
                store.apply(store.plan_manual_move(TABLE, partition=partition, to_volume=volume, keep_source=keep))
        case "alter":
            old = store.definition(TABLE)
            rule = TtlRule(after_seconds=number * 86400, column="ts", action=MoveToVolume("cold"))
            store.alter_table(old, msgspec.structs.replace(old, ttl=(rule,)))
        case "drop":
            to_delete = [stored for stored in store.parts(TABLE) if stored.name.partition == partition]
            tables.drop_parts(store.context, to_delete, reason="test")
        case "gc":
            if store.object_disk("s3").revision:
                collect(store, "s3")


def carry_out_in_child(
    site: Site, settled: bool, ahead: timedelta, verb: Verb, partition: str, number: int, mode: Mode, at: int
) -> None:
    with keeping(settled=settled), site.open(ahead=ahead) as store, hooked(Failpoints(mode, at)):
        carry_out(store, verb, partition, number)


def expected(before: Model, verb: Verb, partition: str, number: int) -> Model:
    """What the dict says after the step."""
    after = dict(before)
    if verb == "drop":
        after.pop(partition, None)
    if verb == "insert":
        months = list(MONTHS) if number % 3 == 0 else [partition]
        for index in range(ROWS * len(months)):
            month = months[index % len(months)]
            after[month] = after.get(month, frozenset()) | {number * 100 + index}
    return after


class StoreMachine(RuleBasedStateMachine):
    """`number` of an insert is new each time, or that of an earlier one whose rows are still there: a repeat."""

    partitions = st.sampled_from([JANUARY, FEBRUARY])
    verbs = st.sampled_from(["insert", "merge", "move", "keep", "move back", "alter", "drop", "gc"])

    def __init__(self, server: ForkServer) -> None:
        super().__init__()
        self.server = server
        self.stack = ExitStack()
        self.site = self.stack.enter_context(temporary_site())
        self.ahead = timedelta(0)
        self.model: Model = {}
        self.next_number = FIRST
        self.repeatable: list[tuple[str, int]] = []
        self.in_bucket = 0
        """Rows there: what another machine sees."""

    @initialize(settled=st.booleans(), freshness=st.sampled_from([Freshness.CHANGES, Freshness.EVERY_FILE]))
    def begin(self, settled: bool, freshness: Freshness) -> None:
        """`settled`: files of just now are such as may be known again. `freshness`: that
        of this process."""
        self.settled, self.freshness = settled, freshness
        self.stack.enter_context(keeping(settled=settled))
        self.store = self.site.open()
        self.store.create_table(events())
        self.watcher = self.stack.enter_context(watching(self.site, has_read=True))
        self.late = self.stack.enter_context(watching(self.site, has_read=False))
        self.stack.callback(lambda: self.store.close())
        self._step("insert", JANUARY, FIRST)

    def teardown(self) -> None:
        self.stack.close()

    # Plain steps

    @rule(partition=partitions)
    def insert(self, partition: str) -> None:
        self._step("insert", partition, self._new_number())

    @rule(data=st.data())
    def insert_again(self, data: st.DataObject) -> None:
        if self.repeatable:
            partition, number = data.draw(st.sampled_from(self.repeatable))
            self._step("insert", partition, number)

    @rule(verb=verbs.filter(lambda verb: verb != "insert"), partition=partitions)
    def step(self, verb: Verb, partition: str) -> None:
        self._step(verb, partition, self._new_number())

    @rule(partition=partitions)
    def merge_beside_copies(self, partition: str) -> None:
        for verb in ("keep", "insert", "merge"):
            self._step(verb, partition, self._new_number())

    @rule()
    def alter(self) -> None:
        self._step("alter", JANUARY, self._new_number())

    @rule(hours=st.sampled_from([1, 30, 100]))
    def clock_goes_on(self, hours: int) -> None:
        self.ahead += timedelta(hours=hours)
        self.restart()

    @rule()
    def late_look(self) -> None:
        assert [*index_is_as_read(self.store, self.late)] == []

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self._opened()
        assert self.store.recovered == [], "nothing had crashed"

    # Faults

    @rule(verb=verbs, partition=partitions, at=st.integers(1, 70))
    def crash_in(self, verb: Verb, partition: str, at: int) -> None:
        number = self._new_number()
        self.store.close()
        outcome = self.server.run(
            carry_out_in_child, self.site, self.settled, self.ahead, verb, partition, number, "kill", at
        )
        assert outcome.kind in ("killed", "returned"), outcome.error
        self.store = self._opened()
        self._settle(verb, partition, number, acknowledged=outcome.kind == "returned")
        assert [*invariants.no_leftovers(self.site)] == []

    @rule(
        verb=verbs, partition=partitions, at=st.integers(1, 70), mode=st.sampled_from(["raise_before", "raise_after"])
    )
    def error_in(self, verb: Verb, partition: str, at: int, mode: Mode) -> None:
        number = self._new_number()
        failed = False
        try:
            with hooked(Failpoints(mode, at)):
                carry_out(self.store, verb, partition, number)
        except Exception:
            failed = True
        self.store.refresh(self.freshness)
        self._settle(verb, partition, number, acknowledged=not failed)
        self.store.close()
        self.store = self._opened()  # an error in the tidying itself is recovery's business

    def _opened(self) -> Store:
        return self.site.open(ahead=self.ahead, freshness=self.freshness)

    def _new_number(self) -> int:
        self.next_number += 1
        return self.next_number

    def _step(self, verb: Verb, partition: str, number: int) -> None:
        carry_out(self.store, verb, partition, number)
        self.store.refresh(self.freshness)
        self._settle(verb, partition, number, acknowledged=True)
        if any(stored.state == "outdated" for stored in self.store.parts(TABLE, include_outdated=True)):
            self.store.close()
            self.store = self._opened()  # copies of what a merge took in the bucket go at the next opening

    def _settle(self, verb: Verb, partition: str, number: int, *, acknowledged: bool) -> None:
        after = expected(self.model, verb, partition, number)
        seen = self._seen()
        assert seen == after or (not acknowledged and seen == self.model), (seen, after, self.model)
        if verb == "insert" and seen == after:
            self.repeatable.append((partition, number))
        if verb == "drop":
            self.repeatable.clear()
        self.model = seen
        before, self.in_bucket = self.in_bucket, self._rows_in_bucket()
        assert verb in ("drop", "move back") or self.in_bucket >= before, f"{verb} took rows off the bucket"

    def _rows_in_bucket(self) -> int:
        stored = self.store.parts(TABLE, include_outdated=True)
        return sum(one.facts.rows for one in stored if one.disk == "s3" and one.state != "outdated")

    def _seen(self) -> Model:
        found: dict[str, set[int]] = {}
        for key, moment, _ in invariants.rows_of(self.store, TABLE):
            assert key not in found.setdefault(moment.strftime("%Y%m"), set()), f"row {key} is there twice"
            found[moment.strftime("%Y%m")].add(key)
        return {partition: frozenset(keys) for partition, keys in found.items()}

    # Always

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self._seen() == self.model
        assert [*index_is_as_read(self.store, self.watcher)] == []
        assert [*catalog_is_as_read(self.store)] == []
        kept = " is duplicate after recovery"  # a copy of what the bucket has
        assert [one for one in invariants.readable_once(self.store) if not one.endswith(kept)] == []
        assert [*invariants.no_overlap(self.store)] == []
        assert [*invariants.no_dangling_reference(self.store)] == []
        assert [*invariants.counter_is_dense(self.store)] == []


def test_the_store_is_a_dict() -> None:
    """Bounded; a failure prints the steps that lead to it."""
    with ForkServer() as server:
        run_state_machine_as_test(lambda: StoreMachine(server), settings=histories(EXAMPLES, STEPS))
