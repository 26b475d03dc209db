"""disks.garbage.listing: a listing in ranges says what a whole one says, and hides nothing (P25, P29)."""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks.garbage import listing
from disks.garbage.collect import GcReport, collect
from disks.garbage.listing import ComparedBlobs, cut_ranges, in_key_order, list_range, list_ranges, list_whole
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ObjectInfo, ObjectStore
from disks.stores.memory import MemoryStore
from disks.workers.progress import SILENT
from disks.workers.runner import Remote, Run, Runner, check_stop, threads
from oplog.errors import Damaged, Transient, UsageError
from oplog.kinds import Dropped, Inserted, OtherKind
from oplog.revision import blob_key, commit_key, snapshot_key
from restore.check import listing as check_listing
from restore.check.check import CheckOptions, CheckResult, check
from restore.check.listing import PrefixListing
from restore.check.share_history import Subset
from tests.damage import break_pages
from tests.turns import examples

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=3)
KEYS = [blob_key(revision) for revision in (1, 1, 2, 3, 3, 3, 5, 9)]
OTHERS = [".SCHEMA_VERSION", "gc/x.json", commit_key(1), commit_key(2), "r-notes", snapshot_key(2), "zebra"]


class Listed(MemoryStore):
    """Lists what a test says: key -> size and age in hours; `shown` may bend each listing."""

    def __init__(self, objects: dict[str, tuple[int, float]]) -> None:
        super().__init__()
        self.objects = objects
        self.shown: Callable[[int, list[ObjectInfo]], list[ObjectInfo]] = lambda number, infos: infos
        self.listings: dict[str, int] = {}

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.listings[start_after] = self.listings.get(start_after, 0) + 1
        infos = [
            ObjectInfo(key, size, NOW - timedelta(hours=age))
            for key, (size, age) in sorted(self.objects.items())
            if key > start_after
        ]
        return iter(self.shown(self.listings[start_after], infos))


@dataclass(frozen=True)
class Here:
    """A store of this process, described by itself."""

    store: ObjectStore

    def open(self) -> ObjectStore:
        return self.store


class Table:
    """A file table of these blobs."""

    def __init__(self, *pairs: dict[str, int]) -> None:
        self._pairs = [pair for some in pairs for pair in some.items()]

    def blobs(self) -> Iterator[tuple[str, int]]:
        return iter(self._pairs)

    def blobs_by_key(self) -> Iterator[tuple[str, int, str]]:
        return ((key, size, "path") for key, size in sorted(self._pairs))


def remote(store: ObjectStore) -> Remote:
    return Remote(threads(3), Here(store))


def ranged(store: ObjectStore, table: Table, twice: bool = False, keys: int = 2, head: int = 0) -> Any:
    ranges = list(cut_ranges(Here(store), in_key_order(table), twice=twice, keys=keys, head=head))
    return list_ranges(remote(store), ranges, title="listing")


sizes = st.integers(0, 3)
objects = st.dictionaries(st.sampled_from(KEYS + OTHERS), st.tuples(sizes, st.just(9.0)))
expected = st.dictionaries(st.sampled_from(KEYS), sizes)


@given(objects, expected, expected, expected, st.sets(st.sampled_from(KEYS)), st.integers(1, 4))
@settings(max_examples=examples(150), deadline=None)
def test_ranges_say_what_a_whole_listing_says(
    there: dict[str, tuple[int, float]],
    known: dict[str, int],
    also: dict[str, int],
    asked: dict[str, int],
    named: set[str],
    keys: int,
) -> None:
    """P25: whatever was expected, what is missing and what nobody names is the same."""
    store = Listed(there)
    whole, _ = list_whole(store)
    found, objection = ranged(store, Table(known, also), twice=True, keys=keys)
    assert objection is None
    assert (found.commits, found.snapshots, found.foreign) == (whole.commits, whole.snapshots, whole.foreign)
    assert [one.key for one in found.intents] == [one.key for one in whole.intents]
    assert (len(found.blobs), found.blobs.total_bytes) == (len(whole.blobs), whole.blobs.total_bytes)
    with mock.patch.object(listing, "_CHUNK_PAIRS", 2):
        assert found.blobs.lacking(Table(asked)) == whole.blobs.lacking(Table(asked))
    assert found.blobs.sizes(named) == whole.blobs.sizes(named)
    referenced = named | set(known) | set(also)
    assert list(found.blobs.outside(referenced)) == list(whole.blobs.outside(referenced))
    assert found.blobs.missing == (known.keys() | also.keys()) - there.keys()


