"""A log with something wrong in it: what is torn, missing, altered, copied or of another log is named, and what can
still be read is read. Guards I7, I15, P39, P41, P44, P46 and P47.
"""

from __future__ import annotations

import hashlib
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks.file_table.commit_index import CommitIndex
from disks.file_table.commits import Commits
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.metered import MeteredStore
from oplog import entry, pins, snapshot
from oplog.entry import Commit, Create, Link, Operation, Remove, Rename, now
from oplog.errors import Damaged, FrostlineError, NotFound, UsageError
from oplog.kinds import Inserted, Moved, OtherKind, Undone
from oplog.log import OperationsLog
from oplog.paths import is_safe
from oplog.revision import commit_key, snapshot_key
from tests.turns import examples


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def open_disk(store: MemoryStore, path: Path, *, every: int = 5) -> ObjectDisk:
    return ObjectDisk("s3", MeteredStore(store), path / "state", snapshot_every_commits=every)


@pytest.fixture
def written(store: MemoryStore, tmp_path: Path) -> MemoryStore:
    """Twelve commits with snapshots at 1, 5 and 10; the local state is lost."""
    disk = open_disk(store, tmp_path)
    for number in range(1, 13):
        with disk.transaction(Inserted()) as transaction:
            transaction.create(f"t/{number}/data", b"x" * number)
            transaction.commit()
    disk.close()
    shutil.rmtree(tmp_path / "state")
    return store


def put(store: MemoryStore, key: str, data: bytes) -> None:
    store.delete([key])
    store.put(key, data, sha256=hashlib.sha256(data).digest())


def paths(disk: ObjectDisk) -> list[str]:
    return sorted(info.path for info in disk.walk())


EVERYTHING = sorted(f"t/{number}/data" for number in range(1, 13))


def another_log(revision: int) -> bytes:
    """A snapshot of this revision that is whole, made of a log that differs in one byte."""
    return snapshot.encode(revision, "ab" * 32, [])


# Snapshots


