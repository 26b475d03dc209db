"""The commits of a disk as a user asks for them: answers, what they cost, and an index that may be lost or behind.

Guards I15 (a missing or altered entry is named, never passed over) and P44 (what history costs is bounded).
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks.file_table.commit_index import CommitIndex, touched
from disks.object_disk.disk import ObjectDisk
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.metered import MeteredStore
from oplog import entry
from oplog.entry import Commit, Create, Link, Remove, Rename, now
from oplog.errors import Damaged, Locked
from oplog.kinds import Dropped, Inserted, OtherKind
from oplog.log import Entry
from oplog.revision import commit_key


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def disk(store: MemoryStore, tmp_path: Path) -> Iterator[ObjectDisk]:
    opened = ObjectDisk("s3", MeteredStore(store), tmp_path / "state", snapshot_every_commits=0)
    yield opened
    opened.close()


def write(disk: ObjectDisk, *paths: str) -> int:
    with disk.transaction(Inserted()) as transaction:
        for path in paths:
            transaction.create(path, path.encode())
        return transaction.commit() or 0


def remove(disk: ObjectDisk, path: str) -> int:
    with disk.transaction(Dropped()) as transaction:
        transaction.remove(path)
        return transaction.commit() or 0


def rename(disk: ObjectDisk, source: str, target: str) -> int:
    with disk.transaction(OtherKind("rename")) as transaction:
        transaction.rename(source, target)
        return transaction.commit() or 0


def touching(disk: ObjectDisk, directory: str, **span: int) -> list[int]:
    return [item.commit.revision for item in disk.commits().touching(directory, **span)]


def requests(disk: ObjectDisk) -> dict[str, int]:
    assert isinstance(disk.store, MeteredStore)
    return dict(disk.store.counts())


def again(disk: ObjectDisk, tmp_path: Path, *, lose: str = "") -> ObjectDisk:
    """The disk of another process, after losing a file of the local state."""
    if lose:
        disk.close()
        for path in (tmp_path / "state").glob(lose):
            path.unlink() if path.is_file() else shutil.rmtree(path)
    return ObjectDisk("s3", disk.store, tmp_path / "state", snapshot_every_commits=0)


def test_what_touches_a_directory() -> None:
    operations = (Create("t/a/one", 1, "00" * 32), Remove("t/b"), Rename("u/x", "v/y"), Link("t/a/one", "w/two"))
    commit = Commit(revision=1, previous="", writer="w", time=now(), kind=OtherKind("test"), operations=operations)
    assert touched(commit) == {
        *(("t", False), ("t/a", False), ("t/b", True)),
        *(("u", False), ("v", False), ("w", False), ("u/x", True), ("v/y", True)),
    }


def test_commits_of_a_directory(disk: ObjectDisk) -> None:
    first = write(disk, "t/one/data", "t/one/part.json")
    other = write(disk, "u/one/data")
    second = write(disk, "t/two/data")
    moved = rename(disk, "t/two", "u/two")
    gone = remove(disk, "t/one")
    whole = remove(disk, "u")
    assert touching(disk, "t") == [first, second, moved, gone]
    assert touching(disk, "t/one") == [first, gone]
    assert touching(disk, "u/one") == [other, whole], "what is above it was removed"
    assert touching(disk, "u/two") == [moved, whole]
    assert touching(disk, "t", limit=2) == [moved, gone]
    assert touching(disk, "t", since=first, until=moved) == [second, moved]
    assert touching(disk, "t", limit=0) == []
    assert touching(disk, "never/was") == []
    assert touching(disk, "t/on") == [], "a name is no prefix"


def test_the_newest_commits_cost_their_own_number_of_requests(disk: ObjectDisk) -> None:
    """P44: what the log holds besides does not count."""
    for number in range(60):
        write(disk, f"t/{number}/data")
    before = requests(disk)
    assert [item.commit.revision for item in disk.entries(limit=3)] == [58, 59, 60]
    after = requests(disk)
    assert after["GET"] - before["GET"] == 3
    assert after["LIST"] - before["LIST"] <= 4, "what follows, their sizes, and from where on they are kept"
    assert touching(disk, "t/7") == [8]
    assert requests(disk)["GET"] - after["GET"] == 1, "the index knows which"


def test_a_lost_index_is_read_from_the_log_once(disk: ObjectDisk, tmp_path: Path) -> None:
    for number in range(30):
        write(disk, f"t/{number % 3}/{number}")
    fresh = again(disk, tmp_path, lose="*.db*")
    read: list[int] = []
    found = [item.commit.revision for item in fresh.commits(read.append).touching("t/1")]
    assert found == list(range(2, 31, 3))
    read.clear()
    assert [item.commit.revision for item in fresh.commits(read.append).touching("t/2")] == list(range(3, 31, 3))
    assert read == []
    fresh.close()


def test_an_index_that_begins_late_is_completed_backwards(
    disk: ObjectDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only as far as the question needs."""
    monkeypatch.setattr("disks.file_table.commits._FIRST_LOOK_BACK", 5)
    for number in range(40):
        write(disk, f"t/{number % 2}/{number}")
    fresh = again(disk, tmp_path, lose="commits.db*")
    read: list[int] = []
    assert [one.commit.revision for one in fresh.commits(read.append).touching("t/1", limit=2)] == [38, 40]
    assert sum(read) == 5
    assert [one.commit.revision for one in fresh.commits(read.append).touching("t/0", limit=6)] == list(
        range(29, 40, 2)
    )
    assert sum(read) < 40
    assert touching(fresh, "t/0") == list(range(1, 40, 2))
    fresh.close()


