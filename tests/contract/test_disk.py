"""What every disk promises (disks/base.py). Guards I2 all or nothing, I8 links, P37 to P40, P61 hostile paths."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks.base import Disk, FileInfo
from disks.clickhouse.disk import ClickHouseDisk
from disks.config import ObjectDiskConfig
from disks.local.disk import LocalDisk
from disks.memory import MemoryDisk
from disks.object_disk.disk import ObjectDisk
from disks.registry import open_disk
from disks.stores.base import ByteRange, ObjectStore
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.open import open_store
from disks.stores.wrappers.named_log import NamedLogStore
from disks.wrappers.wrapped import WrappedDisk
from oplog.errors import Conflict, Damaged, FrostlineError, NotFound, Refused, UsageError
from oplog.kinds import Dropped, Inserted, Merged, OtherKind, Restored
from oplog.replay import FileRow
from tests.documented import documented

Open = Callable[[], Disk]

KINDS = [
    "memory",
    "local",
    "documented",
    "object_memory",
    "object_directory",
    "object_documented",
    "object_s3",
    "object_lease",
    "object_log",
    "object_log_locked",
    "object_log_lease",
    "clickhouse_memory",
    "clickhouse_locked",
    "clickhouse_directory",
    "clickhouse_s3",
]
WRAPPED = ["memory", "local", "object_memory", "object_lease", "clickhouse_memory"]
"""Kinds that are also put into a wrapper: each class of disk, and both ways of an object disk to commit."""


@pytest.fixture(params=[*KINDS, *(f"wrapped_{kind}" for kind in WRAPPED)])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same disk once more, as another process would; all are closed at the end."""
    opened: list[Disk] = []
    one = MemoryDisk()
    memory, locked = MemoryStore("contract"), MemoryStore("locked", keep_for=timedelta(days=1))

    def again() -> Disk:
        disk = open_plain(request.param.removeprefix("wrapped_"))
        return WrappedDisk(disk) if request.param.startswith("wrapped_") else disk

    def open_plain(wanted: str) -> Disk:
        match wanted:
            case "memory":
                disk: Disk = one
            case "local":
                disk = LocalDisk("hot", tmp_path / "hot")
            case "documented":
                one_file = documented("disk").OneFileConfig(path=str(tmp_path / "one" / "files"))
                disk = open_disk("one", one_file, tmp_path / "state")
            case "object_documented":
                documented("store")
                config = ObjectDiskConfig(url=f"sqlite://{tmp_path}/objects.db")
                disk = open_disk("s3", config, tmp_path / "state")
            case "object_memory":
                disk = ObjectDisk("s3", memory, tmp_path / "state", snapshot_every_commits=3)
            case "object_directory":
                disk = ObjectDisk("s3", DirectoryStore(tmp_path / "bucket"), tmp_path / "state")
            case "object_log" | "object_log_locked":
                store = NamedLogStore(memory if wanted == "object_log" else locked, "replica-1")
                disk = ObjectDisk("s3", store, tmp_path / "state", snapshot_every_commits=3)
            case "object_log_lease":
                store = NamedLogStore(memory, "replica-1")
                disk = ObjectDisk("s3", store, tmp_path / "state", single_writer=True, lease_settle_seconds=0.0)
            case "object_lease":
                disk = ObjectDisk("s3", memory, tmp_path / "state", single_writer=True, lease_settle_seconds=0.0)
            case "clickhouse_memory":
                disk = ClickHouseDisk("s3", memory, tmp_path / "state", lease_settle_seconds=0.0)
            case "clickhouse_locked":
                disk = ClickHouseDisk("s3", locked, tmp_path / "state", lease_settle_seconds=0.0)
            case "clickhouse_directory":
                store: ObjectStore = DirectoryStore(tmp_path / "bucket")
                disk = ClickHouseDisk("s3", store, tmp_path / "state", lease_settle_seconds=0.0)
            case kind:
                url = f"s3://{request.getfixturevalue('bucket')}/prefix/"
                store = open_store(ObjectDiskConfig(url=url))
                if kind == "clickhouse_s3":
                    disk = ClickHouseDisk("s3", store, tmp_path / "state", lease_settle_seconds=0.0)
                else:
                    disk = ObjectDisk("s3", store, tmp_path / "state")
        opened.append(disk)
        return disk

    yield again
    for disk in opened:
        disk.close()


