"""I16: the stamps of a local disk's transactions say how far every bucket was, however many there are."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from disks.local.stamps import Stamps
from oplog.stamps import MOST_NAMED, KeptStamp, WriterState


def states(buckets: int) -> WriterState:
    named = {str(uuid.UUID(int=(number + 1) << 64)): number + 1 for number in range(buckets)}
    return WriterState("0123456789abcdef", 7, buckets=named)


def commit(stamps: Stamps, root: Path, buckets: int) -> KeptStamp:
    staged = root / "staged"
    staged.mkdir(exist_ok=True)
    kept = stamps.next(states(buckets))
    stamps.stage(kept, staged)
    stamps.take(staged)
    stamps.prune()
    return kept


@pytest.mark.parametrize("buckets", [0, 1, 3, 4, 7, MOST_NAMED])
def test_a_stamp_names_every_bucket(tmp_path: Path, buckets: int) -> None:
    stamps = Stamps(tmp_path)
    made = [commit(stamps, tmp_path, buckets) for _ in range(3)]
    assert list(stamps.all()) == made
    stamps.begin_after(100, states(buckets))
    (last,) = stamps.all()
    assert (last.stamp.number, last.state) == (101, states(buckets))


def test_a_stamp_that_was_staged_again_is_one(tmp_path: Path) -> None:
    """A seal that did not fit is made again, with fewer buckets."""
    staged = tmp_path / "staged"
    staged.mkdir()
    stamps = Stamps(tmp_path)
    stamps.stage(stamps.next(states(7)), staged)
    kept = stamps.next(states(2))
    stamps.stage(kept, staged)
    stamps.take(staged)
    assert list(stamps.all()) == [kept]


def test_transactions_are_kept_whole(tmp_path: Path) -> None:
    """Old stamps go by transaction, not by file."""
    stamps = Stamps(tmp_path)
    made = [commit(stamps, tmp_path, 7) for _ in range(70)]
    kept = list(stamps.all())
    assert 32 <= len(kept) <= 64
    assert kept == made[-len(kept) :]


def test_a_stamp_below_the_last_takes_no_place(tmp_path: Path) -> None:
    """A transaction that is carried out after the disk was stamped above all that anybody has seen."""
    staged = tmp_path / "staged"
    staged.mkdir()
    stamps = Stamps(tmp_path)
    commit(stamps, tmp_path, 1)
    stamps.stage(stamps.next(states(1)), staged)
    above = stamps.begin_after(20, states(1))
    stamps.take(staged)
    assert [kept.stamp for kept in stamps.all()] == [above]