def test_ranges_are_all_keys_each_once_and_can_be_sent() -> None:
    pairs = [(key, 1) for key in sorted(KEYS)]
    ranges = list(cut_ranges(Here(MemoryStore()), pairs, head=120_000, keys=3))
    assert ranges[0].after == ""
    assert ranges[-1].until is None
    assert [one.after for one in ranges[1:]] == [one.until for one in ranges[:-1]]
    assert [one.until for one in ranges[:2]] == [commit_key(50_000), commit_key(100_000)]
    assert [pair for one in ranges for pair in listing.unpack(one.expected)] == pairs
    result = list_range(ranges[-1])
    assert pickle.loads(pickle.dumps(result)) == result


def test_of_a_blob_with_several_sizes_none_is_expected() -> None:
    one, two, three = sorted(KEYS)[:3]
    table = Table({one: 1, two: 2, three: 3}, {two: 2, three: 4}, {three: 4})
    assert list(in_key_order(table)) == [(one, 1), (two, 2), (three, listing.UNKNOWN_BYTES)]


def test_a_store_that_shows_what_was_not_asked_for_is_refused() -> None:
    store = Listed(dict.fromkeys(KEYS, (1, 9.0)))
    first = min(KEYS)
    store.shown = lambda number, infos: [ObjectInfo(first, 1, NOW), *infos]
    with pytest.raises(Damaged, match="asked for what follows"):
        ranged(store, Table(dict.fromkeys(KEYS, 1)))


@pytest.mark.parametrize("number", [1, 2])
def test_listings_of_a_range_that_disagree_are_told(number: int) -> None:
    """P29: a key that one of the two listings of its range leaves out."""
    store = Listed(dict.fromkeys(KEYS, (1, 9.0)))
    victim = sorted(KEYS)[4]
    store.shown = lambda now, infos: [one for one in infos if now != number or one.key != victim]
    _, objection = ranged(store, Table({}), twice=True)
    assert objection is None if number == 1 else victim in objection  # it may have been written in between
    store.objects[max(KEYS)] = (1, 1.0)  # but then it is as old as others only if clocks are wrong
    store.listings.clear()
    _, objection = ranged(store, Table(dict.fromkeys(KEYS, 1)), twice=True, keys=3)
    assert objection is not None
    assert victim in objection


def test_a_blob_that_a_listing_shows_twice_is_told() -> None:
    store = Listed(dict.fromkeys(KEYS, (1, 9.0)))
    victim = sorted(KEYS)[2]
    store.shown = lambda number, infos: [one for info in infos for one in [info] * (1 + (info.key == victim))]
    found, objection = ranged(store, Table({}))
    assert (found.blobs.repeated, objection) == (victim, None), "a report is made all the same"
    _, objection = ranged(store, Table({}), twice=True)
    assert victim in objection


def test_a_range_that_nobody_listed_is_no_empty_range() -> None:
    """P29."""

    @contextmanager
    def forgetful(run: Run) -> Iterator[Run]:
        yield run._replace(items=run.items[1:])

    store = Listed(dict.fromkeys(KEYS, (1, 9.0)))
    ranges = list(cut_ranges(Here(store), in_key_order(Table(dict.fromkeys(KEYS, 1))), keys=2))
    with pytest.raises(Damaged, match="ranges of keys"):
        list_ranges(Remote(threads().hooked(forgetful), Here(store)), ranges, title="listing")