@pytest.fixture
def disk(open_again: Open) -> Disk:
    return open_again()


def put(disk: Disk, files: dict[str, bytes]) -> None:
    with disk.transaction(Inserted()) as transaction:
        for path, data in files.items():
            transaction.create(path, data)
        transaction.commit()


def content(disk: Disk) -> dict[str, bytes]:
    return {info.path: disk.read(info.path) for info in disk.walk()}


def test_an_empty_disk_has_nothing(disk: Disk) -> None:
    assert disk.list() == []
    assert disk.list("no/such") == []
    assert list(disk.walk()) == []
    assert not disk.exists("x")
    assert disk.recover() == []
    with pytest.raises(NotFound, match="x/y"):
        disk.stat("x/y")
    with pytest.raises(NotFound, match="x/y"):
        disk.read("x/y")


def test_files_are_visible_after_the_commit_and_not_before(disk: Disk) -> None:
    with disk.transaction(Inserted(), reason="test") as transaction:
        transaction.create("t/p1/part.json", b"{}")
        transaction.create("t/p1/a.parquet", b"a" * 20_000)
        assert not disk.exists("t/p1")
        assert list(disk.walk()) == []
        transaction.commit()
    assert content(disk) == {"t/p1/part.json": b"{}", "t/p1/a.parquet": b"a" * 20_000}
    assert disk.stat("t/p1/a.parquet").size_bytes == 20_000
    assert disk.exists("t/p1")
    assert disk.exists("t/p1/part.json")
    assert not disk.exists("t/p")


def test_an_abandoned_transaction_leaves_nothing(disk: Disk, open_again: Open) -> None:
    put(disk, {"a": b"1"})
    with disk.transaction(Inserted()) as transaction:
        transaction.create("b", b"2")
        transaction.remove("a")
    with pytest.raises(ZeroDivisionError), disk.transaction(Inserted()) as transaction:
        transaction.create("c", b"3")
        raise ZeroDivisionError
    assert content(disk) == {"a": b"1"}
    assert content(open_again()) == {"a": b"1"}
    assert disk.recover() == []


def test_an_ended_transaction_takes_no_more(disk: Disk) -> None:
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a", b"1")
        transaction.commit()
        with pytest.raises(Refused):
            transaction.create("b", b"2")
        with pytest.raises(Refused):
            transaction.commit()
    assert disk.list() == ["a"]


def test_an_empty_transaction_commits_nothing(disk: Disk) -> None:
    before = disk.revision
    with disk.transaction(OtherKind("nothing")) as transaction:
        assert transaction.commit() is None
    assert disk.revision == before


def test_listing_is_one_level_sorted_with_slashes(disk: Disk) -> None:
    put(disk, {"t/b/1": b"", "t/a-1/x": b"", "t/a/x": b"", "t/c": b"", "t/a0": b"", "u": b""})
    assert disk.list() == ["t/", "u"]
    assert disk.list("t") == ["a-1/", "a/", "a0", "b/", "c"]
    assert [info.path for info in disk.walk("t")] == ["t/a-1/x", "t/a/x", "t/a0", "t/b/1", "t/c"]
    assert disk.list("t/c") == []


def test_many_directories_are_listed_as_one_is(disk: Disk) -> None:
    put(disk, {"t/a/x": b"", "t/a/b/y": b"", **{f"t/p{number}/{number}": b"" for number in range(450)}})
    asked = ["t/a", "t/none", *(f"t/p{number}" for number in range(450)), "t"]
    assert list(disk.list_each(asked)) == [disk.list(directory) for directory in asked]
    assert list(disk.list_each([])) == []