@pytest.mark.parametrize(
    "what", ["empty", "torn", "junk", "of another revision", "of another log", "of a newer format"]
)
def test_a_damaged_snapshot_is_passed_over_and_told(written: MemoryStore, tmp_path: Path, what: str) -> None:
    """I7, I15: an older one gives the same table, and the damaged one is named."""
    key = snapshot_key(10)
    good = written.get(key)
    match what:
        case "empty":
            put(written, key, b"")
        case "torn":
            put(written, key, good[: len(good) // 2])
        case "junk":
            put(written, key, b"junk" * 100)
        case "of another revision":
            put(written, key, written.get(snapshot_key(5)))
        case "of another log":
            put(written, key, another_log(10))
        case "of a newer format":
            import zstandard

            text = zstandard.ZstdDecompressor().stream_reader(good).read().replace(b'"format":2', b'"format":3', 1)
            put(written, key, zstandard.ZstdCompressor().compress(text))
            disk = open_disk(written, tmp_path)
            with pytest.raises(UsageError, match=key):  # P46: not damage, and nothing to work around
                paths(disk)
            disk.close()
            return
    disk = open_disk(written, tmp_path)
    assert paths(disk) == EVERYTHING
    (note,) = disk.recover()
    assert key in note
    assert "an older one is used" in note
    at = disk.table_at(11)
    assert len(list(at.rows())) == 11
    at.close()
    disk.close()


def test_without_any_good_snapshot_the_whole_log_is_read(written: MemoryStore, tmp_path: Path) -> None:
    for revision in (1, 5, 10):
        put(written, snapshot_key(revision), another_log(revision))
    disk = open_disk(written, tmp_path)
    assert paths(disk) == EVERYTHING
    assert len(disk.recover()) == 3
    disk.close()


def test_no_snapshot_and_no_beginning_is_damage(written: MemoryStore, tmp_path: Path) -> None:
    """I15: half a table is no answer."""
    written.delete([commit_key(1), commit_key(2), snapshot_key(1), snapshot_key(5)])
    put(written, snapshot_key(10), b"")
    disk = open_disk(written, tmp_path)
    with pytest.raises(Damaged, match=f"{commit_key(1)} is missing"):
        paths(disk)
    disk.close()


def test_a_snapshot_whose_neighbours_are_gone_is_believed(written: MemoryStore, tmp_path: Path) -> None:
    """There is nothing left to compare it with; its own checksum holds."""
    log = OperationsLog(written)
    assert log.confirms(10, log.read(10).digest)
    assert not log.confirms(10, "00" * 32)
    put(written, commit_key(11), b"torn")
    assert log.confirms(10, log.read(10).digest), "the entry itself still tells"
    written.delete([commit_key(10), commit_key(11)])
    assert log.confirms(10, "00" * 32)


# Entries


def forged(store: MemoryStore, revision: int) -> bytes:
    previous = entry.decode(store.get(commit_key(revision)), name="x").previous
    return entry.encode(
        Commit(revision=revision, previous=previous, writer="forged", time=now(), kind=OtherKind("test"))
    )


DAMAGES = ("empty", "torn", "altered", "missing", "a copy of another", "with a foreign name")
UNSEEN = {("missing", 12), ("altered", 12)}
"""Nothing follows the newest entry: only who has seen it can tell (the next test)."""


@pytest.mark.parametrize(
    ("what", "revision"),
    [(what, revision) for what in DAMAGES for revision in (7, 11, 12) if (what, revision) not in UNSEEN],
)
def test_a_damaged_entry_is_named(
    written: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, revision: int
) -> None:
    """I15: by its key, on every path that reads it; what lies before it can be read."""
    key = commit_key(revision)
    good = written.get(key)
    match what:
        case "empty":
            put(written, key, b"")
        case "torn":
            put(written, key, good[:-20])
        case "altered":
            put(written, key, forged(written, revision))
        case "missing":
            written.delete([key])
        case "a copy of another":
            put(written, key, written.get(commit_key(3)))
        case "with a foreign name":
            key = f"{key}.bak"
            put(written, key, good)
    disk = open_disk(written, tmp_path)
    index = CommitIndex(tmp_path / "other.db", written.name)
    commits = Commits(disk.log, index, lambda: (0, "0" * 64))
    if revision > 10:
        with pytest.raises(Damaged, match=key.replace(".", r"\.")):
            paths(disk)
    else:
        assert paths(disk) == EVERYTHING, "a later snapshot stands in for it"
    with pytest.raises(Damaged, match=key.replace(".", r"\.")):
        list(disk.log.entries())
    if (what, revision) == ("missing", 7):
        assert [one.commit.revision for one in commits.between()] == [8, 9, 10, 11, 12]
        assert f"that of revision {revision} is missing" in caplog.text
    else:
        with pytest.raises(Damaged, match=key.replace(".", r"\.")) as error:
            list(commits.touching("t"))
        assert error.value.hint
        with pytest.raises(Damaged, match=key.replace(".", r"\.")):
            list(commits.between(5))
    if what != "with a foreign name":
        at = disk.table_at(revision - 1)
        assert len(list(at.rows())) == revision - 1
        at.close()
    index.close()
    disk.close()


def test_who_has_seen_the_newest_entry_notices_its_change(store: MemoryStore, tmp_path: Path) -> None:
    """I15, P39: the cached table remembers its digest."""
    disk = open_disk(store, tmp_path)
    for number in range(3):
        with disk.transaction(Inserted()) as transaction:
            transaction.create(f"t/{number}", b"x")
            transaction.commit()
    put(store, commit_key(3), forged(store, 3))
    with pytest.raises(Damaged, match=r"revision 3\) was altered"):
        list(disk.entries(limit=1))
    elsewhere = ObjectDisk("s3", store, tmp_path / "elsewhere")
    with elsewhere.transaction(Inserted()) as transaction:
        transaction.create("t/3", b"x")
        transaction.commit()
    with pytest.raises(Damaged, match="its entry 3 differs"):
        disk.refresh()
    elsewhere.close()
    disk.close()


@settings(max_examples=examples(60), deadline=None)
@given(st.sets(st.integers(1, 30)), st.booleans())
def test_gaps_never_mislead(gone: set[int], with_snapshot: bool) -> None:
    """P41: with any entries missing, the newest revision found is the true one, or the gap is named; never another."""
    store = MemoryStore()
    log = OperationsLog(store)
    digest = entry.GENESIS_DIGEST
    for revision in range(1, 31):
        commit = Commit(revision=revision, previous=digest, writer="w", time=now(), kind=OtherKind("test"))
        digest = log.append(commit)
    left = sorted(set(range(1, 31)) - gone)
    if with_snapshot and left:
        snapshot.write(store, left[-1], log.read(left[-1]).digest, [])
    store.delete([commit_key(revision) for revision in gone])
    dense = not left or left == list(range(left[0], left[-1] + 1))
    if dense:
        assert log.head() == (left[-1] if left else 0)
    else:
        missing = next(revision for revision in range(left[0], left[-1]) if revision in gone)
        with pytest.raises(Damaged, match=commit_key(missing)):
            log.head()
    if dense or with_snapshot:
        assert log.first_kept() == next((one for one in reversed(left) if one - 1 not in left), None)
    else:
        with pytest.raises(Damaged, match="is missing"):
            log.first_kept()


# Bounds and formats


def test_a_rebuild_reads_a_snapshot_and_what_follows_it(store: MemoryStore, tmp_path: Path) -> None:
    """P44: however long the log is."""
    disk = open_disk(store, tmp_path, every=10)
    for number in range(57):
        with disk.transaction(Inserted()) as transaction:
            transaction.create(f"t/{number}.json", b"{}")
            transaction.commit()
    disk.close()
    shutil.rmtree(tmp_path / "state")
    metered = MeteredStore(store)
    fresh = ObjectDisk("s3", metered, tmp_path / "state", snapshot_every_commits=10)
    assert len(paths(fresh)) == 57
    assert metered.counts()["GET"] <= 1 + 7 + 2, "a snapshot, seven entries, two that prove the snapshot"
    assert metered.counts()["LIST"] <= 4
    fresh.close()


def test_what_a_newer_version_wrote_is_refused_by_name(written: MemoryStore, tmp_path: Path) -> None:
    """P46: an old reader on new data."""
    put(written, commit_key(12), written.get(commit_key(12)).replace(b'"format":3', b'"format":5'))
    disk = open_disk(written, tmp_path)
    with pytest.raises(UsageError, match=f"{commit_key(12)} has format 5"):
        paths(disk)
    disk.close()


text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
file_paths = text.filter(is_safe)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        Create,
        file_paths,
        st.integers(0, 1 << 60),
        st.just("ab" * 32),
        st.none() | file_paths.filter(lambda key: not key.startswith(".")),
        st.none() | st.binary(max_size=50),
        st.none() | text,
    ),
    st.builds(Link, file_paths, file_paths),
    st.builds(Rename, file_paths, file_paths),
    st.builds(Remove, file_paths),
)
commits = st.builds(
    Commit,
    revision=st.integers(1, 1 << 40),
    previous=st.just("cd" * 32),
    writer=text,
    time=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    kind=st.one_of(
        st.builds(OtherKind, text, st.dictionaries(text, text, max_size=3)),
        st.builds(Moved, sources=st.dictionaries(text, st.lists(text, max_size=3).map(tuple), max_size=3)),
        st.builds(Undone, undoes=st.integers(1, 1 << 40), undone=text),
    ),
    actor=text | st.just(""),
    reason=text | st.just(""),
    present=st.lists(text, max_size=3).map(tuple),
    absent=st.lists(text, max_size=3).map(tuple),
    operations=st.lists(operations, max_size=5).map(tuple),
)