# gc and fsck over ranges


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def disk(bucket: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectDisk:
    monkeypatch.setitem(cut_ranges.__kwdefaults__, "keys", 3)
    return ObjectDisk("cold", bucket, tmp_path / "state", snapshot_every_commits=0)


def put(disk: ObjectDisk, *names: str) -> list[str]:
    with disk.transaction(Inserted()) as transaction:
        infos = [transaction.create(f"a/{name}", name.encode()) for name in names]
        transaction.commit()
    return [info.key for info in infos if info.key is not None]


def remove(disk: ObjectDisk, name: str) -> None:
    with disk.transaction(Dropped()) as transaction:
        transaction.remove(f"a/{name}")
        transaction.commit()


def run(disk: ObjectDisk, *, here: bool = False, now: datetime | None = LATER, **options: Any) -> GcReport:
    rules = GcRules(**{"delete": True, "max_delete_fraction": 1.0, **options})
    return collect(disk, rules, now=now, remote=None if here else remote(disk.store))


def blobs(bucket: MemoryStore) -> set[str]:
    return {info.key for info in bucket.list("r")}


def fill(disk: ObjectDisk) -> tuple[set[str], set[str]]:
    """What must stay, and what may go."""
    stays = {*put(disk, *(f"live-{number}" for number in range(10)))}
    gone = {*put(disk, "gone-1", "gone-2")}
    for name in ("gone-1", "gone-2"):
        remove(disk, name)
    stays |= {*put(disk, "last")}
    abandoned = disk.transaction(Inserted()).create("a/never", b"abandoned").key
    assert abandoned is not None
    return stays, gone | {abandoned}


def test_a_collection_over_ranges_reports_and_deletes_the_same(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """I5: and nothing else."""
    stays, gone = fill(disk)
    bucket.put("notes.txt", b"mine", sha256=hashlib.sha256(b"mine").digest())
    here, there = run(disk, delete=False, here=True), run(disk, delete=False)
    assert here == there
    assert set(there.orphans) == gone
    assert there.foreign == ["notes.txt"]
    report = run(disk)
    assert report.refused is None
    assert report.deleted == len(gone)
    assert blobs(bucket) == stays


def test_young_garbage_and_pinned_revisions_stay(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """I4, I5: what was expected of the bucket has no say in what is named."""
    from oplog import pins

    stays, gone = fill(disk)
    assert run(disk, now=None, delete=False).pending == 1, "the abandoned one; the others are within the retention"
    pins.create(bucket, "backup", 2, holder="test", until=None)
    report = run(disk)
    assert report.refused is None
    assert report.deleted == 1
    assert len(blobs(bucket)) == len(stays) + len(gone) - 1


def test_a_live_object_that_no_range_shows_stops_everything(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """P25."""
    stays, _ = fill(disk)
    victim = min(stays)
    data, info = bucket._objects.pop(victim)
    report = run(disk)
    assert report.refused is not None
    assert victim in report.refused
    assert report.deleted == 0
    bucket._objects[victim] = (data + b"x", ObjectInfo(victim, info.size_bytes + 1, info.modified))
    report = run(disk)
    assert report.refused is not None, "another size"
    assert report.deleted == 0


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Something happens between the reading of the table and the listing."""
    from disks.garbage import collect as garbage

    original = garbage.list_ranges

    def late(*arguments: Any, **options: Any) -> Any:
        happens()
        return original(*arguments, **options)

    monkeypatch.setattr(garbage, "list_ranges", late)


@pytest.fixture
def other(bucket: MemoryStore, tmp_path: Path) -> ObjectDisk:
    """The same bucket on another machine."""
    return ObjectDisk("cold", bucket, tmp_path / "other", snapshot_every_commits=0)


def test_what_another_machine_wrote_since_the_table_read_stays(
    disk: ObjectDisk, other: ObjectDisk, bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, P29: expected is what this machine knew; what others named since then is named."""
    _, gone = fill(disk)
    new: list[str] = []

    def happens() -> None:
        new.extend(put(other, "late-1", "late-2", "late-3", "late-4"))
        remove(other, "live-1")

    meanwhile(monkeypatch, happens)
    report = run(disk)
    assert (report.refused, report.deleted) == (None, len(gone)), "live-1 was expected: the next collection takes it"
    assert set(new) <= blobs(bucket)


def test_what_no_range_shows_of_another_s_writes_stops_all(
    disk: ObjectDisk, other: ObjectDisk, bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P25: nobody expected it, but the log that is read after the listing names it."""
    fill(disk)
    victims: list[str] = []

    def happens() -> None:
        victims.extend(put(other, "late"))
        bucket._objects.pop(victims[0])

    meanwhile(monkeypatch, happens)
    report = run(disk)
    assert victims[0] in (report.refused or "")
    assert report.deleted == 0


def test_a_disk_with_clickhouses_log_is_refused(bucket: MemoryStore, tmp_path: Path) -> None:
    from disks.clickhouse.disk import ClickHouseDisk

    with pytest.raises(UsageError):
        run(ClickHouseDisk("cold", bucket, tmp_path / "state"))  # type: ignore[arg-type]


def checked(disk: ObjectDisk, **options: Any) -> tuple[CheckResult, CheckResult]:
    """Here, and by others."""
    return check({"cold": disk}, CheckOptions(**options)), check(
        {"cold": disk}, CheckOptions(**options, remote={"cold": remote(disk.store)})
    )


@pytest.mark.in_turn
@pytest.mark.parametrize("cache", ["newest", "old", "none"])
def test_a_check_over_ranges_finds_the_same(disk: ObjectDisk, bucket: MemoryStore, tmp_path: Path, cache: str) -> None:
    """I3, I4, I8: an object that is gone, one of another size, one of two paths, one of a retained revision. Whatever
    the cache of this machine names: it only says what to expect."""
    if cache == "old":
        put(disk, "live-0", "live-1", "before")
        remove(disk, "before")
    looking = disk if cache == "newest" else ObjectDisk("cold", bucket, tmp_path / "other", snapshot_every_commits=0)
    if cache == "old":
        looking.refresh()
        for name in ("live-0", "live-1"):
            remove(disk, name)
    fill(disk)
    with disk.transaction(OtherKind("link")) as transaction:
        transaction.link("a/live-3", "a/also-3")
        transaction.commit()
    retained = put(disk, "retained")
    remove(disk, "retained")
    here, there = checked(looking)
    assert here == there
    assert here.checked.objects == len(blobs(bucket))
    table = {row.path: row.key for row in disk.file_table.rows()}
    for path in ("a/live-1", "a/live-3"):
        bucket._objects.pop(str(table[path]))
    bucket._objects.pop(retained[0])
    key = str(table["a/live-7"])
    _, info = bucket._objects[key]
    bucket._objects[key] = (b"longer than before", ObjectInfo(key, 18, info.modified))
    here, there = checked(looking)
    assert {problem.invariant for problem in here.problems} == {"I3", "I4", "I8"}
    assert here == there


def test_data_that_others_read_is_found_to_be_altered(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """I1."""
    stays, _ = fill(disk)
    key = min(stays)
    data, info = bucket._objects[key]
    bucket._objects[key] = (bytes(len(data)), info)
    here, there = checked(disk, read_data=True)
    assert [problem.what for problem in here.problems] == ["the bytes do not match their SHA-256"]
    assert here == there
    assert there.checked.files_read == len(stays)


def test_a_share_of_the_data_is_the_same_share_elsewhere(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """I1."""
    stays, _ = fill(disk)
    for key in stays:
        data, info = bucket._objects[key]
        bucket._objects[key] = (bytes(len(data)), info)
    here, there = checked(disk, subset=Subset(3, 2))
    assert here == there
    assert 0 < there.checked.files_read == len(there.problems) < len(stays)


def test_compared_blobs_of_nothing() -> None:
    empty = ComparedBlobs([], [])
    assert (len(empty), empty.total_bytes, empty.repeated) == (0, 0, None)
    assert list(empty.outside(())) == []
    assert empty.lacking(Table({KEYS[0]: 1})) == {KEYS[0]}


def test_what_was_there_when_the_retention_began_is_looked_for(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """I4: the first revision that is kept names it, and none after that."""
    key = put(disk, "early", "late")[0]
    remove(disk, "early")
    data, info = bucket._objects[commit_key(1)]
    bucket._objects[commit_key(1)] = (data, ObjectInfo(info.key, info.size_bytes, NOW - timedelta(days=3)))
    bucket._objects.pop(key)
    here, there = checked(disk)
    assert [(problem.invariant, problem.object) for problem in there.problems] == [("I4", key)]
    assert here == there


def test_what_a_collection_takes_while_a_check_lists_is_not_lost(
    disk: ObjectDisk, bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: the last revision that names it has left the retention since the check began."""
    key, gone = put(disk, "early", "late")
    remove(disk, "early")
    remove(disk, "late")
    put(disk, "last")
    original = check_listing.list_ranges

    def late(*arguments: Any, **options: Any) -> Any:
        for revision in (1, 2):
            data, info = bucket._objects[commit_key(revision)]
            old = NOW - timedelta(days=3)
            bucket._objects[commit_key(revision)] = (data, ObjectInfo(info.key, info.size_bytes, old))
        bucket._objects.pop(key, None)
        bucket._objects.pop(gone, None)
        return original(*arguments, **options)

    monkeypatch.setattr(check_listing, "list_ranges", late)
    result = check({"cold": disk}, CheckOptions(remote={"cold": remote(disk.store)}))
    assert [problem.object for problem in result.problems] == [gone], "revision 2 is the oldest that is kept"


def test_a_log_that_cannot_be_replayed_leaves_the_cache_to_check(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """I6, I7."""
    stays, _ = fill(disk)
    data, info = bucket._objects[commit_key(2)]
    bucket._objects[commit_key(2)] = (data.replace(b"a", b"b", 1), info)
    bucket._objects.pop(max(stays))
    here, there = checked(disk)
    assert not here.ok
    assert here == there


def test_of_a_log_and_a_cache_that_cannot_be_read_both_are_told(disk: ObjectDisk, bucket: MemoryStore) -> None:
    """I6, I7."""
    put(disk, *(f"{number:04d}" for number in range(3_000)))
    data, info = bucket._objects[commit_key(1)]
    bucket._objects[commit_key(1)] = (data.replace(b"a", b"b", 1), info)
    disk.close()
    break_pages(disk.table_path)
    here, there = checked(disk)
    assert {"I6", "I7"} <= {problem.invariant for problem in here.problems}
    assert any("cannot be read" in problem.what and str(disk.table_path) in problem.what for problem in here.problems)
    assert here == there


class Endless(MemoryStore):
    """Shows blobs without end."""

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return (ObjectInfo(blob_key(1), 1, NOW) for _ in iter(int, 1))


class Forever(Runner):
    """Lists no range ever, as a cluster without executors does."""

    def work(self, run: Run, stop: threading.Event | None) -> None:
        assert stop is not None
        assert stop.wait(20)
        check_stop(stop, run.title)


@pytest.mark.parametrize("by_others", [False, True])
def test_a_listing_that_nobody_waits_for_is_given_up(tmp_path: Path, by_others: bool) -> None:
    """Ctrl-C ends a check of a large bucket, and does not wait for its listing."""
    disk = ObjectDisk("cold", Endless(), tmp_path / "state")
    found = PrefixListing(
        disk, Remote(Forever(ThreadPoolExecutor(1)), Here(disk.store)) if by_others else None, SILENT, head=0
    )
    found.close()
    with pytest.raises(Transient, match="listing disk cold: stopped"):
        found.result()


def test_work_in_a_pool_can_be_stopped() -> None:
    """What is in work ends, and nothing begins any more."""
    stop, began = threading.Event(), list[int]()

    def piece(number: int) -> None:
        began.append(number)
        stop.set()
        time.sleep(0.01)  # all of them would take ten seconds

    with pytest.raises(Transient, match="pieces: stopped"):
        threads(1).run(piece, range(1000), title="pieces", on_done=lambda index, result: None, stop=stop)
    assert len(began) < 1000
    with pytest.raises(Transient, match="pieces: stopped"):
        threads(1).run(piece, range(1000), title="pieces", on_done=lambda index, result: None, stop=stop)