def test_commits_of_another_process_are_noted_when_asked_for(disk: ObjectDisk, tmp_path: Path) -> None:
    """The other writer is another machine: what it commits is noted when it is taken in, or read when asked for."""
    write(disk, "t/a/1")
    elsewhere = ObjectDisk("s3", disk.store, tmp_path / "elsewhere", snapshot_every_commits=0)
    write(elsewhere, "t/a/2")
    assert touching(disk, "t/a") == [1, 2], "although this disk has not applied it"
    write(elsewhere, "t/a/3")
    disk.refresh()
    assert touching(disk, "t/a") == touching(elsewhere, "t/a") == [1, 2, 3]
    elsewhere.close()


@pytest.mark.parametrize("damage", [b"", b"junk" * 5000, None])
def test_a_damaged_index_is_made_anew(disk: ObjectDisk, tmp_path: Path, damage: bytes | None) -> None:
    """P45: a cache that a crash left empty, cut off or full of junk costs time and changes no answer."""
    for number in range(8):
        write(disk, f"t/{number % 2}/{number}")
    disk.close()
    path = tmp_path / "state" / "commits.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2] if damage is None else damage)
    fresh = again(disk, tmp_path)
    write(fresh, "t/0/8")
    assert touching(fresh, "t/0") == [1, 3, 5, 7, 9]
    fresh.close()


def test_a_question_about_the_past_keeps_the_notes_after_it(disk: ObjectDisk) -> None:
    for number in range(6):
        write(disk, f"t/{number}/data")
    found = disk.commits().last_touching(["t/1", "t/4", "t"], 1, 4)
    assert {directory: item.commit.revision for directory, item in found.items()} == {"t/1": 2, "t": 4}
    span = disk.cache.index.span()
    assert span is not None
    assert (span.first, span.last) == (1, 6)