@settings(max_examples=examples(100), deadline=None)
@given(commits)
def test_every_kind_of_record_survives_the_bucket_and_back(commit: Commit) -> None:
    """P47: dump, load, dump is identical, and loading gives what was dumped."""
    data = entry.encode(commit)
    assert entry.decode(data, name="x") == commit
    assert entry.encode(entry.decode(data, name="x")) == data


def test_a_damaged_pin_is_named(written: MemoryStore) -> None:
    """I15, P46: nobody knows what it keeps, so nothing goes."""
    pins.create(written, "mine", 3, holder="me")
    put(written, "pins/mine.json", b'{"name": "mine"}')
    with pytest.raises(Damaged, match=r"pins/mine\.json"):
        pins.list_pins(written)


def test_a_revision_that_is_gone_is_not_called_unknown(written: MemoryStore, tmp_path: Path) -> None:
    """I15: gone is not the same as never there, and leftovers of an interrupted collection change nothing (P31)."""
    disk = open_disk(written, tmp_path)
    written.delete([commit_key(one) for one in (1, 2, 4, 5, 6, 7, 8)] + [snapshot_key(one) for one in (1, 5)])
    assert paths(disk) == EVERYTHING
    for revision in (2, 3, 6):
        with pytest.raises(FrostlineError, match=f"revision ({revision}|1) .*(no longer kept|not kept any more)"):
            disk.table_at(revision)
    with pytest.raises(NotFound, match="has no revision 13; the newest is 12"):
        disk.table_at(13)
    disk.close()


def test_one_damaged_snapshot_loses_nothing_after_a_collection(store: MemoryStore, tmp_path: Path) -> None:
    """I7, P44: gc keeps the log from the last snapshot but one on, so that no single object stands for everything."""
    disk = open_disk(store, tmp_path)
    for number in range(1, 24):
        with disk.transaction(Inserted()) as transaction:
            transaction.create(f"t/{number}/data", b"x" * number)
            transaction.commit()
    expected = paths(disk)
    later = datetime.now(UTC) + timedelta(days=3)
    report = collect(disk, GcRules(delete=True, compact_after_commits=1), now=later)
    assert report.refused is None
    assert report.log_deleted
    left = snapshot.revisions(store)
    assert len(left) == 2
    span = disk.cache.index.span()
    assert span is not None
    assert span.first == disk.log.first_kept() == left[0], "the index shrinks with the log"
    disk.close()
    for revision in left:
        good = store.get(snapshot_key(revision))
        put(store, snapshot_key(revision), good[:-9])
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        fresh = open_disk(store, tmp_path)
        assert paths(fresh) == expected
        fresh.close()
        put(store, snapshot_key(revision), good)
