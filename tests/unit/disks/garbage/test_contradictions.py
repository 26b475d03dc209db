"""Listings that contradict each other within one run: nothing goes (I4), and nothing is waited for without end (I15).

Each test leaves out the answer to one listing of all that a run asks for, or to all from one on, whichever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.turns import Turns
from disks.stores.base import ObjectInfo, ObjectStore
from disks.stores.checks import WrongAnswer
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.named_log import NamedLogStore
from disks.stores.wrappers.wrapped import WrappedStore
from oplog import pins
from oplog.errors import FrostlineError, Transient
from oplog.revision import is_blob_key
from tests.committed import put, remove
from tests.crash import mutants

mutants.apply_from_environment()

LATER = datetime.now(UTC) + timedelta(days=3)
WIDE = GcRules(delete=True, max_delete_fraction=1.0, compact_after_commits=1)
_MOST = 60


class Forgetful(WrappedStore):
    """A store of which some listings are well-formed and empty."""

    def __init__(self, inner: ObjectStore, is_empty: Callable[[int], bool] = lambda listing: False) -> None:
        super().__init__(inner)
        self.is_empty = is_empty
        self.listings = 0

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.listings += 1
        if self.is_empty(self.listings):
            return iter(())
        return self.inner.list(prefix, start_after=start_after)


def filled(store: ObjectStore, state: Path) -> ObjectDisk:
    """Files that are live, one that was removed, and one that a pin of a past revision keeps."""
    disk = ObjectDisk("s3", store, state, snapshot_every_commits=0, retention_seconds=0)
    put(disk, "a/live")
    put(disk, "a/pinned")
    pins.create(disk.store, "kept", disk.revision, holder="test")
    remove(disk, "a/pinned")
    put(disk, "a/gone")
    remove(disk, "a/gone")
    put(disk, "a/last")
    return disk


def blobs(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list() if is_blob_key(info.key)}


def needed(disk: ObjectDisk) -> set[str]:
    """What the table of now and that of the pin name."""
    with closing(disk.table_at(2)) as past, past.read() as view:
        pinned = {key for key, _ in view.blobs()}
    return pinned | {key for path in disk.list("a") if (key := disk.stat(f"a/{path}").key)}


@pytest.mark.parametrize("forever", [False, True], ids=["one listing", "all from one on"])
@pytest.mark.parametrize(
    ("logs", "cached"),
    [(False, True), (False, False), (True, True)],
    ids=["one log", "one log, a new machine", "several logs"],
)
@pytest.mark.in_turn
def test_no_empty_listing_makes_garbage(tmp_path: Path, forever: bool, logs: bool, cached: bool) -> None:
    """`gc --delete` with all limits widened, for each of the listings that it asks for."""
    for strike in range(1, _MOST):
        bucket, state = MemoryStore(), tmp_path / str(strike)

        def view(store: ObjectStore, log: str = "a") -> ObjectStore:
            return NamedLogStore(store, log) if logs else store

        first = filled(view(bucket), state / "a")
        kept = needed(first)
        if logs:
            other = ObjectDisk("b", view(bucket, "b"), state / "b", snapshot_every_commits=0)
            kept.add(put(other, "b/live"))
            other.close()
        before = blobs(bucket)
        first.close()
        forgetful = Forgetful(bucket)
        forgetful.is_empty = lambda listing, strike=strike: listing == strike or (forever and listing > strike)  # type: ignore[misc]
        disk = ObjectDisk("s3", view(forgetful), state / ("a" if cached else "new"), retention_seconds=0)
        disk.cache.turns = Turns(sleep=lambda seconds: None)
        try:
            refused = collect(disk, WIDE, now=LATER).refused
        except FrostlineError as error:
            refused = error.message
        disk.close()
        assert kept <= blobs(bucket), f"listing {strike} was believed: {refused}"
        if forgetful.listings < strike:
            assert refused is None
            assert blobs(bucket) < before
            return
    pytest.fail("a run asks for more listings than are tried")


def test_a_pin_that_one_listing_shows_and_another_does_not(tmp_path: Path) -> None:
    bucket = Forgetful(MemoryStore())
    disk = filled(bucket, tmp_path)
    listings: list[str] = []
    original = bucket.list

    def shown(prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        listings.append(prefix)
        return iter(()) if prefix.startswith("pins/") else original(prefix, start_after=start_after)

    bucket.list = shown  # type: ignore[method-assign]
    before = blobs(bucket.inner)
    report = collect(disk, WIDE, now=LATER)
    assert "pins/" in listings
    assert report.refused is not None
    assert "pins/kept.json is there, and a listing" in report.refused
    assert blobs(bucket.inner) == before


def test_a_log_of_which_another_listing_shows_nothing(tmp_path: Path) -> None:
    """The second listing of the log is empty: what was read of it does not reach its end."""
    bucket = Forgetful(MemoryStore())
    disk = filled(bucket, tmp_path)
    original = bucket.list

    def shown(prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(()) if prefix.startswith("operations/") else original(prefix, start_after=start_after)

    bucket.list = shown  # type: ignore[method-assign]
    report = collect(disk, WIDE, now=LATER)
    assert report.refused is not None
    assert report.deleted == 0


class TestCommits:
    def hidden(self, tmp_path: Path) -> tuple[ObjectDisk, list[float], MemoryStore]:
        """A disk on a new machine, whose listings are all empty, of a bucket with a log."""
        bucket = MemoryStore()
        filled(bucket, tmp_path / "a").close()
        slept: list[float] = []
        disk = ObjectDisk("s3", Forgetful(bucket, lambda listing: True), tmp_path / "b")
        disk.cache.turns = Turns(sleep=slept.append, chance=lambda: 1.0)
        return disk, slept, bucket

    def test_who_loses_to_what_no_listing_shows_gives_up(self, tmp_path: Path) -> None:
        disk, slept, bucket = self.hidden(tmp_path)
        before = {info.key for info in bucket.list()}
        with pytest.raises(Transient):
            put(disk, "a/new")
        assert {key for key in before if not is_blob_key(key)} == {
            info.key for info in bucket.list() if not is_blob_key(info.key)
        }
        assert sum(slept) < 60

    def test_it_waits_longer_each_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the first look does not find it out: it is put again and again, and never without a pause."""
        monkeypatch.setattr("oplog.log.OperationsLog._has_first_entry", lambda self: False)
        disk, slept, _ = self.hidden(tmp_path)
        monkeypatch.setattr("disks.object_disk.following._MOST_UNPROVED", 0)
        with pytest.raises(WrongAnswer, match="its listings do not show it"):
            put(disk, "a/new")
        assert slept == sorted(slept)
        assert len(slept) == 9
        assert slept[0] > 0
        assert slept[-1] == 5.0

    def test_a_new_machine_does_not_take_the_log_for_empty(self, tmp_path: Path) -> None:
        disk, _, _ = self.hidden(tmp_path)
        with pytest.raises(Transient, match="listing of the log is empty"):
            disk.list()


@pytest.mark.parametrize("losses", range(1, 40))
def test_pauses_are_bounded_and_by_chance(losses: int) -> None:
    slept: list[float] = []
    for chance in (0.0, 0.5, 1.0):
        Turns(sleep=slept.append, chance=lambda chance=chance: chance).pause(losses)  # type: ignore[misc]
    assert slept == [0.0, slept[2] / 2, min(5.0, 0.05 * 2.0 ** (losses - 1))]
