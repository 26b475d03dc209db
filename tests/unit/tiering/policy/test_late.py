"""Rows that come late wait, are merged, and move together; never for ever. Guards P21 to P23."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.tiering.policy.placing import GB, NOW, TO_COLD, TWO, Placed, placed, plan, table
from tiering.config.settings import PacingConfig, PolicyConfig, VolumeConfig, embedded
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.policy.late import MOST_PARTS
from tiering.policy.placement import DiskState
from tiering.policy.plan import Plan
from tiering.table.definitions import define_table

AHEAD = NOW + timedelta(days=400)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
WAITING = msgspec.structs.replace(TWO, pacing=PacingConfig(late_seconds=3600))
DEFINITION = table(TO_COLD)


def late(number: int, waited: timedelta = timedelta(), partition: str = "a", **changes: Any) -> Placed:
    name = f"{partition}_{number}_{number}_0"
    return placed(DEFINITION, name, **({"size": 1000, "created": NOW - waited} | changes))


def held(decided: Plan) -> set[tuple[str, datetime | None]]:
    return {(stay.reason.kind, stay.next_due) for stay in decided.stays}


def test_small_parts_due_when_written_wait_by_the_oldest() -> None:
    decided = plan(late(1, 20 * MINUTE), late(2), late(3, partition="b"), policy=WAITING)
    assert decided.moves == ()
    assert held(decided) == {("late", NOW + 40 * MINUTE), ("late", NOW + HOUR)}
    assert {stay.reason.detail for stay in decided.stays} == {
        f"partition {parts} of late rows; such parts are merged, then they move together; it waits until {time}"
        for parts, time in (("a has 2 small parts", "2026-03-01T00:40Z"), ("b has 1 small part", "2026-03-01T01:00Z"))
    }
    assert len(plan(late(1), late(2), policy=TWO).moves) == 2, "without the setting nothing waits"


def test_what_waited_is_kept_for_the_merge_but_not_for_ever() -> None:
    """A merge that does not come holds them for as long again; one that is alone needs none."""
    two = [late(1, HOUR), late(2)]
    decided = plan(*two, policy=WAITING)
    assert held(decided) == {("late", NOW + HOUR)}
    assert "the next merge takes them" in decided.stays[0].reason.detail
    assert len(plan(*two, policy=WAITING, now=NOW + HOUR).moves) == 2
    assert len(plan(late(1, HOUR), policy=WAITING).moves) == 1


@pytest.mark.parametrize(
    "part",
    [
        late(1, size=17 * 1024**2),
        placed(DEFINITION, "a_1_4_1", size=1000, created=NOW),
        late(1, age=0, created=NOW - timedelta(days=8)),
        late(1, created=AHEAD),
        placed(DEFINITION, "a_1_1_0_2", size=1000, created=NOW),
    ],
    ids=["large", "merged", "due since", "by a wrong clock", "mutated"],
)
def test_others_do_not_wait_and_end_the_wait_of_their_partition(part: Placed) -> None:
    now = NOW + timedelta(days=7) if part.part.columns["1"].max == NOW.isoformat() else NOW
    assert len(plan(part, policy=WAITING, now=now, written_ahead=AHEAD).moves) == 1
    beside = [late(number, created=now) for number in (7, 8)]
    decided = plan(part, *beside, policy=WAITING, now=now, written_ahead=AHEAD)
    assert [move.part for move in decided.moves] == [part.part.name]
    assert "the next merge takes" in decided.stays[0].reason.detail
    assert held(decided) == {("late", now + 2 * HOUR)}


def test_many_wait_no_longer() -> None:
    few, many = ([late(number) for number in range(1, count)] for count in (MOST_PARTS, MOST_PARTS + 1))
    assert "such parts are merged" in plan(*few, policy=WAITING).stays[0].reason.detail
    assert "the next merge takes" in plan(*many, policy=WAITING).stays[0].reason.detail


def test_a_full_disk_ends_the_wait() -> None:
    full = {"ssd": DiskState(100 * GB, 4 * GB), "s3": DiskState(None, None)}
    assert len(plan(late(1), late(2), policy=WAITING, disks=full).moves) == 2


def test_nothing_waits_where_nothing_merges() -> None:
    resting = VolumeConfig(name="hot", disks=("ssd",), prefer_not_to_merge=True)
    policy = msgspec.structs.replace(WAITING, volumes=(resting, TWO.volumes[1]))
    assert len(plan(late(1), late(2), policy=policy).moves) == 2


class Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


DAY = timedelta(days=1)
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def opened(home: Path, clock: Clock, **pacing: Any) -> Store:
    config = embedded(home)
    policy: PolicyConfig = msgspec.structs.replace(config.policies["hot_cold"], pacing=PacingConfig(**pacing))
    return Store.open(msgspec.structs.replace(config, policies={"hot_cold": policy}), clock=clock, workers=1)


@pytest.fixture
def clock() -> Clock:
    return Clock(BEGIN)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with opened(tmp_path, clock, late_seconds=3600) as made:
        create(made)
        yield made


def create(store: Store) -> None:
    columns, ttl = ["ts:timestamp[us, UTC]", "n:int64"], ["7d on ts to volume cold"]
    store.create_table(
        define_table("d.t", columns=columns, order_by="n", partition_by="day(ts)", policy="hot_cold", ttl=ttl)
    )


def insert(store: Store, number: int, *days_ago: int) -> None:
    """A row a day."""
    rows = [BEGIN - days * DAY for days in days_ago]
    store.table("d.t").insert([pa.record_batch([rows, [number] * len(rows)], schema=SCHEMA)])


def parts(store: Store) -> list[tuple[str, str, int]]:
    store.refresh()
    return sorted((str(one.name), one.disk, one.facts.rows) for one in store.parts("d.t"))


def test_late_rows_are_merged_once_and_moved_in_the_same_pass(store: Store, clock: Clock) -> None:
    for number in range(8):
        insert(store, number, 10)
        report = store.tick()
        assert (report.merges, report.moves.moved) == ([], ()), "six equal parts would merge by themselves"
        assert report.held == {"late": number + 1}
        clock.now += 7 * MINUTE
    (stay,) = store.explain_merges("d.t", [], MergeRequest())
    assert stay.reason.kind == "late"
    clock.now = BEGIN + HOUR
    report = store.tick()
    assert ([len(one.inputs) for one in report.merges], len(report.moves.moved), report.held) == ([8], 1, {})
    assert parts(store) == [("20260219_1_8_1", "s3", 8)]


@pytest.mark.in_turn
def test_late_rows_leave_few_parts_and_all_of_them_leave(tmp_path: Path) -> None:
    """One insert in five minutes for six hours, whatever else there is; nothing is left behind."""
    cold: dict[int, int] = {}
    for late_seconds in (0, 3600):
        clock = Clock(BEGIN)
        with opened(tmp_path / str(late_seconds), clock, late_seconds=late_seconds) as store:
            create(store)
            for number in range(72):
                insert(store, number, 0, 9 + number % 3)
                store.tick()
                clock.now += 5 * MINUTE
            clock.now += 2 * HOUR
            store.tick()
            assert sum(rows for *_, rows in parts(store)) == 144
            found = [(disk, name) for name, disk, _ in parts(store) if not name.startswith("20260301")]
            assert {disk for disk, _ in found} == {"s3"}
            cold[late_seconds] = len(found)
    assert cold[0] == 72
    assert cold[3600] <= 3 * 7


def test_a_merge_by_hand_takes_what_waits(store: Store) -> None:
    for number in range(3):
        insert(store, number, 10)
    assert store.plan_merges("d.t", MergeRequest()) == []
    (merge,) = store.plan_merges("d.t", MergeRequest(final=True))
    assert len(merge.parts) == 3


def test_what_cannot_be_merged_moves_all_the_same(store: Store, clock: Clock) -> None:
    for number in range(2):
        insert(store, number, 10)
    store.context.journal.overrides.pause(None, ["merges"], actor="test")
    clock.now += HOUR
    assert store.tick().held == {"late": 2}
    clock.now += HOUR
    assert len(store.tick().moves.moved) == 2
