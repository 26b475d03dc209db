"""restore.check.check: a sound store has no problems, and every seeded fault is found and named.

Guards I1 to I8, I14 and I15, each with a fault that it must find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.garbage.announcements import announce
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.history import TableAsOf
from disks.stores.base import ObjectInfo
from oplog import pins
from oplog.entry import Create
from oplog.errors import AccessDenied, UsageError
from oplog.kinds import Dropped, Inserted, OtherKind
from oplog.revision import commit_key, snapshot_key
from restore.check.cache import CachedTable
from restore.check.check import check
from restore.check.data import share_of
from restore.check.share_history import Subset, parse_subset
from tests.damage import unchecked_documents
from tests.faulty_store import Fault
from tests.unit.restore.check.checked_site import DATA, TABLE, Site, add_part, flip, parquet
from tests.unit.restore.check.checked_site import site as site


def test_a_sound_store_has_no_problems_and_was_looked_at(site: Site) -> None:
    result = site.check()
    assert result.problems == []
    assert (result.checked.parts, result.checked.files, result.checked.objects) == (4, 10, 2)
    assert result.checked.bytes_read == 0
    read = site.check(read_data=True)
    assert read.ok
    assert read.checked.bytes_read == 4 * len(parquet(10))


def test_shares_are_drawn_until_everything_was_read(site: Site, tmp_path: Path) -> None:
    """Each file belongs to one share; runs draw one that was not read yet, until all were."""
    reads = [site.check(subset=parse_subset("25%"), memory=tmp_path / "memory") for _ in range(8)]
    shares = [one.shares for one in reads]
    for disk in ("ssd", "cold"):
        mine = [share for one in shares for share in one if share.disk == disk]
        filled = {share.share for share in mine}
        begun = mine[: len(filled)]
        assert {share.share for share in begun} == filled, "a share was read twice before all were read once"
        assert sum(share.bytes for share in begun) == 2 * len(parquet(10))
        assert [share.read_lately for share in begun] == list(range(1, len(filled) + 1))
        assert mine[len(filled)].read_lately == 1


def test_a_chosen_share_is_read_and_a_fault_in_it_found(site: Site) -> None:
    key = site.blob("all_1_1_0")
    site.spoil(key, flip)
    path = f"{TABLE.part_directory('all_1_1_0')}/{DATA}"
    wanted = share_of(path, 3)
    assert site.only(subset=Subset(3, wanted)).object == key
    assert site.check(subset=Subset(3, wanted % 3 + 1)).ok


@pytest.mark.parametrize("text", ["0%", "-5%", "150%", "half", "0/4", "5/4", "1/0", ""])
def test_a_share_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_subset(text)
    assert parse_subset("5%") == Subset(20)
    assert parse_subset("3/20") == Subset(20, 3)


# The bucket


def test_an_object_deleted_behind_our_back(site: Site) -> None:
    """I3."""
    key = site.blob("all_1_1_0")
    site.bucket.delete([key])
    problem = site.only()
    assert (problem.invariant, problem.disk, problem.table, problem.part) == ("I3", "cold", "db.events", "all_1_1_0")
    assert problem.path == f"{TABLE.part_directory('all_1_1_0')}/{DATA}"
    assert problem.object == key


def test_an_object_of_another_size(site: Site) -> None:
    key = site.blob("all_1_1_0")
    site.spoil(key, lambda data: data[:-1])
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I3", key)


def test_a_flipped_bit_is_found_by_reading_only(site: Site) -> None:
    """I15: silent in the store, found by our own SHA-256."""
    key = site.blob("all_1_1_0")
    site.spoil(key, flip)
    assert site.check().ok
    problem = site.only(read_data=True)
    assert (problem.invariant, problem.part, problem.object) == ("I1", "all_1_1_0", key)
    assert "SHA-256" in problem.what


def test_a_listing_that_is_short_is_told_from_a_lost_object(site: Site) -> None:
    """P29."""
    key = site.blob("all_1_1_0")
    whole = site.bucket.list
    site.bucket.list = lambda prefix="", start_after="": (  # type: ignore[method-assign,misc]
        info for info in whole(prefix, start_after=start_after) if info.key != key
    )
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I15", key)
    assert "incomplete" in problem.what


def test_a_listing_that_hides_the_newest_entry(site: Site) -> None:
    """P41."""
    hidden = commit_key(3)
    whole = site.bucket.list
    site.bucket.list = lambda prefix="", start_after="": (  # type: ignore[method-assign,misc]
        info for info in whole(prefix, start_after=start_after) if info.key != hidden
    )
    assert any(problem.object == hidden and problem.invariant == "I15" for problem in site.check().problems)


def test_a_gap_in_the_log(site: Site) -> None:
    """I6: named, with a snapshot after it or without."""
    site.bucket.delete([commit_key(2)])
    problems = site.check().problems
    assert any(problem.invariant == "I6" and problem.object == commit_key(2) for problem in problems)
    assert any(problem.invariant == "I7" for problem in problems)


def test_a_gap_before_a_young_snapshot_is_still_a_gap(site: Site) -> None:
    site.cold.write_snapshot()
    site.bucket.delete([commit_key(2)])
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I6", commit_key(2))


def test_entries_that_gc_took_are_no_gap(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.cold.retention_seconds = -1
    site.cold.write_snapshot()
    site.bucket.delete([commit_key(1), commit_key(2)])
    assert site.check().ok


@pytest.mark.parametrize("change", [flip, lambda data: data[:50], lambda data: b""], ids=["flipped", "torn", "empty"])
def test_an_altered_entry(site: Site, change: Callable[[bytes], bytes]) -> None:
    """I6, I15: the chain of digests breaks, or the entry cannot be read."""
    site.spoil(commit_key(2), change)
    problems = site.check().problems
    assert {problem.invariant for problem in problems} <= {"I6", "I7"}
    assert problems[0].disk == "cold"
    assert "revision 3" in problems[0].what or commit_key(2) in (problems[0].object or "")


def test_an_entry_altered_into_valid_json(site: Site) -> None:
    site.spoil(commit_key(2), lambda data: data.replace(b'"insert"', b'"insort"'))
    problem = site.only()
    assert problem.invariant == "I6"
    assert "chain" in problem.what


def test_an_entry_with_a_hostile_path(site: Site) -> None:
    """Paths in the bucket are hostile input."""
    commit = part_commit(site, (Create(path="../../etc/passwd", size_bytes=0, sha256="00" * 32, inline=b""),))
    with unchecked_documents():
        site.cold.log.append(commit)
    problem = site.only()
    assert problem.invariant == "I6"
    assert "unsafe" in problem.what


def part_commit(site: Site, operations: tuple[Create, ...]):  # type: ignore[no-untyped-def]
    from oplog.entry import Commit

    revision, digest = site.cold.file_table.head()
    return Commit(
        revision=revision + 1,
        previous=digest,
        writer="x",
        time=datetime.now(UTC),
        kind=Inserted(),
        operations=operations,
    )


def test_an_unreadable_pin(site: Site) -> None:
    """I5: gc would stop at it, so fsck names it."""
    pins.create(site.bucket, "backup", 1, holder="test")
    site.spoil("pins/backup.json", lambda data: b"{")
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I15", "pins/backup.json")


def test_a_torn_snapshot_and_one_with_other_content(site: Site) -> None:
    site.cold.write_snapshot()
    site.spoil(snapshot_key(3), lambda data: data[:40])
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I15", snapshot_key(3))

    from oplog import snapshot

    del site.bucket._objects[snapshot_key(3)]
    with site.cold.file_table.read() as view:
        revision, digest = view.head()
        snapshot.write(site.bucket, revision, digest, list(view.rows())[1:])
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I7", snapshot_key(3))


def test_a_cache_that_contradicts_the_log_is_seen_and_repaired(site: Site) -> None:
    """I7."""
    with site.cold.file_table.write() as view:
        view.remove(TABLE.part_directory("all_1_1_0"))
    problem = site.only()
    assert (problem.invariant, problem.disk) == ("I7", "cold")
    result = site.check(repair=True)
    assert result.ok
    assert len(result.repaired) == 1
    assert site.check().ok
    assert site.cold.exists(TABLE.part_directory("all_1_1_0"))


@pytest.mark.parametrize(
    "change",
    [
        "path = path || '-'",
        "size_bytes = size_bytes + 1",
        "sha256 = zeroblob(32)",
        "key = NULL",
        "key = key || 'z'",
        "inline = x'00'",
        "blob_set = 'z'",
        "revision = revision + 1",
        """more = '[["r9-file-x", 1]]'""",
        "read_only = 1",
    ],
)
def test_every_column_of_the_cache_counts(site: Site, change: str) -> None:
    """I7."""
    path = f"{TABLE.part_directory('all_2_2_0')}/{DATA}"
    spoil_cache(site, f"UPDATE files SET {change} WHERE path = '{path}'")
    assert site.only().path == str(site.cold.table_path)


@pytest.mark.parametrize("which", ["min", "max"])
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM files",
        "INSERT INTO files SELECT path || '-', size_bytes, sha256, key, blob_set, revision, document, inline, more, "
        "read_only FROM files",
    ],
)
def test_a_file_more_or_less_in_the_cache_counts(site: Site, statement: str, which: str) -> None:
    """I7."""
    spoil_cache(site, f"{statement} WHERE path = (SELECT {which}(path) FROM files)")
    assert site.only().path == str(site.cold.table_path)


def test_a_cache_is_looked_at_wherever_it_lies(tmp_path: Path) -> None:
    """I7: SQLite is given the path in a URI."""
    site = Site(tmp_path / "odd 100% ?name#")
    assert site.check().ok
    spoil_cache(site, "DELETE FROM files WHERE path = (SELECT max(path) FROM files)")
    assert site.only().path == str(site.cold.table_path)


def test_a_cache_with_a_damaged_page_is_found_and_left_as_it_is(site: Site) -> None:
    """I7, P45."""
    site.cold.cache.close()
    data = site.cold.table_path.read_bytes()
    damaged = data[:4096] + b"\xff" * 8192 + data[4096 + 8192 :]
    assert len(damaged) == len(data)
    site.cold.table_path.write_bytes(damaged)
    problem = site.only()
    assert (problem.invariant, problem.path) == ("I7", str(site.cold.table_path))
    assert "cannot be read" in problem.what
    assert site.cold.table_path.read_bytes() == damaged


def spoil_cache(site: Site, statement: str) -> None:
    with site.cold.file_table.write() as view:
        assert view._connection.execute(statement).rowcount == 1


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_cache_that_changes_meanwhile_is_compared_as_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch, spoilt: bool
) -> None:
    """I7: the check began before the commit."""
    if spoilt:
        with site.cold.file_table.write() as view:
            view.remove(TABLE.part_directory("all_1_1_0"))
    original = CachedTable.compare

    def late(self: CachedTable, past: TableAsOf) -> None:
        add_part(ObjectDisk("cold", site.bucket, site.cold.state_path), "all_9_9_0")
        original(self, past)

    monkeypatch.setattr(CachedTable, "compare", late)
    assert [problem.invariant for problem in site.check().problems] == (["I7"] if spoilt else [])


def test_a_cache_that_is_no_database_is_found_and_repaired(site: Site) -> None:
    """P45."""
    site.cold.cache.close()
    for name in ("files.db-wal", "files.db-shm"):
        (site.cold.state_path / name).unlink(missing_ok=True)
    site.cold.table_path.write_bytes(b"garbage" * 100)
    assert site.only().invariant == "I7"
    assert site.check(repair=True).ok
    assert site.cold.stat(f"{TABLE.part_directory('all_1_1_0')}/{DATA}").size_bytes == len(parquet(10))


def test_a_stale_or_missing_cache_is_no_problem(site: Site, tmp_path: Path) -> None:
    """A cache may be behind: it catches up by itself."""
    other = ObjectDisk("cold", site.bucket, tmp_path / "other")
    add_part(other, "all_9_9_0")
    assert site.check().ok
    fresh = ObjectDisk("cold", site.bucket, tmp_path / "fresh")
    assert check({"cold": fresh}).ok
    assert not fresh.local_state_exists()


def test_a_store_that_refuses_us_is_an_error_and_no_finding(site: Site) -> None:
    site.faults.faults.append(Fault("list", AccessDenied("403"), times=None))
    with pytest.raises(AccessDenied):
        site.check()


# What is kept though the newest table does not name it


def test_a_lost_object_that_only_a_retained_revision_names(site: Site) -> None:
    """I4: restoring that revision would fail."""
    key = site.blob("all_1_1_0")
    with site.cold.transaction(Dropped()) as transaction:
        transaction.remove(TABLE.part_directory("all_1_1_0"))
        transaction.commit()
    assert site.check().ok
    site.bucket.delete([key])
    problem = site.only()
    assert (problem.invariant, problem.disk, problem.object) == ("I4", "cold", key)
    site.cold.retention_seconds = -1
    assert site.check().ok, "what came and went before the retention may be gone"


def test_a_lost_object_that_the_first_retained_revision_names(site: Site) -> None:
    """I4: not created within the retention, yet named at its beginning."""
    key = site.blob("all_1_1_0")
    data, info = site.bucket._objects[commit_key(2)]
    for revision in (1, 2, 3):
        data, info = site.bucket._objects[commit_key(revision)]
        old = ObjectInfo(info.key, info.size_bytes, info.modified - timedelta(days=2))
        site.bucket._objects[commit_key(revision)] = (data, old)
    with site.cold.transaction(Dropped()) as transaction:
        transaction.remove(TABLE.part_directory("all_1_1_0"))
        transaction.commit()
    assert site.check().ok
    site.bucket.delete([key])
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I4", key)


def test_a_pin_on_a_revision_that_is_not_kept_any_more(site: Site) -> None:
    """I4."""
    pins.create(site.bucket, "backup", 1, holder="test")
    site.cold.write_snapshot()
    site.cold.retention_seconds = -1
    site.bucket.delete([commit_key(1), commit_key(2)])
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I4", "pins/backup.json")
    assert "revision 1" in problem.what


def test_an_object_of_two_paths_that_is_gone(site: Site) -> None:
    """I8: it lives while any path names it; both are reported."""
    directory = TABLE.part_directory("all_1_1_0")
    with site.cold.transaction(OtherKind("test")) as transaction:
        transaction.create("linked/one.bin", b"shared")
        transaction.link("linked/one.bin", "linked/two.bin")
        transaction.commit()
    assert site.check().ok
    key = site.cold.stat("linked/one.bin").key
    assert key is not None
    site.bucket.delete([key])
    problems = site.check().problems
    assert [(problem.invariant, problem.path, problem.object) for problem in problems] == [
        ("I8", "linked/one.bin", key),
        ("I8", "linked/two.bin", key),
    ]
    assert directory not in str(problems)


def test_a_listing_that_shows_an_object_twice(site: Site) -> None:
    """P29."""
    key = site.blob("all_1_1_0")
    whole = site.bucket.list

    def twice(prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in whole(prefix, start_after=start_after):
            yield from [info, info] if info.key == key else [info]

    site.bucket.list = twice  # type: ignore[method-assign]
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I15", key)


@pytest.mark.parametrize("prefix", ["operations/", "snapshots/", "", "pins/"])
def test_who_writes_meanwhile_is_no_problem(site: Site, prefix: str) -> None:
    """I3, I7: parts that come and go between any two listings of the check."""
    whole = site.bucket.list
    written = 0

    def meanwhile(wanted: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        nonlocal written
        if wanted == prefix and not written:
            written = 1
            add_part(site.cold, "all_9_9_0")
            with site.cold.transaction(Dropped()) as transaction:
                transaction.remove(TABLE.part_directory("all_2_2_0"))
                transaction.commit()
        return whole(wanted, start_after=start_after)

    site.bucket.list = meanwhile  # type: ignore[method-assign]
    assert site.check().problems == []
    assert written
    assert site.check().ok


def test_announcements_that_cannot_be_right(site: Site) -> None:
    """I5: gc is about to delete what is in use, or says so illegibly, which keeps every restore waiting."""
    name = announce(site.bucket, [site.blob("all_1_1_0")], datetime.now(UTC))
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I5", site.blob("all_1_1_0"))
    site.spoil(name, lambda data: b"{")
    problem = site.only()
    assert (problem.invariant, problem.object) == ("I5", name)
