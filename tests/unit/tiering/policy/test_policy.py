"""Decisions and their reasons, case by case. Guards P18, P20, P22, P23 and the words people read."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from oplog.errors import NotFound, Refused, UsageError
from tests.unit.tiering.policy.placing import GB, NOW, ROOMY, TO_COLD, TWO, placed, plan, table
from tiering.config.settings import PolicyConfig, VolumeConfig
from tiering.journal.records import Failures, PartPin, Pause
from tiering.policy.change import already_there, check_change, manual_moves
from tiering.policy.decide import Options, Plan, decide
from tiering.policy.explaining import explain
from tiering.policy.placement import DiskState
from tiering.table.part import ColumnRange
from tiering.table.schema import Delete, MoveToDisk, MoveToVolume, TableSettings


def test_a_due_part_moves_and_says_why() -> None:
    decided = plan(placed(table(TO_COLD)))
    (move,) = decided.moves
    assert (move.source, move.target, move.bytes) == ("ssd", "s3", GB)
    assert move.reason.kind == "ttl"
    assert move.reason.detail.startswith("newest row 2026-02-19T00:00Z + 7d was due 2026-02-26T00:00Z")
    assert move.reason.detail.endswith("to volume cold")
    assert decided.stays == ()


def test_the_same_question_at_another_time() -> None:
    part = placed(table(TO_COLD))
    early = NOW - timedelta(days=4)
    part = dataclasses.replace(part, part=msgspec.structs.replace(part.part, created=early - timedelta(hours=1)))
    (stay,) = plan(part, now=early).stays
    assert stay.reason.kind == "not_due"
    assert stay.next_due == datetime(2026, 2, 26, tzinfo=UTC)
    assert "is due 2026-02-26T00:00Z (to volume cold)" in stay.reason.detail
    assert "disk ssd has 50% free, move_factor asks for 10%" in stay.reason.detail
    assert len(plan(part, now=stay.next_due).moves) == 1


def test_a_rule_that_wants_a_part_where_it_is_has_no_next_time() -> None:
    """Else the store says that something moves then, and nothing does."""
    definition = table((70, MoveToVolume(volume="cold")), (80, MoveToVolume(volume="hot")))
    (cold,) = plan(placed(definition, disk="s3")).stays
    assert (cold.reason.kind, cold.next_due) == ("no_rule", None)
    (hot,) = plan(placed(definition)).stays
    assert (hot.reason.kind, hot.next_due) == ("not_due", NOW + timedelta(days=60))
    (there,) = plan(placed(table((70, MoveToDisk(disk="s3"))), disk="s3")).stays
    assert there.next_due is None
    (deleted,) = plan(placed(table((70, MoveToVolume(volume="cold")), (90, Delete())), disk="s3")).stays
    assert deleted.next_due == NOW + timedelta(days=80)


def test_a_plan_survives_a_file() -> None:
    """`plan -o` and `apply` exchange exactly these objects; the JSON says from and to."""
    decided = plan(placed(table(TO_COLD)), placed(table(), "all_2_2_0"))
    text = msgspec.json.encode(decided)
    assert msgspec.json.decode(text, type=Plan) == decided
    assert msgspec.json.decode(text)["moves"][0]["from"] == "ssd"


def test_a_due_delete_comes_before_a_move() -> None:
    decided = plan(placed(table(TO_COLD, (9, Delete()))))
    assert decided.moves == ()
    assert decided.deletes[0].reason.kind == "ttl_delete"
    assert "'9d on ts delete'" in decided.deletes[0].reason.detail


def test_rows_without_a_plausible_time_are_not_deleted() -> None:
    """P23."""
    epoch = {"1": ColumnRange(min="1970-01-01T00:00:00Z", max="1970-01-01T00:00:00Z")}
    (stay,) = plan(placed(table((9, Delete())), columns=epoch)).stays
    assert stay.reason.kind == "implausible_time"
    assert "drop the part manually" in stay.reason.detail


def test_missing_statistics_are_explained() -> None:
    """P20."""
    (stay,) = plan(placed(table(TO_COLD), columns={})).stays
    assert stay.reason.kind == "no_statistics"
    assert "has no statistics of ts" in stay.reason.detail


def test_the_fewest_heaviest_parts_make_room() -> None:
    disks = {"ssd": DiskState(100 * GB, 4 * GB), "s3": DiskState(None, None)}
    sizes = [1, 5, 2, 4, 3]
    parts = [placed(table(), f"all_{n}_{n}_0", size=size * GB) for n, size in enumerate(sizes)]
    decided = plan(*parts, disks=disks)
    assert [move.bytes // GB for move in decided.moves] == [4, 5]
    assert decided.moves[0].reason.detail.startswith("disk ssd has 4.0 GiB of 100.0 GiB free")
    assert plan(*parts, disks={**disks, "ssd": DiskState(100 * GB, 10 * GB)}).moves == ()


def test_ttl_moves_reduce_the_need() -> None:
    disks = {"ssd": DiskState(100 * GB, 4 * GB), "s3": DiskState(None, None)}
    old = placed(table(TO_COLD), "all_1_1_0", size=3 * GB)
    young = [placed(table(TO_COLD), f"all_{n}_{n}_0", age=1, size=n * GB) for n in (3, 8)]
    decided = plan(old, *young, disks=disks)
    assert [(move.part, move.reason.kind) for move in decided.moves] == [
        ("all_1_1_0", "ttl"),
        ("all_8_8_0", "move_factor"),
    ]
    without = plan(placed(table(), "all_1_1_0", size=6 * GB), disks=disks)
    assert len(without.moves) == 1


def test_reserved_space_counts_as_used() -> None:
    disks = {"ssd": DiskState(100 * GB, 12 * GB, reserved_bytes=3 * GB), "s3": DiskState(None, None)}
    assert len(plan(placed(table()), disks=disks).moves) == 1


def test_one_volume_moves_nothing_by_default() -> None:
    one = PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("ssd",)),))
    (stay,) = plan(placed(table()), disks={"ssd": DiskState(100 * GB, 0)}, policy=one).stays
    assert stay.reason.kind == "no_rule"


THREE = PolicyConfig(
    volumes=(
        VolumeConfig(name="hot", disks=("ssd",)),
        VolumeConfig(name="warm", disks=("hdd",), max_data_part_size_bytes=2 * GB),
        VolumeConfig(name="cold", disks=("s3",)),
    )
)
THREE_DISKS = {"ssd": DiskState(100 * GB, 50 * GB), "hdd": DiskState(100 * GB, 50 * GB), "s3": DiskState(None, None)}


def test_to_volume_obeys_the_size_limit_and_to_disk_does_not() -> None:
    (stay,) = plan(placed(table((7, MoveToVolume(volume="warm"))), size=3 * GB), policy=THREE, disks=THREE_DISKS).stays
    assert stay.reason.kind == "size_limit"
    assert "up to 2.0 GiB, this one has 3.0 GiB" in stay.reason.detail
    (move,) = plan(placed(table((7, MoveToDisk(disk="hdd"))), size=3 * GB), policy=THREE, disks=THREE_DISKS).moves
    assert move.target == "hdd"


def test_what_is_being_moved_off_a_full_disk_counts_as_room() -> None:
    """Else each pass that is made beside a large move takes another part off the disk."""
    parts = [placed(table(), "all_1_1_0", size=8 * GB), placed(table(), "all_2_2_0", size=7 * GB)]
    full = {"ssd": DiskState(100 * GB, 4 * GB), "s3": DiskState(None, None)}
    claimed = {("u1", "all_1_1_0"): "move"}
    assert [move.part for move in plan(*parts, disks=full).moves] == ["all_1_1_0"]
    assert [move.part for move in plan(*parts, disks=full, claimed=claimed).moves] == ["all_2_2_0"]
    decided = plan(*parts, disks=full, claimed=claimed, leaving={"ssd": 8 * GB})
    assert decided.moves == ()
    assert {stay.part: stay.reason.kind for stay in decided.stays} == {"all_1_1_0": "busy", "all_2_2_0": "no_rule"}


def test_move_factor_skips_a_volume_that_is_too_small() -> None:
    disks = {**THREE_DISKS, "ssd": DiskState(100 * GB, 8 * GB)}
    (move,) = plan(placed(table(), size=3 * GB), policy=THREE, disks=disks).moves
    assert move.target == "s3"
    (move,) = plan(placed(table(), size=2 * GB), policy=THREE, disks=disks).moves
    assert move.target == "hdd"


def test_a_ratio_limits_by_the_size_of_the_disks() -> None:
    policy = PolicyConfig(
        volumes=(
            VolumeConfig(name="hot", disks=("ssd", "hdd"), max_data_part_size_ratio=0.01),
            VolumeConfig(name="cold", disks=("s3",)),
        )
    )
    (stay,) = plan(
        placed(table((7, MoveToVolume(volume="hot"))), disk="s3", size=2 * GB), policy=policy, disks=THREE_DISKS
    ).stays
    assert stay.reason.kind == "colder"


def test_a_rule_never_warms_a_part_up() -> None:
    """P18."""
    (stay,) = plan(placed(table((7, MoveToVolume(volume="warm"))), disk="s3"), policy=THREE, disks=THREE_DISKS).stays
    assert stay.reason.kind == "colder"
    assert "never moves back automatically" in stay.reason.detail


def test_a_part_that_has_to_go_on_is_copied_once() -> None:
    """TTL brings it to warm, warm is then too full: it goes straight to cold."""
    disks = {**THREE_DISKS, "hdd": DiskState(100 * GB, 10 * GB)}
    decided = plan(placed(table((7, MoveToVolume(volume="warm"))), size=2 * GB), policy=THREE, disks=disks)
    assert [(move.source, move.target) for move in decided.moves] == [("ssd", "s3")]


def test_disks_that_do_not_exist() -> None:
    (stay,) = plan(placed(table((7, MoveToDisk(disk="tape"))))).stays
    assert stay.reason.kind == "no_such_disk"
    (stay,) = plan(placed(table((7, MoveToDisk(disk="tape", if_exists=True))))).stays
    assert "IF EXISTS" in stay.reason.detail
    (stay,) = plan(placed(table((7, MoveToVolume(volume="attic"))))).stays
    assert stay.reason.kind == "no_such_volume"


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (DiskState(10 * GB, GB // 2), "no_space", "disk s3 has 512.0 MiB free, the part needs 1.0 GiB"),
        (DiskState(None, None, read_only=True), "unusable_disk", "disk s3 is read-only"),
        (DiskState(None, None, broken="403"), "unusable_disk", "disk s3 is broken: 403"),
    ],
)
def test_a_target_that_cannot_take_it(state: DiskState, kind: str, words: str) -> None:
    (stay,) = plan(placed(table(TO_COLD)), disks={**ROOMY, "s3": state}).stays
    assert stay.reason.kind == kind
    assert words in stay.reason.detail
    assert stay.reason.detail.startswith("newest row")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (DiskState(100 * GB, 50 * GB, read_only=True), "read_only"),
        (DiskState(100 * GB, 50 * GB, broken="EIO"), "unusable_disk"),
    ],
)
def test_a_source_that_cannot_be_left(source: DiskState, kind: str) -> None:
    (stay,) = plan(placed(table(TO_COLD)), disks={**ROOMY, "ssd": source}).stays
    assert stay.reason.kind == kind


def test_round_robin_and_least_used() -> None:
    cold = VolumeConfig(name="cold", disks=("a", "b"))
    policy = PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("ssd",)), cold))
    disks = {"ssd": DiskState(100 * GB, 50 * GB), "a": DiskState(90 * GB, 20 * GB), "b": DiskState(90 * GB, 60 * GB)}
    parts = [placed(table(TO_COLD), f"all_{n}_{n}_0") for n in range(4)]
    assert sorted(move.target for move in plan(*parts, policy=policy, disks=disks).moves) == ["a", "a", "b", "b"]
    least = PolicyConfig(volumes=(policy.volumes[0], msgspec.structs.replace(cold, load_balancing="least_used")))
    assert {move.target for move in plan(*parts, policy=least, disks=disks).moves} == {"b"}


def test_volume_priority_decides_what_is_hot() -> None:
    policy = PolicyConfig(
        volumes=(
            VolumeConfig(name="cold", disks=("s3",), volume_priority=2),
            VolumeConfig(name="hot", disks=("ssd",), volume_priority=1),
        )
    )
    assert len(plan(placed(table(TO_COLD)), policy=policy).moves) == 1


def test_young_parts_wait_for_merges() -> None:
    """P22."""
    definition = table(TO_COLD, settings=TableSettings(min_part_age_to_move_seconds=3600))
    part = placed(definition, created=NOW - timedelta(minutes=10))
    (stay,) = plan(part).stays
    assert stay.reason.kind == "too_young"
    assert stay.next_due == NOW + timedelta(minutes=50)
    assert "10m old; parts wait 1h" in stay.reason.detail
    assert len(plan(part, now=NOW + timedelta(minutes=50)).moves) == 1
    ahead = NOW + timedelta(days=400)
    assert len(plan(placed(definition, created=ahead), written_ahead=ahead).moves) == 1, "dated by a wrong clock"


def pin(name: str = "all_1_1_0", scope: Any = "part", volume: str | None = None) -> PartPin:
    return PartPin(table_uuid="u1", scope=scope, name=name, volume=volume, created=NOW)


def test_pins_hold_and_bring() -> None:
    part = placed(table(TO_COLD, (9, Delete())))
    (stay,) = plan(part, pins=[pin()]).stays
    assert (stay.reason.kind, stay.reason.detail) == ("pin", "part all_1_1_0 is pinned where it is")
    (stay,) = plan(part, pins=[pin("all", "partition", "hot")]).stays
    assert stay.reason.detail.endswith("pinned to volume hot")
    (move,) = plan(dataclasses.replace(part, disk="s3"), pins=[pin("all", "partition", "hot")]).moves
    assert (move.source, move.target, move.reason.kind) == ("s3", "ssd", "pin")
    (stay,) = plan(part, pins=[pin("all", "partition", "cold"), pin()]).stays
    assert "where it is" in stay.reason.detail, "a part's own pin is stronger than its partition's"


def test_pauses_hold_one_table_or_all() -> None:
    part = placed(table(TO_COLD))
    for uuid, words in (("u1", "of d.t"), (None, "of all tables")):
        (stay,) = plan(part, pauses=[Pause(table_uuid=uuid, kind="moves", created=NOW)]).stays
        assert stay.reason.kind == "paused"
        assert words in stay.reason.detail
    assert len(plan(part, pauses=[Pause(table_uuid="u2", kind="moves", created=NOW)]).moves) == 1
    assert len(plan(part, pauses=[Pause(table_uuid=None, kind="merges", created=NOW)]).moves) == 1


def test_parts_in_use_wait() -> None:
    (stay,) = plan(placed(table(TO_COLD)), claimed={("u1", "all_1_1_0"): "merge"}).stays
    assert stay.reason.kind == "busy"
    assert "a merge" in stay.reason.detail


def test_failures_back_off_and_are_then_tried_once_a_day() -> None:
    """P15: retries back off until they cost next to nothing; a target that is well again gets its parts by itself."""
    part, key = placed(table(TO_COLD)), ("u1", "all_1_1_0", "s3")

    def at(attempts: int, minutes: int) -> Plan:
        failure = Failures(attempts=attempts, error="SlowDown", at=NOW - timedelta(minutes=minutes))
        return plan(part, failures={key: failure})

    assert len(at(1, 1).moves) == 1
    (stay,) = at(3, 3).stays
    assert stay.reason.kind == "backoff"
    assert stay.next_due == NOW + timedelta(minutes=1)
    assert "to s3 failed: SlowDown; next try at 2026-03-01T00:01Z" in stay.reason.detail
    assert len(at(3, 4).moves) == 1
    (stay,) = at(8, 1439).stays
    assert stay.reason.kind == "gave_up"
    assert stay.next_due == NOW + timedelta(minutes=1)
    assert "at 2026-03-01T00:01Z, or by 'frostline move'" in stay.reason.detail
    assert len(at(8, 1440).moves) == 1


def test_a_wrong_clock_moves_nothing() -> None:
    """P23."""
    part = placed(table(TO_COLD))
    (stay,) = plan(part, now=NOW - timedelta(days=30)).stays
    assert stay.reason.kind == "clock"
    (stay,) = plan(part, reference_time=NOW - timedelta(hours=2)).stays
    assert "the object store" in stay.reason.detail


def test_a_part_of_a_known_wrong_clock_holds_nothing_back() -> None:
    """P23."""
    ahead = NOW + timedelta(days=400)
    part = placed(table(TO_COLD), created=ahead)
    failed = {("u1", part.part.name, "s3"): Failures(attempts=9, error="SlowDown", at=ahead)}
    (stay,) = plan(part).stays
    assert stay.reason.kind == "clock"
    assert "'frostline tick --believe-clock'" in stay.reason.detail
    assert len(plan(part, written_ahead=ahead, failures=failed).moves) == 1
    assert not plan(part, written_ahead=ahead - timedelta(seconds=1)).moves, "only what was known then"


def test_parts_outside_the_policy_are_named() -> None:
    (stay,) = plan(placed(table(TO_COLD), disk="old")).stays
    assert stay.reason.kind == "not_in_policy"
    (stay,) = decide([placed(table(TO_COLD))], ROOMY, {}, NOW).stays
    assert stay.reason.kind == "no_policy"


def test_explain_says_what_when_and_every_rule() -> None:
    definition = table((7, MoveToVolume(volume="cold")), (365, Delete()))
    part = placed(definition, age=1)
    told = explain(part, [part], ROOMY, {"p": TWO}, NOW)
    assert (told.decision, told.disk, told.volume) == ("stay", "ssd", "hot")
    assert told.next_due == NOW + timedelta(days=6)
    assert [rule.rule for rule in told.rules] == ["7d on ts to volume cold", "365d on ts delete"]
    told = explain(part, [part], ROOMY, {"p": TWO}, NOW + timedelta(days=6))
    assert (told.decision, told.target) == ("move", "s3")
    told = explain(part, [part], ROOMY, {"p": TWO}, NOW + timedelta(days=364))
    assert told.decision == "delete"


def test_10_000_parts_are_planned_at_once() -> None:
    definition = table(TO_COLD)
    parts = [placed(definition, f"all_{n}_{n}_0", age=n % 14, size=GB // 100) for n in range(10_000)]
    begin = time.perf_counter()
    decided = plan(*parts, disks={"ssd": DiskState(200 * GB, GB), "s3": DiskState(None, None)})
    assert len(decided.moves) + len(decided.stays) == 10_000
    assert time.perf_counter() - begin < 5


# Moves by hand, and changes of a policy


def test_a_move_by_hand() -> None:
    parts = [placed(table(), f"all_{n}_{n}_0", size=(3 - n) * GB) for n in range(3)]
    moves = manual_moves(parts, "partition 'all'", TWO, ROOMY, to_volume="cold")
    assert [(move.bytes // GB, move.target) for move in moves] == [(1, "s3"), (2, "s3"), (3, "s3")]
    assert moves[0].reason.detail == "requested: partition 'all' to volume 'cold'"


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ({"to_disk": "tape"}, NotFound, "No such disk: tape"),
        ({"to_volume": "attic"}, NotFound, "No such volume: attic"),
        ({}, UsageError, "name either a volume or a disk"),
        ({"to_volume": "a", "to_disk": "b"}, UsageError, "name either a volume or a disk"),
    ],
)
def test_a_move_by_hand_that_cannot_be(where: dict[str, str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        manual_moves([placed(table())], "partition 'all'", TWO, ROOMY, **where)  # type: ignore[arg-type]


def test_asking_twice_is_no_error() -> None:
    """P17: what is there already is said, in the words that people know, and nothing fails."""
    parts = [placed(table(), "all_1_1_0", disk="s3"), placed(table(), "all_2_2_0")]
    assert [move.part for move in manual_moves(parts, "partition 'all'", TWO, ROOMY, to_disk="s3")] == ["all_2_2_0"]
    assert manual_moves(parts[:1], "partition 'all'", TWO, ROOMY, to_disk="s3") == []
    assert already_there(partition="all", to_disk="s3").endswith("partition 'all' are already on disk 's3'")
    assert already_there(part="all_1_1_0", to_volume="cold") == "Part 'all_1_1_0' is already on volume 'cold'"


def test_a_move_by_hand_needs_room() -> None:
    full = {**ROOMY, "s3": DiskState(10 * GB, GB)}
    parts = [placed(table(), f"all_{n}_{n}_0") for n in range(2)]
    with pytest.raises(Refused, match=r"all_1_1_0 cannot move .* disk s3 has 0 B free"):
        manual_moves(parts, "partition 'all'", TWO, full, to_disk="s3")
    assert len(manual_moves(parts[:1], "part 'all_0_0_0'", TWO, full, to_disk="s3")) == 1


def test_a_policy_may_grow_but_not_lose() -> None:
    check_change("p", TWO, THREE)
    with pytest.raises(Refused, match="lose its volume warm"):
        check_change("p", THREE, TWO)
    other = PolicyConfig(volumes=(VolumeConfig(name="hot", disks=("x",)), TWO.volumes[1]))
    with pytest.raises(Refused, match=r"policy p .* lose the disk ssd"):
        check_change("p", TWO, other)


def test_who_asks_for_no_reasons_gets_the_same_moves_and_deletes() -> None:
    """And the stays of what something holds, such as a pin."""
    old, young = placed(table((5, MoveToVolume("cold")))), placed(table((50, MoveToVolume("cold"))), "all_2_2_0")
    pinned = placed(table((5, MoveToVolume("cold"))), "all_3_3_0")
    pins = (PartPin(table_uuid="u1", scope="part", name="all_3_3_0", volume=None, created=NOW, actor="test"),)
    all_said = decide([old, young, pinned], ROOMY, {"p": TWO}, NOW, Options(pins=pins))
    less = decide([old, young, pinned], ROOMY, {"p": TWO}, NOW, Options(pins=pins, rest="none"))
    assert (less.moves, less.deletes) == (all_said.moves, all_said.deletes)
    assert [move.part for move in less.moves] == ["all_1_1_0"]
    assert [stay.part for stay in all_said.stays] == ["all_2_2_0", "all_3_3_0"]
    assert [stay.part for stay in less.stays] == ["all_3_3_0"]