def test_notes_of_a_log_that_was_put_back_are_made_anew(
    disk: ObjectDisk, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P39: the bucket was restored from an older copy and written to; the table was rebuilt, the notes were not."""
    for number in range(4):
        write(disk, f"t/{number}/data")
    disk.close()
    (tmp_path / "state" / "files.db").unlink()
    delete_entries(store, 3, 4)
    elsewhere = ObjectDisk("s3", store, tmp_path / "elsewhere", snapshot_every_commits=0)
    for number in range(3):
        write(elsewhere, f"u/{number}/data")
    elsewhere.close()
    with monkeypatch.context() as patched:  # the new table is read without a note being taken
        patched.setattr(CommitIndex, "note", lambda self, entries: None)
        fresh = ObjectDisk("s3", store, tmp_path / "state", snapshot_every_commits=0)
        fresh.refresh()
    assert touching(fresh, "t") == [1, 2]
    assert touching(fresh, "u") == [3, 4, 5]
    fresh.close()


def test_an_index_in_use_is_no_short_answer(disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I15."""
    for number in range(3):
        write(disk, f"t/{number}/data")
    disk.cache.index.forget()
    monkeypatch.setattr(CommitIndex, "note", lambda self, entries: None)
    with pytest.raises(Locked):
        touching(disk, "t")


def test_without_a_place_for_the_index_the_log_is_read(
    disk: ObjectDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A state directory that cannot be written changes no answer."""
    for number in range(6):
        write(disk, f"t/{number % 2}/{number}")
    (tmp_path / "file").write_text("in the way")
    disk.cache.index.close()
    disk.cache.index.path = tmp_path / "file" / "commits.db"
    assert touching(disk, "t/1") == [2, 4, 6]
    assert "the log is read instead" in caplog.text
    write(disk, "t/1/6")
    assert touching(disk, "t/1") == [2, 4, 6, 7]


def test_notes_that_cannot_be_thrown_away_are_not_used(disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError("read-only")

    write(disk, "t/a/1")
    monkeypatch.setattr("disks.file_table.commit_index.remove_database", refuse)
    disk.cache.index.forget()
    assert disk.cache.index.span() is None
    write(disk, "t/a/2")
    assert touching(disk, "t/a") == [1, 2]


def test_a_failing_index_fails_no_commit(disk: ObjectDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    write(disk, "t/a/1")
    with monkeypatch.context() as patched:
        patched.setattr("disks.file_table.commit_index._note", broken)
        assert write(disk, "t/a/2") == 2
    assert touching(disk, "t/a") == [1, 2]


def test_the_notes_of_another_bucket_do_not_count(disk: ObjectDisk, tmp_path: Path) -> None:
    write(disk, "t/a/1")
    write(disk, "t/a/2")
    disk.close()
    other = ObjectDisk("s3", MemoryStore("other"), tmp_path / "state", snapshot_every_commits=0)
    write(other, "t/b/1")
    assert touching(other, "t") == [1]
    assert touching(other, "t/a") == []
    other.close()


def test_the_notes_of_a_log_that_was_replaced_do_not_count(tmp_path: Path) -> None:
    index = CommitIndex(tmp_path / "commits.db", "store")

    def item(revision: int, previous: str, digest: str, path: str) -> Entry:
        commit = Commit(
            revision=revision,
            previous=previous * 64,
            writer="w",
            time=now(),
            kind=OtherKind("test"),
            operations=(Create(path, 1, "00" * 32),),
        )
        return Entry(commit, digest * 64)

    index.note([item(1, "0", "a", "t/a/1"), item(2, "a", "b", "t/a/2")])
    index.note([item(5, "d", "e", "t/a/5")])
    assert index.touching("t/a", since=0, until=9) == [1, 2], "not past a gap"
    index.note([item(3, "f", "c", "t/b/3")])
    assert index.touching("t", since=0, until=9) == [3]
    index.close()


def delete_entries(store: MemoryStore, *revisions: int) -> None:
    store.delete([commit_key(revision) for revision in revisions])


def test_entries_that_gc_removed_are_left_out(disk: ObjectDisk, store: MemoryStore) -> None:
    for number in range(10):
        write(disk, f"t/a/{number}")
    disk.write_snapshot()
    delete_entries(store, *range(1, 8))
    assert touching(disk, "t/a") == [8, 9, 10]
    assert [item.commit.revision for item in disk.entries()] == [8, 9, 10]
    disk.cache.index.forget_before(8)
    assert touching(disk, "t/a") == [8, 9, 10]
    span = disk.cache.index.span()
    assert span is not None
    assert span.first == 8


def test_leftovers_of_an_interrupted_collection_are_passed_over(disk: ObjectDisk, store: MemoryStore) -> None:
    """P31: gc failed to delete an old entry and deleted newer ones. A snapshot covers all of them."""
    for number in range(9):
        write(disk, f"t/a/{number}")
    disk.write_snapshot()
    delete_entries(store, 1, 2, 4, 6, 7)
    assert touching(disk, "t/a") == [8, 9]
    assert [item.commit.revision for item in disk.entries(limit=5)] == [8, 9]


def test_a_gap_that_no_snapshot_covers_is_damage(disk: ObjectDisk, store: MemoryStore) -> None:
    """P41, I15."""
    for number in range(9):
        write(disk, f"t/a/{number}")
    delete_entries(store, 4)
    with pytest.raises(Damaged, match=commit_key(4)):
        touching(disk, "t/a")
    with pytest.raises(Damaged, match=commit_key(4)):
        list(disk.entries(limit=7))


def test_an_altered_entry_is_named(disk: ObjectDisk, store: MemoryStore) -> None:
    """I15: also the newest one, which no other entry speaks of, and one far from its neighbours."""
    for number in range(9):
        write(disk, f"t/{number}/data")
    for revision in (9, 4):
        old = entry.decode(store.get(commit_key(revision)), name="x")
        delete_entries(store, revision)
        data = entry.encode(
            Commit(revision=revision, previous=old.previous, writer="forged", time=now(), kind=OtherKind("test"))
        )
        store.put(commit_key(revision), data, sha256=hashlib.sha256(data).digest())
        with pytest.raises(Damaged, match=f"revision {revision}\\) was altered"):
            touching(disk, f"t/{revision - 1}")
        with pytest.raises(Damaged, match=f"revision {revision}\\) was altered"):
            list(disk.entries(since=revision - 1, until=revision))


def test_an_empty_log_has_no_commits(disk: ObjectDisk) -> None:
    assert list(disk.entries()) == []
    assert touching(disk, "t") == []
    assert disk.commits().definitions() == []


def test_where_tables_were_defined(disk: ObjectDisk) -> None:
    write(disk, "store/abc/uuid/table.json")
    write(disk, "store/abc/uuid/part/part.json")
    remove(disk, "store/abc/uuid")
    write(disk, "store/abc/other/table.json")
    assert disk.commits().definitions() == [("store/abc/uuid", 1), ("store/abc/other", 4)]
