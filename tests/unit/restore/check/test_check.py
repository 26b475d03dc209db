"""restore.check.check: a sound store has no problems, and every seeded fault is found and named.

Guards I1 to I8, I14 and I15, each with a fault that it must find.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from disks.base import Disk
from disks.garbage.announcements import announce
from disks.garbage.collect import collect
from disks.garbage.rules import GcRules
from disks.local.disk import LocalDisk
from disks.object_disk.disk import ObjectDisk
from disks.object_disk.history import TableAsOf
from disks.stores.base import ByteRange, ObjectInfo
from disks.stores.memory import MemoryStore
from oplog import pins
from oplog.entry import Create
from oplog.errors import AccessDenied, Locked, Refused, UsageError
from oplog.kinds import Dropped, Inserted, OtherKind, SetAside, TableCreated
from oplog.revision import commit_key, snapshot_key
from restore.check.cache import CachedTable
from restore.check.check import CheckOptions, CheckResult, check
from restore.check.copies import overlaps
from restore.check.data import share_of
from restore.check.findings import Problem
from restore.check.share_history import Subset, parse_subset
from restore.rebuild.rebuild import restore
from restore.rebuild.request import RebuildRequest
from tests.damage import unchecked_documents
from tests.faulty_store import Fault, FaultyStore
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import DataFile, Part, PartName
from tiering.table.schema import Column, TableDefinition

TABLE = TableDefinition(
    uuid="abc0000000000000",
    database="db",
    name="events",
    columns=(Column(id=1, name="n", type="int64"),),
    order_by=("n",),
    policy="hot_cold",
)
POLICIES = {"hot_cold": ["ssd", "cold"]}
DATA = "data-0000.parquet"


def parquet(rows: int) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(rows))}), target)
    return target.getvalue()


def add_part(disk: Disk, name: str, *, rows: int = 10, edit: Callable[[Part], Part] | None = None) -> str:
    """A real part in one transaction; its directory."""
    data = parquet(rows)
    file = DataFile(name=DATA, rows=rows, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    part = Part(table=TABLE.uuid, name=name, rows=rows, size_bytes=len(data), created=datetime.now(UTC), files=(file,))
    directory = TABLE.part_directory(name)
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"{directory}/{DATA}", data)
        transaction.create(f"{directory}/part.json", part_format.encode(edit(part) if edit else part))
        transaction.commit()
    return directory


def define(disk: Disk, definition: TableDefinition = TABLE) -> None:
    with disk.transaction(TableCreated()) as transaction:
        if disk.exists(f"{definition.directory}/table.json"):
            transaction.remove(f"{definition.directory}/table.json")
        transaction.create(f"{definition.directory}/table.json", schema.encode(definition))
        transaction.commit()


class Site:
    """An SSD and a bucket with two parts each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bucket = MemoryStore()
        self.faults = FaultyStore(self.bucket)
        self.ssd = LocalDisk("ssd", root / "ssd")
        self.cold = ObjectDisk("cold", self.faults, root / "state", snapshot_every_commits=0)
        for disk in (self.ssd, self.cold):
            define(disk)
        add_part(self.ssd, "all_3_3_0")
        add_part(self.ssd, "all_4_4_0")
        add_part(self.cold, "all_1_1_0")
        add_part(self.cold, "all_2_2_0")

    @property
    def disks(self) -> dict[str, Disk]:
        return {"ssd": self.ssd, "cold": self.cold}

    def check(self, **options: object) -> CheckResult:
        moving = options.pop("moving", ())
        return check(self.disks, CheckOptions(**options), policies=POLICIES, moving=moving)  # type: ignore[arg-type]

    def only(self, **options: object) -> Problem:
        """The one problem of the store."""
        result = self.check(**options)
        assert not result.ok
        assert len(result.problems) == 1, result.problems
        return result.problems[0]

    def blob(self, part: str, name: str = DATA) -> str:
        key = self.cold.stat(f"{TABLE.part_directory(part)}/{name}").key
        assert key is not None
        return key

    def spoil(self, key: str, change: Callable[[bytes], bytes]) -> None:
        data, info = self.bucket._objects[key]
        changed = change(data)
        self.bucket._objects[key] = (changed, ObjectInfo(key, len(changed), info.modified))

    def file(self, part: str, name: str = DATA) -> Path:
        return self.root / "ssd" / TABLE.part_directory(part) / name


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


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


