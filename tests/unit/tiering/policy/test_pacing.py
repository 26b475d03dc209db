"""When due moves begin: windows, spreading, cool-down, merges first, budgets, watermarks. Guards P21 to P23."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oplog.errors import Transient, UsageError
from tests.unit.tiering.policy.placing import GB, NOW, TO_COLD, TWO, placed, plan, table
from tiering.config.reading import load
from tiering.config.settings import PacingConfig, PolicyConfig, PricesConfig, embedded
from tiering.engine.store import Store
from tiering.journal.records import PartPin
from tiering.move.file_copies import FileCopies
from tiering.policy.pacing import interval_of
from tiering.policy.placement import DiskState
from tiering.policy.plan import Plan, Spent
from tiering.table.definitions import define_table

HOUR = timedelta(hours=1)
DUE = NOW - timedelta(days=3)
"""When the parts of `placed` with the rule TO_COLD became due."""
FULL = {"ssd": DiskState(100 * GB, 4 * GB), "s3": DiskState(None, None)}


def paced(**pacing: Any) -> PolicyConfig:
    return msgspec.structs.replace(TWO, pacing=PacingConfig(**pacing))


def only_stay(decided: Plan) -> tuple[str, datetime | None]:
    assert decided.moves == ()
    (stay,) = decided.stays
    return stay.reason.kind, stay.next_due


def test_a_window_holds_ttl_moves_until_it_opens() -> None:
    night = paced(window="22:00-06:00")
    part = placed(table(TO_COLD))
    noon = NOW + 12 * HOUR
    assert len(plan(part, policy=night, now=noon - 7 * HOUR).moves) == 1
    decided = plan(part, policy=night, now=noon)
    assert only_stay(decided) == ("window", NOW + 22 * HOUR)
    assert "22:00-06:00 (UTC) only; it waits until 2026-03-01T22:00Z" in decided.stays[0].reason.detail
    assert len(plan(part, policy=night, now=NOW + 22 * HOUR).moves) == 1
    berlin = paced(window="22:00-06:00", timezone="Europe/Berlin")
    assert only_stay(plan(part, policy=berlin, now=noon)) == ("window", NOW + 21 * HOUR)


def test_a_full_disk_and_a_pin_wait_for_no_window() -> None:
    night, noon = paced(window="22:00-06:00", spread_seconds=1e6, merge_first_parts=1), NOW + 12 * HOUR
    parts = [placed(table(), f"all_{number}_{number}_0", size=7 * GB) for number in (1, 2)]
    assert len(plan(*parts, policy=night, now=noon, disks=FULL).moves) == 1
    pin = PartPin(table_uuid="u1", scope="part", name="all_1_1_0", volume="cold", created=NOW)
    (move,) = plan(*parts, policy=night, now=noon, pins=(pin,)).moves
    assert move.reason.kind == "pin"


@pytest.mark.in_turn
def test_a_batch_that_became_due_at_once_is_spread_evenly() -> None:
    """The highest to the mean rate is at most 1.3, in whatever partitions and from whatever number on."""
    definition = table(TO_COLD)
    parts = [placed(definition, f"p{n % 7}_{n + 977}_{n + 977}_0", size=1, created=DUE) for n in range(2_000)]
    spread = paced(spread_seconds=6000)
    left, counts = {part.part.name: part for part in parts}, []
    for step in range(1, 21):
        moves = plan(*left.values(), policy=spread, now=DUE + step * timedelta(seconds=300)).moves
        counts.append(len(moves))
        for move in moves:
            del left[move.part]
    assert not left
    assert max(counts) <= 1.3 * sum(counts) / len(counts)


def test_each_part_of_a_batch_has_a_time_that_stays_the_same() -> None:
    spread = paced(spread_seconds=7200)
    part = placed(table(TO_COLD), "all_5_5_0", created=DUE)
    kind, until = only_stay(plan(part, policy=spread, now=DUE))
    assert (kind, until is not None and DUE < until <= DUE + 2 * HOUR) == ("spread", True)
    assert until is not None
    assert only_stay(plan(part, policy=spread, now=until - timedelta(seconds=1))) == ("spread", until)
    assert len(plan(part, policy=spread, now=until).moves) == 1
    assert len(plan(part, policy=spread).moves) == 1, "what is due for days is no batch of now"


def test_what_was_moved_lately_stays_where_it_came_to() -> None:
    calm = paced(cool_down_seconds=86400)
    parts = [placed(table(), f"all_{number}_{number}_0", size=7 * GB) for number in (1, 2)]
    arrived = {("u1", "all_1_1_0"): NOW - HOUR}
    (move,) = plan(*parts, policy=calm, disks=FULL, arrived=arrived).moves
    assert move.part == "all_2_2_0"
    part = placed(table(TO_COLD))
    assert only_stay(plan(part, policy=calm, arrived=arrived)) == ("cool_down", NOW + 23 * HOUR)
    assert len(plan(part, policy=calm, arrived=arrived, now=NOW + 23 * HOUR).moves) == 1
    assert len(plan(part, policy=TWO, arrived=arrived).moves) == 1
    ahead = {("u1", "all_1_1_0"): NOW + timedelta(days=400)}
    assert len(plan(part, policy=calm, arrived=ahead).moves) == 1, "noted by a wrong clock"


def test_parts_merge_before_they_move_but_not_for_ever() -> None:
    merging = paced(merge_first_parts=2, merge_first_seconds=5 * 86400)
    definition = table(TO_COLD)
    three = [placed(definition, f"a_{number}_{number}_0") for number in (1, 2, 3)]
    other = placed(definition, "b_4_4_0")
    decided = plan(*three, other, policy=merging)
    assert [move.part for move in decided.moves] == ["b_4_4_0"]
    assert {(stay.reason.kind, stay.next_due) for stay in decided.stays} == {("merge_first", DUE + timedelta(days=5))}
    assert "has 3 parts on disk ssd" in decided.stays[0].reason.detail
    assert len(plan(*three[:2], policy=merging).moves) == 2
    assert len(plan(*three, policy=merging, now=DUE + timedelta(days=5)).moves) == 3


def test_a_byte_budget_serves_the_longest_wait_and_begins_again() -> None:
    budget = paced(bytes=2 * GB, every_seconds=3600)
    definition = table(TO_COLD)
    parts = [placed(definition, f"all_{number}_{number}_0", age=10 + number) for number in range(1, 5)]
    now = NOW + timedelta(minutes=10)
    decided = plan(*parts, policy=budget, now=now)
    assert sorted(move.part for move in decided.moves) == ["all_3_3_0", "all_4_4_0"]
    assert {(stay.reason.kind, stay.next_due) for stay in decided.stays} == {("budget", NOW + HOUR)}
    assert any(
        "2.0 GiB of 2.0 GiB each 1h; it waits until 2026-03-01T01:00Z" in stay.reason.detail for stay in decided.stays
    )
    assert len(plan(*parts, policy=budget, now=now, spent={"p": Spent(GB)}).moves) == 1
    assert not plan(*parts, policy=budget, now=now, spent={"p": Spent(2 * GB)}).moves
    assert len(plan(*parts, policy=budget, now=now, spent={"other": Spent(2 * GB)}).moves) == 2


def test_a_part_over_the_budget_moves_when_nothing_is_spent() -> None:
    small = paced(bytes=GB // 2)
    assert len(plan(placed(table(TO_COLD)), policy=small).moves) == 1


def test_budgets_of_requests_and_money_count_a_bucket_s_requests() -> None:
    definition = table(TO_COLD)
    parts = [placed(definition, f"all_{number}_{number}_0", size=1000) for number in range(1, 8)]
    remote = frozenset({"s3"})
    assert len(plan(*parts, policy=paced(requests=3), remote=remote).moves) == 3
    assert len(plan(*parts, policy=paced(requests=3)).moves) == 7, "no bucket is asked"
    prices = PricesConfig(put_per_1000=10, currency="EUR")
    decided = plan(*parts, policy=paced(money=0.015), remote=remote, prices=prices)
    assert len(decided.moves) == 2
    assert "0.02 of 0.015 EUR each 1h" in decided.stays[0].reason.detail


def test_a_full_disk_stays_within_the_budget_too() -> None:
    parts = [placed(table(), f"all_{number}_{number}_0", size=7 * GB) for number in (1, 2)]
    decided = plan(*parts, policy=paced(bytes=GB), disks=FULL, spent={"p": Spent(GB)})
    assert not decided.moves
    assert {stay.reason.kind for stay in decided.stays} == {"budget"}


def test_moves_begin_at_the_high_watermark_and_end_at_the_low() -> None:
    definition = table()
    parts = [placed(definition, f"all_{number}_{number}_0", size=4 * GB) for number in range(1, 9)]
    between = msgspec.structs.replace(TWO, move_factor=0.1, move_until=0.2)
    at = {"s3": DiskState(None, None)}
    assert not plan(*parts, policy=between, disks={**at, "ssd": DiskState(100 * GB, 11 * GB)}).moves
    assert len(plan(*parts, policy=between, disks={**at, "ssd": DiskState(100 * GB, 9 * GB)}).moves) == 3
    assert len(plan(*parts, policy=TWO, disks={**at, "ssd": DiskState(100 * GB, 9 * GB)}).moves) == 1
    assert not plan(*parts, policy=between, disks={**at, "ssd": DiskState(100 * GB, 21 * GB)}).moves


def test_an_interval_is_the_same_after_a_restart() -> None:
    for every in (60, 3600, 86400):
        begin, end = interval_of(PacingConfig(every_seconds=every), NOW + timedelta(seconds=7))
        assert (begin, end) == (NOW, NOW + timedelta(seconds=every))
        assert interval_of(PacingConfig(every_seconds=every), end)[0] == end


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"pacing": {"window": "22-6"}}, "not a window"),
        ({"pacing": {"timezone": "Nowhere"}}, "no such time zone"),
        ({"pacing": {"bytes": 1, "what": 2}}, "what"),
        ({"move_factor": 0.2, "move_until": 0.1}, "less than move_factor"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    plain = msgspec.to_builtins(embedded(tmp_path))
    plain["policies"]["hot_cold"].update(change)
    (tmp_path / "frostline.json").write_bytes(msgspec.json.encode(plain))
    with pytest.raises(UsageError, match=what):
        load(tmp_path / "frostline.json")


class Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def test_a_budget_outlives_the_process_and_counts_failed_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = embedded(tmp_path)
    policy = msgspec.structs.replace(config.policies["hot_cold"], pacing=PacingConfig(bytes=1, every_seconds=86400))
    config = msgspec.structs.replace(config, policies={"hot_cold": policy})
    day = datetime.now(UTC)
    clock = Clock(day)
    definition = define_table(
        "d.t",
        columns=["ts:timestamp[us, UTC]", "k:int64"],
        order_by="k",
        policy="hot_cold",
        ttl=["1d on ts to volume cold"],
    )
    with Store.open(config, clock=clock) as store:
        store.create_table(definition)
        for key in range(3):
            schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
            store.table("d.t").insert([pa.record_batch([[day], [key]], schema=schema)])
        store.refresh()

        def stage(self: Any, items: Any, transaction: Any) -> None:
            raise Transient("no route to host")

        clock.now = datetime.now(UTC) + timedelta(days=1, minutes=5)
        with monkeypatch.context() as patched:
            patched.setattr(FileCopies, "stage", stage)
            # The journal notes by the wall clock, and so it must be its day that is asked about.
            today = (day - timedelta(days=1), clock.now)
            monkeypatch.setattr("tiering.move.policy_facts.interval_of", lambda pacing, now: today)
            assert len(store.tick(only="moves").moves.failed) == 1
    with Store.open(config, clock=clock) as store:
        report = store.tick(only="moves")
        assert not report.moves.moved
        (sentence,) = report.budgets.values()
        assert sentence.startswith("the budget of policy hot_cold is spent: ")
        assert sentence in report.waiting
        assert Counter(stay.reason.kind for stay in store.plan().stays) == {"budget": 2, "backoff": 1} or Counter(
            stay.reason.kind for stay in store.plan().stays
        ) == {"budget": 3}
        monkeypatch.undo()
        clock.now += timedelta(days=1)
        assert len(store.tick(only="moves").moves.moved) == 1, "and it resumes by itself"