def test_all_directories_are_among_those_that_may_show_something(disk: Disk) -> None:
    put(disk, {"t/a/x": b"", "t/a/b/y": b"", "t/c-d/z": b"", "t/c/z": b"", "t/file": b""})
    assert sorted(disk.directories("t")) == ["a", "c", "c-d"]
    assert disk.directories("none") == []
    assert disk.files_in("t") == [name for name in disk.list("t") if not name.endswith("/")]
    assert disk.files_in("none") == []


def test_the_files_in_a_directory_that_begin_so(disk: Disk) -> None:
    names = ["blocks-", "blocks-0.json", "blocks-10.json", "blocks-\U0001f600", "blocks.json", "table.json", "blocks"]
    put(disk, {**{f"t/{name}": b"" for name in names}, "t/blocks-x/y": b"", "t/a/blocks-1.json": b"", "blocks-9": b""})
    for begin in ("", "blocks-", "blocks-1", "table.json", "none", "blocks-\U0001f600"):
        assert disk.files_in("t", begin) == sorted(name for name in names if name.startswith(begin))
    assert disk.files_in("", "blocks-") == ["blocks-9"]
    assert disk.files_in("none", "blocks-") == []


def test_only_what_is_below_some_names_is_looked_over(disk: Disk) -> None:
    put(disk, {f"t/{name}/f": name.encode() for name in ("a", "a-b", "a0", "b", "c")})
    for among in (["a"], ["a0", "a"], ["a-b", "none"], ["c", "a"], []):
        found = disk.look_over("t", "f", {}, among)
        assert [(file.path, file.data) for file in found] == [
            (f"t/{name}/f", name.encode()) for name in ("a-b", "a", "a0", "b", "c") if name in among
        ]


def test_a_directory_is_there_while_a_file_is_below_it(disk: Disk) -> None:
    put(disk, {"a/b/c": b"1", "a/d": b"2"})
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("a/b/c")
        transaction.commit()
    assert disk.list("a") == ["d"]
    assert not disk.exists("a/b")
    put(disk, {"a/b": b"now a file"})
    assert content(disk) == {"a/b": b"now a file", "a/d": b"2"}


def test_small_files_one_directory_down(disk: Disk) -> None:
    put(
        disk,
        {
            "t/p1/part.json": b"1",
            "t/p2/part.json": b"2" * 10_000,
            "t/p2/x": b"",
            "t/p3/x": b"",
            "t/part.json": b"above",
            "t/p1/deep/part.json": b"below",
            "t0/p1/part.json": b"beside",
        },
    )
    found = {path: data for path, data, _ in disk.small_files("t", "part.json")}
    assert found == {"t/p1/part.json": b"1", "t/p2/part.json": b"2" * 10_000}
    assert [path for path, _, _ in disk.small_files("t", "x")] == ["t/p2/x", "t/p3/x"]


