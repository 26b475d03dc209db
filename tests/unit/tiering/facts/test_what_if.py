"""Where parts would lie under another policy, case by case."""

from __future__ import annotations

from tests.unit.tiering.policy.placing import GB, NOW, ROOMY, TO_COLD, TWO, Placed, placed, table
from tiering.config.settings import PacingConfig, PolicyConfig, VolumeConfig
from tiering.facts.what_if import WhatIf, what_if
from tiering.policy.placement import DiskState
from tiering.table.schema import Delete, MoveToDisk


def asked(*parts: Placed, disks: dict[str, DiskState] = ROOMY, policy: PolicyConfig = TWO) -> WhatIf:
    return what_if(parts, disks, "p", policy, NOW)


def test_a_part_on_a_cold_disk_was_written_hot() -> None:
    found = asked(placed(table(), disk="s3"), placed(table(TO_COLD), "all_2_2_0"))
    assert dict(found.bytes_by_disk) == {"ssd": GB, "s3": GB}
    assert [(move.source, move.target) for move in found.moves] == [("s3", "ssd"), ("ssd", "s3")]


def test_what_is_too_much_for_a_disk_goes_on_heaviest_first() -> None:
    """30 GB come back from the bucket to a disk of 20, of which a tenth stays free."""
    parts = [placed(table(), f"all_{n}_{n}_0", size=n * GB, disk="s3") for n in (4, 5, 6, 7, 8)]
    found = asked(*parts, disks={"ssd": DiskState(20 * GB, 20 * GB), "s3": DiskState(None, None)})
    assert dict(found.bytes_by_disk) == {"ssd": 15 * GB, "s3": 15 * GB}
    assert {move.part for move in found.moves} == {"all_4_4_0", "all_5_5_0", "all_6_6_0"}


def test_room_that_parts_take_now_is_free() -> None:
    """Both lie on the full disk, and may stay there."""
    parts = [placed(table(), f"all_{n}_{n}_0", size=8 * GB) for n in (1, 2)]
    found = asked(*parts, disks={"ssd": DiskState(20 * GB, 4 * GB), "s3": DiskState(None, None)})
    assert (dict(found.bytes_by_disk), found.moves) == ({"ssd": 16 * GB}, ())


def test_a_part_too_large_for_the_hot_volume_goes_to_the_next() -> None:
    hot = VolumeConfig(name="hot", disks=("ssd",), max_data_part_size_bytes=2 * GB)
    policy = PolicyConfig(volumes=(hot, VolumeConfig(name="cold", disks=("s3",))))
    found = asked(placed(table()), placed(table(), "all_2_2_0", size=3 * GB), policy=policy)
    assert dict(found.parts_by_disk) == {"ssd": 1, "s3": 1}


def test_pacing_and_disks_that_are_away_do_not_count() -> None:
    disks = {"ssd": DiskState(100 * GB, 50 * GB, broken="gone"), "s3": DiskState(None, None, unreachable="away")}
    policy = PolicyConfig(volumes=TWO.volumes, pacing=PacingConfig(window="03:00-03:01", money=0.0001))
    assert dict(asked(placed(table(TO_COLD)), disks=disks, policy=policy).bytes_by_disk) == {"s3": GB}


def test_expired_parts_and_rules_without_a_place_count_apart() -> None:
    gone, kept = placed(table((7, Delete()))), placed(table((7, MoveToDisk(disk="tape")), name="u", uuid="u2"))
    found = asked(gone, kept)
    assert (found.expired, found.expired_bytes, dict(found.kept)) == (1, GB, {"no_such_disk": 1})
    assert dict(found.bytes_by_disk) == {"ssd": GB}
