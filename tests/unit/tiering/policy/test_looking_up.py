"""Plans that look only at what may move: the same as those of who reads every part. Guards P18 (no ping-pong)."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oplog.kinds import Inserted
from tests.idle_parts import first_due, together
from tests.keeping import keeping
from tests.unit.tiering.policy.placing import NOW, ROOMY, TWO, placed, table
from tiering.catalog import tables
from tiering.catalog.freshness import Freshness
from tiering.catalog.new_parts import DIGEST_CLAIM, INSERT_CLAIM
from tiering.config.settings import PolicyConfig, VolumeConfig, embedded
from tiering.engine.store import Store
from tiering.facts.moves import plan_document
from tiering.journal.records import PartPin
from tiering.merge.request import MergeRequest
from tiering.policy import cost
from tiering.policy.decide import DiskState, decide, to_look_at, unseen
from tiering.policy.plan import WAITING, Options, PlacedPart, Plan
from tiering.table import part as part_format
from tiering.table.definitions import define_table
from tiering.table.part import ColumnRange, DataFile, Part
from tiering.table.schema import Delete, MoveToVolume, Recompress, TableDefinition, TtlRule
from tui.facts import storage

GB = 1024**3
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
TABLE = "d.t"
RULES = (
    TtlRule(after_seconds=30 * 86400, column="ts", action=MoveToVolume("cold")),
    TtlRule(after_seconds=45 * 86400, column="seen", action=Recompress(codec="zstd")),
    TtlRule(after_seconds=400 * 86400, column="ts", action=Delete()),
)


def looked_up(
    parts: list[PlacedPart], disks: dict[str, DiskState], policy: PolicyConfig, **options: Any
) -> tuple[set[str] | None, Plan]:
    """Which parts are looked at, None where all have to be; and the plan, which is that of all."""
    places = together(parts, {"p": policy}, NOW, "p")
    asked = Options(rest="next", **options)
    wanted = to_look_at(places, disks, {"p": policy}, NOW, asked)
    whole = decide(parts, disks, {"p": policy}, NOW, asked)
    if wanted is None:
        return None, whole
    seen = [part for part in parts if (part.definition.uuid, part.name.partition) in wanted]
    asked = Options(
        rest="next", unseen=unseen(places, wanted, first_due(parts, wanted, {"p": policy}, NOW, "p")), **options
    )
    plan = decide(seen, disks, {"p": policy}, NOW, asked)
    assert (plan.moves, plan.staying, plan.next_due) == (whole.moves, whole.staying, whole.next_due)
    return {part.part.name for part in seen}, plan


def volumes(*disks: str) -> PolicyConfig:
    """A policy of a volume for each of these, which name one disk or several."""
    return PolicyConfig(
        volumes=tuple(VolumeConfig(name=f"v_{names}", disks=tuple(names.split("+"))) for names in disks)
    )


def to(volume: str) -> TableDefinition:
    return table((5, MoveToVolume(volume)))


def test_a_disk_too_full_by_what_is_due_gives_away_others() -> None:
    """The part that has to leave is due by no rule."""
    policy = volumes("ssd", "warm", "s3")
    disks = {"ssd": DiskState(100 * GB, 90 * GB), "warm": DiskState(100 * GB, 11 * GB), "s3": DiskState(None, None)}
    due = placed(to("v_warm"), "a_1_1_0", size=5 * GB)
    heavy = placed(to("v_warm"), "b_2_2_0", size=20 * GB, disk="warm")
    names, plan = looked_up([due, heavy], disks, policy)
    assert names is None
    assert {(move.part, move.target) for move in plan.moves} == {("a_1_1_0", "warm"), ("b_2_2_0", "s3")}
    roomy = {**disks, "warm": DiskState(100 * GB, 50 * GB)}
    names, plan = looked_up([due, heavy], roomy, policy)
    assert names == {"a_1_1_0"}
    assert [move.part for move in plan.moves] == ["a_1_1_0"]


def test_a_disk_to_which_a_pin_brings_parts_gives_away_others() -> None:
    policy = volumes("ssd", "s3")
    disks = {"ssd": DiskState(100 * GB, 11 * GB), "s3": DiskState(None, None)}
    pinned = placed(table(), "a_1_1_0", size=5 * GB, disk="s3")
    heavy = placed(table(), "b_2_2_0", size=20 * GB)
    pin = PartPin(table_uuid="u1", scope="part", name="a_1_1_0", volume="v_ssd", created=NOW)
    names, plan = looked_up([pinned, heavy], disks, policy, pins=[pin])
    assert names is None
    assert {move.part for move in plan.moves} == {"a_1_1_0", "b_2_2_0"}


def test_parts_that_are_not_read_take_their_turn_of_the_disks() -> None:
    policy = volumes("ssd", "one+two")
    disks = {"ssd": DiskState(100 * GB, 90 * GB), "one": DiskState(None, None), "two": DiskState(None, None)}
    due = placed(to("v_one+two"), "a_1_1_0")
    there = placed(to("v_one+two"), "b_2_2_0", disk="one")
    names, plan = looked_up([due, there], disks, policy)
    assert names == {"a_1_1_0"}
    assert [move.target for move in plan.moves] == ["two"]


def test_of_rules_that_only_tell_the_next_of_many_parts_is_told() -> None:
    """Of a part whose first is past, and whose last is not, the partition is looked at."""
    squeezed = table((20, Recompress(codec="zstd")))
    parts = [placed(squeezed, f"a_{number}_{number}_0", age=age) for number, age in ((1, 30), (2, 10), (3, 25))]
    names, plan = looked_up(parts, ROOMY, TWO)
    assert names == set()
    assert plan.next_due == NOW + timedelta(days=10)
    twice = table((20, Recompress(codec="zstd")), (40, Recompress(codec="zstd")))
    several = [placed(twice, f"{part}_1_1_0", age=age) for part, age in (("a", 30), ("b", 10), ("c", 50))]
    names, plan = looked_up(several, ROOMY, TWO)
    assert (names, plan.next_due) == ({"a_1_1_0"}, NOW + timedelta(days=10))
    names, plan = looked_up(parts[::2], ROOMY, TWO)
    assert (names, plan.next_due, plan.staying) == (set(), None, 2)


def test_a_plan_made_during_an_insert_reads_none_of_its_parts(tmp_path: Path) -> None:
    """Inserts and merges hold block numbers and digests by claims that stand beside those of parts."""
    with Store.open(embedded(tmp_path)) as store:
        store.create_table(define_table(TABLE, columns=["k:int64"], order_by="k", policy="hot_cold"))
        definition = store.definition(TABLE)
        held = [f"{INSERT_CLAIM}33-ff1ac642033b", f"{DIGEST_CLAIM}all-{'0' * 64}"]
        with store.context.journal.claim(definition.uuid, held, "insert"):
            assert not [*store.plan(rest="next").moves, *store.plan().moves]


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(6))
def test_a_store_is_planned_by_what_is_kept_as_by_reading_it_all(tmp_path: Path, seed: int) -> None:
    """After random inserts, moves, merges, drops, pins and rules; what comes next, and what it costs, too."""
    chance = random.Random(seed)
    config = embedded(tmp_path)
    with keeping(), Store.open(config) as acting:
        columns = ["k:int64", "ts:timestamp", "seen:timestamp"]
        made = define_table(TABLE, columns=columns, order_by="k", partition_by="month(ts)", policy="hot_cold")
        acting.create_table(msgspec.structs.replace(made, ttl=RULES))
        acting.believe_clock()
        for _ in range(10):
            chance.choice(STEPS)(acting, chance)
            acting.refresh()
            at = TODAY + timedelta(days=chance.randrange(2, 400))
            with (
                Store.open(config, freshness=Freshness.CHANGES, clock=lambda at=at: at) as store,
                Store.open(config) as whole,
            ):
                for moment in (at, at + timedelta(days=chance.randrange(60))):
                    plan = store.plan(at=moment, rest="next")
                    assert msgspec.to_builtins(plan_document(store, plan)) == as_read(whole, moment)
                    assert plan.next_due == whole.plan(at=moment).next_due
                    said = [stay.reason for stay in whole.plan(at=moment).stays if stay.reason.kind in HELD]
                    assert [stay.reason for stay in plan.stays if stay.reason.kind in HELD] == said
                assert as_listed(store) == as_decided(whole, at)
                why = {stay.part: (stay.reason, stay.next_due) for stay in whole.plan(at=at).stays}
                for stored in chance.sample(whole.parts(), min(2, len(whole.parts()))):
                    explained = store.explain(TABLE, stored.facts.name)
                    assert (explained.decision == "stay") == (stored.facts.name in why)
                    if explained.decision == "stay":
                        assert (explained.reason, explained.next_due) == why[stored.facts.name]


def as_listed(store: Store) -> dict[tuple[str, str], tuple[Any, ...]]:
    """What the dashboard says of each part: where it goes now, when, and why."""
    return {key: (goes if due == at else "", due, why) for key, (goes, due, why, at) in listed(store).items()}


def listed(store: Store) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The same, also of where parts go later."""
    listing = storage.parts(store)
    value = {column.key: column.value for column in listing.columns}
    return {
        (value["part"](row), value["disk"](row)): (
            *(value[key](row) for key in ("goes", "due", "why")),
            store.context.clock(),
        )
        for row in listing.rows
    }