def test_of_small_files_that_are_known_none_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a disk has marks is its own business: one that has none gives the bytes."""
    monkeypatch.setattr("disks.local.disk.SETTLED_NS", 0)
    put(disk, {"t/p1/part.json": b"1", "t/p2/part.json": b"2", "t/p3/x": b"", "t/p1/deep/part.json": b"below"})
    first = disk.look_over("t", "part.json", {})
    assert [(file.path, file.data) for file in first] == [("t/p1/part.json", b"1"), ("t/p2/part.json", b"2")]
    assert [file.revision for file in first] == [revision for _, _, revision in disk.small_files("t", "part.json")]
    known = {file.path: file.mark for file in first if file.mark is not None}
    assert len(known) in (0, 2)
    with disk.transaction(Merged()) as transaction:
        transaction.remove("t/p1")
        transaction.create("t/p4/part.json", b"4")
        transaction.commit()
    put(disk, {"t/p1/part.json": b"7"})
    again = disk.look_over("t", "part.json", known)
    assert [file.path for file in again] == ["t/p1/part.json", "t/p2/part.json", "t/p4/part.json"]
    assert [file.data for file in again] == [b"7", None if known else b"2", b"4"]
    assert [file.mark for file in again][1] == known.get("t/p2/part.json")


def test_ranges_and_never_short(disk: Disk) -> None:
    data = bytes(range(256)) * 100
    put(disk, {"small.json": data[:100], "large": data})
    for path in ("small.json", "large"):
        assert disk.read(path, ByteRange(10, 20)) == data[10:20]
        assert disk.read(path, ByteRange(5, 5)) == b""
    with pytest.raises(Damaged):
        disk.read("large", ByteRange(0, len(data) + 1))
    with pytest.raises(Damaged):
        disk.read("small.json", ByteRange(90, 101))


def test_a_file_in_scratch_is_taken_over(disk: Disk, tmp_path: Path) -> None:
    with disk.transaction(Inserted()) as transaction:
        scratch = transaction.scratch()
        (scratch / "x").write_bytes(b"x" * 9_000)
        info = transaction.create("t/x", scratch / "x")
        transaction.commit()
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept" * 3_000)
    with disk.transaction(Inserted()) as transaction:
        transaction.create("t/y", outside)
        transaction.commit()
    assert info.size_bytes == 9_000
    assert not scratch.exists()
    assert outside.read_bytes() == b"kept" * 3_000
    assert content(disk) == {"t/x": b"x" * 9_000, "t/y": b"kept" * 3_000}


@pytest.mark.parametrize("size", [10, 20_000])
def test_other_bytes_than_announced_are_refused(disk: Disk, size: int, tmp_path: Path) -> None:
    data = b"d" * size
    wrong = hashlib.sha256(b"other").hexdigest()
    file = tmp_path / "file"
    file.write_bytes(data)
    with disk.transaction(Inserted()) as transaction:
        for payload in (data, file):
            with pytest.raises(Damaged):
                transaction.create("t/a.json", payload, sha256=wrong)
        transaction.create("t/a.json", data, sha256=hashlib.sha256(data).hexdigest())
        transaction.commit()
    assert content(disk) == {"t/a.json": data}


def test_one_transaction_creates_renames_links_removes_in_order(disk: Disk) -> None:
    put(disk, {"t/old1/part.json": b"1", "t/old2/part.json": b"2", "t/keep": b"k"})
    with disk.transaction(Merged()) as transaction:
        transaction.create("tmp/part.json", b"merged")
        transaction.create("tmp/data", b"d")
        transaction.link("tmp/data", "tmp/data2")
        transaction.remove("t/old1")
        transaction.rename("tmp", "t/new")
        transaction.rename("t/old2", "t/old1")
        transaction.create("t/old2/part.json", b"again")
        transaction.link("t/keep", "t/kept")
        transaction.rename("t/keep", "u/keep")
        transaction.remove("t/new/data")
        transaction.commit()
    assert content(disk) == {
        "t/new/part.json": b"merged",
        "t/new/data2": b"d",
        "t/old1/part.json": b"2",
        "t/old2/part.json": b"again",
        "t/kept": b"k",
        "u/keep": b"k",
    }


def test_a_removed_path_may_be_created_again(disk: Disk) -> None:
    put(disk, {"t/p/a": b"1", "t/p/b": b"1"})
    with disk.read_lease():
        with disk.transaction(OtherKind("replace")) as transaction:
            transaction.remove("t/p")
            transaction.create("t/p/a", b"2")
            transaction.commit()
        assert content(disk) == {"t/p/a": b"2"}
        with disk.transaction(Dropped()) as transaction:
            transaction.remove("t/p/a")
            transaction.commit()
        assert content(disk) == {}
        put(disk, {"t/p/b": b"3"})
    assert content(disk) == {"t/p/b": b"3"}


def test_a_link_outlives_its_source(disk: Disk) -> None:
    put(disk, {"a": b"bytes" * 4_000})
    with disk.transaction(OtherKind("link")) as transaction:
        transaction.link("a", "b/c")
        transaction.commit()
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("a")
        transaction.commit()
    assert content(disk) == {"b/c": b"bytes" * 4_000}


CONFLICTS: dict[str, Callable[..., object]] = {
    "create over a file": lambda t: t.create("t/a", b"new"),
    "create over a directory": lambda t: t.create("t", b"new"),
    "create below a file": lambda t: t.create("t/a/b", b"new"),
    "create twice": lambda t: (t.create("n", b"1"), t.create("n", b"2")),
    "create below a new file": lambda t: (t.create("n", b"1"), t.create("n/m", b"2")),
    "remove what is not there": lambda t: t.remove("t/zz"),
    "remove twice": lambda t: (t.remove("t/a"), t.remove("t/a")),
    "rename what is not there": lambda t: t.rename("zz", "y"),
    "rename over a file": lambda t: t.rename("t/b", "t/a"),
    "rename over a directory": lambda t: t.rename("u", "t"),
    "rename below a file": lambda t: t.rename("u", "t/a/u"),
    "rename after a removal": lambda t: (t.remove("t"), t.rename("t/a", "y")),
    "rename within itself": lambda t: t.rename("t", "t/deeper"),
    "link from a directory": lambda t: t.link("t", "y"),
    "link from nothing": lambda t: t.link("zz", "y"),
    "link over a file": lambda t: t.link("t/a", "t/b"),
    "present file missing": lambda t: (t.require(present=("zz",)), t.create("n", b"")),
    "absent file there": lambda t: (t.require(absent=("t/a",)), t.create("n", b"")),
    "absent directory there": lambda t: (t.require(absent=("t",)), t.create("n", b"")),
    "required after its removal": lambda t: (t.remove("t/a"), t.require(absent=("t/a",))),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_conflicts_change_nothing(disk: Disk, open_again: Open, case: str) -> None:
    before = {"t/a": b"1", "t/b": b"2", "u/c": b"3"}
    put(disk, before)
    with pytest.raises(Conflict), disk.transaction(OtherKind("conflict")) as transaction:
        transaction.create("first", b"must not stay")
        CONFLICTS[case](transaction)
        transaction.commit()
    assert content(disk) == before
    assert content(open_again()) == before
    put(disk, {"afterwards": b"fine"})
    assert disk.exists("afterwards")


def test_preconditions_that_hold(disk: Disk) -> None:
    put(disk, {"t/a": b"1"})
    with disk.transaction(Inserted()) as transaction:
        transaction.require(present=("t", "t/a"), absent=("t/b", "u"))
        transaction.create("t/b", b"2")
        transaction.commit()
    assert disk.list("t") == ["a", "b"]


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\x00b", "a\nb", "x" * 256, "d/" * 600 + "x", ".frostline/x"],
)
def test_hostile_paths_are_refused(disk: Disk, path: str) -> None:
    with disk.transaction(Inserted()) as transaction:
        for call in (
            lambda: transaction.create(path, b""),
            lambda: transaction.link("a", path),
            lambda: transaction.rename("a", path),
            lambda: transaction.remove(path),
            lambda: transaction.require(absent=(path,)),
        ):
            with pytest.raises(UsageError, match="unsafe"):
                call()
    with pytest.raises(FrostlineError):
        disk.read(path)


def test_names_in_any_script(disk: Disk, open_again: Open) -> None:
    files = {"t/größe=1/часть": b"1" * 9_000, "t/日本/a b+c%20": b"2", "t/e\u0301": b"3"}
    put(disk, files)
    assert content(disk) == files
    assert content(open_again()) == files


def test_the_same_after_opening_again(disk: Disk, open_again: Open) -> None:
    for number in range(7):
        put(disk, {f"t/p{number}/part.json": b"%d" % number})
    again = open_again()
    assert content(again) == content(disk)
    assert again.revision == disk.revision
    assert again.recover() == []
    put(again, {"t/p7/part.json": b"7"})
    disk.refresh()
    assert content(disk) == content(again)


def test_revisions_count_commits(disk: Disk) -> None:
    if disk.revision is None:
        pytest.skip("this disk numbers no revisions")
    with disk.transaction(Inserted()) as transaction:
        transaction.create("a", b"")
        first = transaction.commit()
    with disk.transaction(Inserted()) as transaction:
        transaction.create("b", b"")
        second = transaction.commit()
    assert first is not None
    assert second is not None
    assert (first, second) == (1, 2) if disk.capabilities.dense_revisions else first < second
    assert disk.revision == second
    assert disk.stat("a").revision == first


def test_creates_from_several_threads(disk: Disk) -> None:
    errors: list[BaseException] = []
    with disk.transaction(Inserted()) as transaction:

        def create(start: int) -> None:
            try:
                for number in range(start, start + 10):
                    transaction.create(f"t/{number:03}", b"%d" % number * 3_000)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=create, args=(start,)) for start in range(0, 40, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        transaction.commit()
    assert errors == []
    assert content(disk) == {f"t/{number:03}": b"%d" % number * 3_000 for number in range(40)}


def test_two_transactions_that_claim_one_path(disk: Disk, open_again: Open) -> None:
    other = open_again()
    with disk.transaction(OtherKind("one")) as first, other.transaction(OtherKind("two")) as second:
        first.create("same", b"first")
        second.create("same", b"second")
        first.commit()
        with pytest.raises(Conflict):
            second.commit()
    other.refresh()
    assert content(disk) == content(other) == {"same": b"first"}


def test_concurrent_transactions_all_commit(disk: Disk, open_again: Open) -> None:
    """P40: writers race, each makes progress, none loses a commit."""
    errors: list[BaseException] = []

    def write(mine: Disk, writer: int) -> None:
        try:
            for number in range(5):
                put(mine, {f"w{writer}/{number}": b"x"})
        except BaseException as error:
            errors.append(error)

    disks = [disk, disk, open_again()]
    threads = [threading.Thread(target=write, args=(mine, writer)) for writer, mine in enumerate(disks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    expected = {f"w{writer}/{number}": b"x" for writer in range(3) for number in range(5)}
    for one in disks:
        one.refresh()
        assert content(one) == expected
    assert disk.revision in (None, 15) or not disk.capabilities.dense_revisions


def test_readers_see_all_or_nothing(disk: Disk, open_again: Open) -> None:
    """I2: a reader beside a writer sees a part whole, before or after, never both parts and never none."""
    put(disk, {"t/p0/a": b"", "t/p0/b": b""})
    reader = open_again()
    stop = threading.Event()
    seen: list[list[str]] = []

    def read() -> None:
        while not stop.is_set():
            seen.append([info.path for info in reader.walk("t")])

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 15):
        with disk.transaction(Merged()) as transaction:
            transaction.create(f"t/p{number}/a", b"")
            transaction.create(f"t/p{number}/b", b"")
            transaction.remove(f"t/p{number - 1}")
            transaction.commit()
    stop.set()
    thread.join()
    assert seen
    allowed = [[f"t/p{number}/a", f"t/p{number}/b"] for number in range(15)]
    assert [paths for paths in seen if paths not in allowed] == []


def test_locations_open_while_a_reader_holds_its_lease(disk: Disk) -> None:
    data = b"PAR1" * 5_000
    put(disk, {"t/p/x.parquet": data, "t/q/tiny.parquet": b"PAR1"})
    with disk.read_lease():
        try:
            location = disk.location("t/p/x.parquet")
            tiny = disk.location("t/q/tiny.parquet")
        except NotFound:
            assert disk.kind in ("memory", "one_file")
            return
        with disk.transaction(Dropped()) as transaction:
            transaction.remove("t/p")
            transaction.commit()
        assert not disk.exists("t/p")
        with pytest.raises(NotFound):
            disk.location("t/p/x.parquet")
        if location.url.startswith("file://"):
            assert Path(location.url.removeprefix("file://")).read_bytes() == data
            assert Path(tiny.url.removeprefix("file://")).read_bytes() == b"PAR1"


def test_a_reader_reads_the_file_as_it_was(disk: Disk) -> None:
    """Also when its path is removed, or names another file: whoever reads piece by piece sees one file."""
    data = bytes(range(256)) * 100
    put(disk, {"t/p/x": data, "t/q/y": b"stays"})
    with pytest.raises(NotFound):
        disk.reader("t/p/none")
    with disk.read_lease():
        read = disk.reader("t/p/x")
        assert read(ByteRange(3, 300)) == data[3:300]
        with disk.transaction(Dropped()) as transaction:
            transaction.remove("t/p")
            transaction.commit()
        assert read(ByteRange(len(data) - 1, len(data))) == data[-1:]
        with pytest.raises(Damaged):
            read(ByteRange(0, len(data) + 1))


def test_usage_adds_up(disk: Disk) -> None:
    put(disk, {"a": b"x" * 10_000, "b.json": b"y" * 100})
    usage = disk.usage()
    assert usage.used_bytes >= 10_100
    assert disk.stored_bytes() == 10_100
    assert usage.free_bytes is None or usage.total_bytes is not None


def test_info_tells_blob_and_digest_where_there_is_one(disk: Disk) -> None:
    data = b"d" * 9_000
    with disk.transaction(Inserted()) as transaction:
        created = transaction.create("t/x", data, blob_set="p1")
        transaction.commit()
    info: FileInfo = disk.stat("t/x")
    assert info.sha256 in (None, hashlib.sha256(data).hexdigest())
    assert info.key == created.key
    assert info.blob_set == (None if disk.kind != "object_disk" else "p1")


def test_what_a_disk_has_besides_is_the_same_disk(disk: Disk) -> None:
    """Its views show the tree that it shows, and write to it: a wrapper's stand for the wrapper."""
    put(disk, {"t/a": b"1" * 9_000})
    bucket = disk.bucket
    assert bucket is (disk.logged if disk.logged is not None else disk.clickhouse)
    assert (bucket is not None) == disk.capabilities.remote
    if bucket is None:
        return
    assert bucket.bucket is bucket
    assert (bucket.name, bucket.kind, bucket.capabilities) == (disk.name, disk.kind, disk.capabilities)
    put(bucket, {"t/b": b"2"})
    assert content(bucket) == content(disk) == {"t/a": b"1" * 9_000, "t/b": b"2"}
    assert bucket.revision == disk.revision
    assert {row.path for row in bucket.file_table.rows()} == {"t/a", "t/b"}
    assert bucket.local_state_exists()
    if (logged := disk.logged) is not None:
        past = logged.at(1)
        assert content(past) == {"t/a": b"1" * 9_000}
        assert type(past).__name__ == ("WrappedDisk" if isinstance(disk, WrappedDisk) else "DiskAsOf")
        past.close()
        assert content(disk) == content(bucket)


