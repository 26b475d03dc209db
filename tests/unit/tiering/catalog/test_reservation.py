"""Where new parts go, and the space promised to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disks.local.disk import LocalDisk
from oplog.errors import NoSpace, Refused
from tiering.catalog.reservation import Reservations
from tiering.config.settings import Config, PacingConfig, PolicyConfig, VolumeConfig
from tiering.table.part import ColumnRange, Part
from tiering.table.schema import Column, MoveToDisk, MoveToVolume, TableDefinition, TtlRule

NOW = datetime(2026, 3, 1, tzinfo=UTC)
KB = 1024


def make(tmp_path: Path, volumes: list[VolumeConfig], **sizes: int | None) -> Reservations:
    disks = {name: LocalDisk(name, tmp_path / name, max_size_bytes=size) for name, size in sizes.items()}
    config = Config(state_path=str(tmp_path), disks={}, policies={"p": PolicyConfig(volumes=tuple(volumes))})
    return Reservations(config, disks)


def table(*actions: Any) -> TableDefinition:
    return TableDefinition(
        uuid="u1",
        database="d",
        name="t",
        columns=(Column(id=1, name="ts", type="timestamp[us, UTC]"),),
        order_by=("ts",),
        policy="p",
        ttl=tuple(TtlRule(after_seconds=86400, column="ts", action=action) for action in actions),
    )


def part(age_days: int) -> Part:
    newest = (NOW - timedelta(days=age_days)).isoformat()
    columns = {"1": ColumnRange(min=newest, max=newest)}
    return Part(table="u1", name="all_1_1_0", rows=1, size_bytes=KB, created=NOW, columns=columns)


HOT = VolumeConfig(name="hot", disks=("a",))
COLD = VolumeConfig(name="cold", disks=("b",))


def test_an_insert_takes_the_first_volume_with_room(tmp_path: Path) -> None:
    book = make(tmp_path, [HOT, COLD], a=10 * KB, b=100 * KB)
    with book.for_insert(table(), 8 * KB, None, NOW) as first:
        assert first == "a"
        assert book.reserved("a") == 8 * KB
        with book.for_insert(table(), 8 * KB, None, NOW) as second:
            assert second == "b", "what is promised is not free"
    assert (book.reserved("a"), book.reserved("b")) == (0, 0)


def test_no_volume_takes_it(tmp_path: Path) -> None:
    book = make(tmp_path, [HOT, COLD], a=KB, b=2 * KB)
    with (
        pytest.raises(NoSpace, match=r"disk a has 1.0 KiB free.*disk b has 2.0 KiB free"),
        book.for_insert(table(), 8 * KB, None, NOW),
    ):
        pass
    assert book.reserved("a") == 0


def test_a_part_above_the_limit_goes_to_the_next_volume(tmp_path: Path) -> None:
    small = VolumeConfig(name="hot", disks=("a",), max_data_part_size_bytes=4 * KB)
    book = make(tmp_path, [small, COLD], a=100 * KB, b=100 * KB)
    with book.for_insert(table(), 5 * KB, None, NOW) as disk:
        assert disk == "b"


def test_round_robin_over_the_disks_of_a_volume(tmp_path: Path) -> None:
    book = make(tmp_path, [VolumeConfig(name="hot", disks=("a", "b"))], a=100 * KB, b=100 * KB)
    chosen = []
    for _ in range(4):
        with book.for_insert(table(), KB, None, NOW) as disk:
            chosen.append(disk)
    assert chosen == ["a", "b", "a", "b"]


@pytest.mark.parametrize("action", [MoveToVolume(volume="cold"), MoveToDisk(disk="b")])
def test_rows_that_are_old_already_go_straight_to_their_place(tmp_path: Path, action: Any) -> None:
    book = make(tmp_path, [HOT, COLD], a=100 * KB, b=100 * KB)
    with book.for_insert(table(action), KB, part(5), NOW) as disk:
        assert disk == "b"
    with book.for_insert(table(action), KB, part(0), NOW) as disk:
        assert disk == "a"


def test_unless_the_volume_says_no_or_is_full(tmp_path: Path) -> None:
    late = VolumeConfig(name="cold", disks=("b",), perform_ttl_move_on_insert=False)
    with make(tmp_path / "1", [HOT, late], a=100 * KB, b=100 * KB).for_insert(
        table(MoveToVolume(volume="cold")), KB, part(5), NOW
    ) as disk:
        assert disk == "a"
    with make(tmp_path / "2", [HOT, COLD], a=100 * KB, b=KB).for_insert(
        table(MoveToVolume(volume="cold")), 2 * KB, part(5), NOW
    ) as disk:
        assert disk == "a"


def test_a_small_part_of_late_rows_waits_where_there_is_room(tmp_path: Path) -> None:
    """Large ones, merged ones and those that would have to make room go to their place at once."""
    book = make(tmp_path, [HOT, COLD], a=100 * KB, b=100 * KB)
    pacing = PacingConfig(late_seconds=60, late_bytes=20 * KB)
    waiting = msgspec.structs.replace(book.config.policies["p"], pacing=pacing)
    book.config = msgspec.structs.replace(book.config, policies={"p": waiting})
    late, definition = part(5), table(MoveToVolume(volume="cold"))
    merged = msgspec.structs.replace(late, name="all_1_2_1")
    large = msgspec.structs.replace(late, size_bytes=21 * KB)
    for chosen, disk in ((late, "a"), (merged, "b"), (large, "b")):
        with book.for_insert(definition, chosen.size_bytes, chosen, NOW) as found:
            assert found == disk
    with book.reserve("a", 89 * KB), book.for_insert(definition, 2 * KB, late, NOW) as found:
        assert found == "a"
    with book.reserve("a", 90 * KB), book.for_insert(definition, KB, late, NOW) as found:
        assert found == "b", "less than a tenth would be free"


def test_a_merge_never_warms_data_up(tmp_path: Path) -> None:
    book = make(tmp_path, [HOT, COLD], a=100 * KB, b=100 * KB)
    with book.for_merge(table(), ["a", "a"], KB) as disk:
        assert disk == "a"
    with book.for_merge(table(), ["a", "b"], KB) as disk:
        assert disk == "b"


def test_a_place_on_a_named_disk(tmp_path: Path) -> None:
    book = make(tmp_path, [HOT, COLD], a=10 * KB, b=10 * KB)
    with book.reserve("a", 6 * KB):
        with pytest.raises(NoSpace, match=r"disk a has 4\.0 KiB free"), book.reserve("a", 6 * KB):
            pass
        with book.reserve("a", 4 * KB):
            assert book.reserved("a") == 10 * KB
    with pytest.raises(Refused, match="broken"), book.reserve("nowhere", 1):
        pass
    book.disks = {**book.disks, "b": LocalDisk("b", tmp_path / "b", read_only=True)}
    with pytest.raises(Refused, match="read-only"), book.reserve("b", 1):
        pass


def test_states_hold_what_the_policy_needs(tmp_path: Path) -> None:
    book = make(tmp_path, [HOT, COLD], a=10 * KB, b=10 * KB)
    with book.reserve("a", 6 * KB):
        state = book.states()["a"]
        assert (state.total_bytes, state.free_bytes, state.unreserved_bytes) == (10 * KB, 10 * KB, 4 * KB)

    def fail() -> None:
        raise OSError(5, "Input/output error")

    book.disks["b"].usage = fail  # type: ignore[method-assign,assignment]
    assert "Input/output error" in book.states()["b"].broken