def said_of_later(store: Store, whole: Store) -> tuple[dict[Any, str], dict[Any, str]]:
    """Where the dashboard says that parts go later, and where the plan of that time has them go."""
    later = {key: one for key, one in listed(store).items() if one[1] is not None and one[1] > one[3]}
    plans = {due: as_decided(whole, due) for due in {one[1] for one in later.values()}}
    said = {key: "" if one[0] == "recompress" else one[0] for key, one in later.items()}
    return said, {key: plans[one[1]][key][0] for key, one in later.items()}


def as_decided(store: Store, at: datetime) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The same, out of all parts."""
    plan = store.plan(at=at)
    return {
        **{
            (stay.part, stay.disk): ("", None if stay.reason.kind == "pin" else stay.next_due, stay.reason.detail)
            for stay in plan.stays
        },
        **{(gone.part, gone.disk): ("delete", at, gone.reason.detail) for gone in plan.deletes},
        **{(move.part, move.source): (move.target, at, move.reason.detail) for move in plan.moves},
    }


def insert(store: Store, chance: random.Random) -> None:
    moment = TODAY - timedelta(days=chance.randrange(300), seconds=chance.randrange(86400))
    row = {"k": [chance.randrange(10**6)], "ts": [moment], "seen": [moment + timedelta(days=chance.randrange(20))]}
    store.table(TABLE).insert(pa.table(row).to_batches())


def some_partition(store: Store, chance: random.Random) -> str | None:
    return chance.choice(sorted({stored.name.partition for stored in store.parts()}) or [None])


def move(store: Store, chance: random.Random) -> None:
    if (partition := some_partition(store, chance)) is not None:
        store.apply(store.plan_manual_move(TABLE, partition=partition, to_volume=chance.choice(["hot", "cold"])))


def merge(store: Store, chance: random.Random) -> None:
    if (partition := some_partition(store, chance)) is not None:
        store.merge(TABLE, MergeRequest(partition=partition, final=True))


def drop(store: Store, chance: random.Random) -> None:
    partition = some_partition(store, chance)
    to_delete = [stored for stored in store.parts() if stored.name.partition == partition]
    tables.drop_parts(store.context, to_delete[:1], reason="test")


def pin(store: Store, chance: random.Random) -> None:
    if (partition := some_partition(store, chance)) is not None:
        volume = chance.choice([None, "hot", "cold"])
        uuid = store.definition(TABLE).uuid
        store.context.journal.overrides.pin(uuid, partition=partition, part=None, volume=volume, actor="test")


def alter(store: Store, chance: random.Random) -> None:
    old = store.definition(TABLE)
    store.alter_table(old, msgspec.structs.replace(old, ttl=tuple(chance.sample(RULES, chance.randrange(1, 4)))))


STEPS = (insert, insert, insert, insert, move, move, merge, drop, pin, alter)
HELD = ("pin", "paused", "clock", "no_space", "unusable_disk", "busy")


def as_read(store: Store, at: datetime) -> dict[str, Any]:
    """The document, out of all parts."""
    plan = store.plan(at=at)
    known = {(stored.facts.name, stored.disk): stored.part for stored in store.parts()}
    estimate = cost.estimate(plan.moves, lambda move: known[move.part, move.source], {"s3"})
    plain = msgspec.to_builtins(plan)
    return {
        "at": plain["now"],
        "moves": [
            {**move, "cost": msgspec.to_builtins(one)} for move, one in zip(plain["moves"], estimate.moves, strict=True)
        ],
        "deletes": plain["deletes"],
        "stays": len(plan.stays),
        "held": [stay for stay in plain["stays"] if stay["reason"]["kind"] in WAITING],
        "bytes": sum(move.bytes for move in plan.moves),
        "requests": estimate.total.requests,
    }


def test_a_plan_costs_what_the_files_of_its_parts_do(tmp_path: Path) -> None:
    """Also where they are asked for by partition."""
    config = embedded(tmp_path)
    with keeping():
        with Store.open(config) as store:
            columns = ["k:int64", "ts:timestamp"]
            made = define_table(TABLE, columns=columns, order_by="k", partition_by="month(ts)", policy="hot_cold")
            store.create_table(msgspec.structs.replace(made, ttl=RULES[:1]))
            definition = store.definition(TABLE)
            files = tuple(
                DataFile(name=f"data-000{n}.parquet", rows=1, size_bytes=GB, sha256="0" * 64) for n in range(3)
            )
            newest = {"2": ColumnRange(max=(TODAY - timedelta(days=60)).isoformat())}
            common = {"table": definition.uuid, "rows": 3, "size_bytes": 3 * GB, "created": TODAY, "files": files}
            with store.disk("ssd").transaction(Inserted()) as transaction:
                for name in ("202601_1_1_0", "202602_2_2_0"):
                    one = Part(name=name, columns=newest, **common)
                    transaction.create(f"{definition.part_directory(name)}/part.json", part_format.encode(one))
                transaction.commit()
        with Store.open(config):
            pass
        with Store.open(config, freshness=Freshness.CHANGES) as store:
            plan = store.plan(rest="next")
            assert [move.part for move in plan.moves] == ["202601_1_1_0", "202602_2_2_0"]
            assert msgspec.to_builtins(plan_document(store, plan)) == as_read(store, plan.now)
            assert plan_document(store, plan).requests > 2 * len(files)
