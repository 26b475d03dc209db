"""What a plan costs before it is carried out. Guards P59 (requests a part are few, and known)."""

from __future__ import annotations

from datetime import UTC, datetime

from tiering.policy import cost
from tiering.policy.plan import Move, Reason
from tiering.table.part import DataFile, Part

MB = 1024 * 1024


def move(source: str, target: str, *, part: str = "all_1_1_0", size: int = MB, keep_source: bool = False) -> Move:
    return Move(
        table="d.t",
        table_uuid="u1",
        part=part,
        source=source,
        target=target,
        bytes=size,
        reason=Reason("manual", "a test"),
        keep_source=keep_source,
    )


def part(*sizes: int) -> Part:
    return Part(
        table="u1",
        name="all_1_1_0",
        rows=1,
        size_bytes=sum(sizes),
        created=datetime(2026, 1, 1, tzinfo=UTC),
        files=tuple(
            DataFile(name=f"data-{number:04}.parquet", rows=1, size_bytes=size, sha256="0" * 64)
            for number, size in enumerate(sizes)
        ),
    )


def estimate(*moves: Move, made: Part | None = None) -> cost.PlanCost:
    return cost.estimate(moves, lambda planned: made, {"s3", "s3b"})


def test_a_commit_is_shared_by_a_batch() -> None:
    moves = [move("ssd", "s3", part=f"all_{number}_{number}_0") for number in range(500)]
    told = estimate(*moves)
    assert told.commits == 2
    assert told.total == cost.Cost(put=502, bytes_up=500 * MB)
    assert told.total.requests == 502


def test_every_data_file_is_one_put_until_it_is_sent_in_pieces() -> None:
    assert estimate(move("ssd", "s3"), made=part(MB, MB, MB)).moves[0].put == 3
    assert estimate(move("ssd", "s3"), made=part(300 * MB)).moves[0].put == 2 + 5


def test_a_way_back_reads_and_commits_the_removal() -> None:
    told = estimate(move("s3", "ssd"), made=part(MB, 40 * MB))
    assert told.moves[0] == cost.Cost(get=1 + 3, bytes_down=41 * MB)
    assert told.commits == 1
    assert estimate(move("s3", "ssd", keep_source=True)).commits == 0


def test_between_buckets_both_sides_count() -> None:
    told = estimate(move("s3", "s3b"), made=part(MB))
    assert told.moves[0] == cost.Cost(put=1, get=1, bytes_up=MB, bytes_down=MB)
    assert told.commits == 2


def test_between_local_disks_nothing_is_paid() -> None:
    assert estimate(move("ssd", "hdd")).total == cost.Cost()


def test_batches_are_bounded_in_bytes_and_keep_their_order() -> None:
    moves = [
        move("ssd", target, part=f"all_{number}_{number}_0", size=4 * 1024 * MB)
        for number, target in enumerate(["s3", "s3b", "s3", "s3", "s3"])
    ]
    groups = cost.batches(moves, lambda planned: planned)
    assert [[planned.part for planned in group] for group in groups] == [
        ["all_0_0_0", "all_2_2_0"],
        ["all_3_3_0", "all_4_4_0"],
        ["all_1_1_0"],
    ]


def test_many_batches_begin_and_end_with_small_ones() -> None:
    """What precedes the first upload and follows the last one overlaps with nothing."""
    moves = [move("ssd", "s3", part=f"all_{number}_{number}_0") for number in range(1990)]
    groups = cost.batches(moves, lambda planned: planned)
    assert [planned for group in groups for planned in group] == moves
    sizes = [len(group) for group in groups]
    assert sizes == [15, 16, 31, 63, 125, *[250] * 6, 120, 60, 30, 15, 15]