# The SSD


@pytest.mark.parametrize("files", [(DATA, "part.json"), (DATA,)])
def test_a_part_that_goes_while_it_is_read_is_no_problem(
    site: Site, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    """As a merge or a move takes it away; but where its `part.json` stays, the file is missing."""
    directory, read = TABLE.part_directory("all_3_3_0"), site.ssd.read

    def read_after_removal(path: str, byte_range: ByteRange | None = None) -> bytes:
        if path == f"{directory}/{DATA}" and site.ssd.exists(path):
            with site.ssd.transaction(Dropped()) as transaction:
                for file in files:
                    transaction.remove(f"{directory}/{file}")
                transaction.commit()
        return read(path, byte_range)

    monkeypatch.setattr(site.ssd, "read", read_after_removal)
    problems = site.check(read_data=True).problems
    assert not site.ssd.exists(f"{directory}/{DATA}")
    assert [problem.path for problem in problems] == ([] if "part.json" in files else [f"{directory}/{DATA}"])


@pytest.mark.parametrize("read_data", [False, True])
def test_a_missing_file(site: Site, read_data: bool) -> None:
    site.file("all_3_3_0").unlink()
    problem = site.only(read_data=read_data)
    assert (problem.invariant, problem.disk, problem.part) == ("I1", "ssd", "all_3_3_0")


def test_a_truncated_parquet_file(site: Site) -> None:
    path = site.file("all_3_3_0")
    path.write_bytes(path.read_bytes()[:-20])
    problem = site.only()
    assert (problem.invariant, problem.path) == ("I1", f"{TABLE.part_directory('all_3_3_0')}/{DATA}")


def test_a_flipped_bit_on_the_ssd(site: Site) -> None:
    path = site.file("all_3_3_0")
    path.write_bytes(flip(path.read_bytes()))
    assert site.check().ok
    assert "SHA-256" in site.only(read_data=True).what


def test_a_file_that_is_no_parquet_although_its_hash_is_right(site: Site) -> None:
    path = site.file("all_3_3_0")
    junk = bytes(path.stat().st_size)
    path.write_bytes(junk)
    rewrite(site, lambda file: DataFile(file.name, file.rows, len(junk), hashlib.sha256(junk).hexdigest()))
    assert "Parquet" in site.only(read_data=True).what


def test_a_footer_with_another_row_count(site: Site) -> None:
    path = site.file("all_3_3_0")
    data = parquet(11)
    path.write_bytes(data)
    rewrite(site, lambda file: DataFile(file.name, 10, len(data), hashlib.sha256(data).hexdigest()))
    assert "11 rows" in site.only(read_data=True).what


def rewrite(site: Site, change: Callable[[DataFile], DataFile]) -> None:
    path = site.file("all_3_3_0", "part.json")
    part = part_format.decode(path.read_bytes(), path="")
    (file,) = part.files
    changed = change(file)
    path.write_bytes(
        part_format.encode(
            Part(
                table=part.table,
                name=part.name,
                rows=part.rows,
                size_bytes=changed.size_bytes,
                created=part.created,
                files=(changed,),
            )
        )
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format":1}'])
def test_a_part_json_that_cannot_be_read(site: Site, content: bytes) -> None:
    """I15, P45: a zero-byte part.json."""
    site.file("all_3_3_0", "part.json").write_bytes(content)
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I15", "all_3_3_0")
    assert problem.path is not None
    assert problem.path.endswith("all_3_3_0/part.json")


def test_a_part_json_of_another_part(site: Site) -> None:
    site.file("all_3_3_0", "part.json").write_bytes(site.file("all_4_4_0", "part.json").read_bytes())
    assert "all_4_4_0" in site.only().what


def test_a_part_without_part_json_and_a_file_nobody_listed(site: Site) -> None:
    site.file("all_3_3_0", "extra.bin").write_bytes(b"x")
    assert "not listed" in site.only().what
    site.file("all_3_3_0", "part.json").unlink()
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I2", "all_3_3_0")


def test_counts_that_do_not_add_up(tmp_path: Path) -> None:
    disk = LocalDisk("ssd", tmp_path)
    define(disk)
    add_part(
        disk,
        "all_1_1_0",
        edit=lambda part: Part(
            table=part.table, name=part.name, rows=99, size_bytes=1, created=part.created, files=part.files
        ),
    )
    what = " ".join(problem.what for problem in check({"ssd": disk}).problems)
    assert "99 rows" in what
    assert "1 bytes" in what


@pytest.mark.parametrize("kind", ["link", "link to a directory", "pipe"])
def test_what_is_no_file_is_named_and_never_followed(site: Site, tmp_path: Path, kind: str) -> None:
    """A part directory with a symlink."""
    target = site.file("all_3_3_0").with_name("strange")
    match kind:
        case "link":
            target.symlink_to("/etc/passwd")
        case "link to a directory":
            target.symlink_to(tmp_path / "state", target_is_directory=True)
        case "pipe":
            os.mkfifo(target)
    problem = site.only(read_data=True)
    assert (problem.invariant, problem.part) == ("I15", "all_3_3_0")
    assert problem.path == f"{TABLE.part_directory('all_3_3_0')}/strange"


def test_leftovers_of_dead_transactions_differ_from_live_ones(site: Site) -> None:
    """I14."""
    with site.ssd.transaction(Inserted()) as transaction:
        transaction.create("some/file", b"x")
        assert site.check().ok
    staging = site.root / "ssd" / ".frostline" / "staging" / "dead"
    staging.mkdir()
    problem = site.only()
    assert (problem.invariant, problem.path) == ("I14", str(staging))
    site.ssd.recover()
    assert site.check().ok


# Across disks


def test_a_part_on_two_disks_unless_it_is_being_moved(site: Site) -> None:
    """I1."""
    add_part(site.cold, "all_3_3_0")
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I1", "all_3_3_0")
    assert "ssd" in problem.what
    assert "cold" in problem.what
    assert site.check(moving=[(TABLE.uuid, "all_3_3_0")]).ok


def test_parts_that_overlap_across_disks(site: Site) -> None:
    """I2; a covered part is outdated and no fault."""
    add_part(site.cold, "all_5_7_0")
    add_part(site.ssd, "all_6_9_0")
    problem = site.only()
    assert problem.invariant == "I2"
    assert "all_5_7_0 and all_6_9_0" in problem.what


def test_a_covered_part_is_no_overlap(site: Site) -> None:
    add_part(site.ssd, "all_1_4_1")
    assert site.check().ok


def test_a_part_in_a_bucket_covers_what_it_is_proved_made_from(site: Site) -> None:
    """I1: others write to a bucket, so a name is not believed there."""
    add_part(site.cold, "all_3_4_1")
    problems = site.check().problems
    assert {(problem.invariant, problem.part) for problem in problems} == {("I1", "all_3_4_1")}
    assert "nor the log shows that it was made from it" in problems[0].what


def test_a_missing_or_old_table_json_is_found_and_repaired(site: Site) -> None:
    """I7: the bucket alone is enough."""
    newer = TableDefinition(
        uuid=TABLE.uuid,
        database="db",
        name="events",
        version=2,
        columns=TABLE.columns,
        order_by=TABLE.order_by,
        policy="hot_cold",
    )
    define(site.ssd, newer)
    problem = site.only()
    assert (problem.invariant, problem.disk) == ("I7", "cold")
    assert "older" in problem.what
    assert site.check(repair=True).repaired
    assert schema.decode(site.cold.read(f"{TABLE.directory}/table.json"), path="") == newer

    with site.cold.transaction(OtherKind("test")) as transaction:
        transaction.remove(f"{TABLE.directory}/table.json")
        transaction.commit()
    assert "missing" in site.only().what
    assert site.check(repair=True).ok
    assert site.check().ok


def test_a_machines_own_disk_may_be_behind_the_bucket(site: Site) -> None:
    """Another machine has altered the table, or made one: the next command writes it to the SSD. Nothing is wrong."""
    define(site.cold, structs.replace(TABLE, version=2))
    assert site.check().ok
    with site.ssd.transaction(OtherKind("test")) as transaction:
        transaction.remove(f"{TABLE.directory}/table.json")
        transaction.commit()
    assert (site.only().disk, "missing" in site.only().what) == ("ssd", True), "it has parts of the table"
    with site.ssd.transaction(OtherKind("test")) as transaction:
        for name in ("all_3_3_0", "all_4_4_0"):
            transaction.remove(TABLE.part_directory(name))
        transaction.commit()
    assert site.check().ok
    assert site.check(repair=True).repaired
    assert site.ssd.exists(f"{TABLE.directory}/table.json")


def test_a_damaged_table_json_is_named_and_not_overwritten(site: Site) -> None:
    path = site.root / "ssd" / TABLE.directory / "table.json"
    path.write_bytes(b"")
    problem = site.only(repair=True)
    assert (problem.invariant, problem.disk, problem.path) == ("I15", "ssd", f"{TABLE.directory}/table.json")
    assert path.read_bytes() == b""


def test_overlaps_are_seen_against_the_furthest_reaching_part() -> None:
    names = [PartName("a", 1, 10, 2), PartName("a", 3, 4, 3), PartName("a", 8, 12, 0), PartName("b", 1, 10, 0)]
    assert overlaps(names) == [(names[0], names[1]), (names[0], names[2])]
    assert overlaps(names[3:]) == []


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


def test_a_part_that_another_spans_without_having_its_rows(site: Site) -> None:
    """I1, I19: a name alone would hide rows; they are in every answer, beside that part's."""
    define(site.ssd, replace_settings(1000))
    define(site.cold, replace_settings(1000))

    def digest(value: str) -> Callable[[Part], Part]:
        return lambda part: structs.replace(part, digests=(value,))

    add_part(site.ssd, "all_10_10_0", edit=digest("a"))
    add_part(site.ssd, "all_10_11_1", edit=digest("b"))
    problem = site.only()
    assert (problem.invariant, problem.part) == ("I1", "all_10_11_1")
    assert "takes the place of all_10_10_0" in problem.what


def replace_settings(window: int) -> TableDefinition:
    settings = structs.replace(TABLE.settings, deduplication_window=window)
    return structs.replace(TABLE, version=2, settings=settings)


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


# Repair


def test_a_repair_sets_aside_unreadable_parts_deletes_nothing(site: Site) -> None:
    """I15: the reason is in the name; queries see the rest; the part comes back by hand."""
    key = site.blob("all_1_1_0")
    data, info = site.bucket._objects[key]
    site.bucket.delete([key])
    site.file("all_3_3_0", "part.json").write_bytes(b"")
    before = set(site.bucket._objects)
    dry = site.check(repair=True, dry_run=True)
    assert len(dry.problems) == 2
    assert all("would" in sentence for sentence in dry.repaired)
    assert set(site.bucket._objects) == before
    result = site.check(repair=True)
    assert result.ok
    assert len(result.repaired) == 2
    aside = f"{TABLE.directory}/detached"
    assert site.cold.list(aside) == ["missing_all_1_1_0/"]
    assert site.ssd.list(aside) == ["broken_all_3_3_0/"]
    assert before <= set(site.bucket._objects)
    again = site.check()
    assert again.ok
    assert again.set_aside == [f"ssd:{aside}/broken_all_3_3_0", f"cold:{aside}/missing_all_1_1_0"]
    commit = next(iter(site.cold.entries(limit=1))).commit
    assert (commit.kind, commit.reason) == (SetAside(), "fsck: part all_1_1_0 is missing")

    site.bucket._objects[key] = (data, info)
    with site.cold.transaction(OtherKind("test")) as transaction:
        transaction.rename(f"{aside}/missing_all_1_1_0", TABLE.part_directory("all_1_1_0"))
        transaction.commit()
    assert site.check(read_data=True).set_aside == [f"ssd:{aside}/broken_all_3_3_0"]


def test_a_disk_with_a_part_set_aside_goes_back_and_is_collected(site: Site) -> None:
    """I7: that the object of a part in detached/ is gone is known; what needs no such object goes on."""
    site.bucket.delete([site.blob("all_1_1_0")])
    assert site.check(repair=True).ok
    aside = site.cold.revision
    add_part(site.cold, "all_9_9_0")
    with pytest.raises(Refused, match="1 object that is gone"):
        restore(site.cold, RebuildRequest(revision=aside - 1, apply=True))
    assert restore(site.cold, RebuildRequest(revision=aside, apply=True)).applied
    assert not site.cold.exists(TABLE.part_directory("all_9_9_0"))
    later = datetime.now(UTC) + timedelta(days=3)
    report = collect(site.cold, GcRules(delete=True, max_delete_fraction=1.0), now=later)
    assert (report.refused, report.deleted) == (None, 1)
    site.cold.retention_seconds = -1
    assert site.check().ok


def test_a_repair_keeps_what_reading_proved_to_be_altered(site: Site) -> None:
    site.spoil(site.blob("all_1_1_0"), flip)
    assert site.check(repair=True).ok, "a quick check does not read data"
    assert site.check(read_data=True, repair=True).ok
    assert site.cold.list(f"{TABLE.directory}/detached") == ["altered_all_1_1_0/"]
    assert site.check(read_data=True).ok


def test_a_second_broken_part_of_a_name_finds_a_place(site: Site) -> None:
    for _ in range(2):
        site.file("all_3_3_0", "part.json").unlink()
        assert site.check(repair=True).ok
        add_part(site.ssd, "all_3_3_0")
    assert site.ssd.list(f"{TABLE.directory}/detached") == ["incomplete_all_3_3_0/", "incomplete_all_3_3_0_try2/"]


def test_a_repair_touches_no_part_that_is_moving_or_claimed(site: Site) -> None:
    site.file("all_3_3_0", "part.json").unlink()
    assert not site.check(repair=True, moving=[(TABLE.uuid, "all_3_3_0")]).ok

    @contextmanager
    def refuse(uuid: str, parts: list[str], why: str) -> Iterator[None]:
        raise Locked(f"{parts} are busy")
        yield

    result = check(site.disks, CheckOptions(repair=True), policies=POLICIES, claim=refuse)
    assert not result.ok
    assert "busy" in result.repaired[0]


def test_a_repair_believes_no_short_listing(site: Site) -> None:
    """P29: every blob that the listing lacks is asked for by name before its part is called missing."""
    keys = {site.blob("all_1_1_0"), site.blob("all_2_2_0")}
    whole = site.bucket.list
    site.bucket.list = lambda prefix="", start_after="": (  # type: ignore[method-assign,misc]
        info for info in whole(prefix, start_after=start_after) if info.key not in keys
    )
    result = site.check(repair=True)
    assert {problem.invariant for problem in result.problems} == {"I15"}
    assert result.repaired == []


def test_a_repair_finishes_what_a_crash_left(site: Site) -> None:
    """I14."""
    for place in (site.root / "ssd" / ".frostline" / "staging" / "dead", site.cold.state_path / "scratch" / "dead"):
        place.mkdir(parents=True)
    assert {problem.invariant for problem in site.check().problems} == {"I14"}
    assert {problem.invariant for problem in site.check(repair=True, dry_run=True).problems} == {"I14"}
    result = site.check(repair=True)
    assert result.ok
    assert len(result.repaired) == 2


def test_a_log_that_cannot_be_replayed_is_checked_by_the_cache(site: Site) -> None:
    """I6, I3: the cache is the last witness."""
    site.bucket.delete([commit_key(1)])
    site.bucket.delete([site.blob("all_1_1_0")])
    invariants = {problem.invariant for problem in site.check(read_data=True).problems}
    assert {"I6", "I7", "I3"} <= invariants
