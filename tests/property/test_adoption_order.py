"""I13: adoption keeps the order of inserts in every merge mode, or is refused: random histories of machines that are
lost and come back, against a model that knows the order and nothing of blocks, ranges or logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disks.config import ObjectDiskConfig
from oplog.errors import FrostlineError
from oplog.kinds import Merged, undone_revision
from restore.history.undo import undo
from tests.turns import examples
from tiering.config.settings import Config, embedded
from tiering.engine.store import Store
from tiering.merge.cold.job import Workers
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.table.definitions import define_table

STEPS, MACHINES = 14, 3
COLUMNS = ["k:int64", "v:int64", "d:bool", "n:int64", "x:string"]
Verb = Literal["cold", "merge", "merge cold", "adopt", "join", "lose", "come back", "undo"]


class Row(msgspec.Struct, frozen=True, order=True):
    """A row as it was inserted, or as a query shows it. `x` is the number of its insert."""

    k: int
    v: int | None
    d: bool
    n: int
    x: str


def newest(rows: list[Row]) -> Row:
    return rows[-1]


def highest(rows: list[Row]) -> Row:
    """The highest version, of equal ones the last; null is below all."""
    return max(enumerate(rows), key=lambda pair: (pair[1].v is not None, pair[1].v or 0, pair[0]))[1]


def summed(rows: list[Row]) -> Row:
    return msgspec.structs.replace(rows[0], n=sum(row.n for row in rows))


def aggregated(rows: list[Row]) -> Row:
    """v: the first value; n: the sum; x: the last; d, which no function names: the first."""
    v = next((row.v for row in rows if row.v is not None), None)
    return Row(rows[0].k, v, rows[0].d, sum(row.n for row in rows), rows[-1].x)


MODES: dict[str, Callable[[list[Row]], Row]] = {
    "replacing": newest,
    "replacing:v": highest,
    "replacing:v,d": highest,
    "summing:n": summed,
    "aggregating:n=sum,v=any,x=anyLast": aggregated,
    "aggregating:v=max,d=max,n=sum,x=min": lambda rows: Row(
        rows[0].k,
        max((row.v for row in rows if row.v is not None), default=None),
        any(row.d for row in rows),
        sum(row.n for row in rows),
        min(row.x for row in rows),
    ),
}


def by_key(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.k, []).append(row)
    return found


def check_shown(mode: str, alive: list[Row], shown: list[Row], *, is_whole: bool) -> None:
    """`alive`: the rows that a machine can have, as they were inserted. `is_whole`: all of them were merged."""
    reduce = MODES[mode]
    seen = by_key(shown)
    for key, rows in by_key(alive).items():
        here, answer = seen.pop(key, []), reduce(rows)
        if is_whole:
            assert here == [answer], (key, rows, here)
        elif mode.startswith("replacing"):
            assert answer in here, (key, rows, here)
            assert {*here} <= {*rows}, (key, rows, here)
        else:
            assert sum(row.n for row in here) == answer.n, (key, rows, here)
            if "max" not in mode:
                first, last = rows[0].x, rows[-1].x
                assert (last if "anyLast" in mode else first) in {row.x for row in here}, (key, rows, here)
                assert (answer.v, answer.d) in {(row.v, row.d) for row in here} or "any" in mode, (key, rows, here)
    assert not seen, seen


class Machine:
    """An SSD and a state of its own. `rows`: what it inserted and has in no bucket."""

    def __init__(self, config: Config, stack: ExitStack) -> None:
        self.config = config
        self.rows: list[Row] = []
        self.store = Store.open(config, workers=1)
        stack.callback(lambda: self.store.close())

    def go(self) -> None:
        self.store.close()

    def come(self) -> None:
        self.store = Store.open(self.config, workers=1)


class World:
    def __init__(self, root: Path, mode: str, stack: ExitStack, *, resting: bool, small: bool) -> None:
        """`resting`: the cold volume prefers not to merge. `small`: what is adopted stays in parts of its own."""
        self.root, self.mode, self.stack, self.resting = root, mode, stack, resting
        self.inserted: list[Row] = []
        self.cold: set[Row] = set()
        self.away: list[Machine] = []
        self.made = self.inserts = 0
        self.machines = [self.new()]
        limit = ["max_merge_size_bytes=1"] if small else []
        made = define_table("d.t", columns=COLUMNS, order_by="k", policy="hot_cold", merge_mode=mode, settings=limit)
        self.machines[0].store.create_table(made)

    def new(self) -> Machine:
        config = embedded(self.root / str(self.made))
        self.made += 1
        hot, cold = config.policies["hot_cold"].volumes
        volumes = (hot, msgspec.structs.replace(cold, prefer_not_to_merge=self.resting))
        policies = {"hot_cold": msgspec.structs.replace(config.policies["hot_cold"], volumes=volumes)}
        bucket = ObjectDiskConfig(url=(self.root / "bucket").as_uri() + "/")
        return Machine(
            msgspec.structs.replace(config, disks={**config.disks, "s3": bucket}, policies=policies), self.stack
        )

    def insert(self, machine: Machine, values: list[tuple[int, int | None, bool, int]]) -> None:
        self.inserts += 1
        number = self.inserts
        rows = [Row(k, v, d, n, f"{number:04d}") for k, v, d, n in values]
        columns = {name: [getattr(row, name) for row in rows] for name in ("k", "v", "d", "n", "x")}
        schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "d": pa.bool_(), "n": pa.int64(), "x": pa.string()})
        machine.store.table("d.t").insert(pa.table(columns, schema).to_batches())
        self.inserted += rows
        machine.rows += rows

    def step(self, verb: Verb, machine: Machine, number: int) -> None:
        store = machine.store
        match verb:
            case "cold":
                if machine.rows:
                    report = store.apply(store.plan_manual_move("d.t", partition="all", to_disk="s3"))
                    assert not report.failed
                    self.cold |= {*machine.rows}
                    machine.rows = []
            case "merge":
                store.merge("d.t", MergeRequest(final=True, drop_deleted=number % 2 == 0))
                if number % 2 == 0 and self.mode == "replacing:v,d":
                    self.forget(machine)
            case "merge cold":
                store.merge_cold(
                    "d.t",
                    Workers.of_this_process(store.context),
                    MergeRequest(final=True, cold=ColdOptions(), adopt=number % 2 == 0),
                )
            case "adopt":
                store.merge("d.t", MergeRequest(adopt=True, final=number % 2 == 0))
            case "join":
                if len(self.machines) < MACHINES:
                    self.machines.append(self.new())
            case "lose":
                machine.go()
                self.machines.remove(machine)
                self.away.append(machine)
                if not self.machines:
                    self.machines.append(self.new())
            case "come back":
                if self.away and len(self.machines) < MACHINES:
                    self.machines.append(self.away.pop(number % len(self.away)))
                    self.machines[-1].come()
            case "undo":
                disk = store.object_disk("s3")
                commits = [found.commit for found in disk.entries()]
                merges = [
                    one.revision
                    for one in commits
                    if isinstance(one.kind, Merged) and undone_revision(one.kind) is None
                ]
                if merges:
                    undo(store.context, disk, merges[-1 - number % len(merges)])
            case _:
                raise AssertionError(verb)

    def forget(self, machine: Machine) -> None:
        """Keys that are deleted may be forgotten by now: then what was older counts no more for what comes later."""
        keys = {row.k for row in self.shown(machine)}
        for key, rows in by_key(self.alive(machine)).items():
            if key not in keys and highest(rows).d:
                self.inserted = [row for row in self.inserted if row not in rows]

    def shown(self, machine: Machine) -> list[Row]:
        machine.store.refresh()
        return [Row(**row) for row in machine.store.query("SELECT * FROM d.t").read_all().to_pylist()]

    def alive(self, machine: Machine) -> list[Row]:
        """All rows that the machine can have, as they were inserted."""
        return [row for row in self.inserted if row in self.cold or row in machine.rows]

    def check(self) -> None:
        for machine in self.machines:
            shown, is_whole = self.shown(machine), len(machine.store.parts("d.t")) == 1
            check_shown(self.mode, self.alive(machine), shown, is_whole=is_whole)


VALUES = st.tuples(st.integers(0, 1), st.none() | st.integers(1, 2), st.booleans(), st.integers(0, 9))
INSERT = st.lists(VALUES, min_size=1, max_size=2, unique_by=lambda value: value[0])
VERBS: list[Verb] = ["cold", "merge", "merge cold", "adopt", "adopt", "join", "lose", "come back", "undo"]


@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_order_of_inserts_stays(data: st.DataObject) -> None:
    """What is refused changes nothing that counts here: after each step every machine's answer is looked at."""
    root, mode = Path(tempfile.mkdtemp(prefix="adoption-")), data.draw(st.sampled_from(list(MODES)))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        world = World(root, mode, stack, resting=data.draw(st.booleans()), small=data.draw(st.booleans()))
        for _ in range(data.draw(st.integers(4, STEPS))):
            machine = data.draw(st.sampled_from(world.machines))
            choice = data.draw(st.integers(0, 5))
            if choice < 3:
                world.insert(machine, data.draw(INSERT))
            with suppress(FrostlineError):
                world.step("cold" if choice < 2 else data.draw(st.sampled_from(VERBS)), machine, choice)
            world.check()