def test_a_local_path_is_where_the_file_lies(disk: Disk) -> None:
    put(disk, {"t/a": b"1"})
    place = disk.local_path("t/a")
    assert (place is not None) == (disk.kind == "local")
    if place is None:
        with pytest.raises(Refused):
            disk.hold(["t/a"], until=datetime.now(UTC) + timedelta(hours=1), process=os.getpid())
        return
    assert place.read_bytes() == b"1"
    [held] = disk.hold(["t/a"], until=datetime.now(UTC) + timedelta(hours=1), process=os.getpid())
    with disk.transaction(Dropped()) as transaction:
        transaction.remove("t/a")
        transaction.commit()
    assert held.read_bytes() == b"1"


def test_only_disks_of_objects_take_objects_over(disk: Disk) -> None:
    put(disk, {"t/a": b"1" * 9_000})
    known = disk.stat("t/a")
    row = FileRow("t/b", 9_000, hashlib.sha256(b"1" * 9_000).hexdigest(), known.key, None, None, 0)
    with disk.transaction(Restored()) as transaction:
        if disk.logged is None:
            with pytest.raises(Refused):
                transaction.adopt(row)
            return
        transaction.adopt(row)
        transaction.commit()
    assert disk.read("t/b") == b"1" * 9_000


def test_nothing_is_left_over_by_what_ended(disk: Disk) -> None:
    put(disk, {"t/a": b"1"})
    with disk.transaction(Inserted()) as transaction:
        transaction.create("t/b", b"2")
        transaction.scratch()
    assert disk.leftovers() == []
    assert disk.tidy() == []
    files, strange = disk.inspect()
    assert [info.path for info in files] == ["t/a"]
    assert strange == []
